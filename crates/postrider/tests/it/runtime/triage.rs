//! Dead letters collected, sent again, edited and discarded, from commit to effect, on both backends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postrider::broker::{HeaderValue, Message, Outgoing, Published, Verdict};
use postrider::dead_letter::in_queue::{Moved, Taking, Way, look, take_away};
use postrider::dead_letter::replay::edit_and_replay;
use postrider::envelope::wire::Identity;
use postrider::operation::{LetterPlan, start};
use postrider::runtime::{Running, Runtime};
use postrider::settlement::RetryPolicy;
use postrider::store::{
    LetterFilter, LetterQuery, LetterStatus, LetterSummary, OperationKind, OperationState, Turn,
};
use postrider::topology::{ExchangeName, OnDead, Queue, QueueName, ServiceQueue, Topology};
use postrider::{Event, Failure};
use postrider_testkit::effects::Effects;
use postrider_testkit::servers::shared;

use super::corrections::{
    a_count_that_is_kept_goes_on_and_every_attempt_is_told,
    what_is_corrected_takes_effect_in_order_as_new_events, what_is_replayed_keeps_its_order,
};
use super::ordering::{self, an_edited_head_is_applied_before_what_follows_it};
use super::rounds::{
    a_letter_that_the_store_refuses_stays_and_its_neighbours_are_collected,
    replays_that_go_round_in_a_circle_end,
};
use super::stage::Stage;

/// One test per scenario and backend.
macro_rules! scenarios {
    ($($scenario:ident),* $(,)?) => {
        mod embedded {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $scenario() {
                    let folder = tempfile::tempdir().unwrap();
                    let stage = super::Stage::embedded(&folder.path().join("events.db")).await;
                    super::$scenario(stage).await;
                }
            )*
        }

        mod servers {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $scenario() {
                    let shared = super::shared().unwrap();
                    let (database, vhost) = (shared.migrated_database().await.unwrap(), shared.vhost().await.unwrap());
                    let stage = super::Stage::servers(&database.url, &vhost.amqp_url).await;
                    super::$scenario(stage).await;
                }
            )*
        }
    };
}

scenarios!(
    what_is_replayed_takes_effect_once_and_in_one_queue_only,
    what_dies_again_is_another_letter_that_names_the_first,
    what_is_no_event_is_sent_again_byte_for_byte,
    twins_without_an_id_are_both_kept,
    what_others_rejected_or_let_expire_is_collected,
    a_discarded_head_ends_the_parking_of_its_key,
    an_edited_event_takes_effect_in_the_place_of_the_dead_one,
    an_edited_head_is_applied_before_what_follows_it,
    a_replay_to_a_queue_that_is_gone_opens_its_letter_again,
    what_is_not_collected_is_worked_on_in_its_queue,
    ten_mebibytes_of_error_are_cut_and_grouped,
    a_letter_that_the_store_refuses_stays_and_its_neighbours_are_collected,
    replays_that_go_round_in_a_circle_end,
    what_is_corrected_takes_effect_in_order_as_new_events,
    what_is_replayed_keeps_its_order,
    a_count_that_is_kept_goes_on_and_every_attempt_is_told,
);

pub(super) fn placed() -> Event {
    Event::new("order.placed").unwrap()
}

pub(super) async fn letters<S: Effects>(
    stage: &Stage<S>,
    filter: LetterFilter,
    count: usize,
) -> Vec<LetterSummary> {
    let query = LetterQuery { filter, turn: Turn::Newest, limit: 1000 };
    stage.until(async || stage.store.letters(&query).await.unwrap().letters.len() >= count).await;
    let found = stage.store.letters(&query).await.unwrap().letters;
    assert_eq!(found.len(), count, "{found:?}");
    found
}

/// Replays what is open. What runs here carries it out.
pub(super) async fn replay<S: Effects>(stage: &Stage<S>, plan: &LetterPlan) {
    carry_out(stage, OperationKind::ReplayLetters, plan).await;
}

