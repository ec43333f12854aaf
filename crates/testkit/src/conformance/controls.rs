//! What every store must remember of pauses and crashes.

use postrider::store::{Controls, Crashes, Operations, Pause};
use postrider::topology::ConsumerName;

use super::store::StoreFixture;

fn name(name: &str) -> ConsumerName {
    ConsumerName::new(name).unwrap()
}

fn told(pauses: &[Pause]) -> Vec<(&str, &str, &str)> {
    pauses.iter().map(|pause| (pause.consumer.as_str(), pause.by.as_str(), pause.reason.as_str())).collect()
}

/// Whoever asks, by name or for all.
pub async fn a_pause_is_seen_until_it_is_taken_back<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let (mail, ledger) = (name("mail"), name("größe"));
    assert!(!store.resume(&mail, "ann", "").await.unwrap(), "it was not paused");
    assert!(store.pause(&mail, "ann", "the mail server moves").await.unwrap());
    assert!(store.pause(&ledger, "bob", "").await.unwrap());
    let expected = [("größe", "bob", ""), ("mail", "ann", "the mail server moves")];
    assert_eq!(told(&store.pauses().await.unwrap()), expected);
    assert_eq!(told(&[store.pause_of(&mail).await.unwrap().unwrap()]), [expected[1]]);
    assert!(store.resume(&mail, "bob", "the bank is back").await.unwrap());
    assert_eq!(store.pause_of(&mail).await.unwrap(), None);
    assert_eq!(told(&store.pauses().await.unwrap()), [expected[0]]);
    let log = store.log_of("mail", 10).await.unwrap();
    let told: Vec<_> = log.iter().map(|entry| (entry.actor.as_str(), entry.reason.as_deref())).collect();
    assert_eq!(told, [("bob", Some("the bank is back")), ("ann", Some("the mail server moves"))]);
}

/// Two people may want the same; the second one changes nothing.
pub async fn the_first_pause_stands<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let mail = name("mail");
    assert!(store.pause(&mail, "ann", "first").await.unwrap());
    let first = store.pause_of(&mail).await.unwrap();
    assert!(!store.pause(&mail, "bob", "second").await.unwrap());
    assert_eq!(store.pause_of(&mail).await.unwrap(), first);
}

/// Each for its consumer and event, until the handling ends.
pub async fn crash_marks_are_counted_until_the_end<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let (mail, ledger) = (name("mail"), name("ledger"));
    assert_eq!(store.unfinished(&mail, "evt_1").await.unwrap(), 0);
    for times in 1..=3 {
        store.begun(&mail, "evt_1").await.unwrap();
        assert_eq!(store.unfinished(&mail, "evt_1").await.unwrap(), times);
    }
    store.begun(&ledger, "evt_1").await.unwrap();
    store.begun(&mail, "evt_2").await.unwrap();
    let mut marks = store.crash_marks(&mail).await.unwrap();
    marks.sort();
    assert_eq!(marks, ["evt_1", "evt_2"]);
    store.ended(&mail, "evt_1").await.unwrap();
    store.ended(&mail, "evt_1").await.unwrap();
    assert_eq!(store.unfinished(&mail, "evt_1").await.unwrap(), 0);
    assert_eq!(store.unfinished(&ledger, "evt_1").await.unwrap(), 1);
    assert_eq!(store.crash_marks(&mail).await.unwrap(), ["evt_2"]);
}
