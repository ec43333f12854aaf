//! Order per key, across retries, deaths and processes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider::broker::Message;
use postrider::dead_letter::replay::edit_and_replay;
use postrider::envelope::OrderingKey;
use postrider::envelope::wire::Identity;
use postrider::operation::LetterPlan;
use postrider::settlement::RetryPolicy;
use postrider::store::{HeldState, LetterFilter};
use postrider::topology::{ConsumerName, OnDead, Queue, QueueName, Topology};
use postrider::{Event, EventId, Failure, Incoming};
use postrider_testkit::effects::Effects;

use super::stage::{CONSUMER, Stage};

/// Which numbers were applied, key by key, in the order of their handling.
pub(super) type Applied = Arc<Mutex<BTreeMap<String, Vec<u64>>>>;

pub(super) fn numbered(aggregate: &str, number: u64) -> Event {
    let event = Event::new("order.placed").unwrap().aggregate_id(aggregate).unwrap();
    event.json(&serde_json::json!({ "number": number })).unwrap()
}

pub(super) fn number(event: &Incoming) -> u64 {
    event.envelope.payload.parse::<serde_json::Value>().unwrap()["number"].as_u64().unwrap()
}

pub(super) fn aggregate(event: &Incoming) -> String {
    event.envelope.aggregate_id.as_ref().map(ToString::to_string).unwrap_or_default()
}

#[allow(clippy::unnecessary_wraps, reason = "what a handler answers")]
pub(super) fn note(applied: &Applied, event: &Incoming) -> Result<Vec<Event>, Failure> {
    applied.lock().unwrap().entry(aggregate(event)).or_default().push(number(event));
    Ok(Vec::new())
}

pub(super) async fn commit_all<S: Effects>(stage: &Stage<S>, keys: &[&str], count: u64) -> Vec<EventId> {
    let mut ids = Vec::new();
    for number in 0..count {
        for key in keys {
            ids.push(stage.commit(numbered(key, number)).await);
        }
    }
    ids
}

fn mail() -> ConsumerName {
    ConsumerName::new(CONSUMER).unwrap()
}

fn key(aggregate: &str) -> OrderingKey {
    OrderingKey::new(format!("order/{aggregate}")).unwrap()
}

fn ordered<S: Effects>(stage: &mut Stage<S>, on_dead: OnDead) {
    stage.order = Some(on_dead);
    stage.retry = RetryPolicy::fixed(5, Duration::from_millis(50));
}

pub(super) fn in_order(applied: &Applied, keys: &[&str], count: u64) {
    let applied = applied.lock().unwrap();
    for key in keys {
        assert_eq!(applied[*key], (0..count).collect::<Vec<_>>(), "{key}");
    }
}

pub(super) async fn events_of_a_key_keep_their_order_across_retries<S: Effects>(mut stage: Stage<S>) {
    ordered(&mut stage, OnDead::Continue);
    let (applied, seen) = (Applied::default(), Applied::default());
    let running = stage
        .start({
            let (applied, seen) = (applied.clone(), seen.clone());
            move |event| {
                note(&seen, event)?;
                // Every third event fails twice, at different moments of its key.
                if number(event).is_multiple_of(3) && event.attempt < 3 {
                    return Err(Failure::transient("not yet"));
                }
                note(&applied, event)
            }
        })
        .await;
    let keys = ["a", "b", "c"];
    commit_all(&stage, &keys, 10).await;
    let account = stage.account(&running, |account| account.applied == 30).await;
    assert!(account.holds(), "{account:?}");
    in_order(&applied, &keys, 10);
    assert_eq!(stage.effects().await, 30);
    assert_eq!(seen.lock().unwrap()["a"].len(), 10 + 4 * 2, "only those that failed were tried again");
    assert!(stage.store.held_keys(None, 10).await.unwrap().is_empty());
}

