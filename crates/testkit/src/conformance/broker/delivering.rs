//! Deliveries come in the queue's order, no more at a time than asked for, and come again until they are settled.

use std::collections::BTreeSet;

use postrider::broker::{Broker, Verdict};
use postrider::topology::{Queue, Topology};

use super::super::soon;
use super::declaring::expect_depth;
use super::{BrokerFixture, Listener, confirm, empty, fill, message, names, queue, queues, said, to_queue};

async fn with_orders(fixture: &impl BrokerFixture, count: usize) -> std::sync::Arc<dyn Broker> {
    let broker = fixture.broker().await;
    broker.declare(&queues(["orders"])).await.unwrap();
    fill(&*broker, "orders", &names(count)).await;
    broker
}

/// First in, first out, across batches.
pub async fn a_queue_keeps_its_order(fixture: &impl BrokerFixture) {
    let broker = with_orders(fixture, 0).await;
    for name in names(20) {
        confirm(&*broker, vec![to_queue("orders", message(&name))]).await;
    }
    let taken = Listener::on(&*broker, "orders", 100).await.take(20).await;
    assert_eq!(said(&taken), names(20));
    assert!(taken.iter().all(|delivery| !delivery.redelivered));
}

/// It was there before the message.
pub async fn a_subscription_waits_for_what_comes_later(fixture: &impl BrokerFixture) {
    let broker = with_orders(fixture, 0).await;
    let mut listener = Listener::on(&*broker, "orders", 10).await;
    for name in names(3) {
        confirm(&*broker, vec![to_queue("orders", message(&name))]).await;
        let taken = listener.take(1).await;
        assert_eq!(said(&taken), [name]);
        listener.ack(taken).await;
    }
}

/// The fourth comes when one of three is settled, and not before.
pub async fn prefetch_limits_what_is_unsettled(fixture: &impl BrokerFixture) {
    let broker = with_orders(fixture, 10).await;
    let mut listener = Listener::on(&*broker, "orders", 3).await;
    let mut held = listener.take(3).await;
    expect_depth(&*broker, "orders", 7).await;
    listener.expect_quiet().await;
    for n in 3..10 {
        listener.ack([held.remove(0)]).await;
        held.push(listener.take_one().await);
        assert_eq!(said(&held[2..]), [format!("message-{n}")]);
    }
    listener.expect_quiet().await;
    listener.ack(held).await;
    expect_depth(&*broker, "orders", 0).await;
}

/// What was handed out before stays, and comes first.
pub async fn a_prefetch_can_be_changed(fixture: &impl BrokerFixture) {
    let broker = with_orders(fixture, 20).await;
    let mut subscription = broker.subscribe(&queue("orders"), 2).await.unwrap();
    let settler = subscription.settler();
    let (mut taken, mut seen) = (Vec::new(), Vec::new());
    for (prefetch, wanted) in [(2, 2), (8, 8), (1, 20)] {
        subscription.allow(prefetch).await;
        while seen.len() < wanted {
            if wanted == 20 {
                // More are unsettled than there may be now: until they are not, a broker need not hand anything out.
                settler.settle(std::mem::take(&mut taken)).await.unwrap();
            }
            let deliveries = soon("a delivery", subscription.next(64)).await.unwrap();
            assert!(deliveries.iter().all(|delivery| !delivery.redelivered), "nothing went back");
            seen.extend(said(&deliveries));
            taken.extend(deliveries.into_iter().map(|delivery| (delivery.receipt, Verdict::Ack)));
        }
    }
    settler.settle(taken).await.unwrap();
    assert_eq!(seen, names(20));
    expect_depth(&*broker, "orders", 0).await;
}

/// Asking for fewer than are there leaves the rest for the next call, in order.
pub async fn a_small_next_loses_nothing(fixture: &impl BrokerFixture) {
    let broker = with_orders(fixture, 50).await;
    let mut listener = Listener::in_steps_of(&*broker, "orders", 20, 3).await;
    let mut seen = Vec::new();
    while seen.len() < 50 {
        let delivery = listener.take_one().await;
        seen.extend(said(std::slice::from_ref(&delivery)));
        listener.ack([delivery]).await;
    }
    assert_eq!(seen, names(50));
}

/// Each message goes to one of them, and each of them gets its share.
pub async fn competing_consumers_share_a_queue(fixture: &impl BrokerFixture) {
    let broker = with_orders(fixture, 0).await;
    let mut first = Listener::on(&*broker, "orders", 5).await;
    let mut second = Listener::on(&*broker, "orders", 5).await;
    fill(&*broker, "orders", &names(10)).await;
    let (one, two) = (first.take(5).await, second.take(5).await);
    let seen: BTreeSet<String> = said(&one).into_iter().chain(said(&two)).collect();
    assert_eq!(seen, names(10).into_iter().collect());
    first.ack(one).await;
    second.ack(two).await;
    first.stop().await;
    second.stop().await;
    assert!(empty(&*broker, "orders").await.is_empty());
}

