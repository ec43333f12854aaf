//! Looking for dead letters on SQLite, and resolving them.

mod filter;
mod groups;

use serde_json::json;
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row as _, SqliteConnection};
use uuid::Uuid;

use self::filter::Where;
use super::dead_letters::{read, whole};
use super::error::from_sqlite;
use super::outbox::time;
use super::{Sqlite, SqliteTx};
use crate::store::{
    Cursor, GroupPage, GroupQuery, LetterFilter, LetterId, LetterPage, LetterQuery, LetterStatus,
    LetterSummary, Resolution, SCANNED, StoreError, StoreErrorKind, StoredLetter, Survey, Triage, Turn,
};

/// What a list shows of a letter. The column `told` is the beginning of its error.
macro_rules! summary {
    () => {
        "id, event_id, event_type, group_id, aggregate_id, consumer_name, queue, reason, substr(error, 1, 300) AS told, \
         error_class, fingerprint, attempts, first_failed_at, dead_at, status, resolved_at, operation_id, replay_of, \
         replays, replaced_by, replay_error, length(body) AS bytes"
    };
}
pub(super) use summary;

/// Whether the letter `d` was sent to another queue than its own, where nobody waits for it any more then.
macro_rules! sent_elsewhere {
    () => {
        "(d.status = 'replayed' AND EXISTS (SELECT 1 FROM operation op WHERE op.id = d.operation_id \
         AND op.plan ->> 'to_queue' <> d.queue))"
    };
}
pub(super) use sent_elsewhere;

impl Triage for Sqlite {
    async fn letters(&self, query: &LetterQuery) -> Result<LetterPage, StoreError> {
        let bound = self.scan_bound(&query.filter, query.turn).await?;
        let mut select = QueryBuilder::new(concat!("SELECT ", summary!(), " FROM dead_letter WHERE "));
        Where::new(&mut select).filter(&query.filter).turn(query.turn).not_beyond(query.turn, bound);
        let ascending = matches!(query.turn, Turn::After(_));
        select.push(if ascending {
            " ORDER BY dead_at, id LIMIT "
        } else {
            " ORDER BY dead_at DESC, id DESC LIMIT "
        });
        select.push_bind(i64::try_from(query.limit).unwrap_or(i64::MAX));
        let rows = select.build().fetch_all(self.readers()).await.map_err(from_sqlite)?;
        let mut letters = rows.iter().map(read_summary).collect::<Result<Vec<_>, _>>()?;
        let full = letters.len() >= query.limit;
        let last = letters.last().map(LetterSummary::cursor);
        if ascending {
            letters.reverse();
        }
        Ok(LetterPage {
            letters,
            next: if full { last } else { bound },
            stopped_at: bound.filter(|_| !full).map(|bound| bound.dead_at),
        })
    }

    async fn letter(&self, id: LetterId) -> Result<Option<StoredLetter>, StoreError> {
        let select = concat!("SELECT ", summary!(), ", ", whole!(), " FROM dead_letter WHERE id = ?");
        let query = sqlx::query(select).bind(id.0);
        let row = query.fetch_optional(self.readers()).await.map_err(from_sqlite)?;
        row.as_ref().map(read_letter).transpose()
    }

    async fn groups(&self, query: &GroupQuery) -> Result<GroupPage, StoreError> {
        self.group_page(query).await
    }

    async fn survey(&self, filter: &LetterFilter) -> Result<Survey, StoreError> {
        let mut select = QueryBuilder::new(
            "SELECT queue, count(*), count(*) FILTER (WHERE EXISTS (SELECT 1 FROM event_inbox i \
                 WHERE i.consumer_name = d.consumer_name AND i.event_id = d.event_id)), \
             count(*) FILTER (WHERE event_id IS NULL), count(*) FILTER (WHERE replays > 0), \
             count(*) FILTER (WHERE first_failed_at < (SELECT forgotten_before FROM inbox_memory m \
                 WHERE m.consumer_name = d.consumer_name)), count(*) FILTER (WHERE reason = 'unroutable') \
             FROM dead_letter d WHERE ",
        );
        Where::new(&mut select).filter(filter);
        select.push(" GROUP BY queue ORDER BY queue");
        let counted = select.build_query_as().fetch_all(self.readers()).await;
        let counted: Vec<(String, i64, i64, i64, i64, i64, i64)> = counted.map_err(from_sqlite)?;
        let mut survey = Survey::default();
        for (queue, letters, applied, unidentified, replayed, forgotten, unroutable) in counted {
            survey.applied += applied.unsigned_abs();
            survey.unidentified += unidentified.unsigned_abs();
            survey.replayed_before += replayed.unsigned_abs();
            survey.forgotten += forgotten.unsigned_abs();
            survey.add_queue(queue, letters.unsigned_abs(), unroutable.unsigned_abs());
        }
        // An aggregate may have letters in many queues. Its type is that of the event without the last word.
        let mut select = QueryBuilder::new(
            "SELECT count(*) FROM (SELECT DISTINCT group_id, rtrim(event_type, replace(event_type, '.', '')), aggregate_id \
             FROM dead_letter WHERE aggregate_id IS NOT NULL AND ",
        );
        Where::new(&mut select).filter(filter);
        select.push(")");
        let count = select.build_query_scalar::<i64>().fetch_one(self.readers()).await;
        survey.aggregates = count.map_err(from_sqlite)?.unsigned_abs();
        Ok(survey)
    }

