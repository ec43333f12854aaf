//! Wakes relays when something was appended.
//!
//! Only a hint: notifications are lost while the listener reconnects, and of producers that commit at the same time only
//! some notify (see the trigger), so relays look by themselves too: soon after a notification, then ever less often.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use sqlx::Executor as _;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::clock::Clock;

/// The channel that the outbox's trigger notifies.
const CHANNEL: &str = "postrider_outbox";
/// How soon after a notification to look again.
const ECHO: Duration = Duration::from_millis(2);
/// How long to wait before listening again after the connection was lost.
const PAUSE: Duration = Duration::from_secs(1);
/// After so long without a notification the server is asked whether it is there, and given up if it does not answer in time.
const SILENT: Duration = Duration::from_secs(20);
const ANSWER: Duration = Duration::from_secs(10);

/// One clone's view of the notifications: it remembers which it has seen, so that none is missed between two waits.
pub(super) struct Wake {
    bell: Arc<Bell>,
    seen: AtomicU64,
}

struct Bell {
    clock: Clock,
    options: PgConnectOptions,
    rung: AtomicU64,
    /// When it rang last, in microseconds of the monotonic clock; 0 for never.
    rung_at: AtomicU64,
    notify: Notify,
    listening: AtomicBool,
    stop: CancellationToken,
    /// Ends the listener with the last clone.
    _stop_on_drop: DropGuard,
}

impl Wake {
    pub(super) fn new(options: PgConnectOptions, clock: Clock) -> Self {
        let stop = CancellationToken::new();
        let bell = Bell {
            clock,
            options,
            rung: AtomicU64::new(0),
            rung_at: AtomicU64::new(0),
            notify: Notify::new(),
            listening: AtomicBool::new(false),
            _stop_on_drop: stop.clone().drop_guard(),
            stop,
        };
        Self { bell: Arc::new(bell), seen: AtomicU64::new(0) }
    }

    /// Waits for a notification that came after the last wait of this clone, or for as long as it has been quiet, but no
    /// longer than asked.
    pub(super) async fn wait(&self, at_most: Duration) {
        let bell = &self.bell;
        if !bell.listening.swap(true, Ordering::AcqRel) {
            tokio::spawn(listen(Arc::downgrade(bell), bell.stop.clone()));
        }
        let notified = bell.notify.notified();
        tokio::pin!(notified);
        notified.as_mut().enable();
        let rung = bell.rung.load(Ordering::Acquire);
        if self.seen.swap(rung, Ordering::AcqRel) != rung {
            return;
        }
        tokio::select! {
            () = notified => self.seen.store(bell.rung.load(Ordering::Acquire), Ordering::Release),
            () = bell.clock.sleep(at_most.min(bell.quiet())) => {}
        }
    }

    pub(super) fn stop(&self) {
        self.bell.stop.cancel();
    }
}

impl Clone for Wake {
    fn clone(&self) -> Self {
        Self { bell: Arc::clone(&self.bell), seen: AtomicU64::new(self.seen.load(Ordering::Acquire)) }
    }
}

impl Bell {
    fn ring(&self) {
        let now = u64::try_from(self.clock.monotonic().as_micros()).unwrap_or(u64::MAX);
        self.rung_at.store(now.max(1), Ordering::Release);
        self.rung.fetch_add(1, Ordering::AcqRel);
        self.notify.notify_waiters();
    }

    /// For how long it has not rung: waits of this length double, so that few looks find what did not ring.
    fn quiet(&self) -> Duration {
        match self.rung_at.load(Ordering::Acquire) {
            0 => Duration::MAX,
            at => self.clock.monotonic().saturating_sub(Duration::from_micros(at)).max(ECHO),
        }
    }
}

/// Listens until the last clone is gone.
async fn listen(bell: Weak<Bell>, stop: CancellationToken) {
    let Some((options, clock)) = bell.upgrade().map(|bell| (bell.options.clone(), bell.clock.clone())) else {
        return;
    };
    let ring = || bell.upgrade().inspect(|bell| bell.ring()).is_some();
    let work = async {
        loop {
            if let Err(error) = listen_once(options.clone(), &ring).await {
                tracing::debug!(%error, "not listening for appended events; relays poll until it works again");
            }
            clock.sleep(PAUSE).await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = work => {}
    }
}

/// Listens on one connection until it is lost. Rings once at the start, for what came while nobody listened.
async fn listen_once(options: PgConnectOptions, ring: &impl Fn() -> bool) -> Result<(), sqlx::Error> {
    let pool = PgPoolOptions::new().max_connections(1).connect_with(options).await?;
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.eager_reconnect(false);
    listener.listen(CHANNEL).await?;
    while ring() {
        let heard = loop {
            if let Ok(heard) = tokio::time::timeout(SILENT, listener.try_recv()).await {
                break heard?;
            }
            // Of a connection that the network has swallowed nothing is ever heard.
            let asked = tokio::time::timeout(ANSWER, listener.execute("SELECT 1")).await;
            asked.map_err(|_| sqlx::Error::PoolTimedOut)??;
        };
        if heard.is_none() {
            return Ok(());
        }
    }
    Ok(())
}
