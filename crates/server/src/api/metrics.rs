//! `GET /v1/metrics`: what Prometheus scrapes.

pub(crate) mod catalogue;

use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Context as _;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use postrider::Clock;

use super::Api;

/// From half a millisecond to ten seconds: a commit, a publish, an attempt.
const SECONDS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// How often histograms are tidied up; without it they grow.
const UPKEEP: Duration = Duration::from_secs(5);

/// Starts to measure, once in a process; every further call gets the same handle.
pub(crate) fn install() -> anyhow::Result<PrometheusHandle> {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    if let Some(handle) = HANDLE.get() {
        return Ok(handle.clone());
    }
    let buckets =
        PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS);
    let handle = buckets.and_then(PrometheusBuilder::install_recorder).context("cannot start to measure")?;
    catalogue::describe();
    Ok(HANDLE.get_or_init(|| handle).clone())
}

/// Keeps the memory of the histograms in bounds. Runs until it is dropped.
pub(crate) async fn upkeep(handle: PrometheusHandle, clock: Clock) {
    loop {
        clock.sleep(UPKEEP).await;
        handle.run_upkeep();
    }
}

/// The text that Prometheus reads.
pub(super) async fn scrape(State(api): State<Api>) -> Response {
    let text = api.metrics.render();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}
