//! When to try again, and when to call somebody: once an outage, not once an attempt.

use std::time::Duration;

use crate::progress::ProgressError;

/// An outage of the server, or none.
pub(super) struct Outage {
    waits: Vec<Duration>,
    /// Attempts that failed in a row.
    failures: usize,
}

impl Outage {
    pub(super) fn new(waits: Vec<Duration>) -> Self {
        Self { waits, failures: 0 }
    }

    /// An attempt failed. Says how long to wait before the next.
    pub(super) fn failed(&mut self, error: &ProgressError) -> Duration {
        self.failures += 1;
        if self.is_alarming() {
            metrics::counter!("postrider_progress_alerts_total", "alert" => "unavailable").increment(1);
            tracing::error!(
                alert = "critical",
                %error,
                "progress cannot be shown in Redis; everything else goes on, and changes are kept and shown later"
            );
        } else {
            tracing::debug!(%error, "progress cannot be shown yet");
        }
        let last = self.waits.last().copied().unwrap_or(Duration::from_secs(4));
        self.waits.get(self.failures - 1).copied().unwrap_or(last)
    }

    /// An attempt succeeded.
    pub(super) fn over(&mut self) {
        if self.failures > self.waits.len() {
            tracing::info!(attempts = self.failures, "progress is shown in Redis again; nothing was lost");
        }
        self.failures = 0;
    }

    /// The first attempt after all the waits: from here on the outage is somebody's business.
    fn is_alarming(&self) -> bool {
        self.failures == self.waits.len() + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::ProgressErrorKind;

    #[test]
    fn somebody_is_called_once_after_three_retries() {
        let mut outage = Outage::new([1, 2, 4].map(Duration::from_secs).to_vec());
        let error = ProgressError::new(ProgressErrorKind::Unavailable, "away");
        let mut alarms = Vec::new();
        let mut waits = Vec::new();
        for _ in 0..6 {
            waits.push(outage.failed(&error).as_secs());
            alarms.push(outage.is_alarming());
        }
        assert_eq!(waits, [1, 2, 4, 4, 4, 4]);
        assert_eq!(alarms, [false, false, false, true, false, false]);
        outage.over();
        assert_eq!(outage.failed(&error).as_secs(), 1);
    }
}
