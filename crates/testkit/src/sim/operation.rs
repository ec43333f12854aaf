//! The one operation of a simulated database: items that have to be sent, each once, by whichever process has the lease.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use postrider::Event;
use postrider::operation::{Chunk, Work};
use postrider::store::{
    Claim, LogEntry, LogPage, LogQuery, NewOperation, Operation, OperationEnd, OperationKind, OperationState,
    Operations, Outbox as _, StoreError, StoreErrorKind,
};
use uuid::Uuid;

use super::database::Write;
use super::flaw::Flaw;
use super::store::{SimStore, SimTx};

/// What the operation sends.
pub(super) const ITEMS: [&str; 3] = ["op-0", "op-1", "op-2"];

/// The operation.
pub(super) struct Plan {
    pub(super) items: VecDeque<String>,
    done: u64,
    over: bool,
    lease: Option<(String, Duration)>,
}

impl Default for Plan {
    fn default() -> Self {
        Self { items: ITEMS.map(str::to_owned).into(), done: 0, over: false, lease: None }
    }
}

impl Plan {
    fn is_of(&self, runner: &str) -> bool {
        self.lease.as_ref().is_some_and(|(owner, _)| owner == runner)
    }

    /// Whether the items can still be taken: they are there, and the operation is the runner's.
    pub(super) fn may_take(&self, runner: &str, items: &[String]) -> Result<(), StoreError> {
        if self.is_of(runner) && self.items.iter().zip(items).all(|(there, taken)| there == taken) {
            return Ok(());
        }
        Err(StoreError::new(StoreErrorKind::Contended, "another runner has the operation"))
    }

    pub(super) fn take(&mut self, count: usize) {
        self.items.drain(..count.min(self.items.len()));
        self.done += count as u64;
    }

    fn shown(&self, now: Timestamp) -> Operation {
        Operation {
            id: Uuid::nil(),
            kind: OperationKind::ReplayOutbox,
            state: if self.over { OperationState::Done } else { OperationState::Running },
            plan: serde_json::Value::Null,
            done: self.done,
            skipped: 0,
            total: ITEMS.len() as u64,
            rate: None,
            created_by: "simulation".to_owned(),
            reason: None,
            created_at: now,
            started_at: Some(now),
            finished_at: None,
            error: None,
            runner: self.lease.as_ref().map(|(owner, _)| owner.clone()),
        }
    }
}

/// Each item is an event, appended in the transaction that takes it off the list.
pub(super) struct Send;

impl Work<SimStore> for Send {
    fn chunk<'a>(
        &'a self,
        store: &'a SimStore,
        tx: &'a mut SimTx,
        _operation: &'a Operation,
        items: Vec<String>,
    ) -> BoxFuture<'a, Result<Chunk, StoreError>> {
        async move {
            let done = items.len() as u64;
            let event = |id: String| Event::new("sim.item.sent").and_then(|event| event.id(id));
            let events: Result<Vec<_>, _> = items.into_iter().map(event).collect();
            let invalid = |error| StoreError::new(StoreErrorKind::Invalid, "a bad name").because(error);
            store.append(tx, events.map_err(invalid)?).await?;
            Ok(Chunk { done, skipped: 0 })
        }
        .boxed()
    }
}

impl Operations for SimStore {
    /// The operation is there from the beginning.
    async fn create_operation(&self, _tx: &mut SimTx, _new: &NewOperation) -> Result<(), StoreError> {
        Ok(())
    }

    async fn add_items(&self, _tx: &mut SimTx, _id: Uuid, _items: Vec<String>) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn operation(&self, _id: Uuid) -> Result<Option<Operation>, StoreError> {
        Ok(None)
    }

    async fn operations(&self, _before: Option<Uuid>, _limit: usize) -> Result<Vec<Operation>, StoreError> {
        Ok(Vec::new())
    }

    async fn claim_operation(
        &self,
        _which: &Claim,
        runner: &str,
        lease: Duration,
    ) -> Result<Option<Operation>, StoreError> {
        // Looking is free once there is nothing left, or every poll would be a step.
        if self.0.world().database.plan.over {
            return Ok(None);
        }
        let runner = runner.to_owned();
        self.call("claim operation", move |world| {
            let (now, time) = (world.now, world.time());
            let plan = &mut world.database.plan;
            let taken = plan.lease.as_ref().is_some_and(|(owner, until)| *owner != runner && *until > now);
            if taken || plan.over {
                return None;
            }
            plan.lease = Some((runner, now + lease));
            Some(plan.shown(time))
        })
        .await
    }

    async fn next_items(
        &self,
        tx: &mut SimTx,
        _operation: Uuid,
        runner: &str,
        limit: usize,
        lease: Duration,
    ) -> Result<Option<Vec<String>>, StoreError> {
        let asker = runner.to_owned();
        let items: Option<Vec<String>> = self
            .call("next items", move |world| {
                let (now, apart) = (world.now, world.flaw == Some(Flaw::ItemsTakenApart));
                let plan = &mut world.database.plan;
                if !plan.is_of(&asker) {
                    return None;
                }
                plan.lease = Some((asker, now + lease));
                let items: Vec<_> = plan.items.iter().take(limit.min(2)).cloned().collect();
                if apart {
                    plan.take(items.len());
                }
                Some(items)
            })
            .await?;
        if let Some(items) = items.as_ref().filter(|items| !items.is_empty())
            && self.0.world().flaw != Some(Flaw::ItemsTakenApart)
        {
            tx.writes.push(Write::Take(runner.to_owned(), items.clone()));
        }
        Ok(items)
    }

    /// Counted where the items are taken.
    async fn advance(&self, _tx: &mut SimTx, _id: Uuid, _done: u64, _skipped: u64) -> Result<(), StoreError> {
        Ok(())
    }

    async fn finish_operation(
        &self,
        _id: Uuid,
        runner: &str,
        _end: OperationEnd,
    ) -> Result<bool, StoreError> {
        let runner = runner.to_owned();
        self.call("finish operation", move |world| {
            let plan = &mut world.database.plan;
            let ours = plan.is_of(&runner) && !plan.over;
            plan.over |= ours;
            ours
        })
        .await
    }

    async fn release_operation(&self, _id: Uuid, _runner: &str) -> Result<(), StoreError> {
        Ok(())
    }

    async fn cancel_operation(&self, _id: Uuid, _actor: &str, _why: &str) -> Result<bool, StoreError> {
        Ok(false)
    }

    async fn take_turn(&self, _tx: &mut SimTx, _name: &str, _at: Timestamp) -> Result<bool, StoreError> {
        Ok(false)
    }

    async fn record(&self, _tx: &mut SimTx, _entries: Vec<LogEntry>) -> Result<(), StoreError> {
        Ok(())
    }

    async fn log_of(&self, _subject: &str, _limit: usize) -> Result<Vec<LogEntry>, StoreError> {
        Ok(Vec::new())
    }

    async fn log(&self, _query: &LogQuery) -> Result<LogPage, StoreError> {
        Ok(LogPage::default())
    }
}