    async fn foremost(&self, filter: &LetterFilter, limit: usize) -> Result<Vec<LetterId>, StoreError> {
        let mut select = QueryBuilder::new("SELECT id FROM dead_letter WHERE ");
        Where::new(&mut select).filter(filter);
        select.push(" ORDER BY first_failed_at, id LIMIT ");
        select.push_bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let ids = select.build_query_scalar::<i64>().fetch_all(self.readers()).await;
        Ok(ids.map_err(from_sqlite)?.into_iter().map(LetterId).collect())
    }

    async fn freeze(
        &self,
        tx: &mut SqliteTx,
        operation: Uuid,
        filter: &LetterFilter,
        limit: Option<u64>,
    ) -> Result<u64, StoreError> {
        let frozen = freeze(tx.connection().await?, operation, filter, limit).await;
        if frozen.is_err() {
            tx.fail();
        }
        frozen
    }

    async fn take_open(&self, tx: &mut SqliteTx, ids: &[LetterId]) -> Result<Vec<StoredLetter>, StoreError> {
        let select = concat!(
            "SELECT ",
            summary!(),
            ", ",
            whole!(),
            " FROM dead_letter WHERE id IN (SELECT value FROM json_each(?)) AND +status = 'open'"
        );
        let numbers: Vec<i64> = ids.iter().map(|id| id.0).collect();
        let query = sqlx::query(select).bind(json!(numbers).to_string());
        // Who has the writer is alone, so what is open now stays so.
        let rows = query.fetch_all(tx.connection().await?).await.map_err(from_sqlite)?;
        let mut letters = rows.iter().map(read_letter).collect::<Result<Vec<_>, _>>()?;
        letters.sort_by_key(|letter| ids.iter().position(|id| *id == letter.summary.id));
        Ok(letters)
    }

    async fn resolve(
        &self,
        tx: &mut SqliteTx,
        operation: Uuid,
        resolved: &[Resolution],
    ) -> Result<(), StoreError> {
        const SQL: &str = "
            UPDATE dead_letter
            SET status = r.status, resolved_at = ?2, operation_id = ?3, replaced_by = r.replaced_by, replay_error = NULL
            FROM (SELECT value ->> 0 AS id, value ->> 1 AS status, value ->> 2 AS replaced_by FROM json_each(?1)) AS r
            WHERE dead_letter.id = r.id";
        // The corrected event takes the place of the head of a key that is parked behind this letter, or behind the one whose replay it was, so
        // that the key waits for it.
        const STEP_IN: &str = "
            UPDATE held_event SET event_id = r.replaced_by
            FROM (SELECT value ->> 0 AS id, value ->> 2 AS replaced_by FROM json_each(?1) WHERE value ->> 3) AS r
            JOIN dead_letter letter ON letter.id = r.id
            WHERE held_event.event_id = letter.event_id AND held_event.consumer_name = letter.consumer_name
                AND held_event.state = 'parked'
                AND (held_event.letter IS NULL OR held_event.letter = letter.key OR letter.replay_of IS NOT NULL)";
        let row = |one: &Resolution| {
            let steps_in = one.keeps_its_place && one.replaced_by.is_some();
            json!([one.letter.0, one.status.as_str(), one.replaced_by, steps_in])
        };
        let rows = json!(resolved.iter().map(row).collect::<Vec<_>>()).to_string();
        let update = sqlx::query(SQL)
            .bind(&rows)
            .bind(self.clock().now().as_microsecond())
            .bind(operation.to_string());
        let mut done = update.execute(tx.connection().await?).await.map_err(from_sqlite);
        if done.is_ok() && resolved.iter().any(|one| one.keeps_its_place) {
            let update = sqlx::query(STEP_IN).bind(&rows);
            done = update.execute(tx.connection().await?).await.map_err(from_sqlite);
        }
        if done.is_err() {
            tx.fail();
        }
        done.map(|_| ())
    }
}

