//! What every inbox must do: an event is new to a consumer once, however transactions overlap.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use postrider::envelope::{PayloadHash, TenantId};
use postrider::store::{Admission, Arrival, Forgotten, Inbox, InboxMemory as _, Store, StoreError};
use postrider::topology::ConsumerName;
use postrider::{Clock, Payload};

use super::store::{StoreFixture, id};
use super::until;

fn mail() -> ConsumerName {
    ConsumerName::new("mail").unwrap()
}

fn hash(text: &str) -> PayloadHash {
    Payload::new("text/plain", text.to_owned()).hash()
}

fn arrival(event: &str) -> Arrival {
    Arrival { event_id: id(event), tenant: None, payload_hash: hash("the same") }
}

fn changed(event: &str) -> Arrival {
    Arrival { payload_hash: hash("something else"), ..arrival(event) }
}

/// Admits in a transaction of its own and commits it.
async fn admit<S: Inbox>(
    store: &S,
    consumer: &ConsumerName,
    arrivals: &[Arrival],
) -> Result<Vec<Admission>, StoreError> {
    let mut tx = store.begin().await?;
    let admissions = store.admit(&mut tx, consumer, arrivals).await?;
    store.commit(tx).await?;
    Ok(admissions)
}

/// And a duplicate ever after.
pub async fn an_event_is_new_once<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let tenant = Some(TenantId::new("acme").unwrap());
    let one = [Arrival { tenant, ..arrival("one") }];
    assert_eq!(admit(&store, &mail(), &one).await.unwrap(), [Admission::New]);
    for _ in 0..2 {
        assert_eq!(admit(&store, &mail(), &one).await.unwrap(), [Admission::Duplicate(None)]);
    }
    let mixed = [arrival("one"), arrival("two")];
    assert_eq!(admit(&store, &mail(), &mixed).await.unwrap(), [Admission::Duplicate(None), Admission::New]);
}

/// Nothing is marked by looking.
pub async fn looking_tells_and_marks_nothing<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    admit(&store, &mail(), &[arrival("one")]).await.unwrap();
    let asked = [arrival("one"), arrival("two"), changed("one"), arrival("two")];
    for _ in 0..2 {
        let told = store.look(&mail(), &asked).await.unwrap();
        assert_eq!(told, [Admission::Duplicate(None), Admission::New, Admission::Conflict, Admission::New]);
    }
    assert!(store.look(&mail(), &[]).await.unwrap().is_empty());
    assert_eq!(admit(&store, &mail(), &[arrival("two")]).await.unwrap(), [Admission::New]);
}

/// And the first payload stays the one that was applied.
pub async fn another_payload_is_a_conflict<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    assert_eq!(admit(&store, &mail(), &[arrival("one")]).await.unwrap(), [Admission::New]);
    for _ in 0..2 {
        assert_eq!(admit(&store, &mail(), &[changed("one")]).await.unwrap(), [Admission::Conflict]);
        assert_eq!(admit(&store, &mail(), &[arrival("one")]).await.unwrap(), [Admission::Duplicate(None)]);
    }
}

/// Two tenants that number their events alike: whoever comes second is seen. No tenant says nothing.
pub async fn another_tenant_is_a_conflict<F: StoreFixture>(fixture: &F) {
    const DUPLICATE: Admission = Admission::Duplicate(None);
    let store = fixture.store().await;
    let of = |tenant: &str| Arrival { tenant: Some(TenantId::new(tenant).unwrap()), ..arrival("one") };
    let batch = [of("acme"), of("umbrella"), of("acme")];
    let told = admit(&store, &mail(), &batch).await.unwrap();
    assert_eq!(told, [Admission::New, Admission::Conflict, DUPLICATE]);
    let asked = [of("umbrella"), of("acme"), arrival("one")];
    let wanted = [Admission::Conflict, DUPLICATE, DUPLICATE];
    assert_eq!(store.look(&mail(), &asked).await.unwrap(), wanted);
    assert_eq!(admit(&store, &mail(), &asked).await.unwrap(), wanted);
    assert_eq!(admit(&store, &mail(), &asked[..1]).await.unwrap(), wanted[..1]);
}

/// What one has applied is new to another.
pub async fn consumers_are_apart<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    for name in ["mail", "Mail", "ledger", "größe"] {
        let consumer = ConsumerName::new(name).unwrap();
        assert_eq!(admit(&store, &consumer, &[arrival("one")]).await.unwrap(), [Admission::New], "{name}");
    }
}

