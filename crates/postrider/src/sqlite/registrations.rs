//! The consumers that have started on this file.

use futures_util::FutureExt as _;
use sqlx::SqliteConnection;

use super::Sqlite;
use super::error::from_sqlite;
use crate::store::{Registration, Registrations, StoreError, StoreErrorKind};

impl Registrations for Sqlite {
    async fn register(&self, consumers: Vec<Registration>) -> Result<(), StoreError> {
        let now = self.clock().now().as_microsecond();
        self.writer().run(|connection| register(connection, consumers, now).boxed()).await
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

fn unreadable(error: serde_json::Error) -> StoreError {
    let text = format!(
        "a consumer's registration cannot be read or written ({error}); start the consumer again to renew it"
    );
    StoreError::new(StoreErrorKind::Other, text).because(error)
}
