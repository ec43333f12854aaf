//! Spans to an OpenTelemetry collector, over HTTP as JSON. Nothing of it runs unless `telemetry.otlp_endpoint` names a collector.
//!
//! Spans are a view: where the collector is away or too slow they are dropped and counted, and nothing waits for them.

mod export;
mod otlp;

use std::time::Duration;

use postrider::Clock;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer};

use self::export::Exporter;
use self::otlp::Resource;
use crate::config::{Backends, Config};

/// So many spans wait to be sent; more are dropped.
const WAITING: usize = 8192;
/// How long the last ones may take at the end.
const LAST_CALL: Duration = Duration::from_secs(3);

/// What takes finished spans from the log.
pub(crate) struct Collect(mpsc::Sender<Told>);

/// What sends them.
pub(crate) struct Exporting {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// A finished span as the library tells it.
#[derive(Debug, Default)]
pub(super) struct Told {
    operation: String,
    destination: String,
    message_id: String,
    parent: String,
    own: String,
    /// In microseconds since 1970.
    began: i64,
    ended: i64,
    error: Option<String>,
}

/// Starts to export, if the configuration wants it.
pub(crate) fn start(config: &Config, clock: &Clock) -> anyhow::Result<Option<(Collect, Exporting)>> {
    let telemetry = &config.settings.telemetry;
    let Some(url) = telemetry.traces_url() else { return Ok(None) };
    let (sender, told) = mpsc::channel(WAITING);
    let resource = Resource {
        service: telemetry.service_name.clone(),
        instance: clock.new_id().to_string(),
        system: match config.backends {
            Backends::Embedded { .. } => "postrider",
            Backends::Networked { .. } | Backends::BrokerAlone { .. } => "rabbitmq",
        },
    };
    let headers = telemetry.headers().unwrap_or_default();
    let exporter = Exporter::new(url, &headers, resource, told, clock.clone())?;
    let stop = CancellationToken::new();
    let task = tokio::spawn(exporter.run(stop.clone()));
    Ok(Some((Collect(sender), Exporting { stop, task })))
}

impl Exporting {
    /// Sends what is left, for a few seconds at most.
    pub(crate) async fn finish(self) {
        self.stop.cancel();
        let _too_slow = tokio::time::timeout(LAST_CALL, self.task).await;
    }
}

impl<S: tracing::Subscriber> Layer<S> for Collect {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut told = Told::default();
        event.record(&mut told);
        if self.0.try_send(told).is_err() {
            metrics::counter!("postrider_spans_dropped_total", "reason" => "full").increment(1);
        }
    }
}

impl Visit for Told {
    fn record_str(&mut self, field: &Field, value: &str) {
        let place = match field.name() {
            "operation" => &mut self.operation,
            "destination" => &mut self.destination,
            "message_id" => &mut self.message_id,
            "parent" => &mut self.parent,
            "own" => &mut self.own,
            "error" => return self.error = Some(value.to_owned()),
            _ => return,
        };
        value.clone_into(place);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        match field.name() {
            "began" => self.began = value,
            "ended" => self.ended = value,
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}
