//! Several outboxes in one database: making one, and taking over a table that is there already.

use sqlx::{AssertSqlSafe, Executor as _, PgConnection};

use super::error::failed;
use super::{OutboxTable, Postgres};
use crate::store::{Outboxes, StoreError, StoreErrorKind};

/// What a table must have to be adopted, and of which types.
const NEEDED: [(&str, &[&str]); 11] = [
    ("id", &["uuid", "text", "character varying"]),
    ("group_id", &["uuid", "text", "character varying"]),
    ("subsidiary_id", &["uuid", "text", "character varying"]),
    ("aggregate_type", &["text", "character varying"]),
    ("aggregate_id", &["uuid", "text", "character varying"]),
    ("event_type", &["text", "character varying"]),
    ("payload", &["jsonb"]),
    ("status", &["text", "character varying"]),
    ("available_at", &["timestamp with time zone"]),
    ("attempts", &["integer"]),
    ("created_at", &["timestamp with time zone"]),
];

/// Each takes its lock for a moment only: no column has a default that would rewrite the table.
const COLUMNS: &str = "CREATE SEQUENCE IF NOT EXISTS {positions} AS bigint CACHE 1; \
     CREATE TABLE IF NOT EXISTS {ids} (id text PRIMARY KEY, created_at timestamptz NOT NULL); \
     ALTER TABLE {outbox} \
         ADD COLUMN IF NOT EXISTS position bigint, ADD COLUMN IF NOT EXISTS body bytea, \
         ADD COLUMN IF NOT EXISTS content_type text NOT NULL DEFAULT 'application/json', \
         ADD COLUMN IF NOT EXISTS occurred_at timestamptz, ADD COLUMN IF NOT EXISTS ordering_key text, \
         ADD COLUMN IF NOT EXISTS causation_id text, ADD COLUMN IF NOT EXISTS correlation_id text, \
         ADD COLUMN IF NOT EXISTS traceparent text, ADD COLUMN IF NOT EXISTS tracestate text, \
         ADD COLUMN IF NOT EXISTS headers jsonb, ADD COLUMN IF NOT EXISTS exchange text, \
         ADD COLUMN IF NOT EXISTS routing_key text, ADD COLUMN IF NOT EXISTS target_queue text, \
         ADD COLUMN IF NOT EXISTS published_at timestamptz, ADD COLUMN IF NOT EXISTS last_error text, \
         ADD COLUMN IF NOT EXISTS event_id text, ADD COLUMN IF NOT EXISTS verbatim bytea, \
         ADD COLUMN IF NOT EXISTS dead_letter_id bigint, \
         ADD COLUMN IF NOT EXISTS key text, ADD COLUMN IF NOT EXISTS slot smallint; \
     ALTER TABLE {outbox} ALTER COLUMN position SET DEFAULT nextval('{positions}')";

/// The words of an event's type, as in 0001_foundation.sql.
const WORDS: &str = r"^[^.*#\u0001-\u0020\u007f-\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+(?:\.[^.*#\u0001-\u0020\u007f-\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+)*$";

/// A column that may not be NULL and is.
const MISSING: &str = "CASE WHEN NEW.id IS NULL THEN 'id' WHEN NEW.aggregate_type IS NULL THEN 'aggregate_type' \
         WHEN NEW.event_type IS NULL THEN 'event_type' WHEN NEW.available_at IS NULL THEN 'available_at' \
         WHEN NEW.attempts IS NULL THEN 'attempts' WHEN NEW.created_at IS NULL THEN 'created_at' END";

