//! Delivering and settling.

use std::collections::BTreeMap;

use bytes::Bytes;
use postrider::broker::{BrokerErrorKind, HeaderValue};

use super::*;

#[tokio::test]
async fn order_holds_and_prefetch_limits_what_is_unsettled() {
    let post = Post::with(&Topology::default().queue(queue("q"))).await;
    let mut subscription = post.subscribe("q", 3).await;
    post.fill("q", ["1", "2", "3", "4", "5"]).await;
    let first = take(&mut subscription, 3).await;
    assert_eq!(bodies(&first), ["1", "2", "3"]);
    assert!(first.iter().all(|delivery| !delivery.redelivered));
    nothing(&mut subscription).await;
    assert_eq!(post.depth("q").await, 2);
    let settler = subscription.settler();
    settler.settle(all(first, Verdict::Ack)).await.unwrap();
    assert_eq!(bodies(&take(&mut subscription, 2).await), ["4", "5"]);
    assert_eq!(post.depth("q").await, 0);
}

#[tokio::test]
async fn what_is_requeued_comes_again_at_its_place() {
    let post = Post::with(&Topology::default().queue(queue("q"))).await;
    post.fill("q", ["1", "2", "3", "4"]).await;
    let mut subscription = post.subscribe("q", 2).await;
    let mut came = take(&mut subscription, 2).await;
    let second = came.pop().unwrap();
    subscription.settler().settle(all(came, Verdict::Requeue)).await.unwrap();
    let again = take(&mut subscription, 1).await;
    assert_eq!(bodies(&again), ["1"]);
    assert!(again[0].redelivered);
    let settled = vec![(second.receipt, Verdict::Ack)];
    subscription.settler().settle(settled).await.unwrap();
    let next = take(&mut subscription, 1).await;
    assert_eq!((bodies(&next), next[0].redelivered), (vec!["3"], false));
}

#[tokio::test]
async fn dropping_a_subscription_returns_what_it_held() {
    let post = Post::with(&Topology::default().queue(queue("q"))).await;
    post.fill("q", ["1", "2", "3"]).await;
    let mut dropped = post.subscribe("q", 10).await;
    let settler = dropped.settler();
    let mut came = take(&mut dropped, 2).await;
    settler.settle(vec![(came.pop().unwrap().receipt, Verdict::Ack)]).await.unwrap();
    drop(dropped);
    // Its receipt is void, and that is no error.
    settler.settle(all(came, Verdict::Ack)).await.unwrap();
    assert_eq!(post.depth("q").await, 2);
    let again = take(&mut post.subscribe("q", 10).await, 2).await;
    assert_eq!(bodies(&again), ["1", "3"]);
    assert!(again.iter().all(|delivery| delivery.redelivered));
}

#[tokio::test]
async fn a_receipt_is_good_for_its_own_subscription_only() {
    let post = Post::with(&Topology::default().queue(queue("q"))).await;
    post.fill("q", ["1", "2"]).await;
    let mut one = post.subscribe("q", 1).await;
    let two = post.subscribe("q", 1).await;
    let came = take(&mut one, 1).await;
    two.settler().settle(all(came, Verdict::Ack)).await.unwrap();
    drop((one, two));
    assert_eq!(post.depth("q").await, 2);
}

#[tokio::test]
async fn consumers_take_turns() {
    let post = Post::with(&Topology::default().queue(queue("q"))).await;
    let mut subscriptions = Vec::new();
    for _ in 0..4 {
        subscriptions.push(post.subscribe("q", 100).await);
    }
    post.fill("q", (0..40).map(|n| n.to_string())).await;
    for subscription in &mut subscriptions {
        assert_eq!(take(subscription, 10).await.len(), 10);
        nothing(subscription).await;
    }
}

#[tokio::test]
async fn a_single_active_consumer_is_followed_by_the_next() {
    let mut single = queue("q");
    single.single_active_consumer = true;
    let post = Post::with(&Topology::default().queue(single)).await;
    let mut first = post.subscribe("q", 2).await;
    let mut second = post.subscribe("q", 10).await;
    post.fill("q", ["1", "2", "3", "4"]).await;
    assert_eq!(bodies(&take(&mut first, 2).await), ["1", "2"]);
    nothing(&mut second).await;
    drop(first);
    let taken_over = take(&mut second, 4).await;
    assert_eq!(bodies(&taken_over), ["1", "2", "3", "4"]);
    let redelivered: Vec<_> = taken_over.iter().map(|delivery| delivery.redelivered).collect();
    assert_eq!(redelivered, [true, true, false, false]);
}

