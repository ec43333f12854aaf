//! What every store must remember of consumers: the newest of each name, whole.

use std::time::Duration;

use jiff::Timestamp;
use postrider::settlement::RetryPolicy;
use postrider::store::{AppliedIn, MadeIn, Registration, Registrations};
use postrider::topology::{ConsumerName, ExchangeKind, QueueKind, ServiceQueue, Topology};

use super::broker::exchange;
use super::store::StoreFixture;

fn registration(name: &str, queue: &str) -> Registration {
    let shop = exchange("shop");
    let retry = RetryPolicy::ladder(3, [300, 60_000].map(Duration::from_millis)).jitter(10);
    let mut service = ServiceQueue::new(queue, retry).unwrap().bind(&shop, "order.#").unwrap();
    service.queue.single_active_consumer = true;
    let service = service.kind(QueueKind::Classic);
    let mut topology = Topology::default().exchange(shop.clone(), ExchangeKind::Topic).service(&service);
    topology.exchanges[0].alternate = Some(exchange("größe"));
    let name = ConsumerName::new(name).unwrap();
    Registration {
        name,
        inbox: None,
        applied_in: AppliedIn::Inbox,
        service,
        topology,
        exchange: shop,
        since: Some(Timestamp::UNIX_EPOCH),
        push: Some(MadeIn::Store),
    }
}

/// To the last delay of the ladder.
pub async fn registrations_come_back_by_name<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    assert!(store.registrations().await.unwrap().is_empty());
    store.register(Vec::new()).await.unwrap();
    store.register(vec![registration("mail", "mail"), registration("größe", "größe")]).await.unwrap();
    store.register(vec![registration("ledger", "ledger")]).await.unwrap();
    let expected = [("größe", "größe"), ("ledger", "ledger"), ("mail", "mail")];
    assert_eq!(store.registrations().await.unwrap(), expected.map(|(name, queue)| registration(name, queue)));
}

/// Whatever the one before said, in one batch or in two.
pub async fn the_newest_registration_of_a_name_counts<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    store.register(vec![registration("mail", "mail.v1")]).await.unwrap();
    store.register(vec![registration("mail", "mail.v2")]).await.unwrap();
    assert_eq!(store.registrations().await.unwrap(), [registration("mail", "mail.v2")]);
    store.register(vec![registration("mail", "mail.v3"), registration("mail", "mail.v4")]).await.unwrap();
    assert_eq!(store.registrations().await.unwrap(), [registration("mail", "mail.v4")]);
}
