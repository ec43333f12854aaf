//! PostgreSQL: the store of production.
//!
//! Everything lives in the schema `postrider`, made by [`Postgres::migrate`] and never touched implicitly. Every time that
//! decides something (leases, due rows) is the database's own clock, so that no client's clock can break it.

mod adopt;
mod audit;
mod backlog;
mod claim;
mod claims;
mod controls;
mod dead_letter;
mod desk;
mod dual;
mod erasure;
mod error;
mod held;
mod horizon;
mod housekeeping;
mod inbox;
mod jobs;
mod letters;
mod memory;
mod migrate;
mod operations;
mod outbox;
mod pull_words;
mod registration;
mod replays;
mod replication;
mod settle;
mod slots;
mod stream;
#[cfg(feature = "push")]
mod subscriptions;
mod table;
mod tokens;
mod trace;
mod transaction;
mod upkeep;
mod verbatim;
mod wake;

pub use migrate::{MigrationState, MigrationStatus};
pub use outbox::append_in;
#[cfg(any(test, fuzzing))]
pub(crate) use stream::told_by_the_log;
pub use table::{InvalidTable, OutboxTable};
pub use transaction::PostgresTx;

use std::future::Future;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::store::{Store, StoreError, StoreErrorKind};
use error::failed;
use table::Statements;
use wake::Wake;

/// How to reach a database. TLS is chosen by the URL: `?sslmode=verify-full&sslrootcert=/path/ca.pem`.
#[derive(Debug, Clone)]
pub struct PostgresConfig {
    /// `postgres://user:password@host:port/database?sslmode=…`
    pub url: SecretString,
    /// The most connections for transactions: a consumer uses one per delivery or batch in hand. Where handlers take their time, have as many as
    /// all consumers of the process may handle at once ([`Concurrency`](crate::consumer::Concurrency)): a slow one takes what others wait for,
    /// and who waits longer than `acquire_limit` is told that they are all in use.
    pub max_connections: u32,
    /// The most connections for relays, apart from the others so that busy handlers can never cost a relay its lease.
    pub relay_connections: u32,
    /// Wait this long for a connection.
    pub acquire_limit: Duration,
    /// No statement may take longer than this.
    pub statement_limit: Duration,
    /// How the connections are called in `pg_stat_activity`.
    pub application_name: String,
    /// The largest payload that may be appended, in bytes.
    pub max_payload_bytes: usize,
}

impl PostgresConfig {
    /// The defaults, for this URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: SecretString::from(url.into()),
            max_connections: 10,
            relay_connections: 4,
            acquire_limit: Duration::from_secs(10),
            statement_limit: Duration::from_secs(30),
            application_name: "postrider".to_owned(),
            max_payload_bytes: crate::envelope::MAX_PAYLOAD_BYTES,
        }
    }
}

/// A PostgreSQL database. Cheap to clone.
///
/// Lost connections are replaced by themselves; a call that met one says [`StoreErrorKind::Unavailable`].
#[derive(Clone)]
pub struct Postgres {
    inner: Arc<Inner>,
    table: Arc<OutboxTable>,
    statements: Arc<Statements>,
    wake: Wake,
}

struct Inner {
    clock: Clock,
    /// Transactions, of the callers and of our own.
    pool: PgPool,
    /// Leases, claims and marks.
    relays: PgPool,
    /// Every transaction that handlers and callers have open holds one of these.
    open: Arc<()>,
    /// Where it is, for messages: no user, no password.
    place: String,
    /// How streams connect, beside the pools.
    door: stream::Door,
    statement_limit: Duration,
    max_payload_bytes: usize,
    /// A job changed in a transaction of this process.
    jobs_changed: Notify,
    /// Whether consumers get duplicates these days.
    mixture: inbox::Mixture,
}

/// How long an answer may be late beyond the statement limit before the connection counts as lost.
const GRACE: Duration = Duration::from_secs(5);

/// Relays run a few statements whose best plan is known: walk an index. Plans made while a table was empty, and kept, would
/// read the whole table later. A mark that a server crash undoes is made again after the event was published again,
/// which at-least-once allows, so relays do not wait for the disk. Each statement reads what is committed by then, whatever isolation this
/// database has by default: serializable ones got into each other's way, and relays paused for it.
const RELAY_SETTINGS: &str = "SET default_transaction_isolation = 'read committed'; SET plan_cache_mode = force_generic_plan; \
     SET jit = off; SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off; SET enable_hashjoin = off; SET enable_mergejoin = off; \
     SET synchronous_commit = off;";

impl Postgres {
    /// Connects once, to say now what is wrong, and then as often as is needed.
    pub async fn connect(config: PostgresConfig, clock: Clock) -> Result<Self, StoreError> {
        let options = options(&config)?;
        let place = place(&options);
        let attempt = tokio::time::timeout(config.acquire_limit, PgConnection::connect_with(&options));
        let connection = match attempt.await {
            Ok(Ok(connection)) => connection,
            Ok(Err(cause)) => return Err(error::not_connected(&place, cause)),
            Err(_) => {
                let limit = config.acquire_limit.as_millis();
                let message = format!(
                    "PostgreSQL at {place} did not answer within {limit} ms; check host, port and firewall, then try again"
                );
                return Err(StoreError::new(StoreErrorKind::Unavailable, message));
            }
        };
        // Only a courtesy to the server: dropping the connection would do.
        let _closed = tokio::time::timeout(config.acquire_limit, connection.close()).await;
        Self::lazy(&config, clock)
    }

