//! Erasing payloads on PostgreSQL. Rows stay where they are: only what an event says is replaced.

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use super::Postgres;
use super::error::failed;
use crate::envelope::{Payload, PayloadHash, erased_note};
use crate::store::{Erase, Erased, Erasure, StoreError};

/// The rows of the events, in a table of the outbox's shape, and those that sent them again. Locked, so that no relay marks one meanwhile.
const ROWS: &str = "SELECT position, created_at, id::text, event_id, status, payload::text, body FROM {from} \
     WHERE {which} OR (event_id IS NOT NULL AND event_id IN (SELECT id::text FROM {from} WHERE {which})) \
     ORDER BY position FOR UPDATE";

const BY_ID: &str = "(id::text = $1 OR event_id = $1) AND $2 = $2";
const BY_AGGREGATE: &str = "(aggregate_type = $1 AND aggregate_id::text = $2)";

/// Whichever of the two columns has it keeps it: an adopted table may demand a payload.
const ERASE_ROW: &str = "UPDATE {from} SET payload = CASE WHEN payload IS NULL THEN NULL ELSE $3::jsonb END, \
         body = CASE WHEN body IS NULL THEN NULL ELSE convert_to($3, 'UTF8') END, content_type = 'application/json' \
     WHERE position = $1 AND created_at = $2";

const LETTERS: &str =
    "SELECT id, event_id, body FROM postrider.dead_letter WHERE event_id = ANY($1) ORDER BY id FOR UPDATE";

/// An open letter could be sent again, with nothing in it: it is discarded.
const ERASE_LETTER: &str = "UPDATE postrider.dead_letter SET body = convert_to($2, 'UTF8'), exact = NULL, \
         status = CASE status WHEN 'open' THEN 'discarded' ELSE status END, \
         resolved_at = CASE status WHEN 'open' THEN now() ELSE resolved_at END \
     WHERE id = $1";

const ANSWERS: &str = "WITH inbox AS ( \
         UPDATE postrider.event_inbox SET response = NULL WHERE event_id = ANY($1) AND response IS NOT NULL RETURNING 1 \
     ), pushed AS ( \
         UPDATE postrider.push_attempt SET answer = '' WHERE event_id = ANY($1) AND answer <> '' RETURNING 1 \
     ) SELECT (SELECT count(*) FROM inbox) + (SELECT count(*) FROM pushed)";

/// Whole documents among the items of replays; others name rows.
const REPLAYING: &str = "SELECT count(*) FROM ( \
         SELECT CASE WHEN i.subject LIKE '{%' THEN i.subject::json END AS document FROM postrider.operation o \
         JOIN postrider.operation_item i ON i.operation_id = o.id \
         WHERE o.kind = 'replay_outbox' AND o.state IN ('planned', 'running') \
     ) item WHERE document ->> 'id' = ANY($1) OR document ->> 'aggregate_type' = $2 AND document ->> 'aggregate_id' = $3";

const LOG: &str = "INSERT INTO postrider.audit_log (actor, action, subject, reason) \
     SELECT $2, 'event.erase', id, $3 FROM unnest($1::text[]) id";

impl Erasure for Postgres {
    async fn erase(&self, which: &Erase, by: &str, reason: &str) -> Result<Erased, StoreError> {
        let fail = |cause| failed("erasing payloads", &self.inner.place, cause);
        let mut transaction = self.transaction("BEGIN").await.map_err(fail)?;
        let erased = self.erase_in(&mut transaction, which, by, reason).await.map_err(fail)?;
        transaction.commit().await.map_err(fail)?;
        Ok(erased)
    }

    async fn would_erase(&self, which: &Erase) -> Result<Erased, StoreError> {
        let fail = |cause| failed("looking for payloads", &self.inner.place, cause);
        let mut transaction = self.transaction("BEGIN").await.map_err(fail)?;
        let erased = self.erase_in(&mut transaction, which, "", "").await.map_err(fail)?;
        transaction.rollback().await.map_err(fail)?;
        Ok(erased)
    }
}