pub(super) async fn carry_out<S: Effects>(stage: &Stage<S>, kind: OperationKind, plan: &LetterPlan) {
    let id = start(&stage.store, &stage.clock, kind, plan, None, "test", None).await.unwrap().unwrap();
    stage
        .until(async || {
            let operation = stage.store.operation(id).await.unwrap().unwrap();
            assert_ne!(operation.state, OperationState::Failed, "{operation:?}");
            operation.state == OperationState::Done
        })
        .await;
}

/// A consumer that fails until it is told not to.
pub(super) async fn failing<S: Effects>(stage: &Stage<S>) -> (Running<S>, Arc<AtomicBool>) {
    let mended = Arc::new(AtomicBool::new(false));
    let seen = mended.clone();
    let running = stage
        .start(move |event| {
            if seen.load(Ordering::SeqCst) {
                return Ok(Vec::new());
            }
            Err(Failure::permanent(format_args!("no account {}", event.envelope.id)).class("account"))
        })
        .await;
    (running, mended)
}

async fn what_is_replayed_takes_effect_once_and_in_one_queue_only<S: Effects>(stage: Stage<S>) {
    let (running, mended) = failing(&stage).await;
    let copy = QueueName::new("copy").unwrap();
    let topology = Topology::default().queue(Queue::quorum(copy.clone())).bind(
        ExchangeName::new("events").unwrap(),
        copy.clone(),
        postrider::topology::BindingKey::new("order.#").unwrap(),
    );
    stage.broker.declare(&topology).await.unwrap();
    for number in 0..20 {
        stage.commit(placed().aggregate_id(format!("order-{}", number % 3)).unwrap()).await;
    }
    let open = letters(&stage, LetterFilter::open(), 20).await;
    assert!(open.iter().all(|letter| letter.fingerprint == open[0].fingerprint), "one group: {open:?}");
    stage.until(async || stage.broker.depth(&copy).await.unwrap() == 20).await;
    mended.store(true, Ordering::SeqCst);
    replay(&stage, &LetterPlan::default()).await;
    let account = stage.account(&running, |account| account.applied == 20).await;
    assert!(account.holds(), "{account:?}");
    assert_eq!(stage.effects().await, 20);
    assert_eq!(stage.broker.depth(&copy).await.unwrap(), 20, "a replay is not fanned out again");
    letters(&stage, LetterFilter { status: Some(LetterStatus::Replayed), ..LetterFilter::default() }, 20)
        .await;
    let calls = stage.calls();
    let again = &calls[20..];
    assert_eq!(again.len(), 20);
    assert!(again.iter().all(|(_, attempt)| *attempt == 1), "a fresh budget");
}

async fn what_dies_again_is_another_letter_that_names_the_first<S: Effects>(stage: Stage<S>) {
    let (running, mended) = failing(&stage).await;
    stage.commit(placed()).await;
    let mut last = letters(&stage, LetterFilter::open(), 1).await.remove(0);
    for round in 1..=3 {
        replay(&stage, &LetterPlan::default()).await;
        let next = letters(&stage, LetterFilter::open(), 1).await.remove(0);
        assert_eq!((next.replay_of, next.replays), (Some(last.id), round));
        assert_eq!(next.fingerprint, last.fingerprint);
        last = next;
        let account = stage.account(&running, |account| account.dead == 1).await;
        assert!(account.holds() && account.committed == 1, "{account:?}");
    }
    mended.store(true, Ordering::SeqCst);
    replay(&stage, &LetterPlan::default()).await;
    stage.account(&running, |account| account.applied == 1).await;
    assert_eq!(stage.effects().await, 1);
}

