//! Erasing payloads on SQLite. Rows stay where they are: only what an event says is replaced.

use futures_util::FutureExt as _;
use sqlx::SqliteConnection;

use super::Sqlite;
use super::error::from_sqlite;
use crate::envelope::{Payload, PayloadHash, erased_note};
use crate::store::{Erase, Erased, Erasure, StoreError};

/// A row: position, id, the event it sends again, status, what it says.
type Row = (i64, String, Option<String>, String, Vec<u8>);

const TABLES: [&str; 2] = ["event_outbox", "event_outbox_archive"];

const ROWS: &str = "SELECT position, id, event_id, status, coalesce(body, CAST(payload AS BLOB)) FROM {from} \
     WHERE {which} OR (event_id IS NOT NULL AND event_id IN (SELECT id FROM {from} WHERE {which})) ORDER BY position";

const BY_ID: &str = "((id = ?1 OR event_id = ?1) AND ?2 = ?2)";
const BY_AGGREGATE: &str = "(aggregate_type = ?1 AND aggregate_id = ?2)";

const ERASE_ROW: &str = "UPDATE {from} SET payload = iif(payload IS NULL, NULL, ?2), \
     body = iif(body IS NULL, NULL, CAST(?2 AS BLOB)), content_type = 'application/json' WHERE position = ?1";

const ERASE_LETTER: &str = "UPDATE dead_letter SET body = CAST(?2 AS BLOB), resolved_at = iif(status = 'open', ?3, resolved_at), \
     status = iif(status = 'open', 'discarded', status) WHERE id = ?1";

impl Erasure for Sqlite {
    async fn erase(&self, which: &Erase, by: &str, reason: &str) -> Result<Erased, StoreError> {
        let work = Work::new(self, which, by, reason);
        self.writer().run(move |connection| work.erase(connection).boxed()).await
    }

    async fn would_erase(&self, which: &Erase) -> Result<Erased, StoreError> {
        let work = Work::new(self, which, "", "");
        self.writer().run(move |connection| work.pretend(connection).boxed()).await
    }
}

/// Whole documents among the items of replays; others name rows.
const REPLAYING: &str = "SELECT count(*) FROM ( \
         SELECT iif(subject LIKE '{%', subject, NULL) AS document FROM operation_item WHERE operation_id IN ( \
             SELECT id FROM operation WHERE kind = 'replay_outbox' AND state IN ('planned', 'running')) \
     ) WHERE document ->> 'id' IN (SELECT value FROM json_each(?1)) \
          OR document ->> 'aggregate_type' = ?2 AND document ->> 'aggregate_id' = ?3";

struct Work {
    which: Erase,
    by: String,
    reason: String,
    now: i64,
}

impl Work {
    fn new(store: &Sqlite, which: &Erase, by: &str, reason: &str) -> Self {
        Self {
            which: which.clone(),
            by: by.to_owned(),
            reason: reason.to_owned(),
            now: store.clock().now().as_microsecond(),
        }
    }

    /// Erases, and takes it back.
    async fn pretend(self, connection: &mut SqliteConnection) -> Result<Erased, StoreError> {
        sqlx::raw_sql("SAVEPOINT pretending").execute(&mut *connection).await.map_err(from_sqlite)?;
        let erased = self.erase(connection).await;
        let back = "ROLLBACK TO pretending; RELEASE pretending";
        sqlx::raw_sql(back).execute(connection).await.map_err(from_sqlite)?;
        erased
    }

