//! Looking for dead letters on PostgreSQL, and resolving them.

mod filter;
mod groups;

use std::collections::HashMap;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, QueryBuilder, Row as _, Transaction};
use uuid::Uuid;

use self::filter::Where;
use super::dead_letter::{Unreadable, dead_letter, unreadable, whole};
use super::{Postgres, PostgresTx};
use crate::store::{
    Cursor, GroupPage, GroupQuery, LetterFilter, LetterId, LetterPage, LetterQuery, LetterStatus,
    LetterSummary, Resolution, SCANNED, StoreError, StoredLetter, Survey, Triage, Turn,
};

/// What a list shows of a letter. The column `told` is the beginning of its error.
macro_rules! summary {
    () => {
        "id, event_id, event_type, group_id, aggregate_id, consumer_name, queue, reason, left(error, 300) AS told, \
         error_class, fingerprint, attempts, first_failed_at, dead_at, status, resolved_at, operation_id::text AS operation, \
         replay_of, replays, replaced_by, replay_error, octet_length(body) AS bytes"
    };
}
pub(super) use summary;

/// Whether the letter `d` was sent to another queue than its own, where nobody waits for it any more then.
macro_rules! sent_elsewhere {
    () => {
        "(d.status = 'replayed' AND EXISTS (SELECT FROM postrider.operation op WHERE op.id = d.operation_id \
         AND op.plan ->> 'to_queue' <> d.queue))"
    };
}
pub(super) use sent_elsewhere;

/// A page walks the index that has its order, whatever the statistics say. Just after many letters were stored PostgreSQL knows nothing of
/// them, takes them for few, and would rather read and sort every one: two seconds for a million.
const WALK: &str = "BEGIN READ ONLY; SET LOCAL enable_sort = off; SET LOCAL enable_seqscan = off; \
     SET LOCAL enable_bitmapscan = off; SET LOCAL jit = off";

/// Letters that are named are few: they are looked up, and sorted.
const LOOK: &str = "BEGIN READ ONLY";

const ONE: &str = concat!("SELECT ", summary!(), ", ", whole!(), " FROM postrider.dead_letter WHERE id = $1");

/// By their ids, and looked at then. Where the status stands as the indexes of open letters have it, PostgreSQL takes those for small until it has
/// statistics, and reads every open letter there is for each few that are asked for.
const TAKE: &str = concat!(
    "SELECT ",
    summary!(),
    ", ",
    whole!(),
    " FROM postrider.dead_letter WHERE id = ANY($1) AND status || '' = 'open' ORDER BY id FOR UPDATE"
);

const RESOLVE: &str = "UPDATE postrider.dead_letter d SET status = r.status, resolved_at = now(), operation_id = $1::uuid, \
     replaced_by = r.replaced_by, replay_error = NULL \
     FROM UNNEST($2::bigint[], $3::text[], $4::text[]) AS r (id, status, replaced_by) WHERE d.id = r.id";

/// Whether the key of `held` is parked behind the letter `d`: that is the one it names, or what a replay made of that.
macro_rules! parked_behind {
    () => {
        "held.event_id = d.event_id AND held.consumer_name = d.consumer_name AND held.state = 'parked' \
         AND (held.letter IS NULL OR held.letter = d.key OR d.replay_of IS NOT NULL)"
    };
}

/// Whether a key is parked behind one of these letters. Asked first: who edits may change held events only where there is something to change.
const PARKED: &str = concat!(
    "SELECT EXISTS (SELECT FROM UNNEST($1::bigint[]) AS r (id) JOIN postrider.dead_letter d ON d.id = r.id \
     JOIN postrider.held_event held ON ",
    parked_behind!(),
    ")"
);

/// The corrected event takes the place of the head, so that its key waits for it.
const STEP_IN: &str = concat!(
    "UPDATE postrider.held_event held SET event_id = r.replaced_by \
     FROM UNNEST($1::bigint[], $2::text[]) AS r (id, replaced_by) JOIN postrider.dead_letter d ON d.id = r.id WHERE ",
    parked_behind!()
);

