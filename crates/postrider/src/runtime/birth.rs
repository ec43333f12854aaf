//! Consumers are registered, and it is noted since when their queues are bound: the account of one that joins late must not ask for what
//! was published before. What waited in the outbox then is asked for: it reaches the queue. A loss in the first moments of a queue
//! (`SKEW`) is not noticed.

use std::collections::HashSet;
use std::time::Duration;

use jiff::Timestamp;

use super::StartError;
use crate::broker::BrokerError;
use crate::clock::Clock;
use crate::store::{Registration, Registrations, SKEW};
use crate::topology::ConsumerName;

/// Until a queue is bound its consumer's time has not come. A start that fails before that leaves it at this, for the next one.
const NOT_YET: Duration = Duration::from_hours(24);

/// Registers before the queues are declared, so that whoever comes after a crash knows of them, and dates those that are new or bound by
/// more than before once they are.
pub(super) async fn register<S: Registrations>(
    store: &S,
    mut consumers: Vec<Registration>,
    clock: &Clock,
    declare: impl AsyncFnOnce() -> Result<(), BrokerError>,
) -> Result<(), StartError> {
    if consumers.is_empty() {
        return Ok(declare().await?);
    }
    if let Some(name) = twice(&consumers) {
        return Err(StartError::Twice(name.clone()));
    }
    let known = store.registrations().await?;
    let mut fresh = Vec::new();
    for consumer in &mut consumers {
        let before = known.iter().find(|known| known.name == consumer.name);
        match before.filter(|before| consumer.is_bound_like(before)) {
            Some(before) if before.since.is_none_or(|since| since <= later(clock, SKEW)) => {
                consumer.since = before.since;
            }
            _ => {
                consumer.since = Some(later(clock, NOT_YET));
                fresh.push(consumer.clone());
            }
        }
    }
    store.register(consumers).await?;
    declare().await?;
    let since = Some(later(clock, SKEW));
    let dated: Vec<_> = fresh.into_iter().map(|consumer| Registration { since, ..consumer }).collect();
    if dated.is_empty() { Ok(()) } else { Ok(store.register(dated).await?) }
}

/// A name that two of them have.
fn twice(consumers: &[Registration]) -> Option<&ConsumerName> {
    let mut seen = HashSet::new();
    consumers.iter().map(|consumer| &consumer.name).find(|name| !seen.insert(*name))
}

fn later(clock: &Clock, by: Duration) -> Timestamp {
    clock.now().checked_add(by).unwrap_or(Timestamp::MAX)
}
