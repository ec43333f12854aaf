//! How relays learn that something was appended, here or by another process.

use std::time::Duration;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, SqliteConnection};
use tokio::sync::{Mutex, Semaphore};

use crate::clock::Clock;

/// How soon another process's commit is noticed.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A permit while the relay has not heard the news yet: one that was just claiming finds it when it comes to wait, so no
/// append falls between a claim and a wait.
pub(super) struct News {
    permits: Semaphore,
    options: SqliteConnectOptions,
    /// Its `data_version` changes with every commit of another connection, that is, with all of them.
    watcher: Mutex<Option<Watcher>>,
}

struct Watcher {
    connection: SqliteConnection,
    version: i64,
}

impl News {
    pub(super) fn new(options: SqliteConnectOptions) -> Self {
        Self { permits: Semaphore::new(0), options, watcher: Mutex::new(None) }
    }

    /// From now on, what others commit is news.
    pub(super) async fn attend(&self) {
        let mut watcher = self.watcher.lock().await;
        if watcher.is_none() {
            *watcher = Watcher::open(&self.options).await;
        }
    }

    /// Wakes whoever waits, or comes to wait next.
    pub(super) fn announce(&self) {
        if self.permits.available_permits() == 0 {
            self.permits.add_permits(1);
        }
    }

    /// Waits for news, or for this long.
    pub(super) async fn wait(&self, at_most: Duration, clock: &Clock) {
        let end = clock.monotonic().saturating_add(at_most);
        loop {
            let left = end.saturating_sub(clock.monotonic());
            tokio::select! {
                biased;
                heard = self.permits.acquire() => {
                    if let Ok(permit) = heard {
                        permit.forget();
                    }
                    return;
                }
                () = clock.sleep(left.min(LOOK_EVERY)) => {}
            }
            self.look().await;
            if left <= LOOK_EVERY && self.permits.available_permits() == 0 {
                return;
            }
        }
    }

    /// Announces what others committed since the last look.
    async fn look(&self) {
        let Ok(mut watcher) = self.watcher.try_lock() else { return };
        let Some(open) = watcher.as_mut() else { return };
        match open.look().await {
            Ok(false) => {}
            Ok(true) => self.announce(),
            // The relay looks for itself at its poll interval, and the next claim opens the watcher again.
            Err(_) => *watcher = None,
        }
    }
}

impl Watcher {
    async fn open(options: &SqliteConnectOptions) -> Option<Self> {
        let connection = options.connect().await.ok()?;
        let mut watcher = Self { connection, version: 0 };
        watcher.look().await.ok()?;
        Some(watcher)
    }

    async fn look(&mut self) -> Result<bool, sqlx::Error> {
        let version = sqlx::query_scalar("PRAGMA data_version").fetch_one(&mut self.connection).await?;
        let changed = version != self.version;
        self.version = version;
        Ok(changed)
    }
}
