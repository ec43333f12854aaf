//! A message that is sent again leaves the outbox as it was.

use bytes::Bytes;
use postrider::broker::Message;
use postrider::envelope::OrderingKey;
use postrider::store::{Backend, Destination, PublishResult, StoreErrorKind, Verbatim};
use postrider::topology::QueueName;
use postrider::{Outbox as _, Store as _};

use super::super::broker::{every_header, every_property};
use super::super::store::{Desk, StoreFixture, due, id, keyed};

/// A message to be sent again, in the order of a key if it has one.
fn again(row: &str, key: Option<&str>) -> Verbatim {
    Verbatim {
        row_id: id(row),
        event_id: None,
        event_type: None,
        tenant: None,
        ordering_key: key.map(|key| OrderingKey::new(key).unwrap()),
        to: Destination::Queue(QueueName::new("mail").unwrap()),
        message: Message::default(),
        dead_letter: None,
    }
}

async fn append<S: Backend>(desk: &Desk<S>, messages: Vec<Verbatim>) {
    let mut tx = desk.store.begin().await.unwrap();
    desk.store.append_verbatim(&mut tx, messages).await.unwrap();
    desk.store.commit(tx).await.unwrap();
}

/// Also what is no event, with headers of every type and bytes of every value.
pub async fn a_message_is_sent_again_byte_for_byte<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let message =
        Message { properties: every_property(), headers: every_header(), body: (0..=u8::MAX).collect() };
    let large = Message { body: Bytes::from(vec![7; 1024 * 1024]), ..Message::default() };
    let rows = vec![
        Verbatim { message: message.clone(), ..again("one", None) },
        again("two", None),
        Verbatim { message: large.clone(), ..again("three", None) },
    ];
    append(&desk, rows).await;
    let rows = desk.expect_due(["one", "two", "three"]).await;
    let sent: Vec<_> = rows.iter().map(|row| row.verbatim.clone().unwrap()).collect();
    assert_eq!(sent, [message, Message::default(), large]);
    assert!(rows.iter().all(|row| row.target_queue.as_ref().is_some_and(|queue| queue.as_str() == "mail")));
}

/// However it fails.
pub async fn what_is_sent_again_holds_up_no_live_event<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    append(&desk, vec![again("again", Some("shop.order/42"))]).await;
    let rows = desk.expect_due(["again"]).await;
    desk.settle(&rows, &PublishResult::Failed { error: "returned".to_owned(), retry_after: None }).await;
    desk.commit([keyed("live", "42")]).await;
    desk.expect_due(["live"]).await;
}

/// Of one key, to one queue.
pub async fn what_is_sent_again_keeps_its_order<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let long = "x".repeat(600);
    append(&desk, vec![again("1", Some(&long)), again("2", Some(&long)), again("free", None)]).await;
    let rows = desk.expect_due(["1", "2", "free"]).await;
    assert!(rows[0].envelope.ordering_key.is_some());
    assert_eq!(rows[0].envelope.ordering_key, rows[1].envelope.ordering_key);
    assert_eq!(rows[2].envelope.ordering_key, None);
    let retry_after = Some(std::time::Duration::from_hours(1));
    desk.settle(&rows[..1], &PublishResult::Failed { error: "returned".to_owned(), retry_after }).await;
    assert_eq!(due(&desk.claim().await), ["free"]);
}

/// Its id is its own.
pub async fn a_row_is_sent_again_once<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    append(&desk, vec![again("one", None)]).await;
    let mut tx = desk.store.begin().await.unwrap();
    let twice = desk.store.append_verbatim(&mut tx, vec![again("one", None)]).await.unwrap_err();
    assert_eq!(twice.kind, StoreErrorKind::Duplicate);
}
