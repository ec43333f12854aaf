//! Publishing: returns and refusals are charged to the right message.

use super::*;

postrider_testkit::on_each_rabbitmq!(
    returns_are_charged_to_the_right_messages_under_load,
    a_missing_exchange_fails_its_own_messages_only,
    a_refusal_among_large_messages_leaves_the_others_unharmed,
    what_rabbitmq_will_not_take_is_refused_alone,
    a_memory_alarm_makes_publishes_wait_and_lets_acks_through,
);

async fn returns_are_charged_to_the_right_messages_under_load(version: RabbitVersion) {
    let (_vhost, broker) = broker(version).await;
    broker.declare(&orders()).await.unwrap();
    let broker = &broker;
    // Several batches at once, each with every third message unroutable, some without an id of their own.
    let batches = (0..8).map(|lane| async move {
        for round in 0..3 {
            let batch: Vec<Outgoing> = (0..700)
                .map(|i| {
                    let key = if i % 3 == 0 { "nobody.wants" } else { "order.created" };
                    let mut event = event(&format!("{lane}-{round}-{i}"), "events", key);
                    if i % 7 == 0 {
                        event.message.properties.message_id = None;
                    }
                    event
                })
                .collect();
            let answers = broker.publish(batch.clone()).await;
            for (outgoing, answer) in batch.iter().zip(&answers) {
                match outgoing.routing_key.as_str() {
                    "order.created" => assert_eq!(*answer, Published::Confirmed),
                    _ => assert!(matches!(answer, Published::Returned(_)), "{answer:?}"),
                }
            }
        }
    });
    futures_util::future::join_all(batches).await;
    let routable = 8 * 3 * (0..700).filter(|i| i % 3 != 0).count();
    assert_eq!(broker.depth(&queue_name("orders")).await.unwrap(), routable as u64);
}

async fn a_missing_exchange_fails_its_own_messages_only(version: RabbitVersion) {
    let (vhost, broker) = broker(version).await;
    broker.declare(&orders()).await.unwrap();
    for round in 0..3 {
        let batch: Vec<Outgoing> = (0..300)
            .map(|i| {
                event(
                    &format!("{round}-{i}"),
                    if i % 100 == 50 { "nowhere" } else { "events" },
                    "order.created",
                )
            })
            .collect();
        let answers = broker.publish(batch.clone()).await;
        for (outgoing, answer) in batch.iter().zip(&answers) {
            if outgoing.exchange.as_str() == "nowhere" {
                assert!(
                    matches!(answer, Published::Refused(why) if why.contains("no exchange 'nowhere'")),
                    "{answer:?}"
                );
            } else {
                assert_eq!(*answer, Published::Confirmed);
            }
        }
    }
    // It is believed again once it exists.
    let (_connection, channel) = bare(&vhost.amqp_url).await;
    let declare = channel.exchange_declare(
        "nowhere".into(),
        lapin::ExchangeKind::Fanout,
        lapin::options::ExchangeDeclareOptions::default(),
        lapin::types::FieldTable::default(),
    );
    declare.await.unwrap();
    assert!(matches!(broker.publish(vec![event("late", "nowhere", "k")]).await[0], Published::Returned(_)));
    assert_eq!(drain(&broker, "orders").await.len(), 3 * 297);
}

async fn a_refusal_among_large_messages_leaves_the_others_unharmed(version: RabbitVersion) {
    // So much is on its way when the channel is closed that the driver goes on sending on it, and the connection goes too.
    let (_vhost, broker) = broker(version).await;
    broker.declare(&orders()).await.unwrap();
    let batch: Vec<Outgoing> = (0..200)
        .map(|i| {
            let mut event =
                event(&format!("{i}"), if i == 0 { "nowhere" } else { "events" }, "order.created");
            event.message.body = Bytes::from(vec![b'x'; 300_000]);
            event
        })
        .collect();
    let mut left = batch;
    for _ in 0..5 {
        let answers = broker.publish(left.clone()).await;
        let unknown = |answer: &Published| matches!(answer, Published::Unknown(_));
        for (outgoing, answer) in left.iter().zip(&answers) {
            let refused = matches!(answer, Published::Refused(_));
            assert_eq!(refused, outgoing.exchange.as_str() == "nowhere" && !unknown(answer), "{answer:?}");
        }
        left = left.into_iter().zip(&answers).filter(|(_, answer)| unknown(answer)).map(|(o, _)| o).collect();
        if left.is_empty() {
            break;
        }
    }
    assert!(left.is_empty(), "{} still in doubt", left.len());
    assert_eq!(drain(&broker, "orders").await.len(), 199);
}

