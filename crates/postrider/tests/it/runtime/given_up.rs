//! Dead letters that the broker makes by itself, and those of consumers that are not ours.

use std::time::Duration;

use postrider::broker::{Message, Outgoing, Published, Verdict};
use postrider::runtime::Runtime;
use postrider::settlement::RetryPolicy;
use postrider::store::LetterFilter;
use postrider::topology::{Argument, DeliveryLimit, ServiceQueue, Topology};
use postrider_testkit::effects::Effects;

use super::stage::Stage;
use super::triage::letters;

fn service(name: &str, arguments: &[(&str, Argument)]) -> ServiceQueue {
    let mut service = ServiceQueue::new(name, RetryPolicy::default()).unwrap();
    let arguments = arguments.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
    service.queue.arguments.extend(arguments);
    service
}

pub(super) async fn what_the_broker_itself_gave_up_is_collected<S: Effects>(stage: Stage<S>) {
    // RabbitMQ is told by an argument, because nobody sets policies here; the embedded broker takes the policy.
    let mut tired = service("tired", &[("x-delivery-limit", Argument::Int(1))]);
    tired.queue.policy.delivery_limit = Some(DeliveryLimit::Times(1));
    let small = service("small", &[("x-max-length", Argument::Int(1)), ("x-overflow", "drop-head".into())]);
    let mut late = service("late", &[]);
    late.queue.message_ttl = Some(Duration::from_millis(50));
    let refused = service("refused", &[]);
    let all = [&tired, &small, &late, &refused];
    let topology = all.iter().fold(Topology::default(), |topology, service| topology.service(service));
    let runtime =
        Runtime::new(stage.store.clone(), stage.broker.clone(), stage.clock.clone()).topology(topology);
    let runtime = all.iter().fold(runtime, |runtime, service| runtime.collect((*service).clone()));
    let running = runtime.start().await.unwrap();
    let put = async |service: &ServiceQueue, id: &str| {
        let mut message = Message { body: "{}".into(), ..Message::default() };
        message.properties.message_id = Some(id.to_owned());
        message.properties.kind = Some("order.placed".to_owned());
        let sent = stage.broker.publish(vec![Outgoing::to_queue(service.name(), message)]).await;
        assert_eq!(sent, [Published::Confirmed]);
    };
    put(&late, "too late").await;
    put(&small, "pushed out").await;
    put(&small, "stays").await;
    put(&refused, "no thanks").await;
    let mut subscription = stage.broker.subscribe(refused.name(), 10).await.unwrap();
    let delivery = subscription.next(1).await.unwrap().remove(0);
    subscription.settler().settle(vec![(delivery.receipt, Verdict::Reject)]).await.unwrap();
    put(&tired, "given back").await;
    for _ in 0..2 {
        // Whoever has it is lost.
        let mut subscription = stage.broker.subscribe(tired.name(), 10).await.unwrap();
        subscription.next(1).await.unwrap();
    }
    let found = letters(&stage, LetterFilter::open(), 4).await;
    let by_queue = |queue: &str| {
        let letter = found.iter().find(|letter| letter.queue == queue).unwrap();
        (letter.reason.as_str(), letter.event_id.as_deref())
    };
    assert_eq!(by_queue("small"), ("maxlen", Some("pushed out")));
    assert_eq!(by_queue("tired"), ("delivery_limit", Some("given back")));
    assert_eq!(by_queue("late"), ("expired", Some("too late")));
    assert_eq!(by_queue("refused"), ("foreign_rejected", Some("no thanks")));
    running.stop(Duration::from_secs(10)).await;
}

/// The broker's times are whole seconds, and many die in one of them.
pub(super) async fn what_others_rejected_in_one_moment_keeps_its_order<S: Effects>(stage: Stage<S>) {
    let refused = service("refused", &[]);
    let running = Runtime::new(stage.store.clone(), stage.broker.clone(), stage.clock.clone())
        .topology(Topology::default().service(&refused))
        .collect(refused.clone())
        .start()
        .await
        .unwrap();
    let ids: Vec<String> = (0..40).map(|number| format!("evt_{number}")).collect();
    let messages = ids.iter().map(|id| {
        let mut message = Message { body: "{}".into(), ..Message::default() };
        message.properties.message_id = Some(id.clone());
        message.properties.kind = Some("order.placed".to_owned());
        Outgoing::to_queue(refused.name(), message)
    });
    let sent = stage.broker.publish(messages.collect()).await;
    assert!(sent.iter().all(|answer| *answer == Published::Confirmed), "{sent:?}");
    let mut subscription = stage.broker.subscribe(refused.name(), 40).await.unwrap();
    for _ in &ids {
        let delivery = subscription.next(1).await.unwrap().remove(0);
        subscription.settler().settle(vec![(delivery.receipt, Verdict::Reject)]).await.unwrap();
    }
    letters(&stage, LetterFilter::open(), 40).await;
    let mut found = Vec::new();
    for id in stage.store.foremost(&LetterFilter::open(), 40).await.unwrap() {
        found.extend(stage.store.letter(id).await.unwrap().unwrap().summary.event_id);
    }
    assert_eq!(found, ids);
    running.stop(Duration::from_secs(10)).await;
}
