//! Sends what may go out now, and takes the answers.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use super::super::both::{self, Sent};
use super::super::outgoing::{Attempts, Untold, trace};
use super::{Done, Pump, Step};
use crate::migration::Delivered;
use crate::store::{Outbox, OutboxRow, PublishResult, SLOTS};

impl<S: Outbox> Pump<S> {
    pub(super) fn publish(&mut self) {
        let lanes = usize::from(self.relay.config.lanes.max(1));
        while self.publishing < lanes && self.flow.is_ready() && !self.pause.is_on() && self.is_leased() {
            if !self.may_publish() {
                return;
            }
            let rows = self.flow.next(self.relay.config.batch_size.max(1));
            self.publishing += 1;
            let plan = self.obeyed.plan(&rows, self.now());
            let relay = &self.relay;
            let (broker, clock, config) = (relay.broker.clone(), relay.clock.clone(), relay.config.clone());
            let store = relay.store.clone();
            self.start(async move {
                Step::Published(both::publish(&store, broker.as_ref(), &clock, &config, rows, plan).await)
            });
        }
    }

    pub(super) fn published(&mut self, sent: Sent) {
        self.publishing -= 1;
        let Sent { rows, took, copies_took, late } = sent;
        if late {
            self.obeyed.leave_old_bus_alone(self.now());
        }
        metrics::histogram!("event_publish_duration_seconds", "path" => "new").record(took.as_secs_f64());
        if let Some(took) = copies_took {
            metrics::histogram!("event_publish_duration_seconds", "path" => "legacy")
                .record(took.as_secs_f64());
        }
        if self.obeyed.copies() {
            self.relay.status.latencies.note(took, copies_took);
        }
        let (mut unknown, mut outage, mut attempts) = (Vec::new(), None, Attempts::default());
        let mut declined = Vec::new();
        for (row, answer) in rows {
            trace(&row, answer.of_new(), &self.relay.config, took, &self.relay.clock);
            let judged =
                both::judge(&row, answer, self.obeyed.blocks(), &self.relay.config, &self.relay.clock);
            let (result, delivered) = match judged {
                Ok(judged) => judged,
                Err(both::Undecided { why, halves, delivered }) => {
                    attempts.unknown += 1;
                    self.obeyed.remember(row.row.position, halves);
                    match why {
                        Untold::Away(why) => {
                            outage.get_or_insert(why);
                            unknown.push(row);
                        }
                        Untold::Declined(why) => declined.push((row, why, delivered)),
                    }
                    continue;
                }
            };
            self.obeyed.forget(row.row.position);
            self.declined.forget(row.row.position);
            if result == PublishResult::Published {
                attempts.confirmed += 1;
                if let Some(after) = self.flow.confirmed(&row) {
                    self.reading.again(after, row.row.created_at);
                }
                if row.attempts > 0 {
                    self.flow.recovered(&row);
                }
            } else {
                attempts.failed += 1;
                self.fails(&row);
            }
            self.is_done(row, result, delivered);
        }
        attempts.count();
        self.go_out_again(unknown);
        self.decline(declined);
        match outage {
            Some(why) => self.outage(&format!("the broker could not take messages: {why}")),
            None => self.works(),
        }
    }

    /// What waits behind it waits for the store's next word on it.
    pub(super) fn fails(&mut self, row: &OutboxRow) {
        self.flow.failed(row);
        if let Some(key) = row.envelope.ordering_key.clone() {
            self.parked.add(key);
        }
        self.park(row);
        self.relay.status.failed.fetch_add(1, Ordering::Relaxed);
        metrics::counter!("postrider_relay_failed_total").increment(1);
    }

    pub(super) fn is_done(&mut self, row: OutboxRow, result: PublishResult, delivered: Option<Delivered>) {
        let (key, retried) = (row.envelope.ordering_key, row.attempts > 0);
        let replay = row.dead_letter.is_some();
        self.done.push(Done { row: row.row, key, retried, replay, result, delivered });
    }

    /// Rows of which nobody knows what became. A row of a slot that was lost is its heir's to publish.
    pub(super) fn go_out_again(&mut self, rows: Vec<OutboxRow>) {
        let held: HashSet<_> = self.held.iter().map(|lease| lease.slot).collect();
        let all = held.len() == SLOTS;
        let (ours, lost): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|row| row.slot.map_or(all, |slot| held.contains(&slot)));
        self.flow.unknown(ours);
        if lost.iter().any(|row| row.slot.is_none()) {
            self.reading.start_over();
        }
        self.flow.drop_flying(lost, self.claims);
    }
}