impl Postgres {
    async fn erase_in(
        &self,
        connection: &mut PgConnection,
        which: &Erase,
        by: &str,
        reason: &str,
    ) -> Result<Erased, sqlx::Error> {
        let mut erased = Erased::default();
        let mut known: Vec<(String, PayloadHash)> = Vec::new();
        let outbox = format!("\"{}\".\"{}\"", self.table.schema(), self.table.table());
        self.erase_rows(connection, &outbox, which, &mut erased, &mut known).await?;
        // In the order in which rows go that way, so that none is passed over that goes meanwhile.
        for table in self.detached(&mut *connection, true).await? {
            self.erase_rows(connection, &table, which, &mut erased, &mut known).await?;
        }
        if let Some(archive) = self.archive(connection).await? {
            self.erase_rows(connection, &archive, which, &mut erased, &mut known).await?;
        }
        if let Erase::Event(id) = which
            && erased.unpublished.is_empty()
            && !known.iter().any(|(other, _)| other == id.as_str())
        {
            // The outbox does not keep it any more, or it came from elsewhere; its dead letters and answers are here.
            erased.events.push(id.to_string());
        }
        erased.events.extend(known.iter().map(|(id, _)| id.clone()));
        erased.events.sort();
        erased.events.dedup();
        erased.dead_letters = erase_letters(connection, &erased.events, &known).await?;
        let answers: i64 =
            sqlx::query_scalar(ANSWERS).bind(&erased.events).fetch_one(&mut *connection).await?;
        erased.answers = answers.unsigned_abs();
        let held = "SELECT count(*) FROM postrider.held_event WHERE event_id = ANY($1)";
        let held: i64 = sqlx::query_scalar(held).bind(&erased.events).fetch_one(&mut *connection).await?;
        erased.held = held.unsigned_abs();
        let (kind, id) = match which {
            Erase::Event(_) => (None, None),
            Erase::Aggregate { kind, id } => (Some(kind.as_str()), Some(id.as_str())),
        };
        let replaying = sqlx::query_scalar::<_, i64>(REPLAYING).bind(&erased.events).bind(kind).bind(id);
        erased.replaying = replaying.fetch_one(&mut *connection).await?.unsigned_abs();
        if erased.rows + erased.dead_letters + erased.answers == 0 {
            erased.events.clear();
        }
        sqlx::query(LOG).bind(&erased.events).bind(by).bind(reason).execute(connection).await?;
        Ok(erased)
    }

    /// Its archive table, if there is one.
    async fn archive(&self, connection: &mut PgConnection) -> Result<Option<String>, sqlx::Error> {
        let archive = format!("\"{}\".\"{}_archive\"", self.table.schema(), self.table.table());
        let there: bool = sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL")
            .bind(&archive)
            .fetch_one(connection)
            .await?;
        Ok(there.then_some(archive))
    }

    async fn erase_rows(
        &self,
        connection: &mut PgConnection,
        table: &str,
        which: &Erase,
        erased: &mut Erased,
        known: &mut Vec<(String, PayloadHash)>,
    ) -> Result<(), sqlx::Error> {
        let (condition, first, second) = match which {
            Erase::Event(id) => (BY_ID, id.as_str(), ""),
            Erase::Aggregate { kind, id } => (BY_AGGREGATE, kind.as_str(), id.as_str()),
        };
        // The names in it were checked when the table was named.
        let select = AssertSqlSafe(ROWS.replace("{which}", condition).replace("{from}", table));
        let rows = sqlx::query(select).bind(first).bind(second).fetch_all(&mut *connection).await?;
        for row in &rows {
            let (id, sent_again): (String, Option<String>) = (row.try_get(2)?, row.try_get(3)?);
            let event = sent_again.unwrap_or_else(|| id.clone());
            if row.try_get::<&str, _>(4)? != "published" {
                erased.unpublished.push(id);
                continue;
            }
            let hash = match known.iter().find(|(other, _)| *other == event) {
                Some((_, hash)) => *hash,
                None => hash_of(row)?,
            };
            let update = AssertSqlSafe(ERASE_ROW.replace("{from}", table));
            sqlx::query(update)
                .bind(row.try_get::<i64, _>(0)?)
                .bind(row.try_get::<jiff_sqlx::Timestamp, _>(1)?)
                .bind(erased_note(hash))
                .execute(&mut *connection)
                .await?;
            erased.rows += 1;
            known.push((event, hash));
        }
        Ok(())
    }
}

fn hash_of(row: &PgRow) -> Result<PayloadHash, sqlx::Error> {
    let (payload, body): (Option<String>, Option<Vec<u8>>) = (row.try_get(5)?, row.try_get(6)?);
    let bytes = body.or(payload.map(String::into_bytes)).unwrap_or_default();
    Ok(Payload::new("", bytes).hash())
}

/// A dead letter's body is a whole message, so its payload's hash is the outbox's; where that is not known, the message's own.
async fn erase_letters(
    connection: &mut PgConnection,
    events: &[String],
    known: &[(String, PayloadHash)],
) -> Result<u64, sqlx::Error> {
    let letters: Vec<(i64, String, Vec<u8>)> =
        sqlx::query_as(LETTERS).bind(events).fetch_all(&mut *connection).await?;
    for (letter, event, body) in &letters {
        let own = || Payload::new("", body.clone()).hash();
        let hash = known.iter().find(|(id, _)| id == event).map_or_else(own, |(_, hash)| *hash);
        sqlx::query(ERASE_LETTER).bind(letter).bind(erased_note(hash)).execute(&mut *connection).await?;
    }
    Ok(letters.len() as u64)
}
