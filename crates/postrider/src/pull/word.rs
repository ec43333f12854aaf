//! What a worker says of a lease, wherever it says it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{PullDesk, Verdict};

/// What a worker says of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// What became of the delivery: the lease ends.
    Settle(Verdict),
    /// It takes longer: the lease goes on for this long from now.
    Extend(Duration),
}

/// The same, for the desk that gave the lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullWord {
    /// The desk.
    pub desk: String,
    /// The lease's token.
    pub lease: String,
    /// What was said.
    pub said: Said,
}

impl PullDesk {
    /// Does what a worker says. False if the lease is over; then nothing was done.
    pub fn hear(&self, lease: &str, said: &Said) -> bool {
        match said {
            Said::Settle(verdict) => self.settle(lease, verdict.clone()).is_ok(),
            Said::Extend(time) => self.extend(lease, *time).is_ok(),
        }
    }
}
