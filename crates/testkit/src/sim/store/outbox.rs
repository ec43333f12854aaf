//! The outbox of the simulated database.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use postrider::Event;
use postrider::envelope::{EventId, OrderingKey};
use postrider::store::{
    Ask, Backlog, DualPublishing, Horizon, LogPosition, Opening, Outbox, OutboxRow, RelayId, RowId,
    RowResult, SLOTS, SlotLease, StoreError, StreamState, Verbatim, Wanted,
};

use super::super::database::Write;
use super::super::flaw::Flaw;
use super::super::world::Port;
use super::stream::SimStream;
use super::{SimStore, SimTx};

/// Where the rows of a key belong; those without one are spread.
fn slot_of(key: Option<&OrderingKey>, position: i64) -> i16 {
    let mut hash = DefaultHasher::new();
    match key {
        Some(key) => key.as_str().hash(&mut hash),
        None => position.hash(&mut hash),
    }
    i16::try_from(hash.finish() % SLOTS as u64).unwrap_or(0)
}

/// The row of an event.
pub(super) fn new_row(port: &Port, mut event: Event, position: i64) -> OutboxRow {
    let (exchange, routing_key) = (event.exchange.take(), event.routing_key.take());
    let target_queue = event.target_queue.take();
    let envelope = event.into_envelope(&port.clock);
    OutboxRow {
        row: RowId { position, created_at: port.clock.now() },
        slot: Some(slot_of(envelope.ordering_key.as_ref(), position)),
        envelope,
        exchange,
        routing_key,
        target_queue,
        attempts: 0,
        verbatim: None,
        dead_letter: None,
    }
}

/// No migration runs in the simulation.
impl DualPublishing for SimStore {}

impl Outbox for SimStore {
    async fn append(&self, tx: &mut SimTx, events: Vec<Event>) -> Result<Vec<EventId>, StoreError> {
        let (count, id, process) = (events.len(), tx.id, self.0.process);
        let positions: Vec<i64> = self
            .call("append", move |world| {
                (0..count).map(|_| world.database.next_position(id, process)).collect()
            })
            .await?;
        let mut ids = Vec::new();
        for (event, position) in events.into_iter().zip(positions) {
            let due_at = event.available_at;
            let row = new_row(&self.0, event, position);
            ids.push(row.envelope.id.clone());
            tx.writes.push(Write::Append(position, Box::new(row), due_at));
        }
        Ok(ids)
    }

    /// Nothing is replayed here yet.
    async fn append_verbatim(&self, _tx: &mut SimTx, _messages: Vec<Verbatim>) -> Result<(), StoreError> {
        Ok(())
    }

    async fn lease(&self, relay: &RelayId, lease: Duration) -> Result<Vec<SlotLease>, StoreError> {
        let relay = relay.clone();
        self.call("lease", move |world| {
            let now = world.now;
            world.database.slots.lease(&relay, now, now + lease)
        })
        .await
    }

    async fn release(&self, relay: &RelayId) -> Result<(), StoreError> {
        let relay = relay.clone();
        self.call("release", move |world| world.database.slots.release(&relay)).await
    }

    async fn claim(&self, relay: &RelayId, ask: Ask) -> Result<Vec<OutboxRow>, StoreError> {
        let relay = relay.clone();
        self.call("claim", move |world| {
            let (now, time) = (world.now, world.time());
            let rows = match world.flaw {
                Some(Flaw::RowsNotKeys) => world.database.claim_rows(&relay, &ask, (now, time)),
                Some(Flaw::PollByPosition) if ask.wanted != Wanted::Timed => {
                    let last = world.database.polled_to;
                    let mut rows = world.database.claim(&relay, &ask, time);
                    rows.retain(|row| row.row.position > last);
                    world.database.polled_to = rows.last().map_or(last, |row| row.row.position);
                    rows
                }
                _ => world.database.claim(&relay, &ask, time),
            };
            world.note_ids(rows.iter().map(|row| row.envelope.id.as_str()));
            rows
        })
        .await
    }

    async fn horizon(&self) -> Result<Horizon, StoreError> {
        self.call("horizon", |world| {
            let (position, writers) = world.database.horizon();
            let log = LogPosition(world.database.log.len() as u64);
            Horizon { position, at: world.time(), log, writers }
        })
        .await
    }

    async fn settle(&self, relay: &RelayId, results: Vec<RowResult>) -> Result<usize, StoreError> {
        let relay = relay.clone();
        self.call("mark", move |world| {
            let fenced = world.flaw != Some(Flaw::RowsNotKeys);
            world.note_ids(results.iter().map(|row| format!("{} {:?}", row.row.position, row.result)));
            let now = world.time();
            world.database.settle(&relay, results, fenced, now)
        })
        .await
    }

    async fn backlog(&self) -> Result<Backlog, StoreError> {
        Ok(Backlog::default())
    }

    async fn wait(&self, at_most: Duration) {
        self.wait_for_news(at_most).await;
    }

    async fn open_stream(&self, relay: &RelayId, lease: Duration) -> Result<Opening, StoreError> {
        let relay = relay.clone();
        let opened = self
            .call("open stream", move |world| {
                let (now, database) = (world.now, &mut world.database);
                database.slots.open_stream(&relay, now, now + lease).then_some(database.log.len())
            })
            .await?;
        Ok(match opened {
            Some(told) => Opening::Open(Box::new(SimStream { store: self.clone(), told })),
            None => Opening::Elsewhere,
        })
    }

    async fn close_stream(&self, relay: &RelayId) -> Result<(), StoreError> {
        let relay = relay.clone();
        self.call("close stream", move |world| world.database.slots.close_stream(&relay)).await
    }

    async fn stream_state(&self) -> Result<Option<StreamState>, StoreError> {
        let streamer = self.call("stream state", |world| world.database.slots.streamer().cloned()).await?;
        Ok(streamer.map(|relay| StreamState { relay, lag_bytes: 0, untold_bytes: 0, tells: true }))
    }

    async fn failing_keys(&self) -> Result<Vec<OrderingKey>, StoreError> {
        self.call("failing keys", |world| world.database.failing_keys()).await
    }
}
