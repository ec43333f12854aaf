//! Several outboxes in one database: making one, and taking over a table that is there already.

mod shape;

use sqlx::{AssertSqlSafe, Executor as _, PgConnection};

use super::error::failed;
use super::{OutboxTable, Postgres};
use crate::store::{Outboxes, StoreError, StoreErrorKind};

/// Positions for the rows that are there, below those of rows that are written from now on: what waits keeps its place before what comes
/// while places are given out. They are counted without a lock, so there is room for more.
const PLACES: &str = "CREATE SEQUENCE IF NOT EXISTS {positions} AS bigint CACHE 1; \
     DROP SEQUENCE IF EXISTS {places}; CREATE SEQUENCE {places} AS bigint CACHE 1; \
     SELECT setval('{places}', nextval('{positions}'), false); \
     SELECT setval('{positions}', (SELECT last_value FROM {places}) + {room})";
const MORE: u64 = 1_000_000;

/// Each takes its lock for a moment only: no column has a default that would rewrite the table. The position has none at all: a default is
/// worked out with the rights of whoever inserts, and a project's own user has none on our sequence.
const COLUMNS: &str = "CREATE SEQUENCE IF NOT EXISTS {positions} AS bigint CACHE 1; \
     CREATE TABLE IF NOT EXISTS {ids} (id text COLLATE \"C\" PRIMARY KEY, created_at timestamptz NOT NULL); \
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
     ALTER TABLE {outbox} ALTER COLUMN position DROP DEFAULT";

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
/// words of the usual outbox's own constraints; relays are woken after. Both run with the rights of whoever adopted the table, so that the
/// project's users need no others than they have.
/// An event that is due when it is written has no time of its own: a service that says the present for both of its times, one a moment after the
/// other, would have each of them found up to a quarter of a second late, and out of order beside others of its key.
const TRIGGERS: &str = "CREATE OR REPLACE FUNCTION {fill}() RETURNS trigger \
     LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$ \
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
         IF NEW.status = 'pending' AND NEW.available_at <= GREATEST(clock_timestamp(), NEW.created_at + interval '10 milliseconds') THEN \
             NEW.available_at := LEAST(NEW.available_at, NEW.created_at); \
         END IF; \
         NEW.position := COALESCE(NEW.position, nextval('{positions}')); \
         NEW.key := NULLIF(COALESCE(NEW.ordering_key, COALESCE(NEW.group_id::text || '/', '') || NEW.aggregate_type || '/' \
             || NEW.aggregate_id::text), ''); \
         NEW.slot := (hashtextextended(COALESCE(NEW.key, NEW.id::text), 0) & 63)::smallint; \
         RETURN NEW; \
     END $body$; \
     CREATE OR REPLACE FUNCTION {wake}() RETURNS trigger \
     LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$ \
     DECLARE \
         turn int := (date_part('epoch', clock_timestamp()) * 5)::bigint % 1000000000 * 2; \
     BEGIN \
         IF current_setting('postrider.woke', true) IS DISTINCT FROM 'yes' \
             AND (pg_try_advisory_xact_lock(1886352244, turn) OR pg_try_advisory_xact_lock(1886352244, turn + 1)) \
         THEN \
             PERFORM pg_notify('postrider_outbox', ''), set_config('postrider.woke', 'yes', true); \
         END IF; \
         RETURN NULL; \
     END $body$; \
     DROP TRIGGER IF EXISTS postrider_fill ON {outbox}; \
     CREATE TRIGGER postrider_fill BEFORE INSERT ON {outbox} FOR EACH ROW EXECUTE FUNCTION {fill}(); \
     DROP TRIGGER IF EXISTS postrider_wake ON {outbox}; \
     CREATE TRIGGER postrider_wake AFTER INSERT ON {outbox} FOR EACH STATEMENT EXECUTE FUNCTION {wake}()";

/// Finds the next rows without a place while they are given out: without it every step would read the whole table, and one of ten million
/// rows would take hours.
const UNPLACED: &str = "CREATE INDEX CONCURRENTLY IF NOT EXISTS \"{table}_unplaced\" ON {outbox} (created_at) WHERE slot IS NULL";

/// Rows that were there before get their places in the order they were written, some at a time. Claims find a failed row by a time that
/// is later than its own; a publisher that set none has it tried again at once. Rows of one transaction have one time, and lie in their order.
/// Says how many, and up to which time: the next step begins there.
const BACKFILL: &str = "WITH old AS (SELECT ctid AS place FROM {outbox} WHERE slot IS NULL {since} ORDER BY created_at, ctid LIMIT 5000), \
     placed AS MATERIALIZED (SELECT place, nextval('{numbers}') AS number FROM old), \
     done AS (UPDATE {outbox} o SET position = placed.number, occurred_at = COALESCE(o.occurred_at, o.created_at), \
         available_at = CASE WHEN o.status = 'failed' THEN GREATEST(o.available_at, o.created_at + interval '1 us') \
             ELSE o.available_at END, \
         key = NULLIF(COALESCE(o.ordering_key, COALESCE(o.group_id::text || '/', '') || o.aggregate_type || '/' \
             || o.aggregate_id::text), ''), \
         slot = (hashtextextended(COALESCE(NULLIF(COALESCE(o.ordering_key, COALESCE(o.group_id::text || '/', '') \
             || o.aggregate_type || '/' || o.aggregate_id::text), ''), o.id::text), 0) & 63)::smallint \
     FROM placed WHERE o.ctid = placed.place RETURNING o.created_at) \
     SELECT count(*), max(created_at)::text FROM done";
