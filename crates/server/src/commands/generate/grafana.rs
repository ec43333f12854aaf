//! A dashboard for Grafana: what an on-call engineer looks at first, from the outbox to the dead letters.

use serde_json::{Value, json};

/// How a panel shows its numbers.
#[derive(Clone, Copy)]
enum Look {
    /// One number, red from this value on.
    Number(f64),
    /// Lines over time, in this unit.
    Lines(&'static str),
}

struct Panel {
    title: &'static str,
    look: Look,
    /// Queries, each with what its lines are called.
    queries: &'static [(&'static str, &'static str)],
}

/// Rows of panels, each with a title.
#[rustfmt::skip] // a table
const ROWS: [(&str, &[Panel]); 6] = [
    (
        "At a glance",
        &[
            Panel { title: "Servers that do not answer", look: Look::Number(1.0), queries: &[("count(postrider_up == 0) or vector(0)", "")] },
            Panel { title: "Oldest event not published, seconds", look: Look::Number(60.0), queries: &[("max(postrider_outbox_oldest_due_seconds)", "")] },
            Panel { title: "Events given up in the outbox", look: Look::Number(1.0), queries: &[("max(postrider_outbox_dead)", "")] },
            Panel { title: "Open dead letters", look: Look::Number(1.0), queries: &[("sum(max by (queue) (postrider_dead_letters_open)) or vector(0)", "")] },
            Panel { title: "Consumers that leave their queue alone", look: Look::Number(1.0), queries: &[("sum(max by (consumer) (postrider_consumer_breaker_open)) or vector(0)", "")] },
            Panel { title: "Paused consumers", look: Look::Number(1.0), queries: &[("sum(max by (consumer) (postrider_consumer_paused)) or vector(0)", "")] },
        ],
    ),
    (
        "Outbox and relay",
        &[
            Panel { title: "Published", look: Look::Lines("ops"), queries: &[("sum(rate(postrider_relay_published_total[$__rate_interval]))", "events a second")] },
            Panel { title: "Attempts to publish", look: Look::Lines("ops"), queries: &[("sum by (outcome) (rate(postrider_relay_attempts_total[$__rate_interval]))", "{{outcome}}")] },
            Panel {
                title: "Publish to confirm",
                look: Look::Lines("s"),
                queries: &[
                    ("histogram_quantile(0.5, sum by (le, path) (rate(event_publish_duration_seconds_bucket[$__rate_interval])))", "{{path}}, p50"),
                    ("histogram_quantile(0.99, sum by (le, path) (rate(event_publish_duration_seconds_bucket[$__rate_interval])))", "{{path}}, p99"),
                ],
            },
            Panel {
                title: "Waiting in the outbox",
                look: Look::Lines("short"),
                queries: &[("max by (outbox) (postrider_outbox_due)", "{{outbox}} due"), ("max by (outbox) (postrider_outbox_later)", "{{outbox}} later"), ("max by (outbox) (postrider_outbox_dead)", "{{outbox}} dead"), ("max by (outbox) (postrider_outbox_parked_keys)", "{{outbox}} parked keys")],
            },
            Panel { title: "Age of the oldest due event", look: Look::Lines("s"), queries: &[("max by (outbox) (postrider_outbox_oldest_due_seconds)", "{{outbox}}")] },
            Panel { title: "Log kept for the stream", look: Look::Lines("bytes"), queries: &[("max(postrider_outbox_stream_lag_bytes)", "lag"), ("max(postrider_relay_streaming)", "streaming (1) or polling (0)")] },
        ],
    ),
    (
        "Consumers",
        &[
            Panel { title: "Lag: messages before each consumer", look: Look::Lines("short"), queries: &[("max by (consumer) (postrider_consumer_lag_messages)", "{{consumer}}")] },
            Panel { title: "Applied", look: Look::Lines("ops"), queries: &[("sum by (consumer) (rate(postrider_consumer_applied_total[$__rate_interval]))", "{{consumer}}")] },
            Panel { title: "Retried", look: Look::Lines("ops"), queries: &[("sum by (consumer) (rate(postrider_consumer_retried_total[$__rate_interval]))", "{{consumer}}")] },
            Panel { title: "Duplicates absorbed", look: Look::Lines("ops"), queries: &[("sum by (consumer) (rate(postrider_consumer_duplicates_total[$__rate_interval]))", "{{consumer}}")] },
            Panel { title: "Attempt, p99", look: Look::Lines("s"), queries: &[("histogram_quantile(0.99, sum by (le, consumer) (rate(postrider_consumer_attempt_seconds_bucket[$__rate_interval])))", "{{consumer}}")] },
            Panel {
                title: "Held behind an earlier event",
                look: Look::Lines("short"),
                queries: &[("max by (consumer) (postrider_consumer_held_events)", "{{consumer}}"), ("max by (consumer) (postrider_consumer_parked_keys)", "{{consumer}}, parked keys")],
            },
        ],
    ),
    (
        "Dead letters and push",
        &[
            Panel { title: "Open dead letters", look: Look::Lines("short"), queries: &[("max by (queue) (postrider_dead_letters_open)", "{{queue}}")] },
            Panel { title: "Dead, by reason", look: Look::Lines("ops"), queries: &[("sum by (consumer, reason) (rate(postrider_consumer_dead_total[$__rate_interval]))", "{{consumer}}: {{reason}}")] },
            Panel { title: "Calls to endpoints, by status", look: Look::Lines("ops"), queries: &[("sum by (consumer, status) (rate(postrider_push_attempts_total[$__rate_interval]))", "{{consumer}}: {{status}}")] },
            Panel { title: "Calls to endpoints, p99", look: Look::Lines("s"), queries: &[("histogram_quantile(0.99, sum by (le, consumer) (rate(postrider_push_seconds_bucket[$__rate_interval])))", "{{consumer}}")] },
        ],
    ),
    (
        "Servers",
        &[
            Panel { title: "Connections to RabbitMQ", look: Look::Lines("short"), queries: &[("sum by (connection) (postrider_broker_up)", "{{connection}}"), ("sum by (connection) (postrider_broker_blocked)", "{{connection}}, blocked")] },
            Panel { title: "Clock, seconds from the database's", look: Look::Lines("s"), queries: &[("max by (instance) (postrider_clock_skew_seconds)", "{{instance}}")] },
            Panel { title: "Redis: what it knew of deliveries", look: Look::Lines("ops"), queries: &[("sum by (seen) (rate(postrider_dedup_seen_total[$__rate_interval]))", "{{seen}}"), ("max(postrider_dedup_degraded)", "left alone (1)")] },
            Panel { title: "Redis: memory", look: Look::Lines("percentunit"), queries: &[("max(postrider_progress_redis_memory_ratio)", "used")] },
            Panel { title: "API", look: Look::Lines("reqps"), queries: &[("sum by (route, status) (rate(postrider_http_requests_total[$__rate_interval]))", "{{route}} {{status}}")] },
        ],
    ),
    (
        "Ledger and operations",
        &[
            Panel { title: "Posted", look: Look::Lines("ops"), queries: &[("sum(rate(postrider_ledger_posted_total[$__rate_interval]))", "entries a second"), ("sum(rate(postrider_ledger_duplicates_total[$__rate_interval]))", "duplicates")] },
            Panel { title: "Refused, by code", look: Look::Lines("ops"), queries: &[("sum by (code) (rate(postrider_ledger_refused_total[$__rate_interval]))", "{{code}}")] },
            Panel { title: "Operations", look: Look::Lines("short"), queries: &[("max(postrider_operations_unfinished)", "unfinished"), ("sum by (kind) (rate(postrider_operation_items_total[$__rate_interval]))", "{{kind}}, items a second")] },
        ],
    ),
];

const SOURCE: &str = "${source}";
/// Grafana's grid is this wide.
const WIDTH: usize = 24;

/// The dashboard.
pub(super) fn dashboard() -> Value {
    let (mut panels, mut y) = (Vec::new(), 0);
    for (title, row) in ROWS {
        let place = json!({"h": 1, "w": WIDTH, "x": 0, "y": y});
        panels.push(
            json!({"id": panels.len() + 1, "type": "row", "title": title, "gridPos": place, "panels": []}),
        );
        y += 1;
        let numbers = row.iter().all(|panel| matches!(panel.look, Look::Number(_)));
        let (height, across) = if numbers { (4, row.len()) } else { (8, 3) };
        for (at, panel) in row.iter().enumerate() {
            let width = WIDTH / across;
            let place =
                json!({"h": height, "w": width, "x": at % across * width, "y": y + at / across * height});
            panels.push(drawn(panel, panels.len() + 1, &place));
        }
        y += row.len().div_ceil(across) * height;
    }
    json!({
        "uid": "postrider",
        "title": "Postrider",
        "tags": ["postrider"],
        "schemaVersion": 38,
        "timezone": "browser",
        "refresh": "15s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [{
            "name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {},
        }]},
        "panels": panels,
    })
}

