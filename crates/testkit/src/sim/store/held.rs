//! Held events of the simulated database.

use std::collections::HashMap;
use std::time::Duration;

use postrider::envelope::{EventId, OrderingKey};
use postrider::store::{Held, HeldEvent, HeldHead, HeldKey, HeldState, StoreError};
use postrider::topology::ConsumerName;

use super::super::database::{HeldRow, Write};
use super::super::flaw::Flaw;
use super::{SimStore, SimTx};

impl Held for SimStore {
    async fn hold(&self, consumer: &ConsumerName, events: Vec<HeldEvent>) -> Result<(), StoreError> {
        let consumer = consumer.clone();
        self.call("hold", move |world| {
            world.note_ids(events.iter().map(|event| event.event_id.as_str()));
            for event in events {
                let there = |row: &HeldRow| row.consumer == consumer && row.event.event_id == event.event_id;
                if !world.database.held.iter().any(there) {
                    let due_at = world.now + event.delay;
                    let row = HeldRow { consumer: consumer.clone(), event, due_at, lease: None };
                    world.database.held.push(row);
                }
            }
        })
        .await
    }

    async fn hold_head(&self, consumer: &ConsumerName, event: HeldEvent) -> Result<(), StoreError> {
        let consumer = consumer.clone();
        self.call("hold head", move |world| {
            world.note_ids([event.event_id.as_str()]);
            let due_at = world.now + event.delay;
            let held = &mut world.database.held;
            let there = |row: &HeldRow| row.consumer == consumer && row.event.event_id == event.event_id;
            match held.iter().position(there) {
                Some(place) => held[place] = HeldRow { consumer, event, due_at, lease: None },
                None => held.push(HeldRow { consumer, event, due_at, lease: None }),
            }
        })
        .await
    }

    async fn held_heads(
        &self,
        consumer: &ConsumerName,
        keys: &[OrderingKey],
    ) -> Result<HashMap<OrderingKey, HeldHead>, StoreError> {
        let (consumer, keys) = (consumer.clone(), keys.to_vec());
        self.call("held heads", move |world| {
            let mut heads = HashMap::new();
            if world.flaw == Some(Flaw::NothingHeld) {
                return heads;
            }
            for row in world.database.held.iter().filter(|row| row.consumer == consumer) {
                if keys.contains(&row.event.key) {
                    let head = HeldHead { event_id: row.event.event_id.clone(), state: row.event.state };
                    heads.entry(row.event.key.clone()).or_insert(head);
                }
            }
            let mut told: Vec<_> =
                heads.iter().map(|(key, head)| format!("{key}: {}", head.event_id)).collect();
            told.sort();
            world.note_ids(told);
            heads
        })
        .await
    }

    async fn held_events(
        &self,
        consumer: &ConsumerName,
        events: &[EventId],
    ) -> Result<Vec<HeldEvent>, StoreError> {
        let (consumer, events) = (consumer.clone(), events.to_vec());
        self.call("held events", move |world| {
            world.note_ids(events.iter().map(EventId::as_str));
            let held = world.database.held.iter().filter(|row| row.consumer == consumer);
            let asked = held.filter(|row| events.contains(&row.event.event_id));
            asked.map(|row| HeldEvent { delay: Duration::ZERO, ..row.event.clone() }).collect()
        })
        .await
    }

    async fn claim_held(
        &self,
        consumer: &ConsumerName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<HeldEvent>, StoreError> {
        let (consumer, owner) = (consumer.clone(), owner.to_owned());
        // Looking is free while there is nothing, or every poll would be a step.
        if self.0.world().database.held.is_empty() {
            return Ok(Vec::new());
        }
        self.call("claim held", move |world| {
            let (now, mut seen, mut claimed) = (world.now, Vec::new(), Vec::new());
            for row in world.database.held.iter_mut().filter(|row| row.consumer == consumer) {
                let is_head = !seen.contains(&row.event.key);
                seen.push(row.event.key.clone());
                let leased = row.lease.as_ref().is_some_and(|(_, until)| *until > now);
                let waits = row.event.state == HeldState::Waiting && row.due_at <= now;
                if is_head && waits && !leased && claimed.len() < limit {
                    row.lease = Some((owner.clone(), now + lease));
                    claimed.push(HeldEvent { delay: Duration::ZERO, ..row.event.clone() });
                }
            }
            world.note_ids(claimed.iter().map(|event| event.event_id.as_str()));
            claimed
        })
        .await
    }

    async fn renew_held(
        &self,
        consumer: &ConsumerName,
        owner: &str,
        event: &EventId,
        lease: Duration,
    ) -> Result<(), StoreError> {
        let (consumer, owner, event) = (consumer.clone(), owner.to_owned(), event.clone());
        self.call("renew held", move |world| {
            let until = world.now + lease;
            let held = world.database.held.iter_mut();
            for row in held.filter(|row| row.consumer == consumer && row.event.event_id == event) {
                row.lease.iter_mut().filter(|(of, _)| *of == owner).for_each(|lease| lease.1 = until);
            }
        })
        .await
    }

    async fn let_go(
        &self,
        tx: &mut SimTx,
        consumer: &ConsumerName,
        event: &EventId,
    ) -> Result<(), StoreError> {
        self.call("let go", |_| ()).await?;
        tx.writes.push(Write::LetGo(consumer.clone(), event.clone()));
        Ok(())
    }

    /// Nobody is parked here: a dead event lets those behind it go on.
    async fn release_key(
        &self,
        _of: &ConsumerName,
        _key: &OrderingKey,
        _by: &str,
        _why: &str,
    ) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn release_discarded(&self, _of: &ConsumerName) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn held_keys(&self, _of: Option<&ConsumerName>, _limit: usize) -> Result<Vec<HeldKey>, StoreError> {
        Ok(Vec::new())
    }
}
