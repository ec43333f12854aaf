//! What every store must keep to when dead letters are sent again: nothing lost, nothing doubled, and the account holds.

use std::time::Duration;

use postrider::Clock;
use postrider::dead_letter::replay::edit_and_replay;
use postrider::envelope::wire::Identity;
use postrider::operation::{Ended, LetterPlan, LetterWork, Runner, RunnerConfig, plan, start};
use postrider::store::{
    Backend, DeadLetter, LetterFilter, LetterId, LetterStatus, OperationKind, OperationState, OutboxRow,
    OutboxStatus, PublishResult,
};
use postrider::store::{DeadLetters as _, Operations as _, Outbox as _, Traces as _, Triage as _};
use postrider::topology::QueueName;
use postrider::triage::{Rule, Schedule};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::audit::{count, dead_in_the_outbox, scope};
use super::store::{Desk, StoreFixture, free, id};
use super::triage::{all_ids, letter};

const REPLAY: OperationKind = OperationKind::ReplayLetters;

/// Replays what is open, to the end.
async fn replay_all<S: Backend>(store: &S) -> Uuid {
    let clock = Clock::system();
    let plan = LetterPlan::default();
    let id = start(store, &clock, REPLAY, &plan, None, "suite", None).await.unwrap().unwrap();
    assert_eq!(run(store, id).await, Some(Ended::Done));
    id
}

async fn run<S: Backend>(store: &S, id: Uuid) -> Option<Ended> {
    let clock = Clock::system();
    let runner = Runner::new(store.clone(), clock.clone(), RunnerConfig::default());
    runner.run(id, &LetterWork::new(clock), &CancellationToken::new()).await.unwrap()
}

async fn statuses<S: Backend>(store: &S) -> Vec<LetterStatus> {
    let mut statuses = Vec::new();
    for id in all_ids(store).await {
        statuses.push(store.letter(id).await.unwrap().unwrap().summary.status);
    }
    statuses
}

/// The rows that send something again.
async fn again<S: Backend>(desk: &Desk<S>) -> Vec<OutboxRow> {
    desk.claim().await.into_iter().filter(|row| row.verbatim.is_some()).collect()
}

/// Pending, published, applied, and dead again: one event stays one event.
pub async fn the_account_holds_through_every_step_of_a_replay<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit([free("one"), free("two")]).await;
    let rows = desk.expect_due(["one", "two"]).await;
    desk.publish(&rows).await;
    desk.bury("orders", &["one", "two"]).await;
    let counts = async || {
        let count = count(&desk.store, &scope()).await;
        (count.committed, count.applied, count.dead, count.unpublished, count.elsewhere)
    };
    assert_eq!(counts().await, (2, 0, 2, 0, 0));
    replay_all(&desk.store).await;
    assert_eq!(counts().await, (2, 0, 0, 2, 0));
    let rows = again(&desk).await;
    assert_eq!(rows.len(), 2);
    desk.settle(
        &rows[..1],
        &PublishResult::Failed { error: "busy".to_owned(), retry_after: Some(Duration::ZERO) },
    )
    .await;
    assert_eq!(counts().await, (2, 0, 0, 2, 0));
    desk.publish(&rows).await;
    assert_eq!(counts().await, (2, 0, 0, 0, 2));
    desk.apply("order-consumer", &["one"]).await;
    assert_eq!(counts().await, (2, 1, 0, 0, 1));
    // The other dies again: another letter of the same event.
    let dead = desk.store.trace(&id("two")).await.unwrap().dead_letters.remove(0);
    let mut second = desk.store.letter(dead.id).await.unwrap().unwrap().letter;
    "two, again".clone_into(&mut second.key);
    second.headers = rows[1].verbatim.as_ref().unwrap().headers.clone();
    desk.store.collect(vec![second]).await.unwrap();
    assert_eq!(counts().await, (2, 1, 1, 0, 0));
    let found = desk.store.trace(&id("two")).await.unwrap().dead_letters.remove(1);
    assert_eq!((found.replay_of, found.replays), (Some(dead.id), 1));
    replay_all(&desk.store).await;
    let rows = again(&desk).await;
    assert_eq!(rows[0].verbatim.as_ref().unwrap().headers["x-replay-count"].as_int(), Some(2));
    desk.publish(&rows).await;
    desk.apply("order-consumer", &["two"]).await;
    assert_eq!(counts().await, (2, 2, 0, 0, 0));
}

