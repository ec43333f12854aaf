//! Poller and stream agree on a point: what is before it is polled to its end, and then the stream is read.

use std::time::Duration;

use super::super::{Pump, Step};
use super::{News, Phase};
use crate::envelope::OrderingKey;
use crate::relay::handover::Handover;
use crate::store::{Horizon, Outbox, OutboxRow, SLOTS, StoreError};

/// How often to look whether the writers of before have ended.
const CLEARING: Duration = Duration::from_millis(10);

impl<S: Outbox> Pump<S> {
    /// Takes the point when no claim is under way: nothing after it was claimed before.
    pub(super) fn reach(&mut self) {
        let patience = self.relay.config.lease * 4;
        if self.held.len() < SLOTS && self.now() > self.streaming.since + patience {
            self.lose("the other relays did not give their slots back in time");
        } else if self.held.len() == SLOTS && self.is_leased() && !self.claiming && !self.pause.is_on() {
            self.claiming = true;
            self.streaming.phase = Phase::Reaching;
            let store = self.relay.store.clone();
            self.start(async move { Step::Stream(News::Reached(store.horizon().await)) });
        }
    }

    pub(super) fn reached(&mut self, point: Result<Horizon, StoreError>) {
        self.claiming = false;
        match point {
            Ok(_) if self.held.len() < SLOTS => self.streaming.phase = Phase::Waiting,
            Ok(point) => {
                self.streaming.handover = Handover::new(point.position);
                self.streaming.phase = Phase::Joining { writers: Some(point.writers), asked: false };
                self.look_at_writers(Duration::ZERO);
            }
            Err(error) => self.lose(&error.to_string()),
        }
    }

    fn look_at_writers(&mut self, pause: Duration) {
        let (store, clock) = (self.relay.store.clone(), self.relay.clock.clone());
        self.start(async move {
            clock.sleep(pause).await;
            Step::Stream(News::Writing(store.horizon().await))
        });
    }

    /// Once everybody who may have drawn a position before the point has ended, one look finds all of it.
    pub(super) fn writing(&mut self, now: Result<Horizon, StoreError>) {
        let Phase::Joining { writers, .. } = &mut self.streaming.phase else { return };
        match now {
            Ok(now) if writers.iter().flatten().all(|writer| !now.writers.contains(writer)) => {
                *writers = None;
                self.reading.look_from_low();
            }
            Ok(_) => self.look_at_writers(CLEARING),
            Err(error) => self.lose(&error.to_string()),
        }
    }

    /// A claim for new rows goes out.
    pub(in crate::relay) fn asked_for_new(&mut self) {
        if self.is_joined() {
            self.streaming.handover.asked();
        }
        if let Phase::Joining { writers: None, asked } = &mut self.streaming.phase {
            *asked |= self.reading.is_from_low();
        }
    }

    /// It was answered.
    pub(in crate::relay) fn found_new(&mut self, rows: &mut Vec<OutboxRow>, without: &[OrderingKey]) {
        if !self.is_joined() {
            return;
        }
        let complete = !self.reading.has_more() && self.asked_of == self.held && self.is_leased();
        self.streaming.handover.answered(rows, complete, without);
        let Phase::Joining { writers: None, asked } = &mut self.streaming.phase else { return };
        if !without.is_empty() {
            // Something was left out: it takes another look from the bottom.
            *asked = false;
            self.reading.look_from_low();
        } else if *asked && complete {
            self.streaming.phase = Phase::Entering;
            self.look_at_failing();
        }
    }

    pub(super) fn look_at_failing(&mut self) {
        self.streaming.failing_at = Some(self.now());
        let store = self.relay.store.clone();
        self.start(async move { Step::Stream(News::Failing(store.failing_keys().await)) });
    }

    pub(super) fn failing(&mut self, keys: Result<Vec<OrderingKey>, StoreError>) {
        match keys {
            Ok(keys) if self.is_joined() => {
                let flow = &self.flow;
                if self.streaming.handover.see_failing(keys, |key| flow.is_blocked(key)) {
                    self.reading.start_over();
                }
                if matches!(self.streaming.phase, Phase::Entering) {
                    self.streaming.phase = Phase::Live;
                    self.streaming.since = self.now();
                    self.streaming.said = None;
                    self.relay.status.set_streaming(true);
                    tracing::info!(relay = %self.relay.id, "the relay streams");
                }
            }
            Err(error) if matches!(self.streaming.phase, Phase::Entering) => self.lose(&error.to_string()),
            _ => {}
        }
    }
}
