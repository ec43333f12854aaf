//! What every store must keep to when dead letters are corrected, many at a time; and how an operation keeps its pace, is
//! cancelled, and keeps to what its plan came to.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use postrider::Clock;
use postrider::dead_letter::{Correction, HeaderEdit};
use postrider::operation::{
    Chunk, EditWork, Ended, LetterPlan, LetterWork, Runner, RunnerConfig, Work, plan, start,
};
use postrider::store::{
    Backend, DeadLetter, LetterFilter, LetterStatus, Operation, OperationKind, OperationState, OutboxRow,
    StoreError, StoreErrorKind,
};
use postrider::store::{DeadLetters as _, Operations as _, Triage as _};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::store::{Desk, StoreFixture, id};
use super::triage::{all_ids, letter};

const EDIT: OperationKind = OperationKind::EditLetters;

/// The events that were appended in the place of letters.
async fn sent<S: Backend>(desk: &Desk<S>) -> Vec<OutboxRow> {
    desk.claim().await.into_iter().filter(|row| row.verbatim.is_some()).collect()
}

/// A letter of an event whose payload this is.
fn saying(n: i64, payload: &'static str) -> DeadLetter {
    let mut letter = DeadLetter {
        event_id: Some(id(&format!("evt_{n}"))),
        event_type: Some("shop.order.placed".to_owned()),
        routing_key: "shop.order.placed".to_owned(),
        body: payload.into(),
        ..letter(n)
    };
    letter.properties.message_id = Some(format!("evt_{n}"));
    letter
}

/// A correction that puts EUR in the place of USD and leaves everything else.
fn into_euro() -> LetterPlan {
    let patch = r#"[{"op":"test","path":"/currency","value":"USD"},{"op":"replace","path":"/currency","value":"EUR"}]"#;
    LetterPlan { edit: Some(Correction::patch(patch).unwrap()), ..LetterPlan::default() }
}

/// Does the work of another, and fails before the first chunk of it is committed: as a crash does.
struct Stumbling(EditWork, AtomicBool);

impl<S: Backend> Work<S> for Stumbling {
    fn chunk<'a>(
        &'a self,
        store: &'a S,
        tx: &'a mut S::Tx,
        operation: &'a Operation,
        items: Vec<String>,
    ) -> BoxFuture<'a, Result<Chunk, StoreError>> {
        Box::pin(async move {
            let done = self.0.chunk(store, tx, operation, items).await?;
            if self.1.swap(false, Ordering::SeqCst) {
                return Err(StoreError::new(StoreErrorKind::Unavailable, "it stumbled"));
            }
            Ok(done)
        })
    }
}