async fn what_rabbitmq_will_not_take_is_refused_alone(version: RabbitVersion) {
    let server = Server::start_version(version).await.unwrap();
    configure(&server, |text| text.to_owned() + "max_message_size = 100000\n").await;
    for args in [
        &["add_user", "narrow", "narrow"][..],
        &["set_permissions", "-p", "/", "narrow", ".*", "^(amq\\.default|events)$", ".*"],
    ] {
        server.ctl(args).await.unwrap();
    }
    let broker = connect(&server.amqp_url().replace("guest:guest", "narrow:narrow")).await;
    let admin = connect(&server.amqp_url()).await;
    let mut topology = orders();
    topology.exchanges.push(Exchange::new(exchange_name("closed"), ExchangeKind::Fanout));
    admin.declare(&topology).await.unwrap();

    let mut too_large = event("large", "events", "order.created");
    too_large.message.body = Bytes::from(vec![b'x'; 100_001]);
    let mut too_wide = event("wide", "events", "order.created");
    too_wide.message.headers.insert("big".into(), "x".repeat(200_000).into());
    let forbidden = event("forbidden", "closed", "order.created");
    let mut bad_header = event("cc", "events", "order.created");
    bad_header.message.headers.insert("CC".into(), 7_i64.into());
    for round in 0..2 {
        let mut batch: Vec<Outgoing> =
            (0..50).map(|i| event(&format!("{round}-{i}"), "events", "order.created")).collect();
        for (at, bad) in [(10, &too_large), (20, &too_wide), (30, &forbidden), (40, &bad_header)] {
            batch.insert(at, bad.clone());
        }
        let answers = broker.publish(batch).await;
        for (i, answer) in answers.iter().enumerate() {
            match i {
                10 => {
                    assert!(matches!(answer, Published::Refused(why) if why.contains("size")), "{answer:?}");
                }
                20 => assert!(
                    matches!(answer, Published::Unfit(why) if why.contains("one frame")),
                    "{answer:?}"
                ),
                30 => {
                    assert!(matches!(answer, Published::Refused(why) if why.contains("right")), "{answer:?}");
                }
                40 => assert!(matches!(answer, Published::Refused(_)), "{answer:?}"),
                _ => assert_eq!(*answer, Published::Confirmed, "{i}"),
            }
        }
    }
    assert_eq!(drain(&admin, "orders").await.len(), 100);
}

async fn a_memory_alarm_makes_publishes_wait_and_lets_acks_through(version: RabbitVersion) {
    let server = Server::start_version(version).await.unwrap();
    let broker = RabbitMq::connect(quick(&server.amqp_url(), 3), Clock::system()).await.unwrap();
    broker.declare(&orders()).await.unwrap();
    let batch =
        |name: &str| (0..50).map(|i| event(&format!("{name}-{i}"), "events", "order.x")).collect::<Vec<_>>();
    assert_eq!(confirmed(&broker.publish(batch("before")).await), 50);
    let mut subscription = broker.subscribe(&queue_name("orders"), 10).await.unwrap();
    let settler = subscription.settler();

    server.ctl(&["set_vm_memory_high_watermark", "0.00001"]).await.unwrap();
    for name in ["during", "still"] {
        let answers = broker.publish(batch(name)).await;
        assert!(answers.iter().all(|answer| matches!(answer, Published::Unknown(_))), "{answers:?}");
    }
    // Acks go on: more deliveries come than the prefetch holds.
    let mut seen = 0;
    while seen < 50 {
        let deliveries = soon(&mut *subscription, 10).await;
        seen += deliveries.len();
        ack(&*settler, deliveries).await;
    }
    broker.ping().await.unwrap();
    assert_eq!(broker.depth(&queue_name("orders")).await.unwrap(), 0);

    // A publish that is waiting when the alarm ends gets through. It waits for as long as a busy machine may take to end it.
    let broker = RabbitMq::connect(quick(&server.amqp_url(), 120), Clock::system()).await.unwrap();
    let (waiting, ()) = tokio::join!(broker.publish(batch("waiting")), async {
        server.ctl(&["set_vm_memory_high_watermark", "0.4"]).await.unwrap();
    });
    assert_eq!(confirmed(&waiting), 50, "{waiting:?}");
    let answers = broker.publish(batch("after")).await;
    assert_eq!(confirmed(&answers), 50, "{answers:?}");
    drop(subscription);
    let ids = drain(&broker, "orders").await;
    assert!((0..50).all(|i| ids.contains(&format!("after-{i}")) && ids.contains(&format!("waiting-{i}"))));
}
