//! Retries, deferrals and dead letters: the event-bus table and the Ratatoskr flow, told by real events.

use std::time::Duration;

use postrider::broker::{HeaderValue, Headers, Message, Outgoing, Published};
use postrider::settlement::{FailureMatch, RetryOverride, RetryPolicy};
use postrider::topology::{ExchangeName, Queue, QueueName, RoutingKey, Topology};
use postrider::{Clock, Event, Failure, Incoming};
use postrider_testkit::effects::Effects;
use postrider_testkit::servers::{RabbitVersion, shared};

use super::stage::{CONSUMER, Stage};

const STEP: Duration = Duration::from_millis(50);

postrider_testkit::on_each_rabbitmq!(carbon_copies_are_not_sent_again_with_a_retry);

fn placed() -> Event {
    Event::new("order.placed").unwrap()
}

/// An order whose number is the status that the service will answer with.
fn answered(status: u16) -> Event {
    placed().aggregate_id(status.to_string()).unwrap()
}

/// Answers as a service would over HTTP, with the status that the order asks for. 425 only the first time.
fn answer(event: &Incoming, clock: &Clock, asked_before: bool) -> Result<Vec<Event>, Failure> {
    let status = event.envelope.aggregate_id.as_ref().and_then(|id| id.as_str().parse().ok()).unwrap_or(200);
    if status == 425 && asked_before {
        return Ok(Vec::new());
    }
    match Failure::from_status(status, format_args!("the service said {status}"), None, clock.now()) {
        Some(failure) => Err(failure),
        None => Ok(Vec::new()),
    }
}

/// Delivers an order for each status; says how often each was attempted, and how each ended.
async fn play<S: Effects>(stage: &Stage<S>, statuses: &[u16], dead: usize) -> Vec<(u16, usize, String)> {
    let (clock, calls) = (stage.clock.clone(), stage.calls.clone());
    let running = stage
        .start(move |event| {
            let id = &event.envelope.id;
            let before = calls.lock().unwrap().iter().filter(|(other, _)| other == id).count() > 1;
            answer(event, &clock, before)
        })
        .await;
    let mut ids = Vec::new();
    for status in statuses {
        ids.push(stage.commit(answered(*status)).await);
    }
    let letters = stage.dead_letters(dead).await;
    let applied = (statuses.len() - dead) as u64;
    let account = stage.account(&running, |account| account.applied == applied).await;
    assert!(account.holds(), "{account:?}");
    statuses
        .iter()
        .zip(&ids)
        .map(|(status, id)| {
            let letter = letters.iter().find(|letter| letter.event_id.as_ref() == Some(id));
            if let Some(letter) = letter {
                let code = letter.headers.get("x-final-status-code").and_then(HeaderValue::as_int);
                assert_eq!(code, Some(i64::from(*status)));
            }
            let end = letter.map_or("applied".to_owned(), |letter| letter.reason.clone());
            (*status, stage.attempts(id).len(), end)
        })
        .collect()
}

pub(super) async fn each_status_of_the_event_bus_table_is_settled_as_it_says<S: Effects>(
    mut stage: Stage<S>,
) {
    stage.retry = RetryPolicy::fixed(2, STEP);
    let statuses = [200, 204, 429, 409, 425, 500, 503, 408, 400, 404, 422];
    let told = play(&stage, &statuses, 8).await;
    let expected = [
        (200, 1, "applied"),
        (204, 1, "applied"),
        (429, 3, "retries_exhausted"),
        (409, 3, "retries_exhausted"),
        (425, 2, "applied"),
        (500, 3, "retries_exhausted"),
        (503, 3, "retries_exhausted"),
        (408, 3, "retries_exhausted"),
        (400, 1, "rejected"),
        (404, 1, "rejected"),
        (422, 1, "rejected"),
    ];
    assert_eq!(told, expected.map(|(status, calls, end)| (status, calls, end.to_owned())));
}

pub(super) async fn the_seeds_own_table_retries_every_4xx<S: Effects>(mut stage: Stage<S>) {
    stage.retry = RetryPolicy { max_retries: 2, delays: vec![STEP], ..RetryPolicy::event_bus() };
    let told = play(&stage, &[404, 400, 503], 3).await;
    let expected = [404, 400, 503].map(|status| (status, 3, "retries_exhausted".to_owned()));
    assert_eq!(told, expected);
}

