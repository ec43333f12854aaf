//! A message broker inside the process, on the file of the SQLite store.
//!
//! It routes, delivers, redelivers, dead-letters and expires as RabbitMQ does, and passes the same suite. A message is
//! confirmed when it is on disk. Which deliveries are unsettled is known in memory only: kill -9 loses nothing, and what
//! was unsettled is delivered again by whoever opens the file next.
//!
//! Two things are kept that RabbitMQ drops: a dead letter whose target reaches no queue, and a message that would go round
//! by expiring alone. Both stay in their queue, undelivered, and are tried again when something is declared.
//!
//! Policies are taken from the topology that is declared: an alternate exchange, a dead-letter target, a delivery limit, how
//! much a queue may hold. The delivery limit counts what comes back from subscriptions that ended, while this process lives, and is not applied where there is
//! no dead-letter target: nothing is dropped.
//!
//! A queue keeps to `x-max-length` and `x-max-length-bytes`, or to the policies of these names, the lower of both: it gives up
//! its oldest (`drop-head`) or refuses new ones (`reject-publish`), exactly at its limit, where a quorum queue of RabbitMQ takes
//! one or a few more before it refuses. Dead letters are never refused.
//!
//! One broker at a time may be open on a file; the lock that `serve` takes sees to it.

mod catalog;
mod codec;
mod death;
mod declared;
mod expiry;
mod fit;
mod overflow;
mod publish;
mod queue;
mod removal;
mod settle;
mod state;
mod subscription;
mod tables;
mod view;

pub use view::EmbeddedView;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;

use crate::broker::{Broker, BrokerError, Outgoing, Published, Removal, Subscription};
use crate::clock::Clock;
use crate::sqlite::Sqlite;
use crate::topology::{Binding, QueueName, Topology};
use catalog::{Catalog, Lacking, QueueId, no_queue};
use queue::QueueState;
use state::{Shared, State, from_store, try_stranded};
use subscription::EmbeddedSubscription;

/// The embedded broker. Cheap to clone; it stops when the last clone and the last subscription are gone.
#[derive(Clone)]
pub struct EmbeddedBroker {
    shared: Arc<Shared>,
}

impl EmbeddedBroker {
    /// Opens the broker of a file: what was declared and what waits there is here again.
    pub async fn open(store: Sqlite, clock: Clock) -> Result<Self, BrokerError> {
        let declared = declared::read(store.readers()).await.map_err(from_store)?;
        let last_row = tables::last_row(store.readers()).await.map_err(from_store)?;
        let settings = declared.topology.queues.clone();
        let mut queues: BTreeMap<_, _> = declared
            .queues
            .iter()
            .zip(settings)
            .map(|((id, last), settings)| (*id, QueueState::new(settings, *last)))
            .collect();
        for (id, queue) in queues.iter_mut().filter(|(_, queue)| queue.settings.is_limited()) {
            let load = tables::load(store.readers(), *id, 0).await.map_err(from_store)?;
            queue.counted(load, queue.last);
        }
        let mut catalog = Catalog::default();
        catalog.add(declared.topology, declared.queues.into_iter().map(|(id, _)| id));
        let shared = Shared::new(
            store,
            clock,
            State { closed: false, catalog, queues, last_row, next_look: i64::MAX },
        );
        shared.spawn(expiry::run(Arc::downgrade(&shared)));
        {
            let mut state = shared.lock();
            let queues: Vec<_> = state.queues.keys().copied().collect();
            for id in queues {
                shared.stir(&mut state, id);
            }
        }
        Ok(Self { shared })
    }

    /// Whether a message's time is up, or it was settled or pushed out, and it has not been moved on yet.
    pub(crate) fn has_work(&self) -> bool {
        let now = self.shared.now();
        let is_due = |queue: &QueueState| queue.next_due().is_some_and(|due| due <= now);
        self.shared.lock().queues.values().any(|queue| is_due(queue) || queue.is_moving())
    }
}

#[async_trait]
impl Broker for EmbeddedBroker {
    async fn declare(&self, topology: &Topology) -> Result<(), BrokerError> {
        self.shared.run(declare(self.shared.clone(), topology.clone())).await
    }

    async fn publish(&self, batch: Vec<Outgoing>) -> Vec<Published> {
        publish::publish(&self.shared, batch).await
    }