const SINCE: &str = "AND created_at >= $1::text::timestamptz";

/// What is left of an index whose making was cut off: nobody reads it, and it would be taken for made.
const HALF_MADE: &str = "SELECT format('DROP INDEX CONCURRENTLY %I.%I', n.nspname, c.relname) \
     FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
     WHERE i.indrelid = '{outbox}'::regclass AND NOT i.indisvalid AND c.relname IN ('{table}_position_idx', '{table}_new', \
         '{table}_timed', '{table}_failing', '{table}_unpublished', '{table}_unplaced')";

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

/// Under the name there may have been an outbox with partitions that somebody dropped: whoever looks after this one would look for them.
const REGISTER: &str = "WITH known AS ( \
         INSERT INTO postrider.outbox (name, schema_name, table_name, partitioned) VALUES ({name}, $1, $2, false) \
         ON CONFLICT (name) DO UPDATE SET partitioned = false RETURNING name \
     ) INSERT INTO postrider.outbox_slot (outbox, slot) SELECT name, generate_series(0, 63) FROM known ON CONFLICT DO NOTHING";

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
        let room = if self.was_adopted(&table).await? {
            None
        } else {
            Some(self.rows_without_place(&table, "").await? + MORE)
        };
        let mut connection = self.pool().acquire().await.map_err(fail)?;
        // A lock that cannot be had soon is an error, not a queue of writers: the command is tried again.
        connection.execute("SET lock_timeout = '2s'; SET statement_timeout = 0").await.map_err(fail)?;
        let adopt = async {
            if let Some(room) = room {
                let places = PLACES.replace("{room}", &room.to_string());
                connection.execute(sqlx::raw_sql(sql(&places))).await?;
            }
            // Together, so that no row is written that has the columns and no place.
            connection.execute(sqlx::raw_sql(sql(&format!("{COLUMNS}; {TRIGGERS}")))).await?;
            // Nobody waits for who makes an index so; who makes it waits for every transaction, and one that gave up would leave half of it.
            connection.execute("SET lock_timeout = 0").await?;
            let half_made =
                sqlx::query_scalar::<_, String>(sql(HALF_MADE)).fetch_all(&mut *connection).await?;
            for removal in half_made {
                connection.execute(sqlx::raw_sql(AssertSqlSafe(removal))).await?;
            }
            connection.execute(sqlx::raw_sql(sql(UNPLACED))).await?;
            connection.execute("SET lock_timeout = '2s'; SET enable_seqscan = off").await?;
            // They are there until every row has one: also for who goes on where another was cut off.
            let kept = sqlx::query_scalar::<_, bool>(sql("SELECT to_regclass('{places}') IS NOT NULL"));
            let numbers = if kept.fetch_one(&mut *connection).await? { "{places}" } else { "{positions}" };
            let placed = give_places(&mut connection, &table, numbers).await?;
            connection.execute(sqlx::raw_sql(sql("DROP SEQUENCE IF EXISTS {places}"))).await?;
            connection.execute("SET lock_timeout = 0").await?;
            for index in INDEXES {
                connection.execute(sqlx::raw_sql(sql(index))).await?;
            }
            connection.execute(sqlx::raw_sql(sql("DROP INDEX CONCURRENTLY IF EXISTS {unplaced}"))).await?;
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
        self.rows_without_place(&table, without).await
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

    async fn rows_without_place(&self, table: &OutboxTable, which: &str) -> Result<u64, StoreError> {
        let count = statement(table, &format!("SELECT count(*) FROM {{outbox}} {which}"));
        let count = self.unhurried(async |connection| {
            sqlx::query_scalar::<_, i64>(count).fetch_one(&mut *connection).await
        });
        Ok(count.await?.unsigned_abs())
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
}

/// From each step's end to the next; then once more from the beginning, for rows that somebody changed meanwhile.
async fn give_places(
    connection: &mut PgConnection,
    table: &OutboxTable,
    numbers: &str,
) -> Result<u64, sqlx::Error> {
    let backfill = BACKFILL.replace("{numbers}", numbers);
    let (all, later) = (backfill.replace("{since}", ""), backfill.replace("{since}", SINCE));
    let (mut placed, mut since): (u64, Option<String>) = (0, None);
    loop {
        let (count, up_to): (i64, Option<String>) = match since.as_deref() {
            None => sqlx::query_as(statement(table, &all)).fetch_one(&mut *connection).await?,
            Some(at) => sqlx::query_as(statement(table, &later)).bind(at).fetch_one(&mut *connection).await?,
        };
        placed += count.unsigned_abs();
        if count == 0 && since.is_none() {
            return Ok(placed);
        }
        since = up_to;
    }
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
        .replace("{places}", &format!("\"{schema}\".\"{name}_place\""))
        .replace("{unplaced}", &format!("\"{schema}\".\"{name}_unplaced\""))
        .replace("{fill}", &format!("\"{schema}\".\"{name}_fill\""))
        .replace("{wake}", &format!("\"{schema}\".\"{name}_wake\""));
    table.statement(&filled).sql()
}