    async fn erase(self, connection: &mut SqliteConnection) -> Result<Erased, StoreError> {
        let mut erased = Erased::default();
        let mut known: Vec<(String, PayloadHash)> = Vec::new();
        for table in TABLES {
            self.erase_rows(connection, table, &mut erased, &mut known).await.map_err(from_sqlite)?;
        }
        if let Erase::Event(id) = &self.which
            && erased.unpublished.is_empty()
            && known.is_empty()
        {
            erased.events.push(id.to_string());
        }
        erased.events.extend(known.iter().map(|(id, _)| id.clone()));
        erased.events.sort();
        erased.events.dedup();
        for event in erased.events.clone() {
            let hash = known.iter().find(|(id, _)| *id == event).map(|(_, hash)| *hash);
            self.erase_around(connection, &event, hash, &mut erased).await.map_err(from_sqlite)?;
        }
        let (kind, id) = match &self.which {
            Erase::Event(_) => (None, None),
            Erase::Aggregate { kind, id } => (Some(kind.as_str()), Some(id.as_str())),
        };
        let events = serde_json::json!(erased.events).to_string();
        let replaying = sqlx::query_scalar::<_, i64>(REPLAYING).bind(events).bind(kind).bind(id);
        erased.replaying = replaying.fetch_one(&mut *connection).await.map_err(from_sqlite)?.unsigned_abs();
        if erased.rows + erased.dead_letters + erased.answers == 0 {
            erased.events.clear();
        }
        for event in &erased.events {
            super::controls::log(connection, self.now, &self.by, "event.erase", event, Some(&self.reason))
                .await?;
        }
        Ok(erased)
    }

    async fn erase_rows(
        &self,
        connection: &mut SqliteConnection,
        table: &str,
        erased: &mut Erased,
        known: &mut Vec<(String, PayloadHash)>,
    ) -> Result<(), sqlx::Error> {
        let (condition, first, second) = match &self.which {
            Erase::Event(id) => (BY_ID, id.as_str(), ""),
            Erase::Aggregate { kind, id } => (BY_AGGREGATE, kind.as_str(), id.as_str()),
        };
        // Made of constants.
        let select = sqlx::AssertSqlSafe(ROWS.replace("{which}", condition).replace("{from}", table));
        let rows: Vec<Row> =
            sqlx::query_as(select).bind(first).bind(second).fetch_all(&mut *connection).await?;
        for (position, id, sent_again, status, body) in rows {
            if status != "published" {
                erased.unpublished.push(id);
                continue;
            }
            let event = sent_again.unwrap_or(id);
            let first = known.iter().find(|(other, _)| *other == event).map(|(_, hash)| *hash);
            let hash = first.unwrap_or_else(|| Payload::new("", body).hash());
            let update = sqlx::AssertSqlSafe(ERASE_ROW.replace("{from}", table));
            sqlx::query(update).bind(position).bind(erased_note(hash)).execute(&mut *connection).await?;
            erased.rows += 1;
            known.push((event, hash));
        }
        Ok(())
    }

    /// Dead letters, answers, and what is held.
    async fn erase_around(
        &self,
        connection: &mut SqliteConnection,
        event: &str,
        hash: Option<PayloadHash>,
        erased: &mut Erased,
    ) -> Result<(), sqlx::Error> {
        let letters = sqlx::query_as("SELECT id, body FROM dead_letter WHERE event_id = ? ORDER BY id");
        let letters: Vec<(i64, Vec<u8>)> = letters.bind(event).fetch_all(&mut *connection).await?;
        for (letter, body) in letters {
            let note = erased_note(hash.unwrap_or_else(|| Payload::new("", body).hash()));
            let update = sqlx::query(ERASE_LETTER).bind(letter).bind(note).bind(self.now);
            update.execute(&mut *connection).await?;
            erased.dead_letters += 1;
        }
        for forget in [
            "UPDATE event_inbox SET response = NULL WHERE event_id = ? AND response IS NOT NULL",
            "UPDATE push_attempt SET answer = '' WHERE event_id = ? AND answer <> ''",
        ] {
            erased.answers +=
                sqlx::query(forget).bind(event).execute(&mut *connection).await?.rows_affected();
        }
        let held = sqlx::query_scalar("SELECT count(*) FROM held_event WHERE event_id = ?");
        let held: i64 = held.bind(event).fetch_one(connection).await?;
        erased.held += held.unsigned_abs();
        Ok(())
    }
}
