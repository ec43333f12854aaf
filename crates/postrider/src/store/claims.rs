//! Claims on what is to be done once outside the database.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;

use super::{Store, StoreError};
use crate::envelope::PayloadHash;

/// Who may do what no transaction covers. One row a key: claimed for a while, then completed with an answer, or released.
///
/// A crash leaves the claim to run out; whoever comes next with the same payload claims it anew, under a higher token. So the
/// effect happens at least once, and those who pass the token on can refuse a claimant that was overtaken.
pub trait Claims: Store {
    /// Claims a key, unless it is claimed or done.
    fn claim_key(
        &self,
        key: &ClaimKey,
        hash: PayloadHash,
        owner: &str,
        lease: Duration,
    ) -> impl Future<Output = Result<Claimed, StoreError>> + Send;

    /// Keeps a claim for this long from now on, by the store's clock. False when it was lost, completed or given up before; one that
    /// ran out and that nobody took since is the claimant's still.
    fn renew_claim(
        &self,
        key: &ClaimKey,
        token: FencingToken,
        lease: Duration,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Keeps the answer, for ever as far as a claimant can tell. False when the claim was lost to another meanwhile: his answer
    /// counts. A repeat by the same claimant is fine.
    fn complete_claim(
        &self,
        key: &ClaimKey,
        token: FencingToken,
        response: &Bytes,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Gives it up: nothing happened, and anybody may claim it at once, with another payload too. False when it was lost before.
    fn release_claim(
        &self,
        key: &ClaimKey,
        token: FencingToken,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Forgets what was last touched longer ago than this, by the store's clock, at most so many. Returns how many.
    fn forget_claims(
        &self,
        older_than: Duration,
        most: u32,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;
}

/// What is to happen once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClaimKey {
    /// Whose keys they are, such as the name of a consumer.
    pub scope: String,
    /// The key itself, such as an event's id.
    pub key: String,
}

/// Grows with every claim of a key. Pass it to whatever is called: it can refuse a smaller one than it has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(pub i64);

/// What became of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// It is the caller's, until its lease ends.
    Yours(FencingToken),
    /// It was done before; the first answer.
    Done(Bytes),
    /// It was claimed or done with another payload.
    Conflict,
    /// Somebody else has it until then.
    InFlight(Timestamp),
}

/// A claim as it stands in a table.
pub(crate) struct ClaimRow {
    pub(crate) hash: Option<PayloadHash>,
    pub(crate) lease_until: Timestamp,
    pub(crate) response: Option<Bytes>,
}

impl ClaimRow {
    /// What it means for somebody who could not have it.
    pub(crate) fn judge(self, hash: PayloadHash) -> Claimed {
        match self.response {
            _ if self.hash != Some(hash) => Claimed::Conflict,
            Some(response) => Claimed::Done(response),
            None => Claimed::InFlight(self.lease_until),
        }
    }
}
