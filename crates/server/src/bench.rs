//! The figures of the README: each a ratio to a raw limit, measured in the same run on the same servers.

mod dedup;
mod delay;
mod gate;
mod http;
mod ledger;
mod naive;
mod plain_sql;
mod raw;
mod relay;
mod table;
mod triage;

pub(crate) use dedup::DedupBench;
pub(crate) use delay::delay_over_raw;
pub(crate) use http::over_http;
pub(crate) use ledger::LedgerBench;
pub(crate) use naive::Naive;
pub(crate) use raw::{EmbeddedRaw, RabbitRaw, Raw};
pub(crate) use relay::{Rival, relay_over_raw};
pub(crate) use table::{Held, add_published, forget, forget_inbox};
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

/// One figure. The ratio is the median of the rounds; what was measured is of that round.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figure {
    /// What it is.
    pub(crate) name: String,
    /// On what.
    pub(crate) backend: String,
    /// Measured over the raw limit.
    pub(crate) ratio: f64,
    /// Measured.
    pub(crate) measured: f64,
    /// The raw limit.
    pub(crate) raw: f64,
    /// Of both: `/s`, more is better; `ms`, less is.
    pub(crate) unit: &'static str,
    /// The ratios of all rounds.
    pub(crate) rounds: Vec<f64>,
}

impl Figure {
    /// The median round of pairs of (measured, raw).
    pub(crate) fn median(
        name: impl Into<String>,
        backend: &str,
        unit: &'static str,
        mut rounds: Vec<(f64, f64)>,
    ) -> Option<Self> {
        rounds
            .sort_by(|(measured, raw), (other, other_raw)| (measured / raw).total_cmp(&(other / other_raw)));
        let (measured, raw) = *rounds.get(rounds.len() / 2)?;
        let ratios = rounds.iter().map(|(measured, raw)| rounded(measured / raw)).collect();
        Some(Self {
            name: name.into(),
            backend: backend.to_owned(),
            ratio: rounded(measured / raw),
            measured: rounded(measured),
            raw: rounded(raw),
            unit,
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