pub(super) async fn two_processes_keep_the_order<S: Effects>(mut stage: Stage<S>) {
    ordered(&mut stage, OnDead::Continue);
    let applied = Applied::default();
    let judge = {
        let applied = applied.clone();
        move |event: &Incoming| {
            if number(event) % 4 == 1 && event.attempt < 2 {
                return Err(Failure::transient("not yet"));
            }
            note(&applied, event)
        }
    };
    let keys = ["a", "b", "c", "d"];
    let first = stage.start(judge.clone()).await;
    let second = stage.start(judge).await;
    commit_all(&stage, &keys, 8).await;
    stage.until(async || stage.effects().await >= 10).await;
    // The active one goes; the other takes over in the middle.
    drop(first);
    commit_all(&stage, &["e"], 8).await;
    stage.account(&second, |account| account.applied == 40).await;
    // A takeover may repeat an event whose effects were not committed; the first time of each is what counts.
    for numbers in applied.lock().unwrap().values_mut() {
        let mut known = std::collections::BTreeSet::new();
        numbers.retain(|number| known.insert(*number));
    }
    in_order(&applied, &["a", "b", "c", "d", "e"], 8);
    assert_eq!(stage.effects().await, 40);
}

/// The first event of `dead` is rejected, everything else is well.
fn rejecting(
    applied: &Applied,
) -> impl Fn(&Incoming) -> Result<Vec<Event>, Failure> + Clone + Send + Sync + use<> {
    let applied = applied.clone();
    move |event: &Incoming| {
        if aggregate(event) == "dead" && number(event) == 0 {
            return Err(Failure::permanent("no such account"));
        }
        note(&applied, event)
    }
}

pub(super) async fn a_dead_head_lets_its_key_go_on<S: Effects>(mut stage: Stage<S>) {
    ordered(&mut stage, OnDead::Continue);
    let applied = Applied::default();
    let running = stage.start(rejecting(&applied)).await;
    commit_all(&stage, &["dead", "well"], 5).await;
    let account = stage.account(&running, |account| account.applied == 9 && account.dead == 1).await;
    assert!(account.holds(), "{account:?}");
    assert_eq!(applied.lock().unwrap()["dead"], [1, 2, 3, 4]);
}

pub(super) async fn a_dead_head_parks_its_key_until_it_is_released<S: Effects>(mut stage: Stage<S>) {
    ordered(&mut stage, OnDead::Park);
    let applied = Applied::default();
    let running = stage.start(rejecting(&applied)).await;
    commit_all(&stage, &["dead", "well"], 5).await;
    let parked = |account: &postrider::audit::Account| {
        (account.applied, account.dead, account.waiting) == (5, 1, 4) && account.holds()
    };
    stage.account(&running, parked).await;
    stage.dead_letters(1).await;
    stage.until(async || stage.store.held_keys(None, 10).await.unwrap()[0].events == 5).await;
    let held = stage.store.held_keys(Some(&mail()), 10).await.unwrap();
    assert_eq!((held[0].state, held[0].error.as_str()), (HeldState::Parked, "no such account"));
    assert_eq!(stage.store.release_key(&mail(), &key("dead"), "ann", "").await.unwrap(), 1);
    stage.account(&running, |account| account.applied == 9).await;
    assert_eq!(applied.lock().unwrap()["dead"], [1, 2, 3, 4]);
}

pub(super) async fn a_replayed_head_ends_the_parking<S: Effects>(mut stage: Stage<S>) {
    ordered(&mut stage, OnDead::Park);
    let (applied, mended) = (Applied::default(), Arc::new(Mutex::new(false)));
    let running = stage
        .start({
            let (applied, mended) = (applied.clone(), mended.clone());
            move |event| {
                if number(event) == 0 && !*mended.lock().unwrap() {
                    return Err(Failure::permanent("no such account"));
                }
                note(&applied, event)
            }
        })
        .await;
    commit_all(&stage, &["dead"], 5).await;
    let letter = stage.dead_letters(1).await.remove(0);
    stage.account(&running, |account| account.waiting == 4).await;
    *mended.lock().unwrap() = true;
    stage
        .deliver(Message { properties: letter.properties, headers: letter.headers, body: letter.body })
        .await;
    stage.account(&running, |account| account.applied == 5).await;
    in_order(&applied, &["dead"], 5);
}