impl Triage for Postgres {
    async fn letters(&self, query: &LetterQuery) -> Result<LetterPage, StoreError> {
        let mut tx = self.reading(&query.filter).await?;
        let bound = self.scan_bound(&mut tx, &query.filter, query.turn).await?;
        let mut select =
            QueryBuilder::new(concat!("SELECT ", summary!(), " FROM postrider.dead_letter WHERE "));
        Where::new(&mut select).filter(&query.filter).turn(query.turn).not_beyond(query.turn, bound);
        let direction = if matches!(query.turn, Turn::After(_)) { "ASC" } else { "DESC" };
        select.push(format_args!(" ORDER BY dead_at {direction}, id {direction} LIMIT "));
        select.push_bind(i64::try_from(query.limit).unwrap_or(i64::MAX));
        let rows = self.limited("listing dead letters", select.build().fetch_all(&mut *tx)).await?;
        let mut letters = rows.iter().map(read_summary).collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
        let full = letters.len() >= query.limit;
        let last = letters.last().map(LetterSummary::cursor);
        letters.reverse_if(direction == "ASC");
        Ok(LetterPage {
            letters,
            next: if full { last } else { bound },
            stopped_at: bound.filter(|_| !full).map(|bound| bound.dead_at),
        })
    }

    async fn letter(&self, id: LetterId) -> Result<Option<StoredLetter>, StoreError> {
        let select = sqlx::query(ONE).bind(id.0).fetch_optional(self.pool());
        let row = self.limited("reading a dead letter", select).await?;
        row.as_ref().map(read_letter).transpose().map_err(unreadable)
    }

    async fn groups(&self, query: &GroupQuery) -> Result<GroupPage, StoreError> {
        self.group_page(query).await
    }

    async fn survey(&self, filter: &LetterFilter) -> Result<Survey, StoreError> {
        let mut select = QueryBuilder::new(
            "SELECT queue, count(*), count(*) FILTER (WHERE EXISTS (SELECT FROM postrider.event_inbox i \
                 WHERE i.consumer_name = d.consumer_name AND i.event_id = d.event_id)), \
             count(*) FILTER (WHERE event_id IS NULL), count(*) FILTER (WHERE replays > 0), \
             count(*) FILTER (WHERE first_failed_at < (SELECT forgotten_before FROM postrider.inbox_memory m \
                 WHERE m.consumer_name = d.consumer_name)), count(*) FILTER (WHERE reason = 'unroutable') \
             FROM postrider.dead_letter d WHERE ",
        );
        Where::new(&mut select).filter(filter);
        select.push(" GROUP BY queue ORDER BY queue");
        let rows = self.limited("counting dead letters", select.build().fetch_all(self.pool())).await?;
        let mut survey = Survey::default();
        for row in &rows {
            let count = |column: usize| row.try_get::<i64, _>(column).map_or(0, i64::unsigned_abs);
            survey.applied += count(2);
            survey.unidentified += count(3);
            survey.replayed_before += count(4);
            survey.forgotten += count(5);
            survey.add_queue(row.try_get(0).unwrap_or_default(), count(1), count(6));
        }
        // An aggregate may have letters in many queues. Its type is that of the event without the last word.
        let mut select = QueryBuilder::new(
            "SELECT count(*) FROM (SELECT DISTINCT group_id, rtrim(event_type, replace(event_type, '.', '')), aggregate_id \
             FROM postrider.dead_letter WHERE aggregate_id IS NOT NULL AND ",
        );
        Where::new(&mut select).filter(filter);
        select.push(") AS aggregate");
        let count = select.build_query_scalar::<i64>().fetch_one(self.pool());
        survey.aggregates = self.limited("counting aggregates of dead letters", count).await?.unsigned_abs();
        Ok(survey)
    }

