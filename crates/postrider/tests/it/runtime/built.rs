//! How a runtime is put together: what is said of it counts in any order.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use postrider::embedded::EmbeddedBroker;
use postrider::handler::handler_fn;
use postrider::registry::Registry;
use postrider::relay::RelayConfig;
use postrider::runtime::{Runtime, StartError};
use postrider::settlement::RetryPolicy;
use postrider::sqlite::{Sqlite, SqliteConfig};
use postrider::topology::{ExchangeKind, ExchangeName, ServiceQueue};
use postrider::{Clock, Event, Store as _};

/// Whatever is waited for comes within this time, or the test fails.
const LIMIT: Duration = Duration::from_secs(30);

async fn ground(folder: &Path) -> (Sqlite, Arc<EmbeddedBroker>, Clock) {
    let clock = Clock::system();
    let store = Sqlite::open(SqliteConfig::new(folder.join("built.db")), clock.clone()).await.unwrap();
    let broker = Arc::new(EmbeddedBroker::open(store.clone(), clock.clone()).await.unwrap());
    (store, broker, clock)
}

fn exchange() -> ExchangeName {
    ExchangeName::new("events").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_wants_no_relay_gets_none_by_naming_an_exchange() {
    let folder = tempfile::tempdir().unwrap();
    let (store, broker, clock) = ground(folder.path()).await;
    let runtime = Runtime::new(store, broker, clock).relay(None).exchange(exchange(), ExchangeKind::Topic);
    let running = runtime.start().await.unwrap();
    assert!(running.relay().is_none());
    assert!(running.stop(LIMIT).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_consumers_of_one_name_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (store, broker, clock) = ground(folder.path()).await;
    let queue = |name: &str| ServiceQueue::new(name, RetryPolicy::default()).unwrap();
    let runtime = Runtime::new(store, broker, clock)
        .consumer("mail", queue("mail.new"), Registry::new())
        .and_then(|runtime| runtime.consumer("mail", queue("mail.old"), Registry::new()));
    let refused = runtime.unwrap().start().await.err().unwrap();
    assert!(matches!(&refused, StartError::Twice(name) if name.as_str() == "mail"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_with_settings_of_its_own_keeps_the_exchange() {
    for exchange_first in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let (store, broker, clock) = ground(folder.path()).await;
        let queue =
            ServiceQueue::new("mail", RetryPolicy::default()).unwrap().bind(&exchange(), "order.*").unwrap();
        let nothing = handler_fn::<Sqlite, _>(|_tx, _event| Box::pin(async { Ok(()) }));
        let config = Some(RelayConfig { batch_size: 100, ..RelayConfig::default() });
        let runtime = Runtime::new(store.clone(), broker, clock.clone());
        let runtime = if exchange_first {
            runtime.exchange(exchange(), ExchangeKind::Topic).relay(config)
        } else {
            runtime.relay(config).exchange(exchange(), ExchangeKind::Topic)
        };
        let runtime = runtime.consumer("mail", queue, Registry::new().on("#", nothing)).unwrap();
        let running = runtime.start().await.unwrap();
        let mut tx = store.begin().await.unwrap();
        tx.append(vec![Event::new("order.placed").unwrap()]).await.unwrap();
        store.commit(tx).await.unwrap();
        let (start, status) = (clock.monotonic(), running.consumers()[0].status.clone());
        while status.applied() == 0 {
            assert!(clock.since(start) < LIMIT, "it went nowhere; exchange first: {exchange_first}");
            clock.sleep(Duration::from_millis(10)).await;
        }
        assert!(running.stop(LIMIT).await);
    }
}