/// It is given up for the queue that it died in, wherever it is applied later.
pub async fn an_event_that_is_sent_to_another_queue_is_dead_in_its_own<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit([free("one"), free("two")]).await;
    let rows = desk.expect_due(["one", "two"]).await;
    desk.publish(&rows).await;
    for (event, to) in [("one", "aside"), ("two", "orders")] {
        desk.bury("orders", &[event]).await;
        let plan = LetterPlan { to_queue: Some(QueueName::new(to).unwrap()), ..LetterPlan::default() };
        let started = start(&desk.store, &desk.clock, REPLAY, &plan, None, "suite", None).await;
        assert_eq!(run(&desk.store, started.unwrap().unwrap()).await, Some(Ended::Done));
    }
    desk.publish(&again(&desk).await).await;
    let counted = count(&desk.store, &scope()).await;
    assert_eq!((counted.committed, counted.dead, counted.elsewhere), (2, 1, 1));
    assert_eq!(counted.elsewhere_ids, [id("two")]);
}

/// It is new, and the one it replaces is not wanted any more.
pub async fn an_edited_event_counts_for_itself<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit([free("one")]).await;
    let rows = desk.expect_due(["one"]).await;
    desk.publish(&rows).await;
    desk.bury("orders", &["one"]).await;
    let letter = all_ids(&desk.store).await[0];
    let (store, clock, identity) = (&desk.store, &desk.clock, Identity::default());
    let edit = |payload: &'static str| {
        edit_and_replay(store, clock, letter, &identity, payload.into(), "suite", Some("typo"))
    };
    let new = edit("{\"total\":1}").await.unwrap().unwrap();
    assert_eq!(edit("{\"total\":2}").await.unwrap(), None, "it is resolved");
    let row = desk.expect_due([&new]).await.remove(0);
    let message = row.verbatim.clone().unwrap();
    assert_eq!(message.header("x-replaces"), Some("one"));
    assert_eq!(message.properties.message_id.as_deref(), Some(new.as_str()));
    let found = store.letter(letter).await.unwrap().unwrap().summary;
    assert_eq!((found.status, found.replaced_by), (LetterStatus::Discarded, Some(new.to_string())));
    let trace = store.trace(&new).await.unwrap();
    assert_eq!(trace.outbox[0].replaces.as_deref(), Some("one"));
    let count = count(store, &scope()).await;
    assert_eq!((count.committed, count.dead, count.unpublished), (2, 1, 1));
    let log = store.log_of(&format!("dead_letter/{letter}"), 10).await.unwrap();
    assert_eq!((log[0].action.as_str(), log[0].reason.as_deref()), ("dead_letter.edited", Some("typo")));
}

