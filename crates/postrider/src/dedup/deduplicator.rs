//! What the inbox does for effects inside the database, for those outside: claim, act, complete.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;

use super::accelerator::{Accelerator, Sighting};
use super::record::Status;
use super::room::CacheHealth;
use super::seen::Course;
use crate::clock::Clock;
use crate::envelope::PayloadHash;
use crate::store::{ClaimKey, Claimed, Claims, FencingToken, Inbox, StoreError, StoreErrorKind};

/// For how long the store's history is taken for granted.
const LINEAGE_HOLDS: Duration = Duration::from_secs(1);
/// A claim that changed under our eyes is looked at so often.
const LOOKS: usize = 3;

/// Lets one caller at a time do what no transaction covers, and answers all others with what it got.
///
/// An effect outside the database happens at least once: between doing it and [`complete`](Self::complete) a crash makes
/// nobody any wiser, and when the lease has ended the next caller does it again. Pass [`Claim::token`] along where the other side
/// can refuse a smaller one than it has seen: then a claimant that was overtaken does no harm.
///
/// ```no_run
/// # use postrider::{Clock, Payload, Deduplicator, dedup::Standing, sqlite::*};
/// # async fn example(store: Sqlite, order: Payload) -> Result<(), Box<dyn std::error::Error>> {
/// let payments = Deduplicator::new(store, Clock::system(), "payments");
/// match payments.claim("order-4711", order.hash()).await? {
///     Standing::Yours(claim) => {
///         // Charge the card, with claim.token() as the fence.
///         payments.complete(claim, "charged".into()).await?;
///     }
///     Standing::Done(answer) => println!("done before: {answer:?}"),
///     Standing::InFlight(until) => println!("somebody is at it, until {until} at most"),
///     Standing::Conflict => println!("another order has this id"),
/// }
/// # Ok(()) }
/// ```
pub struct Deduplicator<S> {
    store: S,
    clock: Clock,
    scope: String,
    owner: String,
    lease: Duration,
    accelerator: Option<Accelerator>,
    /// Which history the store has, and when it said so.
    lineage: Mutex<Option<(String, Duration)>>,
}

/// How a claim was answered.
#[derive(Debug, PartialEq, Eq)]
pub enum Standing {
    /// Do it now, and complete or release the claim.
    Yours(Claim),
    /// It was done; the first answer.
    Done(Bytes),
    /// It was claimed or done with another payload.
    Conflict,
    /// Somebody else is at it, until then at most.
    InFlight(Timestamp),
}

/// The right to do something once. Dropped, it runs out by itself.
#[derive(Debug, PartialEq, Eq)]
pub struct Claim {
    key: ClaimKey,
    token: FencingToken,
    sighting: Option<Sighting>,
}

impl Claim {
    /// Higher than that of every claim on the key before.
    pub fn token(&self) -> FencingToken {
        self.token
    }
}

impl<S: Claims + Inbox> Deduplicator<S> {
    /// Claims in this store, under keys of their own.
    pub fn new(store: S, clock: Clock, scope: impl Into<String>) -> Self {
        let owner = format!("{}/{}", crate::host::name(), std::process::id());
        let (lease, lineage) = (Duration::from_mins(1), Mutex::default());
        Self { store, clock, scope: scope.into(), owner, lease, accelerator: None, lineage }
    }

    /// How long a claimant may take; a minute, if nobody says.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long a claim lasts if it is not renewed.
    pub fn lasts(&self) -> Duration {
        self.lease
    }

    /// Asks this before the store: what is done is answered without it.
    #[must_use]
    pub fn accelerated(mut self, accelerator: &Accelerator) -> Self {
        self.accelerator = Some(accelerator.space(&self.scope));
        self
    }

    /// How the cache in front is now; nothing where there is none.
    pub async fn cache_health(&self) -> Option<CacheHealth> {
        match &self.accelerator {
            Some(accelerator) => Some(accelerator.health().await),
            None => None,
        }
    }

    /// Claims a key for a payload.
    pub async fn claim(&self, key: &str, hash: PayloadHash) -> Result<Standing, StoreError> {
        let sighting = self.sighting(key, hash).await;
        if let (Some(accelerator), Some(sighting)) = (&self.accelerator, &sighting)
            && let Some(seen) = accelerator.look(std::slice::from_ref(sighting)).await.pop()
            && let Course::Duplicate(answer) = seen.course()
        {
            return Ok(Standing::Done(answer.unwrap_or_default()));
        }
        let key = ClaimKey { scope: self.scope.clone(), key: key.to_owned() };
        Ok(match self.ask(&key, hash).await? {
            Claimed::Yours(token) => Standing::Yours(Claim { key, token, sighting }),
            Claimed::Done(answer) => {
                self.note(sighting.as_ref(), Status::Completed, Some(&answer));
                Standing::Done(answer)
            }
            Claimed::Conflict => Standing::Conflict,
            Claimed::InFlight(until) => Standing::InFlight(until),
        })
    }

    /// Keeps a claim for another lease from now on: for work that may take longer than one. False when it was lost to somebody else,
    /// who may be at it by now.
    pub async fn renew(&self, claim: &Claim) -> Result<bool, StoreError> {
        self.store.renew_claim(&claim.key, claim.token, self.lease).await
    }

    /// It is done, with this answer for everybody who comes later. False when the claim was lost to somebody else meanwhile, who
    /// may have done it too: his answer counts.
    pub async fn complete(&self, claim: Claim, answer: Bytes) -> Result<bool, StoreError> {
        let ours = self.store.complete_claim(&claim.key, claim.token, &answer).await?;
        if ours {
            self.note(claim.sighting.as_ref(), Status::Completed, Some(&answer));
        }
        Ok(ours)
    }

    /// It did not happen: anybody may try at once. False when the claim was lost before.
    pub async fn release(&self, claim: Claim) -> Result<bool, StoreError> {
        let ours = self.store.release_claim(&claim.key, claim.token).await?;
        if ours {
            self.note(claim.sighting.as_ref(), Status::Failed, None);
        }
        Ok(ours)
    }

    async fn ask(&self, key: &ClaimKey, hash: PayloadHash) -> Result<Claimed, StoreError> {
        let mut looked = 1;
        loop {
            match self.store.claim_key(key, hash, &self.owner, self.lease).await {
                Err(error) if error.kind == StoreErrorKind::Contended && looked < LOOKS => looked += 1,
                answer => return answer,
            }
        }
    }

    fn note(&self, sighting: Option<&Sighting>, status: Status, answer: Option<&Bytes>) {
        if let (Some(accelerator), Some(sighting)) = (&self.accelerator, sighting) {
            accelerator.note(sighting, status, answer);
        }
    }

    /// Under what it is looked up; nothing while the store's history is not known.
    async fn sighting(&self, key: &str, hash: PayloadHash) -> Option<Sighting> {
        let accelerator = self.accelerator.as_ref().filter(|accelerator| !accelerator.is_degraded())?;
        let now = self.clock.monotonic();
        let known = self.lineage.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let known = known.filter(|(_, since)| now.saturating_sub(*since) < LINEAGE_HOLDS);
        let lineage = if let Some((lineage, _)) = known {
            lineage
        } else {
            let lineage = self.store.lineage().await.ok();
            let mut slot = self.lineage.lock().unwrap_or_else(PoisonError::into_inner);
            *slot = lineage.clone().map(|lineage| (lineage, now));
            lineage?
        };
        let stamp = accelerator.stamp(format!("{lineage}/{}", self.scope));
        Some(accelerator.sighting(None, key, hash, &stamp))
    }
}
