//! The scenarios, each from commit to effect or dead letter.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use postrider::broker::{HeaderValue, Message};
use postrider::envelope::wire;
use postrider::settlement::RetryPolicy;
use postrider::{Event, Failure, WireFormat};
use postrider_testkit::effects::Effects;

use super::stage::{CONSUMER, HANGS, Stage};

fn placed() -> Event {
    Event::new("order.placed").unwrap()
}

/// How long a stop may take here.
const DRAIN: Duration = Duration::from_secs(20);

pub(super) async fn ten_retries_mean_eleven_calls_and_a_dead_letter_that_tells_why<S: Effects>(
    stage: Stage<S>,
) {
    let running = stage.start(|_| Err(Failure::transient("smtp is down").class("smtp").status(503))).await;
    let id = stage.commit(placed().tenant("acme").unwrap()).await;
    let letter = stage.dead_letters(1).await.remove(0);

    let attempts: Vec<_> = stage.calls().into_iter().map(|(_, attempt)| attempt).collect();
    assert_eq!(attempts, (1..=11).collect::<Vec<_>>());
    assert_eq!((letter.event_id, letter.attempts), (Some(id), 11));
    assert_eq!((letter.reason.as_str(), letter.error.as_str()), ("retries_exhausted", "smtp is down"));
    assert_eq!((letter.exchange.as_str(), letter.routing_key.as_str()), ("events", "order.placed"));
    let header = |name: &str| letter.headers.get(name).cloned();
    assert_eq!(header("x-original-queue"), Some(HeaderValue::from(CONSUMER)));
    assert_eq!(header("x-final-error"), Some(HeaderValue::from("smtp is down")));
    assert_eq!(header("x-final-retry-count").and_then(|count| count.as_int()), Some(10));
    assert_eq!(header("x-final-status-code").and_then(|code| code.as_int()), Some(503));
    assert_eq!(header("x-retry-count"), None, "a manual retry starts afresh");
    assert!(header("x-death").is_some(), "the broker's own history is kept");
    assert_eq!(header("x-consumer"), Some(HeaderValue::from(CONSUMER)));
    assert!(header("x-host").is_some_and(|host| host.as_str().is_some_and(|name| !name.is_empty())));
    let time = |name: &str| header(name).and_then(|time| time.as_str()?.parse::<Timestamp>().ok()).unwrap();
    let (calls, first, last) =
        (stage.times.lock().unwrap().clone(), time("x-first-failed-at"), time("x-last-failed-at"));
    assert!(calls[0] <= first && first <= calls[1], "{first} is not between the first two of {calls:?}");
    assert!(calls[10] <= last && last <= stage.clock.now(), "{last} is before the last of {calls:?}");
    let account = stage.account(&running, |account| account.dead == 1).await;
    assert!(account.holds(), "{account:?}");
    assert_eq!(stage.effects().await, 0);
}

pub(super) async fn a_rejected_event_is_not_tried_again<S: Effects>(stage: Stage<S>) {
    let _running = stage.start(|_| Err(Failure::permanent("no such address"))).await;
    stage.commit(placed()).await;
    let letter = stage.dead_letters(1).await.remove(0);
    assert_eq!((letter.reason.as_str(), letter.attempts, stage.calls().len()), ("rejected", 1, 1));
}

pub(super) async fn a_panic_and_a_slow_handler_fail_their_attempt_alone<S: Effects>(mut stage: Stage<S>) {
    stage.handler_limit = Duration::from_secs(2);
    let running = stage
        .start(|event| match (event.envelope.aggregate_id.as_ref().map(AsRef::as_ref), event.attempt) {
            (Some("panics"), 1) => panic!("on purpose"),
            _ => Ok(Vec::new()),
        })
        .await;
    for aggregate in ["panics", HANGS, "is well"] {
        stage.commit(placed().aggregate_id(aggregate).unwrap()).await;
    }
    let account = stage.account(&running, |account| account.applied == 3).await;
    assert!(account.holds(), "{account:?}");
    assert_eq!(stage.effects().await, 3);
    // On SQLite the one that hangs keeps the writer, and a neighbour may run out of time while it waits.
    assert!(stage.calls().len() >= 5, "{:?}", stage.calls());
}

pub(super) async fn what_is_no_event_or_nobodys_becomes_a_dead_letter<S: Effects>(stage: Stage<S>) {
    let _running = stage.start(|_| Ok(Vec::new())).await;
    stage.commit(Event::new("order.cancelled").unwrap()).await;
    stage.deliver(Message { body: "{\"truncated".into(), ..Message::default() }).await;
    let mut unknown = Message { body: "{}".into(), ..Message::default() };
    unknown.headers.insert("x-wire-format".to_owned(), "morse".into());
    stage.deliver(unknown).await;

    let mut found: Vec<_> = stage.dead_letters(3).await;
    found.sort_by(|a, b| (&a.reason, &a.error).cmp(&(&b.reason, &b.error)));
    let reasons: Vec<_> = found.iter().map(|letter| letter.reason.as_str()).collect();
    assert_eq!(reasons, ["malformed", "malformed", "no_handler"]);
    assert_eq!(found[0].body.as_ref(), b"{\"truncated");
    assert!(found[1].error.contains("unknown wire format \"morse\""), "{}", found[1].error);
    assert!(stage.calls().is_empty());
}