/// The rule of the usual outbox that a row breaks, so that no relay could publish it. The columns of a project may be of other types that
/// are told as text. An event's type may have dots in its last part here: relays publish it.
const BROKEN: &str = "CASE \
         WHEN octet_length(NEW.id::text) NOT BETWEEN 1 AND 128 THEN 'id_has_1_to_128_bytes' \
         WHEN octet_length(NEW.group_id::text) NOT BETWEEN 1 AND 128 THEN 'group_id_has_1_to_128_bytes' \
         WHEN octet_length(NEW.subsidiary_id::text) NOT BETWEEN 1 AND 128 THEN 'subsidiary_id_has_1_to_128_bytes' \
         WHEN octet_length(NEW.aggregate_id::text) NOT BETWEEN 1 AND 128 THEN 'aggregate_id_has_1_to_128_bytes' \
         WHEN octet_length(NEW.causation_id::text) NOT BETWEEN 1 AND 128 THEN 'causation_id_has_1_to_128_bytes' \
         WHEN octet_length(NEW.correlation_id::text) NOT BETWEEN 1 AND 128 THEN 'correlation_id_has_1_to_128_bytes' \
         WHEN octet_length(NEW.event_id::text) NOT BETWEEN 1 AND 128 THEN 'event_id_has_1_to_128_bytes' \
         WHEN octet_length(NEW.ordering_key::text) > 600 THEN 'ordering_key_has_600_bytes_at_most' \
         WHEN octet_length(NEW.aggregate_type) + octet_length(NEW.event_type) >= 255 THEN 'type_has_255_bytes_at_most' \
         WHEN NEW.aggregate_type !~ '{words}' THEN 'aggregate_type_is_words_with_dots' \
         WHEN NEW.event_type !~ '{words}' THEN 'event_type_is_words_with_dots' \
         WHEN num_nonnulls(NEW.payload, NEW.body) <> 1 THEN 'either_payload_or_body' \
         WHEN NEW.attempts < 0 THEN 'attempts_is_not_negative' \
         WHEN NEW.position <= 0 THEN 'position_is_positive' \
         WHEN octet_length(NEW.exchange::text) > 255 THEN 'exchange_has_255_bytes_at_most' \
         WHEN octet_length(NEW.routing_key::text) > 255 THEN 'routing_key_has_255_bytes_at_most' \
         WHEN octet_length(NEW.target_queue::text) NOT BETWEEN 1 AND 255 THEN 'target_queue_has_1_to_255_bytes' END";

/// What the project's own INSERT does not say is filled in before the row is written, and what no relay could publish is refused, in the
/// words of the usual outbox's own constraints; relays are woken after.
const TRIGGERS: &str = "CREATE OR REPLACE FUNCTION {fill}() RETURNS trigger \
     LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$ \
     DECLARE \
         missing text := {missing}; \
         broken  text := {broken}; \
     BEGIN \
         IF missing IS NOT NULL THEN \
             RAISE EXCEPTION 'null value in column \"%\" of relation \"%\" violates not-null constraint', missing, TG_TABLE_NAME \
                 USING ERRCODE = 'not_null_violation', COLUMN = missing, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA; \
         END IF; \
         IF broken IS NOT NULL THEN \
             RAISE EXCEPTION 'new row for relation \"%\" violates check constraint \"%\"', TG_TABLE_NAME, broken \
                 USING ERRCODE = 'check_violation', CONSTRAINT = broken, TABLE = TG_TABLE_NAME, SCHEMA = TG_TABLE_SCHEMA; \
         END IF; \
         NEW.occurred_at := COALESCE(NEW.occurred_at, NEW.created_at); \
         IF LEAST(NEW.created_at, NEW.available_at, NEW.occurred_at) < '0001-01-01Z' \
                 OR GREATEST(NEW.created_at, NEW.available_at, NEW.occurred_at) >= '9999-12-30Z' THEN \
             RAISE EXCEPTION 'created_at, available_at and occurred_at are times of the years 1 to 9999' \
                 USING ERRCODE = 'check_violation'; \
         END IF; \
         IF NEW.created_at > now() + interval '24 hours' THEN \
             RAISE EXCEPTION 'created_at is more than a day ahead: %; leave it out, and set available_at to publish an event later', \
                 NEW.created_at USING ERRCODE = 'check_violation'; \
         END IF; \
         IF NEW.status IS NULL OR NEW.status NOT IN ('pending', 'published', 'failed', 'dead') THEN \
             RAISE EXCEPTION 'no relay knows the status %; a new event is pending', COALESCE(NEW.status, 'NULL') \
                 USING ERRCODE = 'check_violation'; \
         END IF; \
         NEW.position := COALESCE(NEW.position, nextval('{positions}')); \
         NEW.key := NULLIF(COALESCE(NEW.ordering_key, COALESCE(NEW.group_id::text || '/', '') || NEW.aggregate_type || '/' \
             || NEW.aggregate_id::text), ''); \
         NEW.slot := (hashtextextended(COALESCE(NEW.key, NEW.id::text), 0) & 63)::smallint; \
         RETURN NEW; \
     END $body$; \
     CREATE OR REPLACE FUNCTION {wake}() RETURNS trigger \
     LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$ \
     BEGIN \
         IF pg_try_advisory_xact_lock(1886352244, 0) OR pg_try_advisory_xact_lock(1886352244, 1) THEN \
             PERFORM pg_notify('postrider_outbox', ''); \
         END IF; \
         RETURN NULL; \
     END $body$; \
     DROP TRIGGER IF EXISTS postrider_fill ON {outbox}; \
     CREATE TRIGGER postrider_fill BEFORE INSERT ON {outbox} FOR EACH ROW EXECUTE FUNCTION {fill}(); \
     DROP TRIGGER IF EXISTS postrider_wake ON {outbox}; \
     CREATE TRIGGER postrider_wake AFTER INSERT ON {outbox} FOR EACH STATEMENT EXECUTE FUNCTION {wake}()";