    async fn foremost(&self, filter: &LetterFilter, limit: usize) -> Result<Vec<LetterId>, StoreError> {
        let mut select = QueryBuilder::new("SELECT id FROM postrider.dead_letter WHERE ");
        Where::new(&mut select).filter(filter);
        select.push(" ORDER BY first_failed_at, id LIMIT ");
        select.push_bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let ids = select.build_query_scalar::<i64>().fetch_all(self.pool());
        Ok(self.limited("looking for dead letters", ids).await?.into_iter().map(LetterId).collect())
    }

    async fn freeze(
        &self,
        tx: &mut PostgresTx,
        operation: Uuid,
        filter: &LetterFilter,
        limit: Option<u64>,
    ) -> Result<u64, StoreError> {
        let mut insert = QueryBuilder::new(
            "WITH items AS (INSERT INTO postrider.operation_item (operation_id, seq, subject) SELECT ",
        );
        insert.push_bind(operation.to_string());
        insert.push(
            "::uuid, row_number() OVER (ORDER BY first_failed_at, id), id::text \
             FROM (SELECT first_failed_at, id FROM postrider.dead_letter d WHERE ",
        );
        Where::new(&mut insert).filter(filter);
        insert.push(" ORDER BY first_failed_at, id LIMIT ");
        insert.push_bind(limit.map(|limit| i64::try_from(limit).unwrap_or(i64::MAX)));
        insert.push(
            ") matching RETURNING seq) UPDATE postrider.operation SET total = (SELECT count(*) FROM items) WHERE id = ",
        );
        insert.push_bind(operation.to_string());
        insert.push("::uuid RETURNING total");
        let frozen = insert.build_query_scalar::<i64>().fetch_one(tx.ours());
        Ok(self.limited("freezing a plan", frozen).await?.unsigned_abs())
    }

    async fn take_open(
        &self,
        tx: &mut PostgresTx,
        ids: &[LetterId],
    ) -> Result<Vec<StoredLetter>, StoreError> {
        let numbers: Vec<i64> = ids.iter().map(|id| id.0).collect();
        let select = sqlx::query(TAKE).bind(numbers).fetch_all(tx.ours());
        let rows = self.limited("taking dead letters", select).await?;
        let mut letters = rows.iter().map(read_letter).collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
        let places: HashMap<LetterId, usize> = ids.iter().copied().zip(0..).collect();
        letters.sort_by_key(|letter| places.get(&letter.summary.id));
        Ok(letters)
    }

    async fn resolve(
        &self,
        tx: &mut PostgresTx,
        operation: Uuid,
        resolved: &[Resolution],
    ) -> Result<(), StoreError> {
        let update = sqlx::query(RESOLVE)
            .bind(operation.to_string())
            .bind(resolved.iter().map(|one| one.letter.0).collect::<Vec<_>>())
            .bind(resolved.iter().map(|one| one.status.as_str()).collect::<Vec<_>>())
            .bind(
                resolved
                    .iter()
                    .map(|one| one.replaced_by.as_ref().map(AsRef::<str>::as_ref))
                    .collect::<Vec<_>>(),
            );
        self.limited("resolving dead letters", update.execute(tx.ours())).await?;
        let step_in = resolved.iter().filter(|one| one.keeps_its_place);
        let (letters, events): (Vec<i64>, Vec<&str>) =
            step_in.filter_map(|one| Some((one.letter.0, one.replaced_by.as_ref()?.as_str()))).unzip();
        let parked = sqlx::query_scalar::<_, bool>(PARKED).bind(&letters);
        if !letters.is_empty() && self.limited("resolving dead letters", parked.fetch_one(tx.ours())).await? {
            let update = sqlx::query(STEP_IN).bind(&letters).bind(events);
            self.limited("resolving dead letters", update.execute(tx.ours())).await?;
        }
        Ok(())
    }
}

