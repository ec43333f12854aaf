//! Two queues, one inbox: the same event by an old way and by a new one takes effect once, whatever it looks like there.

use std::sync::Arc;
use std::time::Duration;

use postrider::broker::{Message, Outgoing};
use postrider::consumer::ConsumerConfig;
use postrider::embedded::EmbeddedBroker;
use postrider::envelope::wire::Place;
use postrider::handler::handler_fn;
use postrider::registry::Registry;
use postrider::runtime::Runtime;
use postrider::settlement::RetryPolicy;
use postrider::sqlite::{Sqlite, SqliteConfig};
use postrider::store::{DeadLetters, Outbox, Store};
use postrider::topology::{ConsumerName, ExchangeKind, ExchangeName, RoutingKey, ServiceQueue, Topology};
use postrider::{Broker, Clock, Event};
use postrider_testkit::effects::Effects;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn an_event_handled_by_the_old_queue_is_not_handled_again_by_the_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Clock::system();
    let store = Sqlite::open(SqliteConfig::new(folder.path().join("mail.db")), clock.clone()).await.unwrap();
    store.create_effects().await.unwrap();
    let broker: Arc<dyn Broker> = Arc::new(EmbeddedBroker::open(store.clone(), clock.clone()).await.unwrap());
    let (events, legacy) = (ExchangeName::new("events").unwrap(), ExchangeName::new("legacy").unwrap());
    let retry = || RetryPolicy::fixed(3, Duration::from_millis(50));
    let new = ServiceQueue::new("mail.new", retry()).unwrap().bind(&events, "email.#").unwrap();
    let mut old = ServiceQueue::new("mail.old", retry()).unwrap().bind(&legacy, "").unwrap();
    // The old service writes neither headers nor properties: its messages have their id in the body.
    old.identity.event_id = vec![Place::parse("/message_id")];

    let mut runtime = Runtime::new(store.clone(), broker.clone(), clock.clone())
        .exchange(events, ExchangeKind::Topic)
        .topology(Topology::default().exchange(legacy.clone(), ExchangeKind::Fanout));
    for (name, service) in [("mail-new", new), ("mail-old", old)] {
        let effects = store.clone();
        let send = handler_fn::<Sqlite, _>(move |tx, event| {
            let effects = effects.clone();
            Box::pin(async move {
                effects.insert_effect(tx, event.consumer.as_str(), &event.envelope.id).await?;
                Ok(())
            })
        });
        let config =
            ConsumerConfig { inbox: Some(ConsumerName::new("mail").unwrap()), ..ConsumerConfig::default() };
        let handlers = Registry::new().on("#", send);
        runtime = runtime.consumer_with(ConsumerName::new(name).unwrap(), service, handlers, config);
    }
    let running = runtime.start().await.unwrap();
    let duplicates = |consumer: usize| running.consumers()[consumer].status.duplicates();
    let until = async |so: &dyn Fn() -> bool| {
        for _ in 0..1200 {
            if so() {
                return;
            }
            clock.sleep(Duration::from_millis(50)).await;
        }
        panic!("it did not come");
    };

    let by_hand = async |id: &str| {
        let body = json!({ "message_id": id, "to": "ann@example.com" }).to_string().into();
        let message = Message { body, ..Message::default() };
        let routing_key = RoutingKey::new("email.requested").unwrap();
        let outgoing = Outgoing { exchange: legacy.clone(), routing_key, message };
        broker.publish(vec![outgoing]).await;
    };
    let by_outbox = async |id: &str| {
        let event = Event::new("email.requested").unwrap().id(id).unwrap();
        let event = event.json(&json!({ "data": { "email": "ann@example.com" } })).unwrap();
        let mut tx = store.begin().await.unwrap();
        store.append(&mut tx, vec![event]).await.unwrap();
        store.commit(tx).await.unwrap();
    };
    by_hand("one").await;
    until(&|| running.consumers()[1].status.applied() == 1).await;
    by_outbox("one").await;
    until(&|| duplicates(0) == 1).await;
    by_outbox("two").await;
    until(&|| running.consumers()[0].status.applied() == 1).await;
    by_hand("two").await;
    until(&|| duplicates(1) == 1).await;

    let mut effects = store.effects().await.unwrap();
    effects.sort();
    let effects: Vec<_> = effects.iter().map(|(consumer, id)| (consumer.as_str(), id.as_str())).collect();
    assert_eq!(effects, [("mail-new", "two"), ("mail-old", "one")]);
    // The account knows under which name the marks are.
    let account = running.accounts().await.unwrap().remove(0);
    assert_eq!((account.committed, account.applied, account.unaccounted), (2, 2, 0), "{account:?}");
    assert!(store.dead_letters(10).await.unwrap().is_empty(), "another body is no conflict here");
    running.stop(Duration::from_secs(10)).await;
}
