//! Replacing a queue: every message is still there, under every kind of disturbance.

use std::collections::HashSet;
use std::sync::Arc;

use postrider::broker::{Broker as _, HeaderValue, Outgoing, Published, Verdict};
use postrider::topology::observed::{self, Policy};
use postrider::topology::plan::{Sign, Step};
use postrider::topology::{Argument, DeadLetterTarget, RoutingKey};

use super::traffic::{Consuming, Publishing, Taken, all_seen, drain, drained, ids, outgoing, publish};
use super::*;

postrider_testkit::on_each_rabbitmq!(
    a_loaded_classic_queue_becomes_a_quorum_queue,
    changed_limits_replace_a_quorum_queue,
    what_does_not_fit_waits_until_there_is_room,
    under_traffic_nothing_is_lost,
    a_single_active_consumer_stays_single_and_nothing_is_lost,
    a_consumer_that_never_settles_stops_it_and_everything_is_put_back,
    what_a_consumer_rejects_while_it_is_closed_is_a_dead_letter,
    what_rabbitmq_will_not_have_is_refused_before_anything_is_moved,
    who_goes_on_publishing_by_its_name_stops_it_and_everything_is_put_back,
    what_cannot_be_held_back_stops_it_and_everything_is_put_back,
    interrupted_anywhere_it_is_finished_by_the_next_apply,
    retries_that_come_back_meanwhile_are_kept,
    two_processes_do_not_replace_the_same_queue,
);

async fn a_loaded_classic_queue_becomes_a_quorum_queue(version: RabbitVersion) {
    let (vhost, operator) = operator(version).await;
    let broker = connect(&vhost.amqp_url).await;
    apply(&operator, &orders(QueueKind::Classic)).await;
    publish(&broker, ids("m", 3000)).await;
    let mut special = outgoing("special");
    special.message.headers.insert("x-tenant".into(), HeaderValue::Text("acme".into()));
    special
        .message
        .headers
        .insert("CC".into(), HeaderValue::List(vec![HeaderValue::Text("order.copied".into())]));
    special.message.properties.priority = Some(3);
    let wanted_message = special.message.clone();
    assert_eq!(broker.publish(vec![special]).await, [Published::Confirmed]);

    let quorum = orders(QueueKind::Quorum);
    let plan = apply(&operator, &quorum).await;
    let Step::ReplaceQueue { messages, .. } = &plan.steps[0] else { panic!("{plan:?}") };
    assert_eq!((plan.count(Sign::Replace), *messages), (1, 3001));
    assert_settled(&operator, &quorum).await;

    let mut all = drain(&broker, "orders").await;
    let mut last = all.iter().position(|delivery| delivery.message.body == wanted_message.body).unwrap();
    assert_eq!(last, all.len() - 1, "the last one published is still the last");
    let special = all.remove(last);
    last = all.len();
    assert_eq!((special.exchange.as_str(), special.routing_key.as_str()), ("events", "order.created"));
    assert_eq!(special.message.properties, wanted_message.properties);
    assert_eq!(special.message.headers.get("x-tenant"), Some(&HeaderValue::Text("acme".into())));
    let seen: HashSet<_> = all.iter().map(Taken::id).collect();
    assert_eq!((last, seen), (3000, ids("m", 3000)));
}

async fn changed_limits_replace_a_quorum_queue(version: RabbitVersion) {
    let (vhost, operator) = operator(version).await;
    let broker = connect(&vhost.amqp_url).await;
    apply(&operator, &orders(QueueKind::Quorum)).await;
    publish(&broker, ids("m", 500)).await;
    let mut wanted = orders(QueueKind::Quorum);
    wanted.queues[0].message_ttl = Some(Duration::from_hours(1));
    wanted.queues[0].arguments.insert("x-max-length".into(), Argument::Int(100_000));
    apply(&operator, &wanted).await;
    assert_settled(&operator, &wanted).await;
    assert_eq!(depth(&broker, "orders").await, 500);
    // And again, to the other type.
    let classic = orders(QueueKind::Classic);
    apply(&operator, &classic).await;
    assert_settled(&operator, &classic).await;
    assert_eq!(depth(&broker, "orders").await, 500);
}

