//! The log: on stderr, as text or JSON, never with payloads or secrets.

use anyhow::Context as _;
use postrider::Clock;
use postrider::spans::TARGET;
use serde_json::json;
use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry, fmt, reload};

use crate::config::LogFormat;
use crate::telemetry::Collect;

/// What is logged: the level that was asked for, never the AMQP driver of the benchmark, which logs bodies of messages, nor
/// spans, which are exported, and of the SQL driver only errors, because a slow statement is told by our own metrics.
fn filter(level: &str) -> anyhow::Result<EnvFilter> {
    let silent = |target| format!("{target}=off").parse();
    Ok(EnvFilter::try_new(level)?
        .add_directive(silent("lapin")?)
        .add_directive(silent(postrider::spans::TARGET)?)
        .add_directive("sqlx=error".parse()?))
}

/// Whether a process that serves has its log in JSON: then every line on stderr is.
static IN_JSON: AtomicBool = AtomicBool::new(false);

/// From now on what is said has the form of the log.
pub(crate) fn speak_as(format: LogFormat) {
    IN_JSON.store(format == LogFormat::Json, Ordering::Relaxed);
}

/// Says something that is no matter of the log's level: which backend, where it listens, that it stops.
pub(crate) fn say(text: &str) {
    line("INFO", text, text);
}

/// Says why the process ends.
pub(crate) fn say_error(text: &str) {
    line("ERROR", text, &format!("error: {text}"));
}

fn line(level: &str, message: &str, plain: &str) {
    if !IN_JSON.load(Ordering::Relaxed) {
        eprintln!("{plain}");
        return;
    }
    // The names that the log's own lines have.
    let timestamp = format!("{:.6}", Clock::system().now());
    let line = json!({ "timestamp": timestamp, "level": level, "message": message, "target": "postrider" });
    eprintln!("{line}");
}

/// The running log, whose level can change.
pub(crate) struct Logging(reload::Handle<EnvFilter, Registry>);

impl Logging {
    /// Starts the log, and hands finished spans to who exports them.
    pub(crate) fn start(
        format: LogFormat,
        level: &str,
        no_color: bool,
        spans: Option<Collect>,
    ) -> anyhow::Result<Self> {
        let (filter, handle) = reload::Layer::new(filter(level)?);
        let color = !no_color && std::io::stderr().is_terminal();
        let layer = fmt::layer().with_writer(std::io::stderr);
        let layer = match format {
            LogFormat::Text => layer.with_ansi(color).boxed(),
            LogFormat::Json => layer.json().flatten_event(true).boxed(),
        };
        let spans = spans.map(|spans| spans.with_filter(filter_fn(|about| about.target() == TARGET)));
        tracing_subscriber::registry()
            .with(layer.with_filter(filter))
            .with(spans)
            .try_init()
            .context("the log was started before")?;
        Ok(Self(handle))
    }

    /// Changes what is logged from now on.
    pub(crate) fn set_level(&self, level: &str) -> anyhow::Result<()> {
        self.0.reload(filter(level)?).context("the log has ended")
    }
}
