//! A consumer on PostgreSQL with a cache in front.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use postrider::broker::{Outgoing, Published};
use postrider::consumer::{Consumer, ConsumerStatus};
use postrider::dedup::Accelerator;
use postrider::embedded::EmbeddedBroker;
use postrider::envelope::wire;
use postrider::handler::handler_fn;
use postrider::postgres::Postgres;
use postrider::registry::Registry;
use postrider::settlement::RetryPolicy;
use postrider::sqlite::{Sqlite, SqliteConfig};
use postrider::topology::{ConsumerName, ServiceQueue, Topology};
use postrider::{Broker, Clock, Envelope, Event, Failure, WireFormat};
use postrider_testkit::effects::Effects as _;
use tokio_util::sync::CancellationToken;

pub(super) struct Mail {
    pub(super) store: Postgres,
    pub(super) status: Arc<ConsumerStatus>,
    broker: Arc<dyn Broker>,
    service: ServiceQueue,
    calls: Arc<AtomicUsize>,
    stop: CancellationToken,
    folder: Option<tempfile::TempDir>,
}

impl Mail {
    /// Its queue is in a file, so that the database can be taken away alone.
    pub(super) async fn start(store: Postgres, accelerator: &Accelerator) -> Self {
        let (clock, folder) = (Clock::system(), tempfile::tempdir().unwrap());
        let file =
            Sqlite::open(SqliteConfig::new(folder.path().join("queues.db")), clock.clone()).await.unwrap();
        let broker = Arc::new(EmbeddedBroker::open(file, clock).await.unwrap());
        let mut mail = Self::on(store, broker, accelerator).await;
        mail.folder = Some(folder);
        mail
    }

    /// Its handler writes an effect, and counts its calls.
    pub(super) async fn on(store: Postgres, broker: Arc<dyn Broker>, accelerator: &Accelerator) -> Self {
        store.create_effects().await.unwrap();
        let (effects, calls) = (store.clone(), Arc::new(AtomicUsize::new(0)));
        let counter = calls.clone();
        let handler = handler_fn::<Postgres, _>(move |tx, event| {
            let effects = effects.clone();
            counter.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move {
                effects.insert_effect(tx, "mail", &event.envelope.id).await?;
                Ok::<(), Failure>(())
            })
        });
        let mut mail = Self::with(store, broker, Registry::new().on("#", handler), accelerator).await;
        mail.calls = calls;
        mail
    }

    pub(super) async fn with(
        store: Postgres,
        broker: Arc<dyn Broker>,
        handlers: Registry<Postgres>,
        accelerator: &Accelerator,
    ) -> Self {
        let service = ServiceQueue::new("mail", RetryPolicy::default()).unwrap();
        broker.declare(&Topology::default().service(&service)).await.unwrap();
        let (clock, name) = (Clock::system(), ConsumerName::new("mail").unwrap());
        let consumer = Consumer::new(store.clone(), broker.clone(), clock, name, service.clone(), handlers)
            .accelerated(accelerator);
        let (status, stop) = (consumer.status(), CancellationToken::new());
        tokio::spawn(Arc::new(consumer).run(stop.clone()));
        Self { store, status, broker, service, calls: Arc::default(), stop, folder: None }
    }

    pub(super) fn event(id: &str) -> Envelope {
        Event::new("order.placed").unwrap().id(id).unwrap().into_envelope(&Clock::system())
    }

    pub(super) async fn deliver(&self, envelope: &Envelope) {
        self.deliver_all([envelope]).await;
    }

    pub(super) async fn deliver_all<'a>(&self, envelopes: impl IntoIterator<Item = &'a Envelope>) {
        let message = |envelope| wire::encode(envelope, WireFormat::Envelope, 0);
        let outgoing: Vec<_> = envelopes
            .into_iter()
            .map(|envelope| Outgoing::to_queue(self.service.name(), message(envelope)))
            .collect();
        let answers = self.broker.publish(outgoing).await;
        assert!(answers.iter().all(|answer| *answer == Published::Confirmed), "{answers:?}");
    }

    /// How often the handler was called.
    pub(super) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl Drop for Mail {
    fn drop(&mut self) {
        self.stop.cancel();
        drop(self.folder.take());
    }
}