/// Such as one to a queue that is gone.
pub async fn a_replay_that_dies_opens_its_letter_again_and_parks_nobody<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let key = postrider::envelope::OrderingKey::new("order/1").unwrap();
    let keyed =
        |n| DeadLetter { ordering_key: Some(key.clone()), event_id: Some(id(&format!("{n}"))), ..letter(n) };
    desk.store.collect(vec![keyed(1), keyed(2)]).await.unwrap();
    replay_all(&desk.store).await;
    let rows = again(&desk).await;
    assert_eq!(rows.len(), 2);
    desk.settle(&rows[..1], &dead_in_the_outbox()).await;
    assert_eq!(statuses(&desk.store).await, [LetterStatus::Open, LetterStatus::Replayed]);
    let opened = desk.store.letter(all_ids(&desk.store).await[0]).await.unwrap().unwrap().summary;
    assert_eq!(opened.replay_error.as_deref(), Some("no queue wanted it"));
    let by_rule = LetterFilter { max_replays: Some(2), ..LetterFilter::open() };
    assert_eq!(desk.store.survey(&by_rule).await.unwrap().letters, 0, "no rule sends it round for ever");
    let rest = again(&desk).await;
    assert_eq!(rest.len(), 1, "the next of its key is not parked");
    assert_eq!(desk.store.backlog().await.unwrap().dead, 0, "it is a dead letter, and counted there");
    desk.publish(&rest).await;
    replay_all(&desk.store).await;
    assert_eq!(again(&desk).await.len(), 1);
}

/// With an entry for the operation and one for every letter.
pub async fn a_replay_runs_to_its_end_and_is_logged<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.store.collect((0..1203).map(letter).collect()).await.unwrap();
    let wanted = LetterPlan { limit: Some(1200), ..LetterPlan::default() };
    let drawn = plan(&desk.store, None, &wanted, Some(100.0)).await.unwrap();
    assert_eq!((drawn.survey.letters, drawn.total, drawn.takes), (1203, 1200, Some(Duration::from_secs(12))));
    let clock = Clock::system();
    let op = start(&desk.store, &clock, REPLAY, &wanted, None, "ada", Some("fixed")).await.unwrap().unwrap();
    assert_eq!(run(&desk.store, op).await, Some(Ended::Done));
    assert_eq!(run(&desk.store, op).await, None, "it is over");
    let found = desk.store.operation(op).await.unwrap().unwrap();
    assert_eq!((found.state, found.done, found.skipped), (OperationState::Done, 1200, 0));
    let rows = again(&desk).await;
    let sent: Vec<_> = rows.iter().map(|row| row.dead_letter.unwrap()).collect();
    let ids = all_ids(&desk.store).await;
    assert_eq!(sent, ids[..1200], "in the order in which they failed");
    let log = desk.store.log_of(&format!("dead_letter/{}", ids[700]), 10).await.unwrap();
    let entry = (log[0].actor.as_str(), log[0].action.as_str(), log[0].reason.as_deref());
    assert_eq!((log.len(), entry), (1, ("ada", "dead_letter.replayed", Some("fixed"))));
    let open = LetterFilter::open();
    assert_eq!(desk.store.survey(&open).await.unwrap().letters, 3);
}

/// Each letter goes once, whoever is faster.
pub async fn two_replays_of_one_group_double_nothing<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.store.collect((0..1500).map(letter).collect()).await.unwrap();
    let clock = Clock::system();
    let begin = async || {
        let plan = LetterPlan::default();
        start(&desk.store, &clock, REPLAY, &plan, None, "suite", None).await.unwrap().unwrap()
    };
    let (one, two) = (begin().await, begin().await);
    let (first, second) = tokio::join!(run(&desk.store, one), run(&desk.store, two));
    assert_eq!((first, second), (Some(Ended::Done), Some(Ended::Done)));
    let (one, two) = (
        desk.store.operation(one).await.unwrap().unwrap(),
        desk.store.operation(two).await.unwrap().unwrap(),
    );
    assert_eq!(one.done + two.done, 1500);
    assert_eq!(one.skipped + two.skipped, 1500);
    let mut sent: Vec<LetterId> = again(&desk).await.iter().map(|row| row.dead_letter.unwrap()).collect();
    sent.sort_unstable();
    assert_eq!(sent, all_ids(&desk.store).await);
}

