//! Claims in any order, by whoever ever had one: a store answers as a table of one row that is written down here does.
//!
//! The models in `postrider` play owners that die and leases that end on such a table; this says that the stores keep to it.

use std::time::Duration;

use bytes::Bytes;
use postrider::store::{ClaimKey, Claimed, Claims, FencingToken};

use super::{LEASE, hash, key};
use crate::conformance::store::StoreFixture;
use crate::conformance::until;
use crate::sim::random::Random;

const SCHEDULES: u64 = 60;
const STEPS: usize = 14;
const PAYLOADS: [&str; 2] = ["one", "two"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lease {
    Holds,
    Ended,
    GivenUp,
}

#[derive(Debug)]
struct Row {
    payload: &'static str,
    token: FencingToken,
    lease: Lease,
    response: Option<Bytes>,
}

impl Row {
    /// Whether it is to be had.
    fn is_free_for(&self, payload: &str) -> bool {
        let left_behind = self.lease == Lease::Ended && self.payload == payload;
        self.response.is_none() && (self.lease == Lease::GivenUp || left_behind)
    }

    /// Whether it is claimed and nothing has come of it yet.
    fn is_in_hand(&self) -> bool {
        self.response.is_none() && self.lease != Lease::GivenUp
    }
}

struct Schedule<'a, S> {
    store: &'a S,
    key: ClaimKey,
    row: Option<Row>,
    /// Every token that was given, the smallest first.
    given: Vec<FencingToken>,
}

/// Whoever has the highest token of a key may go on; everybody else is refused, whatever he had before.
pub async fn claims_hold_in_any_order<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    for seed in 0..SCHEDULES {
        let mut random = Random::new(seed);
        let key = key(&format!("schedule-{seed}"));
        let mut schedule = Schedule { store: &store, key, row: None, given: Vec::new() };
        for _ in 0..STEPS {
            match random.below(8) {
                0..=2 => schedule.claim(PAYLOADS[random.index(3) / 2]).await,
                3 => schedule.renew(random.next(), LEASE, Lease::Holds).await,
                4 => schedule.renew(random.next(), Duration::ZERO, Lease::Ended).await,
                5 => schedule.release(random.next()).await,
                _ => schedule.complete(random.next()).await,
            }
        }
    }
}

impl<S: Claims> Schedule<'_, S> {
    async fn claim(&mut self, payload: &'static str) {
        let Self { store, key, .. } = &*self;
        let ask = async || store.claim_key(key, hash(payload), "me", LEASE).await.unwrap();
        let told = |told: &Claimed| format!("{key:?}: {told:?} with {:?}", self.row);
        if self.row.as_ref().is_none_or(|row| row.is_free_for(payload)) {
            // A lease that ended just now may hold for the same microsecond.
            let claimed = until("a free claim", async || match ask().await {
                Claimed::Yours(token) => Some(token),
                Claimed::InFlight(_) if self.row.is_some() => None,
                other => panic!("{}", told(&other)),
            });
            let token = claimed.await;
            assert!(self.given.last().is_none_or(|last| *last < token), "{token:?} after {:?}", self.given);
            self.given.push(token);
            self.row = Some(Row { payload, token, lease: Lease::Holds, response: None });
            return;
        }
        let answer = ask().await;
        let row = self.row.as_ref().unwrap();
        let right = match &answer {
            Claimed::Conflict => row.payload != payload,
            Claimed::Done(answer) => row.payload == payload && row.response.as_ref() == Some(answer),
            Claimed::InFlight(_) => row.payload == payload && row.response.is_none(),
            Claimed::Yours(_) => false,
        };
        assert!(right, "{}", told(&answer));
    }

    /// A token that was given, the last one or one before; none where nobody had one.
    fn any_token(&self, number: u64) -> Option<FencingToken> {
        let place = usize::try_from(number % 4).unwrap_or(0);
        self.given.iter().rev().nth(place.saturating_sub(2)).copied()
    }

    async fn renew(&mut self, number: u64, lease: Duration, then: Lease) {
        let Some(token) = self.any_token(number) else { return };
        let renewed = self.store.renew_claim(&self.key, token, lease).await.unwrap();
        let row = self.row.as_mut().filter(|row| row.token == token && row.is_in_hand());
        assert_eq!(renewed, row.is_some(), "{:?} {token:?}", self.key);
        if let Some(row) = row {
            row.lease = then;
        }
    }

    async fn release(&mut self, number: u64) {
        let Some(token) = self.any_token(number) else { return };
        let released = self.store.release_claim(&self.key, token).await.unwrap();
        let row = self.row.as_mut().filter(|row| row.token == token && row.response.is_none());
        assert_eq!(released, row.is_some(), "{:?} {token:?}", self.key);
        if let Some(row) = row {
            row.lease = Lease::GivenUp;
        }
    }

    async fn complete(&mut self, number: u64) {
        let Some(token) = self.any_token(number) else { return };
        let given_up = |row: &Row| row.token == token && row.lease == Lease::GivenUp;
        if self.row.as_ref().is_some_and(given_up) {
            // Who gave it up has nothing left to complete.
            return;
        }
        let answer = Bytes::from(number.to_string());
        let completed = self.store.complete_claim(&self.key, token, &answer).await.unwrap();
        let row = self.row.as_mut().filter(|row| row.token == token);
        assert_eq!(completed, row.is_some(), "{:?} {token:?}", self.key);
        if let Some(row) = row {
            row.response.get_or_insert(answer);
        }
    }
}
