//! Idempotency keys in front of the books, as the FIS document has them: `fis:ik:{tenant}:{event}`.
//!
//! An event that is `COMPLETED` there with the same payload, in this history of this database, is acked without asking the books.
//! Everything else is for the books to decide: whoever is `PROCESSING` may have died, `FAILED` may be tried again, and another payload
//! is a conflict that they alone declare. The keys may be lost at any moment; then the books are asked.

use std::time::Duration;

use bytes::Bytes;
use postrider::dead_letter::header::REPLAY_ID;
use postrider::dedup::{Accelerator, Course, Sighting, Status};
use postrider::topology::ConsumerName;
use postrider::{Clock, Inbox};
use tokio::sync::Mutex;

use super::Arrived;
use crate::pipeline::Answer;
use crate::refusal::Refusal;

/// What the keys begin with.
const SPACE: &str = "fis";
/// How long the history is believed to be the same. A failover takes longer.
const FRESH: Duration = Duration::from_secs(1);

/// Looks events up before the books are asked, and notes what became of them.
pub struct Sight<B> {
    accelerator: Accelerator,
    books: B,
    clock: Clock,
    name: ConsumerName,
    /// Which history the books have, and when they said so.
    lineage: Mutex<Option<(Duration, String)>>,
}

impl<B: Inbox> Sight<B> {
    /// Keys of the intake with this name.
    pub fn new(accelerator: &Accelerator, books: B, clock: Clock, name: ConsumerName) -> Self {
        Self { accelerator: accelerator.space(SPACE), books, clock, name, lineage: Mutex::default() }
    }

    /// Looks all of them up in one round trip. What somebody sends again on purpose is for the books alone.
    pub(super) async fn look(&self, arrived: &mut [Arrived]) {
        let Some(lineage) = self.lineage().await else { return };
        let stamp = self.accelerator.stamp(lineage);
        let (mut asked, mut sightings) = (Vec::new(), Vec::new());
        for one in arrived {
            let Ok((tenant, arrival)) = &one.read else { continue };
            if one.delivery.message.header(REPLAY_ID).is_some() {
                continue;
            }
            let (event, hash) = arrival.id();
            let tenant = Some(tenant.clone());
            sightings.push(self.accelerator.sighting(tenant, event.as_str(), hash, &stamp));
            asked.push(one);
        }
        let seen = self.accelerator.look(&sightings).await;
        for ((one, sighting), seen) in asked.into_iter().zip(sightings).zip(seen) {
            one.known = matches!(seen.course(), Course::Duplicate(_));
            one.sighting = Some(sighting);
        }
    }

    /// Notes what became of an event, without waiting: `COMPLETED` with its entry, or `FAILED`. Nothing of a conflict: the note of
    /// what was posted stays.
    pub(super) fn note(&self, sighting: &Sighting, answer: &Answer) {
        match answer {
            Answer::Posted(receipt) | Answer::Duplicate(receipt) => {
                let answer = serde_json::to_vec(receipt).ok().map(Bytes::from);
                self.accelerator.note(sighting, Status::Completed, answer.as_ref());
            }
            Answer::Refused(Refusal::Conflict { .. }) => {}
            Answer::Refused(_) => self.accelerator.note(sighting, Status::Failed, None),
        }
    }

    /// Which history the books have; nothing when they do not say, and then nothing can be believed.
    async fn lineage(&self) -> Option<String> {
        let mut known = self.lineage.lock().await;
        if let Some((_, lineage)) = known.as_ref().filter(|(at, _)| self.clock.since(*at) < FRESH) {
            return Some(lineage.clone());
        }
        let asked = self.clock.monotonic();
        *known = match self.books.lineage().await {
            Ok(lineage) => Some((asked, format!("{lineage}/{}", self.name))),
            Err(error) => {
                tracing::debug!(%error, "the store does not say which history it has; Redis is not asked");
                None
            }
        };
        known.as_ref().map(|(_, lineage)| lineage.clone())
    }
}
