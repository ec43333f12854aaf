//! What may change after a declaration has the same effect on every broker.

use postrider::broker::{Broker, HeaderValue, Verdict};
use postrider::topology::{
    DeadLetterTarget, DeliveryLimit, Exchange, ExchangeKind, ExchangeName, ExchangePolicy, Queue,
    QueuePolicy, Topology,
};

use super::{
    Listener, PolicedFixture, confirm, empty, exchange, fill, key, message, names, pattern, queue, queues,
    said, to_exchange,
};

/// A topic exchange for orders, and a fanout into `rest` as its alternate by policy.
fn shop(alternate: Option<&str>) -> Topology {
    let policy = ExchangePolicy { alternate: alternate.map(exchange) };
    let mut topology = queues(["orders", "rest"])
        .exchange(exchange("shop.rest"), ExchangeKind::Fanout)
        .bind(exchange("shop"), queue("orders"), pattern("order.*"))
        .bind(exchange("shop.rest"), queue("rest"), pattern(""));
    topology.exchanges.push(Exchange { policy, ..Exchange::new(exchange("shop"), ExchangeKind::Topic) });
    topology
}

fn to(target: &str) -> DeadLetterTarget {
    DeadLetterTarget { exchange: ExchangeName::default_exchange(), routing_key: Some(key(target)) }
}

/// A quorum queue `mail` with a policy, and `mail.dlq` and `elsewhere` beside it.
fn mail(argument: Option<&str>, policy: QueuePolicy) -> Topology {
    let dead_letter = argument.map(to);
    let mail = Queue { dead_letter, safe_dead_lettering: false, policy, ..Queue::quorum(queue("mail")) };
    queues(["mail.dlq", "elsewhere"]).queue(mail)
}

/// What nobody wants goes there, with its key.
pub async fn a_policy_gives_an_exchange_its_alternate(fixture: &impl PolicedFixture) {
    let broker = fixture.broker().await;
    fixture.apply(&*broker, &shop(Some("shop.rest"))).await;
    let batch = ["order.placed", "invoice.paid"].map(|key| to_exchange("shop", key, message(key)));
    confirm(&*broker, batch.to_vec()).await;
    assert_eq!(empty(&*broker, "orders").await, ["order.placed"]);
    let caught = Listener::on(&*broker, "rest", 1).await.take_one().await;
    assert_eq!((caught.exchange.as_str(), caught.routing_key.as_str()), ("shop", "invoice.paid"));
}

/// Rejected messages go there.
pub async fn a_policy_gives_a_queue_its_dead_letter_target(fixture: &impl PolicedFixture) {
    let broker = fixture.broker().await;
    let policy = QueuePolicy {
        dead_letter: Some(to("mail.dlq")),
        safe_dead_lettering: true,
        ..QueuePolicy::default()
    };
    fixture.apply(&*broker, &mail(None, policy)).await;
    reject_one(&*broker).await;
    let dead = Listener::on(&*broker, "mail.dlq", 1).await.take_one().await;
    assert_eq!(dead.message.properties.message_id.as_deref(), Some("message-0"));
}

/// Whoever declared it decides.
pub async fn an_argument_wins_over_a_policy(fixture: &impl PolicedFixture) {
    let broker = fixture.broker().await;
    let policy = QueuePolicy { dead_letter: Some(to("elsewhere")), ..QueuePolicy::default() };
    fixture.apply(&*broker, &mail(Some("mail.dlq"), policy)).await;
    reject_one(&*broker).await;
    Listener::on(&*broker, "mail.dlq", 1).await.take_one().await;
    assert!(empty(&*broker, "elsewhere").await.is_empty());
}