/// Rolled back or dropped: it was never applied.
pub async fn a_rollback_forgets<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    for explicit in [true, false] {
        let mut tx = store.begin().await.unwrap();
        assert_eq!(store.admit(&mut tx, &mail(), &[arrival("one")]).await.unwrap(), [Admission::New]);
        if explicit {
            store.rollback(tx).await.unwrap();
        }
    }
    assert_eq!(admit(&store, &mail(), &[arrival("one")]).await.unwrap(), [Admission::New]);
}

/// The first is new, the rest are judged by it.
pub async fn repeats_inside_a_batch_are_told<F: StoreFixture>(fixture: &F) {
    use Admission::{Conflict, New};
    const DUPLICATE: Admission = Admission::Duplicate(None);
    let store = fixture.store().await;
    let batch =
        [arrival("one"), arrival("two"), arrival("one"), changed("two"), arrival("two"), arrival("three")];
    let first = admit(&store, &mail(), &batch).await.unwrap();
    assert_eq!(first, [New, New, DUPLICATE, Conflict, DUPLICATE, New]);
    let again = admit(&store, &mail(), &batch).await.unwrap();
    assert_eq!(again, [DUPLICATE, DUPLICATE, DUPLICATE, Conflict, DUPLICATE, DUPLICATE]);
}

/// More than one statement may have parameters; half of them known.
pub async fn a_large_batch_is_admitted<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let all: Vec<Arrival> = (0..5_000).map(|n| arrival(&format!("event-{n}"))).collect();
    let known: Vec<Arrival> = all.iter().step_by(2).cloned().collect();
    assert!(admit(&store, &mail(), &known).await.unwrap().iter().all(|told| *told == Admission::New));
    for (n, told) in admit(&store, &mail(), &all).await.unwrap().into_iter().enumerate() {
        assert_eq!(told, if n % 2 == 0 { Admission::Duplicate(None) } else { Admission::New }, "event {n}");
    }
}

/// And commits nothing.
pub async fn admitting_nothing_is_fine<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    assert!(admit(&store, &mail(), &[]).await.unwrap().is_empty());
}

/// Applies an event as a consumer does, until it commits or is known; in the way of another, again.
async fn apply<F: StoreFixture>(fixture: &F, store: &F::Store, arrivals: &[Arrival]) -> usize {
    until("a transaction to go through", async || {
        let attempt = async {
            let mut tx = store.begin().await?;
            let admissions = store.admit(&mut tx, &mail(), arrivals).await?;
            let new = arrivals.iter().zip(&admissions).filter(|(_, told)| **told == Admission::New);
            let mut applied = 0;
            for (arrival, _) in new {
                fixture.insert_effect(&mut tx, "mail", &arrival.event_id).await?;
                applied += 1;
            }
            store.commit(tx).await?;
            Ok::<_, StoreError>(applied)
        };
        match attempt.await {
            Ok(applied) => Some(applied),
            Err(error) if error.is_transient() => None,
            Err(error) => panic!("{error}"),
        }
    })
    .await
}

async fn effects_per_event(fixture: &impl StoreFixture) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for (_, event) in fixture.effects().await {
        *counts.entry(event.to_string()).or_default() += 1;
    }
    counts
}

/// Two deliveries of one event at the same time have one effect.
pub async fn of_two_transactions_one_is_new<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    for round in 0..20 {
        let one = [arrival(&format!("event-{round}"))];
        let (a, b, c) = tokio::join!(
            apply(fixture, &store, &one),
            apply(fixture, &store, &one),
            apply(fixture, &store, &one)
        );
        assert_eq!(a + b + c, 1, "round {round}");
    }
    let counts = effects_per_event(fixture).await;
    assert!(counts.len() == 20 && counts.values().all(|count| *count == 1), "{counts:?}");
}

/// Whoever waited for a mark that never came has the event for itself.
pub async fn a_waiting_transaction_is_new_after_a_rollback<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let one = [arrival("one")];
    let mut first = store.begin().await.unwrap();
    assert_eq!(store.admit(&mut first, &mail(), &one).await.unwrap(), [Admission::New]);
    fixture.insert_effect(&mut first, "mail", &one[0].event_id).await.unwrap();
    let second = apply(fixture, &store, &one);
    tokio::pin!(second);
    let waits = tokio::time::timeout(Duration::from_millis(300), &mut second).await.is_err();
    assert!(waits, "it did not wait for the transaction that holds the mark");
    store.rollback(first).await.unwrap();
    assert_eq!(second.await, 1);
}

