//! Where a delivery waits, what it says there, and from when on a delay counts.

use std::time::Duration;

use jiff::Timestamp;
use postrider::broker::{HeaderValue, Message, Outgoing, Published};
use postrider::envelope::wire;
use postrider::settlement::RetryPolicy;
use postrider::topology::{
    BindingKey, DeadLetterTarget, ExchangeKind, ExchangeName, Queue, QueueName, RoutingKey, Topology,
};
use postrider::{Event, Failure, WireFormat};
use postrider_testkit::effects::Effects;

use super::stage::{CONSUMER, Stage};

const HOUR: Duration = Duration::from_hours(1);

/// Somebody else looks into the last wait queue of the ladder, and finds the event there as its fourth attempt.
pub(super) async fn each_retry_waits_in_its_own_tier_and_says_how_many_there_were<S: Effects>(
    mut stage: Stage<S>,
) {
    stage.retry = RetryPolicy::ladder(5, [Duration::from_millis(50), Duration::from_millis(100), HOUR]);
    let _running = stage.start(|_| Err(Failure::transient("not yet"))).await;
    let id = stage.commit(Event::new("order.placed").unwrap()).await;
    let mut last = stage.broker.subscribe(&QueueName::new("mail.wait.1h").unwrap(), 1).await.unwrap();
    let waiting =
        tokio::time::timeout(Duration::from_mins(1), last.next(1)).await.unwrap().unwrap().remove(0);
    assert_eq!(stage.attempts(&id), [1, 2, 3]);
    let header = |name: &str| waiting.message.headers.get(name).cloned();
    assert_eq!(header("x-retry-count").and_then(|count| count.as_int()), Some(3));
    assert_eq!(header("x-original-routing-key"), Some(HeaderValue::from("order.placed")));
    let Some(HeaderValue::List(deaths)) = header("x-death") else { panic!("it never waited before") };
    let Some(HeaderValue::Table(latest)) = deaths.first() else { panic!("{deaths:?}") };
    let told = ["queue", "reason"].map(|name| latest.get(name).and_then(HeaderValue::as_str));
    assert_eq!(told, [Some("mail.wait.100ms"), Some("expired")]);
}

/// A message of a foreign producer, which knows nothing of envelopes.
fn foreign(id: &str) -> Message {
    let mut message = Message { body: "{}".into(), ..Message::default() };
    message.properties.message_id = Some(id.to_owned());
    message.properties.kind = Some("order.placed".to_owned());
    message
}

/// From when it occurred, else from its AMQP timestamp, else from when it was first received.
pub(super) async fn a_delay_counts_from_the_first_time_that_is_known<S: Effects>(mut stage: Stage<S>) {
    stage.retry = RetryPolicy::fixed(0, HOUR);
    let now = stage.clock.now();
    let long_ago = now.checked_sub(HOUR * 2).unwrap();
    let seconds = |time: Timestamp| u64::try_from(time.as_second()).ok();
    let enveloped = |id: &str, occurred_at: Timestamp, stamped: Timestamp| {
        let event = Event::new("order.placed").unwrap().id(id).unwrap();
        let mut envelope = event.into_envelope(&stage.clock);
        envelope.occurred_at = occurred_at;
        let mut message = wire::encode(&envelope, WireFormat::Envelope, 0);
        message.properties.timestamp = seconds(stamped);
        message
    };
    let mut stamped = foreign("stamped long ago");
    stamped.properties.timestamp = seconds(long_ago);
    let mut waited = foreign("received long ago");
    waited.headers.insert("x-first-received-at".to_owned(), long_ago.to_string().into());
    let running = stage.start(|_| Ok(Vec::new())).await;
    for mut message in [
        enveloped("occurred long ago", long_ago, now),
        enveloped("occurred now", now, long_ago),
        stamped,
        waited,
        foreign("received now"),
    ] {
        message.headers.insert("processAfterDelayMs".to_owned(), HeaderValue::Int(3_600_000));
        stage.deliver(message).await;
    }
    let status = &running.consumers()[0].status;
    stage.until(async || status.applied() == 3 && status.deferred() == 2).await;
    let mut handled: Vec<_> = stage.calls().iter().map(|(id, _)| id.to_string()).collect();
    handled.sort_unstable();
    assert_eq!(handled, ["occurred long ago", "received long ago", "stamped long ago"]);
    let waits = QueueName::new("mail.wait.1h").unwrap();
    stage.until(async || stage.broker.depth(&waits).await.unwrap() == 2).await;
}

/// A consumer of the old design beside ours rejected it into the design's own loop. Nothing but the key tells its type.
pub(super) async fn what_a_retry_loop_of_others_brings_back_is_still_what_it_was<S: Effects>(
    mut stage: Stage<S>,
) {
    stage.retry = RetryPolicy::fixed(1, Duration::from_millis(50));
    let (exchange, others) = (ExchangeName::new("old").unwrap(), QueueName::new("old.retry").unwrap());
    let back = RoutingKey::new(CONSUMER).unwrap();
    let retry = Queue {
        message_ttl: Some(Duration::from_millis(50)),
        dead_letter: Some(DeadLetterTarget {
            exchange: ExchangeName::default_exchange(),
            routing_key: Some(back),
        }),
        ..Queue::quorum(others.clone())
    };
    let topology = Topology::default().exchange(exchange.clone(), ExchangeKind::Topic).queue(retry).bind(
        exchange.clone(),
        others,
        BindingKey::new("#").unwrap(),
    );
    stage.broker.declare(&topology).await.unwrap();
    let _running = stage.start(|_| Err(Failure::transient("not yet"))).await;
    let mut message = foreign("evt_1");
    message.properties.kind = None;
    let routing_key = RoutingKey::new("order.placed").unwrap();
    let sent = stage.broker.publish(vec![Outgoing { exchange, routing_key, message }]).await;
    assert_eq!(sent, [Published::Confirmed]);
    let letter = stage.dead_letters(1).await.remove(0);
    assert_eq!((letter.reason.as_str(), stage.calls().len()), ("retries_exhausted", 2), "{letter:?}");
    assert_eq!((letter.exchange.as_str(), letter.routing_key.as_str()), ("old", "order.placed"));
    assert_eq!(letter.event_type.as_deref(), Some("order.placed"));
}
