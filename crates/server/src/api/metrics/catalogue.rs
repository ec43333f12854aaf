//! Every metric there is: what Prometheus is told of it, what docs/metrics.md says, what dashboards and alerts may use.
//!
//! A test holds this list against the code, so that no metric is missing here and none here is missing there.

use Kind::{Counter, Gauge, Histogram};

/// How a metric behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A metric.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Each has few values: names of the configuration, or a closed set of words.
    pub(crate) labels: &'static [&'static str],
    pub(crate) help: &'static str,
}

const fn metric(
    name: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric { name, kind, labels, help }
}

/// All of them, in the order in which an event meets them.
#[rustfmt::skip] // a table
pub(crate) const METRICS: [Metric; 65] = [
    metric("postrider_build_info", Gauge, &["version"], "Always 1; which version runs."),
    metric("postrider_up", Gauge, &["part"], "1 while the part (store, broker) answers, else 0."),
    metric("postrider_schema_version", Gauge, &[], "The version of the database's schema."),
    metric("postrider_clock_skew_seconds", Gauge, &[], "How far this machine's clock and the database's are apart."),
    metric("postrider_http_requests_total", Counter, &["route", "method", "status"], "Requests to the API that were answered."),
    metric("postrider_http_request_duration_seconds", Histogram, &["route"], "How long requests to the API took."),
    metric("postrider_outbox_due", Gauge, &["outbox"], "Events that could be published now and are not."),
    metric("postrider_outbox_later", Gauge, &["outbox"], "Events whose time has not come: scheduled, or failed and waiting for another attempt."),
    metric("postrider_outbox_dead", Gauge, &["outbox"], "Events that could not be published and are given up until somebody unparks them."),
    metric("postrider_outbox_parked_keys", Gauge, &["outbox"], "Ordering keys that stand still behind such an event."),
    metric("postrider_outbox_oldest_due_seconds", Gauge, &["outbox"], "How long the oldest event waits that could be published now."),
    metric("postrider_outbox_stream_lag_bytes", Gauge, &["outbox"], "How much of its log PostgreSQL keeps for the relay's stream."),
    metric("postrider_outbox_housekeeping_failed_total", Counter, &[], "Rounds of partitions and retention that failed; each is tried again."),
    metric("postrider_relay_published_total", Counter, &[], "Events that the broker confirmed and that are marked as published."),
    metric("postrider_relay_attempts_total", Counter, &["outcome"], "Attempts to publish an event: confirmed, failed by its own fault, or unknown (the broker was away)."),
    metric("postrider_relay_failed_total", Counter, &[], "Attempts that failed by the event's own fault: returned or refused."),
    metric("event_publish_duration_seconds", Histogram, &["path"], "How long a batch took from publishing to its last confirm; path is new, and legacy too while a migration publishes twice."),
    metric("postrider_migration_legacy_failed_total", Counter, &[], "Copies for the old bus that it refused while a migration runs; each is tried again."),
    metric("postrider_migration_behind", Gauge, &["database"], "1 while a database that has outboxes does not follow the migration between buses: it cannot be asked, or has one of its own. Told by every process that relays and has outboxes in other databases."),
    metric("postrider_relay_streaming", Gauge, &[], "1 while the relay reads PostgreSQL's log, 0 while it polls."),
    metric("postrider_relay_switches_total", Counter, &["to"], "How often the relay changed to cdc or to poll."),
    metric("postrider_broker_up", Gauge, &["connection"], "1 while this connection to RabbitMQ is open."),
    metric("postrider_broker_blocked", Gauge, &["connection"], "1 while RabbitMQ takes no messages from this connection: short of memory or disk."),
    metric("postrider_broker_connects_total", Counter, &["connection"], "Connections to RabbitMQ that were opened."),
    metric("postrider_broker_lost_connections_total", Counter, &["connection"], "Connections to RabbitMQ that were lost."),
    metric("postrider_queue_ready_messages", Gauge, &["queue"], "Messages in a consumer's queue that are not delivered yet."),
    metric("postrider_queue_waiting_messages", Gauge, &["queue"], "Messages in the wait queues of a consumer's queue: they are tried again later."),
    metric("postrider_consumer_lag_messages", Gauge, &["consumer"], "Both together: what a consumer still has before it at the broker."),
    metric("postrider_consumer_applied_total", Counter, &["consumer"], "Events that were applied."),
    metric("postrider_consumer_duplicates_total", Counter, &["consumer"], "Deliveries of events that were applied before, absorbed."),
    metric("postrider_consumer_retried_total", Counter, &["consumer"], "Attempts that failed and are made again later."),
    metric("postrider_consumer_deferred_total", Counter, &["consumer"], "Deliveries that came before their time and wait."),
    metric("postrider_consumer_held_total", Counter, &["consumer"], "Deliveries that were held behind an earlier event of their key."),
    metric("postrider_consumer_dead_total", Counter, &["consumer", "reason"], "Deliveries that became dead letters, by reason; conflict is the same id with another payload."),
    metric("postrider_consumer_attempt_seconds", Histogram, &["consumer"], "How long an attempt took, transaction included."),
    metric("postrider_consumer_concurrency", Gauge, &["consumer"], "How many deliveries may be handled at the same time now."),
    metric("postrider_consumer_paused", Gauge, &["consumer"], "1 while somebody has paused the consumer."),
    metric("postrider_consumer_breaker_open", Gauge, &["consumer"], "1 while the consumer leaves its queue alone, because everything fails or its store is away."),
    metric("postrider_consumer_held_events", Gauge, &["consumer"], "Events that are held behind an earlier one of their key."),
    metric("postrider_consumer_parked_keys", Gauge, &["consumer"], "Ordering keys that wait for somebody to replay, discard or release."),
    metric("postrider_inbox_forgotten_total", Counter, &[], "Marks of applied events that were older than inbox.retention_days and are forgotten."),
    metric("postrider_dedup_seen_total", Counter, &["seen"], "What Redis knew of a delivery: new, duplicate, other_payload, processing, failed, unknown."),
    metric("postrider_dedup_look_seconds", Histogram, &[], "How long Redis took for a batch of deliveries."),
    metric("postrider_dedup_degraded", Gauge, &[], "1 while Redis is left alone and every duplicate asks the database."),
    metric("postrider_dedup_failures_total", Counter, &[], "Calls to Redis that failed or took too long."),
    metric("postrider_dedup_lost_notes_total", Counter, &[], "Notes for Redis that were given up; their duplicates ask the database."),
    metric("postrider_dedup_refused_notes_total", Counter, &[], "Notes that Redis refused, full or read-only."),
    metric("postrider_push_attempts_total", Counter, &["consumer", "status"], "Calls to an endpoint, by HTTP status (the usual ones; others by their class, such as 4xx) or by why there was none that counts, such as timeout or too_long."),
    metric("postrider_push_seconds", Histogram, &["consumer"], "How long calls to an endpoint took."),
    metric("postrider_dead_letters_open", Gauge, &["queue"], "Dead letters that nobody has replayed or discarded, by the queue they came from."),
    metric("postrider_dead_letters_collected_total", Counter, &[], "Dead letters that were taken into the table."),
    metric("postrider_dead_letters_refused_total", Counter, &[], "Dead letters that the table refused; they stay in their queue."),
    metric("postrider_operations_unfinished", Gauge, &[], "Replays and other operations that are planned or running."),
    metric("postrider_operation_items_total", Counter, &["kind"], "Items that operations have worked off."),
    metric("postrider_progress_alerts_total", Counter, &["alert"], "Alerts about the Redis of jobs: unavailable, memory."),
    metric("postrider_progress_view_refused_total", Counter, &[], "Jobs that Redis refused to show; their progress is safe in the store."),
    metric("postrider_progress_redis_memory_ratio", Gauge, &[], "How much of its maxmemory that Redis uses, from 0 to 1."),
    metric("postrider_progress_jobs_shown_total", Counter, &[], "Changes of jobs that were written to Redis."),
    metric("postrider_progress_kept_updates", Gauge, &[], "Marks and steps that a service without a database keeps in memory while Redis is away."),
    metric("postrider_progress_kept_refused_total", Counter, &[], "Of those, the ones that Redis refused when it was back; the log says which."),
    metric("postrider_ledger_posted_total", Counter, &[], "Events that became journal entries."),
    metric("postrider_ledger_duplicates_total", Counter, &[], "Events that had become entries before, absorbed."),
    metric("postrider_ledger_refused_total", Counter, &["code"], "Events that were not posted, by the code of the refusal; each is a dead letter."),
    metric("postrider_spans_exported_total", Counter, &[], "Spans that the collector took."),
    metric("postrider_spans_dropped_total", Counter, &["reason"], "Spans that were dropped: the collector was away, or too slow (full)."),
];