/// A limit of two means three deliveries.
pub async fn what_comes_back_too_often_is_a_dead_letter(fixture: &impl PolicedFixture) {
    let broker = fixture.broker().await;
    let policy = QueuePolicy { delivery_limit: Some(DeliveryLimit::Times(2)), ..QueuePolicy::default() };
    fixture.apply(&*broker, &mail(Some("mail.dlq"), policy)).await;
    fill(&*broker, "mail", &names(1)).await;
    lose_consumers(&*broker, 3).await;
    let dead = Listener::on(&*broker, "mail.dlq", 1).await.take_one().await;
    let Some(HeaderValue::List(deaths)) = dead.message.headers.get("x-death") else {
        panic!("no x-death among {:?}", dead.message.headers.keys());
    };
    let HeaderValue::Table(death) = &deaths[0] else { panic!("x-death has {:?}", deaths[0]) };
    assert_eq!(death["reason"].as_str(), Some("delivery_limit"));
    assert!(empty(&*broker, "mail").await.is_empty());
}

/// More often than any broker allows by itself.
pub async fn without_a_limit_it_comes_back_for_ever(fixture: &impl PolicedFixture) {
    let broker = fixture.broker().await;
    let policy = QueuePolicy { delivery_limit: Some(DeliveryLimit::Unlimited), ..QueuePolicy::default() };
    fixture.apply(&*broker, &mail(Some("mail.dlq"), policy)).await;
    fill(&*broker, "mail", &names(1)).await;
    lose_consumers(&*broker, 23).await;
    // Waited for: a broker takes back what a lost consumer had when it gets to it.
    let mut listener = Listener::on(&*broker, "mail", 1).await;
    assert_eq!(said(&[listener.take_one().await]), names(1));
}

/// Eighteen bytes are two messages: the oldest go to the dead letters, those first that were there before the policy.
pub async fn a_policy_limits_the_bytes_of_a_queue(fixture: &impl PolicedFixture) {
    let broker = fixture.broker().await;
    let names = names(6);
    fixture.apply(&*broker, &mail(Some("mail.dlq"), QueuePolicy::default())).await;
    fill(&*broker, "mail", &names[..4]).await;
    let policy = QueuePolicy { max_length_bytes: Some(18), ..QueuePolicy::default() };
    fixture.apply(&*broker, &mail(Some("mail.dlq"), policy)).await;
    let mut dead = Listener::on(&*broker, "mail.dlq", 10).await;
    // RabbitMQ gives up several at once from the last of them to the first.
    let mut before = said(&dead.take(2).await);
    before.sort();
    assert_eq!(before, names[..2]);
    fill(&*broker, "mail", &names[4..]).await;
    assert_eq!(said(&dead.take(2).await), names[2..4]);
    dead.stop().await;
    let mut mail = Listener::on(&*broker, "mail", 10).await;
    assert_eq!(said(&mail.take(2).await), names[4..]);
}

/// Without anything being declared anew.
pub async fn a_policy_can_change(fixture: &impl PolicedFixture) {
    let broker = fixture.broker().await;
    fixture.apply(&*broker, &shop(Some("shop.rest"))).await;
    let second = queues(["second"]).exchange(exchange("shop.second"), ExchangeKind::Fanout).bind(
        exchange("shop.second"),
        queue("second"),
        pattern(""),
    );
    broker.declare(&second).await.unwrap();
    fixture.apply(&*broker, &shop(Some("shop.second"))).await;
    confirm(&*broker, vec![to_exchange("shop", "invoice.paid", message("paid"))]).await;
    assert_eq!(empty(&*broker, "second").await, ["paid"]);
    assert!(empty(&*broker, "rest").await.is_empty());
}

async fn reject_one(broker: &dyn Broker) {
    fill(broker, "mail", &names(1)).await;
    let mut listener = Listener::on(broker, "mail", 1).await;
    let delivery = listener.take_one().await;
    listener.settle([delivery], Verdict::Reject).await;
    listener.stop().await;
}

/// So many consumers take the message of `mail` and are gone.
async fn lose_consumers(broker: &dyn Broker, times: usize) {
    for _ in 0..times {
        let mut listener = Listener::on(broker, "mail", 1).await;
        listener.take_one().await;
        listener.stop().await;
    }
}
