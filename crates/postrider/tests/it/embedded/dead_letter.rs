//! Rejecting: dead letters, their history, and those that have nowhere to go.

use postrider::broker::HeaderValue;

use super::*;

/// The deaths of a delivery: queue, reason, count.
pub(super) fn deaths(delivery: &Delivery) -> Vec<(String, String, i64)> {
    let Some(HeaderValue::List(deaths)) = delivery.message.headers.get("x-death") else { return Vec::new() };
    let read = |death: &HeaderValue| {
        let HeaderValue::Table(death) = death else { panic!("{death:?} is no table") };
        let text = |name: &str| death[name].as_str().unwrap().to_owned();
        (text("queue"), text("reason"), death["count"].as_int().unwrap())
    };
    deaths.iter().map(read).collect()
}

#[tokio::test]
async fn a_rejected_message_goes_to_the_target_with_its_history() {
    let mut main = queue("main");
    main.dead_letter = Some(DeadLetterTarget { exchange: exchange("dlx"), routing_key: None });
    let topology = Topology::default()
        .exchange(exchange("shop"), ExchangeKind::Topic)
        .exchange(exchange("dlx"), ExchangeKind::Topic)
        .queue(main)
        .queue(queue("dead"))
        .bind(exchange("shop"), name("main"), binding("#"))
        .bind(exchange("dlx"), name("dead"), binding("order.#"));
    let post = Post::with(&topology).await;
    assert_eq!(post.publish("shop", "order.created", "bad").await, Published::Confirmed);
    let mut subscription = post.subscribe("main", 1).await;
    let came = take(&mut subscription, 1).await;
    subscription.settler().settle(all(came, Verdict::Reject)).await.unwrap();
    assert_eq!((post.depth("main").await, post.depth("dead").await), (0, 1));

    // The same from memory and from the file.
    let remembered = take(&mut post.subscribe("dead", 1).await, 1).await.remove(0);
    let post = post.reopened().await;
    let stored = take(&mut post.subscribe("dead", 1).await, 1).await.remove(0);
    assert_eq!(stored.message, remembered.message);
    assert_eq!((stored.exchange.as_str(), stored.routing_key.as_str()), ("dlx", "order.created"));
    assert!(!remembered.redelivered);
    let headers = &stored.message.headers;
    let HeaderValue::List(list) = &headers["x-death"] else { panic!("no list") };
    let HeaderValue::Table(death) = &list[0] else { panic!("no table") };
    assert_eq!(death["exchange"], "shop".into());
    assert_eq!(death["queue"], "main".into());
    assert_eq!(death["reason"], "rejected".into());
    assert_eq!(death["count"], HeaderValue::Int(1));
    assert_eq!(death["time"], HeaderValue::Timestamp(1_700_000_000));
    assert_eq!(death["routing-keys"], HeaderValue::List(vec!["order.created".into()]));
    assert_eq!(headers["x-first-death-queue"], "main".into());
    assert_eq!(headers["x-first-death-reason"], "rejected".into());
    assert_eq!(headers["x-first-death-exchange"], "shop".into());
    assert_eq!((post.rows("broker_message").await, post.rows("broker_entry").await), (1, 1));
}

#[tokio::test]
async fn a_rejected_message_without_a_target_is_gone() {
    let post = Post::with(&Topology::default().queue(queue("q"))).await;
    post.fill("q", ["1", "2"]).await;
    let mut subscription = post.subscribe("q", 2).await;
    let mut came = take(&mut subscription, 2).await;
    let settled = vec![(came.remove(0).receipt, Verdict::Reject), (came.remove(0).receipt, Verdict::Ack)];
    subscription.settler().settle(settled).await.unwrap();
    assert_eq!((post.rows("broker_message").await, post.rows("broker_entry").await), (0, 0));
}

#[tokio::test]
async fn one_dead_letter_for_several_queues_is_still_stored_once() {
    let mut main = queue("main");
    main.dead_letter = Some(DeadLetterTarget { exchange: exchange("dlx"), routing_key: None });
    let mut topology = Topology::default().exchange(exchange("dlx"), ExchangeKind::Fanout).queue(main);
    for queue_name in ["a", "b"] {
        topology = topology.queue(queue(queue_name)).bind(exchange("dlx"), name(queue_name), binding(""));
    }
    let post = Post::with(&topology).await;
    post.fill("main", ["x"]).await;
    let mut subscription = post.subscribe("main", 1).await;
    let came = take(&mut subscription, 1).await;
    subscription.settler().settle(all(came, Verdict::Reject)).await.unwrap();
    assert_eq!((post.rows("broker_message").await, post.rows("broker_entry").await), (1, 2));
    for (queue, left) in [("a", 1), ("b", 0)] {
        let mut subscription = post.subscribe(queue, 1).await;
        let came = take(&mut subscription, 1).await;
        assert_eq!(deaths(&came[0]), [("main".into(), "rejected".into(), 1)]);
        subscription.settler().settle(all(came, Verdict::Ack)).await.unwrap();
        assert_eq!(post.rows("broker_message").await, left);
    }
}

#[tokio::test]
async fn two_dead_letters_of_one_message_can_meet_in_a_queue() {
    let mut topology =
        Topology::default().exchange(exchange("all"), ExchangeKind::Fanout).queue(queue("dead"));
    for queue_name in ["a", "b"] {
        let mut each = queue(queue_name);
        each.dead_letter = Some(target("dead"));
        topology = topology.queue(each).bind(exchange("all"), name(queue_name), binding(""));
    }
    let post = Post::with(&topology).await;
    post.publish("all", "k", "x").await;
    for queue in ["a", "b"] {
        let mut subscription = post.subscribe(queue, 1).await;
        let came = take(&mut subscription, 1).await;
        subscription.settler().settle(all(came, Verdict::Reject)).await.unwrap();
    }
    let mut dead = post.subscribe("dead", 2).await;
    let mut came = take(&mut dead, 2).await;
    let queues: Vec<_> = came.iter().map(|delivery| deaths(delivery)[0].0.clone()).collect();
    assert_eq!(queues, ["a", "b"]);
    dead.settler().settle(vec![(came.remove(0).receipt, Verdict::Ack)]).await.unwrap();
    assert_eq!(post.rows("broker_message").await, 1);
    dead.settler().settle(all(came, Verdict::Ack)).await.unwrap();
    assert_eq!(post.rows("broker_message").await, 0);
}

#[tokio::test]
async fn a_dead_letter_that_nobody_wants_is_kept_until_somebody_does() {
    let mut main = queue("main");
    main.dead_letter = Some(target("dead"));
    let post = Post::with(&Topology::default().queue(main)).await;
    post.fill("main", ["1", "2"]).await;
    let mut subscription = post.subscribe("main", 2).await;
    let came = take(&mut subscription, 2).await;
    subscription.settler().settle(all(came, Verdict::Reject)).await.unwrap();
    nothing(&mut subscription).await;
    assert_eq!(post.depth("main").await, 2);
    post.broker.declare(&Topology::default().queue(queue("dead"))).await.unwrap();
    let again = take(&mut subscription, 2).await;
    assert_eq!(bodies(&again), ["1", "2"]);
    subscription.settler().settle(all(again, Verdict::Reject)).await.unwrap();
    assert_eq!((post.depth("main").await, post.depth("dead").await), (0, 2));
}
