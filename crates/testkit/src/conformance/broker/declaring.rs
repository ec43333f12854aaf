//! A broker has the topology it was told to have, and says where what is there differs.

use std::time::Duration;

use postrider::broker::{Broker, BrokerErrorKind, Published, Removal};
use postrider::topology::{Exchange, ExchangeKind, Queue, Topology};

use super::super::until;
use super::{
    BrokerFixture, Listener, confirm, dying_to, empty, exchange, fill, message, names, pattern, queue,
    queues, said, to_exchange, to_queue, wait_queue,
};

fn shop() -> Topology {
    queues(["orders", "orders.dlq"])
        .queue(dying_to("mail", "orders.dlq"))
        .queue(wait_queue("mail.wait", Duration::from_mins(1), "mail"))
        .queue(Queue { single_active_consumer: true, ..Queue::quorum(queue("ledger")) })
        .exchange(exchange("shop"), ExchangeKind::Topic)
        .bind(exchange("shop"), queue("orders"), pattern("order.#"))
}

/// The same topology twice is no change, and messages stay.
pub async fn declaring_again_is_fine(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    broker.declare(&shop()).await.unwrap();
    fill(&*broker, "orders", &names(3)).await;
    broker.declare(&shop()).await.unwrap();
    assert_eq!(empty(&*broker, "orders").await, names(3));
}

/// A mismatch is told by the name of what differs.
pub async fn a_queue_with_other_settings_is_a_mismatch(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    broker.declare(&shop()).await.unwrap();
    for other in [
        dying_to("orders", "orders.dlq"),
        dying_to("mail", "orders"),
        Queue { dead_letter: None, ..dying_to("mail", "orders.dlq") },
        wait_queue("mail.wait", Duration::from_secs(61), "mail"),
        Queue::quorum(queue("ledger")),
        Queue { kind: postrider::topology::QueueKind::Classic, ..Queue::quorum(queue("orders")) },
    ] {
        let name = other.name.to_string();
        expect_mismatch(&*broker, &Topology::default().queue(other), &name).await;
    }
}

/// So it is with exchanges.
pub async fn an_exchange_with_other_settings_is_a_mismatch(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    broker.declare(&shop()).await.unwrap();
    let fanout = Topology::default().exchange(exchange("shop"), ExchangeKind::Fanout);
    expect_mismatch(&*broker, &fanout, "shop").await;
    let alternate = Exchange {
        alternate: Some(exchange("shop.rest")),
        ..Exchange::new(exchange("shop"), ExchangeKind::Topic)
    };
    let mut rerouted = Topology::default().exchange(exchange("shop.rest"), ExchangeKind::Fanout);
    rerouted.exchanges.push(alternate);
    expect_mismatch(&*broker, &rerouted, "shop").await;
}

/// After a mismatch, what was there works as before, on the same broker.
pub async fn a_mismatch_leaves_what_is_there(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    broker.declare(&shop()).await.unwrap();
    let mut listener = Listener::on(&*broker, "orders", 10).await;
    let other = Topology::default().queue(dying_to("orders", "orders.dlq"));
    expect_mismatch(&*broker, &other, "orders").await;
    confirm(&*broker, vec![to_exchange("shop", "order.placed", message("kept"))]).await;
    assert_eq!(said(&listener.take(1).await), ["kept"]);
}

async fn expect_mismatch(broker: &dyn Broker, topology: &Topology, name: &str) {
    let error =
        broker.declare(topology).await.expect_err("a queue or exchange was declared with other settings");
    assert_eq!(error.kind, BrokerErrorKind::Mismatch, "{error}");
    assert!(error.message.contains(name), "{name} is not named in: {error}");
}

/// What is not in the topology stays: declaring adds, and never removes.
pub async fn declaring_adds_to_what_is_there(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    broker.declare(&shop()).await.unwrap();
    let more = Topology::default()
        .exchange(exchange("shop"), ExchangeKind::Topic)
        .queue(Queue::quorum(queue("returns")))
        .bind(exchange("shop"), queue("returns"), pattern("return.*"));
    broker.declare(&more).await.unwrap();
    confirm(
        &*broker,
        vec![
            to_exchange("shop", "order.placed", message("order")),
            to_exchange("shop", "return.sent", message("return")),
        ],
    )
    .await;
    assert_eq!(empty(&*broker, "orders").await, ["order"]);
    assert_eq!(empty(&*broker, "returns").await, ["return"]);
}

/// What is unbound gets no more by that key; what it has stays, and its other keys go on. What is not bound may be unbound.
pub async fn unbinding_ends_a_key_and_leaves_the_rest(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    let binding = |key| Topology::default().bind(exchange("shop"), queue("orders"), pattern(key)).bindings;
    let two = Topology::default()
        .exchange(exchange("shop"), ExchangeKind::Topic)
        .queue(Queue::quorum(queue("orders")))
        .queue(Queue::quorum(queue("all")))
        .bind(exchange("shop"), queue("orders"), pattern("order.*"))
        .bind(exchange("shop"), queue("orders"), pattern("return.*"))
        .bind(exchange("shop"), queue("all"), pattern("#"));
    broker.declare(&two).await.unwrap();
    let publish = async |name: &str| {
        let both = ["order.placed", "return.sent"];
        let sent = |key: &&str| to_exchange("shop", key, message(&format!("{name} {key}")));
        confirm(&*broker, both.iter().map(sent).collect()).await;
    };
    publish("before").await;
    broker.unbind(&binding("order.*")).await.unwrap();
    publish("after").await;
    let expected = ["before order.placed", "before return.sent", "after return.sent"];
    assert_eq!(empty(&*broker, "orders").await, expected);
    broker.unbind(&binding("order.*")).await.unwrap();
    broker.unbind(&binding("never.bound")).await.unwrap();
    let nowhere = Topology::default().bind(exchange("shop"), queue("nowhere"), pattern("#"));
    broker.unbind(&nowhere.bindings).await.unwrap();
    broker.close().await;

    let again = fixture.broker().await;
    confirm(&*again, vec![to_exchange("shop", "order.placed", message("later"))]).await;
    assert_eq!(empty(&*again, "orders").await, Vec::<String>::new());
    again.declare(&two).await.unwrap();
    confirm(&*again, vec![to_exchange("shop", "order.placed", message("bound again"))]).await;
    assert_eq!(empty(&*again, "orders").await, ["bound again"]);
}

