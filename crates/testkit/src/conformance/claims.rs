//! What every store of claims must do: one claimant at a time, the first answer for everybody else.

mod any_order;

pub use any_order::claims_hold_in_any_order;

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use postrider::Payload;
use postrider::envelope::PayloadHash;
use postrider::store::{ClaimKey, Claimed, Claims, FencingToken};

use super::store::StoreFixture;
use super::until;

const LEASE: Duration = Duration::from_mins(5);

fn key(key: &str) -> ClaimKey {
    ClaimKey { scope: "payments".to_owned(), key: key.to_owned() }
}

fn hash(text: &'static str) -> PayloadHash {
    Payload::new("text/plain", text).hash()
}

fn answer(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

async fn claim<S: Claims>(store: &S, name: &str, text: &'static str, lease: Duration) -> Claimed {
    store.claim_key(&key(name), hash(text), "me", lease).await.unwrap()
}

async fn token<S: Claims>(store: &S, name: &str, lease: Duration) -> FencingToken {
    match claim(store, name, "one", lease).await {
        Claimed::Yours(token) => token,
        other => panic!("{other:?}"),
    }
}

/// Claimed, then done, with the first answer ever after.
pub async fn the_first_answer_is_everybodys<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let mine = token(&store, "a", LEASE).await;
    assert!(matches!(claim(&store, "a", "one", LEASE).await, Claimed::InFlight(_)));
    assert_eq!(claim(&store, "a", "two", LEASE).await, Claimed::Conflict);
    assert!(store.complete_claim(&key("a"), mine, &answer("first")).await.unwrap());
    assert!(store.complete_claim(&key("a"), mine, &answer("second")).await.unwrap(), "a repeat is fine");
    assert!(!store.release_claim(&key("a"), mine).await.unwrap(), "what is done is done");
    assert_eq!(claim(&store, "a", "one", LEASE).await, Claimed::Done(answer("first")));
    assert_eq!(claim(&store, "a", "two", LEASE).await, Claimed::Conflict);
    let elsewhere = ClaimKey { scope: "mail".to_owned(), ..key("a") };
    let other = store.claim_key(&elsewhere, hash("two"), "me", LEASE).await.unwrap();
    assert!(matches!(other, Claimed::Yours(_)), "scopes are apart: {other:?}");
}

/// An empty answer is an answer.
pub async fn an_empty_answer_is_kept<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let mine = token(&store, "a", LEASE).await;
    assert!(store.complete_claim(&key("a"), mine, &Bytes::new()).await.unwrap());
    assert_eq!(claim(&store, "a", "one", LEASE).await, Claimed::Done(Bytes::new()));
}

/// And another payload may have it.
pub async fn what_is_released_is_free<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let mine = token(&store, "a", LEASE).await;
    assert!(store.release_claim(&key("a"), mine).await.unwrap());
    let Claimed::Yours(next) = claim(&store, "a", "two", LEASE).await else { panic!("not free") };
    assert!(next > mine);
    assert!(!store.complete_claim(&key("a"), mine, &answer("late")).await.unwrap(), "it was given up");
    assert!(!store.release_claim(&key("a"), mine).await.unwrap());
    assert!(store.complete_claim(&key("a"), next, &answer("two")).await.unwrap());
}

/// Whoever was overtaken is fenced off, and his payload is still the only one that may go on.
pub async fn a_claim_that_ran_out_is_claimed_anew<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let dead = token(&store, "a", Duration::from_millis(1)).await;
    assert_eq!(claim(&store, "a", "two", LEASE).await, Claimed::Conflict);
    let next = until("the lease to end", async || match claim(&store, "a", "one", LEASE).await {
        Claimed::Yours(token) => Some(token),
        _ => None,
    })
    .await;
    assert!(next > dead);
    assert!(!store.complete_claim(&key("a"), dead, &answer("dead")).await.unwrap());
    assert!(store.complete_claim(&key("a"), next, &answer("alive")).await.unwrap());
    assert_eq!(claim(&store, "a", "one", LEASE).await, Claimed::Done(answer("alive")));
}

/// For another lease from now on, also after it ran out, but not once somebody else has it or it is over.
pub async fn a_claim_is_kept_while_it_is_renewed<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let mine = token(&store, "a", Duration::from_millis(1)).await;
    assert!(store.renew_claim(&key("a"), mine, LEASE).await.unwrap());
    assert!(matches!(claim(&store, "a", "one", LEASE).await, Claimed::InFlight(_)));
    assert!(!store.renew_claim(&key("b"), mine, LEASE).await.unwrap(), "a key that nobody claimed");

    let overtaken = token(&store, "c", Duration::from_millis(1)).await;
    let next = until("the lease to end", async || match claim(&store, "c", "one", LEASE).await {
        Claimed::Yours(token) => Some(token),
        _ => None,
    })
    .await;
    assert!(!store.renew_claim(&key("c"), overtaken, LEASE).await.unwrap());
    assert!(store.release_claim(&key("c"), next).await.unwrap());
    assert!(!store.renew_claim(&key("c"), next, LEASE).await.unwrap(), "it was given up");
    assert!(matches!(claim(&store, "c", "two", LEASE).await, Claimed::Yours(_)));

    assert!(store.complete_claim(&key("a"), mine, &answer("done")).await.unwrap());
    assert!(!store.renew_claim(&key("a"), mine, LEASE).await.unwrap(), "it is over");
}

/// However many ask at the same time.
pub async fn of_many_one_has_it<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    for round in 0..5 {
        let name = format!("round-{round}");
        let claims = join_all((0..20).map(|_| claim(&store, &name, "one", LEASE))).await;
        let ours = claims.iter().filter(|claim| matches!(claim, Claimed::Yours(_))).count();
        let waiting = claims.iter().filter(|claim| matches!(claim, Claimed::InFlight(_))).count();
        assert_eq!((ours, waiting), (1, 19), "{claims:?}");
    }
}

/// What is old goes; what is in hand stays.
pub async fn old_claims_are_forgotten<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let done = token(&store, "done", LEASE).await;
    store.complete_claim(&key("done"), done, &answer("yes")).await.unwrap();
    let released = token(&store, "released", LEASE).await;
    store.release_claim(&key("released"), released).await.unwrap();
    token(&store, "in hand", LEASE).await;
    assert_eq!(store.forget_claims(Duration::from_hours(1), 100).await.unwrap(), 0);
    let one = async || {
        Some(store.forget_claims(Duration::ZERO, 1).await.unwrap()).filter(|forgotten| *forgotten > 0)
    };
    assert_eq!(until("a claim to be old", one).await, 1, "no more than it is told");
    store.forget_claims(Duration::ZERO, 100).await.unwrap();
    assert!(matches!(claim(&store, "released", "two", LEASE).await, Claimed::Yours(_)));
    assert!(matches!(claim(&store, "in hand", "one", LEASE).await, Claimed::InFlight(_)));
}
