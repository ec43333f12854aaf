//! What every store must do with held events: keep them in order, each once, and hand out only the heads.

use std::time::Duration;

use bytes::Bytes;
use postrider::broker::{HeaderValue, Message};
use postrider::dead_letter::header;
use postrider::envelope::OrderingKey;
use postrider::store::{
    Admission, Arrival, Backend, DeadLetter, Held, HeldEvent, HeldState, HeldStep, Inbox as _, LetterFilter,
    LetterId, LetterQuery, LetterStatus, Resolution, Store as _, Traces, Turn,
};
use postrider::topology::{ConsumerName, ExchangeName, QueueName, RoutingKey};
use postrider::{EventId, Payload};

use super::store::{StoreFixture, id};
use super::until;

/// Longer than any case.
const LEASE: Duration = Duration::from_mins(5);

fn mail() -> ConsumerName {
    ConsumerName::new("mail").unwrap()
}

fn key(key: &str) -> OrderingKey {
    OrderingKey::new(key).unwrap()
}

fn event(event: &str, of: &str) -> HeldEvent {
    let mut message = Message { body: Bytes::from_static(b"\0\xff{"), ..Message::default() };
    message.properties.message_id = Some(event.to_owned());
    message.headers.insert("x-nul".to_owned(), HeaderValue::Text("a\0b".to_owned()));
    message.headers.insert("x-list".to_owned(), HeaderValue::List(vec![HeaderValue::Int(7)]));
    HeldEvent {
        event_id: id(event),
        key: key(of),
        state: HeldState::Waiting,
        attempt: 1,
        delay: Duration::ZERO,
        error: String::new(),
        letter: None,
        exchange: ExchangeName::new("shop").unwrap(),
        routing_key: RoutingKey::new("shop.order.placed").unwrap(),
        message,
    }
}

async fn claim<S: Held>(store: &S, owner: &str) -> Vec<String> {
    let claimed = store.claim_held(&mail(), owner, LEASE, 100).await.unwrap();
    let mut ids: Vec<_> = claimed.iter().map(|event| event.event_id.to_string()).collect();
    ids.sort();
    ids
}

async fn let_go<S: Held>(store: &S, event: &str) {
    let mut tx = store.begin().await.unwrap();
    store.let_go(&mut tx, &mail(), &id(event)).await.unwrap();
    store.commit(tx).await.unwrap();
}

async fn heads<S: Held>(store: &S, keys: &[&str]) -> Vec<Option<(EventId, HeldState)>> {
    let keys: Vec<_> = keys.iter().map(|of| key(of)).collect();
    let mut found = store.held_heads(&mail(), &keys).await.unwrap();
    keys.iter().map(|of| found.remove(of).map(|head| (head.event_id, head.state))).collect()
}

/// Bytes, NUL and all.
pub async fn a_held_event_comes_back_whole<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let held = HeldEvent { attempt: 4, error: "smtp is down".to_owned(), ..event("e1", "größe/1") };
    store.hold_head(&mail(), held.clone()).await.unwrap();
    let claimed = store.claim_held(&mail(), "me", LEASE, 100).await.unwrap();
    assert_eq!(claimed, [held]);
}

/// Who asks for an event finds it also while it is held.
pub async fn a_trace_says_behind_whom_an_event_is_held<F: StoreFixture<Store: Traces>>(fixture: &F) {
    let store = fixture.store().await;
    store.hold(&mail(), vec![event("a1", "a"), event("b1", "b"), event("a2", "a")]).await.unwrap();
    for (held, head) in [("a1", "a1"), ("a2", "a1"), ("b1", "b1")] {
        let trace = store.trace(&id(held)).await.unwrap();
        assert_eq!(trace.held, [HeldStep { consumer: "mail".to_owned(), head: head.to_owned() }], "{held}");
    }
    let_go(&store, "a1").await;
    assert!(store.trace(&id("a1")).await.unwrap().held.is_empty());
    assert_eq!(store.trace(&id("a2")).await.unwrap().held[0].head, "a2");
}

