//! Partitions that are made before anything belongs into them.

use super::{PARTITIONS, Round, filled};
use crate::store::StoreError;

/// Spans to come that no partition covers yet. The present one stays with whoever has it: a writer that is on its way into the
/// default partition would be refused, once a partition for its row is attached.
pub(super) const MISSING: &str = "WITH there AS ({partitions}), wanted AS ( \
         SELECT (date_trunc($1, now() AT TIME ZONE 'UTC') + k * ('1 ' || $1)::interval) AT TIME ZONE 'UTC' AS a, \
                (date_trunc($1, now() AT TIME ZONE 'UTC') + (k + 1) * ('1 ' || $1)::interval) AT TIME ZONE 'UTC' AS b \
         FROM generate_series(1, $2) k \
     ) \
     SELECT to_char(a AT TIME ZONE 'UTC', 'YYYYMMDD'), a::text, b::text FROM wanted \
     WHERE NOT EXISTS (SELECT FROM there WHERE lower < b AND upper > a) ORDER BY a";

/// Gives rows that are dated ahead the time of now, here and where their ids are kept. A time of their own for publishing stays.
const MEND: &str = "WITH moved AS (UPDATE {outbox} SET created_at = now(), \
         available_at = CASE WHEN available_at > created_at THEN available_at ELSE now() END \
     WHERE created_at >= '{from}' AND created_at < '{to}' RETURNING id, created_at) \
     UPDATE {ids} known SET created_at = moved.created_at FROM moved WHERE known.id = moved.id";

/// Whether a check on the default partition is left of a try to make one.
const LEFT: &str = "SELECT EXISTS (SELECT FROM pg_constraint \
     WHERE conrelid = '{default}'::regclass AND conname = 'no_row_of_next_partition')";
const WITHDRAW: &str = "ALTER TABLE {default} DROP CONSTRAINT IF EXISTS no_row_of_next_partition";
/// So often in a row it is taken back.
const TIMES: usize = 4;

impl Round<'_> {
    pub(super) async fn make_partitions(&mut self) -> Result<(), StoreError> {
        self.withdraw_proof().await?;
        let any = "SELECT EXISTS (SELECT FROM {default})";
        let default_has_rows: bool =
            sqlx::query_scalar(self.sql(any)).fetch_one(&mut *self.connection).await.map_err(self.fail())?;
        let missing: Vec<(String, String, String)> =
            sqlx::query_as(self.sql(&MISSING.replace("{partitions}", PARTITIONS)))
                .bind(self.rules.partition.as_str())
                .bind(i32::from(self.rules.ahead))
                .fetch_all(&mut *self.connection)
                .await
                .map_err(self.fail())?;
        for (day, from, to) in missing {
            let name = format!("{}_p{day}", self.postgres.table.table());
            match self.make_partition(&name, &from, &to, default_has_rows).await {
                Ok(()) => self.kept.partitions_made.push(name),
                Err(error) if is_in_the_way(&error) => {
                    let advice = self.mending(&from, &to);
                    self.postpone(&format!("making {name}"), &advice);
                }
                Err(error) => self.postpone(&format!("making {name}"), &error),
            }
        }
        self.withdraw_proof().await
    }

    /// Made beside the outbox, then attached. A check on the default partition, proven without a lock, spares the attach a
    /// look through all of its rows while it holds its lock.
    async fn make_partition(
        &mut self,
        name: &str,
        from: &str,
        to: &str,
        proof: bool,
    ) -> Result<(), sqlx::Error> {
        let range = [("{part}", name), ("{from}", from), ("{to}", to)];
        if proof {
            let prove = format!(
                "{WITHDRAW}; ALTER TABLE {{default}} ADD CONSTRAINT no_row_of_next_partition \
                 CHECK (created_at < '{{from}}' OR created_at >= '{{to}}') NOT VALID"
            );
            self.patiently(&filled(&prove, &range)).await?;
            self.patiently("ALTER TABLE {default} VALIDATE CONSTRAINT no_row_of_next_partition").await?;
        }
        let attach = format!(
            "CREATE TABLE {{schema}}.\"{{part}}\" (LIKE {{outbox}} INCLUDING DEFAULTS INCLUDING CONSTRAINTS \
             INCLUDING GENERATED INCLUDING INDEXES); \
             ALTER TABLE {{outbox}} ATTACH PARTITION {{schema}}.\"{{part}}\" FOR VALUES FROM ('{{from}}') TO ('{{to}}'); \
             {WITHDRAW}"
        );
        self.patiently(&filled(&attach, &range)).await
    }

    /// Takes back the check that a partition was not made with: because a lock could not be had, or its process ended. Left there, it would
    /// refuse every event from the day on that the partition was meant for. Where this lock cannot be had either, the next round tries.
    async fn withdraw_proof(&mut self) -> Result<(), StoreError> {
        for times in 1..=TIMES {
            let left = sqlx::query_scalar::<_, bool>(self.sql(LEFT)).fetch_one(&mut *self.connection).await;
            if !left.map_err(self.fail())? {
                return Ok(());
            }
            match self.patiently(WITHDRAW).await {
                Err(error) if times == TIMES => {
                    self.postpone("taking the check for the next partition off the default one", &error);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What to do about rows in the default partition that belong into one that is to be made.
    fn mending(&self, from: &str, to: &str) -> String {
        let mend = filled(MEND, &[("{from}", from), ("{to}", to)]);
        let mend = self.postgres.table.statement(&mend);
        format!(
            "events in the default partition say that they were written from {from} to {to}, which is still to come. They are published all \
             the same; their time keeps the partition from being made. Give them that of now: {}",
            mend.text()
        )
    }
}

/// Whether rows break the bounds of a partition or its check.
fn is_in_the_way(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| error.code().as_deref() == Some("23514"))
}
