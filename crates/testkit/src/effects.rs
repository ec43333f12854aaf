//! Effects that would show a double: a table without a unique key, written in the handler's own transaction.

use postrider::EventId;
use postrider::postgres::Postgres;
use postrider::sqlite::Sqlite;
use postrider::store::{Backend, Store as _, StoreError, StoreErrorKind};

/// A store with a table of effects.
pub trait Effects: Backend {
    /// Creates the table where it is absent.
    fn create_effects(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Writes that a consumer applied an event.
    fn insert_effect(
        &self,
        tx: &mut Self::Tx,
        consumer: &str,
        event_id: &EventId,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Makes the database refuse the dead letter of the event `refused`, or no longer.
    fn refuse_a_letter(&self, refuse: bool) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// All rows of the table.
    fn effects(&self) -> impl Future<Output = Result<Vec<(String, EventId)>, StoreError>> + Send;
}

fn failed(error: sqlx::Error) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, format!("the table of effects: {error}")).because(error)
}

fn rows(found: Vec<(String, String)>) -> Vec<(String, EventId)> {
    found.into_iter().filter_map(|(consumer, id)| Some((consumer, EventId::new(id).ok()?))).collect()
}

const CREATE: &str = "CREATE TABLE IF NOT EXISTS effect (consumer TEXT NOT NULL, event_id TEXT NOT NULL)";
const READ: &str = "SELECT consumer, event_id FROM effect";

impl Effects for Sqlite {
    async fn create_effects(&self) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query(CREATE).execute(tx.connection().await?).await.map_err(failed)?;
        self.commit(tx).await
    }

    async fn insert_effect(
        &self,
        tx: &mut Self::Tx,
        consumer: &str,
        event_id: &EventId,
    ) -> Result<(), StoreError> {
        let insert = sqlx::query("INSERT INTO effect VALUES (?, ?)").bind(consumer).bind(event_id.as_str());
        insert.execute(tx.connection().await?).await.map_err(failed)?;
        Ok(())
    }

    async fn refuse_a_letter(&self, refuse: bool) -> Result<(), StoreError> {
        let make = "CREATE TRIGGER refuse_a_letter BEFORE INSERT ON dead_letter WHEN NEW.event_id = 'refused' \
                    BEGIN SELECT RAISE(ABORT, 'this letter is refused'); END";
        let sql = if refuse { make } else { "DROP TRIGGER refuse_a_letter" };
        let mut tx = self.begin().await?;
        sqlx::query(sql).execute(tx.connection().await?).await.map_err(failed)?;
        self.commit(tx).await
    }

    async fn effects(&self) -> Result<Vec<(String, EventId)>, StoreError> {
        let mut tx = self.begin().await?;
        let found = sqlx::query_as(READ).fetch_all(tx.connection().await?).await.map_err(failed)?;
        self.rollback(tx).await?;
        Ok(rows(found))
    }
}

impl Effects for Postgres {
    async fn create_effects(&self) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query(CREATE).execute(tx.connection()).await.map_err(failed)?;
        self.commit(tx).await
    }

    async fn insert_effect(
        &self,
        tx: &mut Self::Tx,
        consumer: &str,
        event_id: &EventId,
    ) -> Result<(), StoreError> {
        let insert = sqlx::query("INSERT INTO effect VALUES ($1, $2)").bind(consumer).bind(event_id.as_str());
        insert.execute(tx.connection()).await.map_err(failed)?;
        Ok(())
    }

    async fn refuse_a_letter(&self, refuse: bool) -> Result<(), StoreError> {
        let make = "CREATE FUNCTION refuse_a_letter() RETURNS trigger LANGUAGE plpgsql AS $$ \
                    BEGIN RAISE EXCEPTION 'this letter is refused'; END $$; \
                    CREATE TRIGGER refuse_a_letter BEFORE INSERT ON postrider.dead_letter FOR EACH ROW \
                    WHEN (NEW.event_id = 'refused') EXECUTE FUNCTION refuse_a_letter()";
        let sql = if refuse { make } else { "DROP TRIGGER refuse_a_letter ON postrider.dead_letter" };
        sqlx::raw_sql(sql).execute(self.pool()).await.map_err(failed)?;
        Ok(())
    }

    async fn effects(&self) -> Result<Vec<(String, EventId)>, StoreError> {
        let mut tx = self.begin().await?;
        let found = sqlx::query_as(READ).fetch_all(tx.connection()).await.map_err(failed)?;
        self.rollback(tx).await?;
        Ok(rows(found))
    }
}
