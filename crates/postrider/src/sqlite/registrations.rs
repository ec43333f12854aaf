//! The consumers that have started on this file.

use futures_util::FutureExt as _;
use sqlx::SqliteConnection;

use super::Sqlite;
use super::controls::log;
use super::error::from_sqlite;
use crate::store::{Registration, Registrations, StoreError, StoreErrorKind};
use crate::topology::ConsumerName;

impl Registrations for Sqlite {
    async fn register(&self, consumers: Vec<Registration>) -> Result<(), StoreError> {
        let now = self.clock().now().as_microsecond();
        self.writer().run(|connection| register(connection, consumers, now).boxed()).await
    }

    async fn unregister(&self, name: &ConsumerName, by: &str, reason: &str) -> Result<bool, StoreError> {
        let now = self.clock().now().as_microsecond();
        let (name, by, reason) = (name.to_string(), by.to_owned(), reason.to_owned());
        self.writer().run(move |connection| unregister(connection, name, by, reason, now).boxed()).await
    }

    async fn registrations(&self) -> Result<Vec<Registration>, StoreError> {
        let select = "SELECT registration FROM consumer ORDER BY name";
        let rows: Vec<String> =
            sqlx::query_scalar(select).fetch_all(self.readers()).await.map_err(from_sqlite)?;
        rows.iter().map(|json| serde_json::from_str(json).map_err(unreadable)).collect()
    }
}

async fn register(
    connection: &mut SqliteConnection,
    consumers: Vec<Registration>,
    now: i64,
) -> Result<(), StoreError> {
    let upsert = "INSERT INTO consumer (name, registration, registered_at) VALUES (?, ?, ?) \
                  ON CONFLICT (name) DO UPDATE SET registration = excluded.registration, \
                  registered_at = excluded.registered_at";
    for consumer in consumers {
        let json = serde_json::to_string(&consumer).map_err(unreadable)?;
        let query = sqlx::query(upsert).bind(consumer.name.as_str()).bind(json).bind(now);
        query.execute(&mut *connection).await.map_err(from_sqlite)?;
    }
    Ok(())
}

async fn unregister(
    connection: &mut SqliteConnection,
    name: String,
    by: String,
    reason: String,
    now: i64,
) -> Result<bool, StoreError> {
    let delete = sqlx::query("DELETE FROM consumer WHERE name = ?").bind(&name);
    let changed = delete.execute(&mut *connection).await.map_err(from_sqlite)?.rows_affected() > 0;
    if changed {
        let reason = Some(reason.as_str()).filter(|reason| !reason.is_empty());
        log(connection, now, &by, "consumer.forget", &name, reason).await?;
    }
    Ok(changed)
}

fn unreadable(error: serde_json::Error) -> StoreError {
    let text = format!(
        "a consumer's registration cannot be read or written ({error}); start the consumer again to renew it"
    );
    StoreError::new(StoreErrorKind::Other, text).because(error)
}
