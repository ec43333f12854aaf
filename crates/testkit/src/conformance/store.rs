//! What every store must do: a transaction commits whole or leaves nothing, crash or no crash.

use std::future::Future;
use std::time::Duration;

use futures_util::future::join_all;
use postrider::store::{
    Ask, Backend, Outbox, OutboxRow, PublishResult, RelayId, RowResult, Store, StoreError,
};
use postrider::{Clock, Event, EventId};

use super::{Crash, until};

/// A store with an empty database of its own, and a table of effects in it.
pub trait StoreFixture: Send + Sync {
    /// The store.
    type Store: Backend;

    /// The store. A case that asks again has crashed the one before.
    fn store(&self) -> impl Future<Output = Self::Store> + Send;

    /// Writes an effect in a transaction, as a handler does. The table has no unique constraint, so that a doubled effect
    /// is seen.
    fn insert_effect(
        &self,
        tx: &mut <Self::Store as Store>::Tx,
        consumer: &str,
        event: &EventId,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Every effect that is committed: who applied which event.
    fn effects(&self) -> impl Future<Output = Vec<(String, EventId)>> + Send;
}

/// Longer than any case.
pub(super) const LEASE: Duration = Duration::from_mins(5);

/// A store and the one relay that empties it.
pub(super) struct Desk<S> {
    pub(super) store: S,
    pub(super) relay: RelayId,
    pub(super) clock: Clock,
}

impl<S: Backend> Desk<S> {
    /// Opens the fixture's store and leases all of the outbox.
    pub(super) async fn open<F: StoreFixture<Store = S>>(fixture: &F) -> Self {
        let store = fixture.store().await;
        let desk = Self { store, relay: relay("desk"), clock: Clock::system() };
        assert!(
            !desk.store.lease(&desk.relay, LEASE).await.unwrap().is_empty(),
            "a relay alone holds every slot"
        );
        desk
    }

    /// Commits events in a transaction of their own.
    pub(super) async fn commit(&self, events: impl IntoIterator<Item = Event>) -> Vec<EventId> {
        let mut tx = self.store.begin().await.unwrap();
        let ids = self.store.append(&mut tx, events.into_iter().collect()).await.unwrap();
        self.store.commit(tx).await.unwrap();
        ids
    }

    /// Everything that is due now.
    pub(super) async fn claim(&self) -> Vec<OutboxRow> {
        self.store.claim(&self.relay, Ask::everything(100_000)).await.unwrap()
    }

    /// Waits until as many rows as these are due, and expects them to be these.
    pub(super) async fn expect_due<I: AsRef<str>>(&self, ids: impl IntoIterator<Item = I>) -> Vec<OutboxRow> {
        let wanted: Vec<String> = ids.into_iter().map(|id| id.as_ref().to_owned()).collect();
        let rows = until(&format!("rows {wanted:?}"), async || {
            let rows = self.claim().await;
            (rows.len() >= wanted.len()).then_some(rows)
        })
        .await;
        assert_eq!(due(&rows), wanted);
        rows
    }

    /// Records one result for several rows, and expects all to be recorded.
    pub(super) async fn settle(&self, rows: &[OutboxRow], result: &PublishResult) {
        let results = rows.iter().map(|row| RowResult::new(row.row, result.clone())).collect();
        assert_eq!(self.store.settle(&self.relay, results).await.unwrap(), rows.len());
    }

    /// Marks rows as published.
    pub(super) async fn publish(&self, rows: &[OutboxRow]) {
        self.settle(rows, &PublishResult::Published).await;
    }

    /// A time from now.
    pub(super) fn after(&self, delay: Duration) -> jiff::Timestamp {
        self.clock.now() + delay
    }
}

pub(super) fn relay(name: &str) -> RelayId {
    RelayId::new(name).unwrap()
}

pub(super) fn id(text: &str) -> EventId {
    EventId::new(text).unwrap()
}

/// The ids of rows, in their order.
pub(super) fn due(rows: &[OutboxRow]) -> Vec<String> {
    rows.iter().map(|row| row.envelope.id.to_string()).collect()
}

/// An event that keeps its order with nothing.
pub(super) fn free(id: &str) -> Event {
    Event::new("shop.order.placed").unwrap().id(id).unwrap()
}

/// An event that keeps its order with the others of its aggregate.
pub(super) fn keyed(id: &str, aggregate: &str) -> Event {
    free(id).aggregate_id(aggregate).unwrap()
}

/// A handler's transaction in small: an effect and an event that follows from it.
async fn write<F: StoreFixture>(fixture: &F, store: &F::Store, name: &str) -> <F::Store as Store>::Tx {
    let mut tx = store.begin().await.unwrap();
    fixture.insert_effect(&mut tx, "mail", &id(name)).await.unwrap();
    store.append(&mut tx, vec![free(name)]).await.unwrap();
    tx
}

fn effects_of(names: &[&str]) -> Vec<(String, EventId)> {
    names.iter().map(|name| ("mail".to_owned(), id(name))).collect()
}

/// Both, at once.
pub async fn effects_and_events_commit_together<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let tx = write(fixture, &desk.store, "one").await;
    desk.store.commit(tx).await.unwrap();
    desk.expect_due(["one"]).await;
    assert_eq!(fixture.effects().await, effects_of(&["one"]));
}

