//! One attempt at one delivery: read it, admit it, handle it, commit.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio_util::sync::CancellationToken;

use super::Consumer;
use crate::broker::{Delivery, HeaderValue};
use crate::envelope::{Envelope, wire};
use crate::handler::{Failure, Incoming};
use crate::registry::ErasedHandler;
use crate::settlement::Outcome;
use crate::store::{Admission, Arrival, Inbox, StoreError};

/// What an attempt learned.
pub(super) struct Attempted {
    /// Which attempt it was, counted from 1.
    pub(super) attempt: u32,
    /// What became of it.
    pub(super) outcome: Outcome,
    /// The event, if the message was one.
    pub(super) envelope: Option<Envelope>,
}

impl<S: Inbox> Consumer<S> {
    /// Attempts a delivery. While the store is away it waits: an outage costs no event an attempt. Nothing when it was
    /// told to stop while waiting.
    pub(super) async fn attempt(&self, delivery: &Delivery, stop: &CancellationToken) -> Option<Attempted> {
        let attempt = attempt_of(delivery);
        let now = self.clock.now();
        let envelope =
            match wire::decode(&delivery.message, &delivery.routing_key, &self.service.identity, now) {
                Ok(envelope) => envelope,
                Err(malformed) => {
                    let outcome = Outcome::Malformed(malformed.0);
                    return Some(Attempted { attempt, outcome, envelope: None });
                }
            };
        let Some(handler) = self.registry.find(&envelope.event_type) else {
            return Some(Attempted { attempt, outcome: Outcome::NoHandler, envelope: Some(envelope) });
        };
        let incoming = Incoming { consumer: self.name.clone(), envelope, attempt };
        let mut pause = Duration::from_millis(100);
        loop {
            match self.apply(handler, &incoming).await {
                Ok(outcome) => {
                    return Some(Attempted { attempt, outcome, envelope: Some(incoming.envelope) });
                }
                Err(error) => {
                    tracing::warn!(consumer = %self.name, event_id = %incoming.envelope.id, %error,
                        "the store failed under an attempt; it is repeated and not counted");
                }
            }
            tokio::select! {
                () = stop.cancelled() => return None,
                () = self.clock.sleep(pause) => pause = (pause * 2).min(Duration::from_secs(5)),
            }
        }
    }

    /// Inbox mark, effects and outgoing events commit together. An error is the store's, not the event's.
    async fn apply(
        &self,
        handler: &dyn ErasedHandler<S>,
        incoming: &Incoming,
    ) -> Result<Outcome, StoreError> {
        let envelope = &incoming.envelope;
        let arrival = Arrival {
            event_id: envelope.id.clone(),
            tenant: envelope.tenant.group.clone(),
            payload_hash: envelope.payload.hash(),
        };
        let mut tx = self.store.begin().await?;
        let admissions = self.store.admit(&mut tx, &self.name, std::slice::from_ref(&arrival)).await;
        let known = match admissions?.first() {
            Some(Admission::New) => None,
            Some(Admission::Conflict) => Some(Outcome::Conflict),
            Some(Admission::Duplicate) | None => Some(Outcome::Duplicate),
        };
        if let Some(known) = known {
            self.store.rollback(tx).await?;
            return Ok(known);
        }
        match self.guarded(handler, &mut tx, incoming).await {
            Ok(()) => {
                self.store.commit(tx).await?;
                Ok(Outcome::Applied)
            }
            Err(failure) => {
                // Where even the rollback cannot be said, the store is away and the handler is not to blame.
                self.store.rollback(tx).await?;
                Ok(Outcome::Failed(failure))
            }
        }
    }

    /// A panic is a failure of this attempt, and so is taking too long.
    async fn guarded(
        &self,
        handler: &dyn ErasedHandler<S>,
        tx: &mut S::Tx,
        incoming: &Incoming,
    ) -> Result<(), Failure> {
        let handling = AssertUnwindSafe(handler.handle(tx, incoming)).catch_unwind();
        tokio::select! {
            biased;
            answer = handling => answer.unwrap_or_else(|panic| Err(panicked(panic.as_ref()))),
            () = self.clock.sleep(self.config.handler_limit) => {
                let limit = self.config.handler_limit;
                Err(Failure::transient(format_args!("the handler took longer than {limit:?}")).class("timeout"))
            }
        }
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Failure {
    let said = panic.downcast_ref::<&str>().map(ToString::to_string);
    let said = said.or_else(|| panic.downcast_ref::<String>().cloned());
    Failure::transient(format_args!("the handler panicked: {}", said.unwrap_or_default())).class("panic")
}

/// Our own header counts; a broker's counters mean something else in every version.
pub(super) fn attempt_of(delivery: &Delivery) -> u32 {
    let retries = delivery.message.headers.get(wire::header::RETRY_COUNT).and_then(HeaderValue::as_int);
    u32::try_from(retries.unwrap_or(0)).unwrap_or(0).saturating_add(1)
}