pub(super) async fn an_edited_head_is_applied_before_what_follows_it<S: Effects>(mut stage: Stage<S>) {
    ordered(&mut stage, OnDead::Park);
    let applied = Applied::default();
    let running = stage.start(rejecting(&applied)).await;
    commit_all(&stage, &["dead"], 5).await;
    let letter = super::triage::letters(&stage, LetterFilter::open(), 1).await.remove(0);
    stage.account(&running, |account| account.waiting == 4).await;
    let edited = serde_json::json!({ "number": 10 }).to_string();
    let identity = Identity::default();
    let (store, clock) = (&stage.store, &stage.clock);
    let new = edit_and_replay(store, clock, letter.id, &identity, edited.into(), "test", None);
    assert!(new.await.unwrap().is_some());
    stage.account(&running, |account| account.applied == 5).await;
    assert_eq!(applied.lock().unwrap()["dead"], [10, 1, 2, 3, 4]);
    stage.until(async || stage.store.held_keys(None, 10).await.unwrap().is_empty()).await;
}

/// Nobody waits in this queue for what was sent to another one: neither its key, nor the account.
pub(super) async fn a_head_that_is_sent_to_another_queue_is_not_waited_for<S: Effects>(mut stage: Stage<S>) {
    ordered(&mut stage, OnDead::Park);
    let applied = Applied::default();
    let running = stage.start(rejecting(&applied)).await;
    let aside = QueueName::new("aside").unwrap();
    stage.broker.declare(&Topology::default().queue(Queue::quorum(aside.clone()))).await.unwrap();
    commit_all(&stage, &["dead"], 5).await;
    super::triage::letters(&stage, LetterFilter::open(), 1).await;
    stage.account(&running, |account| account.waiting == 4).await;
    let plan = LetterPlan { to_queue: Some(aside.clone()), ..LetterPlan::default() };
    super::triage::replay(&stage, &plan).await;
    stage.until(async || stage.broker.depth(&aside).await.unwrap() == 1).await;
    let account = stage.account(&running, |account| account.applied == 4).await;
    assert!(account.holds() && account.dead == 1, "{account:?}");
    assert_eq!(applied.lock().unwrap()["dead"], [1, 2, 3, 4]);
    stage.until(async || stage.store.held_keys(None, 10).await.unwrap().is_empty()).await;
}

pub(super) async fn a_deferred_head_holds_its_key<S: Effects>(mut stage: Stage<S>) {
    ordered(&mut stage, OnDead::Continue);
    let applied = Applied::default();
    let running = stage
        .start({
            let applied = applied.clone();
            move |event| note(&applied, event)
        })
        .await;
    let later = serde_json::json!({ "number": 0, "processAfterDelayMs": 300 });
    let committed = stage.clock.now();
    stage.commit(numbered("a", 0).json(&later).unwrap()).await;
    for count in 1..5 {
        stage.commit(numbered("a", count)).await;
    }
    stage.account(&running, |account| account.applied == 5).await;
    in_order(&applied, &["a"], 5);
    let first = stage.times.lock().unwrap()[0];
    assert!(first.duration_since(committed) >= Duration::from_millis(300).try_into().unwrap());
}

