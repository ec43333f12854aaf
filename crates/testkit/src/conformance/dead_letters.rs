//! What every table of dead letters must do: keep each once, whole, whatever is in it.

use bytes::Bytes;
use jiff::Timestamp;
use postrider::broker::{HeaderValue, Headers, Properties};
use postrider::envelope::TenantId;
use postrider::store::{DeadLetter, DeadLetters};
use postrider::topology::{ConsumerName, QueueName};

use super::store::{StoreFixture, id};

/// A dead letter of the `n`th second, with nothing in it that may be absent.
pub(super) fn bare(key: &str, n: i64) -> DeadLetter {
    let at = Timestamp::from_microsecond(1_763_200_000_000_000 + n * 1_000_000).unwrap();
    DeadLetter {
        key: key.to_owned(),
        event_id: None,
        event_type: None,
        tenant: None,
        aggregate_id: None,
        ordering_key: None,
        consumer: None,
        queue: QueueName::new("mail").unwrap(),
        exchange: String::new(),
        routing_key: String::new(),
        reason: "malformed".to_owned(),
        error: String::new(),
        error_class: None,
        attempts: 0,
        first_failed_at: at,
        dead_at: at,
        properties: Properties::default(),
        headers: Headers::new(),
        body: Bytes::new(),
    }
}

/// The same with everything in it.
pub(super) fn whole(key: &str, n: i64) -> DeadLetter {
    DeadLetter {
        event_id: Some(id("evt_987654321")),
        event_type: Some("shop.order.placed".to_owned()),
        tenant: Some(TenantId::new("Größe & Söhne").unwrap()),
        consumer: Some(ConsumerName::new("mail-consumer").unwrap()),
        exchange: "shop".to_owned(),
        routing_key: "order.placed".to_owned(),
        reason: "retries_exhausted".to_owned(),
        error: "smtp says 451 – 请稍后再试".to_owned(),
        error_class: Some("smtp_451".to_owned()),
        attempts: 11,
        first_failed_at: Timestamp::from_microsecond(1_763_100_000_123_456).unwrap(),
        properties: super::broker::every_property(),
        headers: super::broker::every_header(),
        body: (0..=u8::MAX).collect(),
        ..bare(key, n)
    }
}

/// Headers of every type and bytes of every value, NUL among both.
pub async fn every_field_of_a_dead_letter_comes_back<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let letter = whole("one", 1);
    store.collect(vec![letter.clone()]).await.unwrap();
    assert_eq!(store.dead_letters(10).await.unwrap(), [letter]);
}

/// A message that nobody could read.
pub async fn absent_fields_of_a_dead_letter_stay_absent<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let letter = bare("one", 1);
    store.collect(vec![letter.clone()]).await.unwrap();
    assert_eq!(store.dead_letters(10).await.unwrap(), [letter]);
}

/// What the broker delivers again is known already.
pub async fn a_dead_letter_is_kept_once_by_its_key<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let first = whole("one", 1);
    store.collect(vec![first.clone()]).await.unwrap();
    let again = DeadLetter { error: "told differently".to_owned(), ..whole("one", 5) };
    store.collect(vec![again, bare("two", 2)]).await.unwrap();
    assert_eq!(store.dead_letters(10).await.unwrap(), [bare("two", 2), first]);
}

/// As many as are asked for.
pub async fn the_newest_dead_letters_come_first<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let letters: Vec<DeadLetter> = (0..500).map(|n| bare(&format!("letter-{n:03}"), n)).collect();
    for some in letters.chunks(100) {
        store.collect(some.to_vec()).await.unwrap();
    }
    let newest: Vec<DeadLetter> = letters.into_iter().rev().take(50).collect();
    assert_eq!(store.dead_letters(50).await.unwrap(), newest);
}

/// The first of them.
pub async fn a_batch_with_one_key_twice_is_kept_once<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    store.collect(vec![bare("one", 1), bare("two", 2), bare("one", 1)]).await.unwrap();
    assert_eq!(store.dead_letters(10).await.unwrap(), [bare("two", 2), bare("one", 1)]);
}

/// Foreign texts may hold a NUL, which not every database can keep as text. The letter is kept all the same: one that
/// could never be stored would stop all behind it.
pub async fn nul_in_a_text_does_not_stop_the_collector<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let odd = DeadLetter {
        key: "odd\0key".to_owned(),
        event_type: Some("shop\0.order".to_owned()),
        exchange: "sh\0op".to_owned(),
        routing_key: "order\0.placed".to_owned(),
        error: "before\0after".to_owned(),
        error_class: Some("cl\0ass".to_owned()),
        properties: Properties { message_id: Some("a\0b".to_owned()), ..Properties::default() },
        ..whole("", 1)
    };
    store.collect(vec![odd.clone(), bare("two", 2)]).await.unwrap();
    store.collect(vec![odd.clone()]).await.unwrap();
    let kept = store.dead_letters(10).await.unwrap();
    assert_eq!(kept.len(), 2);
    assert!(kept[1].error.contains("before") && kept[1].error.contains("after"), "{:?}", kept[1].error);
    assert_eq!((&kept[1].body, &kept[1].headers), (&odd.body, &odd.headers));
    assert_eq!(kept[1].properties, odd.properties);
}

/// No text has a place for them; the letter has.
pub async fn infinite_floats_do_not_stop_the_collector<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let headers = [("inf", f64::INFINITY), ("-inf", f64::NEG_INFINITY), ("nan", f64::NAN)];
    let headers = headers.map(|(name, float)| (name.to_owned(), HeaderValue::Float(float))).into();
    store.collect(vec![DeadLetter { headers, ..bare("odd", 1) }, bare("two", 2)]).await.unwrap();
    let kept = store.dead_letters(10).await.unwrap();
    assert_eq!(kept.iter().map(|letter| letter.key.as_str()).collect::<Vec<_>>(), ["two", "odd"]);
}

/// And is no error.
pub async fn collecting_nothing_is_fine<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    store.collect(Vec::new()).await.unwrap();
    assert!(store.dead_letters(10).await.unwrap().is_empty());
}

/// Two collectors of one queue, after a redelivery.
pub async fn collectors_side_by_side_keep_each_letter_once<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    let letters: Vec<DeadLetter> = (0..200).map(|n| bare(&format!("letter-{n}"), n)).collect();
    let reversed: Vec<DeadLetter> = letters.iter().rev().cloned().collect();
    let (first, second) = tokio::join!(store.collect(letters), store.collect(reversed));
    for (name, result) in [("first", first), ("second", second)] {
        // Two batches may be in each other's way; then nothing of one is stored, and it says so.
        assert!(
            result.as_ref().err().is_none_or(postrider::store::StoreError::is_transient),
            "{name}: {result:?}"
        );
    }
    assert_eq!(store.dead_letters(1_000).await.unwrap().len(), 200);
}
