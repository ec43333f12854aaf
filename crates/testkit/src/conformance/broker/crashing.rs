//! What is behind the broker dies and comes back: nothing that was confirmed is lost.
//!
//! The broker of before the crash either goes on by itself (a server died behind it) or says that it is over (it was the
//! process that died). Both are in the contract; a silent end is not.

use std::collections::BTreeSet;
use std::time::Duration;

use postrider::broker::{Broker, BrokerErrorKind, Published, Verdict};
use postrider::topology::{Exchange, ExchangeKind};

use super::super::{Crash, until};
use super::{
    BrokerFixture, Listener, dying_to, empty, exchange, fill, message, names, pattern, queue, queues, said,
    to_exchange, to_queue, wait_queue,
};

/// Publishes until it is confirmed, as after any lost connection.
async fn insist(broker: &dyn Broker, outgoing: postrider::broker::Outgoing) {
    until("a confirm", async || match broker.publish(vec![outgoing.clone()]).await.remove(0) {
        Published::Confirmed => Some(()),
        Published::Declined(_) | Published::Unknown(_) => None,
        answer => panic!("after the crash: {answer:?}"),
    })
    .await;
}

/// All of them, in order, once.
pub async fn confirmed_messages_survive_a_crash(fixture: &(impl BrokerFixture + Crash)) {
    let broker = fixture.broker().await;
    broker.declare(&queues(["orders"])).await.unwrap();
    fill(&*broker, "orders", &names(500)).await;
    fixture.restart().await;
    let broker = fixture.broker().await;
    insist(&*broker, to_queue("orders", message("after"))).await;
    let mut expected = names(500);
    expected.push("after".to_owned());
    assert_eq!(empty(&*broker, "orders").await, expected);
}

/// Those that were held come again; those that were acked may, for an ack has no answer.
pub async fn unsettled_deliveries_come_again_after_a_crash(fixture: &(impl BrokerFixture + Crash)) {
    let broker = fixture.broker().await;
    broker.declare(&queues(["orders"])).await.unwrap();
    fill(&*broker, "orders", &names(20)).await;
    let mut listener = Listener::on(&*broker, "orders", 10).await;
    let mut held = listener.take(10).await;
    listener.ack(held.drain(..5)).await;
    listener.take(5).await;
    fixture.restart().await;
    listener.stop().await;
    broker.close().await;

    let broker = fixture.broker().await;
    let seen: BTreeSet<String> = empty(&*broker, "orders").await.into_iter().collect();
    let owed: BTreeSet<String> = names(20).into_iter().skip(5).collect();
    assert!(seen.is_superset(&owed), "lost: {:?}", owed.difference(&seen));
}

/// It delivers again what was unsettled, or ends with an error. It never just stays silent.
pub async fn a_subscription_outlives_a_crash_or_is_told(fixture: &(impl BrokerFixture + Crash)) {
    let broker = fixture.broker().await;
    broker.declare(&queues(["orders"])).await.unwrap();
    fill(&*broker, "orders", &names(3)).await;
    let mut listener = Listener::on(&*broker, "orders", 10).await;
    listener.take(3).await;
    fixture.restart().await;
    match listener.next().await {
        Ok(first) => {
            let mut again = vec![first];
            again.extend(listener.take(2).await);
            assert_eq!(said(&again), names(3));
            assert!(again.iter().all(|delivery| delivery.redelivered));
            listener.ack(again).await;
            insist(&*broker, to_queue("orders", message("after"))).await;
            assert_eq!(said(&listener.take(1).await), ["after"]);
        }
        Err(error) => {
            assert_eq!(error.kind, BrokerErrorKind::Closed, "{error}");
            listener.stop().await;
            let broker = fixture.broker().await;
            assert_eq!(empty(&*broker, "orders").await, names(3));
        }
    }
}

/// Settling them changes nothing and is no error: the messages come again.
pub async fn receipts_from_before_a_crash_are_void(fixture: &(impl BrokerFixture + Crash)) {
    let broker = fixture.broker().await;
    broker.declare(&queues(["orders"])).await.unwrap();
    fill(&*broker, "orders", &names(10)).await;
    let mut listener = Listener::on(&*broker, "orders", 5).await;
    let held = listener.take(5).await;
    fixture.restart().await;
    // Either the same subscription has begun again, or it is over; in both cases the old receipts are void by now.
    let begun_again = listener.next().await;
    let verdicts = [Verdict::Ack, Verdict::Reject, Verdict::Requeue, Verdict::Ack, Verdict::Ack];
    match listener.try_settle(held.into_iter().zip(verdicts)).await {
        Ok(()) => {}
        Err(error) => {
            assert!(begun_again.is_err(), "a void receipt is skipped without an error: {error}");
            assert_eq!(error.kind, BrokerErrorKind::Closed, "{error}");
        }
    }
    listener.stop().await;
    broker.close().await;
    let broker = fixture.broker().await;
    assert_eq!(
        empty(&*broker, "orders").await.into_iter().collect::<BTreeSet<_>>(),
        names(10).into_iter().collect()
    );
}

/// A retry that waited through the crash is not forgotten.
pub async fn waiting_messages_come_back_after_a_crash(fixture: &(impl BrokerFixture + Crash)) {
    let broker = fixture.broker().await;
    let topology = queues(["mail"]).queue(wait_queue("mail.wait", Duration::from_millis(1_500), "mail"));
    broker.declare(&topology).await.unwrap();
    fill(&*broker, "mail.wait", &names(5)).await;
    fixture.restart().await;
    let broker = fixture.broker().await;
    let taken = Listener::on(&*broker, "mail", 10).await.take(5).await;
    assert_eq!(said(&taken), names(5));
}

/// Exchanges, queues, bindings and settings are durable.
pub async fn topology_survives_a_crash(fixture: &(impl BrokerFixture + Crash)) {
    let broker = fixture.broker().await;
    let mut topology = queues(["rest", "orders.dlq"])
        .queue(dying_to("orders", "orders.dlq"))
        .exchange(exchange("rest"), ExchangeKind::Fanout)
        .bind(exchange("rest"), queue("rest"), pattern(""))
        .bind(exchange("shop"), queue("orders"), pattern("order.*"));
    let alternate = Some(exchange("rest"));
    topology.exchanges.push(Exchange { alternate, ..Exchange::new(exchange("shop"), ExchangeKind::Topic) });
    broker.declare(&topology).await.unwrap();
    fixture.restart().await;

    let broker = fixture.broker().await;
    insist(&*broker, to_exchange("shop", "order.placed", message("order"))).await;
    insist(&*broker, to_exchange("shop", "nobody.cares", message("unwanted"))).await;
    // A server's own dead-lettering has no confirm: its target must be back before anything is rejected.
    insist(&*broker, to_queue("orders.dlq", message("the target is back"))).await;
    let mut orders = Listener::on(&*broker, "orders", 10).await;
    let delivery = orders.take_one().await;
    orders.settle([delivery], Verdict::Reject).await;
    let dead = Listener::on(&*broker, "orders.dlq", 10).await.take(2).await;
    assert_eq!(said(&dead), ["the target is back", "order"]);
    assert_eq!(empty(&*broker, "rest").await, ["unwanted"]);
    broker.declare(&topology).await.unwrap();
}