/// Each that fits is a new event, once; the others stay open, and are named.
pub async fn a_correction_replaces_what_it_fits_and_names_what_it_does_not<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let (store, clock) = (&desk.store, &desk.clock);
    let letters = [
        r#"{"b":1.50,"currency":"USD","a":2}"#,
        "not json",
        r#"{"currency":"GBP"}"#,
        r#"{"currency":"USD"}"#,
    ];
    store.collect((0..).zip(letters).map(|(n, payload)| saying(n, payload)).collect()).await.unwrap();
    let drawn = plan(store, None, &into_euro(), None).await.unwrap();
    let trial = drawn.trial.unwrap();
    assert_eq!((drawn.total, trial.tried, trial.unfit.len()), (4, 4, 2), "{trial:?}");
    let example = trial.example.unwrap();
    let corrected = r#"{"b":1.50,"currency":"EUR","a":2}"#;
    assert_eq!((example.before.as_str(), example.after.as_str()), (letters[0], corrected));
    let canary = LetterPlan { limit: Some(1), ..into_euro() };
    let trial = plan(store, None, &canary, None).await.unwrap().trial.unwrap();
    assert_eq!((trial.tried, trial.example), (1, Some(example)), "the one that it takes is tried");
    assert!(sent(&desk).await.is_empty(), "a plan changes nothing");

    let op = start(store, clock, EDIT, &into_euro(), None, "ada", Some("typo")).await.unwrap().unwrap();
    let runner = Runner::new(store.clone(), clock.clone(), RunnerConfig::default());
    let work = Stumbling(EditWork::new(clock.clone()), AtomicBool::new(true));
    let ended = runner.run(op, &work, &CancellationToken::new()).await.unwrap();
    let found = store.operation(op).await.unwrap().unwrap();
    assert_eq!((ended, found.done, found.skipped), (Some(Ended::Done), 2, 2));

    let rows = sent(&desk).await;
    let bodies: Vec<_> = rows.iter().map(|row| row.verbatim.as_ref().unwrap().body.clone()).collect();
    assert_eq!(bodies, [corrected, r#"{"currency":"EUR"}"#]);
    let replaced = rows.iter().map(|row| row.verbatim.as_ref().unwrap().header("x-replaces"));
    assert_eq!(replaced.collect::<Vec<_>>(), [Some("evt_0"), Some("evt_3")]);

    let ids = all_ids(store).await;
    let first = store.letter(ids[0]).await.unwrap().unwrap().summary;
    let new = rows[0].verbatim.as_ref().unwrap().properties.message_id.clone();
    assert_eq!(
        (first.status, first.replaced_by, first.operation_id),
        (LetterStatus::Discarded, new, Some(op))
    );
    let log = async |subject: String| store.log_of(&subject, 10).await.unwrap();
    let edited = log(format!("dead_letter/{}", ids[0])).await;
    assert_eq!((edited.len(), edited[0].action.as_str()), (1, "dead_letter.edited"));
    assert_eq!((edited[0].actor.as_str(), edited[0].reason.as_deref()), ("ada", Some("typo")));
    for (letter, why) in [(ids[1], "not JSON"), (ids[2], "step 1 (test /currency)")] {
        assert_eq!(store.letter(letter).await.unwrap().unwrap().summary.status, LetterStatus::Open);
        let left = log(format!("dead_letter/{letter}")).await;
        assert_eq!((left.len(), left[0].action.as_str()), (1, "dead_letter.left"));
        assert!(left[0].detail.as_ref().unwrap()["why"].as_str().unwrap().contains(why), "{left:?}");
    }
    let named = log(format!("operation/{op}")).await;
    assert_eq!(named.iter().filter(|entry| entry.action == "operation.item_left").count(), 2, "{named:?}");
}

/// A header is set and another taken off, of what has them so; nothing else changes, and the log names them.
pub async fn headers_are_corrected_as_payloads_are<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let (store, clock) = (&desk.store, &desk.clock);
    let with = |n: i64, headers: &[(&str, &str)]| {
        let mut letter = saying(n, r#"{"total":1}"#);
        letter.headers.extend(headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())));
        letter
    };
    let letters = vec![
        with(0, &[("region", "us"), ("debug", "on"), ("kept", "k"), ("x-final-error", "no")]),
        with(1, &[("region", "eu")]),
        with(2, &[("debug", "on")]),
    ];
    store.collect(letters).await.unwrap();
    let set = [("region".to_owned(), "eu".to_owned())].into();
    let headers = Some(HeaderEdit::new(set, ["debug".to_owned()].into()).unwrap());
    let both = LetterPlan { headers: headers.clone(), ..into_euro() };
    assert_eq!(plan(store, None, &both, None).await.unwrap().trial.unwrap().unfit.len(), 3, "no currency");
    let edit = LetterPlan { headers, ..LetterPlan::default() };
    let trial = plan(store, None, &edit, None).await.unwrap().trial.unwrap();
    assert_eq!((trial.tried, trial.unfit.len()), (3, 1), "{trial:?}");
    let told: Vec<_> = trial.example.unwrap().headers.into_iter().map(|change| change.name).collect();
    assert_eq!(told, ["region", "debug"]);

    let op = start(store, clock, EDIT, &edit, None, "ada", Some("moved")).await.unwrap().unwrap();
    let runner = Runner::new(store.clone(), clock.clone(), RunnerConfig::default());
    let ended = runner.run(op, &EditWork::new(clock.clone()), &CancellationToken::new()).await.unwrap();
    let over = found(store, op).await;
    assert_eq!((ended, over.done, over.skipped), (Some(Ended::Done), 2, 1));
    let rows = sent(&desk).await;
    let messages: Vec<_> = rows.iter().map(|row| row.verbatim.as_ref().unwrap()).collect();
    for (message, replaced) in messages.iter().zip(["evt_0", "evt_2"]) {
        assert_eq!((message.header("region"), message.header("debug")), (Some("eu"), None));
        assert_eq!(
            (message.header("x-replaces"), &message.body[..]),
            (Some(replaced), &b"{\"total\":1}"[..])
        );
        assert_ne!(message.properties.message_id.as_deref(), Some(replaced), "a new event");
    }
    assert_eq!(
        (messages.len(), messages[0].header("kept"), messages[0].header("x-final-error")),
        (2, Some("k"), None)
    );
    let ids = all_ids(store).await;
    let log = store.log_of(&format!("dead_letter/{}", ids[0]), 10).await.unwrap();
    assert_eq!(log[0].detail.as_ref().unwrap()["headers"], serde_json::json!(["region", "debug"]));
    let left = store.log_of(&format!("dead_letter/{}", ids[1]), 10).await.unwrap();
    assert_eq!(left[0].detail.as_ref().unwrap()["why"], "its headers are like that already");
}

