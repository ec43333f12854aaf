//! Consuming: prefetch, redelivery, a queue that is deleted, a channel that is closed.

use super::*;
use postrider::broker::{BrokerErrorKind, HeaderValue, Headers, Properties};

postrider_testkit::on_each_rabbitmq!(
    every_property_and_header_comes_back_as_it_went,
    concurrent_settlements_never_settle_twice,
    requeued_comes_again_and_rejected_goes_to_the_dead_letters,
    dropping_a_subscription_gives_back_what_is_unsettled,
    a_queue_that_is_gone_ends_the_subscription,
    what_goes_back_comes_in_its_order_to_whoever_is_handed_all_of_it,
);

async fn every_property_and_header_comes_back_as_it_went(version: RabbitVersion) {
    let (_vhost, broker) = broker(version).await;
    broker.declare(&orders()).await.unwrap();
    let inner = Headers::from([("inside".into(), HeaderValue::List(vec![HeaderValue::Null]))]);
    let message = Message {
        properties: Properties {
            message_id: Some("evt_1".into()),
            content_type: Some("application/json".into()),
            content_encoding: Some("gzip".into()),
            correlation_id: Some("cause".into()),
            timestamp: Some(1_700_000_000),
            kind: Some("order.created".into()),
            app_id: Some("shop".into()),
            reply_to: Some("answers".into()),
            priority: Some(3),
        },
        headers: Headers::from([
            ("null".into(), HeaderValue::Null),
            ("bool".into(), HeaderValue::Bool(true)),
            ("int".into(), HeaderValue::Int(i64::MIN)),
            ("float".into(), HeaderValue::Float(-0.5)),
            ("decimal".into(), HeaderValue::Decimal { scale: 2, value: 1999 }),
            ("text".into(), HeaderValue::Text("Grüße".into())),
            ("empty".into(), HeaderValue::Text(String::new())),
            ("bytes".into(), HeaderValue::Bytes(vec![0, 255, 1])),
            ("timestamp".into(), HeaderValue::Timestamp(1_700_000_000)),
            ("list".into(), HeaderValue::List(vec![HeaderValue::Int(1), HeaderValue::Text("two".into())])),
            ("table".into(), HeaderValue::Table(inner)),
        ]),
        body: Bytes::from_static(b"\x00\xffraw"),
    };
    let outgoing = Outgoing {
        exchange: exchange_name("events"),
        routing_key: RoutingKey::new("order.created").unwrap(),
        message: message.clone(),
    };
    assert_eq!(broker.publish(vec![outgoing]).await, [Published::Confirmed]);
    let mut subscription = broker.subscribe(&queue_name("orders"), 1).await.unwrap();
    let mut deliveries = soon(&mut *subscription, 1).await;
    let mut delivery = deliveries.remove(0);
    // Quorum queues of RabbitMQ 3 add their own count.
    delivery.message.headers.remove("x-delivery-count");
    assert_eq!(delivery.message, message);
    assert_eq!((delivery.exchange.as_str(), delivery.routing_key.as_str()), ("events", "order.created"));
    assert!(!delivery.redelivered);
}

async fn concurrent_settlements_never_settle_twice(version: RabbitVersion) {
    let (_vhost, broker) = broker(version).await;
    broker.declare(&orders()).await.unwrap();
    let batch: Vec<_> = (0..5_000).map(|i| event(&format!("{i}"), "events", "order.a")).collect();
    assert_eq!(confirmed(&broker.publish(batch).await), 5_000);
    let mut subscription = broker.subscribe(&queue_name("orders"), 300).await.unwrap();
    let mut seen = 0;
    let mut tasks = tokio::task::JoinSet::new();
    while seen < 5_000 {
        let deliveries = soon(&mut *subscription, 64).await;
        seen += deliveries.len();
        assert!(deliveries.iter().all(|d| !d.redelivered), "a channel was closed over a double settlement");
        // Handlers finish in any order, in groups of any size.
        for (i, delivery) in deliveries.into_iter().enumerate() {
            let settler = subscription.settler();
            tasks.spawn(async move {
                if i % 3 == 0 {
                    tokio::task::yield_now().await;
                }
                settler.settle(vec![(delivery.receipt, Verdict::Ack)]).await.unwrap();
            });
        }
    }
    tasks.join_all().await;
    // Acks sent right before the channel closes can come to nothing. A full prefetch of new messages is handed out only
    // when every ack before has been heard.
    let more: Vec<_> = (0..300).map(|i| event(&format!("more {i}"), "events", "order.a")).collect();
    assert_eq!(confirmed(&broker.publish(more).await), 300);
    let mut held = Vec::new();
    while held.len() < 300 {
        held.extend(soon(&mut *subscription, 300).await);
    }
    drop((held, subscription));
    let left = drain(&broker, "orders").await;
    assert!(left.len() == 300 && left.iter().all(|id| id.starts_with("more")), "{} are left", left.len());
}

