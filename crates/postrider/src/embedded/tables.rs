//! The tables of the broker: the only SQL of the embedded broker.
//!
//! Batches cost a few statements each. Who writes is inside a transaction of the one writer, so that a crash finds a
//! message in its old queues or in its new ones, never in neither.

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqlitePool, SqliteRow};
use sqlx::{AssertSqlSafe, Row as _, Sqlite, SqliteConnection};
use std::sync::Arc;

use super::catalog::QueueId;
use super::codec::{read_head, read_headers, write_head, write_headers};
use super::queue::{Content, Entry, Load};
use super::state::Arrival;
use crate::broker::{Headers, Message};
use crate::sqlite::from_sqlite;
use crate::store::StoreError;
use crate::topology::{ExchangeName, RoutingKey};

/// So many rows go into one statement, or half, or a quarter …: few different statements, all of them prepared.
const ROWS: usize = 64;
/// No more messages are read at a time than this,
const READ_LEN: i64 = 512;
/// nor more once they are this big.
const READ_BYTES: usize = 4 << 20;

/// A message to be stored.
pub(super) struct NewMessage {
    pub(super) row: i64,
    pub(super) content: Arc<Content>,
}

/// A place to be stored.
pub(super) struct NewEntry {
    pub(super) queue: QueueId,
    pub(super) seq: i64,
    pub(super) row: i64,
    pub(super) shared: bool,
    pub(super) expires_at: Option<i64>,
    /// Where a dead letter was published to, and what tells of its deaths.
    pub(super) dead: Option<Arc<NewDeath>>,
}

impl NewEntry {
    /// The row for what is about to arrive.
    pub(super) fn of(arrival: &Arrival, dead: Option<Arc<NewDeath>>) -> Self {
        let Entry { seq, row, shared, expires_at, .. } = arrival.entry;
        Self { queue: arrival.queue, seq, row, shared, expires_at, dead }
    }
}

/// What is different about a message since it was dead-lettered.
pub(super) struct NewDeath {
    pub(super) exchange: ExchangeName,
    pub(super) routing_key: RoutingKey,
    pub(super) told: Headers,
}

/// Stores messages and their places.
pub(super) async fn insert(
    conn: &mut SqliteConnection,
    messages: &[NewMessage],
    entries: &[NewEntry],
) -> Result<(), StoreError> {
    let into = "INSERT INTO broker_message (id, message_id, exchange, routing_key, head, body) VALUES";
    insert_rows(conn, into, "(?,?,?,?,?,?)", messages, |query, new| {
        let Content { message, exchange, routing_key } = &*new.content;
        query
            .bind(new.row)
            .bind(message.properties.message_id.as_deref())
            .bind(exchange.as_str())
            .bind(routing_key.as_str())
            .bind(write_head(&message.properties, &message.headers))
            .bind(&*message.body)
    })
    .await?;
    let (dead, fresh): (Vec<_>, Vec<_>) = entries.iter().partition(|entry| entry.dead.is_some());
    let into = "INSERT INTO broker_entry (queue, seq, message, shared, expires_at) VALUES";
    insert_rows(conn, into, "(?,?,?,?,?)", &fresh, |query, entry| bind_place(query, entry)).await?;
    let into = "INSERT INTO broker_entry \
                (queue, seq, message, shared, expires_at, exchange, routing_key, deaths) VALUES";
    insert_rows(conn, into, "(?,?,?,?,?,?,?,?)", &dead, |query, entry| {
        let death = entry.dead.as_deref();
        bind_place(query, entry)
            .bind(death.map(|death| death.exchange.as_str()))
            .bind(death.map(|death| death.routing_key.as_str()))
            .bind(death.map(|death| write_headers(&death.told)))
    })
    .await
}

type Insert = Query<'static, Sqlite, SqliteArguments>;

fn bind_place(query: Insert, entry: &NewEntry) -> Insert {
    query.bind(entry.queue.0).bind(entry.seq).bind(entry.row).bind(entry.shared).bind(entry.expires_at)
}

