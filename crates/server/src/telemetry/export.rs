//! Posts spans to the collector, many at a time.

use std::time::Duration;

use anyhow::Context as _;
use postrider::Clock;
use reqwest::Client;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::Told;
use super::otlp::{self, Resource};

/// At most so many go together.
const MOST: usize = 512;
/// How long the first waits for others.
const LINGER: Duration = Duration::from_secs(1);
/// How long the collector may take.
const LIMIT: Duration = Duration::from_secs(5);

pub(super) struct Exporter {
    client: Client,
    url: Url,
    resource: Resource,
    told: mpsc::Receiver<Told>,
    clock: Clock,
    /// The last batch was refused: that is said once.
    failing: bool,
}

impl Exporter {
    pub(super) fn new(
        url: Url,
        headers: &[(&str, &str)],
        resource: Resource,
        told: mpsc::Receiver<Told>,
        clock: Clock,
    ) -> anyhow::Result<Self> {
        let mut all = HeaderMap::new();
        for (name, value) in headers {
            let name: HeaderName = name.parse().context("telemetry.otlp_headers has no name of a header")?;
            let mut value =
                HeaderValue::from_str(value).context("telemetry.otlp_headers has no text of a header")?;
            value.set_sensitive(true);
            all.insert(name, value);
        }
        let client = Client::builder().default_headers(all).timeout(LIMIT).no_proxy().build()?;
        Ok(Self { client, url, resource, told, clock, failing: false })
    }

    /// Works until told to stop, then sends what is left.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut batch = Vec::new();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled(), if !self.told.is_closed() => self.told.close(),
                taken = self.told.recv_many(&mut batch, MOST) => {
                    if taken == 0 {
                        return;
                    }
                    if batch.len() < MOST && !self.told.is_closed() {
                        tokio::select! {
                            () = stop.cancelled() => {}
                            () = self.clock.sleep(LINGER) => {}
                        }
                    }
                    while batch.len() < MOST && let Ok(more) = self.told.try_recv() {
                        batch.push(more);
                    }
                    self.post(&batch).await;
                    batch.clear();
                }
            }
        }
    }

    /// Spans that cannot be sent are given up: they are a view, and the next ones come.
    async fn post(&mut self, batch: &[Told]) {
        let spans = batch.len() as u64;
        let body = otlp::request(batch, &self.resource).to_string();
        let request = self.client.post(self.url.clone()).header(CONTENT_TYPE, "application/json").body(body);
        let why = match request.send().await {
            Ok(answer) if answer.status().is_success() => {
                self.failing = false;
                metrics::counter!("postrider_spans_exported_total").increment(spans);
                return;
            }
            Ok(answer) => format!("it answered {}", answer.status()),
            Err(error) => error.without_url().to_string(),
        };
        metrics::counter!("postrider_spans_dropped_total", "reason" => "collector").increment(spans);
        if !self.failing {
            tracing::warn!(why, "the collector does not take spans; they are dropped until it does");
        }
        self.failing = true;
    }
}