/// Neither.
pub async fn a_rollback_leaves_nothing<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let tx = write(fixture, &desk.store, "one").await;
    desk.store.rollback(tx).await.unwrap();
    let tx = write(fixture, &desk.store, "two").await;
    desk.store.commit(tx).await.unwrap();
    desk.expect_due(["two"]).await;
    assert_eq!(fixture.effects().await, effects_of(&["two"]));
}

/// A handler that panicked or was cancelled has done nothing, and holds up nobody.
pub async fn a_dropped_transaction_leaves_nothing<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    for name in ["one", "two", "three"] {
        drop(write(fixture, &desk.store, name).await);
    }
    drop(desk.store.begin().await.unwrap());
    let tx = write(fixture, &desk.store, "four").await;
    desk.store.commit(tx).await.unwrap();
    desk.expect_due(["four"]).await;
    assert_eq!(fixture.effects().await, effects_of(&["four"]));
}

/// A store that can be reached and has its schema says so.
pub async fn the_store_can_be_checked<F: StoreFixture>(fixture: &F) {
    fixture.store().await.check().await.unwrap();
}

/// Twenty at a time, with effects and events, and every commit counts.
pub async fn many_transactions_at_once_all_commit<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let transactions = (0..100).map(|n| {
        let desk = &desk;
        async move {
            let tx = write(fixture, &desk.store, &format!("event-{n:03}")).await;
            desk.store.commit(tx).await.unwrap();
        }
    });
    join_all(transactions).await;
    let rows = until("all rows", async || Some(desk.claim().await).filter(|rows| rows.len() >= 100)).await;
    let mut seen = due(&rows);
    seen.sort();
    let mut effects: Vec<String> =
        fixture.effects().await.into_iter().map(|(_, id)| id.to_string()).collect();
    effects.sort();
    let all: Vec<String> = (0..100).map(|n| format!("event-{n:03}")).collect();
    assert_eq!(seen, all);
    assert_eq!(effects, all);
}

/// Begins as soon as the store is back.
async fn begin_again<S: Store>(store: &S) -> S::Tx {
    until("the store to be back", async || match store.begin().await {
        Ok(tx) => Some(tx),
        Err(error) if error.is_transient() => None,
        Err(error) => panic!("after the crash: {error}"),
    })
    .await
}

/// A commit that was answered is on the disk.
pub async fn commits_survive_a_crash<F: StoreFixture + Crash>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    for name in ["one", "two"] {
        let tx = write(fixture, &desk.store, name).await;
        desk.store.commit(tx).await.unwrap();
    }
    let rows = desk.expect_due(["one", "two"]).await;
    desk.publish(&rows[..1]).await;
    drop(desk);
    fixture.restart().await;
    let store = fixture.store().await;
    store.rollback(begin_again(&store).await).await.unwrap();
    assert_eq!(fixture.effects().await, effects_of(&["one", "two"]));
    let desk = Desk::open(fixture).await;
    let rows = until("the rows", async || Some(desk.claim().await).filter(|rows| !rows.is_empty())).await;
    // A mark may be undone: then the row is published again, which the promise allows. A row is never forgotten.
    assert!(
        [&["two"][..], &["one", "two"]]
            .contains(&&due(&rows).iter().map(String::as_str).collect::<Vec<_>>()[..])
    );
}

/// What was not committed never was.
pub async fn what_a_crash_interrupts_leaves_nothing<F: StoreFixture + Crash>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let tx = write(fixture, &desk.store, "one").await;
    desk.store.commit(tx).await.unwrap();
    let open = write(fixture, &desk.store, "two").await;
    fixture.restart().await;
    drop(open);
    drop(desk);
    let store = fixture.store().await;
    store.rollback(begin_again(&store).await).await.unwrap();
    let desk = Desk::open(fixture).await;
    let tx = write(fixture, &desk.store, "three").await;
    desk.store.commit(tx).await.unwrap();
    desk.expect_due(["one", "three"]).await;
    assert_eq!(fixture.effects().await, effects_of(&["one", "three"]));
}

/// The relay that died with its lease does not keep the outbox from its successor.
pub async fn leases_end_after_a_crash<F: StoreFixture + Crash>(fixture: &F) {
    let store = fixture.store().await;
    store.lease(&relay("dead"), Duration::from_secs(2)).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    store.append(&mut tx, vec![free("one")]).await.unwrap();
    store.commit(tx).await.unwrap();
    drop(store);
    fixture.restart().await;
    let store = fixture.store().await;
    store.rollback(begin_again(&store).await).await.unwrap();
    let successor = relay("successor");
    let rows = until("the successor's turn", async || {
        store.lease(&successor, LEASE).await.unwrap();
        Some(store.claim(&successor, Ask::everything(10)).await.unwrap()).filter(|rows| !rows.is_empty())
    })
    .await;
    assert_eq!(due(&rows), ["one"]);
}