/// Told to stop, it gives the operation back as it is.
pub async fn an_operation_goes_on_where_it_was_after_a_stop<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.store.collect((0..50).map(letter).collect()).await.unwrap();
    let clock = Clock::system();
    let plan = LetterPlan::default();
    let op = start(&desk.store, &clock, REPLAY, &plan, Some(40.0), "suite", None).await.unwrap().unwrap();
    let runner = Runner::new(desk.store.clone(), clock.clone(), RunnerConfig::default());
    let (work, stop) = (LetterWork::new(clock.clone()), CancellationToken::new());
    let stopping = async {
        super::until("some of it", async || {
            let done = desk.store.operation(op).await.unwrap().unwrap().done;
            (done > 0).then_some(())
        })
        .await;
        stop.cancel();
    };
    let (ended, ()) = tokio::join!(runner.run(op, &work, &stop), stopping);
    assert_eq!(ended.unwrap(), Some(Ended::Detached));
    let half = desk.store.operation(op).await.unwrap().unwrap();
    assert!((1..50).contains(&half.done) && half.runner.is_none(), "{half:?}");
    assert_eq!(again(&desk).await.len() as u64, half.done);
    assert_eq!(run(&desk.store, op).await, Some(Ended::Done));
    assert_eq!(again(&desk).await.len(), 50);
}

/// Outbox, replay, inbox, dead letters.
pub async fn a_trace_tells_every_step<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit([free("one"), free("two")]).await;
    let rows = desk.expect_due(["one", "two"]).await;
    desk.publish(&rows[..1]).await;
    desk.bury("orders", &["one"]).await;
    replay_all(&desk.store).await;
    let trace = desk.store.trace(&id("one")).await.unwrap();
    let rows: Vec<_> = trace.outbox.iter().map(|row| (row.status, row.target_queue.as_deref())).collect();
    assert_eq!(rows, [(OutboxStatus::Published, None), (OutboxStatus::Pending, Some("orders"))]);
    assert!(trace.outbox[0].published_at.is_some() && trace.outbox[1].row_id.starts_with("replay/"));
    assert_eq!((trace.dead_letters.len(), trace.dead_letters[0].status), (1, LetterStatus::Replayed));
    desk.apply("orders-consumer", &["one"]).await;
    let trace = desk.store.trace(&id("one")).await.unwrap();
    assert_eq!(trace.applied[0].consumer, "orders-consumer");
    assert_eq!(desk.store.trace(&id("none")).await.unwrap(), postrider::store::Trace::default());
}

/// One turn, one operation; a letter that was replayed as often as it may be is left.
pub async fn a_rule_takes_its_turn_and_leaves_what_dies_again_and_again<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let clock = Clock::system();
    let mut weary = letter(2);
    weary.headers.insert("x-replay-count".to_owned(), 3_i64.into());
    store.collect(vec![letter(1), weary]).await.unwrap();
    let rule = Rule {
        name: "smtp".to_owned(),
        plan: LetterPlan {
            filter: LetterFilter { reason: Some("malformed".to_owned()), ..LetterFilter::default() },
            ..LetterPlan::default()
        },
        // Longer than any case: the same turn for both.
        schedule: Schedule::Every(Duration::from_hours(24 * 365)),
        rate: None,
        max_rounds: 3,
    };
    assert!(rule.take_turn(&store, &clock).await.unwrap());
    assert!(!rule.take_turn(&store, &clock).await.unwrap());
    let operations = store.operations(None, 10).await.unwrap();
    assert_eq!((operations.len(), operations[0].total), (1, 1));
    assert_eq!(operations[0].created_by, "rule:smtp");
    run(&store, operations[0].id).await;
    assert_eq!(statuses(&store).await, [LetterStatus::Replayed, LetterStatus::Open]);
    let nothing = Rule {
        name: "nothing".to_owned(),
        plan: LetterPlan {
            filter: LetterFilter { reason: Some("no such".to_owned()), ..LetterFilter::default() },
            ..LetterPlan::default()
        },
        ..rule
    };
    assert!(!nothing.take_turn(&store, &clock).await.unwrap());
    assert_eq!(store.operations(None, 10).await.unwrap().len(), 1, "no operation without a letter");
}