pub(super) async fn the_flow_of_the_ratatoskr_seed<S: Effects>(mut stage: Stage<S>) {
    stage.retry = RetryPolicy::fixed(3, STEP);
    let running = stage
        .start(|event| match (event.envelope.aggregate_id.as_ref().map(AsRef::as_ref), event.attempt) {
            (Some("passes"), 1..=2) => Err(Failure::transient("not yet")),
            (Some("never"), _) => Err(Failure::transient("never")),
            (Some("invalid"), _) => Err(Failure::permanent("no such customer")),
            _ => Ok(Vec::new()),
        })
        .await;
    let mut ids = Vec::new();
    for aggregate in ["well", "passes", "never", "invalid"] {
        ids.push(stage.commit(placed().aggregate_id(aggregate).unwrap()).await);
    }
    let mut letters = stage.dead_letters(2).await;
    letters.sort_by_key(|letter| letter.attempts);
    let account = stage.account(&running, |account| account.applied == 2).await;
    assert!(account.holds() && account.dead == 2, "{account:?}");
    let attempts: Vec<_> = ids.iter().map(|id| stage.attempts(id)).collect();
    assert_eq!(attempts, [vec![1], vec![1, 2, 3], vec![1, 2, 3, 4], vec![1]]);
    let told: Vec<_> = letters
        .iter()
        .map(|letter| {
            let count = letter.headers.get("x-final-retry-count").and_then(HeaderValue::as_int);
            (
                letter.reason.as_str(),
                count,
                letter.queue.as_str(),
                letter.headers.contains_key("x-retry-count"),
            )
        })
        .collect();
    let expected = [("rejected", Some(0), CONSUMER, false), ("retries_exhausted", Some(3), CONSUMER, false)];
    assert_eq!(told, expected);
}

pub(super) async fn a_kind_of_failure_has_retries_of_its_own<S: Effects>(mut stage: Stage<S>) {
    let once = RetryOverride {
        max_retries: Some(1),
        delays: Some(vec![Duration::from_millis(20)]),
        ..RetryOverride::on(FailureMatch::Class("smtp".to_owned()))
    };
    stage.retry = RetryPolicy::fixed(4, STEP).jitter(40).overriding(once);
    let _running = stage
        .start(|event| {
            let class = event.envelope.aggregate_id.as_ref().map(ToString::to_string).unwrap_or_default();
            Err(Failure::transient("down").class(class))
        })
        .await;
    let smtp = stage.commit(placed().aggregate_id("smtp").unwrap()).await;
    let other = stage.commit(placed().aggregate_id("other").unwrap()).await;
    stage.dead_letters(2).await;
    assert_eq!((stage.attempts(&smtp), stage.attempts(&other)), (vec![1, 2], vec![1, 2, 3, 4, 5]));
}

pub(super) async fn retry_after_is_waited_for_in_steps<S: Effects>(mut stage: Stage<S>) {
    stage.retry = RetryPolicy::fixed(3, STEP);
    let asked = Duration::from_millis(400);
    let running = stage
        .start(move |event| match event.attempt {
            1 => Err(Failure::transient("busy").status(429).retry_after(asked)),
            _ => Ok(Vec::new()),
        })
        .await;
    let id = stage.commit(placed()).await;
    stage.account(&running, |account| account.applied == 1).await;
    assert_eq!(stage.attempts(&id), [1, 2], "a step of the waiting is no attempt");
    let times = stage.times.lock().unwrap().clone();
    assert!(times[1].duration_since(times[0]) >= asked.try_into().unwrap(), "{times:?}");
    assert!(running.consumers()[0].status.deferred() >= 2, "it waited in steps");
}

pub(super) async fn a_delayed_event_is_not_handled_early<S: Effects>(mut stage: Stage<S>) {
    stage.retry = RetryPolicy::fixed(0, STEP);
    let running = stage.start(|_| Ok(Vec::new())).await;
    let delay = Duration::from_millis(300);
    let payload = serde_json::json!({ "processAfterDelayMs": 300 });
    let committed = stage.clock.now();
    let id = stage.commit(placed().json(&payload).unwrap()).await;
    stage.account(&running, |account| account.applied == 1).await;
    assert_eq!(stage.attempts(&id), [1], "to come too early is no attempt");
    let handled = stage.times.lock().unwrap()[0];
    assert!(handled.duration_since(committed) >= delay.try_into().unwrap());
}

pub(super) async fn a_message_without_a_time_is_delayed_from_its_first_receipt<S: Effects>(
    mut stage: Stage<S>,
) {
    stage.retry = RetryPolicy::fixed(0, STEP);
    let running = stage.start(|_| Ok(Vec::new())).await;
    let mut message = Message { body: "{}".into(), ..Message::default() };
    message.properties.message_id = Some("evt_1".to_owned());
    message.properties.kind = Some("order.placed".to_owned());
    message.headers.insert("processAfterDelayMs".to_owned(), HeaderValue::Int(300));
    let sent = stage.clock.now();
    stage.deliver(message).await;
    stage.until(async || running.consumers()[0].status.applied() == 1).await;
    let handled = stage.times.lock().unwrap()[0];
    assert!(handled.duration_since(sent) >= Duration::from_millis(300).try_into().unwrap());
    assert_eq!(stage.calls().len(), 1);
}

