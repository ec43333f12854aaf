//! What a queue gives up goes where its settings say, with its history.

use std::time::Duration;

use postrider::Clock;
use postrider::broker::{HeaderValue, Message, Published, Verdict};
use postrider::topology::{Argument, DeadLetterTarget, ExchangeKind, Queue};

use super::carrying::{assert_headers, every_header, every_property};
use super::{
    BrokerFixture, Listener, confirm, dying_to, empty, exchange, fill, key, message, names, pattern, queue,
    queues, said, to_exchange, to_queue, wait_queue,
};

const TTL: Duration = Duration::from_millis(300);

/// One entry of `x-death`: how often a message died in this queue for this reason.
struct Death {
    queue: String,
    reason: String,
    exchange: String,
    keys: Vec<String>,
    count: i64,
}

fn deaths(message: &Message) -> Vec<Death> {
    let Some(HeaderValue::List(entries)) = message.headers.get("x-death") else {
        panic!("no x-death among {:?}", message.headers.keys());
    };
    let read = |entry: &HeaderValue| {
        let HeaderValue::Table(entry) = entry else { panic!("x-death has {entry:?}") };
        let text = |name: &str| entry.get(name).and_then(HeaderValue::as_str).unwrap_or_default().to_owned();
        assert!(
            matches!(entry.get("time"), Some(HeaderValue::Timestamp(_))),
            "x-death has no time: {entry:?}"
        );
        let keys = match entry.get("routing-keys") {
            Some(HeaderValue::List(keys)) => {
                keys.iter().filter_map(HeaderValue::as_str).map(str::to_owned).collect()
            }
            other => panic!("x-death has the routing keys {other:?}"),
        };
        let count = entry.get("count").and_then(HeaderValue::as_int).unwrap_or_default();
        Death { queue: text("queue"), reason: text("reason"), exchange: text("exchange"), keys, count }
    };
    entries.iter().map(read).collect()
}

fn expect_death(message: &Message, queue: &str, reason: &str, count: i64) -> Death {
    let found = deaths(message).into_iter().find(|death| death.queue == queue && death.reason == reason);
    let death = found.unwrap_or_else(|| panic!("it did not die in {queue} by {reason}"));
    assert_eq!(death.count, count, "deaths in {queue} by {reason}");
    death
}

/// With everything it had, and where it came from.
pub async fn rejected_messages_go_to_the_dead_letter_queue(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    let topology = queues(["mail.dlq"])
        .queue(dying_to("mail", "mail.dlq"))
        .exchange(exchange("shop"), ExchangeKind::Topic)
        .bind(exchange("shop"), queue("mail"), pattern("order.*"));
    broker.declare(&topology).await.unwrap();
    let sent = Message { properties: every_property(), headers: every_header(), ..message("bad") };
    confirm(&*broker, vec![to_exchange("shop", "order.placed", sent.clone())]).await;

    let mut mail = Listener::on(&*broker, "mail", 10).await;
    let delivery = mail.take_one().await;
    mail.settle([delivery], Verdict::Reject).await;
    let dead = Listener::on(&*broker, "mail.dlq", 10).await.take_one().await;
    assert_eq!((dead.exchange.as_str(), dead.routing_key.as_str()), ("", "mail.dlq"));
    assert_eq!(dead.message.body, sent.body);
    assert_eq!(dead.message.properties, sent.properties);
    assert_headers(&dead.message.headers, &sent.headers);
    let death = expect_death(&dead.message, "mail", "rejected", 1);
    assert_eq!((death.exchange.as_str(), death.keys), ("shop", vec!["order.placed".to_owned()]));
    mail.stop().await;
    assert!(empty(&*broker, "mail").await.is_empty());
}

/// A target without a key of its own routes by the message's.
pub async fn a_dead_letter_exchange_keeps_the_key(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    let mut orders = Queue::quorum(queue("orders"));
    orders.dead_letter = Some(DeadLetterTarget { exchange: exchange("graves"), routing_key: None });
    let mut renamed = Queue::quorum(queue("renamed"));
    renamed.dead_letter =
        Some(DeadLetterTarget { exchange: exchange("graves"), routing_key: Some(key("by.name")) });
    let topology = queues(["by.key", "by.name"])
        .queue(orders)
        .queue(renamed)
        .exchange(exchange("shop"), ExchangeKind::Fanout)
        .exchange(exchange("graves"), ExchangeKind::Topic)
        .bind(exchange("shop"), queue("orders"), pattern(""))
        .bind(exchange("shop"), queue("renamed"), pattern(""))
        .bind(exchange("graves"), queue("by.key"), pattern("order.*"))
        .bind(exchange("graves"), queue("by.name"), pattern("by.name"));
    broker.declare(&topology).await.unwrap();
    confirm(&*broker, vec![to_exchange("shop", "order.placed", message("bad"))]).await;
    for (from, to, key) in [("orders", "by.key", "order.placed"), ("renamed", "by.name", "by.name")] {
        let mut listener = Listener::on(&*broker, from, 10).await;
        let delivery = listener.take_one().await;
        listener.settle([delivery], Verdict::Reject).await;
        let dead = Listener::on(&*broker, to, 10).await.take_one().await;
        assert_eq!((dead.exchange.as_str(), dead.routing_key.as_str()), ("graves", key));
        expect_death(&dead.message, from, "rejected", 1);
    }
}

