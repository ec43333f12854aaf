//! What every store must do for operations: one runner at a time, and nothing of a chunk without the rest of it.

use std::time::Duration;

use postrider::store::{
    Backend, Claim, LogEntry, LogPage, LogQuery, Operation, OperationEnd, OperationKind, OperationState,
    Operations as _, Store as _,
};
use uuid::Uuid;

use super::store::StoreFixture;
use super::triage::operation;
use super::until;

const LEASE: Duration = Duration::from_mins(5);

/// An operation with these items.
async fn planned<S: Backend>(store: &S, kind: OperationKind, items: &[&str]) -> Uuid {
    let mut tx = store.begin().await.unwrap();
    let id = operation(store, &mut tx, kind).await;
    // In two parts, which follow each other.
    let (first, second) = items.split_at(items.len() / 2);
    for part in [first, second] {
        let items: Vec<String> = part.iter().map(ToString::to_string).collect();
        assert_eq!(store.add_items(&mut tx, id, items).await.unwrap(), part.len() as u64);
    }
    store.commit(tx).await.unwrap();
    id
}

async fn claim<S: Backend>(store: &S, id: Uuid, runner: &str) -> Option<Operation> {
    store.claim_operation(&Claim::This(id), runner, LEASE).await.unwrap()
}

/// The next items, committed as done.
async fn take<S: Backend>(store: &S, id: Uuid, runner: &str, limit: usize) -> Option<Vec<String>> {
    let mut tx = store.begin().await.unwrap();
    let items = store.next_items(&mut tx, id, runner, limit, LEASE).await.unwrap();
    if let Some(items) = &items {
        store.advance(&mut tx, id, items.len() as u64, 0).await.unwrap();
    }
    store.commit(tx).await.unwrap();
    items
}

/// To the last of them.
pub async fn an_operation_comes_back_with_its_items_in_order<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let id = planned(&store, OperationKind::ReplayLetters, &["10", "9", "größe", "8", "7"]).await;
    let found = store.operation(id).await.unwrap().unwrap();
    assert_eq!((found.state, found.total, found.done), (OperationState::Planned, 5, 0));
    assert_eq!((found.created_by.as_str(), found.runner.clone()), ("suite", None));
    assert!(found.started_at.is_none());
    let claimed = claim(&store, id, "one").await.unwrap();
    assert_eq!((claimed.state, claimed.runner.as_deref()), (OperationState::Running, Some("one")));
    assert_eq!(take(&store, id, "one", 2).await.unwrap(), ["10", "9"]);
    assert_eq!(take(&store, id, "one", 10).await.unwrap(), ["größe", "8", "7"]);
    assert!(take(&store, id, "one", 10).await.unwrap().is_empty());
    assert_eq!(store.operation(id).await.unwrap().unwrap().done, 5);
    assert_eq!(store.operation(Uuid::nil()).await.unwrap(), None);
}

/// Until it gives it back.
pub async fn one_runner_has_an_operation_at_a_time<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let id = planned(&store, OperationKind::ReplayLetters, &["1"]).await;
    assert!(claim(&store, id, "one").await.is_some());
    assert!(claim(&store, id, "two").await.is_none());
    assert!(claim(&store, id, "one").await.is_some(), "who has it may claim it again");
    assert_eq!(take(&store, id, "two", 1).await, None);
    store.release_operation(id, "two").await.unwrap();
    assert!(claim(&store, id, "two").await.is_none(), "nobody gives back what another has");
    store.release_operation(id, "one").await.unwrap();
    assert!(claim(&store, id, "two").await.is_some());
    assert_eq!(take(&store, id, "one", 1).await, None);
    assert!(!store.finish_operation(id, "one", OperationEnd::Done).await.unwrap());
}

/// A runner that died keeps nobody waiting for ever.
pub async fn a_lease_that_ended_goes_to_another<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let id = planned(&store, OperationKind::ReplayLetters, &["1"]).await;
    store.claim_operation(&Claim::This(id), "dead", Duration::from_millis(200)).await.unwrap().unwrap();
    let taken = until("the lease's end", async || claim(&store, id, "heir").await).await;
    assert_eq!(taken.runner.as_deref(), Some("heir"));
    assert_eq!(take(&store, id, "dead", 1).await, None);
    assert_eq!(take(&store, id, "heir", 1).await.unwrap(), ["1"]);
}

