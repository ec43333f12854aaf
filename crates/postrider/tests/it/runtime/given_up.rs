//! Dead letters that RabbitMQ makes by itself.

use std::time::Duration;

use postrider::broker::{Message, Outgoing, Published, Verdict};
use postrider::runtime::Runtime;
use postrider::settlement::RetryPolicy;
use postrider::store::LetterFilter;
use postrider::topology::{Argument, ServiceQueue, Topology};
use postrider_testkit::servers::{RabbitVersion, shared};

use super::stage::Stage;
use super::triage::letters;

postrider_testkit::on_each_rabbitmq!(what_the_broker_itself_gave_up_is_collected);

async fn what_the_broker_itself_gave_up_is_collected(version: RabbitVersion) {
    let shared = shared().unwrap();
    let (database, vhost) = (shared.database().await.unwrap(), shared.vhost_on(version).await.unwrap());
    let stage = Stage::servers(&database.url, &vhost.amqp_url).await;
    let with = |name: &str, arguments: &[(&str, Argument)]| {
        let mut service = ServiceQueue::new(name, RetryPolicy::default()).unwrap();
        service
            .queue
            .arguments
            .extend(arguments.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
        service
    };
    let tired = with("tired", &[("x-delivery-limit", Argument::Int(1))]);
    let small = with("small", &[("x-max-length", Argument::Int(1)), ("x-overflow", "drop-head".into())]);
    let running = Runtime::new(stage.store.clone(), stage.broker.clone(), stage.clock.clone())
        .topology(Topology::default().service(&tired).service(&small))
        .collect(tired.clone())
        .collect(small.clone())
        .start()
        .await
        .unwrap();
    let put = async |service: &ServiceQueue, id: &str| {
        let mut message = Message { body: "{}".into(), ..Message::default() };
        message.properties.message_id = Some(id.to_owned());
        message.properties.kind = Some("order.placed".to_owned());
        let sent = stage.broker.publish(vec![Outgoing::to_queue(service.name(), message)]).await;
        assert_eq!(sent, [Published::Confirmed]);
    };
    put(&small, "pushed out").await;
    put(&small, "stays").await;
    put(&tired, "given back").await;
    let mut subscription = stage.broker.subscribe(tired.name(), 10).await.unwrap();
    for _ in 0..2 {
        let delivery = subscription.next(1).await.unwrap().remove(0);
        subscription.settler().settle(vec![(delivery.receipt, Verdict::Requeue)]).await.unwrap();
    }
    let found = letters(&stage, LetterFilter::open(), 2).await;
    let by_queue = |queue: &str| {
        let letter = found.iter().find(|letter| letter.queue == queue).unwrap();
        (letter.reason.as_str(), letter.event_id.as_deref())
    };
    assert_eq!(by_queue("small"), ("maxlen", Some("pushed out")));
    assert_eq!(by_queue("tired"), ("delivery_limit", Some("given back")));
    running.stop(Duration::from_secs(10)).await;
}
