//! Plans against real brokers: what they foresee is what happens.

use std::collections::BTreeMap;

use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use postrider::rabbitmq::management::Management;
use postrider::topology::observed::{Observed, Policy};
use postrider::topology::plan::{self, Step, queue_differences, refused_arguments};
use postrider::topology::{Argument, DeliveryLimit};
use serde_json::json;

use super::*;

postrider_testkit::on_each_rabbitmq!(
    every_refusal_is_foreseen_and_no_other,
    what_was_applied_leaves_nothing_to_do,
    other_peoples_policies_go_on_to_hold,
    drift_is_seen_and_pruned_only_when_asked,
);

/// Declarations of one queue, one setting changed at a time.
fn declarations() -> Vec<Queue> {
    let mut all = Vec::new();
    for kind in [QueueKind::Unsaid, QueueKind::Classic, QueueKind::Quorum] {
        let plain = Queue { kind, safe_dead_lettering: false, ..Queue::quorum(queue("q")) };
        all.push(plain.clone());
        all.push(Queue { single_active_consumer: true, ..plain.clone() });
        all.push(Queue { message_ttl: Some(Duration::from_secs(5)), ..plain.clone() });
        for (name, value) in [
            ("x-message-ttl", Argument::Int(6000)),
            ("x-expires", Argument::Int(3_600_000)),
            ("x-max-length", Argument::Int(10)),
            ("x-overflow", "reject-publish".into()),
            ("x-dead-letter-exchange", "dlx".into()),
            ("x-delivery-limit", Argument::Int(5)),
            ("x-dead-letter-strategy", "at-most-once".into()),
            ("x-quorum-initial-group-size", Argument::Int(1)),
            ("x-max-priority", Argument::Int(5)),
            ("x-queue-mode", "lazy".into()),
            ("x-queue-version", Argument::Int(1)),
            ("x-queue-leader-locator", "client-local".into()),
            ("x-consumer-timeout", Argument::Int(60_000)),
            ("x-whatever", "a".into()),
        ] {
            let arguments = BTreeMap::from([(name.to_owned(), value)]);
            all.push(Queue { arguments, ..plain.clone() });
        }
    }
    all
}

fn table(queue: &Queue) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in queue.declared_arguments() {
        let value = match value {
            Argument::Bool(value) => AMQPValue::Boolean(value),
            // Not the width that the adapter uses: the width makes no difference.
            Argument::Int(value) => AMQPValue::LongInt(i32::try_from(value).unwrap()),
            Argument::Text(value) => AMQPValue::LongString(value.into()),
        };
        table.insert(name.into(), value);
    }
    table
}

struct Tried {
    connection: lapin::Connection,
}

impl Tried {
    async fn channel(&self) -> lapin::Channel {
        loop {
            // The driver may still be busy with the end of the channel before.
            if let Ok(channel) = self.connection.create_channel().await {
                return channel;
            }
        }
    }

    async fn declare(&self, queue: &Queue) -> bool {
        let channel = self.channel().await;
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let taken = channel.queue_declare("q".into(), options, table(queue)).await.is_ok();
        if taken {
            channel.close(200, "done".into()).await.unwrap();
        }
        taken
    }

    async fn delete(&self) {
        let channel = self.channel().await;
        channel.queue_delete("q".into(), QueueDeleteOptions::default()).await.unwrap();
        channel.close(200, "done".into()).await.unwrap();
    }
}

async fn every_refusal_is_foreseen_and_no_other(version: RabbitVersion) {
    let (vhost, operator) = operator(version).await;
    let connection =
        lapin::Connection::connect(&vhost.amqp_url, lapin::ConnectionProperties::default()).await.unwrap();
    let tried = Tried { connection };
    let broker: Observed = operator.observe().await.unwrap();
    let all = declarations();
    let mut compared = 0;
    for first in &all {
        let foreseen = refused_arguments(first, &broker).is_empty();
        assert_eq!(tried.declare(first).await, foreseen, "declaring {:?}", first.declared_arguments());
        if !foreseen {
            continue;
        }
        let exists = operator.management().queue(&vhost.name, "q").await.unwrap().unwrap();
        for second in &all {
            let differences = queue_differences(second, &exists, &broker);
            assert_eq!(
                tried.declare(second).await,
                differences.is_empty(),
                "{:?} where {:?} exists: {differences:?}",
                second.declared_arguments(),
                first.declared_arguments()
            );
            compared += 1;
        }
        tried.delete().await;
    }
    assert!(compared > 1000, "{compared} pairs");
}