/// Whoever removes an exchange only if it is unused cannot take it away from others that are fed by it.
pub async fn an_exchange_that_feeds_others_is_not_unused(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    let both = queues(["mail", "audit"])
        .exchange(exchange("old"), ExchangeKind::Fanout)
        .bind(exchange("old"), queue("mail"), pattern(""))
        .bind(exchange("old"), queue("audit"), pattern(""));
    broker.declare(&both).await.unwrap();
    let removal =
        Removal { queues: vec![queue("mail")], exchanges: vec![exchange("old")], only_unused: true };
    let error = broker.remove(&removal).await.expect_err("another queue is fed by it");
    assert_eq!(error.kind, BrokerErrorKind::InUse, "{error}");
    assert!(error.message.contains("\"old\" still leads to"), "{error}");
    confirm(&*broker, vec![to_exchange("old", "any", message("still fed"))]).await;
    assert_eq!(empty(&*broker, "audit").await, ["still fed"]);

    // What arrived meanwhile goes with its queue, where that is still there.
    let own = Removal { queues: vec![queue("mail")], ..Removal::default() };
    broker.remove(&own).await.unwrap();
    let other = both.bindings.iter().filter(|binding| binding.queue == queue("audit")).cloned();
    broker.unbind(&other.collect::<Vec<_>>()).await.unwrap();
    broker.remove(&removal).await.unwrap();
    let answers = broker.publish(vec![to_exchange("old", "any", message("too late"))]).await;
    assert!(matches!(&answers[..], [Published::Refused(_)]), "{answers:?}");
    assert_eq!(broker.depth(&queue("audit")).await.unwrap(), 0);
}

/// Delivered but unsettled messages are not waiting.
pub async fn depth_counts_what_waits(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    broker.declare(&queues(["orders"])).await.unwrap();
    expect_depth(&*broker, "orders", 0).await;
    fill(&*broker, "orders", &names(10)).await;
    expect_depth(&*broker, "orders", 10).await;
    let mut listener = Listener::on(&*broker, "orders", 4).await;
    let taken = listener.take(4).await;
    assert_eq!(broker.is_attended(&queue("orders")).await.unwrap(), Some(true));
    expect_depth(&*broker, "orders", 6).await;
    expect_unsettled(&*broker, "orders", 4).await;
    listener.ack(taken).await;
    listener.take(4).await;
    expect_depth(&*broker, "orders", 2).await;
    listener.stop().await;
    until("nobody receives any more", async || {
        (broker.is_attended(&queue("orders")).await.unwrap() == Some(false)).then_some(())
    })
    .await;
    expect_depth(&*broker, "orders", 6).await;
    expect_unsettled(&*broker, "orders", 0).await;
}

/// Waits until so many are with consumers: RabbitMQ's statistics are some seconds late.
async fn expect_unsettled(broker: &dyn Broker, name: &str, count: u64) {
    let name = queue(name);
    until(&format!("{count} of {name} with consumers"), async || {
        (broker.unsettled(&name).await.unwrap() == count).then_some(())
    })
    .await;
}

/// Waits for a depth: a server may count a little behind.
pub(super) async fn expect_depth(broker: &dyn Broker, name: &str, depth: u64) {
    let name = queue(name);
    until(&format!("a depth of {depth} in {name}"), async || {
        (broker.depth(&name).await.unwrap() == depth).then_some(())
    })
    .await;
}

/// Nobody waits for ever at a queue that is not there, and the broker goes on.
pub async fn a_missing_queue_is_not_found(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    let error = broker.subscribe(&queue("nowhere"), 10).await.err().expect("subscribed to nothing");
    assert_eq!(error.kind, BrokerErrorKind::NotFound, "{error}");
    assert!(error.message.contains("nowhere"), "{error}");
    let error = broker.depth(&queue("nowhere")).await.expect_err("nothing has a depth");
    assert_eq!(error.kind, BrokerErrorKind::NotFound, "{error}");
    broker.ping().await.unwrap();
    broker.declare(&queues(["somewhere"])).await.unwrap();
    fill(&*broker, "somewhere", &names(1)).await;
}

/// Closing is told to everybody, and what was unsettled is in its queue again.
pub async fn a_closed_broker_says_so_and_returns_what_was_unsettled(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    broker.declare(&queues(["orders"])).await.unwrap();
    fill(&*broker, "orders", &names(3)).await;
    let mut listener = Listener::on(&*broker, "orders", 2).await;
    listener.take(2).await;
    broker.close().await;
    assert_eq!(listener.next().await.expect_err("closed").kind, BrokerErrorKind::Closed);
    assert_eq!(broker.ping().await.expect_err("closed").kind, BrokerErrorKind::Closed);
    let subscribed = broker.subscribe(&queue("orders"), 10).await;
    assert_eq!(subscribed.err().expect("closed").kind, BrokerErrorKind::Closed);
    let answers = broker.publish(vec![to_queue("orders", message("too late"))]).await;
    assert!(matches!(&answers[..], [Published::Unknown(_)]), "{answers:?}");

    let again = fixture.broker().await;
    assert_eq!(empty(&*again, "orders").await, names(3));
}
