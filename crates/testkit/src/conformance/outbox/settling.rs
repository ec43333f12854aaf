//! What became of a row decides what is due next: of its key, and of no other.

use std::time::Duration;

use postrider::store::{Ask, Outbox, OutboxDesk, PublishResult, RowResult};

use super::super::store::{Desk, LEASE, StoreFixture, due, free, id, keyed, relay};
use super::super::until;

fn failed(retry_after: Duration) -> PublishResult {
    PublishResult::Failed { error: "no queue wanted it".into(), retry_after: Some(retry_after) }
}

fn dead() -> PublishResult {
    PublishResult::Failed { error: "no queue wanted it, ten times".into(), retry_after: None }
}

/// They are not claimed again.
pub async fn published_rows_are_done<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit([free("one"), keyed("two", "order-1"), keyed("three", "order-1")]).await;
    let rows = desk.expect_due(["one", "two", "three"]).await;
    desk.publish(&rows[..2]).await;
    desk.publish(&desk.expect_due(["three"]).await).await;
    assert!(desk.claim().await.is_empty());
}

/// Followers of the same key wait; other keys flow.
pub async fn failed_rows_hold_up_their_key_alone<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit([keyed("a1", "a"), keyed("b1", "b"), keyed("a2", "a"), free("free"), keyed("b2", "b")]).await;
    let rows = desk.expect_due(["a1", "b1", "a2", "free", "b2"]).await;
    desk.settle(&rows[..1], &failed(Duration::from_hours(1))).await;
    desk.commit([keyed("a3", "a"), keyed("b3", "b")]).await;
    let rows = desk.expect_due(["b1", "free", "b2", "b3"]).await;
    desk.publish(&rows).await;
    assert!(desk.claim().await.is_empty());
}

/// After the delay that was set, with the failure counted, before their followers.
pub async fn failed_rows_are_due_again<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit([keyed("one", "order-1"), keyed("two", "order-1")]).await;
    for attempts in 1..=3 {
        let rows =
            until("the row to be due", async || Some(desk.claim().await).filter(|rows| !rows.is_empty()))
                .await;
        let delay = Duration::from_millis(300);
        let retry_at = desk.after(delay);
        desk.settle(&rows[..1], &failed(delay)).await;
        let rows =
            until("the row to be due", async || Some(desk.claim().await).filter(|rows| !rows.is_empty()))
                .await;
        let early = retry_at.duration_since(desk.clock.now());
        assert!(early.as_millis() <= 1, "claimed {early:?} early");
        assert_eq!(rows[0].envelope.id.as_str(), "one");
        assert_eq!(rows[0].attempts, attempts);
    }
}

/// However often they are not taken, that is one attempt: none of it was their fault.
pub async fn postponed_rows_count_one_attempt<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit([keyed("one", "order-1"), keyed("two", "order-1")]).await;
    let again = async || {
        until("the row to be due", async || Some(desk.claim().await).filter(|rows| !rows.is_empty())).await
    };
    let mut rows = desk.expect_due(["one", "two"]).await;
    let retry_after = Duration::from_millis(20);
    for _ in 0..3 {
        desk.settle(&rows[..1], &PublishResult::Postponed { error: "full".into(), retry_after }).await;
        rows = again().await;
        assert_eq!((rows.len(), rows[0].envelope.id.as_str(), rows[0].attempts), (1, "one", 1));
    }
    desk.settle(&rows, &failed(retry_after)).await;
    let rows = again().await;
    assert_eq!(rows[0].attempts, 2, "what is its own fault counts on from there");
    desk.publish(&rows).await;
    let found = desk.store.find(&id("one")).await.unwrap().unwrap();
    assert_eq!(found.last_error, None, "nothing is wrong with it any more");
}

/// A relay tells of a batch again when some of its marks came too early: what had failed then has failed once.
pub async fn a_failure_that_is_told_twice_counts_once<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit([keyed("one", "order-1"), free("two")]).await;
    let rows = desk.expect_due(["one", "two"]).await;
    let told = |result: PublishResult| vec![RowResult::new(rows[0].row, result)];
    for recorded in [1, 0, 0] {
        let results = told(failed(Duration::from_hours(1)));
        assert_eq!(desk.store.settle(&desk.relay, results).await.unwrap(), recorded);
    }
    assert_eq!(desk.store.find(&id("one")).await.unwrap().unwrap().attempts, 1);
    let published = told(PublishResult::Published);
    assert_eq!(desk.store.settle(&desk.relay, published).await.unwrap(), 1, "a late confirm is good news");
}

