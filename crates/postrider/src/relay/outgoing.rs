//! A row as the message it becomes, and what the broker's answer means for the row.

use std::time::Duration;

use super::RelayConfig;
use crate::broker::{Outgoing, Published};
use crate::clock::Clock;
use crate::envelope::wire;
use crate::migration::Definition;
use crate::spans::{Operation, Span};
use crate::store::{OutboxRow, PublishResult};
use crate::topology::{RoutingKey, routing_key};

/// Failures until the replay of a dead letter is given up.
const REPLAY_ATTEMPTS: u32 = 3;

/// A queue that was full is tried again after this long at the latest: every try is another copy for the queues that are not.
const LONGEST_DECLINED: Duration = Duration::from_mins(1);

/// The message of a row, and where it goes.
pub(super) fn outgoing(row: &OutboxRow, config: &RelayConfig) -> Outgoing {
    let exchange = row.exchange.as_ref().unwrap_or(&config.exchange);
    let message = row.verbatim.clone().unwrap_or_else(|| {
        let format = config.formats.get(exchange).copied().unwrap_or(config.format);
        wire::encode(&row.envelope, format, row.attempts)
    });
    if let Some(queue) = &row.target_queue {
        return Outgoing::to_queue(queue, message);
    }
    Outgoing { exchange: exchange.clone(), routing_key: config.key_of(row), message }
}

impl RelayConfig {
    /// The key that a row is published with: its own, or that of this outbox.
    fn key_of(&self, row: &OutboxRow) -> RoutingKey {
        row.routing_key.clone().unwrap_or_else(|| routing_key(self.routing_key.as_ref(), &row.envelope))
    }

    /// The copy of a row for the old bus. What is sent again, or to one queue alone, has none.
    pub(crate) fn copy_of(&self, row: &OutboxRow, definition: &Definition) -> Option<Outgoing> {
        if row.verbatim.is_some() || row.target_queue.is_some() {
            return None;
        }
        let exchange = row.exchange.as_ref().unwrap_or(&self.exchange);
        let key = self.key_of(row);
        definition.covers(exchange, &key).then(|| definition.copy_of(&row.envelope, &key, row.attempts))
    }
}

/// A span for a row that was published, if it is traced and somebody exports spans.
pub(super) fn trace(
    row: &OutboxRow,
    answer: &Published,
    config: &RelayConfig,
    took: Duration,
    clock: &Clock,
) {
    let Some(span) = Span::begin(&row.envelope, clock) else { return };
    let span = span.since(clock.monotonic().saturating_sub(took));
    let exchange = row.exchange.as_ref().unwrap_or(&config.exchange);
    let to = row.target_queue.as_ref().map_or(exchange.as_str(), |queue| queue.as_str());
    let error = match answer {
        Published::Confirmed => None,
        Published::Returned(_) => Some("returned"),
        Published::Refused(_) | Published::Unfit(_) => Some("refused"),
        Published::Declined(_) => Some("declined"),
        Published::Unknown(_) => Some("unconfirmed"),
    };
    span.end(Operation::Send, to, row.envelope.id.as_str(), error, clock);
}

/// An answer that says nothing about the message itself.
pub(super) enum Untold {
    /// Nobody can be asked: everything waits.
    Away(String),
    /// A queue did not take it; what goes elsewhere need not wait.
    Declined(String),
}

/// What the answer means for the row, if it says anything about the message itself.
pub(super) fn judge(
    row: &OutboxRow,
    answer: Published,
    config: &RelayConfig,
    clock: &Clock,
) -> Result<PublishResult, Untold> {
    let error = match answer {
        Published::Confirmed => return Ok(PublishResult::Published),
        Published::Declined(why) => return Err(Untold::Declined(why)),
        Published::Unknown(why) => return Err(Untold::Away(why)),
        Published::Returned(why) | Published::Refused(why) | Published::Unfit(why) => why,
    };
    let attempts = row.attempts + 1;
    let most = match row.dead_letter {
        // Its letter is opened again, where people look; there is no need to try for an hour.
        Some(_) => config.max_attempts.min(REPLAY_ATTEMPTS),
        None => config.max_attempts,
    };
    let retry_after = (attempts < most).then(|| config.backoff.delay(attempts, clock.random()));
    let dead = retry_after.is_none();
    tracing::warn!(event_id = %row.envelope.id, attempts, dead, %error, "publishing an event failed");
    Ok(PublishResult::Failed { error, retry_after })
}

/// A queue went on declining a row, so many times by now: it waits in the store, with those of its key behind it. However long that lasts,
/// it does not die of it: however often, it counts as one attempt.
pub(super) fn postponed(
    row: &OutboxRow,
    error: String,
    times: u32,
    config: &RelayConfig,
    clock: &Clock,
) -> PublishResult {
    let retry_after = config.backoff.delay(times, clock.random()).min(LONGEST_DECLINED);
    tracing::debug!(event_id = %row.envelope.id, %error, "a queue does not take an event");
    PublishResult::Postponed { error, retry_after }
}

/// How attempts to publish ended, counted a batch at a time.
#[derive(Default)]
pub(super) struct Attempts {
    pub(super) confirmed: u64,
    pub(super) failed: u64,
    pub(super) unknown: u64,
}

impl Attempts {
    pub(super) fn count(&self) {
        let outcomes = [("confirmed", self.confirmed), ("failed", self.failed), ("unknown", self.unknown)];
        for (outcome, times) in outcomes.into_iter().filter(|(_, times)| *times > 0) {
            metrics::counter!("postrider_relay_attempts_total", "outcome" => outcome).increment(times);
        }
    }
}
