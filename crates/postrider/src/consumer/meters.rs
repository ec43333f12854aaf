//! A consumer's metrics, each looked up once: by name and label that costs more than counting.

use metrics::{Counter, Gauge, Histogram};

use crate::settlement::DeadReason;
use crate::topology::ConsumerName;

/// Where a consumer counts what happens to every delivery. What is rare is looked up when it happens.
pub(super) struct Meters {
    pub(super) applied: Counter,
    pub(super) duplicates: Counter,
    pub(super) retried: Counter,
    pub(super) deferred: Counter,
    pub(super) attempt_seconds: Histogram,
    pub(super) concurrency: Gauge,
}

impl Meters {
    /// Those of this consumer. Comes after the process has said who collects metrics.
    pub(super) fn of(consumer: &ConsumerName) -> Self {
        let consumer = || consumer.to_string();
        // An alert watches it grow. What comes up with its first value has not grown, so it is there from the start.
        let conflict = DeadReason::Conflict.as_str();
        metrics::counter!("postrider_consumer_dead_total", "consumer" => consumer(), "reason" => conflict)
            .increment(0);
        Self {
            applied: metrics::counter!("postrider_consumer_applied_total", "consumer" => consumer()),
            duplicates: metrics::counter!("postrider_consumer_duplicates_total", "consumer" => consumer()),
            retried: metrics::counter!("postrider_consumer_retried_total", "consumer" => consumer()),
            deferred: metrics::counter!("postrider_consumer_deferred_total", "consumer" => consumer()),
            attempt_seconds: metrics::histogram!("postrider_consumer_attempt_seconds", "consumer" => consumer()),
            concurrency: metrics::gauge!("postrider_consumer_concurrency", "consumer" => consumer()),
        }
    }

    /// Takes down what this consumer has up: one that does not run here any more would be paused or tripped for ever, and an alert go on.
    pub(super) fn end(consumer: &ConsumerName) {
        let consumer = || consumer.to_string();
        metrics::gauge!("postrider_consumer_concurrency", "consumer" => consumer()).set(0.0);
        metrics::gauge!("postrider_consumer_paused", "consumer" => consumer()).set(0.0);
        metrics::gauge!("postrider_consumer_breaker_open", "consumer" => consumer()).set(0.0);
        metrics::gauge!("postrider_consumer_held_events", "consumer" => consumer()).set(0.0);
        metrics::gauge!("postrider_consumer_parked_keys", "consumer" => consumer()).set(0.0);
    }
}