/// One head a key, the next when the one before is gone.
pub async fn only_heads_are_claimed_in_their_order<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let first = vec![event("a1", "a"), event("b1", "b"), event("a2", "a")];
    store.hold(&mail(), first).await.unwrap();
    store.hold(&mail(), vec![event("a3", "a")]).await.unwrap();
    assert_eq!(heads(&store, &["a", "b", "c"]).await[2], None, "c is not held");
    assert_eq!(claim(&store, "me").await, ["a1", "b1"]);
    assert!(claim(&store, "me").await.is_empty(), "they are in somebody's hands");
    assert!(claim(&store, "you").await.is_empty());
    let_go(&store, "a1").await;
    assert_eq!(claim(&store, "you").await, ["a2"]);
    let_go(&store, "a2").await;
    let_go(&store, "b1").await;
    let heads = heads(&store, &["a", "b"]).await;
    assert_eq!(heads, [Some((id("a3"), HeldState::Waiting)), None]);
}

/// By their ids, whichever keys they have.
pub async fn held_events_are_found_by_their_ids<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let all = vec![event("a1", "a"), event("b1", "b"), event("a2", "a")];
    store.hold(&mail(), all).await.unwrap();
    let asked = [id("a2"), id("b1"), id("nobody")];
    let mut found = store.held_events(&mail(), &asked).await.unwrap();
    found.sort_by(|one, other| one.event_id.cmp(&other.event_id));
    assert_eq!(found, [event("a2", "a"), event("b1", "b")]);
    let other = ConsumerName::new("ledger").unwrap();
    assert!(store.held_events(&other, &asked).await.unwrap().is_empty());
}

/// A crash between holding and acking brings it again.
pub async fn holding_again_changes_nothing<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    store.hold(&mail(), vec![event("a1", "a"), event("a2", "a"), event("a1", "a")]).await.unwrap();
    store.hold(&mail(), vec![event("a2", "a"), event("a1", "a")]).await.unwrap();
    store.hold(&mail(), Vec::new()).await.unwrap();
    let keys = store.held_keys(Some(&mail()), 10).await.unwrap();
    assert_eq!(keys.iter().map(|key| (key.events, key.head.clone())).collect::<Vec<_>>(), [(2, id("a1"))]);
    // Another consumer holds the same event for itself.
    store.hold(&ConsumerName::new("ledger").unwrap(), vec![event("a1", "a")]).await.unwrap();
    assert_eq!(store.held_keys(None, 10).await.unwrap().len(), 2);
    assert_eq!(store.held_keys(None, 1).await.unwrap().len(), 1);
}

/// Its followers wait with it.
pub async fn a_head_waits_for_its_time<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let later = HeldEvent { delay: Duration::from_hours(1), attempt: 2, ..event("a1", "a") };
    store.hold_head(&mail(), later).await.unwrap();
    store.hold(&mail(), vec![event("a2", "a")]).await.unwrap();
    assert!(claim(&store, "me").await.is_empty());
    let soon = HeldEvent { delay: Duration::from_millis(50), attempt: 3, ..event("a1", "a") };
    store.hold_head(&mail(), soon).await.unwrap();
    let claimed = until("the head's time", async || {
        let claimed = store.claim_held(&mail(), "me", LEASE, 100).await.unwrap();
        (!claimed.is_empty()).then_some(claimed)
    })
    .await;
    assert_eq!((claimed.len(), claimed[0].event_id.as_str(), claimed[0].attempt), (1, "a1", 3));
}

/// Whoever held it died.
pub async fn a_lease_runs_out<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    store.hold(&mail(), vec![event("a1", "a")]).await.unwrap();
    let taken = store.claim_held(&mail(), "me", Duration::from_millis(50), 100).await.unwrap();
    assert_eq!(taken.len(), 1);
    until("the end of the lease", async || (claim(&store, "you").await == ["a1"]).then_some(())).await;
}

/// And by nobody else.
pub async fn a_lease_is_renewed_by_who_has_it<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    store.hold(&mail(), vec![event("a1", "a"), event("b1", "b")]).await.unwrap();
    let short = Duration::from_millis(200);
    assert_eq!(store.claim_held(&mail(), "me", short, 100).await.unwrap().len(), 2);
    store.renew_held(&mail(), "me", &id("a1"), LEASE).await.unwrap();
    store.renew_held(&mail(), "you", &id("b1"), LEASE).await.unwrap();
    let claimed = until("the end of the other lease", async || {
        let claimed = claim(&store, "you").await;
        (!claimed.is_empty()).then_some(claimed)
    });
    assert_eq!(claimed.await, ["b1"]);
    store.renew_held(&mail(), "you", &id("nothing"), LEASE).await.unwrap();
}