/// The queue was told to keep nothing.
pub async fn rejected_messages_without_a_target_vanish(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    broker.declare(&queues(["orders"])).await.unwrap();
    fill(&*broker, "orders", &names(3)).await;
    let mut listener = Listener::on(&*broker, "orders", 10).await;
    let taken = listener.take(3).await;
    listener.settle(taken, Verdict::Reject).await;
    listener.stop().await;
    assert!(empty(&*broker, "orders").await.is_empty());
}

/// Not before its time, to the queue it is meant for, and whole.
pub async fn expired_messages_go_back_to_their_queue(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    let topology = queues(["mail", "other"]).queue(wait_queue("mail.wait", TTL, "mail"));
    broker.declare(&topology).await.unwrap();
    let mut mail = Listener::on(&*broker, "mail", 10).await;
    let sent = Message { properties: every_property(), headers: every_header(), ..message("again") };
    let clock = Clock::system();
    let published = clock.monotonic();
    confirm(&*broker, vec![to_queue("mail.wait", sent.clone())]).await;
    let back = mail.take_one().await;
    // A server counts whole milliseconds.
    let waited = clock.monotonic().saturating_sub(published) + Duration::from_millis(1);
    assert!(waited >= TTL, "it came back after {waited:?}");
    assert_eq!((back.exchange.as_str(), back.routing_key.as_str()), ("", "mail"));
    assert_eq!(back.message.body, sent.body);
    assert_eq!(back.message.properties, sent.properties);
    assert_headers(&back.message.headers, &sent.headers);
    expect_death(&back.message, "mail.wait", "expired", 1);
    assert!(empty(&*broker, "other").await.is_empty());
}

/// First in, first back.
pub async fn a_wait_queue_keeps_the_order(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    broker.declare(&queues(["mail"]).queue(wait_queue("mail.wait", TTL, "mail"))).await.unwrap();
    let mut mail = Listener::on(&*broker, "mail", 100).await;
    fill(&*broker, "mail.wait", &names(50)).await;
    assert_eq!(said(&mail.take(50).await), names(50));
}

/// A short wait does not stand behind a long one.
pub async fn each_delay_has_its_own_queue(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    let topology = queues(["mail"]).queue(wait_queue("mail.wait.long", TTL * 5, "mail")).queue(wait_queue(
        "mail.wait.short",
        TTL,
        "mail",
    ));
    broker.declare(&topology).await.unwrap();
    let mut mail = Listener::on(&*broker, "mail", 10).await;
    let batch =
        vec![to_queue("mail.wait.long", message("long")), to_queue("mail.wait.short", message("short"))];
    confirm(&*broker, batch).await;
    assert_eq!(said(&mail.take(2).await), ["short", "long"]);
}

/// Rejected, waiting, back: three times round, each counted where it died.
pub async fn deaths_are_counted_round_by_round(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    let topology = queues([]).queue(dying_to("mail", "mail.wait")).queue(wait_queue(
        "mail.wait",
        Duration::from_millis(50),
        "mail",
    ));
    broker.declare(&topology).await.unwrap();
    fill(&*broker, "mail", &names(1)).await;
    let mut mail = Listener::on(&*broker, "mail", 10).await;
    let first = mail.take_one().await;
    assert!(!first.message.headers.contains_key("x-death"));
    mail.settle([first], Verdict::Reject).await;
    for round in 1..=3 {
        let again = mail.take_one().await;
        assert_eq!(again.message.body, "message-0");
        expect_death(&again.message, "mail", "rejected", round);
        expect_death(&again.message, "mail.wait", "expired", round);
        mail.settle([again], Verdict::Reject).await;
    }
}

