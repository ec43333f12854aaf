//! The figures of the README: each a ratio to a raw limit, measured in the same run on the same servers.

mod chart;
mod consumer;
mod dashboard;
mod delay;
mod desk;
mod duplicates;
mod effects;
mod embedded;
mod end_to_end;
mod gate;
mod growth;
mod http;
mod latency;
mod ledger;
mod memory;
mod naive;
mod plain_sql;
mod processor;
mod raw;
mod relay;
mod servers;
mod table;
mod triage;
mod verified;
mod watched;

pub(crate) use chart::chart;
pub(crate) use embedded::Embedded;
pub(crate) use servers::Servers;

use naive::Naive;
use raw::Raw;

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One thing that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// The relay over raw publishing with confirms, beside a naive poller
    Relay,
    /// From commit to confirm, at a steady rate
    Delay,
    /// Consumers over raw consuming and over bare transactions
    Consumer,
    /// From commit to effect: throughput over the slowest raw stage, and time under load
    EndToEnd,
    /// New events and duplicates with Redis in front of the inbox, over the inbox alone
    Duplicates,
    /// Publishing over HTTP, and push
    Http,
    /// Dead letters: collecting, listing, grouping, searching, replaying
    Letters,
    /// Open dashboards beside the relay, and pages with a long history behind them
    Dashboard,
    /// The ledger over a posting function in SQL, in a database of its own
    Ledger,
    /// What our process holds in memory, as events go through
    Memory,
    /// The cost of an event as outbox, inbox and dead letters grow
    Growth,
    /// The embedded default, in a file of its own
    Embedded,
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// Messages in each round.
    pub(crate) events: usize,
    /// Bytes of payload in each.
    pub(crate) bytes: usize,
    /// Ordering keys; 0 for none.
    pub(crate) keys: usize,
    /// Rounds, raw and ours in turn.
    pub(crate) rounds: usize,
}

impl Load {
    /// The same with so many keys. One message at a time takes longer, so with one key there are fewer.
    fn with_keys(self, keys: usize) -> Self {
        let events = if keys == 1 { self.events.div_ceil(10) } else { self.events };
        Self { events, keys, ..self }
    }
}

/// How much is measured of what is not told by a [`Load`].
#[derive(Debug, Clone)]
pub(crate) struct Sizes {
    /// The numbers of ordering keys that the relay is measured with.
    pub(crate) keys: Vec<usize>,
    /// Events a second while the time from commit to confirm is measured.
    pub(crate) rate: u32,
    /// How long each load of the time under load lasts.
    pub(crate) lasting: Duration,
    /// Dead letters to find something among.
    pub(crate) letters: usize,
    /// Of these, so many are sent again.
    pub(crate) replays: u64,
    /// Events to look at a page of.
    pub(crate) history: usize,
    /// Rows that the tables grow to.
    pub(crate) rows: Vec<usize>,
}

/// Which of two values one would rather have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Better {
    Higher,
    Lower,
}

/// One figure. The ratio is the median of the rounds; what was measured is of that round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// What it is.
    pub(crate) name: String,
    /// On what.
    pub(crate) backend: String,
    /// Measured.
    pub(crate) value: f64,
    /// The raw limit.
    pub(crate) raw: f64,
    /// The one over the other.
    pub(crate) ratio: f64,
    /// What the ratio should be, where somebody asked for it.
    pub(crate) target: Option<f64>,
    /// Which ratio one would rather have.
    pub(crate) better: Better,
    /// Of both values: `/s`, `ms`, `s` or `MiB`.
    pub(crate) unit: Cow<'static, str>,
    /// The ratios of all rounds, in order of size.
    pub(crate) rounds: Vec<f64>,
}

impl Figure {
    /// The median round of pairs of (measured, raw). None without rounds.
    pub(crate) fn median(
        name: impl Into<String>,
        backend: &str,
        unit: &'static str,
        mut rounds: Vec<(f64, f64)>,
    ) -> Option<Self> {
        rounds.sort_by(|(value, raw), (other, other_raw)| (value / raw).total_cmp(&(other / other_raw)));
        let (value, raw) = *rounds.get(rounds.len() / 2)?;
        Some(Self {
            name: name.into(),
            backend: backend.to_owned(),
            value: rounded(value),
            raw: rounded(raw),
            ratio: rounded(value / raw),
            target: None,
            better: if unit == "/s" { Better::Higher } else { Better::Lower },
            unit: unit.into(),
            rounds: rounds.iter().map(|(value, raw)| rounded(value / raw)).collect(),
        })
    }

    /// The same with what the ratio should be.
    pub(crate) fn aims_at(self, target: f64) -> Self {
        Self { target: Some(target), ..self }
    }

    /// Whether the target is reached; so it is where there is none.
    pub(crate) fn is_reached(&self) -> bool {
        self.target.is_none_or(|target| match self.better {
            Better::Higher => self.ratio >= target,
            Better::Lower => self.ratio <= target,
        })
    }
}

fn rounded(ratio: f64) -> f64 {
    (ratio * 100.0).round() / 100.0
}

/// So many in so long, per second.
#[expect(clippy::cast_precision_loss, reason = "counts of a benchmark are far below 2^53")]
pub(crate) fn per_second(count: usize, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}

/// A share of sorted durations' place, in milliseconds: of 1000, 999 is p99.9.
fn per_mille(sorted: &[Duration], place: usize) -> f64 {
    sorted.get(sorted.len() * place / 1000).map_or(0.0, |duration| duration.as_secs_f64() * 1000.0)
}