impl Postgres {
    /// A transaction for listing what a filter matches.
    async fn reading(
        &self,
        filter: &LetterFilter,
    ) -> Result<Transaction<'static, sqlx::Postgres>, StoreError> {
        let how = if filter::is_named(filter) { LOOK } else { WALK };
        self.limited("listing dead letters", self.transaction(how)).await
    }

    /// The last letter that one page may look at, where the filter asks for what no index knows.
    async fn scan_bound(
        &self,
        tx: &mut PgConnection,
        filter: &LetterFilter,
        turn: Turn,
    ) -> Result<Option<Cursor>, StoreError> {
        if filter::is_indexed(filter) {
            return Ok(None);
        }
        let mut select = QueryBuilder::new("SELECT dead_at, id FROM postrider.dead_letter WHERE ");
        Where::new(&mut select).walked(filter).turn(turn);
        let direction = if matches!(turn, Turn::After(_)) { "ASC" } else { "DESC" };
        select.push(format_args!(
            " ORDER BY dead_at {direction}, id {direction} OFFSET {} LIMIT 1",
            SCANNED - 1
        ));
        let row = self.limited("listing dead letters", select.build().fetch_optional(tx)).await?;
        let read = |row: PgRow| -> Result<Cursor, sqlx::Error> {
            let dead_at = row.try_get::<jiff_sqlx::Timestamp, _>(0)?.to_jiff();
            Ok(Cursor { dead_at, id: LetterId(row.try_get(1)?) })
        };
        row.map(read).transpose().map_err(|cause| unreadable(cause.into()))
    }
}

pub(super) fn read_summary(row: &PgRow) -> Result<LetterSummary, Unreadable> {
    let text = |column: &str| row.try_get::<String, _>(column);
    let maybe = |column: &str| row.try_get::<Option<String>, _>(column);
    let time = |column: &str| Ok::<_, sqlx::Error>(row.try_get::<jiff_sqlx::Timestamp, _>(column)?.to_jiff());
    let resolved: Option<jiff_sqlx::Timestamp> = row.try_get("resolved_at")?;
    let status: &str = row.try_get("status")?;
    Ok(LetterSummary {
        id: LetterId(row.try_get("id")?),
        event_id: maybe("event_id")?,
        event_type: maybe("event_type")?,
        tenant: maybe("group_id")?,
        aggregate_id: maybe("aggregate_id")?,
        consumer: maybe("consumer_name")?,
        queue: text("queue")?,
        reason: text("reason")?,
        error: text("told")?,
        error_class: maybe("error_class")?,
        fingerprint: text("fingerprint")?,
        attempts: u32::try_from(row.try_get::<i32, _>("attempts")?)?,
        first_failed_at: time("first_failed_at")?,
        dead_at: time("dead_at")?,
        status: LetterStatus::from_name(status).ok_or_else(|| format!("unknown status {status:?}"))?,
        resolved_at: resolved.map(jiff_sqlx::Timestamp::to_jiff),
        operation_id: maybe("operation")?.map(|id| Uuid::parse_str(&id)).transpose()?,
        replay_of: row.try_get::<Option<i64>, _>("replay_of")?.map(LetterId),
        replays: u32::try_from(row.try_get::<i32, _>("replays")?).unwrap_or(0),
        replaced_by: maybe("replaced_by")?,
        replay_error: maybe("replay_error")?,
        body_bytes: u64::try_from(row.try_get::<i32, _>("bytes")?).unwrap_or(0),
    })
}

fn read_letter(row: &PgRow) -> Result<StoredLetter, Unreadable> {
    Ok(StoredLetter { summary: read_summary(row)?, letter: dead_letter(row)? })
}

/// Pages are shown newest first, whichever way they were read.
trait ReverseIf {
    fn reverse_if(&mut self, so: bool);
}

impl<T> ReverseIf for Vec<T> {
    fn reverse_if(&mut self, so: bool) {
        if so {
            self.reverse();
        }
    }
}