impl Sqlite {
    /// The last letter that one page may look at, where the filter asks for what no index knows.
    async fn scan_bound(&self, filter: &LetterFilter, turn: Turn) -> Result<Option<Cursor>, StoreError> {
        if filter::is_indexed(filter) {
            return Ok(None);
        }
        let mut select = QueryBuilder::new("SELECT dead_at, id FROM dead_letter WHERE ");
        Where::new(&mut select).walked(filter).turn(turn);
        let ascending = matches!(turn, Turn::After(_));
        let direction = if ascending { "dead_at, id" } else { "dead_at DESC, id DESC" };
        select.push(format_args!(" ORDER BY {direction} LIMIT 1 OFFSET {}", SCANNED - 1));
        let place = select.build_query_as().fetch_optional(self.readers()).await;
        let place: Option<(i64, i64)> = place.map_err(from_sqlite)?;
        Ok(place.map(|(dead_at, id)| Cursor { dead_at: time(dead_at), id: LetterId(id) }))
    }
}

async fn freeze(
    connection: &mut SqliteConnection,
    operation: Uuid,
    filter: &LetterFilter,
    limit: Option<u64>,
) -> Result<u64, StoreError> {
    let mut insert = QueryBuilder::new("INSERT INTO operation_item (operation_id, seq, subject) SELECT ");
    insert.push_bind(operation.to_string());
    insert.push(
        ", row_number() OVER (ORDER BY first_failed_at, id), CAST(id AS TEXT) \
         FROM (SELECT first_failed_at, id FROM dead_letter WHERE ",
    );
    Where::new(&mut insert).filter(filter);
    insert.push(" ORDER BY first_failed_at, id LIMIT ");
    // A negative limit is none.
    insert.push_bind(limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(i64::MAX)));
    insert.push(")");
    let items = insert.build().execute(&mut *connection).await.map_err(from_sqlite)?.rows_affected();
    let total = "UPDATE operation SET total = ? WHERE id = ?";
    let update =
        sqlx::query(total).bind(i64::try_from(items).unwrap_or(i64::MAX)).bind(operation.to_string());
    update.execute(connection).await.map_err(from_sqlite)?;
    Ok(items)
}

pub(super) fn read_summary(row: &SqliteRow) -> Result<LetterSummary, StoreError> {
    columns(row).map_err(|error| {
        let text = format!("a dead letter cannot be read back ({error}); it stays in the table dead_letter");
        StoreError::new(StoreErrorKind::Other, text).because(error)
    })
}

fn columns(row: &SqliteRow) -> Result<LetterSummary, Box<dyn std::error::Error + Send + Sync>> {
    let operation: Option<&str> = row.try_get("operation_id")?;
    let status: &str = row.try_get("status")?;
    Ok(LetterSummary {
        id: LetterId(row.try_get("id")?),
        event_id: row.try_get("event_id")?,
        event_type: row.try_get("event_type")?,
        tenant: row.try_get("group_id")?,
        aggregate_id: row.try_get("aggregate_id")?,
        consumer: row.try_get("consumer_name")?,
        queue: row.try_get("queue")?,
        reason: row.try_get("reason")?,
        error: row.try_get("told")?,
        error_class: row.try_get("error_class")?,
        fingerprint: row.try_get("fingerprint")?,
        attempts: row.try_get("attempts")?,
        first_failed_at: time(row.try_get("first_failed_at")?),
        dead_at: time(row.try_get("dead_at")?),
        status: LetterStatus::from_name(status).ok_or_else(|| format!("unknown status {status:?}"))?,
        resolved_at: row.try_get::<Option<i64>, _>("resolved_at")?.map(time),
        operation_id: operation.map(Uuid::parse_str).transpose()?,
        replay_of: row.try_get::<Option<i64>, _>("replay_of")?.map(LetterId),
        replays: row.try_get("replays")?,
        replaced_by: row.try_get("replaced_by")?,
        replay_error: row.try_get("replay_error")?,
        body_bytes: u64::try_from(row.try_get::<i64, _>("bytes")?).unwrap_or(0),
    })
}

fn read_letter(row: &SqliteRow) -> Result<StoredLetter, StoreError> {
    Ok(StoredLetter { summary: read_summary(row)?, letter: read(row)? })
}