/// Exactly what was taken comes again.
pub async fn what_was_rolled_back_is_still_to_do<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let id = planned(&store, OperationKind::ReplayLetters, &["1", "2", "3"]).await;
    claim(&store, id, "one").await.unwrap();
    let mut tx = store.begin().await.unwrap();
    assert_eq!(store.next_items(&mut tx, id, "one", 2, LEASE).await.unwrap().unwrap(), ["1", "2"]);
    store.advance(&mut tx, id, 2, 0).await.unwrap();
    store.rollback(tx).await.unwrap();
    assert_eq!(take(&store, id, "one", 2).await.unwrap(), ["1", "2"]);
    assert_eq!(store.operation(id).await.unwrap().unwrap().done, 2);
}

/// What is done stays done.
pub async fn a_cancelled_operation_gives_no_more_items<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let id = planned(&store, OperationKind::ReplayLetters, &["1", "2"]).await;
    claim(&store, id, "one").await.unwrap();
    take(&store, id, "one", 1).await.unwrap();
    assert!(store.cancel_operation(id, "somebody", "a mistake").await.unwrap());
    assert!(!store.cancel_operation(id, "somebody", "a mistake").await.unwrap());
    assert_eq!(take(&store, id, "one", 1).await, None);
    assert!(claim(&store, id, "two").await.is_none());
    let found = store.operation(id).await.unwrap().unwrap();
    assert_eq!((found.state, found.done, found.runner), (OperationState::Cancelled, 1, None));
    assert!(found.finished_at.is_some());
    let log = store.log_of(&format!("operation/{id}"), 10).await.unwrap();
    let told: Vec<_> = log.iter().map(|entry| (entry.actor.as_str(), entry.action.as_str())).collect();
    assert_eq!(told, [("somebody", "operation.cancelled"), ("suite", "operation.created")]);
    assert_eq!(log[0].reason.as_deref(), Some("a mistake"));
}

/// Done or failed, with the reason.
pub async fn a_finished_operation_is_over<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let done = planned(&store, OperationKind::ReplayLetters, &[]).await;
    let failed = planned(&store, OperationKind::DiscardLetters, &["1"]).await;
    for (id, end) in [(done, OperationEnd::Done), (failed, OperationEnd::Failed("disk full".to_owned()))] {
        claim(&store, id, "one").await.unwrap();
        assert!(store.finish_operation(id, "one", end.clone()).await.unwrap());
        assert!(!store.finish_operation(id, "one", end).await.unwrap());
        assert!(claim(&store, id, "one").await.is_none());
    }
    let found = store.operations(None, 10).await.unwrap();
    let states: Vec<_> = found.iter().map(|one| (one.id, one.state, one.error.as_deref())).collect();
    let expected = [(failed, OperationState::Failed, Some("disk full")), (done, OperationState::Done, None)];
    assert_eq!(states, expected);
    let older = store.operations(Some(failed), 10).await.unwrap();
    assert_eq!(
        older.iter().map(|one| one.id).collect::<Vec<_>>(),
        [done],
        "those before the one that was named"
    );
}

/// Only what the runner knows how to do.
pub async fn operations_are_claimed_by_kind_the_oldest_first<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let outbox = planned(&store, OperationKind::ReplayOutbox, &["1"]).await;
    let first = planned(&store, OperationKind::ReplayLetters, &["1"]).await;
    let second = planned(&store, OperationKind::DiscardLetters, &["1"]).await;
    let letters = Claim::AnyOf(vec![OperationKind::ReplayLetters, OperationKind::DiscardLetters]);
    for expected in [Some(first), Some(second), None] {
        let runner = format!("runner of {expected:?}");
        let claimed = store.claim_operation(&letters, &runner, LEASE).await.unwrap();
        assert_eq!(claimed.map(|operation| operation.id), expected);
    }
    assert!(claim(&store, outbox, "another").await.is_some());
}

