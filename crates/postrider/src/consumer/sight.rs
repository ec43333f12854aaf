//! Looks deliveries up in front of the inbox as they arrive, all of them in one round trip, and notes what became of them.
//!
//! What is known there is acked without a transaction. Everything else goes its way as if nobody had been asked.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::arrived::{Arrived, Errand};
use super::{Consumer, lock};
use crate::broker::Delivery;
use crate::dead_letter::header::REPLAY_ID;
use crate::dedup::{Accelerator, Course, Sighting, Stamp, Status, note};
use crate::handler::Incoming;
use crate::settlement::Outcome;
use crate::store::ConsumerStore;

impl<S: ConsumerStore> Consumer<S> {
    /// Reads deliveries and looks them up. A probe is for the store, so it is not spared.
    pub(super) async fn meet(&self, deliveries: Vec<Delivery>, probe: bool) -> Vec<Arrived> {
        let mut arrived: Vec<_> = deliveries.into_iter().map(|delivery| self.read(delivery)).collect();
        let Some(accelerator) = self.accelerator.as_ref().filter(|_| !probe) else { return arrived };
        let lineage = lock(&self.lineage).clone();
        if lineage.is_empty() {
            return arrived;
        }
        let stamp = accelerator.stamp(format!("{lineage}/{}", self.inbox()));
        let (mut asked, mut sightings) = (Vec::new(), Vec::new());
        for one in &mut arrived {
            let Some(sighting) = self.sighting(one, accelerator, &stamp) else { continue };
            if one.delivery.message.header(REPLAY_ID).is_some() {
                // What somebody sends again on purpose is for the store alone; what becomes of it is noted.
                one.sighting = Some(sighting);
            } else {
                sightings.push(sighting);
                asked.push(one);
            }
        }
        let seen = accelerator.look(&sightings).await;
        for ((one, sighting), seen) in asked.into_iter().zip(sightings).zip(seen) {
            one.known = matches!(seen.course(), Course::Duplicate(_));
            one.sighting = Some(sighting);
        }
        arrived
    }

    /// Under what it is looked up and noted. What the process may have died under is for the store alone.
    fn sighting(&self, arrived: &Arrived, accelerator: &Accelerator, stamp: &Arc<Stamp>) -> Option<Sighting> {
        let incoming = arrived.read.as_ref().ok()?;
        if self.left_a_mark(arrived) {
            return None;
        }
        let Errand::Handle(_) = self.errand(arrived) else { return None };
        let envelope = &incoming.envelope;
        let (tenant, id) = (envelope.tenant.group.clone(), envelope.id.as_str());
        Some(accelerator.sighting(tenant, id, incoming.hash(), stamp))
    }

    /// Notes what became of a delivery, without waiting. Of one that was known there is nothing new.
    pub(super) fn note(&self, arrived: &Arrived, outcome: &Outcome) {
        let (Some(accelerator), Some(sighting)) = (&self.accelerator, &arrived.sighting) else { return };
        let Some(status) = note(outcome).filter(|_| !arrived.known) else { return };
        // In a shared inbox a duplicate may say something else than what was applied.
        if *outcome == Outcome::Duplicate && self.config.inbox.is_some() {
            return;
        }
        let answer = arrived.read.as_ref().ok().and_then(Incoming::answered);
        accelerator.note(sighting, status, answer.as_ref().filter(|_| status == Status::Completed));
    }

    /// How many deliveries are taken from the subscription at a time: with somebody to ask first, be it the inbox before a call, all
    /// there are, so that they are asked about together.
    pub(super) fn most_at_a_time(&self) -> usize {
        let handled = self.pace().limit().max(self.registry.largest_batch().unwrap_or(1));
        let asks_first = self.accelerator.is_some() || self.registry.works_outside();
        if asks_first { handled.max(usize::from(self.config.prefetch)) } else { handled }
    }

    /// Asks the store which history it has. Until it says so nothing is looked up.
    pub(super) async fn learn_lineage(&self) {
        if self.accelerator.is_none() {
            return;
        }
        match self.store.lineage().await {
            Ok(lineage) => *lock(&self.lineage) = lineage,
            Err(error) => {
                self.forget_lineage();
                if !error.is_transient() && !self.told_of_lineage.swap(true, Ordering::Relaxed) {
                    tracing::warn!(consumer = %self.name, %error,
                        "the store does not say which history it has, so Redis cannot be believed and is not asked");
                }
            }
        }
    }

    /// After a failure the store may be another one.
    pub(super) fn forget_lineage(&self) {
        lock(&self.lineage).clear();
    }
}
