//! What every store must remember of push subscriptions, their secrets and their attempts.

use std::time::Duration;

use postrider::Clock;
use postrider::push::{Attempt, Form, SigningSecret, Source, StatusTable, Subscription, Treatment};
use postrider::settlement::RetryPolicy;
use postrider::store::Subscriptions;
use postrider::topology::{ConsumerName, QueueName};

use super::store::{StoreFixture, id};

fn name(name: &str) -> ConsumerName {
    ConsumerName::new(name).unwrap()
}

fn subscription(of: &str) -> Subscription {
    let keys = vec!["shop.order.*".to_owned(), "größe.#".to_owned()];
    let retry = RetryPolicy::ladder(3, [Duration::from_millis(1500), Duration::from_mins(1)]);
    let source = Source::Keys { keys, ordered: true, retry };
    let mut made = Subscription::new(name(of), source, "https://example.com/hook?key=1".parse().unwrap());
    made.form = Form::CloudEvents;
    made.headers.insert("authorization".to_owned(), "Bearer \"ü\"".to_owned());
    made.max_rate = Some(12.5);
    let rows = [("404".to_owned(), Treatment::Ack), ("5xx".to_owned(), Treatment::Reject)];
    made.status = StatusTable::new(&rows.into(), true).unwrap();
    made
}

fn secret(number: u8) -> SigningSecret {
    SigningSecret::shared([number; 32])
}

async fn secrets<S: Subscriptions>(store: &S, of: &str) -> Vec<String> {
    let found = store.signing_secrets(&name(of)).await.unwrap();
    found.iter().map(|secret| secret.reveal().to_owned()).collect()
}

/// Every setting of it, by name.
pub async fn a_subscription_comes_back_whole<F: StoreFixture>(fixture: &F)
where
    F::Store: Subscriptions,
{
    let store = fixture.store().await;
    let second = Subscription::new(
        name("b"),
        Source::Queue(QueueName::new("mail").unwrap()),
        "https://example.com/".parse().unwrap(),
    );
    assert!(store.create_subscription(&second, None, "bob", "").await.unwrap());
    assert!(
        store
            .create_subscription(&subscription("a"), Some(&secret(1)), "ann", "the ERP moves")
            .await
            .unwrap()
    );
    let found = store.subscriptions().await.unwrap();
    let told: Vec<_> = found.iter().map(|one| (one.secrets, one.created_by.as_str())).collect();
    assert_eq!(told, [(1, "ann"), (0, "bob")]);
    assert_eq!((&found[0].subscription, &found[1].subscription), (&subscription("a"), &second));
    assert!(!format!("{found:?}").contains(secret(1).reveal()));
}

/// The first stands.
pub async fn a_name_is_taken_once<F: StoreFixture>(fixture: &F)
where
    F::Store: Subscriptions,
{
    let store = fixture.store().await;
    assert!(
        store
            .create_subscription(&subscription("a"), Some(&secret(1)), "ann", "the ERP moves")
            .await
            .unwrap()
    );
    assert!(!store.create_subscription(&subscription("a"), Some(&secret(2)), "bob", "").await.unwrap());
    assert_eq!(secrets(&store, "a").await, [secret(1).reveal()]);
    assert!(store.remove_subscription(&name("a"), "ann", "moved").await.unwrap());
    assert!(!store.remove_subscription(&name("a"), "ann", "moved").await.unwrap());
    assert!(store.subscriptions().await.unwrap().is_empty() && secrets(&store, "a").await.is_empty());
}

