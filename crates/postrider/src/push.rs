//! Push: a queue's deliveries POSTed to services in any language.
//!
//! An endpoint is a handler like any other: retries, order, pauses, the breaker and dead letters are the consumer's. What is
//! here is the call itself: how the request is written and signed, where it may go, and what an
//! answer means. An effect over there happens at least once; `webhook-id` is the event's id on every attempt, so that
//! receivers can tell a repeat.

mod answer;
mod attempts;
mod form;
mod safety;
mod sender;
mod signing;
mod subscription;

pub use answer::{Answer, Said, StatusTable, Treatment, judge};
pub use attempts::{Attempt, Attempts};
pub use form::{Form, Prepared};
pub use safety::{Allowed, Names, Network, SystemNames, Unsafe, is_public};
pub use sender::{SendError, Sender, SenderParts};
pub use signing::{BadSecret, SigningSecret};
pub use subscription::{BadSubscription, Source, Subscription};

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use metrics::{Counter, Histogram};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::handler::{Failure, Incoming, OutsideHandler};
use crate::spans::{Operation, Span};
use crate::store::{Controls, StoreError};
use crate::topology::ConsumerName;

/// Who pauses a consumer whose endpoint says that it is gone.
pub const BY_ENDPOINT: &str = "push";

/// An endpoint as a handler.
pub struct Push {
    sender: Sender,
    table: StatusTable,
    attempts: Arc<Attempts>,
    pauses: Arc<dyn Pauses>,
    clock: Clock,
    /// Looked up once: by name and labels that costs more than counting.
    seconds: OnceLock<Histogram>,
    /// Of the first status that came: as a rule the others are the same.
    usual: OnceLock<(u16, Counter)>,
}

/// Whoever can pause a consumer, without its type.
pub trait Pauses: Send + Sync + 'static {
    /// Pauses the consumer of an endpoint that does not want to be called any more.
    fn pause_endpoint<'a>(
        &'a self,
        consumer: &'a ConsumerName,
        reason: &'a str,
    ) -> BoxFuture<'a, Result<bool, StoreError>>;
}

impl<S: Controls> Pauses for S {
    fn pause_endpoint<'a>(
        &'a self,
        consumer: &'a ConsumerName,
        reason: &'a str,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(self.pause(consumer, BY_ENDPOINT, reason))
    }
}

impl Push {
    /// Calls by this sender and judges by this table. What comes of each attempt is told to `attempts`.
    pub fn new(
        sender: Sender,
        table: StatusTable,
        attempts: Arc<Attempts>,
        pauses: Arc<dyn Pauses>,
        clock: Clock,
    ) -> Self {
        let (seconds, usual) = (OnceLock::new(), OnceLock::new());
        Self { sender, table, attempts, pauses, clock, seconds, usual }
    }

    async fn attempt(&self, event: &Incoming) -> Result<(), Failure> {
        let (at, start) = (self.clock.now(), self.clock.monotonic());
        let span = Span::begin(&event.envelope, &self.clock);
        // What the endpoint does is a child of the call.
        let under = span.as_ref().map(|span| event.traced(&span.own));
        let sent = self.sender.send(under.as_ref().unwrap_or(event)).await;
        let took = self.clock.since(start);
        if let Some(span) = span {
            let error = error_of(&sent);
            let (endpoint, id) = (event.consumer.as_str(), event.envelope.id.as_str());
            span.end(Operation::Push, endpoint, id, error.as_deref(), &self.clock);
        }
        let said = match &sent {
            Ok(answer) => judge(answer, &self.table, self.clock.now()),
            Err(error) => Said::Failed(error.failure()),
        };
        self.attempts.record(Attempt::of(event, at, took, &sent, &said));
        self.count(&event.consumer, &sent, took);
        match said {
            Said::Done => Ok(()),
            Said::Failed(failure) => Err(failure),
            Said::Gone(failure) => {
                self.pause(&event.consumer, &failure.message).await;
                Err(failure)
            }
        }
    }

    fn count(&self, consumer: &ConsumerName, sent: &Result<Answer, SendError>, took: Duration) {
        let consumer = || consumer.to_string();
        let attempts = |status: &'static str| metrics::counter!("postrider_push_attempts_total", "consumer" => consumer(), "status" => status);
        match sent {
            Ok(answer) if answer.is_too_long() => attempts(answer.label()).increment(1),
            Ok(answer) => {
                let of_this = || attempts(answer.label());
                let (usual, counter) = self.usual.get_or_init(|| (answer.status, of_this()));
                if *usual == answer.status { counter.increment(1) } else { of_this().increment(1) }
            }
            Err(error) => attempts(error.class()).increment(1),
        }
        let seconds = || metrics::histogram!("postrider_push_seconds", "consumer" => consumer());
        self.seconds.get_or_init(seconds).record(took.as_secs_f64());
    }

    /// What cannot be paused now is tried again by the next answer of the same kind.
    async fn pause(&self, consumer: &ConsumerName, reason: &str) {
        match self.pauses.pause_endpoint(consumer, reason).await {
            Ok(true) => tracing::error!(%consumer, "{reason}; the endpoint is paused, its events wait: \
                                         `postrider push resume {consumer}` lets them go on"),
            Ok(false) => {}
            Err(error) => {
                tracing::error!(%consumer, %error, "{reason}, but the endpoint could not be paused");
            }
        }
    }
}

impl OutsideHandler for Push {
    /// What is on its way is finished, also when the consumer is told to stop: the endpoint may have done it already.
    async fn handle(&self, event: &Incoming, _stop: &CancellationToken) -> Option<Result<(), Failure>> {
        Some(self.attempt(event).await)
    }
}

/// The kind of error, by the conventions: the status where there was one.
fn error_of(sent: &Result<Answer, SendError>) -> Option<String> {
    match sent {
        Ok(answer) if answer.is_too_long() => Some(answer.label().to_owned()),
        Ok(answer) => (answer.status >= 400).then(|| answer.status.to_string()),
        Err(error) => Some(error.class().to_owned()),
    }
}