/// What was held comes first and says that it may have been seen.
pub async fn a_dropped_subscription_returns_its_messages_to_the_front(fixture: &impl BrokerFixture) {
    let broker = with_orders(fixture, 5).await;
    let mut first = Listener::on(&*broker, "orders", 2).await;
    assert_eq!(said(&first.take(2).await), names(2));
    first.stop().await;
    expect_depth(&*broker, "orders", 5).await;
    let taken = Listener::on(&*broker, "orders", 10).await.take(5).await;
    assert_eq!(said(&taken), names(5));
    let redelivered: Vec<bool> = taken.iter().map(|delivery| delivery.redelivered).collect();
    assert_eq!(redelivered, [true, true, false, false, false]);
}

/// As often as it takes, and marked.
pub async fn requeued_messages_come_again(fixture: &impl BrokerFixture) {
    let broker = with_orders(fixture, 1).await;
    let mut listener = Listener::on(&*broker, "orders", 1).await;
    for attempt in 0..5 {
        let delivery = listener.take_one().await;
        assert_eq!(delivery.message.body, "message-0");
        assert_eq!(delivery.redelivered, attempt > 0);
        listener.settle([delivery], Verdict::Requeue).await;
    }
    let last = listener.take_one().await;
    listener.ack([last]).await;
    listener.stop().await;
    assert!(empty(&*broker, "orders").await.is_empty());
}

/// Not to the next subscription either.
pub async fn acked_messages_do_not_come_again(fixture: &impl BrokerFixture) {
    let broker = with_orders(fixture, 4).await;
    let mut listener = Listener::on(&*broker, "orders", 10).await;
    let taken = listener.take(4).await;
    let mut taken = taken.into_iter();
    let (kept, acked) = (taken.next(), taken.next());
    listener.ack(acked).await;
    drop((kept, taken));
    listener.stop().await;
    let back = Listener::on(&*broker, "orders", 10).await.take(3).await;
    assert_eq!(said(&back), ["message-0", "message-2", "message-3"]);
}

/// A thousand in one call.
pub async fn a_whole_batch_is_settled_at_once(fixture: &impl BrokerFixture) {
    let broker = with_orders(fixture, 1_000).await;
    let mut listener = Listener::on(&*broker, "orders", 1_000).await;
    let taken = listener.take(1_000).await;
    listener.ack(Vec::new()).await;
    listener.ack(taken).await;
    listener.stop().await;
    assert!(empty(&*broker, "orders").await.is_empty());
}

/// Each gets its own, in whatever order they are given.
pub async fn one_batch_may_hold_different_verdicts(fixture: &impl BrokerFixture) {
    let broker = with_orders(fixture, 30).await;
    let mut listener = Listener::on(&*broker, "orders", 30).await;
    let taken = listener.take(30).await;
    let verdict = |n: usize| [Verdict::Ack, Verdict::Requeue, Verdict::Reject][n % 3];
    let mut settled: Vec<_> =
        taken.into_iter().enumerate().map(|(n, delivery)| (delivery, verdict(n))).collect();
    settled.reverse();
    listener.settle_each(settled).await;
    let again = listener.take(10).await;
    let seen: BTreeSet<String> = said(&again).into_iter().collect();
    let requeued = (0..30).filter(|n| verdict(*n) == Verdict::Requeue).map(|n| format!("message-{n}"));
    assert_eq!(seen, requeued.collect());
    listener.ack(again).await;
    listener.stop().await;
    assert!(empty(&*broker, "orders").await.is_empty());
}

/// Settling does not wait for the reader, nor the reader for settling.
pub async fn settling_works_while_somebody_waits(fixture: &impl BrokerFixture) {
    let broker = with_orders(fixture, 1).await;
    let mut listener = Listener::on(&*broker, "orders", 1).await;
    // The listener's task is in `next` again as soon as this one is handed out.
    let held = listener.take_one().await;
    listener.expect_quiet().await;
    listener.ack([held]).await;
    fill(&*broker, "orders", &["later".to_owned()]).await;
    assert_eq!(said(&listener.take(1).await), ["later"]);
}

/// The second takes over where the first left off, and never both at once.
pub async fn one_of_two_consumers_is_active(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    let ledger = Queue { single_active_consumer: true, ..Queue::quorum(queue("ledger")) };
    broker.declare(&Topology::default().queue(ledger)).await.unwrap();
    let mut first = Listener::on(&*broker, "ledger", 10).await;
    let mut second = Listener::on(&*broker, "ledger", 10).await;
    fill(&*broker, "ledger", &names(5)).await;
    let mut held = first.take(5).await;
    assert_eq!(said(&held), names(5));
    second.expect_quiet().await;
    first.ack(held.drain(..2)).await;
    first.stop().await;
    let taken = second.take(3).await;
    assert_eq!(said(&taken), names(5)[2..]);
    assert!(taken.iter().all(|delivery| delivery.redelivered));
}