async fn requeued_comes_again_and_rejected_goes_to_the_dead_letters(version: RabbitVersion) {
    let (_vhost, broker) = broker(version).await;
    let mut topology = orders();
    topology.queues[0].dead_letter = Some(postrider::topology::DeadLetterTarget {
        exchange: ExchangeName::default_exchange(),
        routing_key: Some(RoutingKey::new("orders.dlq").unwrap()),
    });
    topology.queues.push(Queue::quorum(queue_name("orders.dlq")));
    broker.declare(&topology).await.unwrap();
    let batch = ["a", "b", "c"].map(|id| event(id, "events", "order.a")).to_vec();
    assert_eq!(confirmed(&broker.publish(batch).await), 3);
    let mut subscription = broker.subscribe(&queue_name("orders"), 10).await.unwrap();
    let settler = subscription.settler();
    let mut first = Vec::new();
    while first.len() < 3 {
        first.extend(soon(&mut *subscription, 10).await);
    }
    let verdicts = [Verdict::Ack, Verdict::Requeue, Verdict::Reject];
    settler.settle(first.into_iter().zip(verdicts).map(|(d, v)| (d.receipt, v)).collect()).await.unwrap();
    let again = soon(&mut *subscription, 10).await;
    assert_eq!(id_of(&again[0].message), "b");
    assert!(again[0].redelivered);
    ack(&*settler, again).await;
    assert_eq!(drain(&broker, "orders.dlq").await, HashSet::from(["c".to_owned()]));
}

async fn dropping_a_subscription_gives_back_what_is_unsettled(version: RabbitVersion) {
    let (_vhost, broker) = broker(version).await;
    broker.declare(&orders()).await.unwrap();
    assert_eq!(confirmed(&broker.publish(vec![event("1", "events", "order.a")]).await), 1);
    let mut subscription = broker.subscribe(&queue_name("orders"), 10).await.unwrap();
    let settler = subscription.settler();
    let held = soon(&mut *subscription, 10).await;
    drop(subscription);
    // Void, and no error.
    ack(&*settler, held).await;
    assert_eq!(drain(&broker, "orders").await.len(), 1);
}

async fn a_queue_that_is_gone_ends_the_subscription(version: RabbitVersion) {
    let (vhost, broker) = broker(version).await;
    let missing = broker.subscribe(&queue_name("orders"), 1).await.map(|_| ()).unwrap_err();
    assert_eq!(missing.kind, BrokerErrorKind::NotFound, "{missing}");
    assert_eq!(broker.depth(&queue_name("orders")).await.unwrap_err().kind, BrokerErrorKind::NotFound);
    broker.declare(&orders()).await.unwrap();
    let mut subscription = broker.subscribe(&queue_name("orders"), 1).await.unwrap();
    let (_connection, channel) = bare(&vhost.amqp_url).await;
    channel.queue_delete("orders".into(), lapin::options::QueueDeleteOptions::default()).await.unwrap();
    let gone = tokio::time::timeout(Duration::from_secs(30), subscription.next(1))
        .await
        .expect("an answer")
        .unwrap_err();
    assert_eq!(gone.kind, BrokerErrorKind::NotFound, "{gone}");
    // Neither of these cost the connection.
    broker.declare(&orders()).await.unwrap();
    assert_eq!(broker.depth(&queue_name("orders")).await.unwrap(), 0);
}

/// What ordered queues rely on. The other half is why their consumers never ask for less than those before them.
async fn what_goes_back_comes_in_its_order_to_whoever_is_handed_all_of_it(version: RabbitVersion) {
    let (_vhost, broker) = broker(version).await;
    broker.declare(&orders()).await.unwrap();
    let batch: Vec<_> = (0..5).map(|i| event(&format!("{i}"), "events", "order.a")).collect();
    assert_eq!(confirmed(&broker.publish(batch).await), 5);
    // A session that takes no more than the first few, and goes.
    let taken = async |prefetch, count: usize| {
        let mut subscription = broker.subscribe(&queue_name("orders"), prefetch).await.unwrap();
        let mut ids = Vec::new();
        while ids.len() < count {
            let deliveries = soon(&mut *subscription, count - ids.len()).await;
            ids.extend(deliveries.iter().map(|one| id_of(&one.message)));
        }
        ids.join(" ")
    };
    assert_eq!(taken(5, 5).await, "0 1 2 3 4");
    assert_eq!(taken(5, 1).await, "0");
    assert_eq!(taken(5, 5).await, "0 1 2 3 4");
    assert_eq!(taken(1, 1).await, "0");
    assert_eq!(taken(5, 5).await, "1 2 3 4 0", "RabbitMQ puts it behind what went back before");
}