/// Applied and let go, or neither.
pub async fn letting_go_commits_with_the_inbox<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    store.hold(&mail(), vec![event("a1", "a")]).await.unwrap();
    let hash = Payload::empty_object().hash();
    let arrival = Arrival { event_id: id("a1"), tenant: None, payload_hash: hash };
    for (commit, left) in [(false, 1), (true, 0)] {
        let mut tx = store.begin().await.unwrap();
        let told = store.admit(&mut tx, &mail(), std::slice::from_ref(&arrival)).await.unwrap();
        assert_eq!(told, [Admission::New]);
        store.let_go(&mut tx, &mail(), &id("a1")).await.unwrap();
        if commit {
            store.commit(tx).await.unwrap();
        } else {
            store.rollback(tx).await.unwrap();
        }
        assert_eq!(store.held_keys(None, 10).await.unwrap().len(), left);
    }
}

/// Until somebody releases it, or its dead letter is discarded.
pub async fn a_parked_key_stays_until_it_is_released<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let parked = |of| HeldEvent { state: HeldState::Parked, ..event(&format!("{of}1"), of) };
    store.hold_head(&mail(), parked("a")).await.unwrap();
    store.hold_head(&mail(), parked("b")).await.unwrap();
    store.hold(&mail(), vec![event("a2", "a"), event("b2", "b")]).await.unwrap();
    assert!(claim(&store, "me").await.is_empty());
    assert_eq!(heads(&store, &["a"]).await, [Some((id("a1"), HeldState::Parked))]);
    bury(&store, "b1").await;
    assert_eq!(store.release_discarded(&mail()).await.unwrap(), 0, "an open dead letter keeps it parked");
    assert_eq!(store.release_key(&mail(), &key("c"), "ann", "").await.unwrap(), 0);
    assert_eq!(store.release_key(&mail(), &key("a"), "ann", "it never comes").await.unwrap(), 1);
    assert_eq!(claim(&store, "me").await, ["a2"]);
    // Released keys do not come back, and a key that only waits is not parked.
    assert_eq!(store.release_key(&mail(), &key("a"), "ann", "").await.unwrap(), 0);
}

/// What goes to the same queue in the place of a dead letter is what its key waits for; what goes elsewhere is not waited for.
pub async fn a_corrected_event_takes_the_place_of_a_parked_head<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    for of in ["a", "b"] {
        let parked = HeldEvent { state: HeldState::Parked, ..event(&format!("{of}1"), of) };
        store.hold_head(&mail(), parked).await.unwrap();
        store.hold(&mail(), vec![event(&format!("{of}2"), of)]).await.unwrap();
        bury(&store, &format!("{of}1")).await;
        replace(&store, &format!("{of}1"), &format!("{of}9"), of == "a").await;
    }
    assert_eq!(store.release_discarded(&mail()).await.unwrap(), 1);
    assert_eq!(heads(&store, &["a"]).await, [Some((id("a9"), HeldState::Parked))]);
    assert_eq!(claim(&store, "me").await, ["b2"]);
    // It has come, and is applied.
    let mut tx = store.begin().await.unwrap();
    store.let_go(&mut tx, &mail(), &id("a9")).await.unwrap();
    store.commit(tx).await.unwrap();
    assert_eq!(claim(&store, "me").await, ["a2"]);
}