pub(super) async fn a_delay_that_cannot_be_read_is_a_dead_letter<S: Effects>(stage: Stage<S>) {
    let _running = stage.start(|_| Ok(Vec::new())).await;
    stage.commit(placed().json(&serde_json::json!({ "processAfterDelayMs": "soon" })).unwrap()).await;
    let letter = stage.dead_letters(1).await.remove(0);
    assert_eq!(letter.reason, "malformed");
    assert!(letter.error.contains("processAfterDelayMs is not a number of milliseconds"), "{}", letter.error);
    // Nobody would look for it in a wait queue in a thousand years.
    let never = serde_json::json!({ "processAfterDelayMs": 1_000_000_000_000_000_000_u64 });
    stage.commit(placed().json(&never).unwrap()).await;
    let letters = stage.dead_letters(2).await;
    assert!(letters.iter().all(|letter| letter.reason == "malformed"), "{letters:?}");
    assert!(letters.iter().any(|letter| letter.error.contains("366 days at most")), "{letters:?}");
    assert!(stage.calls().is_empty());
}

pub(super) async fn a_dead_letter_moved_back_by_hand_begins_anew<S: Effects>(mut stage: Stage<S>) {
    stage.retry = RetryPolicy::fixed(1, STEP);
    let _running = stage.start(|_| Err(Failure::transient("smtp is down").status(503))).await;
    let id = stage.commit(placed()).await;
    let first = stage.dead_letters(1).await.remove(0);
    // Somebody moves it as it is, with every header that tells of its death.
    let moved = || Message {
        properties: first.properties.clone(),
        headers: first.headers.clone(),
        body: first.body.clone(),
    };
    stage.deliver(moved()).await;
    let letters = stage.dead_letters(2).await;
    assert_eq!(stage.attempts(&id), [1, 2, 1, 2], "a fresh budget, not straight back");
    assert_ne!(letters[0].key, letters[1].key, "it died again, and both deaths are told");
    assert_eq!(letters[0].attempts, 2);
}

pub(super) async fn an_endless_error_is_cut_and_headers_of_every_type_survive<S: Effects>(stage: Stage<S>) {
    let endless = "ä".repeat(5 << 20);
    let _running = stage.start(move |_| Err(Failure::permanent(&endless).class("x".repeat(1000)))).await;
    let table = Headers::from([("deep".to_owned(), HeaderValue::List(vec![HeaderValue::Null]))]);
    let every = [
        ("h-null", HeaderValue::Null),
        ("h-bool", HeaderValue::Bool(true)),
        ("h-int", HeaderValue::Int(i64::MIN)),
        ("h-float", HeaderValue::Float(0.1)),
        ("h-decimal", HeaderValue::Decimal { scale: 2, value: 1999 }),
        ("h-text", HeaderValue::Text("größe".to_owned())),
        ("h-bytes", HeaderValue::Bytes(vec![0xff, 0])),
        ("h-time", HeaderValue::Timestamp(1_700_000_000)),
        ("h-list", HeaderValue::List(vec![HeaderValue::Int(1), HeaderValue::Text("a".to_owned())])),
        ("h-table", HeaderValue::Table(table)),
    ];
    let mut message = Message { body: "{}".into(), ..Message::default() };
    message.properties.message_id = Some("evt_1".to_owned());
    message.properties.kind = Some("order.placed".to_owned());
    message.headers = every.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    stage.deliver(message).await;
    let letter = stage.dead_letters(1).await.remove(0);
    assert!(letter.error.len() < 5000, "{} bytes", letter.error.len());
    assert!(letter.error.ends_with("… (10485760 bytes in all)"), "{}", &letter.error[4000..]);
    assert!(letter.error_class.unwrap().len() < 200);
    for (name, value) in &every {
        assert_eq!(letter.headers.get(*name), Some(value), "{name}");
    }
}

async fn carbon_copies_are_not_sent_again_with_a_retry(version: RabbitVersion) {
    let shared = shared().unwrap();
    let (database, vhost) =
        (shared.migrated_database().await.unwrap(), shared.vhost_on(version).await.unwrap());
    let mut stage = Stage::servers(&database.url, &vhost.amqp_url).await;
    stage.retry = RetryPolicy::fixed(1, Duration::from_millis(50));
    let _running = stage.start(|_| Err(Failure::transient("not yet"))).await;
    let copied = QueueName::new("copied").unwrap();
    stage.broker.declare(&Topology::default().queue(Queue::quorum(copied.clone()))).await.unwrap();
    let mut message = Message { body: "{}".into(), ..Message::default() };
    message.properties.message_id = Some("evt_1".to_owned());
    message.properties.kind = Some("order.placed".to_owned());
    message.headers.insert("CC".to_owned(), HeaderValue::List(vec![HeaderValue::Text("copied".to_owned())]));
    let exchange = ExchangeName::default_exchange();
    let routing_key = RoutingKey::to_queue(&QueueName::new(CONSUMER).unwrap());
    let sent = stage.broker.publish(vec![Outgoing { exchange, routing_key, message }]).await;
    assert_eq!(sent, [Published::Confirmed]);
    stage.dead_letters(1).await;
    assert_eq!(stage.broker.depth(&copied).await.unwrap(), 1, "one copy, of the first publish");
}