/// In their order.
pub async fn a_key_flows_again_when_its_head_is_published<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit([keyed("one", "order-1"), keyed("two", "order-1"), keyed("three", "order-1")]).await;
    let rows = desk.expect_due(["one", "two", "three"]).await;
    desk.settle(&rows[..1], &failed(Duration::from_millis(50))).await;
    let head =
        until("the head to be due", async || Some(desk.claim().await).filter(|rows| !rows.is_empty())).await;
    desk.publish(&head[..1]).await;
    desk.expect_due(["two", "three"]).await;
}

/// For good; other keys and later events of them flow.
pub async fn dead_rows_park_their_key<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit([keyed("a1", "a"), keyed("a2", "a"), keyed("b1", "b")]).await;
    let rows = desk.expect_due(["a1", "a2", "b1"]).await;
    desk.settle(&rows[..1], &dead()).await;
    desk.commit([keyed("a3", "a"), keyed("b2", "b")]).await;
    desk.publish(&desk.expect_due(["b1", "b2"]).await).await;
    assert!(desk.claim().await.is_empty());
}

/// Failed or dead, a row without a key stands alone.
pub async fn free_rows_hold_up_nobody<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit([free("failed"), free("dead"), free("one"), keyed("two", "order-1")]).await;
    let rows = desk.expect_due(["failed", "dead", "one", "two"]).await;
    desk.settle(&rows[..1], &failed(Duration::from_hours(1))).await;
    desk.settle(&rows[1..2], &dead()).await;
    desk.commit([free("three")]).await;
    desk.expect_due(["one", "two", "three"]).await;
}

/// A claim looks past what cannot go, however much it is.
pub async fn a_blocked_key_does_not_starve_others<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit((0..300).map(|n| keyed(&format!("blocked-{n:03}"), "blocked"))).await;
    desk.commit([keyed("one", "order-1"), free("two")]).await;
    let rows = until("all rows", async || Some(desk.claim().await).filter(|rows| rows.len() == 302)).await;
    desk.settle(&rows[..1], &failed(Duration::from_hours(1))).await;
    let rows = desk.store.claim(&desk.relay, Ask::everything(5)).await.unwrap();
    assert_eq!(due(&rows), ["one", "two"]);
}

/// And is no error.
pub async fn settling_nothing_records_nothing<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    assert_eq!(desk.store.settle(&desk.relay, Vec::new()).await.unwrap(), 0);
}

/// Published, failed and dead, each row by itself.
pub async fn results_of_one_batch_may_differ<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let names: Vec<String> = (0..300).map(|n| format!("event-{n:03}")).collect();
    desk.commit(names.iter().map(|name| keyed(name, name))).await;
    let rows = desk.expect_due(&names).await;
    let results = rows.iter().enumerate().map(|(n, row)| {
        let result = match n % 3 {
            0 => PublishResult::Published,
            1 => failed(Duration::ZERO),
            _ => dead(),
        };
        RowResult::new(row.row, result)
    });
    assert_eq!(desk.store.settle(&desk.relay, results.collect()).await.unwrap(), names.len());
    let retried = desk.expect_due(names.iter().skip(1).step_by(3)).await;
    assert!(retried.iter().all(|row| row.attempts == 1));
}

/// What another relay has taken over is the other's to mark.
pub async fn a_relay_that_lost_its_lease_cannot_mark<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit([free("one"), keyed("two", "order-1")]).await;
    let rows = desk.expect_due(["one", "two"]).await;
    // As if it had been paused until its lease was over.
    desk.store.release(&desk.relay).await.unwrap();
    let heir = Desk { store: desk.store.clone(), relay: relay("heir"), clock: desk.clock.clone() };
    assert!(!heir.store.lease(&heir.relay, LEASE).await.unwrap().is_empty());
    heir.expect_due(["one", "two"]).await;
    let results = rows.iter().map(|row| RowResult::new(row.row, PublishResult::Published)).collect();
    assert_eq!(desk.store.settle(&desk.relay, results).await.unwrap(), 0, "it marked what it does not hold");
    let rows = heir.expect_due(["one", "two"]).await;
    heir.publish(&rows).await;
    assert!(heir.claim().await.is_empty());
}
