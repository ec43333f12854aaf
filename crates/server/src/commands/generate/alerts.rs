//! Alerting rules for Prometheus. Each alert says what people feel, and has a page in docs/runbooks that says what to do.

use std::fmt::Write as _;

use Severity::{Critical, Warning};

/// Whether somebody is woken up.
#[derive(Debug, Clone, Copy)]
enum Severity {
    /// Events do not arrive: now.
    Critical,
    /// Something will go wrong, or went wrong for a few: in the morning.
    Warning,
}

struct Alert {
    name: &'static str,
    query: &'static str,
    lasts: &'static str,
    severity: Severity,
    summary: &'static str,
}

const fn alert(
    name: &'static str,
    severity: Severity,
    lasts: &'static str,
    query: &'static str,
    summary: &'static str,
) -> Alert {
    Alert { name, query, lasts, severity, summary }
}

/// All of them. Gauges that several processes read alike are taken once, by max.
#[rustfmt::skip] // a table
const ALERTS: [Alert; 21] = [
    alert("PostriderDown", Critical, "2m", "absent(postrider_build_info)", "No process of Postrider can be scraped; committed events wait in the outbox"),
    alert("PostriderStoreDown", Critical, "1m", r#"min by (instance) (postrider_up{part="store"}) == 0"#, "{{ $labels.instance }} cannot reach its database; nothing can be committed or applied"),
    alert("PostriderBrokerDown", Critical, "2m", r#"min by (instance) (postrider_up{part="broker"}) == 0"#, "{{ $labels.instance }} cannot reach the broker; committed events wait in the outbox"),
    alert("PostriderBrokerBlocked", Critical, "1m", "max by (instance) (postrider_broker_blocked) == 1", "RabbitMQ takes no messages: short of memory or disk"),
    alert("PostriderOutboxBehind", Critical, "2m", "max by (outbox) (postrider_outbox_oldest_due_seconds) > 60", "An event of {{ $labels.outbox }} waits for {{ $value | humanizeDuration }} to be published"),
    alert("PostriderOutboxDead", Critical, "1m", "max by (outbox) (postrider_outbox_dead) > 0", "{{ $value }} committed events of {{ $labels.outbox }} could not be published and are given up"),
    alert("PostriderPublishSlow", Warning, "5m", "histogram_quantile(0.99, sum by (le, path) (rate(event_publish_duration_seconds_bucket[5m]))) > 0.1", "Publishing to the {{ $labels.path }} bus takes {{ $value | humanizeDuration }} (p99)"),
    alert("PostriderStreamLag", Warning, "5m", "max(postrider_outbox_stream_lag_bytes) > 536870912", "PostgreSQL keeps {{ $value | humanize1024 }}B of its log for the relay's stream"),
    alert("PostriderDeadLetters", Warning, "5m", "max by (queue) (postrider_dead_letters_open) > 0", "{{ $value }} dead letters of {{ $labels.queue }} wait for somebody"),
    alert("PostriderDeadLettersGrow", Critical, "1m", "max by (queue) (delta(postrider_dead_letters_open[15m])) > 100", "{{ $value | humanize }} more dead letters of {{ $labels.queue }} within 15 minutes"),
    alert("PostriderConflicts", Warning, "0m", r#"sum by (consumer) (increase(postrider_consumer_dead_total{reason="conflict"}[15m])) > 0"#, "{{ $labels.consumer }} got an event id again with another payload"),
    alert("PostriderConsumerLag", Warning, "10m", "max by (consumer) (postrider_consumer_lag_messages) > 10000", "{{ $value }} messages wait for {{ $labels.consumer }}"),
    alert("PostriderConsumerTripped", Critical, "2m", "max by (consumer) (postrider_consumer_breaker_open) == 1", "{{ $labels.consumer }} leaves its queue alone: everything it handles fails"),
    alert("PostriderConsumerPaused", Warning, "1h", "max by (consumer) (postrider_consumer_paused) == 1", "{{ $labels.consumer }} is paused since an hour or more"),
    alert("PostriderKeysParked", Warning, "10m", "max by (consumer) (postrider_consumer_parked_keys) > 0", "{{ $value }} ordering keys of {{ $labels.consumer }} stand still behind a dead letter"),
    alert("PostriderPushFailing", Warning, "10m", r#"sum by (consumer) (rate(postrider_push_attempts_total{status!~"2.."}[10m])) / sum by (consumer) (rate(postrider_push_attempts_total[10m])) > 0.5"#, "{{ $value | humanizePercentage }} of the calls to {{ $labels.consumer }} fail"),
    alert("PostriderRedisDegraded", Warning, "5m", "max(postrider_dedup_degraded) == 1", "Redis is away; duplicates ask the database, which is slower and as safe"),
    alert("PostriderRedisMemory", Warning, "5m", "max(postrider_progress_redis_memory_ratio) > 0.8", "Redis uses {{ $value | humanizePercentage }} of its memory"),
    alert("PostriderClockSkew", Warning, "5m", "max by (instance) (postrider_clock_skew_seconds) > 2", "The clock of {{ $labels.instance }} and the database's are {{ $value | humanizeDuration }} apart"),
    alert("PostriderHousekeepingFails", Warning, "0m", "sum(increase(postrider_outbox_housekeeping_failed_total[1h])) > 2", "The outbox is not looked after: partitions and retention"),
    alert("PostriderLedgerRefuses", Warning, "0m", "sum by (code) (increase(postrider_ledger_refused_total[15m])) > 0", "Financial events were not posted: {{ $labels.code }}"),
];

/// The rules as YAML. Every text is written as JSON, which is YAML too.
pub(super) fn rules(runbooks: &str) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let mut yaml = "groups:\n  - name: postrider\n    rules:\n".to_owned();
    for alert in &ALERTS {
        let severity = match alert.severity {
            Critical => "critical",
            Warning => "warning",
        };
        let page = format!("{}/{}.md", runbooks.trim_end_matches('/'), alert.name);
        // Writing to a String cannot fail.
        let _ = write!(
            yaml,
            "      - alert: {}\n        expr: {}\n        for: {}\n        labels:\n          severity: {severity}\n        \
             annotations:\n          summary: {}\n          runbook_url: {}\n",
            alert.name,
            quoted(alert.query),
            alert.lasts,
            quoted(alert.summary),
            quoted(&page),
        );
    }
    yaml
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::metrics_of;
    use super::*;
    use crate::api::metrics::catalogue::METRICS;

    #[test]
    fn alerts_are_about_metrics_that_exist() {
        for alert in &ALERTS {
            let named = metrics_of(alert.query);
            assert!(!named.is_empty(), "{}", alert.name);
            for name in named {
                assert!(METRICS.iter().any(|metric| metric.name == name), "{}: {name}", alert.name);
            }
        }
    }

    #[test]
    fn every_alert_has_its_runbook_and_every_runbook_its_use() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/runbooks");
        for alert in &ALERTS {
            let page = std::fs::read_to_string(folder.join(format!("{}.md", alert.name)));
            let page = page.unwrap_or_else(|error| panic!("{}: {error}", alert.name));
            assert!(page.starts_with(&format!("# {}\n", alert.name)), "{}", alert.name);
            for part in ["## What it means", "## What to look at", "## What to do"] {
                assert!(page.contains(part), "{} has no part {part:?}", alert.name);
            }
        }
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().to_string_lossy().into_owned();
            let alert = name.strip_prefix("Postrider").is_some();
            let known = ALERTS.iter().any(|alert| name == format!("{}.md", alert.name));
            assert!(!alert || known, "{name} is the runbook of no alert");
        }
    }

    /// What a page tells people to type, with names in the places of names.
    fn commands(page: &str) -> Vec<String> {
        let code = page.split('`').skip(1).step_by(2).filter(|code| code.starts_with("postrider "));
        let named = |code: &str| {
            let words = code.split_whitespace().map(|word| match word {
                "ID" | "N" => "1",
                "TYPE" => "shop.order",
                "TIME" => "2d",
                "OPERATION" => "0197a1b2-0000-7000-8000-000000000000",
                "…" | "TENANT" | "NAME" | "KEY" | "EVENT" | "FINGERPRINT" | "QUEUE" | "CODE" => "billing",
                word => word,
            });
            words.collect::<Vec<_>>().join(" ")
        };
        code.map(named).collect()
    }

    #[test]
    fn what_runbooks_tell_people_to_type_can_be_typed() {
        use clap::Parser as _;

        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/runbooks");
        let mut typed = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            for command in commands(&std::fs::read_to_string(&path).unwrap()) {
                let parsed = crate::cli::Cli::try_parse_from(command.split(' '));
                // A group of commands is named without one of them.
                let group = |error: &clap::Error| {
                    error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                };
                if let Err(error) = parsed.map(drop)
                    && !group(&error)
                {
                    panic!("{}: `{command}`: {error}", path.display());
                }
                typed += 1;
            }
        }
        assert!(typed > 30, "{typed}");
    }
}
