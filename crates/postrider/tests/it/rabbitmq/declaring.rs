//! Declaring: idempotent, and a difference is named.

use super::*;
use postrider::broker::BrokerErrorKind;
use postrider::topology::{DeadLetterTarget, QueueKind};

postrider_testkit::on_each_rabbitmq!(
    declaring_again_changes_nothing_and_a_difference_is_named,
    a_classic_queue_from_before_queue_types_is_the_same_queue,
    a_missing_right_is_said,
);

fn everything() -> Topology {
    let mut topology = orders();
    topology.exchanges.push(Exchange::new(exchange_name("unrouted"), ExchangeKind::Fanout));
    topology.exchanges[0].alternate = Some(exchange_name("unrouted"));
    topology.queues.push(Queue {
        kind: QueueKind::Classic,
        message_ttl: Some(Duration::from_millis(1500)),
        dead_letter: Some(DeadLetterTarget {
            exchange: ExchangeName::default_exchange(),
            routing_key: Some(RoutingKey::new("orders").unwrap()),
        }),
        single_active_consumer: true,
        safe_dead_lettering: false,
        ..Queue::quorum(queue_name("orders.wait"))
    });
    topology.bindings.push(Binding {
        exchange: exchange_name("unrouted"),
        queue: queue_name("orders.wait"),
        key: BindingKey::new("").unwrap(),
    });
    topology
}

async fn declaring_again_changes_nothing_and_a_difference_is_named(version: RabbitVersion) {
    let (_vhost, broker) = broker(version).await;
    broker.declare(&everything()).await.unwrap();
    broker.declare(&everything()).await.unwrap();
    let mut other = everything();
    other.queues[1].message_ttl = Some(Duration::from_secs(9));
    other.exchanges[1].kind = ExchangeKind::Direct;
    other.queues.push(Queue::quorum(queue_name("new")));
    let error = broker.declare(&other).await.unwrap_err();
    assert_eq!(error.kind, BrokerErrorKind::Mismatch);
    for part in ["orders.wait", "x-message-ttl", "9000", "1500", "unrouted", "stays as it was declared"] {
        assert!(error.message.contains(part), "{part} is not in: {error}");
    }
    // What could be declared was, and what exists is untouched.
    assert_eq!(broker.depth(&queue_name("new")).await.unwrap(), 0);
    broker.declare(&everything()).await.unwrap();
    // The alternate exchange and the wait queue work: unroutable, into the wait queue, after its time into orders.
    assert_eq!(broker.publish(vec![event("1", "events", "nobody.wants")]).await, [Published::Confirmed]);
    let mut subscription = broker.subscribe(&queue_name("orders"), 1).await.unwrap();
    assert_eq!(id_of(&soon(&mut *subscription, 1).await[0].message), "1");
}

async fn a_classic_queue_from_before_queue_types_is_the_same_queue(version: RabbitVersion) {
    let (vhost, broker) = broker(version).await;
    let (_connection, channel) = bare(&vhost.amqp_url).await;
    let options = lapin::options::QueueDeclareOptions { durable: true, ..Default::default() };
    channel.queue_declare("old".into(), options, lapin::types::FieldTable::default()).await.unwrap();
    let old = Queue { kind: QueueKind::Classic, ..Queue::quorum(queue_name("old")) };
    broker.declare(&Topology { queues: vec![old], ..Topology::default() }).await.unwrap();
}

async fn a_missing_right_is_said(version: RabbitVersion) {
    let server = Server::start_version(version).await.unwrap();
    server.ctl(&["add_user", "reader", "reader"]).await.unwrap();
    server.ctl(&["set_permissions", "-p", "/", "reader", "^$", "^$", "^$"]).await.unwrap();
    connect(&server.amqp_url()).await.declare(&orders()).await.unwrap();
    let broker = connect(&server.amqp_url().replace("guest:guest", "reader:reader")).await;
    let mut more = orders();
    more.queues.push(Queue::quorum(queue_name("new")));
    assert_eq!(broker.declare(&more).await.unwrap_err().kind, BrokerErrorKind::Denied);
    let denied = broker.subscribe(&queue_name("orders"), 1).await.map(|_| ()).unwrap_err();
    assert_eq!(denied.kind, BrokerErrorKind::Denied, "{denied}");
}
