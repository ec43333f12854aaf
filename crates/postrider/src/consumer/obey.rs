//! Who may work, asked of the store and shown to everybody: the same for every consumer, also for one that is no [`Consumer`]: the
//! ledger posts by a sequencer of its own, and is paused and seen like the others.
//!
//! [`Consumer`]: super::Consumer

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::Mutex;

use super::status::ConsumerStatus;
use super::{BreakerState, Cause};
use crate::clock::Clock;
use crate::store::{Controls, Pause};
use crate::topology::ConsumerName;

/// Looks whether somebody paused a consumer, and tells its status. Called about once a second while it runs. A store that cannot be
/// asked changes nothing; false then.
pub async fn obey<S: Controls>(store: &S, name: &ConsumerName, status: &ConsumerStatus) -> bool {
    let Ok(pause) = store.pause_of(name).await else { return false };
    follow(name, status, pause);
    true
}

/// What operators told the consumers of a process, asked for all of them at once: a thousand of them ask the store no more often than two.
#[derive(Debug, Default)]
pub struct Orders(Mutex<Asked>);

#[derive(Debug, Default)]
struct Asked {
    /// When the store last answered, or failed to.
    at: Option<Duration>,
    /// Everybody who is paused; nothing while the store cannot be asked.
    pauses: Option<HashMap<ConsumerName, Pause>>,
}

impl Orders {
    /// The same as [`obey`], by an answer that came no longer ago than `within`, whoever asked for it.
    pub(super) async fn obey<S: Controls>(
        &self,
        store: &S,
        clock: &Clock,
        within: Duration,
        name: &ConsumerName,
        status: &ConsumerStatus,
    ) {
        let mut asked = self.0.lock().await;
        if asked.at.is_none_or(|at| clock.since(at) >= within) {
            let pauses = store.pauses().await.ok();
            asked.pauses = pauses.map(|all| all.into_iter().map(|one| (one.consumer.clone(), one)).collect());
            // That there was no answer counts for those who wait, too: each of them would wait as long for a store that is away.
            asked.at = Some(clock.monotonic());
        }
        let Some(pauses) = &asked.pauses else { return };
        let pause = pauses.get(name).cloned();
        drop(asked);
        follow(name, status, pause);
    }
}

fn follow(name: &ConsumerName, status: &ConsumerStatus, pause: Option<Pause>) {
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
    // Told anew, too: a consumer of the same name may have ended since, which takes it down.
    show_breaker(name, status.breaker() != BreakerState::Closed);
    status.set_pause(pause);
}

fn show_breaker(name: &ConsumerName, is_open: bool) {
    metrics::gauge!("postrider_consumer_breaker_open", "consumer" => name.to_string()).set(if is_open {
        1.0
    } else {
        0.0
    });
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
    show_breaker(name, is_away);
    status.set_breaker(now);
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::sqlite::{Sqlite, SqliteConfig};

    #[tokio::test]
    async fn one_answer_is_for_all_of_a_process_until_it_is_old() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("orders.db");
        let store = Sqlite::open(SqliteConfig::new(path), Clock::system()).await.unwrap();
        let (clock, hands) = Clock::manual(Timestamp::UNIX_EPOCH);
        let (orders, within) = (Orders::default(), Duration::from_millis(500));
        let [first, second] = ["first", "second"].map(|name| ConsumerName::new(name).unwrap());
        let [one, other] = [ConsumerStatus::default(), ConsumerStatus::default()];
        orders.obey(&store, &clock, within, &first, &one).await;
        store.pause(&second, "ann", "a test").await.unwrap();
        hands.advance(Duration::from_millis(400));
        orders.obey(&store, &clock, within, &second, &other).await;
        assert!(other.pause().is_none(), "the first one's answer is new enough: nobody asks again");
        hands.advance(Duration::from_millis(200));
        orders.obey(&store, &clock, within, &second, &other).await;
        assert!(other.pause().is_some() && one.pause().is_none());
        store.resume(&second, "ann", "").await.unwrap();
        hands.advance(within);
        orders.obey(&store, &clock, within, &first, &one).await;
        orders.obey(&store, &clock, within, &second, &other).await;
        assert!(other.pause().is_none());
    }
}
