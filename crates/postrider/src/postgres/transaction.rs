//! A transaction of the caller's, with his own connection in it.

use std::sync::Arc;

use sqlx::{Executor as _, PgConnection, Transaction};

use super::jobs::Tallies;
use super::outbox::append;
use super::table::Statement;
use super::{Inner, Postgres};
use crate::envelope::{Event, EventId};
use crate::store::StoreError;

/// A transaction on PostgreSQL. Dropping it rolls it back, also in the middle of a statement.
pub struct PostgresTx {
    transaction: Transaction<'static, sqlx::Postgres>,
    database: Arc<Inner>,
    /// That it is open.
    _open: Arc<()>,
    /// Appends to the outbox of the store that began it.
    append: Statement,
    /// Somebody else ran statements here, whose errors we have not seen.
    lent: bool,
    /// Items that were marked, to be added to their jobs at the commit.
    tallies: Tallies,
}

impl PostgresTx {
    pub(super) fn new(
        transaction: Transaction<'static, sqlx::Postgres>,
        database: Arc<Inner>,
        append: Statement,
    ) -> Self {
        let open = Arc::clone(&database.open);
        Self { transaction, database, _open: open, append, lent: false, tallies: Tallies::default() }
    }

    /// Commits events with whatever else this transaction writes. Returns their ids, in order.
    ///
    /// They go into the outbox of the store that began it. After an error the transaction cannot go on.
    pub async fn append(&mut self, events: Vec<Event>) -> Result<Vec<EventId>, StoreError> {
        let usual = self.append.clone();
        self.append_by(&usual, events).await
    }

    /// The same by the statement of one outbox of this database.
    pub(super) async fn append_by(
        &mut self,
        outbox: &Statement,
        events: Vec<Event>,
    ) -> Result<Vec<EventId>, StoreError> {
        let max = self.database.max_payload_bytes;
        events.iter().try_for_each(|event| event.check_size(max))?;
        append(&mut self.transaction, &self.database.clock, outbox, events, &self.database.place).await
    }

    /// The connection, for statements of your own. They commit with the inbox mark and the appended events, or not at all.
    ///
    /// A statement that failed has ended the transaction: pass its error on. Use a savepoint (`connection().begin()`)
    /// for a statement that may fail.
    pub fn connection(&mut self) -> &mut PgConnection {
        self.lent = true;
        &mut self.transaction
    }

    /// The same for our own statements, whose errors are always passed on.
    pub(super) fn ours(&mut self) -> &mut PgConnection {
        &mut self.transaction
    }

    pub(super) fn tallies(&mut self) -> &mut Tallies {
        &mut self.tallies
    }

    /// Fails if a statement failed before. COMMIT would then roll back and call it success.
    pub(super) async fn check(&mut self) -> Result<(), sqlx::Error> {
        if self.lent {
            self.transaction.execute("SELECT 1").await?;
        }
        Ok(())
    }

    pub(super) async fn commit(self) -> Result<(), sqlx::Error> {
        self.transaction.commit().await
    }

    pub(super) async fn rollback(self) -> Result<(), sqlx::Error> {
        self.transaction.rollback().await
    }
}

impl std::fmt::Debug for PostgresTx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PostgresTx")
    }
}

impl Postgres {
    /// Begins a transaction, in a task of its own. Whoever waits for it may be interrupted, by a stop or a time limit, and the driver does not
    /// survive that: between BEGIN and its answer it knows of no transaction yet, so it puts the connection back with one open. What others
    /// then write on that connection is never committed, and they are told that it is.
    pub(super) async fn transaction(
        &self,
        how: &'static str,
    ) -> Result<Transaction<'static, sqlx::Postgres>, sqlx::Error> {
        let pool = self.pool().clone();
        let begun = tokio::spawn(async move { pool.begin_with(how).await });
        begun.await.unwrap_or(Err(sqlx::Error::WorkerCrashed))
    }
}
