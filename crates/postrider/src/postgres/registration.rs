//! Which consumers there are.

use super::Postgres;
use crate::store::{Registration, Registrations, StoreError, StoreErrorKind};
use crate::topology::ConsumerName;

const REGISTER: &str = "INSERT INTO postrider.consumer (name, registration) \
     SELECT name, registration::jsonb FROM UNNEST($1::text[], $2::text[]) AS consumer (name, registration) \
     ON CONFLICT (name) DO UPDATE SET registration = EXCLUDED.registration, registered_at = now()";

/// The log tells of it only when something changed.
const UNREGISTER: &str = "WITH forgotten AS (DELETE FROM postrider.consumer WHERE name = $1 RETURNING name) \
     INSERT INTO postrider.audit_log (actor, action, subject, reason) \
     SELECT $2, 'consumer.forget', name, NULLIF($3, '') FROM forgotten";

const ALL: &str = "SELECT registration::text FROM postrider.consumer ORDER BY name COLLATE \"C\"";

impl Registrations for Postgres {
    async fn register(&self, mut consumers: Vec<Registration>) -> Result<(), StoreError> {
        // Who has nobody to register needs no right to.
        if consumers.is_empty() {
            return Ok(());
        }
        // A name that is given twice counts with what was given last: a statement may change a row only once. Sorted, so
        // that two processes that start together do not deadlock.
        consumers.reverse();
        consumers.sort_by(|a, b| a.name.cmp(&b.name));
        consumers.dedup_by(|later, first| later.name == first.name);
        let names: Vec<&str> = consumers.iter().map(|consumer| consumer.name.as_str()).collect();
        let values: Vec<String> =
            consumers.iter().map(serde_json::to_string).collect::<Result<_, _>>().map_err(bug)?;
        let insert = sqlx::query(REGISTER).bind(names).bind(values);
        self.limited("registering consumers", insert.execute(self.pool())).await?;
        Ok(())
    }

    async fn unregister(&self, name: &ConsumerName, by: &str, reason: &str) -> Result<bool, StoreError> {
        let delete = sqlx::query(UNREGISTER).bind(name.as_str()).bind(by).bind(reason);
        let done = self.limited("forgetting a consumer", delete.execute(self.pool())).await?;
        Ok(done.rows_affected() > 0)
    }

    async fn registrations(&self) -> Result<Vec<Registration>, StoreError> {
        let select = sqlx::query_scalar(ALL).fetch_all(self.pool());
        let rows: Vec<String> = self.limited("reading the registered consumers", select).await?;
        rows.iter().map(|row| serde_json::from_str(row)).collect::<Result<_, _>>().map_err(bug)
    }
}

fn bug(cause: serde_json::Error) -> StoreError {
    let message = format!(
        "a registered consumer cannot be written or read as JSON: {cause}; use binaries of one version"
    );
    StoreError::new(StoreErrorKind::Other, message).because(cause)
}
