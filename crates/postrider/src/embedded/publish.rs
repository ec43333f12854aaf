//! Publishing: route, store, and only then let the queues know.

use std::collections::HashMap;
use std::sync::Arc;

use super::catalog::QueueId;
use super::fit::unfit;
use super::queue::{Content, Entry, Load};
use super::state::{Arrival, Shared, State, closed, from_store};
use super::tables::{self, NewEntry, NewMessage};
use crate::broker::{BrokerError, Outgoing, Published};

/// A message that is wanted by at least one queue.
struct Routed {
    content: Arc<Content>,
    queues: Arc<[QueueId]>,
}

/// Publishes a batch in one transaction. A crash before its commit leaves nothing of it, and nobody was told otherwise.
pub(super) async fn publish(shared: &Arc<Shared>, batch: Vec<Outgoing>) -> Vec<Published> {
    let mut answers = Vec::with_capacity(batch.len());
    let mut routed = Vec::with_capacity(batch.len());
    {
        let mut state = shared.lock();
        if state.closed {
            return vec![Published::Unknown(closed().message); batch.len()];
        }
        let mut on_their_way = HashMap::new();
        for outgoing in batch {
            let (answer, message) = route(&mut state, &mut on_their_way, outgoing);
            answers.push(answer);
            routed.extend(message);
        }
    }
    if routed.is_empty() {
        return answers;
    }
    if let Err(error) = shared.run(store(shared.clone(), routed)).await {
        let wanted = answers.iter_mut().filter(|answer| **answer == Published::Confirmed);
        wanted.for_each(|answer| *answer = Published::Unknown(error.message.clone()));
    }
    answers
}

/// The answer if all goes well, and the message if it is to be stored. One that a full queue refuses reaches the others all the
/// same, as on RabbitMQ: whoever published it does so again, and it comes to them twice.
fn route(
    state: &mut State,
    on_their_way: &mut HashMap<QueueId, Load>,
    outgoing: Outgoing,
) -> (Published, Option<Routed>) {
    let Outgoing { exchange, routing_key, message } = outgoing;
    if let Some(why) = unfit(&message) {
        return (Published::Unfit(why), None);
    }
    let Some(queues) = state.catalog.route(&exchange, &routing_key) else {
        return (Published::Refused(format!("there is no exchange {exchange:?}; declare it first")), None);
    };
    if queues.is_empty() {
        let text = if exchange.as_str().is_empty() {
            crate::broker::no_such_queue(routing_key.as_str())
        } else {
            format!("no queue of exchange {exchange:?} wants the key {routing_key:?}; bind one")
        };
        return (Published::Returned(text), None);
    }
    let content = Arc::new(Content { message, exchange, routing_key });
    let (queues, full) = with_room(state, on_their_way, queues, &content);
    let answer = match full {
        Some(why) => Published::Declined(why),
        None => Published::Confirmed,
    };
    (answer, (!queues.is_empty()).then_some(Routed { content, queues }))
}

/// Those that take one more message, and why not, if one does not.
fn with_room(
    state: &State,
    on_their_way: &mut HashMap<QueueId, Load>,
    queues: Arc<[QueueId]>,
    content: &Content,
) -> (Arc<[QueueId]>, Option<String>) {
    let limited = |id: &QueueId| state.queues.get(id).filter(|queue| queue.settings.is_limited());
    if !queues.iter().any(|id| limited(id).is_some()) {
        return (queues, None);
    }
    let (mut open, mut full) = (Vec::with_capacity(queues.len()), None);
    for id in queues.iter() {
        let coming = on_their_way.entry(*id).or_default();
        match limited(id) {
            Some(queue) if queue.refuses(*coming) => {
                let name = &queue.settings.name;
                full = Some(format!(
                    "queue {name:?} has as many messages, or bytes, as it may; publish it again"
                ));
            }
            _ => {
                coming.add(content);
                open.push(*id);
            }
        }
    }
    (open.into(), full)
}

async fn store(shared: Arc<Shared>, routed: Vec<Routed>) -> Result<(), BrokerError> {
    let touched: Vec<_> = routed.iter().flat_map(|message| message.queues.iter().copied()).collect();
    let place = shared.clone();
    let stored = shared
        .store
        .writer()
        .run(move |conn| {
            Box::pin(async move {
                // Places are handed out by whoever has the writer, so their order is the order of commits.
                let (messages, entries, arrivals) = place_all(&mut place.lock(), place.now(), &routed);
                tables::insert(conn, &messages, &entries).await?;
                Ok(arrivals)
            })
        })
        .await;
    let mut state = shared.lock();
    match stored {
        Ok(arrivals) => {
            shared.arrived(&mut state, arrivals);
            Ok(())
        }
        Err(error) => {
            // The commit may have happened: the tables will tell.
            for id in touched {
                if let Some(queue) = state.queues.get_mut(&id) {
                    queue.more = true;
                }
                shared.stir(&mut state, id);
            }
            Err(from_store(error))
        }
    }
}

fn place_all(
    state: &mut State,
    now: i64,
    routed: &[Routed],
) -> (Vec<NewMessage>, Vec<NewEntry>, Vec<Arrival>) {
    let mut messages = Vec::with_capacity(routed.len());
    let (mut entries, mut arrivals) = (Vec::with_capacity(routed.len()), Vec::with_capacity(routed.len()));
    for Routed { content, queues } in routed {
        state.last_row += 1;
        let row = state.last_row;
        messages.push(NewMessage { row, content: content.clone() });
        for queue in queues.iter() {
            let shared = queues.len() > 1;
            if let Some(arrival) = state.place(*queue, row, shared, now, content.clone()) {
                entries.push(NewEntry::of(&arrival, None));
                arrivals.push(arrival);
            }
        }
    }
    (messages, entries, arrivals)
}

impl State {
    /// The next place in a queue, for a message of this row.
    pub(super) fn place(
        &mut self,
        id: QueueId,
        row: i64,
        shared: bool,
        now: i64,
        content: Arc<Content>,
    ) -> Option<Arrival> {
        let queue = self.queues.get_mut(&id)?;
        let previous = queue.last;
        queue.last += 1;
        let ttl = queue.settings.message_ttl;
        let expires_at =
            ttl.map(|ttl| now.saturating_add(i64::try_from(ttl.as_micros()).unwrap_or(i64::MAX)));
        let entry =
            Entry { seq: queue.last, row, shared, expires_at, redelivered: false, returned: 0, content };
        Some(Arrival { queue: id, entry, previous })
    }
}