async fn what_is_no_event_is_sent_again_byte_for_byte<S: Effects>(stage: Stage<S>) {
    let _running = stage.start(|_| Ok(Vec::new())).await;
    let mut message = Message { body: b"\0\xff not json {".to_vec().into(), ..Message::default() };
    message.properties.message_id = Some("foreign-1".to_owned());
    message.properties.app_id = Some("legacy".to_owned());
    message.headers = [
        ("a-bool".to_owned(), HeaderValue::Bool(true)),
        ("a-list".to_owned(), HeaderValue::List(vec![HeaderValue::Int(-1), HeaderValue::Null])),
        ("some-bytes".to_owned(), HeaderValue::Bytes(vec![0, 255])),
        ("x-wire-format".to_owned(), "morse".into()),
    ]
    .into();
    let (body, app) = (message.body.clone(), message.properties.app_id.clone());
    let headers = message.headers.clone();
    stage.deliver(message).await;
    let first = letters(&stage, LetterFilter::open(), 1).await.remove(0);
    replay(&stage, &LetterPlan::default()).await;
    let second = letters(&stage, LetterFilter::open(), 1).await.remove(0);
    assert_eq!((second.replay_of, second.replays), (Some(first.id), 1));
    let found = stage.store.letter(second.id).await.unwrap().unwrap().letter;
    assert_eq!((found.body, found.properties.app_id), (body, app));
    for (name, value) in headers {
        assert_eq!(found.headers.get(&name), Some(&value), "{name}");
    }
}

async fn twins_without_an_id_are_both_kept<S: Effects>(stage: Stage<S>) {
    let _running = stage.start(|_| Ok(Vec::new())).await;
    for _ in 0..3 {
        stage.deliver(Message { body: "{\"truncated".into(), ..Message::default() }).await;
    }
    let found = letters(&stage, LetterFilter::open(), 3).await;
    assert!(found.iter().all(|letter| letter.event_id.is_none()), "flagged: {found:?}");
    replay(&stage, &LetterPlan::default()).await;
    // All three die again, as three.
    let again = letters(&stage, LetterFilter::open(), 3).await;
    assert!(again.iter().all(|letter| letter.replays == 1), "{again:?}");
}

async fn what_others_rejected_or_let_expire_is_collected<S: Effects>(stage: Stage<S>) {
    let exchange = ExchangeName::new("events").unwrap();
    let mut service =
        ServiceQueue::new("foreign", RetryPolicy::default()).unwrap().bind(&exchange, "order.#").unwrap();
    let mut short = ServiceQueue::new("short", RetryPolicy::default()).unwrap();
    short.queue.message_ttl = Some(Duration::from_millis(50));
    service.queue.single_active_consumer = false;
    let running = Runtime::new(stage.store.clone(), stage.broker.clone(), stage.clock.clone())
        .exchange(exchange, postrider::topology::ExchangeKind::Topic)
        .topology(Topology::default().service(&service).service(&short))
        .collect(service.clone())
        .collect(short.clone())
        .start()
        .await
        .unwrap();
    let id = stage.commit(placed()).await;
    let mut subscription = stage.broker.subscribe(service.name(), 10).await.unwrap();
    let delivery = subscription.next(1).await.unwrap().remove(0);
    subscription.settler().settle(vec![(delivery.receipt, Verdict::Reject)]).await.unwrap();
    let mut late = Message { body: "{}".into(), ..Message::default() };
    late.properties.message_id = Some("late".to_owned());
    late.properties.kind = Some("order.placed".to_owned());
    let sent = stage.broker.publish(vec![Outgoing::to_queue(short.name(), late)]).await;
    assert_eq!(sent, [Published::Confirmed]);
    let found = letters(&stage, LetterFilter::open(), 2).await;
    let by_queue = |queue: &str| found.iter().find(|letter| letter.queue == queue).unwrap();
    let (rejected, expired) = (by_queue("foreign"), by_queue("short"));
    assert_eq!(
        (rejected.reason.as_str(), rejected.event_id.as_deref()),
        ("foreign_rejected", Some(id.as_str()))
    );
    assert_eq!((expired.reason.as_str(), expired.event_id.as_deref()), ("expired", Some("late")));
    let whole = stage.store.letter(rejected.id).await.unwrap().unwrap().letter;
    assert_eq!((whole.exchange.as_str(), whole.routing_key.as_str()), ("events", "order.placed"));
    drop(subscription);
    // What is sent again comes to the queue it was rejected in.
    replay(
        &stage,
        &LetterPlan {
            filter: LetterFilter { ids: vec![rejected.id], ..LetterFilter::open() },
            ..LetterPlan::default()
        },
    )
    .await;
    stage.until(async || stage.broker.depth(service.name()).await.unwrap() == 1).await;
    running.stop(Duration::from_secs(10)).await;
}