async fn what_does_not_fit_waits_until_there_is_room(version: RabbitVersion) {
    let (vhost, operator) = operator(version).await;
    let broker = Arc::new(connect(&vhost.amqp_url).await);
    apply(&operator, &orders(QueueKind::Quorum)).await;
    publish(&broker, ids("m", 3000)).await;
    let mut wanted = orders(QueueKind::Quorum);
    wanted.queues[0].arguments.insert("x-max-length".into(), Argument::Int(100));
    wanted.queues[0].arguments.insert("x-overflow".into(), "reject-publish".into());
    let plan = operator.plan(&wanted, false).await.unwrap();
    assert!(plan.notes.iter().any(|note| note.contains("100 of its 3000 messages fit")), "{:?}", plan.notes);
    // RabbitMQ lets some more than that in before it refuses, and less than all of them.
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let tell = move |text: String| _ = told.send(text);
    let replacing = async { operator.apply(&plan, PATIENCE, &tell).await.unwrap() };
    let consuming = async {
        while !heard.recv().await.unwrap().contains("a full queue") {}
        Consuming::start(Arc::clone(&broker))
    };
    let ((), consuming) = tokio::join!(replacing, consuming);
    all_seen(&ids("m", 3000), &[&consuming.seen]).await;
    assert_settled(&operator, &wanted).await;
}

async fn under_traffic_nothing_is_lost(version: RabbitVersion) {
    let (vhost, operator) = operator(version).await;
    let broker = Arc::new(connect(&vhost.amqp_url).await);
    apply(&operator, &orders(QueueKind::Classic)).await;
    publish(&broker, ids("before", 5000)).await;
    let publishing = Publishing::start(Arc::clone(&broker), "live");
    let consuming = Consuming::start(Arc::clone(&broker));
    apply(&operator, &orders(QueueKind::Quorum)).await;
    let sent = publishing.stop().await;
    assert!(sent > 100, "{sent} were published meanwhile");
    let mut wanted = ids("before", 5000);
    wanted.extend(ids("live", sent));
    all_seen(&wanted, &[&consuming.seen]).await;
    assert_eq!(*consuming.seen.lock().unwrap(), wanted);
    assert_settled(&operator, &orders(QueueKind::Quorum)).await;
}

async fn a_single_active_consumer_stays_single_and_nothing_is_lost(version: RabbitVersion) {
    let (vhost, operator) = operator(version).await;
    let broker = Arc::new(connect(&vhost.amqp_url).await);
    let single = |kind| {
        let mut topology = orders(kind);
        topology.queues[0].arguments.insert("x-single-active-consumer".into(), Argument::Bool(true));
        topology
    };
    apply(&operator, &single(QueueKind::Classic)).await;
    publish(&broker, ids("before", 1000)).await;
    let publishing = Publishing::start(Arc::clone(&broker), "live");
    let consuming = [Consuming::start(Arc::clone(&broker)), Consuming::start(Arc::clone(&broker))];
    apply(&operator, &single(QueueKind::Quorum)).await;
    let sent = publishing.stop().await;
    let mut wanted = ids("before", 1000);
    wanted.extend(ids("live", sent));
    all_seen(&wanted, &[&consuming[0].seen, &consuming[1].seen]).await;
    assert_settled(&operator, &single(QueueKind::Quorum)).await;
}

async fn a_consumer_that_never_settles_stops_it_and_everything_is_put_back(version: RabbitVersion) {
    let (vhost, operator) = operator(version).await;
    let broker = connect(&vhost.amqp_url).await;
    let classic = orders(QueueKind::Classic);
    apply(&operator, &classic).await;
    publish(&broker, ids("m", 100)).await;
    let mut stuck = broker.subscribe(&queue("orders"), 10).await.unwrap();
    let mut held = 0;
    while held < 10 {
        held += stuck.next(10).await.unwrap().len();
    }
    let plan = operator.plan(&orders(QueueKind::Quorum), false).await.unwrap();
    let error = operator.apply(&plan, Duration::from_secs(1), &|text| eprintln!("{text}")).await.unwrap_err();
    assert!(error.to_string().contains("10 messages of queue orders are with consumers"), "{error}");
    assert_settled(&operator, &classic).await;
    assert_eq!(depth(&broker, "orders").await, 90);
    drop(stuck);
    apply(&operator, &orders(QueueKind::Quorum)).await;
    let seen = drained(&broker, "orders").await;
    assert_eq!(seen, ids("m", 100));
}