#[tokio::test]
async fn a_waiting_consumer_is_woken_by_a_publish() {
    let post = Post::with(&Topology::default().queue(queue("q"))).await;
    let mut subscription = post.subscribe("q", 1).await;
    let waiting = tokio::spawn(async move { bodies(&take(&mut subscription, 1).await) == ["late"] });
    tokio::task::yield_now().await;
    post.fill("q", ["late"]).await;
    assert!(waiting.await.unwrap());
}

#[tokio::test]
async fn everything_about_a_message_comes_back() {
    let unicode = "заказы.注文.🚚";
    let post = Post::with(&Topology::default().queue(queue(unicode))).await;
    let headers = BTreeMap::from([
        ("x-text".to_owned(), HeaderValue::from("Grüße")),
        ("x-float".to_owned(), HeaderValue::Float(0.1 + 0.2)),
        ("x-list".to_owned(), HeaderValue::List(vec![HeaderValue::Null, HeaderValue::Bytes(vec![0, 255])])),
    ]);
    let properties = Properties {
        message_id: Some("evt_1".to_owned()),
        content_type: Some("application/octet-stream".to_owned()),
        timestamp: Some(1_700_000_000),
        priority: Some(3),
        ..Properties::default()
    };
    let binary: Vec<u8> = (0..1 << 20).map(|n: u32| n.to_le_bytes()[1]).collect();
    let sent = Message { properties, headers, body: Bytes::from(binary) };
    let empty = Message::default();
    let batch = [&sent, &empty].map(|message| Outgoing::to_queue(&name(unicode), message.clone())).to_vec();
    assert_eq!(post.broker.publish(batch).await, [Published::Confirmed, Published::Confirmed]);
    let post = post.reopened().await;
    let came = take(&mut post.subscribe(unicode, 2).await, 2).await;
    assert!(came[0].message == sent, "the large one is another");
    assert_eq!(came[1].message, empty);
    assert_eq!(came[0].routing_key.as_str(), unicode);
}

#[tokio::test]
async fn a_message_in_several_queues_is_stored_once() {
    let mut topology = Topology::default().exchange(exchange("all"), ExchangeKind::Fanout);
    for queue_name in ["a", "b", "c"] {
        topology = topology.queue(queue(queue_name)).bind(exchange("all"), name(queue_name), binding(""));
    }
    let post = Post::with(&topology).await;
    assert_eq!(post.publish("all", "k", "once").await, Published::Confirmed);
    assert_eq!((post.rows("broker_message").await, post.rows("broker_entry").await), (1, 3));
    for (queue, left) in [("a", 1), ("b", 1), ("c", 0)] {
        let mut subscription = post.subscribe(queue, 1).await;
        let came = take(&mut subscription, 1).await;
        assert_eq!(bodies(&came), ["once"]);
        subscription.settler().settle(all(came, Verdict::Ack)).await.unwrap();
        assert_eq!(post.rows("broker_message").await, left);
    }
}

#[tokio::test]
async fn a_closed_broker_says_so_and_loses_nothing() {
    let post = Post::with(&Topology::default().queue(queue("q"))).await;
    post.fill("q", ["1", "2"]).await;
    let mut subscription = post.subscribe("q", 1).await;
    let came = take(&mut subscription, 1).await;
    let settler = subscription.settler();
    let waiting = tokio::spawn(async move { subscription.next(1).await });
    tokio::task::yield_now().await;
    post.broker.close().await;
    assert_eq!(waiting.await.unwrap().unwrap_err().kind, BrokerErrorKind::Closed);
    assert_eq!(settler.settle(all(came, Verdict::Ack)).await.unwrap_err().kind, BrokerErrorKind::Closed);
    assert_eq!(post.broker.ping().await.unwrap_err().kind, BrokerErrorKind::Closed);
    let refused = post.broker.publish(vec![Outgoing::to_queue(&name("q"), message("3"))]).await;
    assert!(matches!(&refused[..], [Published::Unknown(_)]));
    let post = post.reopened().await;
    post.broker.ping().await.unwrap();
    assert_eq!(bodies(&take(&mut post.subscribe("q", 2).await, 2).await), ["1", "2"]);
}
