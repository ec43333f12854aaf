//! Signs checkpoints of the ledger's chains while it is served, every so often.
//!
//! Each is told of through the outbox, so that a root stands outside of the database soon after its entries. Two processes may both
//! do this: the lock on a tenant's books keeps them from signing the same entries. A crash leaves them to the next turn.

use std::time::Duration;

use postrider::Clock;
use postrider::envelope::TenantId;
use postrider::store::StoreError;
use postrider_ledger::checkpoint::Key;
use postrider_ledger::{Ledger, LedgerError};
use tokio_util::sync::CancellationToken;

use crate::commands::Context;
use crate::signing_key;
use crate::wiring::WholeStore;

/// A ledger, the key that signs for it, and how often.
pub(super) struct Signing<S> {
    ledger: Ledger<S>,
    key: Key,
    every: Duration,
    clock: Clock,
}

impl<S: WholeStore> Signing<S> {
    /// Nothing if checkpoints are left to people, or if there is no key and none can be made: entries are posted without them.
    pub(super) fn prepare(ledger: &Ledger<S>, context: &Context) -> Option<Self> {
        let settings = &context.config.settings.ledger;
        let every = settings.checkpoint_every()?;
        match signing_key::load_or_make(&settings.signing_key_file, &context.clock) {
            Ok((key, _)) => Some(Self { ledger: ledger.clone(), key, every, clock: context.clock.clone() }),
            Err(error) => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "no checkpoints are signed; set ledger.signing_key_file"
                );
                None
            }
        }
    }

    /// Signs what is new at once and at every turn: a process that is started again more often than it is its turn signs too.
    pub(super) async fn run(self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            if let Err(error) = self.turn(&stop).await {
                tracing::warn!(%error, "checkpoints are late; the next turn signs them");
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.clock.sleep(self.every) => {}
            }
        }
    }

    /// Books that somebody has locked, or that cannot be read, keep those of nobody else from being signed.
    async fn turn(&self, stop: &CancellationToken) -> Result<(), StoreError> {
        for tenant in self.ledger.books().tenants().await? {
            if let Err(error) = self.sign(&tenant, stop).await {
                tracing::warn!(%tenant, %error, "checkpoints are late; the next turn signs them");
                // Without a database there is nothing to be done for the others either.
                self.ledger.books().tenants().await?;
            }
        }
        Ok(())
    }

    async fn sign(&self, tenant: &TenantId, stop: &CancellationToken) -> Result<(), LedgerError> {
        while !stop.is_cancelled() && self.is_behind(tenant).await? {
            let Some(signed) = self.ledger.checkpoint(tenant, &self.key).await? else { break };
            tracing::info!(%tenant, first = signed.first, last = signed.last, "signed a checkpoint");
        }
        Ok(())
    }

    /// Asked without a lock, so that books at rest cost their writers nothing.
    async fn is_behind(&self, tenant: &TenantId) -> Result<bool, LedgerError> {
        let signed = self.ledger.books().checkpoints(tenant).await?.last().map_or(0, |newest| newest.last);
        Ok(self.ledger.books().head(tenant).await?.is_some_and(|head| head.number > signed))
    }
}
