//! Declaring and routing.

use std::time::Duration;

use postrider::broker::BrokerErrorKind;
use postrider::topology::Exchange;

use super::*;

#[tokio::test]
async fn each_kind_of_exchange_routes_its_own_way() {
    let mut topology = Topology::default();
    for queue_name in ["one", "two", "rest"] {
        topology = topology.queue(queue(queue_name));
    }
    let topology = topology
        .exchange(exchange("topic"), ExchangeKind::Topic)
        .exchange(exchange("fanout"), ExchangeKind::Fanout)
        .exchange(exchange("direct"), ExchangeKind::Direct)
        .bind(exchange("topic"), name("one"), binding("order.*"))
        .bind(exchange("topic"), name("one"), binding("#.created"))
        .bind(exchange("topic"), name("two"), binding("order.#"))
        .bind(exchange("fanout"), name("one"), binding(""))
        .bind(exchange("fanout"), name("two"), binding("ignored"))
        .bind(exchange("direct"), name("two"), binding("order.*"));
    let post = Post::with(&topology).await;
    for (at, key, reached) in [
        ("topic", "order.created", vec!["one", "two"]),
        ("topic", "order", vec!["two"]),
        ("topic", "a.b.created", vec!["one"]),
        ("fanout", "whatever", vec!["one", "two"]),
        ("direct", "order.*", vec!["two"]),
        ("", "rest", vec!["rest"]),
    ] {
        assert_eq!(post.publish(at, key, "x").await, Published::Confirmed, "{at} {key}");
        for queue in ["one", "two", "rest"] {
            assert_eq!(post.depth(queue).await, u64::from(reached.contains(&queue)), "{at} {key} in {queue}");
            if reached.contains(&queue) {
                let mut subscription = post.subscribe(queue, 1).await;
                let came = take(&mut subscription, 1).await;
                assert_eq!((came[0].exchange.as_str(), came[0].routing_key.as_str()), (at, key));
                subscription.settler().settle(all(came, Verdict::Ack)).await.unwrap();
            }
        }
    }
    for (at, key) in [("topic", "cart.emptied"), ("direct", "order.created"), ("", "none")] {
        assert!(matches!(post.publish(at, key, "x").await, Published::Returned(_)), "{at} {key}");
    }
    assert!(matches!(post.publish("missing", "x", "x").await, Published::Refused(_)));
    assert_eq!((post.rows("broker_message").await, post.rows("broker_entry").await), (0, 0));
}

#[tokio::test]
async fn an_alternate_exchange_takes_what_no_binding_wants() {
    let mut topology = Topology::default()
        .exchange(exchange("rest"), ExchangeKind::Fanout)
        .queue(queue("orders"))
        .queue(queue("rest"))
        .bind(exchange("shop"), name("orders"), binding("order.#"))
        .bind(exchange("rest"), name("rest"), binding(""));
    let alternate = Some(exchange("rest"));
    topology.exchanges.push(Exchange { alternate, ..Exchange::new(exchange("shop"), ExchangeKind::Topic) });
    let post = Post::with(&topology).await;
    assert_eq!(post.publish("shop", "order.created", "wanted").await, Published::Confirmed);
    assert_eq!(post.publish("shop", "cart.emptied", "unwanted").await, Published::Confirmed);
    assert_eq!((post.depth("orders").await, post.depth("rest").await), (1, 1));
    let came = take(&mut post.subscribe("rest", 1).await, 1).await;
    assert_eq!((came[0].exchange.as_str(), came[0].routing_key.as_str()), ("shop", "cart.emptied"));
}

#[tokio::test]
async fn a_batch_is_answered_message_by_message() {
    let post = Post::with(&Topology::default().queue(queue("q"))).await;
    let to = |key: &str, at: &str| Outgoing {
        exchange: exchange(at),
        routing_key: RoutingKey::new(key).unwrap(),
        message: message(key),
    };
    let answers =
        post.broker.publish(vec![to("q", ""), to("none", ""), to("x", "missing"), to("q", "")]).await;
    assert!(
        matches!(
            &answers[..],
            [Published::Confirmed, Published::Returned(_), Published::Refused(_), Published::Confirmed]
        ),
        "{answers:?}"
    );
    assert_eq!(post.depth("q").await, 2);
    assert_eq!(post.broker.publish(Vec::new()).await, []);
}

#[tokio::test]
async fn declaring_again_changes_nothing_and_differences_are_named() {
    let mut main = queue("main");
    main.dead_letter = Some(target("dead"));
    let topology = Topology::default().exchange(exchange("shop"), ExchangeKind::Topic).queue(main).bind(
        exchange("shop"),
        name("main"),
        binding("#"),
    );
    let post = Post::with(&topology).await;
    post.broker.declare(&topology).await.unwrap();
    post.fill("main", ["kept"]).await;

    let mut other = topology.clone().queue(queue("new"));
    other.queues[0].message_ttl = Some(Duration::from_secs(5));
    other.exchanges[0].kind = ExchangeKind::Direct;
    let error = post.broker.declare(&other).await.unwrap_err();
    assert_eq!(error.kind, BrokerErrorKind::Mismatch);
    for part in ["\"main\"", "TTL", "\"shop\"", "topic, not direct"] {
        assert!(error.message.contains(part), "{error}");
    }
    let post = post.reopened().await;
    assert_eq!(post.broker.depth(&name("new")).await.unwrap_err().kind, BrokerErrorKind::NotFound);
    assert_eq!(post.broker.declare(&other).await.unwrap_err().kind, BrokerErrorKind::Mismatch);
    post.broker.declare(&topology).await.unwrap();
    assert_eq!(post.publish("shop", "any.key", "routed").await, Published::Confirmed);
    assert_eq!(post.depth("main").await, 2);
}

#[tokio::test]
async fn what_is_missing_is_not_found() {
    let post = Post::open().await;
    let error = post.broker.subscribe(&name("none"), 1).await.err().unwrap();
    assert_eq!(error.kind, BrokerErrorKind::NotFound);
    assert_eq!(post.broker.depth(&name("none")).await.unwrap_err().kind, BrokerErrorKind::NotFound);
    let loose = Topology::default().queue(queue("q")).bind(exchange("none"), name("q"), binding("#"));
    assert_eq!(post.broker.declare(&loose).await.unwrap_err().kind, BrokerErrorKind::NotFound);
    assert_eq!(post.broker.depth(&name("q")).await.unwrap_err().kind, BrokerErrorKind::NotFound);
}

#[tokio::test]
async fn concurrent_declarations_agree() {
    let post = Post::open().await;
    let topology = Topology::default()
        .exchange(exchange("shop"), ExchangeKind::Topic)
        .queue(queue("q"))
        .bind(exchange("shop"), name("q"), binding("#"));
    let all = (0..8).map(|_| post.broker.declare(&topology));
    futures_util::future::try_join_all(all).await.unwrap();
    assert_eq!(post.publish("shop", "k", "x").await, Published::Confirmed);
    assert_eq!(post.depth("q").await, 1);
}