/// Tells Prometheus what each of them is.
pub(super) fn describe() {
    for metric in METRICS {
        match metric.kind {
            Counter => metrics::describe_counter!(metric.name, metric.help),
            Gauge => metrics::describe_gauge!(metric.name, metric.help),
            Histogram => metrics::describe_histogram!(metric.name, metric.help),
        }
    }
}

/// The table for people, in Markdown.
pub(crate) fn markdown() -> String {
    let row = |metric: &Metric| {
        let kind = match metric.kind {
            Counter => "counter",
            Gauge => "gauge",
            Histogram => "histogram",
        };
        let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        format!("| `{}` | {kind} | {} | {} |\n", metric.name, labels.join(", "), metric.help)
    };
    METRICS.iter().map(row).fold(HEAD.to_owned(), |text, row| text + &row)
}

const HEAD: &str = "\
# Metrics
At `GET /v1/metrics`, for Prometheus; with `METRICS_TOKEN` set it asks for that, as `x-metrics-token` or as a bearer token. Seconds and
bytes, counters end in `_total`. No label has an event, a tenant or an error in it: their values are names of the configuration or words
of a closed set. Counters and histograms appear with their first value, but for the rare ones that
alerts watch, which are there from the start. Gauges of outbox, queues and dead letters are read every 15
seconds, in every process that serves the API: of several, take the `max`. A process without the roles api and dashboard is scraped where `--listen` or `http.health_listen` says. `postrider generate grafana` and `postrider generate alerts`
print a dashboard and rules on these. This page is printed by `postrider generate metrics`.

| metric | kind | labels | what it says |
|---|---|---|---|
";

#[cfg(test)]
mod tests;