fn drawn(panel: &Panel, id: usize, place: &Value) -> Value {
    let source = json!({"type": "prometheus", "uid": SOURCE});
    let letters = 'A'..='Z';
    let targets: Vec<_> = panel
        .queries
        .iter()
        .zip(letters)
        .map(|((query, name), letter)| {
            json!({"refId": letter.to_string(), "datasource": source, "expr": query, "legendFormat": name})
        })
        .collect();
    let (kind, defaults) = match panel.look {
        Look::Number(red) => (
            "stat",
            json!({"unit": "short", "decimals": 0, "thresholds": {"mode": "absolute", "steps": [
                {"color": "green", "value": null}, {"color": "red", "value": red},
            ]}}),
        ),
        Look::Lines(unit) => ("timeseries", json!({"unit": unit, "min": 0, "custom": {"fillOpacity": 8}})),
    };
    json!({
        "id": id, "type": kind, "title": panel.title, "datasource": source, "gridPos": place,
        "targets": targets, "fieldConfig": {"defaults": defaults, "overrides": []},
    })
}

#[cfg(test)]
mod tests {
    use super::super::metrics_of;
    use super::*;
    use crate::api::metrics::catalogue::METRICS;

    #[test]
    fn panels_show_metrics_that_exist_by_labels_they_have() {
        for (query, legend) in ROWS.iter().flat_map(|(_, row)| row.iter()).flat_map(|panel| panel.queries) {
            let named = metrics_of(query);
            assert!(!named.is_empty(), "{query}");
            for name in &named {
                let metric = METRICS.iter().find(|metric| metric.name == *name);
                let metric = metric.unwrap_or_else(|| panic!("{query}: there is no {name}"));
                for label in legend.split("{{").skip(1).filter_map(|rest| rest.split("}}").next()) {
                    assert!(label == "instance" || metric.labels.contains(&label), "{name} has no {label}");
                }
            }
        }
    }

    #[test]
    fn panels_do_not_overlap() {
        let dashboard = dashboard();
        let panels = dashboard["panels"].as_array().unwrap();
        let side = |panel: &Value, name: &str| panel["gridPos"][name].as_u64().unwrap();
        for (at, one) in panels.iter().enumerate() {
            for other in &panels[at + 1..] {
                let apart = |start: &str, size: &str| {
                    side(one, start) + side(one, size) <= side(other, start)
                        || side(other, start) + side(other, size) <= side(one, start)
                };
                assert!(apart("x", "w") || apart("y", "h"), "{} and {}", one["title"], other["title"]);
            }
        }
    }
}