/// Rows that were there before get their places in the order they were written, some at a time. Claims find a failed row by a time that
/// is later than its own; a publisher that set none has it tried again at once.
const BACKFILL: &str = "WITH old AS (SELECT ctid FROM {outbox} WHERE slot IS NULL ORDER BY created_at LIMIT 5000), \
     placed AS (SELECT ctid, row_number() OVER () FROM old) \
     UPDATE {outbox} o SET position = nextval('{positions}'), occurred_at = COALESCE(o.occurred_at, o.created_at), \
         available_at = CASE WHEN o.status = 'failed' THEN GREATEST(o.available_at, o.created_at + interval '1 us') \
             ELSE o.available_at END, \
         key = NULLIF(COALESCE(o.ordering_key, COALESCE(o.group_id::text || '/', '') || o.aggregate_type || '/' \
             || o.aggregate_id::text), ''), \
         slot = (hashtextextended(COALESCE(NULLIF(COALESCE(o.ordering_key, COALESCE(o.group_id::text || '/', '') \
             || o.aggregate_type || '/' || o.aggregate_id::text), ''), o.id::text), 0) & 63)::smallint \
     FROM placed WHERE o.ctid = placed.ctid";

/// Rows of which no relay would ever take notice.
const UNKNOWN: &str = "SELECT COALESCE(quote_literal(status), 'NULL'), count(*) FROM {outbox} \
     WHERE status IS NULL OR status NOT IN ('pending', 'published', 'failed', 'dead') \
     GROUP BY status ORDER BY count(*) DESC, 1 LIMIT 10";

/// Built without holding writers up, one after the other.
const INDEXES: [&str; 5] = [
    "CREATE INDEX CONCURRENTLY IF NOT EXISTS \"{table}_position_idx\" ON {outbox} (position, created_at)",
    "CREATE INDEX CONCURRENTLY IF NOT EXISTS \"{table}_new\" ON {outbox} (position) \
         WHERE status = 'pending' AND available_at <= created_at",
    "CREATE INDEX CONCURRENTLY IF NOT EXISTS \"{table}_timed\" ON {outbox} (available_at) \
         WHERE status IN ('pending', 'failed') AND available_at > created_at",
    "CREATE INDEX CONCURRENTLY IF NOT EXISTS \"{table}_failing\" ON {outbox} (slot, key, position) \
         WHERE status IN ('failed', 'dead') AND key IS NOT NULL",
    "CREATE INDEX CONCURRENTLY IF NOT EXISTS \"{table}_unpublished\" ON {outbox} (status, available_at) \
         WHERE status <> 'published'",
];

const REGISTER: &str = "WITH new AS ( \
         INSERT INTO postrider.outbox (name, schema_name, table_name, partitioned) VALUES ({name}, $1, $2, false) \
         ON CONFLICT DO NOTHING RETURNING name \
     ) INSERT INTO postrider.outbox_slot (outbox, slot) SELECT name, generate_series(0, 63) FROM new";

impl Outboxes for Postgres {
    fn outbox(&self, name: &str) -> Result<Self, StoreError> {
        Ok(self.with_outbox(parse(name)?))
    }

    async fn create_outbox(&self, name: &str) -> Result<bool, StoreError> {
        let table = parse(name)?;
        let strange = self.limited("looking for a table", self.is_strange(&table)).await?;
        if strange {
            return Err(not_adopted(&table));
        }
        let create = sqlx::query_scalar("SELECT postrider.create_outbox($1, $2)")
            .bind(table.schema().to_owned())
            .bind(table.table().to_owned());
        self.limited("making an outbox", create.fetch_one(self.pool())).await
    }

