//! Who may work, asked of the store and shown to everybody: the same for every consumer, also for one that is no [`Consumer`]: the
//! ledger posts by a sequencer of its own, and is paused and seen like the others.
//!
//! [`Consumer`]: super::Consumer

use super::status::ConsumerStatus;
use super::{BreakerState, Cause};
use crate::store::{Controls, Pause};
use crate::topology::ConsumerName;

/// Looks whether somebody paused a consumer, and tells its status. Called about once a second while it runs. A store that cannot be
/// asked changes nothing; false then.
pub async fn obey<S: Controls>(store: &S, name: &ConsumerName, status: &ConsumerStatus) -> bool {
    let Ok(pause) = store.pause_of(name).await else { return false };
    match (status.pause(), &pause) {
        (None, Some(Pause { by, reason, .. })) => {
            tracing::info!(consumer = %name, %by, %reason, "paused; what is in hand is finished");
        }
        (Some(_), None) => tracing::info!(consumer = %name, "resumed"),
        _ => {}
    }
    metrics::gauge!("postrider_consumer_paused", "consumer" => name.to_string()).set(if pause.is_some() {
        1.0
    } else {
        0.0
    });
    status.set_pause(pause);
    true
}

/// Shows that a consumer's store is away, or there again: for who notices it by other means than a breaker. It leaves its queue alone
/// meanwhile.
pub fn note_store(name: &ConsumerName, status: &ConsumerStatus, is_away: bool) {
    let now = if is_away { BreakerState::Open(Cause::Store) } else { BreakerState::Closed };
    if status.breaker() == now {
        return;
    }
    if is_away {
        tracing::error!(consumer = %name, "its store cannot be reached; the queue is left alone until it can");
    } else {
        tracing::info!(consumer = %name, "it works again; the queue is taken up");
    }
    metrics::gauge!("postrider_consumer_breaker_open", "consumer" => name.to_string()).set(if is_away {
        1.0
    } else {
        0.0
    });
    status.set_breaker(now);
}