/// Two batches that would wait for each other: both go through, each event applied once.
pub async fn batches_in_opposite_order_apply_each_event_once<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    for round in 0..5 {
        let forth: Vec<Arrival> = (0..50).map(|n| arrival(&format!("event-{round}-{n}"))).collect();
        let back: Vec<Arrival> = forth.iter().rev().cloned().collect();
        let (a, b) = tokio::join!(apply(fixture, &store, &forth), apply(fixture, &store, &back));
        assert_eq!(a + b, 50);
    }
    let counts = effects_per_event(fixture).await;
    assert!(counts.len() == 250 && counts.values().all(|count| *count == 1));
}

/// Opaque to the last byte: case, spaces and composition make another id.
pub async fn odd_ids_are_told_apart<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let odd = [
        "a", "A", "a ", " a", "a%", "a_", "\u{e9}", "e\u{301}", "0", "00", "0.0", "'", "\\", "{a}", "a,b",
        "NULL",
    ];
    let arrivals: Vec<Arrival> = odd.into_iter().map(arrival).collect();
    let told = admit(&store, &mail(), &arrivals).await.unwrap();
    assert_eq!(told, vec![Admission::New; odd.len()]);
}

/// It commits with the effects, and whoever comes with the same event gets it.
pub async fn an_answer_is_kept_with_its_mark<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let both = [arrival("one"), arrival("two")];
    let answers = [(id("one"), Bytes::from_static(b"first")), (id("two"), Bytes::new())];
    for keep in [false, true] {
        let mut tx = store.begin().await.unwrap();
        assert_eq!(store.admit(&mut tx, &mail(), &both).await.unwrap(), [Admission::New, Admission::New]);
        store.keep_answers(&mut tx, &mail(), &answers).await.unwrap();
        if keep {
            store.commit(tx).await.unwrap();
        } else {
            store.rollback(tx).await.unwrap();
        }
    }
    let first = Admission::Duplicate(Some(Bytes::from_static(b"first")));
    let empty = Admission::Duplicate(Some(Bytes::new()));
    assert_eq!(admit(&store, &mail(), &both).await.unwrap(), [first, empty]);
    assert_eq!(admit(&store, &mail(), &[changed("one")]).await.unwrap(), [Admission::Conflict]);
}

/// A step at a time, for each consumer apart.
pub async fn what_is_old_is_forgotten_and_known_to_be<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let ledger = ConsumerName::new("ledger").unwrap();
    let three = [arrival("one"), arrival("two"), arrival("three")];
    for one in &three {
        admit(&store, &mail(), std::slice::from_ref(one)).await.unwrap();
    }
    let before = Clock::system().now();
    let (hour, none) = (Duration::from_hours(1), Duration::ZERO);
    let kept = store.forget("me", hour, 100).await.unwrap();
    assert_eq!(kept, Some(Forgotten { marks: 0, more: false }));
    assert_eq!(store.forgotten_before(&mail()).await.unwrap(), None);

    let step = store.forget("me", none, 2).await.unwrap();
    assert_eq!(step, Some(Forgotten { marks: 2, more: true }));
    let told = admit(&store, &mail(), &three[2..]).await.unwrap();
    assert_eq!(told, [Admission::Duplicate(None)], "the oldest go first");
    let step = store.forget("me", none, 2).await.unwrap();
    assert_eq!(step, Some(Forgotten { marks: 1, more: false }));
    let forgotten = store.forgotten_before(&mail()).await.unwrap().unwrap();
    assert!((before - hour..=before + hour).contains(&forgotten), "{forgotten}");
    assert_eq!(store.forgotten_before(&ledger).await.unwrap(), None, "it has forgotten nothing");
    assert_eq!(admit(&store, &mail(), &three[..1]).await.unwrap(), [Admission::New]);
}

/// And says the same for as long as nobody restores another.
pub async fn a_store_knows_its_history<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let lineage = store.lineage().await.unwrap();
    admit(&store, &mail(), &[arrival("one")]).await.unwrap();
    assert!(!lineage.is_empty());
    assert_eq!(store.lineage().await.unwrap(), lineage);
}