    async fn subscribe(
        &self,
        queue: &QueueName,
        prefetch: u16,
    ) -> Result<Box<dyn Subscription>, BrokerError> {
        Ok(Box::new(EmbeddedSubscription::start(&self.shared, queue, prefetch)?))
    }

    async fn depth(&self, queue: &QueueName) -> Result<u64, BrokerError> {
        let id = self.shared.open()?.catalog.id(queue).ok_or_else(|| no_queue(queue))?;
        let all = tables::count(self.shared.store.readers(), id).await.map_err(from_store)?;
        let unsettled = self.shared.lock().queues.get(&id).map_or(0, QueueState::unsettled);
        Ok(all.saturating_sub(u64::try_from(unsettled).unwrap_or(u64::MAX)))
    }

    async fn unsettled(&self, queue: &QueueName) -> Result<u64, BrokerError> {
        let id = self.shared.open()?.catalog.id(queue).ok_or_else(|| no_queue(queue))?;
        let unsettled = self.shared.lock().queues.get(&id).map_or(0, QueueState::unsettled);
        Ok(u64::try_from(unsettled).unwrap_or(u64::MAX))
    }

    async fn is_attended(&self, queue: &QueueName) -> Result<Option<bool>, BrokerError> {
        let id = self.shared.open()?.catalog.id(queue).ok_or_else(|| no_queue(queue))?;
        Ok(Some(self.shared.lock().queues.get(&id).is_some_and(QueueState::is_consumed)))
    }

    async fn remove(&self, removal: &Removal) -> Result<(), BrokerError> {
        self.shared.run(removal::remove(self.shared.clone(), removal.clone())).await
    }

    async fn unbind(&self, bindings: &[Binding]) -> Result<(), BrokerError> {
        self.shared.run(removal::unbind(self.shared.clone(), bindings.to_vec())).await
    }

    async fn ping(&self) -> Result<(), BrokerError> {
        drop(self.shared.open()?);
        tables::ping(self.shared.store.readers()).await.map_err(from_store)
    }

    /// Waits until everything under way is on disk.
    async fn close(&self) {
        {
            let mut state = self.shared.lock();
            state.closed = true;
            state.queues.values_mut().for_each(QueueState::leave_all);
        }
        self.shared.stop.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

/// Adds what is missing and sets the policies that are said, in one transaction.
async fn declare(shared: Arc<Shared>, wanted: Topology) -> Result<(), BrokerError> {
    let _one_at_a_time = shared.declaring.lock().await;
    let (lacking, numbers) = {
        let state = shared.open()?;
        let lacking = state.catalog.lacks(&wanted)?;
        let last = state.queues.keys().next_back().map_or(0, |id| id.0);
        let numbers: Vec<_> = (last + 1..).map(QueueId).take(lacking.added.queues.len()).collect();
        (lacking, numbers)
    };
    if lacking != Lacking::default() {
        let (lacking, ids) = (lacking.clone(), numbers.clone());
        let write = shared
            .store
            .writer()
            .run(move |conn| Box::pin(async move { declared::write(conn, &lacking, &ids).await }));
        write.await.map_err(from_store)?;
    }
    for id in take_up(&shared, lacking, numbers) {
        overflow::take_stock(&shared, id).await?;
    }
    Ok(())
}

/// What was written is so in memory too. Answers with the queues whose policy has changed and limits what they may hold.
fn take_up(shared: &Arc<Shared>, lacking: Lacking, numbers: Vec<QueueId>) -> Vec<QueueId> {
    let mut state = shared.lock();
    let Lacking { added, exchange_policies, queue_policies } = lacking;
    for (queue, id) in added.queues.iter().zip(&numbers) {
        state.queues.insert(*id, QueueState::new(queue.clone(), 0));
    }
    let mut limited = Vec::new();
    for (name, policy) in &queue_policies {
        if let Some((id, queue)) = state.queues.iter_mut().find(|(_, queue)| queue.settings.name == *name) {
            queue.settings.policy = policy.clone();
            limited.extend(queue.settings.is_limited().then_some(*id));
        }
    }
    state.catalog.change(exchange_policies, &queue_policies);
    state.catalog.add(added, numbers);
    for (id, queue) in &state.queues {
        if !queue.stranded.is_empty() {
            shared.spawn(try_stranded(shared.clone(), *id, queue.stranded.iter().copied().collect()));
        }
    }
    limited
}