async fn what_was_applied_leaves_nothing_to_do(version: RabbitVersion) {
    let (vhost, operator) = operator(version).await;
    let mut wanted = orders(QueueKind::Quorum);
    wanted.queues[0].policy.delivery_limit = Some(DeliveryLimit::Times(7));
    wanted = wanted.exchange(exchange("rest"), ExchangeKind::Fanout);
    wanted.exchanges[0].policy.alternate = Some(exchange("rest"));
    let service =
        postrider::topology::ServiceQueue::new("mail", postrider::settlement::RetryPolicy::default());
    wanted = wanted.service(&service.unwrap().bind(&exchange("events"), "mail.#").unwrap()).protected();
    let plan = apply(&operator, &wanted).await;
    assert!(plan.steps.len() > 10, "{plan:?}");
    let again = operator.plan(&wanted, false).await.unwrap();
    assert!(again.is_empty() && again.extra.is_empty(), "{again:?}");
    // The library's own declaration agrees, and so does applying a second time.
    connect(&vhost.amqp_url).await.declare(&wanted).await.unwrap();
    operator.apply(&plan, PATIENCE, &|_| {}).await.unwrap();
    assert!(operator.plan(&wanted, false).await.unwrap().is_empty());
}

async fn other_peoples_policies_go_on_to_hold(version: RabbitVersion) {
    let (vhost, operator) = operator(version).await;
    let theirs = Policy {
        name: "limits".into(),
        pattern: "^ord.*s$".into(),
        apply_to: "all".into(),
        priority: 3,
        definition: serde_json::from_value(json!({"max-length": 5000})).unwrap(),
    };
    let admin = Management::new(&at(&vhost.management_url)).unwrap();
    admin.set_policy(&vhost.name, &theirs).await.unwrap();
    let mut wanted = orders(QueueKind::Quorum);
    wanted.queues[0].policy.delivery_limit = Some(DeliveryLimit::Times(7));
    let plan = apply(&operator, &wanted).await;
    assert!(plan.notes.iter().any(|note| note.contains("\"limits\" matches too")), "{:?}", plan.notes);
    assert!(operator.plan(&wanted, false).await.unwrap().is_empty());
    let effective = json!({"max-length": 5000, "delivery-limit": 7});
    // The queue tells its policy with its statistics, so a little later.
    for _ in 0..300 {
        let queue = admin.queue(&vhost.name, "orders").await.unwrap().unwrap();
        if json!(queue.effective_policy_definition) == effective {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the policy did not come into effect");
}

async fn drift_is_seen_and_pruned_only_when_asked(version: RabbitVersion) {
    let (vhost, operator) = operator(version).await;
    let wanted = orders(QueueKind::Quorum);
    let saved = apply(&operator, &wanted).await.fingerprint;
    let settled = operator.plan(&wanted, false).await.unwrap().fingerprint;
    assert_ne!(saved, settled, "an apply changes the broker");
    let broker = connect(&vhost.amqp_url).await;
    let extra = Topology::default()
        .queue(Queue::quorum(queue("somebody.elses")))
        .bind(exchange("events"), queue("orders"), BindingKey::new("invoice.#").unwrap())
        .bind(exchange("events"), queue("somebody.elses"), BindingKey::new("#").unwrap());
    broker.declare(&extra).await.unwrap();
    let drifted = operator.plan(&wanted, false).await.unwrap();
    assert!(drifted.is_empty() && drifted.fingerprint != settled, "{drifted:?}");
    let [Step::RemoveBinding { binding }] = &drifted.extra[..] else { panic!("{drifted:?}") };
    assert_eq!(binding.routing_key, "invoice.#");
    let pruned = operator.plan(&wanted, true).await.unwrap();
    operator.apply(&pruned, PATIENCE, &|_| {}).await.unwrap();
    let observed = operator.observe().await.unwrap();
    let left = plan::diff(&wanted, &observed, true);
    assert!(left.is_empty() && left.fingerprint == settled, "{left:?}");
    assert!(observed.queue("somebody.elses").is_some() && observed.bindings.len() == 2);
}
