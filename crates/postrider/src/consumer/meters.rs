//! A consumer's metrics, each looked up once: by name and label that costs more than counting.

use metrics::{Counter, Gauge, Histogram};

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
        Self {
            applied: metrics::counter!("postrider_consumer_applied_total", "consumer" => consumer()),
            duplicates: metrics::counter!("postrider_consumer_duplicates_total", "consumer" => consumer()),
            retried: metrics::counter!("postrider_consumer_retried_total", "consumer" => consumer()),
            deferred: metrics::counter!("postrider_consumer_deferred_total", "consumer" => consumer()),
            attempt_seconds: metrics::histogram!("postrider_consumer_attempt_seconds", "consumer" => consumer()),
            concurrency: metrics::gauge!("postrider_consumer_concurrency", "consumer" => consumer()),
        }
    }
}