async fn a_discarded_head_ends_the_parking_of_its_key<S: Effects>(mut stage: Stage<S>) {
    stage.order = Some(OnDead::Park);
    let running = stage
        .start(|event| match ordering::number(event) {
            0 => Err(Failure::permanent("no such account")),
            _ => Ok(Vec::new()),
        })
        .await;
    ordering::commit_all(&stage, &["order-1"], 5).await;
    stage.account(&running, |account| (account.dead, account.waiting) == (1, 4)).await;
    letters(&stage, LetterFilter::open(), 1).await;
    carry_out(&stage, OperationKind::DiscardLetters, &LetterPlan::default()).await;
    let account = stage.account(&running, |account| account.applied == 4).await;
    assert!(account.holds(), "{account:?}");
    stage.until(async || stage.store.held_keys(None, 10).await.unwrap().is_empty()).await;
}

async fn an_edited_event_takes_effect_in_the_place_of_the_dead_one<S: Effects>(stage: Stage<S>) {
    let running = stage
        .start(|event| {
            let payload: serde_json::Value = event.envelope.payload.parse().unwrap_or_default();
            match payload["total"].as_str() {
                Some(_) => Ok(Vec::new()),
                None => Err(Failure::permanent("total is no text")),
            }
        })
        .await;
    let old = stage.commit(placed().json(&serde_json::json!({ "total": 1 })).unwrap()).await;
    let letter = letters(&stage, LetterFilter::open(), 1).await.remove(0);
    let edited = r#"{"total": "1.00"}"#;
    let new = edit_and_replay(
        &stage.store,
        &stage.clock,
        letter.id,
        &Identity::default(),
        edited.into(),
        "test",
        Some("a number must be text"),
    )
    .await;
    let new = new.unwrap().unwrap();
    let account = stage.account(&running, |account| account.applied == 1).await;
    assert!(account.holds() && account.committed == 2 && account.dead == 1, "{account:?}");
    assert_ne!(new, old);
    assert_eq!(stage.calls().last().unwrap().0, new);
}

async fn a_replay_to_a_queue_that_is_gone_opens_its_letter_again<S: Effects>(mut stage: Stage<S>) {
    stage.max_attempts = 1;
    let (running, mended) = failing(&stage).await;
    stage.commit(placed().aggregate_id("order-1").unwrap()).await;
    letters(&stage, LetterFilter::open(), 1).await;
    let gone = LetterPlan { to_queue: Some(QueueName::new("gone").unwrap()), ..LetterPlan::default() };
    replay(&stage, &gone).await;
    let opened = letters(&stage, LetterFilter::open(), 1).await.remove(0);
    assert!(opened.replay_error.is_some(), "{opened:?}");
    let account = stage.account(&running, |account| account.dead == 1).await;
    assert!(account.holds(), "{account:?}");
    mended.store(true, Ordering::SeqCst);
    replay(&stage, &LetterPlan::default()).await;
    stage.account(&running, |account| account.applied == 1).await;
}