/// Whoever is worked for already waits.
pub async fn operations_of_others_are_claimed_beside<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let suite = planned(&store, OperationKind::ReplayLetters, &["1"]).await;
    let kinds = vec![OperationKind::ReplayLetters];
    for (people, expected) in [(vec!["ann", "suite"], None), (vec!["ann"], Some(suite)), (vec![], None)] {
        let people = people.into_iter().map(str::to_owned).collect();
        let runner = format!("runner of {expected:?}");
        let claim = Claim::ForOthers(kinds.clone(), people);
        let claimed = store.claim_operation(&claim, &runner, LEASE).await.unwrap();
        assert_eq!(claimed.map(|operation| operation.id), expected);
    }
}

/// By the first who asks; an earlier turn than the last is over.
pub async fn a_turn_is_taken_once<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let turn = |n: i64| super::triage::letter(n).dead_at;
    let mut answers = Vec::new();
    for (name, at) in [("a", 1), ("a", 1), ("b", 1), ("a", 2), ("a", 1)] {
        let mut tx = store.begin().await.unwrap();
        answers.push(store.take_turn(&mut tx, name, turn(at)).await.unwrap());
        store.commit(tx).await.unwrap();
    }
    assert_eq!(answers, [true, false, true, true, false]);
    let mut tx = store.begin().await.unwrap();
    assert!(store.take_turn(&mut tx, "a", turn(3)).await.unwrap());
    store.rollback(tx).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    assert!(store.take_turn(&mut tx, "a", turn(3)).await.unwrap(), "a turn that was rolled back is free");
    let far = jiff::Timestamp::MAX - jiff::SignedDuration::from_hours(24);
    assert!(!store.take_turn(&mut tx, "a", far).await.unwrap(), "a turn that has not come is nobody's");
    store.rollback(tx).await.unwrap();
}

/// To whom it was done, the newest first.
pub async fn the_log_tells_what_was_done<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let entry = |subject: &str, action: &str| LogEntry {
        at: super::triage::letter(1).dead_at,
        actor: "ada".to_owned(),
        action: action.to_owned(),
        subject: subject.to_owned(),
        reason: Some("because\u{fffd}".to_owned()),
        detail: Some(serde_json::json!({ "größe": [1, null, "💶"] })),
    };
    let mut tx = store.begin().await.unwrap();
    let entries = vec![entry("a", "first"), entry("b", "other"), entry("a", "second")];
    store.record(&mut tx, entries.clone()).await.unwrap();
    store.record(&mut tx, Vec::new()).await.unwrap();
    store.commit(tx).await.unwrap();
    let log = store.log_of("a", 10).await.unwrap();
    let actions: Vec<_> = log.iter().map(|entry| entry.action.as_str()).collect();
    assert_eq!(actions, ["second", "first"]);
    assert_eq!((&log[0].detail, &log[0].reason), (&entries[0].detail, &entries[0].reason));
    assert_eq!(store.log_of("a", 1).await.unwrap().len(), 1);

    let ours = |page: LogPage| page.entries.into_iter().map(|entry| entry.action).collect::<Vec<_>>();
    let first = store.log(&LogQuery { limit: 2, ..LogQuery::default() }).await.unwrap();
    let rest = LogQuery { before: first.next, limit: 10, ..LogQuery::default() };
    assert_eq!(ours(first), ["second", "other"], "the newest first, whatever it is about");
    assert_eq!(ours(store.log(&rest).await.unwrap()), ["first"]);
    let asked = LogQuery { action: Some("other".to_owned()), limit: 10, ..LogQuery::default() };
    let found = store.log(&asked).await.unwrap();
    assert_eq!((found.next, ours(found)), (None, vec!["other".to_owned()]));
    let nobody = LogQuery { actor: Some("nobody".to_owned()), limit: 10, ..LogQuery::default() };
    assert!(store.log(&nobody).await.unwrap().entries.is_empty());
}
