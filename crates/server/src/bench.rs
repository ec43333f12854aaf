//! The figures of the README: each a ratio to a raw limit, measured in the same run on the same servers.

mod raw;
mod relay;
mod triage;

pub(crate) use raw::{EmbeddedRaw, RabbitRaw, Raw};
pub(crate) use relay::relay_over_raw;
pub(crate) use triage::{TriageFigures, triage};

use serde::Serialize;

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// Messages in each round.
    pub(crate) events: usize,
    /// Bytes of payload in each.
    pub(crate) bytes: usize,
    /// Ordering keys; 0 for none.
    pub(crate) keys: usize,
    /// Rounds, raw and relay in turn.
    pub(crate) rounds: usize,
}

/// One figure. The ratio is the median of the rounds; the rates are of that round.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figure {
    /// What it is.
    pub(crate) name: &'static str,
    /// On what.
    pub(crate) backend: String,
    /// Measured over the raw limit.
    pub(crate) ratio: f64,
    /// Measured, per second.
    pub(crate) rate: f64,
    /// The raw limit, per second.
    pub(crate) raw: f64,
    /// The ratios of all rounds.
    pub(crate) rounds: Vec<f64>,
}

impl Figure {
    /// The median round of pairs of (measured, raw) rates.
    pub(crate) fn median(name: &'static str, backend: String, mut rounds: Vec<(f64, f64)>) -> Option<Self> {
        rounds.sort_by(|(rate, raw), (other_rate, other_raw)| {
            (rate / raw).total_cmp(&(other_rate / other_raw))
        });
        let (rate, raw) = *rounds.get(rounds.len() / 2)?;
        let ratios = rounds.iter().map(|(rate, raw)| rounded(rate / raw)).collect();
        Some(Self {
            name,
            backend,
            ratio: rounded(rate / raw),
            rate: rate.round(),
            raw: raw.round(),
            rounds: ratios,
        })
    }
}

fn rounded(ratio: f64) -> f64 {
    (ratio * 100.0).round() / 100.0
}

/// So many in so long, per second.
#[expect(clippy::cast_precision_loss, reason = "counts of a benchmark are far below 2^53")]
pub(crate) fn per_second(count: usize, took: std::time::Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}