async fn insert_rows<T>(
    conn: &mut SqliteConnection,
    into: &str,
    row: &str,
    mut rows: &[T],
    bind: impl Fn(Insert, &T) -> Insert,
) -> Result<(), StoreError> {
    let mut chunk = ROWS;
    while !rows.is_empty() {
        while chunk > rows.len() {
            chunk /= 2;
        }
        let (now, later) = rows.split_at(chunk);
        // Made of constants only.
        let sql = AssertSqlSafe(format!("{into} {row}{}", format!(",{row}").repeat(chunk - 1)));
        let query = now.iter().fold(sqlx::query(sql), &bind);
        query.execute(&mut *conn).await.map_err(from_sqlite)?;
        rows = later;
    }
    Ok(())
}

/// Deletes places, and the messages that are in no place any more.
pub(super) async fn delete(
    conn: &mut SqliteConnection,
    queue: QueueId,
    entries: &[Entry],
) -> Result<(), StoreError> {
    if entries.is_empty() {
        return Ok(());
    }
    let seqs = list(entries.iter().map(|entry| entry.seq));
    let sql = "DELETE FROM broker_entry WHERE queue = ? AND seq IN (SELECT value FROM json_each(?))";
    sqlx::query(sql).bind(queue.0).bind(seqs).execute(&mut *conn).await.map_err(from_sqlite)?;
    let (shared, alone): (Vec<_>, Vec<_>) = entries.iter().partition(|entry| entry.shared);
    if !alone.is_empty() {
        let sql = "DELETE FROM broker_message WHERE id IN (SELECT value FROM json_each(?))";
        let rows = list(alone.iter().map(|entry| entry.row));
        sqlx::query(sql).bind(rows).execute(&mut *conn).await.map_err(from_sqlite)?;
    }
    if !shared.is_empty() {
        let sql = "DELETE FROM broker_message WHERE id IN (SELECT value FROM json_each(?)) AND NOT EXISTS \
                   (SELECT 1 FROM broker_entry WHERE shared = 1 AND message = broker_message.id)";
        let rows = list(shared.iter().map(|entry| entry.row));
        sqlx::query(sql).bind(rows).execute(&mut *conn).await.map_err(from_sqlite)?;
    }
    Ok(())
}

/// Deletes places but not their messages, which get new places in the same transaction. Returns those that were there.
pub(super) async fn vacate(
    conn: &mut SqliteConnection,
    queue: QueueId,
    seqs: impl IntoIterator<Item = i64>,
) -> Result<Vec<i64>, StoreError> {
    let sql =
        "DELETE FROM broker_entry WHERE queue = ? AND seq IN (SELECT value FROM json_each(?)) RETURNING seq";
    sqlx::query_scalar(sql).bind(queue.0).bind(list(seqs)).fetch_all(conn).await.map_err(from_sqlite)
}

/// What was read from a queue.
pub(super) struct ReadRows {
    /// Each place in order; without an entry where the row is damaged.
    pub(super) rows: Vec<(i64, Option<Entry>)>,
    /// Whether there may be more.
    pub(super) more: bool,
}

const READ: &str = "SELECT e.seq, e.message, e.shared, e.expires_at, coalesce(e.exchange, m.exchange) AS exchange, \
     coalesce(e.routing_key, m.routing_key) AS routing_key, e.deaths, m.message_id, m.head, m.body \
     FROM broker_entry e LEFT JOIN broker_message m ON m.id = e.message WHERE e.queue = ? AND";

/// Reads on in a queue, after a place.
pub(super) async fn read_after(
    readers: &SqlitePool,
    queue: QueueId,
    after: i64,
) -> Result<ReadRows, StoreError> {
    let sql = AssertSqlSafe(format!("{READ} e.seq > ? ORDER BY e.seq LIMIT {READ_LEN}"));
    let query = sqlx::query(sql).bind(queue.0).bind(after);
    let mut read = ReadRows { rows: Vec::new(), more: false };
    let mut bytes = 0;
    let mut rows = query.fetch(readers);
    while let Some(row) = rows.try_next().await.map_err(from_sqlite)? {
        let (seq, entry) = read_row(&row).map_err(from_sqlite)?;
        bytes += entry.as_ref().map_or(0, |entry| entry.content.message.body.len());
        read.rows.push((seq, entry));
        read.more = bytes >= READ_BYTES || i64::try_from(read.rows.len()) == Ok(READ_LEN);
        if read.more {
            break;
        }
    }
    Ok(read)
}