/// The newest first, and the old ones only until their time is over.
pub async fn two_secrets_are_valid_while_one_takes_the_others_place<F: StoreFixture>(fixture: &F)
where
    F::Store: Subscriptions,
{
    let store = fixture.store().await;
    let now = Clock::system().now();
    let later = now.checked_add(Duration::from_hours(1)).unwrap();
    assert!(!store.rotate_secret(&name("a"), &secret(1), later, "ann", "").await.unwrap());
    store.create_subscription(&subscription("a"), Some(&secret(1)), "ann", "the ERP moves").await.unwrap();
    let before = store.subscriptions().await.unwrap().remove(0);
    assert!(store.rotate_secret(&name("a"), &secret(2), later, "ann", "").await.unwrap());
    assert_eq!(secrets(&store, "a").await, [2, 1].map(|number| secret(number).reveal().to_owned()));
    let after = store.subscriptions().await.unwrap().remove(0);
    assert!(after.version > before.version && after.secrets == 2);
    assert!(store.rotate_secret(&name("a"), &secret(3), now, "ann", "it leaked").await.unwrap());
    assert_eq!(secrets(&store, "a").await, [secret(3).reveal()]);
}

/// Those of one event, or of all, the newest first and not for ever.
pub async fn attempts_are_remembered_and_forgotten<F: StoreFixture>(fixture: &F)
where
    F::Store: Subscriptions,
{
    let store = fixture.store().await;
    let attempt = |number: u32| Attempt {
        consumer: name("a"),
        event_id: id(if number.is_multiple_of(2) { "even" } else { "odd" }),
        attempt: number,
        at: "2026-01-01T00:00:00Z".parse().unwrap(),
        took_ms: 17,
        status: (!number.is_multiple_of(3)).then_some(503),
        error: number.is_multiple_of(3).then(|| "unreachable".to_owned()),
        answer: "größer".to_owned(),
    };
    store.record_attempts(&name("a"), (1..=6).map(attempt).collect()).await.unwrap();
    store.record_attempts(&name("b"), Vec::new()).await.unwrap();
    let found = store.attempts(&name("a"), None, 4).await.unwrap();
    assert_eq!(found, (3..=6).rev().map(attempt).collect::<Vec<_>>());
    let odd = store.attempts(&name("a"), Some(&id("odd")), 10).await.unwrap();
    assert_eq!(odd.iter().map(|one| one.attempt).collect::<Vec<_>>(), [5, 3, 1]);
    for _ in 0..8 {
        store.record_attempts(&name("a"), (1..=256).map(attempt).collect()).await.unwrap();
    }
    let kept = store.attempts(&name("a"), None, 10_000).await.unwrap();
    let failed = kept.iter().filter(|attempt| attempt.error.is_some()).count();
    assert_eq!(failed, 2 + 8 * 85, "no number of others drives those out that failed");
    assert!((1000..1000 + 256).contains(&(kept.len() - failed)), "{}", kept.len());
    assert!(kept.len() < 6 + 8 * 256, "the oldest are forgotten");
}

/// The newest of each, in one question; who was never called is left out.
pub async fn the_last_attempts_of_many_are_read_together<F: StoreFixture>(fixture: &F)
where
    F::Store: Subscriptions,
{
    let store = fixture.store().await;
    let attempt = |of: &str, number: u32, error: Option<&str>| Attempt {
        consumer: name(of),
        event_id: id("evt_1"),
        attempt: number,
        at: "2026-01-01T00:00:00Z".parse().unwrap(),
        took_ms: 3,
        status: error.is_none().then_some(200),
        error: error.map(str::to_owned),
        answer: of.to_owned(),
    };
    for of in ["a", "b"] {
        let tried = vec![attempt(of, 1, Some("unreachable")), attempt(of, 2, None)];
        store.record_attempts(&name(of), tried).await.unwrap();
    }
    store.record_attempts(&name("b"), vec![attempt("b", 3, Some("too late"))]).await.unwrap();
    let mut last = store.last_attempts(&[name("b"), name("nobody"), name("a")]).await.unwrap();
    last.sort_by(|one, other| one.consumer.cmp(&other.consumer));
    assert_eq!(last, [attempt("a", 2, None), attempt("b", 3, Some("too late"))]);
    assert!(store.last_attempts(&[]).await.unwrap().is_empty());
}
