//! What a table must be like to be adopted. Everything is looked at before anything is changed.

use super::statement;
use crate::postgres::{OutboxTable, Postgres};
use crate::store::{StoreError, StoreErrorKind};

const TEXT: &[&str] = &["text", "character varying"];
const ID: &[&str] = &["uuid", "text", "character varying"];
const TIME: &[&str] = &["timestamp with time zone"];

/// What a table must have to be adopted, and of which types.
const NEEDED: [(&str, &[&str]); 11] = [
    ("id", ID),
    ("group_id", ID),
    ("subsidiary_id", ID),
    ("aggregate_type", TEXT),
    ("aggregate_id", ID),
    ("event_type", TEXT),
    ("payload", &["jsonb"]),
    ("status", TEXT),
    ("available_at", TIME),
    ("attempts", &["integer"]),
    ("created_at", TIME),
];

/// What it may have already of the columns that are added, and of which types: with another one no relay could read its rows.
const ADDED: [(&str, &[&str]); 20] = [
    ("position", &["bigint"]),
    ("body", &["bytea"]),
    ("content_type", TEXT),
    ("occurred_at", TIME),
    ("ordering_key", TEXT),
    ("causation_id", ID),
    ("correlation_id", ID),
    ("traceparent", TEXT),
    ("tracestate", TEXT),
    ("headers", &["jsonb"]),
    ("exchange", TEXT),
    ("routing_key", TEXT),
    ("target_queue", TEXT),
    ("published_at", TIME),
    ("last_error", TEXT),
    ("event_id", TEXT),
    ("verbatim", &["bytea"]),
    ("dead_letter_id", &["bigint"]),
    ("key", TEXT),
    ("slot", &["smallint"]),
];

/// Those of them that mean something to relays alone. Under such a name a project's own column would be overwritten.
const OURS: [&str; 6] = ["position", "body", "verbatim", "dead_letter_id", "key", "slot"];

/// Rows of which no relay would ever take notice.
const UNKNOWN: &str = "SELECT COALESCE(quote_literal(status), 'NULL'), count(*) FROM {outbox} \
     WHERE status IS NULL OR status NOT IN ('pending', 'published', 'failed', 'dead') \
     GROUP BY status ORDER BY count(*) DESC, 1 LIMIT 10";

impl Postgres {
    /// Whether a table was adopted before: then the columns are there, and new rows get their places.
    pub(super) async fn was_adopted(&self, table: &OutboxTable) -> Result<bool, StoreError> {
        let look = sqlx::query_scalar::<_, bool>(
            "SELECT EXISTS (SELECT FROM pg_trigger WHERE tgname = 'postrider_fill' \
                 AND tgrelid = to_regclass(format('%I.%I', $1::text, $2::text)))",
        );
        let look = look.bind(table.schema().to_owned()).bind(table.table().to_owned());
        self.limited("looking at a table", look.fetch_one(self.pool())).await
    }

    /// Refuses rows whose status no relay knows: to take the table over would be to forget them.
    pub(super) async fn check_statuses(&self, table: &OutboxTable) -> Result<(), StoreError> {
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
    pub(super) async fn check_shape(&self, table: &OutboxTable) -> Result<Vec<String>, StoreError> {
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
        let mut wrong: Vec<String> = NEEDED
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
        let own: &[&str] = if self.was_adopted(table).await? { &[] } else { &OURS };
        let there = |name: &str| columns.iter().find(|(column, _)| column == name);
        wrong.extend(own.iter().filter(|name| there(name).is_some()).map(|name| {
            format!("it has a column {name} of its own, which relays would write to; give it another name")
        }));
        wrong.extend(ADDED.iter().filter_map(|(name, types)| {
            let (_, found) = there(name).filter(|(_, found)| !types.contains(&found.as_str()))?;
            Some(format!("{name} is {found}, not {}", types.join(" or ")))
        }));
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