/// Reads certain places of a queue.
pub(super) async fn read_at(
    readers: &SqlitePool,
    queue: QueueId,
    seqs: Vec<i64>,
) -> Result<Vec<Entry>, StoreError> {
    let sql = AssertSqlSafe(format!("{READ} e.seq IN (SELECT value FROM json_each(?))"));
    let rows =
        sqlx::query(sql).bind(queue.0).bind(list(seqs)).fetch_all(readers).await.map_err(from_sqlite)?;
    let rows: Vec<_> = rows.iter().map(read_row).collect::<Result<_, _>>().map_err(from_sqlite)?;
    Ok(rows.into_iter().filter_map(|(_, entry)| entry).collect())
}

fn read_row(row: &SqliteRow) -> Result<(i64, Option<Entry>), sqlx::Error> {
    let seq = row.try_get(0)?;
    let place = Entry {
        seq,
        row: row.try_get(1)?,
        shared: row.try_get(2)?,
        expires_at: row.try_get(3)?,
        redelivered: false,
        returned: 0,
        content: Arc::new(match read_content(row)? {
            Some(content) => content,
            None => return Ok((seq, None)),
        }),
    };
    Ok((seq, Some(place)))
}

/// Nothing if it cannot be understood.
fn read_content(row: &SqliteRow) -> Result<Option<Content>, sqlx::Error> {
    let (exchange, routing_key): (Option<&str>, Option<&str>) = (row.try_get(4)?, row.try_get(5)?);
    let (deaths, head): (Option<&[u8]>, Option<&[u8]>) = (row.try_get(6)?, row.try_get(8)?);
    let understood = || {
        let (mut properties, mut headers) = read_head(head?).ok()?;
        if let Some(deaths) = deaths {
            headers.extend(read_headers(deaths).ok()?);
        }
        properties.message_id = row.try_get(7).ok()?;
        let body: Vec<u8> = row.try_get(9).ok()?;
        Some(Content {
            message: Message { properties, headers, body: Bytes::from(body) },
            exchange: ExchangeName::new(exchange?).ok()?,
            routing_key: RoutingKey::new(routing_key?).ok()?,
        })
    };
    Ok(understood())
}

/// How much a queue has after a place.
pub(super) async fn load(
    tables: impl sqlx::SqliteExecutor<'_>,
    queue: QueueId,
    after: i64,
) -> Result<Load, StoreError> {
    let sql = "SELECT count(*), coalesce(sum(length(m.body)), 0) FROM broker_entry e \
               LEFT JOIN broker_message m ON m.id = e.message WHERE e.queue = ? AND e.seq > ?";
    let query = sqlx::query_as(sql).bind(queue.0).bind(after);
    let (messages, bytes): (i64, i64) = query.fetch_one(tables).await.map_err(from_sqlite)?;
    Ok(Load { messages: messages.unsigned_abs(), bytes: bytes.unsigned_abs() })
}

/// How many messages a queue has.
pub(super) async fn count(readers: &SqlitePool, queue: QueueId) -> Result<u64, StoreError> {
    let sql = "SELECT count(*) FROM broker_entry WHERE queue = ?";
    let count: i64 = sqlx::query_scalar(sql).bind(queue.0).fetch_one(readers).await.map_err(from_sqlite)?;
    Ok(count.unsigned_abs())
}

/// Whether the file can be read.
pub(super) async fn ping(readers: &SqlitePool) -> Result<(), StoreError> {
    sqlx::query("SELECT 1").execute(readers).await.map(|_| ()).map_err(from_sqlite)
}

/// The row that was handed out last.
pub(super) async fn last_row(readers: &SqlitePool) -> Result<i64, StoreError> {
    let sql = "SELECT coalesce(max(id), 0) FROM broker_message";
    sqlx::query_scalar(sql).fetch_one(readers).await.map_err(from_sqlite)
}

/// One parameter for many numbers.
fn list(numbers: impl IntoIterator<Item = i64>) -> String {
    let mut text = String::from("[");
    for number in numbers {
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(&number.to_string());
    }
    text.push(']');
    text
}
