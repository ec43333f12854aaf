//! The settings, section by section, as `config.default.toml` lists them.
//!
//! No field has a default in code: a setting that the default file lacks does not parse, and neither does one that only
//! the file has. So the file is complete, and the only place to look.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use postrider::relay::RelayMode;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::consumer::ConsumerShort;
use super::ledger::Ledger;
use super::migration::Migration;
use super::observing::{Log, Telemetry};
use super::outboxes::OutboxTable;
use super::partition::PartitionChoice;
use super::push::PushForm;
use super::secret::Secret;
use super::topology::{ExchangeForm, QueueForm, TopologySection};
use super::triage::Triage;

/// Everything that can be set.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    pub(crate) store: Store,
    pub(crate) broker: Broker,
    pub(crate) redis: Redis,
    pub(crate) outbox: Outbox,
    pub(crate) inbox: Inbox,
    pub(crate) relay: Relay,
    pub(crate) progress: Progress,
    pub(crate) limits: Limits,
    pub(crate) http: Http,
    pub(crate) log: Log,
    pub(crate) telemetry: Telemetry,
    pub(crate) shutdown: Shutdown,
    pub(crate) ledger: Ledger,
    pub(crate) migration: Migration,
    pub(crate) catalog: Catalog,
    pub(crate) topology: TopologySection,
    pub(crate) exchange: Vec<ExchangeForm>,
    pub(crate) queue: Vec<QueueForm>,
    pub(crate) consumer: Vec<ConsumerShort>,
    pub(crate) triage: Triage,
    pub(crate) push: Vec<PushForm>,
    pub(crate) egress: Egress,
}

/// Where events are committed.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Store {
    pub(crate) path: PathBuf,
    pub(crate) url: Secret,
    pub(crate) password: Secret,
    pub(crate) max_connections: u32,
    pub(crate) connect_timeout_ms: u64,
}

/// Where they are published.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Broker {
    pub(crate) url: Secret,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) vhost: String,
    pub(crate) user: String,
    pub(crate) password: Secret,
    pub(crate) management_url: Secret,
    pub(crate) set_policies: bool,
    pub(crate) tls: Certificates,
    pub(crate) connect_timeout_ms: u64,
    pub(crate) confirm_timeout_ms: u64,
    pub(crate) call_timeout_ms: u64,
}

/// The accelerator.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Redis {
    pub(crate) url: Secret,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) password: Secret,
    pub(crate) state_db: u32,
    pub(crate) idempotency: bool,
    pub(crate) idempotency_ttl_hours: u32,
    pub(crate) idempotency_limit_ms: u64,
    pub(crate) tls: Certificates,
}

impl Redis {
    /// How long an idempotency key stays after its last change.
    pub(crate) fn idempotency_ttl(&self) -> Duration {
        Duration::from_hours(u64::from(self.idempotency_ttl_hours))
    }
}

/// Certificates as PEM files; an empty path is none.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(clippy::struct_field_names, reason = "the settings are named so")]
pub(crate) struct Certificates {
    ca_file: PathBuf,
    client_cert_file: PathBuf,
    client_key_file: PathBuf,
}

impl Certificates {
    /// Whom to trust instead of the system's authorities.
    pub(crate) fn ca_file(&self) -> Option<PathBuf> {
        given(&self.ca_file)
    }

    /// Our own certificate, for servers that ask for one.
    pub(crate) fn client_cert_file(&self) -> Option<PathBuf> {
        given(&self.client_cert_file)
    }

    /// The key to it.
    pub(crate) fn client_key_file(&self) -> Option<PathBuf> {
        given(&self.client_key_file)
    }
}

fn given(path: &std::path::Path) -> Option<PathBuf> {
    (!path.as_os_str().is_empty()).then(|| path.to_owned())
}

/// What every event shares.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Outbox {
    pub(crate) exchange: String,
    pub(crate) retention_days: u32,
    pub(crate) archive: ArchiveChoice,
    pub(crate) archive_dir: PathBuf,
    pub(crate) partition: PartitionChoice,
    pub(crate) partitions_ahead: u16,
    pub(crate) table: Vec<OutboxTable>,
}

/// What each consumer has applied.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Inbox {
    pub(crate) retention_days: u32,
}

impl Inbox {
    /// How long an applied event is remembered.
    pub(crate) fn keep(&self) -> Duration {
        Duration::from_hours(u64::from(self.retention_days) * 24)
    }
}

