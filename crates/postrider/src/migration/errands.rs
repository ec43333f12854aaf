//! What has to be done where the broker is: comparing, and removing the old bus. Asked for as operations, so that any process can ask
//! and one that relays does it; on the embedded default that is the only one which has the broker.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Comparing, Databases, MigrationError, Source, Taken, compare, finish, remove_taps};
use crate::broker::Broker;
use crate::clock::Clock;
use crate::store::{
    Claim, NewOperation, Operation, OperationEnd, OperationKind, Operations, Outbox, OutboxDesk, RelayId,
    StoreError,
};

/// How often an idle process looks for one.
const LOOK: Duration = Duration::from_secs(1);
/// How long an errand belongs to who took it, after he was heard of last: whoever waits for it waits so long after a crash.
const GRACE: Duration = Duration::from_mins(1);
/// How often it is said that somebody is at it, and looked whether it is still wanted.
const RENEWED: Duration = Duration::from_secs(5);

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "errand", rename_all = "snake_case")]
pub enum Errand {
    /// Compare both buses.
    Compare {
        /// Listen for so long, in milliseconds.
        listen_ms: u64,
        /// Or until so many events arrived.
        most_events: usize,
        /// Wait so long for what is still on its way, in milliseconds.
        patience_ms: u64,
    },
    /// Remove the old bus and end the migration.
    Finish {
        /// Whatever stands against it.
        forced: bool,
    },
}

impl Errand {
    /// A comparison.
    pub fn compare(how: &Comparing) -> Self {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self::Compare {
            listen_ms: millis(how.listen),
            most_events: how.most_events,
            patience_ms: millis(how.patience),
        }
    }

    fn kind(self) -> OperationKind {
        match self {
            Self::Compare { .. } => OperationKind::CompareBuses,
            Self::Finish { .. } => OperationKind::FinishMigration,
        }
    }
}

/// Asks for an errand. Returns the id of its operation.
pub async fn ask<S: Operations>(
    store: &S,
    clock: &Clock,
    errand: Errand,
    by: &str,
    reason: Option<&str>,
) -> Result<Uuid, StoreError> {
    let id = clock.new_id();
    let operation = NewOperation {
        id,
        kind: errand.kind(),
        // Made of numbers and flags.
        plan: serde_json::to_value(errand).unwrap_or_default(),
        rate: None,
        created_by: by.to_owned(),
        reason: reason.map(str::to_owned),
    };
    let mut tx = store.begin().await?;
    store.create_operation(&mut tx, &operation).await?;
    store.commit(tx).await?;
    Ok(id)
}

/// Runs errands on a store and a broker. Any number of processes may; each errand is one's at a time.
pub struct Errands<S> {
    store: S,
    sources: Vec<Source<S>>,
    databases: Databases<S>,
    broker: Arc<dyn Broker>,
    clock: Clock,
    runner: String,
}

impl<S: Operations + Outbox + OutboxDesk> Errands<S> {
    /// A runner with a new name. `first` is the outbox in whose database migrations are, `more` are all others that publish to the
    /// broker.
    pub fn new(first: Source<S>, more: Vec<Source<S>>, broker: Arc<dyn Broker>, clock: Clock) -> Self {
        let runner = RelayId::of_process(&clock).to_string();
        let store = first.store.clone();
        let databases = Databases::new(store.clone(), clock.clone()).with(&more);
        let sources = std::iter::once(first).chain(more).collect();
        Self { store, sources, databases, broker, clock, runner }
    }

    /// The databases of all its outboxes.
    pub fn databases(&self) -> &Databases<S> {
        &self.databases
    }

    /// Takes up whatever is asked for, until told to stop.
    pub async fn serve(self, stop: CancellationToken) {
        let any = Claim::AnyOf(vec![OperationKind::CompareBuses, OperationKind::FinishMigration]);
        loop {
            match self.take(&any, &stop).await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => tracing::debug!(%error, "migrations cannot be looked after now; trying again"),
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.clock.sleep(LOOK) => {}
            }
        }
    }

    /// Does this one here, unless somebody else does.
    pub async fn run(&self, id: Uuid) -> Result<bool, StoreError> {
        self.take(&Claim::This(id), &CancellationToken::new()).await
    }

    async fn take(&self, which: &Claim, stop: &CancellationToken) -> Result<bool, StoreError> {
        let Some(operation) = self.store.claim_operation(which, &self.runner, GRACE).await? else {
            return Ok(false);
        };
        let errand: Result<Errand, _> = serde_json::from_value(operation.plan.clone());
        let errand = match errand {
            Ok(errand) => errand,
            Err(error) => {
                let end = OperationEnd::Failed(format!("it cannot be understood: {error}"));
                return self.store.finish_operation(operation.id, &self.runner, end).await;
            }
        };
        let doing = self.keeping(&operation, self.carry_out(errand, &operation));
        let Some(done) = stop.run_until_cancelled(doing).await else {
            // Whoever serves next takes it up.
            self.store.release_operation(operation.id, &self.runner).await?;
            return Ok(false);
        };
        let Some(done) = done else {
            self.clear_up().await;
            return Ok(true);
        };
        let end = match done {
            Ok(()) => OperationEnd::Done,
            Err(error) => OperationEnd::Failed(error.to_string()),
        };
        self.store.finish_operation(operation.id, &self.runner, end).await?;
        Ok(true)
    }

    /// Renews the lease while it works. Nothing if somebody cancelled it meanwhile: the work is dropped then, as by a crash.
    async fn keeping<T>(&self, operation: &Operation, work: impl Future<Output = T>) -> Option<T> {
        let cancelled = async {
            loop {
                self.clock.sleep(RENEWED).await;
                // If it cannot be renewed now, there is time for another try.
                let renewed =
                    self.store.claim_operation(&Claim::This(operation.id), &self.runner, GRACE).await;
                if matches!(renewed, Ok(None)) && self.is_over(operation.id).await {
                    return;
                }
            }
        };
        let (work, cancelled) = (std::pin::pin!(work), std::pin::pin!(cancelled));
        match select(work, cancelled).await {
            Either::Left((done, _)) => Some(done),
            Either::Right(((), _)) => None,
        }
    }

    async fn is_over(&self, id: Uuid) -> bool {
        let found = self.store.operation(id).await;
        found.is_ok_and(|found| found.is_none_or(|operation| operation.state.is_over()))
    }

    /// A comparison that was cancelled leaves its taps behind. If they cannot be removed now, the next comparison does it.
    async fn clear_up(&self) {
        if let Ok(Some(course)) = self.store.course().await {
            let removed = remove_taps(self.broker.as_ref(), &course.definition.name).await;
            if let Err(error) = removed {
                tracing::debug!(%error, "the taps of a comparison that was cancelled are still there");
            }
        }
    }

    async fn carry_out(&self, errand: Errand, operation: &Operation) -> Result<(), MigrationError> {
        match errand {
            Errand::Compare { listen_ms, most_events, patience_ms } => {
                let how = Comparing {
                    listen: Duration::from_millis(listen_ms),
                    most_events,
                    patience: Duration::from_millis(patience_ms),
                };
                compare(&self.sources, &self.broker, &self.clock, &how).await.map(|_| ())
            }
            Errand::Finish { forced } => {
                let step = Taken {
                    by: operation.created_by.clone(),
                    reason: operation.reason.clone().unwrap_or_default(),
                    forced,
                };
                finish(&self.databases, self.broker.as_ref(), &step).await.map(|_| ())
            }
        }
    }
}
