//! People in each other's way, and dead letters of every shape, from commit to effect on every backend.

use std::sync::atomic::Ordering;

use postrider::broker::{HeaderValue, Headers, Message};
use postrider::dead_letter::Correction;
use postrider::operation::{EditWork, LetterPlan, LetterWork, Runner, RunnerConfig, Work, start};
use postrider::store::{LetterFilter, LetterStatus, OperationKind};
use postrider::topology::QueueName;
use postrider::{Event, Failure};
use postrider_testkit::effects::Effects;
use tokio_util::sync::CancellationToken;

use super::stage::Stage;
use super::triage::{carry_out, failing, letters, replay};

fn corrected() -> Correction {
    Correction::merge(r#"{"mended": true}"#).unwrap()
}

fn numbered(number: usize) -> Event {
    let order = serde_json::json!({ "number": number });
    Event::new("order.placed").unwrap().aggregate_id(format!("order-{number}")).unwrap().json(&order).unwrap()
}

/// Two replay the same letters and a third corrects them, all at once: each letter goes one of these ways, and takes effect once.
pub(super) async fn three_people_at_the_same_letters_double_nothing<S: Effects>(stage: Stage<S>) {
    const LETTERS: usize = 60;
    let (running, mended) = failing(&stage).await;
    for number in 0..LETTERS {
        stage.commit(numbered(number)).await;
    }
    letters(&stage, LetterFilter::open(), LETTERS).await;
    mended.store(true, Ordering::SeqCst);
    let (store, clock) = (&stage.store, &stage.clock);
    let (again, edit) = (LetterWork::new(clock.clone()), EditWork::new(clock.clone()));
    let person = async |name: &str, kind: OperationKind, work: &dyn Work<S>| {
        let edit = (kind == OperationKind::EditLetters).then(corrected);
        let plan = LetterPlan { edit, ..LetterPlan::default() };
        // Small chunks, so that they meet.
        let op = start(store, clock, kind, &plan, Some(200.0), name, Some("all at once")).await.unwrap();
        let op = op?;
        let runner = Runner::new(store.clone(), clock.clone(), RunnerConfig::default());
        // What runs here may have taken it up before.
        let _ended = runner.run(op, work, &CancellationToken::new()).await.unwrap();
        Some(op)
    };
    let replaying = OperationKind::ReplayLetters;
    let asked = tokio::join!(
        person("ada", replaying, &again),
        person("bob", replaying, &again),
        person("eve", OperationKind::EditLetters, &edit),
    );
    let mut done = 0;
    for op in [asked.0, asked.1, asked.2].into_iter().flatten() {
        stage.until(async || store.operation(op).await.unwrap().unwrap().finished_at.is_some()).await;
        let operation = store.operation(op).await.unwrap().unwrap();
        assert_eq!(operation.done + operation.skipped, operation.total, "{operation:?}");
        done += operation.done;
    }
    assert_eq!(done, LETTERS as u64, "each letter went one way");
    let account = stage.account(&running, |account| account.applied == LETTERS as u64).await;
    assert!(account.holds(), "{account:?}");
    assert_eq!(stage.effects().await, LETTERS);
    letters(&stage, LetterFilter::open(), 0).await;
    for letter in letters(&stage, LetterFilter::default(), LETTERS).await {
        let log = store.log_of(&format!("dead_letter/{}", letter.id), 10).await.unwrap();
        assert_eq!(log.len(), 1, "{log:?}");
        let replaced = letter.status == LetterStatus::Discarded;
        assert_eq!((replaced, log[0].actor == "eve"), (letter.replaced_by.is_some(), replaced), "{log:?}");
    }
}

/// Through death, a replay, another death and a correction.
pub(super) async fn headers_of_every_type_survive_a_replay_and_a_correction<S: Effects>(stage: Stage<S>) {
    let table = Headers::from([("deep".to_owned(), HeaderValue::List(vec![HeaderValue::Null]))]);
    let every = [
        ("h-null", HeaderValue::Null),
        ("h-bool", HeaderValue::Bool(false)),
        ("h-least", HeaderValue::Int(i64::MIN)),
        ("h-most", HeaderValue::Int(i64::MAX)),
        ("h-float", HeaderValue::Float(0.1)),
        ("h-decimal", HeaderValue::Decimal { scale: 2, value: 1999 }),
        ("h-text", HeaderValue::Text("größe\u{1f600}".to_owned())),
        ("h-bytes", HeaderValue::Bytes(vec![0xff, 0])),
        ("h-time", HeaderValue::Timestamp(1_700_000_000)),
        ("h-list", HeaderValue::List(vec![HeaderValue::Int(1), HeaderValue::Table(table.clone())])),
        ("h-table", HeaderValue::Table(table)),
    ];
    let _running = stage.start(|_| Err(Failure::permanent("never"))).await;
    let mut message = Message { body: r#"{"a":1}"#.into(), ..Message::default() };
    message.properties.message_id = Some("evt_1".to_owned());
    message.properties.kind = Some("order.placed".to_owned());
    message.headers = every.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    stage.deliver(message).await;
    let survived = async |body: &str| {
        let open = letters(&stage, LetterFilter::open(), 1).await.remove(0);
        let letter = stage.store.letter(open.id).await.unwrap().unwrap().letter;
        assert_eq!(letter.body, body);
        for (name, value) in &every {
            assert_eq!(letter.headers.get(*name), Some(value), "{name}");
        }
    };
    survived(r#"{"a":1}"#).await;
    replay(&stage, &LetterPlan::default()).await;
    survived(r#"{"a":1}"#).await;
    let edit = LetterPlan { edit: Some(corrected()), ..LetterPlan::default() };
    carry_out(&stage, OperationKind::EditLetters, &edit).await;
    survived(r#"{"a":1,"mended":true}"#).await;
}

/// A correction is an event of its own: where its queue is gone it is dead in the outbox, told and counted, and can be sent again.
pub(super) async fn a_correction_to_a_queue_that_is_gone_is_not_lost<S: Effects>(mut stage: Stage<S>) {
    stage.max_attempts = 1;
    let (running, mended) = failing(&stage).await;
    stage.commit(numbered(1)).await;
    letters(&stage, LetterFilter::open(), 1).await;
    mended.store(true, Ordering::SeqCst);
    let gone = QueueName::new("gone").unwrap();
    let edit = LetterPlan { edit: Some(corrected()), to_queue: Some(gone), ..LetterPlan::default() };
    carry_out(&stage, OperationKind::EditLetters, &edit).await;
    stage.until(async || stage.store.backlog().await.unwrap().dead == 1).await;
    let account = stage.account(&running, |account| account.dead >= 1).await;
    assert!(account.holds() && account.applied == 0, "{account:?}");
}