/// Where events go that are older than the outbox keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ArchiveChoice {
    /// They are removed.
    None,
    /// Into a table.
    Table,
    /// Into files.
    Files,
}

/// Outbox to broker.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Relay {
    pub(crate) mode: RelayMode,
    pub(crate) max_lag_bytes: u64,
    pub(crate) batch_size: u32,
    pub(crate) lanes: u16,
    pub(crate) poll_interval_ms: u64,
    pub(crate) lease_ms: u64,
    pub(crate) max_attempts: u32,
    pub(crate) backoff_base_ms: u64,
    pub(crate) backoff_max_ms: u64,
}

/// How far jobs have come.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Progress {
    pub(crate) completed: String,
    pub(crate) key_prefix: String,
    pub(crate) ttl_days: u32,
    pub(crate) poll_interval_ms: u64,
    pub(crate) memory_alert_percent: u8,
    pub(crate) keep_items_days: u32,
}

impl Progress {
    /// How long a job stays in Redis after its last change.
    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_hours(u64::from(self.ttl_days) * 24)
    }

    /// How long the items of a finished job are remembered.
    pub(crate) fn keep_items(&self) -> Duration {
        Duration::from_hours(u64::from(self.keep_items_days) * 24)
    }
}

/// What an event may be.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(clippy::struct_field_names, reason = "the settings are named so")]
pub(crate) struct Limits {
    pub(crate) max_payload_bytes: usize,
    pub(crate) max_depth: usize,
    pub(crate) max_batch_events: usize,
}

/// The HTTP API.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Http {
    #[serde(deserialize_with = "address")]
    pub(crate) listen: SocketAddr,
    pub(crate) health_listen: Somewhere,
    pub(crate) tls: Tls,
    pub(crate) cert_file: PathBuf,
    pub(crate) key_file: PathBuf,
    pub(crate) max_body_bytes: usize,
    pub(crate) request_timeout_ms: u64,
    pub(crate) idle_timeout_ms: u64,
    pub(crate) max_connections: usize,
    pub(crate) max_concurrent_requests: usize,
    pub(crate) metrics_token: Secret,
    pub(crate) requests_per_second: u32,
    pub(crate) read_only: bool,
}

fn address<'de, D: Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(from)?;
    let wrong =
        |_| D::Error::custom(format!("{text:?} is no address such as 127.0.0.1:7070 or 0.0.0.0:7070"));
    text.parse().map_err(wrong)
}

/// An address, or an empty text for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Somewhere(pub(crate) Option<SocketAddr>);

impl TryFrom<String> for Somewhere {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let wrong = |_| format!("{text:?} is no address such as 127.0.0.1:7071; leave it empty for none");
        if text.is_empty() { Ok(Self(None)) } else { text.parse().map(|at| Self(Some(at))).map_err(wrong) }
    }
}

/// Who does TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Tls {
    /// Nobody: loopback only.
    Off,
    /// A proxy in front.
    Proxy,
    /// We do.
    Own,
}

/// The event catalogue.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Catalog {
    pub(crate) path: PathBuf,
}

/// Where requests of ours may go.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Egress {
    pub(crate) allow: Vec<String>,
}

/// How `serve` ends.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shutdown {
    pub(crate) drain_ms: u64,
}

impl Http {
    /// How long a request may take.
    pub(crate) fn request_timeout(&self) -> Duration {
        Duration::from_millis(self.request_timeout_ms)
    }
}

impl Shutdown {
    /// How long to wait for work in flight.
    pub(crate) fn drain(&self) -> Duration {
        Duration::from_millis(self.drain_ms)
    }
}