/// A target that leads nowhere takes the message with it, and nothing else.
pub async fn a_missing_dead_letter_queue_holds_up_nobody(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    broker.declare(&queues([]).queue(dying_to("mail", "no.such.queue"))).await.unwrap();
    fill(&*broker, "mail", &names(2)).await;
    let mut mail = Listener::on(&*broker, "mail", 1).await;
    let first = mail.take_one().await;
    mail.settle([first], Verdict::Reject).await;
    assert_eq!(said(&mail.take(1).await), ["message-1"]);
}

/// By which argument a queue may have two messages, each of which has nine bytes.
const TWO: [(&str, i64); 2] = [("x-max-length", 2), ("x-max-length-bytes", 18)];

/// A queue that may have two messages.
fn small(name: &str, target: &str, (limit, most): (&'static str, i64), overflow: &str) -> Queue {
    let arguments = [(limit, Argument::Int(most)), ("x-overflow", overflow.into())];
    let arguments = arguments.map(|(name, value)| (name.to_owned(), value)).into();
    Queue { arguments, ..dying_to(name, target) }
}

/// The oldest first, with its history; what a consumer has in its hands is left there.
pub async fn a_full_queue_gives_up_its_oldest(fixture: &impl BrokerFixture) {
    gives_up_its_oldest(fixture, TWO[0]).await;
}

/// The same where bytes are counted.
pub async fn a_queue_with_too_many_bytes_gives_up_its_oldest(fixture: &impl BrokerFixture) {
    gives_up_its_oldest(fixture, TWO[1]).await;
}

async fn gives_up_its_oldest(fixture: &impl BrokerFixture, two: (&'static str, i64)) {
    let broker = fixture.broker().await;
    let topology = queues(["mail.dlq"]).queue(small("mail", "mail.dlq", two, "drop-head"));
    broker.declare(&topology).await.unwrap();
    let names = names(6);
    fill(&*broker, "mail", &names[..2]).await;
    let mut mail = Listener::on(&*broker, "mail", 1).await;
    let in_hand = mail.take_one().await;
    fill(&*broker, "mail", &names[2..]).await;
    let mut dead = Listener::on(&*broker, "mail.dlq", 10).await;
    let pushed_out = dead.take(3).await;
    assert_eq!(said(&pushed_out), names[1..4]);
    let death = expect_death(&pushed_out[0].message, "mail", "maxlen", 1);
    assert_eq!((death.exchange.as_str(), death.keys), ("", vec!["mail".to_owned()]));
    mail.ack([in_hand]).await;
    assert_eq!(said(&mail.take(1).await), names[4..5]);
    mail.stop().await;
    dead.stop().await;
}

/// Whoever publishes is told; nothing that was taken is lost. A server may take a few more than it should.
pub async fn a_full_queue_refuses_what_is_new_where_it_should(fixture: &impl BrokerFixture) {
    refuses_what_is_new(fixture, TWO[0]).await;
}

/// The same where bytes are counted.
pub async fn a_queue_with_all_its_bytes_refuses_what_is_new(fixture: &impl BrokerFixture) {
    refuses_what_is_new(fixture, TWO[1]).await;
}

async fn refuses_what_is_new(fixture: &impl BrokerFixture, two: (&'static str, i64)) {
    let broker = fixture.broker().await;
    let topology = queues(["mail.dlq"]).queue(small("mail", "mail.dlq", two, "reject-publish"));
    broker.declare(&topology).await.unwrap();
    let (mut taken, mut refused) = (Vec::new(), 0);
    for name in names(10) {
        match broker.publish(vec![to_queue("mail", message(&name))]).await.remove(0) {
            Published::Confirmed => taken.push(name),
            Published::Declined(_) => refused += 1,
            other => panic!("{name}: {other:?}"),
        }
    }
    assert!(taken.len() >= 2 && refused > 0, "{taken:?} were taken");
    let mut mail = Listener::on(&*broker, "mail", 20).await;
    let deliveries = mail.take(taken.len()).await;
    assert_eq!(said(&deliveries), taken);
    mail.ack(deliveries).await;
    // A server may need a moment to see that there is room again.
    let (clock, start) = (Clock::system(), Clock::system().monotonic());
    while broker.publish(vec![to_queue("mail", message("later"))]).await != [Published::Confirmed] {
        assert!(clock.monotonic().saturating_sub(start) < Duration::from_mins(1), "it refuses for ever");
        clock.sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(said(&mail.take(1).await), ["later"], "nothing else was kept");
    mail.stop().await;
    assert!(empty(&*broker, "mail.dlq").await.is_empty());
}