    async fn adopt_outbox(&self, name: &str) -> Result<u64, StoreError> {
        let table = parse(name)?;
        let fail = |cause| failed("adopting a table", &self.inner.place, cause);
        self.check_shape(&table).await?;
        self.check_statuses(&table).await?;
        let sql = |template: &str| statement(&table, template);
        let mut connection = self.pool().acquire().await.map_err(fail)?;
        // A lock that cannot be had soon is an error, not a queue of writers: the command is tried again.
        connection.execute("SET lock_timeout = '2s'; SET statement_timeout = 0").await.map_err(fail)?;
        let adopt = async {
            connection.execute(sqlx::raw_sql(sql(COLUMNS))).await?;
            connection.execute(sqlx::raw_sql(sql(TRIGGERS))).await?;
            let mut placed = 0;
            loop {
                let step = sqlx::query(sql(BACKFILL)).execute(&mut *connection).await?.rows_affected();
                placed += step;
                if step == 0 {
                    break;
                }
            }
            for index in INDEXES {
                connection.execute(sqlx::raw_sql(sql(index))).await?;
            }
            let register = sqlx::query(sql(REGISTER)).bind(table.schema()).bind(table.table());
            register.execute(&mut *connection).await?;
            Ok(placed)
        };
        let adopted = adopt.await.map_err(fail);
        // The connection has settings that no other should meet.
        let _closed = connection.close().await;
        adopted
    }

    async fn would_adopt_outbox(&self, name: &str) -> Result<u64, StoreError> {
        let table = parse(name)?;
        let columns = self.check_shape(&table).await?;
        self.check_statuses(&table).await?;
        // A table that was never adopted has no slots.
        let placed = columns.iter().any(|column| column == "slot");
        let without = if placed { "WHERE slot IS NULL" } else { "" };
        let count = statement(&table, &format!("SELECT count(*) FROM {{outbox}} {without}"));
        let count = self.unhurried(async |connection| {
            sqlx::query_scalar::<_, i64>(count).fetch_one(&mut *connection).await
        });
        Ok(count.await?.unsigned_abs())
    }
}

impl Postgres {
    /// Whether a table is there and no outbox of ours: somebody else's, that was not adopted.
    async fn is_strange(&self, table: &OutboxTable) -> Result<bool, sqlx::Error> {
        let strange = sqlx::query_scalar(
            "SELECT to_regclass(format('%I.%I', $1::text, $2::text)) IS NOT NULL AND NOT EXISTS ( \
                 SELECT FROM postrider.outbox WHERE schema_name = $1 AND table_name = $2)",
        );
        strange.bind(table.schema()).bind(table.table()).fetch_one(self.pool()).await
    }

    /// What an error means: where the table of this outbox was never adopted, no migration makes it fit.
    pub(super) async fn explained(&self, error: StoreError) -> StoreError {
        if error.kind != StoreErrorKind::Schema || *self.table == OutboxTable::default() {
            return error;
        }
        match self.is_strange(&self.table).await {
            // What the driver said stays; the advice that was given with it would lead nowhere.
            Ok(true) => StoreError { source: error.source, ..not_adopted(&self.table) },
            _ => error,
        }
    }

    /// Refuses rows whose status no relay knows: to take the table over would be to forget them.
    async fn check_statuses(&self, table: &OutboxTable) -> Result<(), StoreError> {
        let unknown = statement(table, UNKNOWN);
        let found = self.unhurried(async |connection| {
            sqlx::query_as::<_, (String, i64)>(unknown).fetch_all(&mut *connection).await
        });
        let found = found.await?;
        let Some((first, _)) = found.first() else { return Ok(()) };
        let counts: Vec<_> =
            found.iter().map(|(status, count)| format!("{count} with the status {status}")).collect();
        let comparison = if first == "NULL" { "IS NULL".to_owned() } else { format!("= {first}") };
        let message = format!(
            "{table} cannot be adopted; nothing was changed: it has rows that no relay would ever look at, {}. Give each of them pending, \
             failed (both are published), published or dead (neither is), such as: UPDATE {table} SET status = 'pending' \
             WHERE status {comparison}",
            counts.join(", ")
        );
        Err(StoreError::new(StoreErrorKind::Schema, message))
    }