/// What contradicts a parked event is a dead letter under the same id, and says nothing of its key.
pub async fn a_key_is_freed_by_the_letter_that_it_is_parked_behind<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    for of in ["a", "b", "c", "d"] {
        let head = format!("{of}1");
        let letter = bury_for(&store, &head, "rejected", None).await;
        let parked = HeldEvent { state: HeldState::Parked, letter: Some(letter), ..event(&head, of) };
        store.hold_head(&mail(), parked.clone()).await.unwrap();
        store.hold(&mail(), vec![event(&format!("{of}2"), of)]).await.unwrap();
        assert_eq!(store.held_events(&mail(), &[id(&head)]).await.unwrap(), [parked]);
        bury_for(&store, &head, "conflict", None).await;
    }
    // Sent again, it is on its way; meanwhile somebody discards the other one.
    resolve(&store, "a1", "rejected", LetterStatus::Replayed).await;
    resolve(&store, "a1", "conflict", LetterStatus::Discarded).await;
    // The other one is still looked into.
    resolve(&store, "b1", "rejected", LetterStatus::Discarded).await;
    // A corrected contradiction is another event, and none that the key waits for.
    replace(&store, "c1", "c9", true).await;
    // Sent again it died once more, and then a copy of it did, under the name of the first.
    let first = resolve(&store, "d1", "rejected", LetterStatus::Replayed).await;
    bury_for(&store, "d1", "retries_exhausted", Some(first)).await;
    resolve(&store, "d1", "retries_exhausted", LetterStatus::Discarded).await;
    assert_eq!(store.release_discarded(&mail()).await.unwrap(), 2);
    let parked = |head| Some((id(head), HeldState::Parked));
    assert_eq!(heads(&store, &["a", "c"]).await, [parked("a1"), parked("c1")]);
    assert_eq!(claim(&store, "me").await, ["b2", "d2"]);
}

async fn letter_of<S: Backend>(store: &S, dead: &str, reason: &str) -> LetterId {
    let filter = LetterFilter { event_id: Some(id(dead)), ..LetterFilter::open() };
    let query = LetterQuery { filter, turn: Turn::Newest, limit: 10 };
    let letters = store.letters(&query).await.unwrap().letters;
    letters.iter().find(|letter| letter.reason == reason).unwrap().id
}

async fn resolve<S: Backend>(store: &S, dead: &str, reason: &str, status: LetterStatus) -> LetterId {
    let letter = letter_of(store, dead, reason).await;
    let mut tx = store.begin().await.unwrap();
    let resolution = [Resolution::plain(letter, status)];
    store.resolve(&mut tx, postrider::Clock::system().new_id(), &resolution).await.unwrap();
    store.commit(tx).await.unwrap();
    letter
}

async fn replace<S: Backend>(store: &S, dead: &str, by: &str, keeps_its_place: bool) {
    let filter = LetterFilter { event_id: Some(id(dead)), ..LetterFilter::open() };
    let query = LetterQuery { filter, turn: Turn::Newest, limit: 1 };
    let letter = store.letters(&query).await.unwrap().letters.remove(0).id;
    let resolution = Resolution {
        replaced_by: Some(id(by)),
        keeps_its_place,
        ..Resolution::plain(letter, LetterStatus::Discarded)
    };
    let mut tx = store.begin().await.unwrap();
    assert_eq!(store.take_open(&mut tx, &[letter]).await.unwrap().len(), 1);
    store.resolve(&mut tx, postrider::Clock::system().new_id(), &[resolution]).await.unwrap();
    store.commit(tx).await.unwrap();
}

async fn bury<S: Backend>(store: &S, event: &str) {
    bury_for(store, event, "rejected", None).await;
}

/// The key of its letter.
async fn bury_for<S: Backend>(store: &S, event: &str, reason: &str, replay_of: Option<LetterId>) -> String {
    let now = postrider::Clock::system().now();
    let replay = replay_of.map(|letter| (header::REPLAY_ID.to_owned(), format!("op/{letter}").into()));
    let letter = DeadLetter {
        key: format!("{reason} death of {event}"),
        event_id: Some(id(event)),
        event_type: None,
        aggregate_id: None,
        ordering_key: None,
        tenant: None,
        consumer: Some(mail()),
        queue: QueueName::new("mail").unwrap(),
        exchange: String::new(),
        routing_key: String::new(),
        reason: reason.to_owned(),
        error: String::new(),
        error_class: None,
        attempts: 1,
        first_failed_at: now,
        dead_at: now,
        properties: postrider::broker::Properties::default(),
        headers: replay.into_iter().collect(),
        body: Bytes::new(),
    };
    let key = letter.key.clone();
    store.collect(vec![letter]).await.unwrap();
    key
}
