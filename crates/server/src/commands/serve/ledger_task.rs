//! The ledger as a task of `serve`: a queue's events become journal entries, or dead letters that say why not.
//!
//! It subscribes as often as the queue's concurrency says and posts what all of them take together. A crash posts nothing twice and
//! loses nothing: what was not acked is delivered again, and the books know what they have.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use postrider::Clock;
use postrider::broker::Broker;
use postrider::consumer::{note_store, obey};
use postrider::dedup::Accelerator;
use postrider::envelope::TenantId;
use postrider::envelope::wire::Identity;
use postrider::topology::{ConsumerName, Consuming, ServiceQueue};
use postrider_ledger::Ledger;
use postrider_ledger::intake::{Intake, Sight};
use postrider_ledger::sequencer::Sequencer;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::checkpoint_task::Signing;
use crate::at_work::{AtWork, Feeds};
use crate::commands::Context;
use crate::config::{Config, ledger_consumer};
use crate::exit::usage;
use crate::wiring::{self, WholeStore};

/// What the seed's document says, where a queue says nothing.
const PREFETCH: u16 = 250;
const SUBSCRIPTIONS: u16 = 10;
/// The pause after a subscription ended.
const PAUSE: Duration = Duration::from_secs(1);
/// How often it looks whether somebody paused it, as every consumer does.
const OBEYS: Duration = Duration::from_secs(1);

/// A ledger that is ready to be fed.
pub(super) struct LedgerTask<S> {
    store: S,
    ledger: Ledger<S>,
    signing: Option<Signing<S>>,
    service: ServiceQueue,
    name: ConsumerName,
    tenant: Option<TenantId>,
    consuming: Consuming,
    tenants_at_once: usize,
    clock: Clock,
}

/// A ledger at work.
pub(super) struct Feeding<S> {
    sequencer: Sequencer<S>,
    tasks: TaskTracker,
}

impl<S: WholeStore> LedgerTask<S> {
    /// Checks that there is a queue to take events from, and an outbox to tell of entries.
    pub(super) async fn prepare(store: &S, context: &Context) -> anyhow::Result<Self> {
        let (config, clock) = (&context.config, context.clock.clone());
        let settings = &config.settings.ledger;
        let service = queue(config)?;
        let ledger = wiring::ledger(store, config, &clock)?;
        let no_table = || {
            format!(
                "ledger.outbox is {:?}; run `postrider db migrate` if it is not there yet",
                settings.outbox
            )
        };
        ledger.books().backlog().await.with_context(no_table)?;
        Ok(Self {
            consuming: config.own.layout.consuming.get(service.name()).copied().unwrap_or_default(),
            tenant: settings.tenant()?,
            tenants_at_once: settings.tenants_at_once,
            name: ledger_consumer()?,
            store: store.clone(),
            signing: Signing::prepare(&ledger, context),
            ledger,
            service,
            clock,
        })
    }

    /// Takes events until `stop`. The queue has to be declared, and the consumer registered.
    pub(super) async fn start(
        self,
        broker: &Arc<dyn Broker>,
        accelerator: Option<&Accelerator>,
        at_work: &AtWork,
        stop: &CancellationToken,
    ) -> Feeding<S> {
        // What loads the database is not how many subscriptions there are but how many batches are posted at once.
        let most = self.consuming.max_concurrency.map_or(usize::MAX, usize::from);
        let at_once = self.tenants_at_once.min(most).max(1);
        let sequencer = Sequencer::new(self.ledger.clone(), at_once, stop.clone());
        let books = self.ledger.books();
        let sight =
            accelerator.map(|redis| Sight::new(redis, books.clone(), self.clock.clone(), self.name.clone()));
        let subscriptions = self.consuming.concurrency.unwrap_or(SUBSCRIPTIONS).max(1);
        tracing::info!(
            queue = %self.service.name(),
            subscriptions,
            tenants_at_once = at_once,
            "the ledger takes events"
        );
        let intake = Arc::new(Intake {
            sequencer: sequencer.clone(),
            broker: broker.clone(),
            service: self.service,
            name: self.name,
            tenant: self.tenant,
            prefetch: self.consuming.prefetch.unwrap_or(PREFETCH),
            sight,
            clock: self.clock,
            status: Arc::default(),
        });
        at_work.note_ledger(Feeds::Here(intake.status.clone()));
        at_work.note_consumer(&intake.name, intake.service.name(), intake.status.standing());
        let tasks = TaskTracker::new();
        // Before the first delivery: one that was paused takes nothing.
        let _answered = obey(&self.store, &intake.name, intake.status.standing()).await;
        tasks.spawn(stop.clone().run_until_cancelled_owned(obeys(self.store, intake.clone())));
        for _ in 0..subscriptions {
            tasks.spawn(take(intake.clone(), stop.clone()));
        }
        if let Some(signing) = self.signing {
            tasks.spawn(signing.run(stop.clone()));
        }
        tasks.close();
        Feeding { sequencer, tasks }
    }
}

impl<S: WholeStore> Feeding<S> {
    /// Waits until what was taken is posted and settled. Call it after the stop.
    pub(super) async fn finished(self) {
        self.sequencer.finish().await;
        self.tasks.wait().await;
    }
}

/// Looks now and then whether somebody paused it, and whether the store answers at all.
async fn obeys<S: WholeStore>(store: S, intake: Arc<Intake<S>>) {
    let standing = intake.status.standing();
    loop {
        intake.clock.sleep(OBEYS).await;
        let answered = obey(&store, &intake.name, standing).await;
        note_store(&intake.name, standing, !answered);
    }
}

/// One subscription, taken up again whenever it ends.
async fn take<S: WholeStore>(intake: Arc<Intake<S>>, stop: CancellationToken) {
    while let Err(error) = intake.clone().run(stop.clone()).await {
        if stop.is_cancelled() {
            return;
        }
        tracing::warn!(queue = %intake.service.name(), %error, "the ledger's subscription ended; it is taken up again");
        tokio::select! {
            () = stop.cancelled() => return,
            () = intake.clock.sleep(PAUSE) => {}
        }
    }
}

/// The queue that is named, or the intake queue of the preset `fis`.
pub(super) fn queue(config: &Config) -> anyhow::Result<ServiceQueue> {
    let (services, named) = (&config.own.layout.services, &config.settings.ledger.queue);
    let wanted = |service: &&ServiceQueue| match named.as_str() {
        "" => service.identity == Identity::fis(),
        name => service.name().as_str() == name,
    };
    services.iter().find(wanted).cloned().ok_or_else(|| {
        usage("no queue feeds the ledger; set ledger.queue to a [[queue]] of yours, or topology.preset = \"fis\"")
    })
}