/// The policy that closes the queue stands above the one that says where its dead letters go.
async fn what_a_consumer_rejects_while_it_is_closed_is_a_dead_letter(version: RabbitVersion) {
    let (vhost, operator) = operator(version).await;
    let broker = connect(&vhost.amqp_url).await;
    let with_dead = |kind| {
        let mut topology = orders(kind).queue(Queue::quorum(queue("orders.dead")));
        topology.queues[0].policy.dead_letter = Some(DeadLetterTarget {
            exchange: ExchangeName::default_exchange(),
            routing_key: Some(RoutingKey::new("orders.dead").unwrap()),
        });
        topology
    };
    apply(&operator, &with_dead(QueueKind::Classic)).await;
    publish(&broker, ids("m", 5)).await;
    let mut slow = broker.subscribe(&queue("orders"), 10).await.unwrap();
    let settler = slow.settler();
    let mut held = Vec::new();
    while held.len() < 5 {
        held.extend(slow.next(10).await.unwrap());
    }
    let rejecting = async {
        let is_closing = |policy: &Policy| policy.name == "postrider.closing.orders";
        while !operator.observe().await.unwrap().policies.iter().any(is_closing) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let rejects = held.into_iter().map(|delivery| (delivery.receipt, Verdict::Reject)).collect();
        settler.settle(rejects).await.unwrap();
    };
    let wanted = with_dead(QueueKind::Quorum);
    tokio::join!(apply(&operator, &wanted), rejecting);
    assert_settled(&operator, &wanted).await;
    assert_eq!(drained(&broker, "orders.dead").await, ids("m", 5));
}

async fn what_rabbitmq_will_not_have_is_refused_before_anything_is_moved(version: RabbitVersion) {
    let (vhost, operator) = operator(version).await;
    let broker = connect(&vhost.amqp_url).await;
    let classic = orders(QueueKind::Classic);
    apply(&operator, &classic).await;
    publish(&broker, ids("m", 10)).await;
    let mut wanted = orders(QueueKind::Quorum);
    wanted.queues[0].arguments.insert("x-max-length".into(), Argument::Int(-5));
    let plan = operator.plan(&wanted, false).await.unwrap();
    let error = operator.apply(&plan, PATIENCE, &|text| eprintln!("{text}")).await.unwrap_err();
    assert!(error.to_string().contains("will not declare"), "{error}");
    assert_settled(&operator, &classic).await;
    assert_eq!(depth(&broker, "orders").await, 10);
}