/// Without a correction there is no edit, and with one there is nothing else.
pub async fn a_plan_is_kept_to_or_refused<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let clock = Clock::system();
    store.collect((0..3).map(letter).collect()).await.unwrap();
    let started =
        async |kind, plan: &LetterPlan| start(&store, &clock, kind, plan, None, "suite", None).await;
    for (kind, plan) in [(EDIT, LetterPlan::default()), (OperationKind::DiscardLetters, into_euro())] {
        assert_eq!(started(kind, &plan).await.unwrap_err().kind, StoreErrorKind::Invalid);
    }
    let seen = LetterPlan { expects: Some(2), ..LetterPlan::default() };
    let refused = started(OperationKind::DiscardLetters, &seen).await.unwrap_err();
    assert!(refused.message.contains("the plan came to 2, and by now it is 3"), "{refused}");
    assert!(store.operations(None, 10).await.unwrap().is_empty());
    let canary = LetterPlan { limit: Some(2), ..seen };
    assert!(started(OperationKind::DiscardLetters, &canary).await.unwrap().is_some());
}

/// Four a second are one every quarter, whatever the machine does; and who is cancelled takes no more.
pub async fn an_operation_keeps_its_rate_and_ends_when_it_is_cancelled<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let (store, plan) = (&desk.store, LetterPlan::default());
    store.collect((0..10).map(letter).collect()).await.unwrap();
    let kind = OperationKind::DiscardLetters;
    let op = start(store, &desk.clock, kind, &plan, Some(4.0), "suite", None).await.unwrap().unwrap();
    let (clock, hands) = Clock::manual(desk.clock.now());
    let runner = Runner::new(store.clone(), clock.clone(), RunnerConfig::default());
    let (work, stop) = (LetterWork::new(clock), CancellationToken::new());
    let rests =
        async || super::until("its rest", async || hands.next_wake().filter(|wait| !wait.is_zero())).await;
    let watching = async {
        for done in 1..=3 {
            assert_eq!(rests().await, Duration::from_millis(250));
            assert_eq!(found(store, op).await.done, done, "no more while time stands still");
            hands.advance(Duration::from_millis(250));
            super::until("the next", async || (found(store, op).await.done > done).then_some(())).await;
        }
        rests().await;
        assert!(store.cancel_operation(op, "ada", "enough").await.unwrap());
        hands.advance(Duration::from_mins(1));
    };
    let (ended, ()) = tokio::join!(runner.run(op, &work, &stop), watching);
    assert_eq!(ended.unwrap(), Some(Ended::TakenAway));
    let over = found(store, op).await;
    assert_eq!((over.state, over.done, over.total), (OperationState::Cancelled, 4, 10));
    assert_eq!(store.survey(&LetterFilter::open()).await.unwrap().letters, 6);
    let log = store.log_of(&format!("operation/{op}"), 10).await.unwrap();
    let last = (log[0].action.as_str(), log[0].actor.as_str(), log[0].reason.as_deref());
    assert_eq!(last, ("operation.cancelled", "ada", Some("enough")));
    let again = Runner::new(store.clone(), desk.clock.clone(), RunnerConfig::default());
    assert_eq!(again.run(op, &work, &stop).await.unwrap(), None, "what is cancelled is over");
}

/// A rate is for what is done: what others resolved meanwhile keeps nobody waiting behind it.
pub async fn what_needs_nothing_any_more_takes_no_time<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let (store, plan) = (&desk.store, LetterPlan::default());
    store.collect((0..10).map(letter).collect()).await.unwrap();
    let (kind, work) = (OperationKind::DiscardLetters, LetterWork::new(desk.clock.clone()));
    let stop = CancellationToken::new();
    let mut ended = Vec::new();
    // The first is run at once, and the second finds nothing left of what it froze. At its rate it would take hours.
    let (first, second) = (None, Some(0.001));
    let mut started = Vec::new();
    for rate in [first, second] {
        started.push(start(store, &desk.clock, kind, &plan, rate, "suite", None).await.unwrap().unwrap());
    }
    for op in started {
        let runner = Runner::new(store.clone(), desk.clock.clone(), RunnerConfig::default());
        assert_eq!(runner.run(op, &work, &stop).await.unwrap(), Some(Ended::Done));
        let over = found(store, op).await;
        ended.push((over.done, over.skipped));
    }
    assert_eq!(ended, [(10, 0), (0, 10)]);
}

async fn found<S: Backend>(store: &S, id: Uuid) -> Operation {
    store.operation(id).await.unwrap().unwrap()
}