    /// Connects when it is used: a server that is away is waited for by every call, not here.
    pub fn lazy(config: &PostgresConfig, clock: Clock) -> Result<Self, StoreError> {
        let options = options(config)?;
        let place = place(&options);
        let limits = format!("SET statement_timeout = {};", config.statement_limit.as_millis());
        let pool = pool(config, config.max_connections, limits.clone()).connect_lazy_with(options.clone());
        let relays = pool_for_relays(config, &limits).connect_lazy_with(options.clone());
        let door = stream::Door::new(config, &options);
        let wake = Wake::new(options, clock.clone());
        let PostgresConfig { statement_limit, max_payload_bytes, .. } = *config;
        let inner = Inner {
            clock,
            pool,
            relays,
            open: Arc::default(),
            place,
            door,
            statement_limit,
            max_payload_bytes,
            jobs_changed: Notify::new(),
            mixture: inbox::Mixture::default(),
        };
        let table = OutboxTable::default();
        let statements = Arc::new(Statements::of(&table));
        Ok(Self { inner: Arc::new(inner), table: Arc::new(table), statements, wake })
    }

    /// The same database with another of its outbox tables: what is appended, claimed and counted is of that one.
    #[must_use]
    pub fn with_outbox(&self, table: OutboxTable) -> Self {
        let statements = Arc::new(Statements::of(&table));
        Self { table: Arc::new(table), statements, ..self.clone() }
    }

    /// The outbox table it works on.
    pub fn outbox_table(&self) -> &OutboxTable {
        &self.table
    }

    /// The pool of connections that transactions use, for queries of your own outside of them.
    pub fn pool(&self) -> &PgPool {
        &self.inner.pool
    }

    /// What an error of a statement of your own means, in the words of the store.
    pub fn error(&self, doing: &str, cause: sqlx::Error) -> StoreError {
        failed(doing, &self.inner.place, cause)
    }

    /// Closes every connection. What is still in a transaction is rolled back.
    pub async fn close(&self) {
        self.wake.stop();
        self.inner.relays.close().await;
        self.inner.pool.close().await;
    }

    fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    fn relays(&self) -> &PgPool {
        &self.inner.relays
    }

    /// Whether every connection that there may be is in use, as a rule by a transaction. The pool also counts those that are only being
    /// made: with a server that is away it looks as full, and nobody has one.
    fn is_busy(&self) -> bool {
        let pool = self.pool();
        let (most, open) = (pool.options().get_max_connections(), Arc::strong_count(&self.inner.open) - 1);
        pool.size() >= most && pool.num_idle() == 0 && open * 2 >= most as usize
    }

    /// Runs one call with a time limit that also holds when the network swallows the answer.
    async fn limited<T>(
        &self,
        doing: &'static str,
        call: impl Future<Output = Result<T, sqlx::Error>> + Send,
    ) -> Result<T, StoreError> {
        match tokio::time::timeout(self.inner.statement_limit + GRACE, call).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(sqlx::Error::PoolTimedOut)) if self.is_busy() => {
                Err(error::all_in_use(doing, &self.inner.place, self.pool().size()))
            }
            Ok(Err(cause)) => Err(self.explained(failed(doing, &self.inner.place, cause)).await),
            Err(_) => Err(error::no_answer(doing, &self.inner.place)),
        }
    }
}

impl std::fmt::Debug for Postgres {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Postgres({})", self.inner.place)
    }
}

impl Store for Postgres {
    type Tx = PostgresTx;

    async fn begin(&self) -> Result<PostgresTx, StoreError> {
        let transaction = self.limited("opening a transaction", self.transaction("BEGIN")).await?;
        Ok(PostgresTx::new(transaction, self.inner.clone(), self.statements.append.clone()))
    }

    async fn commit(&self, mut tx: PostgresTx) -> Result<(), StoreError> {
        self.limited("checking a transaction", tx.check()).await.map_err(error::swallowed)?;
        self.add_up(&mut tx).await?;
        let jobs_changed = tx.tallies().has_changed();
        self.limited("committing", tx.commit()).await.map_err(error::unknown_outcome)?;
        if jobs_changed {
            self.inner.jobs_changed.notify_one();
        }
        Ok(())
    }

    async fn rollback(&self, tx: PostgresTx) -> Result<(), StoreError> {
        self.limited("rolling back", tx.rollback()).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        migrate::check(self).await
    }
}

fn options(config: &PostgresConfig) -> Result<PgConnectOptions, StoreError> {
    let url = config.url.expose_secret();
    // The driver would read any scheme as its own.
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        return Err(error::unreadable_url(&"it does not begin with postgres://"));
    }
    let options = PgConnectOptions::from_str(url).map_err(|error| error::unreadable_url(&error))?;
    Ok(options.application_name(&config.application_name))
}

fn place(options: &PgConnectOptions) -> String {
    let database = options.get_database().unwrap_or_else(|| options.get_username());
    match options.get_socket() {
        Some(socket) => format!("{}/{database}", socket.display()),
        None => format!("{}:{}/{database}", options.get_host(), options.get_port()),
    }
}

fn pool(config: &PostgresConfig, connections: u32, settings: String) -> PgPoolOptions {
    PgPoolOptions::new()
        .max_connections(connections.max(1))
        .acquire_timeout(config.acquire_limit)
        .after_connect(move |connection, _| {
            let settings = settings.clone();
            Box::pin(async move {
                // The text is made of constants and a number.
                connection.execute(AssertSqlSafe(settings)).await?;
                Ok(())
            })
        })
}

fn pool_for_relays(config: &PostgresConfig, limits: &str) -> PgPoolOptions {
    pool(config, config.relay_connections, format!("{limits} {RELAY_SETTINGS}"))
}