/// The same id with another payload, while the first of them waits: it is neither held, nor handled, nor gone.
pub(super) async fn what_contradicts_a_held_event_is_a_dead_letter<S: Effects>(mut stage: Stage<S>) {
    ordered(&mut stage, OnDead::Continue);
    stage.retry = RetryPolicy::fixed(1_000, Duration::from_millis(50));
    let (applied, well) = (Applied::default(), Arc::new(Mutex::new(false)));
    let judge = {
        let (applied, well) = (applied.clone(), well.clone());
        move |event: &Incoming| {
            if *well.lock().unwrap() { note(&applied, event) } else { Err(Failure::transient("not yet")) }
        }
    };
    let running = stage.start(judge).await;
    let ids = commit_all(&stage, &["a"], 2).await;
    let events = async || stage.store.held_keys(None, 10).await.unwrap().first().map(|key| key.events);
    stage.until(async || events().await == Some(2)).await;
    for (id, payload) in
        [(&ids[1], "{\"number\":1}"), (&ids[1], "{\"number\":7}"), (&ids[0], "{\"number\":8}")]
    {
        let mut message = Message { body: payload.into(), ..Message::default() };
        message.properties.message_id = Some(id.to_string());
        message.properties.kind = Some("order.placed".to_owned());
        message.headers.insert("x-ordering-key".to_owned(), key("a").as_str().into());
        stage.deliver(message).await;
    }
    let letters = stage.dead_letters(2).await;
    assert!(letters.iter().all(|letter| letter.reason == "conflict"), "{letters:?}");
    *well.lock().unwrap() = true;
    stage.account(&running, |account| account.applied == 2).await;
    in_order(&applied, &["a"], 2);
    assert_eq!(stage.dead_letters(2).await.len(), 2, "the one that says the same is none");
}

/// The same id with another payload, while its key is parked behind the first of them: it does not take its place.
pub(super) async fn what_contradicts_a_parked_event_is_a_dead_letter<S: Effects>(mut stage: Stage<S>) {
    ordered(&mut stage, OnDead::Park);
    let (applied, well) = (Applied::default(), Arc::new(Mutex::new(false)));
    let judge = {
        let (applied, well) = (applied.clone(), well.clone());
        move |event: &Incoming| {
            if *well.lock().unwrap() {
                note(&applied, event)
            } else {
                Err(Failure::permanent("no such account"))
            }
        }
    };
    let _running = stage.start(judge).await;
    let ids = commit_all(&stage, &["a"], 2).await;
    let events = async || stage.store.held_keys(None, 10).await.unwrap().first().map(|key| key.events);
    stage.until(async || events().await == Some(2)).await;
    *well.lock().unwrap() = true;
    let mut message = Message { body: "{\"number\":8}".into(), ..Message::default() };
    message.properties.message_id = Some(ids[0].to_string());
    message.properties.kind = Some("order.placed".to_owned());
    message.headers.insert("x-ordering-key".to_owned(), key("a").as_str().into());
    stage.deliver(message).await;
    let letters = stage.dead_letters(2).await;
    assert!(letters.iter().any(|letter| letter.reason == "conflict"), "{letters:?}");
    assert!(applied.lock().unwrap().is_empty(), "the key is parked");
    assert_eq!(events().await, Some(2));
    // What frees it is the letter that it names.
    let head = stage.store.held_events(&mail(), &ids[..1]).await.unwrap().remove(0);
    let named: Vec<_> = letters.iter().filter(|letter| Some(&letter.key) == head.letter.as_ref()).collect();
    assert!(named.len() == 1 && named[0].reason != "conflict", "{named:?}");
}

pub(super) async fn events_without_a_key_are_held_by_nobody<S: Effects>(mut stage: Stage<S>) {
    ordered(&mut stage, OnDead::Park);
    let running = stage
        .start(|event| match event.attempt {
            1 => Err(Failure::transient("not yet")),
            _ => Ok(Vec::new()),
        })
        .await;
    for _ in 0..5 {
        stage.commit(Event::new("order.placed").unwrap()).await;
    }
    stage.account(&running, |account| account.applied == 5).await;
    assert!(stage.store.held_keys(None, 10).await.unwrap().is_empty());
}