pub(super) async fn a_duplicate_is_absorbed_and_a_conflict_is_told<S: Effects>(stage: Stage<S>) {
    let running = stage.start(|_| Ok(Vec::new())).await;
    let first = placed().json(&serde_json::json!({ "total": "1.50" })).unwrap().into_envelope(&stage.clock);
    let mut same = first.clone();
    same.payload = postrider::Payload::new("application/json", r#"{ "total" : "1.50" }"#);
    let mut other = first.clone();
    other.payload = postrider::Payload::new("application/json", r#"{"total":"9.99"}"#);

    stage.deliver(wire::encode(&first, WireFormat::Envelope, 0)).await;
    stage.until(async || stage.effects().await == 1).await;
    // The same event in another format is the same event.
    for format in [WireFormat::Smap, WireFormat::Bare, WireFormat::CloudEvents] {
        stage.deliver(wire::encode(&same, format, 0)).await;
    }
    stage.deliver(wire::encode(&other, WireFormat::Envelope, 0)).await;
    let letter = stage.dead_letters(1).await.remove(0);
    assert_eq!(letter.reason, "conflict");
    stage.until(async || running.consumers()[0].status.duplicates() == 3).await;
    assert_eq!((stage.effects().await, stage.calls().len()), (1, 1));
}

pub(super) async fn a_deferred_event_comes_again_as_the_same_attempt<S: Effects>(mut stage: Stage<S>) {
    stage.retry = RetryPolicy::fixed(0, Duration::from_millis(50));
    let (clock, early) = (stage.clock.clone(), Arc::new(AtomicBool::new(true)));
    let running = stage
        .start(move |_| {
            if early.swap(false, Ordering::SeqCst) {
                let due = clock.now().saturating_add(Duration::from_millis(100))?;
                return Err(Failure::deferred(due));
            }
            Ok(Vec::new())
        })
        .await;
    stage.commit(placed()).await;
    // With no retries at all: to be deferred is not to fail.
    stage.account(&running, |account| account.applied == 1).await;
    let attempts: Vec<_> = stage.calls().into_iter().map(|(_, attempt)| attempt).collect();
    assert_eq!(attempts, [1, 1]);
}

pub(super) async fn a_failed_handler_leaves_no_effect<S: Effects>(stage: Stage<S>) {
    let running = stage
        .start(|event| {
            if event.attempt == 1 {
                return Err(Failure::transient("after the effect was written"));
            }
            let first = event.envelope.causation_id.is_none();
            Ok(if first { vec![placed().caused_by(&event.envelope)] } else { Vec::new() })
        })
        .await;
    stage.commit(placed()).await;
    // The event and the one that followed from its second attempt.
    let account = stage.account(&running, |account| account.applied == 2).await;
    assert_eq!((account.committed, stage.effects().await, stage.calls().len()), (2, 2, 4));
}

pub(super) async fn stopping_finishes_what_was_begun<S: Effects>(stage: Stage<S>) {
    let events = 200;
    for _ in 0..events {
        stage.commit(placed()).await;
    }
    let running = stage.start(|_| Ok(Vec::new())).await;
    stage.until(async || stage.effects().await > 20).await;
    assert!(running.stop(DRAIN).await, "not everything finished in time");
    let (effects, calls) = (stage.effects().await, stage.calls().len());
    assert_eq!(effects, calls, "what was begun is finished");
}

pub(super) async fn an_unroutable_event_fails_alone_and_is_dead_in_the_end<S: Effects>(mut stage: Stage<S>) {
    stage.max_attempts = 1;
    let running = stage.start(|_| Ok(Vec::new())).await;
    stage.commit(Event::new("invoice.paid").unwrap()).await;
    stage.commit(placed()).await;
    stage.account(&running, |account| account.applied == 1).await;
    // The mark of the other one may follow a moment after its effect.
    let backlog = async || stage.store.backlog().await.unwrap();
    stage.until(async || backlog().await.dead == 1 && backlog().await.due == 0).await;
    assert_eq!(backlog().await.later, 0);
}

pub(super) async fn follow_up_events_commit_with_the_effects<S: Effects>(stage: Stage<S>) {
    let told = Arc::new(AtomicBool::new(false));
    let seen = told.clone();
    let running = stage
        .start(move |event| {
            if event.envelope.causation_id.is_some() {
                seen.store(true, Ordering::SeqCst);
                return Ok(Vec::new());
            }
            Ok(vec![placed().caused_by(&event.envelope)])
        })
        .await;
    let cause = stage.commit(placed()).await;
    let account = stage.account(&running, |account| account.applied == 2).await;
    assert!(account.holds() && told.load(Ordering::SeqCst));
    assert_ne!(stage.calls()[1].0, cause);
}
