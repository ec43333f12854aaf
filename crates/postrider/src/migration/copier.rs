//! Beside each relay of a migration: sends copies again that did not get through, sees to it that a phase is settled, and watches how
//! long publishing takes.
//!
//! A copy is leased while it is sent. A crash in between sends it again, under the same event id.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{Course, OnLatency, Phase};
use crate::broker::{Broker, Published};
use crate::clock::Clock;
use crate::relay::{RelayConfig, RelayStatus};
use crate::store::{CopyResult, DualPublishing, PhaseTurn, RelayId, StoreError};

/// How often it looks while a migration runs.
const EVERY: Duration = Duration::from_secs(1);
/// Copies are taken for so long.
const LEASE: Duration = Duration::from_mins(1);
/// A copy whose fate is unknown is tried again after this long.
const AGAIN: Duration = Duration::from_secs(2);
/// How often the time that publishes take is judged, in looks.
const JUDGED: u64 = 10;
/// How often old deliveries are forgotten, in looks.
const FORGETS: u64 = 60;
/// Confirmed deliveries are remembered for so long.
const REMEMBERED: Duration = Duration::from_hours(24);
/// And forgotten so many at a time.
const FORGOTTEN: u32 = 10_000;

/// Looks after the copies of one outbox.
pub(crate) struct Copier<S> {
    pub(crate) store: S,
    pub(crate) broker: Arc<dyn Broker>,
    pub(crate) clock: Clock,
    pub(crate) config: Arc<RelayConfig>,
    pub(crate) relay: RelayId,
    pub(crate) status: Arc<RelayStatus>,
}

impl<S: DualPublishing> Copier<S> {
    /// Works until told to stop.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut looks = 0_u64;
        loop {
            if let Err(error) = self.look(looks, &stop).await {
                tracing::debug!(%error, "the migration cannot be looked after now; trying again");
            }
            looks += 1;
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.clock.sleep(EVERY) => {}
            }
        }
    }

    async fn look(&self, looks: u64, stop: &CancellationToken) -> Result<(), StoreError> {
        // What the relay knows will do: this is one question less.
        let Some(course) = self.status.course() else { return Ok(()) };
        if !course.settled {
            self.store.settle_course().await?;
        }
        while !stop.is_cancelled() && self.send(&course).await? {}
        if looks.is_multiple_of(JUDGED) {
            self.judge(&course).await?;
        }
        if looks.is_multiple_of(FORGETS) {
            let before = self.clock.now().checked_sub(REMEMBERED).unwrap_or(jiff::Timestamp::MIN);
            self.store.forget_deliveries(before, FORGOTTEN).await?;
        }
        Ok(())
    }

    /// Sends copies that are due. Says whether there may be more.
    async fn send(&self, course: &Course) -> Result<bool, StoreError> {
        let limit = self.config.batch_size.max(1);
        let rows = self.store.claim_copies(limit, LEASE).await?;
        if rows.is_empty() {
            return Ok(false);
        }
        let more = rows.len() == limit;
        let (mut results, mut sent, mut batch) = (Vec::new(), Vec::new(), Vec::new());
        for row in rows {
            match self.config.copy_of(&row, &course.definition) {
                Some(copy) => {
                    batch.push(copy);
                    sent.push(row);
                }
                None => results.push((row.row.position, CopyResult::NotWanted)),
            }
        }
        let started = self.clock.monotonic();
        let answers = if batch.is_empty() { Vec::new() } else { self.broker.publish(batch).await };
        let took = self.clock.since(started);
        if !answers.is_empty() {
            metrics::histogram!("event_publish_duration_seconds", "path" => "legacy")
                .record(took.as_secs_f64());
        }
        let mut away = false;
        for (row, answer) in sent.iter().zip(answers) {
            let result = match answer {
                Published::Confirmed => CopyResult::Confirmed,
                Published::Declined(_) => CopyResult::Unknown(AGAIN),
                Published::Unknown(_) => {
                    away = true;
                    CopyResult::Unknown(AGAIN)
                }
                Published::Returned(why) | Published::Refused(why) | Published::Unfit(why) => {
                    metrics::counter!("postrider_migration_legacy_failed_total").increment(1);
                    let pause = self.config.backoff.delay(row.attempts + 1, self.clock.random());
                    CopyResult::Failed(why, pause)
                }
            };
            results.push((row.row.position, result));
        }
        self.store.settle_copies(results).await?;
        Ok(more && !away)
    }

    /// Says so when publishing takes long, and turns copies off where that was asked for.
    async fn judge(&self, course: &Course) -> Result<(), StoreError> {
        let p99 = self.status.latencies().p99();
        self.store.obeys(&self.relay, course.version, p99).await?;
        if course.phase != Phase::Dual {
            return Ok(());
        }
        let rule = &course.definition.latency;
        let Some((path, ms, too_slow)) = p99.judge(rule) else { return Ok(()) };
        tracing::warn!(
            path,
            p99_ms = ms,
            warn_ms = rule.warn_ms,
            limit_ms = rule.limit_ms,
            "publishing to two buses takes long: 1 of 100 batches takes longer than this"
        );
        if !too_slow || rule.on_latency != OnLatency::Disable {
            return Ok(());
        }
        let turn = PhaseTurn {
            name: course.definition.name.clone(),
            from_version: course.version,
            to: Phase::Suspended,
            by: format!("relay:{}", self.relay),
            reason: format!(
                "the slowest of 100 publishes to the {path} bus took {ms:.0} ms, more than {}",
                rule.limit_ms
            ),
            forced: Vec::new(),
        };
        if self.store.turn_migration(&turn).await? {
            tracing::error!(
                path,
                p99_ms = ms,
                "copies to the old bus are turned off because publishing is too slow; `postrider migration rollback` turns \
                 them on again and makes up for those that are missing"
            );
        }
        Ok(())
    }
}
