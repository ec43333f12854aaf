//! What waits in an outbox, on the gauges that people watch.

use jiff::Timestamp;

use super::Backlog;

impl Backlog {
    /// Shows it on the gauges of this outbox.
    #[expect(clippy::cast_precision_loss, reason = "gauges are floats")]
    pub fn show(&self, outbox: &str, now: Timestamp) {
        let waited = self.oldest_due.map_or(0.0, |at| now.duration_since(at).as_secs_f64().max(0.0));
        metrics::gauge!("postrider_outbox_due", "outbox" => outbox.to_owned()).set(self.due as f64);
        metrics::gauge!("postrider_outbox_later", "outbox" => outbox.to_owned()).set(self.later as f64);
        metrics::gauge!("postrider_outbox_dead", "outbox" => outbox.to_owned()).set(self.dead as f64);
        metrics::gauge!("postrider_outbox_parked_keys", "outbox" => outbox.to_owned())
            .set(self.parked_keys as f64);
        metrics::gauge!("postrider_outbox_oldest_due_seconds", "outbox" => outbox.to_owned()).set(waited);
    }
}