/// A quorum queue cannot be closed.
async fn who_goes_on_publishing_by_its_name_stops_it_and_everything_is_put_back(version: RabbitVersion) {
    let (vhost, operator) = operator(version).await;
    let broker = Arc::new(connect(&vhost.amqp_url).await);
    let quorum = orders(QueueKind::Quorum);
    apply(&operator, &quorum).await;
    publish(&broker, ids("before", 100)).await;
    let publishing = {
        let broker = Arc::clone(&broker);
        tokio::spawn(async move {
            for i in 0.. {
                let message = outgoing(&format!("direct-{i}")).message;
                let published = broker.publish(vec![Outgoing::to_queue(&queue("orders"), message)]).await;
                assert_eq!(published, [Published::Confirmed]);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
    };
    let mut wanted = quorum.clone();
    wanted.queues[0].message_ttl = Some(Duration::from_hours(1));
    let plan = operator.plan(&wanted, false).await.unwrap();
    let error = operator.apply(&plan, Duration::from_secs(1), &|text| eprintln!("{text}")).await.unwrap_err();
    publishing.abort();
    assert!(error.to_string().contains("publishes to it by its name"), "{error}");
    assert_settled(&operator, &quorum).await;
    let seen = drained(&broker, "orders").await;
    assert!(seen.is_superset(&ids("before", 100)) && seen.len() > 200, "{}", seen.len());
}

async fn what_cannot_be_held_back_stops_it_and_everything_is_put_back(version: RabbitVersion) {
    let (vhost, operator) = operator(version).await;
    let broker = connect(&vhost.amqp_url).await;
    let with_retry = |kind| with_retry(kind, Duration::from_hours(1));
    let classic = with_retry(QueueKind::Classic);
    apply(&operator, &classic).await;
    publish(&broker, ids("m", 100)).await;
    for thousand in 0..51 {
        let names = (0..1000).map(|i| format!("retry-{thousand}-{i}"));
        let batch =
            names.map(|id| Outgoing::to_queue(&queue("orders.retry"), outgoing(&id).message)).collect();
        assert!(broker.publish(batch).await.iter().all(|published| *published == Published::Confirmed));
    }
    // How many there are is a statistic.
    let is_known = |seen: &observed::Queue| seen.name == "orders.retry" && seen.messages > Some(50_000);
    while !operator.observe().await.unwrap().queues.iter().any(is_known) {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let plan = operator.plan(&with_retry(QueueKind::Quorum), false).await.unwrap();
    let error = operator.apply(&plan, PATIENCE, &|text| eprintln!("{text}")).await.unwrap_err();
    assert!(error.to_string().contains("too many to hold back"), "{error}");
    assert_settled(&operator, &classic).await;
    assert_eq!(depth(&broker, "orders").await, 100);
}

async fn interrupted_anywhere_it_is_finished_by_the_next_apply(version: RabbitVersion) {
    let (vhost, operator) = operator(version).await;
    let operator = Arc::new(operator);
    let broker = Arc::new(connect(&vhost.amqp_url).await);
    apply(&operator, &orders(QueueKind::Classic)).await;
    publish(&broker, ids("before", 2000)).await;
    let publishing = Publishing::start(Arc::clone(&broker), "live");
    // Each attempt is cut off a little later than the one before; the last one runs to its end.
    let quorum = orders(QueueKind::Quorum);
    for millis in [50, 300, 2200, 2500, 3000, 5000, 16_000, 17_000, 18_000, 1000, 2500] {
        let (operator, wanted) = (Arc::clone(&operator), quorum.clone());
        let attempt = tokio::spawn(async move {
            let plan = operator.plan(&wanted, false).await.unwrap();
            operator.apply(&plan, PATIENCE, &|text| eprintln!("{text}")).await
        });
        tokio::time::sleep(Duration::from_millis(millis)).await;
        attempt.abort();
        let cut = attempt.await;
        eprintln!("-- cut off after {millis} ms: {:?}", cut.map_err(|error| error.is_cancelled()));
    }
    apply(&operator, &quorum).await;
    let sent = publishing.stop().await;
    assert_settled(&operator, &quorum).await;
    let mut wanted = ids("before", 2000);
    wanted.extend(ids("live", sent));
    let seen = drained(&broker, "orders").await;
    let missing: Vec<_> = wanted.difference(&seen).take(5).collect();
    assert!(missing.is_empty() && seen.len() == wanted.len(), "lost {missing:?}");
}

/// As in the event-bus design: expired messages go back to the queue by its name, and nobody would confirm them.
fn with_retry(kind: QueueKind, delay: Duration) -> Topology {
    let back = DeadLetterTarget {
        exchange: ExchangeName::default_exchange(),
        routing_key: Some(RoutingKey::new("orders").unwrap()),
    };
    orders(kind).queue(Queue {
        kind: QueueKind::Classic,
        message_ttl: Some(delay),
        dead_letter: Some(back),
        ..Queue::quorum(queue("orders.retry"))
    })
}

async fn retries_that_come_back_meanwhile_are_kept(version: RabbitVersion) {
    let (vhost, operator) = operator(version).await;
    let broker = Arc::new(connect(&vhost.amqp_url).await);
    let with_retry = |kind| with_retry(kind, Duration::from_millis(300));
    apply(&operator, &with_retry(QueueKind::Classic)).await;
    publish(&broker, ids("before", 500)).await;
    let retrying = {
        let broker = Arc::clone(&broker);
        tokio::spawn(async move {
            for i in 0.. {
                let message = outgoing(&format!("retry-{i}")).message;
                assert_eq!(
                    broker.publish(vec![Outgoing::to_queue(&queue("orders.retry"), message)]).await,
                    [Published::Confirmed]
                );
                tokio::time::sleep(Duration::from_millis(5)).await;
                if i == 2500 {
                    return;
                }
            }
        })
    };
    let wanted = with_retry(QueueKind::Quorum);
    apply(&operator, &wanted).await;
    retrying.await.unwrap();
    assert_settled(&operator, &wanted).await;
    let mut all = ids("before", 500);
    all.extend(ids("retry", 2501));
    let consuming = Consuming::start(Arc::clone(&broker));
    all_seen(&all, &[&consuming.seen]).await;
}

async fn two_processes_do_not_replace_the_same_queue(version: RabbitVersion) {
    let (vhost, first) = operator(version).await;
    let second = operator_at(&vhost.amqp_url, &vhost.management_url);
    let broker = connect(&vhost.amqp_url).await;
    apply(&first, &orders(QueueKind::Classic)).await;
    publish(&broker, ids("m", 1000)).await;
    let quorum = orders(QueueKind::Quorum);
    tokio::join!(apply(&first, &quorum), apply(&second, &quorum));
    assert_settled(&first, &quorum).await;
    let seen = drained(&broker, "orders").await;
    assert_eq!(seen, ids("m", 1000));
}
