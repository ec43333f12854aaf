//! Settling and expiring: delete what is done with, move dead letters to where their queue sends them.
//!
//! One transaction for a batch. A crash before its commit changes nothing, and all of it is delivered again; after it a
//! dead letter is in its new queues and in no other.

use std::collections::HashSet;
use std::sync::Arc;

use sqlx::SqliteConnection;

use super::catalog::QueueId;
use super::death::{Death, Reason, is_cycle};
use super::queue::{Content, Entry, Settling};
use super::state::{Arrival, Shared, State, from_store};
use super::tables::{self, NewDeath, NewEntry};
use crate::broker::{BrokerError, Message};
use crate::store::StoreError;

/// Carries out what was decided about messages of a queue. If that fails, they go back to their places.
pub(super) async fn carry_out(
    shared: Arc<Shared>,
    id: QueueId,
    settling: Settling,
    reason: Reason,
) -> Result<(), BrokerError> {
    let settling = Arc::new(settling);
    let (within, todo) = (shared.clone(), settling.clone());
    let outcome = shared
        .store
        .writer()
        .run(move |conn| {
            Box::pin(async move {
                tables::delete(conn, id, &todo.done).await?;
                bury(&within, conn, id, &todo.rejected, reason).await
            })
        })
        .await;
    let mut state = shared.lock();
    let Some(queue) = state.queues.get_mut(&id) else { return Ok(()) };
    let outcome = match outcome {
        Ok(buried) => {
            if !buried.stranded.is_empty() {
                tracing::warn!(
                    queue = %queue.settings.name,
                    messages = buried.stranded.len(),
                    "the dead-letter target reaches no queue, or only in a ring; the messages stay in their queue and are \
                     tried again when something is declared"
                );
            }
            queue.strand(&buried.stranded);
            queue.settled(&settling.seqs());
            shared.arrived(&mut state, buried.arrivals);
            Ok(())
        }
        Err(error) => {
            queue.give_back(&settling.seqs());
            Err(from_store(error))
        }
    };
    shared.stir(&mut state, id);
    outcome
}

#[derive(Default)]
struct Buried {
    arrivals: Vec<Arrival>,
    /// Those that no queue would have taken: they stay where they are.
    stranded: Vec<i64>,
}

/// A dead letter on its way.
struct Move {
    entry: Entry,
    death: Arc<NewDeath>,
    targets: Vec<QueueId>,
}

async fn bury(
    shared: &Shared,
    conn: &mut SqliteConnection,
    id: QueueId,
    entries: &[Entry],
    reason: Reason,
) -> Result<Buried, StoreError> {
    if entries.is_empty() {
        return Ok(Buried::default());
    }
    let (moves, stranded) = plan(&mut shared.lock(), shared, id, entries, reason);
    let there: HashSet<i64> =
        tables::vacate(conn, id, moves.iter().map(|dead| dead.entry.seq)).await?.into_iter().collect();
    let mut arrivals = Vec::with_capacity(moves.len());
    let mut places = Vec::with_capacity(moves.len());
    {
        let mut state = shared.lock();
        for Move { entry, death, targets } in moves.into_iter().filter(|dead| there.contains(&dead.entry.seq))
        {
            let old = &entry.content.message;
            let mut headers = old.headers.clone();
            headers.extend(death.told.clone());
            let content = Arc::new(Content {
                message: Message { properties: old.properties.clone(), headers, body: old.body.clone() },
                exchange: death.exchange.clone(),
                routing_key: death.routing_key.clone(),
            });
            let several = entry.shared || targets.len() > 1;
            for target in targets {
                if let Some(arrival) = state.place(target, entry.row, several, shared.now(), content.clone())
                {
                    places.push(NewEntry::of(&arrival, Some(death.clone())));
                    arrivals.push(arrival);
                }
            }
        }
    }
    tables::insert(conn, &[], &places).await?;
    Ok(Buried { arrivals, stranded })
}

/// Where each dead letter goes, and which have nowhere to go.
fn plan(
    state: &mut State,
    shared: &Shared,
    id: QueueId,
    entries: &[Entry],
    reason: Reason,
) -> (Vec<Move>, Vec<i64>) {
    let (mut moves, mut stranded) = (Vec::with_capacity(entries.len()), Vec::new());
    let Some(queue) = state.queues.get(&id).map(|queue| queue.settings.clone()) else {
        return (moves, stranded);
    };
    for entry in entries {
        let Content { message, exchange, routing_key } = &*entry.content;
        let death = Death { queue: &queue.name, reason, time: shared.clock.now(), exchange, routing_key };
        let told = death.told_after(&message.headers);
        let Some(target) = queue.effective_dead_letter() else { continue };
        let key = target.routing_key.as_ref().unwrap_or(routing_key);
        let reached = state.catalog.route(&target.exchange, key).unwrap_or_default();
        let in_a_ring = |target: &QueueId| {
            let target = state.queues.get(target);
            reason != Reason::Rejected && target.is_some_and(|target| is_cycle(&told, &target.settings.name))
        };
        let targets: Vec<_> = reached.iter().copied().filter(|target| !in_a_ring(target)).collect();
        if targets.is_empty() {
            stranded.push(entry.seq);
            continue;
        }
        let death = NewDeath { exchange: target.exchange.clone(), routing_key: key.clone(), told };
        moves.push(Move { entry: entry.clone(), death: Arc::new(death), targets });
    }
    (moves, stranded)
}