async fn what_is_not_collected_is_worked_on_in_its_queue<S: Effects>(stage: Stage<S>) {
    let mut service = ServiceQueue::new("strict", RetryPolicy::default()).unwrap();
    service.collect = false;
    let running = Runtime::new(stage.store.clone(), stage.broker.clone(), stage.clock.clone())
        .topology(Topology::default().service(&service))
        .collect(service.clone())
        .start()
        .await
        .unwrap();
    for number in 0..5 {
        let mut message = Message { body: format!("body {number}").into(), ..Message::default() };
        message.properties.message_id = Some(format!("id-{number}"));
        message.headers.insert("x-final-error".to_owned(), format!("error {number}").into());
        message.headers.insert("x-final-retry-count".to_owned(), 10_i64.into());
        message.headers.insert("x-dead-reason".to_owned(), "retries_exhausted".into());
        let sent = stage.broker.publish(vec![Outgoing::to_queue(&service.dead_letter_queue, message)]).await;
        assert_eq!(sent, [Published::Confirmed]);
    }
    let all = LetterFilter::default();
    for _ in 0..2 {
        let seen = look(&stage.broker, &stage.clock, &service, &all, 100).await.unwrap();
        let errors: Vec<_> = seen.iter().map(|letter| letter.error.as_str()).collect();
        assert_eq!(errors, ["error 0", "error 1", "error 2", "error 3", "error 4"]);
        stage.until(async || stage.broker.depth(&service.dead_letter_queue).await.unwrap() == 5).await;
    }
    let some = LetterFilter { text: Some("error 3".to_owned()), ..LetterFilter::default() };
    let replaying = Taking {
        filter: some,
        limit: u64::MAX,
        way: Way::Replay { to: None },
        by: "ada".to_owned(),
        reason: Some("mended".to_owned()),
    };
    let moved = take_away(&stage.store, &stage.broker, &stage.clock, &service, &replaying).await.unwrap();
    assert_eq!(moved, Moved { moved: 1, failed: 0, left: 4 });
    stage.until(async || stage.broker.depth(service.name()).await.unwrap() == 1).await;
    stage.until(async || stage.broker.depth(&service.dead_letter_queue).await.unwrap() == 4).await;
    let mut back = stage.broker.subscribe(service.name(), 1).await.unwrap();
    let message = back.next(1).await.unwrap().remove(0).message;
    assert_eq!(message.body, "body 3");
    assert_eq!(message.header("x-final-error"), None, "it does not bounce straight back");
    let discarding = Taking { filter: all, limit: 3, way: Way::Discard, ..replaying };
    stage.until(async || stage.broker.depth(&service.dead_letter_queue).await.unwrap() == 4).await;
    let moved = take_away(&stage.store, &stage.broker, &stage.clock, &service, &discarding).await.unwrap();
    assert_eq!(moved, Moved { moved: 3, failed: 0, left: 1 });
    stage.until(async || stage.broker.depth(&service.dead_letter_queue).await.unwrap() == 1).await;
    let of_queue: Vec<_> = stage.store.log_of("queue/strict.dlq", 10).await.unwrap();
    let told: Vec<_> = of_queue.iter().map(|entry| (entry.action.as_str(), entry.actor.as_str())).collect();
    assert_eq!(told, [("dead_letter_queue.discarded", "ada"), ("dead_letter_queue.replayed", "ada")]);
    for (event, action) in [("id-3", "dead_letter.replayed"), ("id-0", "dead_letter.discarded")] {
        let entry = stage.store.log_of(&format!("event/{event}"), 10).await.unwrap().remove(0);
        assert_eq!((entry.action.as_str(), entry.reason.as_deref()), (action, Some("mended")));
    }
    assert!(stage.store.dead_letters(10).await.unwrap().is_empty(), "nothing is open in the table");
    let discarded = LetterFilter { status: Some(LetterStatus::Discarded), ..LetterFilter::default() };
    let kept = letters(&stage, discarded, 3).await;
    assert!(kept.iter().all(|letter| letter.queue == "strict" && letter.resolved_at.is_some()), "{kept:?}");
    drop(back);
    running.stop(Duration::from_secs(10)).await;
}

async fn ten_mebibytes_of_error_are_cut_and_grouped<S: Effects>(stage: Stage<S>) {
    let _running =
        stage.start(|_| Err(Failure::permanent(format_args!("disk full {}", "ж".repeat(5 << 20))))).await;
    stage.commit(placed()).await;
    stage.commit(placed()).await;
    let found = letters(&stage, LetterFilter::open(), 2).await;
    assert_eq!(found[0].fingerprint, found[1].fingerprint);
    let whole = stage.store.letter(found[0].id).await.unwrap().unwrap().letter;
    assert!(whole.error.starts_with("disk full") && whole.error.len() < 10_000, "{}", whole.error.len());
    assert!(found[0].error.chars().count() <= 300);
}
