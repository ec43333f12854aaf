//! Events are appended once per id, in the order in which they are given.

use std::collections::BTreeSet;

use postrider::store::{Outbox, Store, StoreError, StoreErrorKind};
use postrider::{Event, EventId};

use super::super::store::{Desk, StoreFixture, due, free, id, keyed};

/// New ones, each its own.
pub async fn ids_are_made_where_none_are_given<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let ids = desk.commit((0..100).map(|_| Event::new("shop.order.placed").unwrap())).await;
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 100);
    desk.expect_due(&ids).await;
}

/// In the answer and in the outbox.
pub async fn given_ids_are_kept_in_order<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let given = ["evt_987654321", "b", "a", "pay_run_2026_03", "0198c0de-0000-7000-8000-000000000000"];
    let ids = desk.commit(given.map(free)).await;
    assert_eq!(ids, given.map(id));
    desk.expect_due(given).await;
}

/// And so is a transaction that does nothing else.
pub async fn appending_nothing_is_fine<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    assert!(desk.commit([]).await.is_empty());
    desk.commit([free("one")]).await;
    desk.expect_due(["one"]).await;
}

/// Appends in a transaction of its own; rolls back where that fails.
async fn try_commit<F: StoreFixture>(
    desk: &Desk<F::Store>,
    events: Vec<Event>,
) -> Result<Vec<EventId>, StoreError> {
    let mut tx = desk.store.begin().await?;
    match desk.store.append(&mut tx, events).await {
        Ok(ids) => desk.store.commit(tx).await.map(|()| ids),
        Err(error) => {
            desk.store.rollback(tx).await?;
            Err(error)
        }
    }
}

async fn expect_duplicate<F: StoreFixture>(desk: &Desk<F::Store>, events: Vec<Event>) {
    let error = try_commit::<F>(desk, events).await.expect_err("an id was committed twice");
    assert_eq!(error.kind, StoreErrorKind::Duplicate, "{error}");
}

/// And nothing of the batch stays.
pub async fn an_id_twice_in_a_batch_is_a_duplicate<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    expect_duplicate::<F>(&desk, vec![free("one"), free("two"), free("one")]).await;
    desk.commit([free("three")]).await;
    desk.expect_due(["three"]).await;
}

/// Whatever it says this time.
pub async fn an_id_committed_before_is_a_duplicate<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit([free("one")]).await;
    expect_duplicate::<F>(&desk, vec![free("two"), keyed("one", "another")]).await;
    desk.commit([free("two")]).await;
    desk.expect_due(["one", "two"]).await;
}

/// Publishing does not free an id.
pub async fn a_published_id_is_still_a_duplicate<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit([free("one")]).await;
    desk.publish(&desk.expect_due(["one"]).await).await;
    expect_duplicate::<F>(&desk, vec![free("one")]).await;
}

/// It was never committed.
pub async fn an_id_that_was_rolled_back_is_free<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let mut tx = desk.store.begin().await.unwrap();
    desk.store.append(&mut tx, vec![free("one")]).await.unwrap();
    desk.store.rollback(tx).await.unwrap();
    desk.commit([free("one")]).await;
    desk.expect_due(["one"]).await;
}

/// However they overlap; the other is told that it was a duplicate.
pub async fn two_transactions_with_one_id_commit_once<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    for round in 0..10 {
        let name = format!("event-{round}");
        let (first, second) = tokio::join!(
            try_commit::<F>(&desk, vec![free(&name)]),
            try_commit::<F>(&desk, vec![free(&name)])
        );
        let ((Ok(_), Err(error)) | (Err(error), Ok(_))) = (first, second) else {
            panic!("of two transactions not one committed");
        };
        assert_eq!(error.kind, StoreErrorKind::Duplicate, "{error}");
    }
    assert_eq!(desk.claim().await.len(), 10);
}

/// More rows than one statement may have parameters.
pub async fn a_large_batch_keeps_its_order<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let names: Vec<String> = (0..5_000).map(|n| format!("event-{n:05}")).collect();
    let events = names.iter().enumerate().map(|(n, name)| keyed(name, &format!("order-{}", n % 50)));
    assert_eq!(desk.commit(events).await.len(), names.len());
    assert_eq!(due(&desk.claim().await), names);
}
