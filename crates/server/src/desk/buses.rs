//! Migrations between buses: where each stands, and its steps. What needs the broker is an operation, named by its id.

use async_trait::async_trait;
use postrider::broker::BrokerErrorKind;
use postrider::migration::{
    self, Comparing, Databases, Definition, Errand, MigrationName, Phase, Standing, Taken,
};
use uuid::Uuid;

use super::{Answer, StoreDesk};
use crate::api::{Code, Problem};
use crate::outboxes;
use crate::wiring::WholeStore;

#[async_trait]
pub(crate) trait Buses {
    /// The migration of the configuration, which can be started.
    fn configured(&self) -> Option<&Definition>;
    /// Every migration, the newest first.
    async fn migrations(&self) -> Answer<Vec<Standing>>;
    /// One of them.
    async fn migration(&self, name: &MigrationName) -> Answer<Standing>;
    /// Begins the one of the configuration.
    async fn start_migration(&self, step: &Taken) -> Answer<Standing>;
    /// Publishes to the new bus alone; refused while parity is not proven, unless forced.
    async fn cut_over(&self, name: &MigrationName, step: &Taken) -> Answer<Standing>;
    /// Publishes to both buses again.
    async fn roll_back(&self, name: &MigrationName, step: &Taken) -> Answer<Standing>;
    /// Asks a process that relays to compare both buses.
    async fn compare_buses(&self, name: &MigrationName, how: &Comparing, step: &Taken) -> Answer<Uuid>;
    /// Asks one to remove the old bus.
    async fn finish_migration(&self, name: &MigrationName, step: &Taken) -> Answer<Uuid>;
}

#[async_trait]
impl<S: WholeStore> Buses for StoreDesk<S> {
    fn configured(&self) -> Option<&Definition> {
        self.config.migration.as_ref()
    }

    async fn migrations(&self) -> Answer<Vec<Standing>> {
        Ok(self.databases().standings().await?)
    }

    async fn migration(&self, name: &MigrationName) -> Answer<Standing> {
        found(self.migrations().await?, name)
    }

    async fn start_migration(&self, step: &Taken) -> Answer<Standing> {
        let Some(definition) = self.configured() else {
            let told = "the configuration names no old exchange; set migration.legacy_exchange";
            return Err(Problem::new(Code::InvalidRequest, told));
        };
        // Copies for a queue that is not there would only wait.
        if let Some(queue) = &definition.legacy.queue
            && let Err(error) = self.broker.depth(queue).await
        {
            let code = match error.kind {
                BrokerErrorKind::NotFound => Code::InvalidRequest,
                _ => Code::BrokerUnavailable,
            };
            return Err(Problem::new(code, format!("{error}; nothing was changed")));
        }
        migration::start(&self.databases(), definition, step).await?;
        self.migration(&definition.name).await
    }

    async fn cut_over(&self, name: &MigrationName, step: &Taken) -> Answer<Standing> {
        self.runs(name).await?;
        migration::cut_over(&self.databases(), step).await?;
        self.migration(name).await
    }

    async fn roll_back(&self, name: &MigrationName, step: &Taken) -> Answer<Standing> {
        self.runs(name).await?;
        migration::roll_back(&self.databases(), step).await?;
        self.migration(name).await
    }

    async fn compare_buses(&self, name: &MigrationName, how: &Comparing, step: &Taken) -> Answer<Uuid> {
        self.runs(name).await?;
        self.ask(Errand::compare(how), step).await
    }

    async fn finish_migration(&self, name: &MigrationName, step: &Taken) -> Answer<Uuid> {
        self.runs(name).await?;
        self.ask(Errand::Finish { forced: step.forced }, step).await
    }
}

impl<S: WholeStore> StoreDesk<S> {
    fn databases(&self) -> Databases<S> {
        outboxes::buses(&self.store, &self.outboxes, &self.clock)
    }

    /// Steps are taken by the one that is not finished.
    async fn runs(&self, name: &MigrationName) -> Answer<()> {
        let all = self.store.migrations_of_buses().await?;
        if found(all, name)?.phase == Phase::Finished {
            return Err(Problem::new(Code::Conflict, format!("the migration {name} is finished")));
        }
        Ok(())
    }

    async fn ask(&self, errand: Errand, step: &Taken) -> Answer<Uuid> {
        let reason = Some(step.reason.as_str()).filter(|reason| !reason.is_empty());
        Ok(migration::ask(&self.store, &self.clock, errand, &step.by, reason).await?)
    }
}

fn found(all: Vec<Standing>, name: &MigrationName) -> Answer<Standing> {
    let found = all.into_iter().find(|standing| standing.definition.name == *name);
    found.ok_or_else(|| Problem::new(Code::NotFound, format!("no migration {name} was ever started")))
}