impl Settings {
    /// The rules that a type cannot say: the setting that breaks one, and the rule.
    pub(super) fn broken_rules(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        let mut rule = |key, holds: bool, rule: &str| {
            if !holds {
                found.push((key, rule.to_owned()));
            }
        };
        let (relay, http, broker) = (&self.relay, &self.http, &self.broker);
        rule("relay.batch_size", (1..=10_000).contains(&relay.batch_size), "must be from 1 to 10000");
        rule("relay.lanes", (1..=64).contains(&relay.lanes), "must be from 1 to 64");
        rule(
            "relay.poll_interval_ms",
            (1..=60_000).contains(&relay.poll_interval_ms),
            "must be from 1 to 60000",
        );
        rule("relay.lease_ms", (1_000..=600_000).contains(&relay.lease_ms), "must be from 1000 to 600000");
        rule("relay.max_lag_bytes", relay.max_lag_bytes >= 1 << 20, "must be at least 1048576");
        rule("relay.max_attempts", relay.max_attempts >= 1, "must be at least 1");
        rule("relay.backoff_base_ms", relay.backoff_base_ms >= 1, "must be at least 1");
        let ordered = relay.backoff_max_ms >= relay.backoff_base_ms;
        rule("relay.backoff_max_ms", ordered, "must be at least relay.backoff_base_ms");
        let redis = &self.redis;
        let hours = (1..=8_760).contains(&redis.idempotency_ttl_hours);
        rule("redis.idempotency_ttl_hours", hours, "must be from 1 to 8760");
        let limit = (1..=10_000).contains(&redis.idempotency_limit_ms);
        rule("redis.idempotency_limit_ms", limit, "must be from 1 to 10000");
        let kept = (1..=36_500).contains(&self.inbox.retention_days);
        rule("inbox.retention_days", kept, "must be from 1 to 36500");
        let progress = &self.progress;
        let word = postrider::EventType::new(&progress.completed).is_ok();
        rule("progress.completed", word, "must be an event type such as job.completed");
        let prefix = !progress.key_prefix.is_empty() && !progress.key_prefix.contains(['{', '}']);
        rule("progress.key_prefix", prefix, "must be some text without braces");
        rule("progress.ttl_days", (1..=3_650).contains(&progress.ttl_days), "must be from 1 to 3650");
        rule(
            "progress.poll_interval_ms",
            (1..=60_000).contains(&progress.poll_interval_ms),
            "must be from 1 to 60000",
        );
        let percent = (1..=100).contains(&progress.memory_alert_percent);
        rule("progress.memory_alert_percent", percent, "must be from 1 to 100");
        rule(
            "progress.keep_items_days",
            (1..=3_650).contains(&progress.keep_items_days),
            "must be from 1 to 3650",
        );
        let payload = self.limits.max_payload_bytes;
        rule("limits.max_payload_bytes", (1..=16 << 20).contains(&payload), "must be from 1 to 16777216");
        rule("limits.max_depth", (1..=128).contains(&self.limits.max_depth), "must be from 1 to 128");
        let batch = self.limits.max_batch_events;
        rule("limits.max_batch_events", (1..=10_000).contains(&batch), "must be from 1 to 10000");
        rule("http.max_body_bytes", http.max_body_bytes >= 1, "must be at least 1");
        let named = |path: &PathBuf| !path.as_os_str().is_empty();
        let certified = http.tls != Tls::Own || (named(&http.cert_file) && named(&http.key_file));
        rule("http.tls", certified, "is \"own\": name http.cert_file and http.key_file too");
        rule("http.request_timeout_ms", http.request_timeout_ms >= 1, "must be at least 1");
        rule("http.idle_timeout_ms", http.idle_timeout_ms >= 1, "must be at least 1");
        let connections = http.max_connections;
        rule("http.max_connections", (1..=1_000_000).contains(&connections), "must be from 1 to 1000000");
        rule("http.max_concurrent_requests", http.max_concurrent_requests >= 1, "must be at least 1");
        let path = self.store.path.to_string_lossy();
        let is_path = !path.is_empty() && path != ":memory:" && !path.starts_with("file:");
        rule("store.path", is_path, "must be the path of a file");
        rule("store.max_connections", self.store.max_connections >= 2, "must be at least 2");
        rule("store.connect_timeout_ms", self.store.connect_timeout_ms >= 1, "must be at least 1");
        rule("broker.connect_timeout_ms", broker.connect_timeout_ms >= 1, "must be at least 1");
        rule("broker.confirm_timeout_ms", broker.confirm_timeout_ms >= 1, "must be at least 1");
        rule("broker.call_timeout_ms", broker.call_timeout_ms >= 1, "must be at least 1");
        if let Some((key, broken)) = self.telemetry.broken_rule() {
            rule(key, false, &broken);
        }
        rule(
            "log.level",
            self.log.is_understood(),
            "must be error, warn, info, debug, trace, or directives such as info,postrider=debug",
        );
        found
    }
}