    /// Asks what reads a whole table, on a connection that nobody hurries.
    async fn unhurried<T>(
        &self,
        ask: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, StoreError> {
        let fail = |cause| failed("reading a table", &self.inner.place, cause);
        let mut connection = self.pool().acquire().await.map_err(fail)?;
        connection.execute("SET statement_timeout = 0").await.map_err(fail)?;
        let answer = ask(&mut connection).await.map_err(fail);
        // It has a setting that no other should meet.
        let _closed = connection.close().await;
        answer
    }

    /// Refuses what has the columns of a table and is none, or none that has its rows itself.
    async fn check_kind(&self, table: &OutboxTable) -> Result<(), StoreError> {
        let kind = sqlx::query_scalar::<_, String>(
            "SELECT c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = $1 AND c.relname = $2",
        )
        .bind(table.schema().to_owned())
        .bind(table.table().to_owned());
        let kind = self.limited("looking at a table", kind.fetch_optional(self.pool())).await?;
        let (what, instead) = match kind.as_deref() {
            // That there is none is told by its columns.
            Some("r") | None => return Ok(()),
            Some("v" | "m") => ("a view", "adopt the table that its rows are in"),
            Some("p") => (
                "partitioned",
                "adopt a table without partitions, or make an outbox that has them (`postrider db migrate`)",
            ),
            Some("f") => ("a table of another server", "adopt it there"),
            Some(_) => ("no table", "adopt a table"),
        };
        let message = format!("{table} is {what} and cannot be adopted; nothing was changed: {instead}");
        Err(StoreError::new(StoreErrorKind::Schema, message))
    }

    /// The columns that it has; an error where they are not what is needed.
    async fn check_shape(&self, table: &OutboxTable) -> Result<Vec<String>, StoreError> {
        self.check_kind(table).await?;
        let columns = sqlx::query_as::<_, (String, String)>(
            "SELECT column_name::text, CASE data_type WHEN 'USER-DEFINED' THEN 'of the type ' || udt_schema || '.' || udt_name \
                 ELSE data_type::text END FROM information_schema.columns WHERE table_schema = $1 AND table_name = $2",
        )
        .bind(table.schema().to_owned())
        .bind(table.table().to_owned());
        let columns = self.limited("reading the columns of a table", columns.fetch_all(self.pool())).await?;
        if columns.is_empty() {
            let message =
                format!("there is no table {table} that could be adopted, or none that this user may see");
            return Err(StoreError::new(StoreErrorKind::Schema, message));
        }
        let wrong: Vec<String> = NEEDED
            .iter()
            .filter_map(|(name, types)| match columns.iter().find(|(column, _)| column == name) {
                None => Some(format!("it has no column {name}")),
                Some((_, found)) if types.contains(&found.as_str()) => None,
                Some((_, found)) => {
                    let instead = if *name == "status" { as_text(table) } else { String::new() };
                    Some(format!("{name} is {found}, not {}{instead}", types.join(" or ")))
                }
            })
            .collect();
        if wrong.is_empty() {
            return Ok(columns.into_iter().map(|(name, _)| name).collect());
        }
        let message = format!("{table} cannot be adopted; nothing was changed: {}", wrong.join("; "));
        Err(StoreError::new(StoreErrorKind::Schema, message))
    }
}

/// How a status of another type, such as an enum, becomes text. Its default is of the old type, and is in the way.
fn as_text(table: &OutboxTable) -> String {
    let (schema, name) = (table.schema(), table.table());
    format!(
        " (to make it one: ALTER TABLE \"{schema}\".\"{name}\" ALTER status DROP DEFAULT, \
         ALTER status TYPE text USING status::text, ALTER status SET DEFAULT 'pending')"
    )
}

fn not_adopted(table: &OutboxTable) -> StoreError {
    let message = format!(
        "{table} is a table that is no outbox yet, so nothing of it is published; nothing was changed. \
         `postrider db adopt {table}` takes it over"
    );
    StoreError::new(StoreErrorKind::Schema, message)
}

fn parse(name: &str) -> Result<OutboxTable, StoreError> {
    OutboxTable::new(name).map_err(|error| StoreError::new(StoreErrorKind::Invalid, error.to_string()))
}

fn statement(table: &OutboxTable, template: &str) -> AssertSqlSafe<std::sync::Arc<str>> {
    let (schema, name) = (table.schema(), table.table());
    let filled = template
        .replace("{missing}", MISSING)
        .replace("{broken}", BROKEN)
        .replace("{words}", WORDS)
        .replace("{table}", name)
        .replace("{fill}", &format!("\"{schema}\".\"{name}_fill\""))
        .replace("{wake}", &format!("\"{schema}\".\"{name}_wake\""));
    table.statement(&filled).sql()
}
