//! The store on one SQLite file: for a laptop, a test, a small service, and under the embedded broker.
//!
//! WAL and `synchronous=FULL`: what was committed survives a crash of the process and of the machine. One writer
//! (see `writer`) commits in batches; readers never wait for it. Times are whole microseconds since 1970, UTC.

mod audit;
mod bulk;
mod claims;
mod controls;
mod dead_letters;
mod dual;
mod erasure;
mod error;
mod held;
mod inbox;
mod jobs;
mod letters;
mod lock;
mod memory;
mod news;
mod operations;
mod outbox;
mod outboxes;
mod pull_words;
mod registrations;
mod schema;
#[cfg(feature = "push")]
mod subscriptions;
mod tokens;
mod trace;
mod tx;
mod upkeep;
mod writer;

pub(crate) use error::from_sqlite;
pub use lock::ServeLock;
pub use tx::SqliteTx;
pub(crate) use writer::Writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions as _, SqliteConnection};
use tokio::sync::Notify;

use self::news::News;
use self::outbox::Slot;
use crate::clock::Clock;
use crate::store::{Store, StoreError, StoreErrorKind};

/// Where the file is and how it is treated.
#[derive(Debug, Clone)]
pub struct SqliteConfig {
    /// The file. It and its folder are created if they are absent.
    pub path: PathBuf,
    /// How long a transaction may stay open, counted from its first write.
    pub tx_limit: Duration,
    /// How long to wait for another process that writes.
    pub busy_timeout: Duration,
    /// What a commit waits for.
    pub durability: Durability,
    /// How many connections read at the same time.
    pub readers: u32,
    /// The largest payload that may be appended, in bytes.
    pub max_payload_bytes: usize,
}

/// What a commit waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// The disk: a commit survives the loss of power (`synchronous=FULL`).
    #[default]
    Disk,
    /// The operating system: a commit survives kill -9, but the newest may be lost with the power (`synchronous=NORMAL`).
    System,
}

impl SqliteConfig {
    /// The defaults for a file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            tx_limit: Duration::from_secs(5),
            busy_timeout: Duration::from_secs(5),
            durability: Durability::Disk,
            readers: 4,
            max_payload_bytes: crate::envelope::MAX_PAYLOAD_BYTES,
        }
    }
}

/// An open SQLite file. Cheap to clone; the file is closed with the last clone.
#[derive(Clone)]
pub struct Sqlite {
    shared: Arc<Shared>,
}

struct Shared {
    writer: Writer,
    readers: SqlitePool,
    news: News,
    slot: Slot,
    /// A job changed in a transaction of this process.
    jobs_changed: Notify,
    clock: Clock,
    config: SqliteConfig,
}

impl Sqlite {
    /// Opens the file, creates it if it is absent, and brings its schema up to date.
    ///
    /// Several processes may have it open; who runs `serve` on it takes the [`ServeLock`] too.
    pub async fn open(config: SqliteConfig, clock: Clock) -> Result<Self, StoreError> {
        if let Some(folder) = config.path.parent() {
            std::fs::create_dir_all(folder).map_err(|error| {
                let text = format!(
                    "the folder {} cannot be created ({error}); choose another path",
                    folder.display()
                );
                StoreError::new(StoreErrorKind::Unavailable, text).because(error)
            })?;
        }
        let mut connection = writable(&config).connect().await.map_err(from_sqlite)?;
        schema::migrate(&mut connection, clock.now()).await?;
        // Everybody ahead in the queue may use up the time limit; who waits longer than for two waits for himself.
        let writer = Writer::new(connection, config.tx_limit * 2, clock.clone()).await?;
        let readers = SqlitePoolOptions::new()
            .max_connections(config.readers)
            .max_lifetime(None)
            .test_before_acquire(false)
            .connect_lazy_with(readable(&config));
        let news = News::new(readable(&config));
        let (slot, jobs_changed) = (Slot::default(), Notify::new());
        Ok(Self { shared: Arc::new(Shared { writer, readers, news, slot, jobs_changed, clock, config }) })
    }

    /// How many commits were made since the file was opened here: fewer than transactions, where these shared one.
    pub fn commits(&self) -> u64 {
        self.writer().commits()
    }

    /// Writes the log that SQLite keeps beside the file back into it: a copy of the file alone then has everything, until somebody
    /// commits again. Waits for no other process. For who is done with the file; what was committed is safe without it.
    pub async fn write_back(&self) {
        self.writer().write_back().await;
    }

    /// The one writer of the file.
    pub(crate) fn writer(&self) -> &Writer {
        &self.shared.writer
    }

    /// What an error of a statement of your own means, in the words of the store.
    pub fn error(&self, cause: sqlx::Error) -> StoreError {
        from_sqlite(cause)
    }

    /// A transaction that takes the writer at its first write.
    fn writer_tx(&self) -> SqliteTx {
        let SqliteConfig { tx_limit, max_payload_bytes, .. } = self.shared.config;
        SqliteTx::new(self.writer().clone(), self.clock().clone(), tx_limit, max_payload_bytes)
    }

    /// Connections that only read, and see what is committed.
    pub fn readers(&self) -> &SqlitePool {
        &self.shared.readers
    }

    /// The clock it was opened with.
    pub(crate) fn clock(&self) -> &Clock {
        &self.shared.clock
    }
}

fn writable(config: &SqliteConfig) -> SqliteConnectOptions {
    let synchronous = match config.durability {
        Durability::Disk => SqliteSynchronous::Full,
        Durability::System => SqliteSynchronous::Normal,
    };
    options(config)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(synchronous)
        // KiB of cache, because the indexes are walked at every write; bytes of log kept after a burst.
        .pragma("cache_size", "-16384")
        .pragma("journal_size_limit", "67108864")
        // Pages of log until it is written back to the file: what changes often is written back once, and the disk waited for less.
        .pragma("wal_autocheckpoint", "4000")
        // What a savepoint would roll back to is kept in memory, and not written to a file that nobody reads.
        .pragma("temp_store", "memory")
}

fn readable(config: &SqliteConfig) -> SqliteConnectOptions {
    options(config).read_only(true)
}

fn options(config: &SqliteConfig) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(&config.path)
        .busy_timeout(config.busy_timeout)
        .foreign_keys(true)
        .statement_cache_capacity(200)
        // Rows that SQLite's thread may be ahead of us: with few it is woken again and again in the middle of a claim.
        .row_buffer_size(1024)
        .disable_statement_logging()
}

impl Store for Sqlite {
    type Tx = SqliteTx;

    /// Does nothing to the file: the transaction opens at its first write.
    async fn begin(&self) -> Result<SqliteTx, StoreError> {
        Ok(self.writer_tx())
    }

    async fn commit(&self, tx: SqliteTx) -> Result<(), StoreError> {
        let committed = tx.commit().await?;
        if committed.appended {
            self.shared.news.announce();
        }
        if committed.jobs_changed {
            self.shared.jobs_changed.notify_one();
        }
        Ok(())
    }

    async fn rollback(&self, tx: SqliteTx) -> Result<(), StoreError> {
        drop(tx);
        Ok(())
    }

    async fn check(&self) -> Result<(), StoreError> {
        let mut reader = self.readers().acquire().await.map_err(from_sqlite)?;
        let connection: &mut SqliteConnection = &mut reader;
        schema::check(connection).await
    }
}
