//! The inbox on SQLite: who has the writer is alone, so looking and marking need no lock between them.
//!
//! A transaction that has written nothing yet only looks; its marks are written when it opens, at its first write or at its
//! commit, so that a handler keeps nobody waiting while it thinks. If the same event was applied meanwhile, that fails,
//! and the next attempt finds a duplicate.

use std::collections::HashMap;
use std::sync::LazyLock;

use bytes::Bytes;
use sqlx::{Arguments as _, SqliteConnection};

use super::bulk::Insert;
use super::error::from_sqlite;
use super::{Sqlite, SqliteTx};
use crate::envelope::{EventId, PayloadHash};
use crate::store::{Admission, Arrival, Inbox, Mark, StoreError};
use crate::topology::ConsumerName;

impl Inbox for Sqlite {
    async fn admit(
        &self,
        tx: &mut SqliteTx,
        consumer: &ConsumerName,
        arrivals: &[Arrival],
    ) -> Result<Vec<Admission>, StoreError> {
        if !tx.is_open() {
            let mut reader = self.readers().acquire().await.map_err(from_sqlite)?;
            let known = known(&mut reader, consumer, arrivals).await?;
            let (admissions, new) = judge(known, arrivals);
            tx.mark_later(Marks::new(consumer, new));
            return Ok(admissions);
        }
        let now = self.clock().now().as_microsecond();
        let connection = tx.connection().await?;
        let admitted = match arrivals {
            [] => Ok(Vec::new()),
            [arrival] => admit_one(connection, consumer, arrival, now).await.map(|admission| vec![admission]),
            _ => admit_many(connection, consumer, arrivals, now).await,
        };
        if admitted.is_err() {
            tx.fail();
        }
        admitted
    }

    async fn keep_answers(
        &self,
        tx: &mut SqliteTx,
        consumer: &ConsumerName,
        answers: &[(EventId, Bytes)],
    ) -> Result<(), StoreError> {
        let update = "UPDATE event_inbox SET response = ? WHERE consumer_name = ? AND event_id = ?";
        for (id, body) in answers {
            tx.execute(sqlx::query(update).bind(body.to_vec()).bind(consumer.as_str()).bind(id.as_str()))
                .await?;
        }
        Ok(())
    }

    async fn lineage(&self) -> Result<String, StoreError> {
        let select = sqlx::query_scalar("SELECT id FROM lineage").fetch_one(self.readers());
        select.await.map_err(from_sqlite)
    }

    async fn look(
        &self,
        consumer: &ConsumerName,
        arrivals: &[Arrival],
    ) -> Result<Vec<Admission>, StoreError> {
        let mut reader = self.readers().acquire().await.map_err(from_sqlite)?;
        let known = known(&mut reader, consumer, arrivals).await?;
        let judge = |arrival: &Arrival| match known.get(arrival.event_id.as_str()) {
            None => Admission::New,
            Some(mark) => mark.judge(arrival),
        };
        Ok(arrivals.iter().map(judge).collect())
    }
}

/// Marks that are still to be written.
pub(super) struct Marks {
    consumer: ConsumerName,
    arrivals: Vec<Arrival>,
}

impl Marks {
    fn new(consumer: &ConsumerName, new: Vec<&Arrival>) -> Self {
        Self { consumer: consumer.clone(), arrivals: new.into_iter().cloned().collect() }
    }

    /// Writes them. Fails if one is there by now: its event was applied by somebody else.
    pub(super) async fn write(self, connection: &mut SqliteConnection, now: i64) -> Result<(), StoreError> {
        mark(connection, &self.consumer, self.arrivals.iter().collect(), now).await
    }
}

/// One trip for a new event, two for a known one.
async fn admit_one(
    connection: &mut SqliteConnection,
    consumer: &ConsumerName,
    arrival: &Arrival,
    now: i64,
) -> Result<Admission, StoreError> {
    let mark = "INSERT INTO event_inbox (consumer_name, event_id, group_id, payload_hash, processed_at) \
                VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING";
    let marked = sqlx::query(mark)
        .bind(consumer.as_str())
        .bind(arrival.event_id.as_str())
        .bind(arrival.tenant.as_ref().map(AsRef::<str>::as_ref))
        .bind(arrival.payload_hash.as_bytes().as_slice())
        .bind(now)
        .execute(&mut *connection)
        .await
        .map_err(from_sqlite)?;
    if marked.rows_affected() == 1 {
        return Ok(Admission::New);
    }
    let known = known(connection, consumer, std::slice::from_ref(arrival)).await?;
    Ok(known.get(arrival.event_id.as_str()).map_or(Admission::Conflict, |mark| mark.judge(arrival)))
}

/// One look at all of them, which seldom finds any, and a statement for every 64 new ones.
async fn admit_many(
    connection: &mut SqliteConnection,
    consumer: &ConsumerName,
    arrivals: &[Arrival],
    now: i64,
) -> Result<Vec<Admission>, StoreError> {
    let (admissions, new) = judge(known(connection, consumer, arrivals).await?, arrivals);
    mark(connection, consumer, new, now).await?;
    Ok(admissions)
}

/// Marks them all. Fails if the inbox has one of them.
async fn mark(
    connection: &mut SqliteConnection,
    consumer: &ConsumerName,
    arrivals: Vec<&Arrival>,
    now: i64,
) -> Result<(), StoreError> {
    static MARK: LazyLock<Insert> = LazyLock::new(|| {
        let head =
            "INSERT INTO event_inbox (consumer_name, event_id, group_id, payload_hash, processed_at) VALUES";
        Insert::new(head, 5)
    });
    let mark = MARK.execute(connection, arrivals, |arrival, row| {
        row.add(consumer.as_str().to_owned())?;
        row.add(arrival.event_id.as_str().to_owned())?;
        row.add(arrival.tenant.as_ref().map(|tenant| tenant.as_str().to_owned()))?;
        row.add(arrival.payload_hash.as_bytes().to_vec())?;
        row.add(now)
    });
    mark.await
}

/// What each arrival is, and those that are new. The second of two with the same id is judged by the first.
fn judge(mut known: HashMap<String, Mark>, arrivals: &[Arrival]) -> (Vec<Admission>, Vec<&Arrival>) {
    let (mut admissions, mut new) = (Vec::with_capacity(arrivals.len()), Vec::new());
    for arrival in arrivals {
        let id = arrival.event_id.as_str();
        if let Some(before) = known.get(id) {
            admissions.push(before.judge(arrival));
        } else {
            known.insert(id.to_owned(), Mark::of(arrival));
            new.push(arrival);
            admissions.push(Admission::New);
        }
    }
    (admissions, new)
}

/// A mark's event, hash, tenant and answer.
type MarkRow = (String, Vec<u8>, Option<String>, Option<Vec<u8>>);

/// What the inbox has of these, by id.
async fn known(
    connection: &mut SqliteConnection,
    consumer: &ConsumerName,
    arrivals: &[Arrival],
) -> Result<HashMap<String, Mark>, StoreError> {
    let ids: Vec<&str> = arrivals.iter().map(|arrival| arrival.event_id.as_str()).collect();
    let select = "SELECT event_id, payload_hash, group_id, response FROM event_inbox \
                  WHERE consumer_name = ? AND event_id IN (SELECT value FROM json_each(?))";
    let rows: Vec<MarkRow> = sqlx::query_as(select)
        .bind(consumer.as_str())
        .bind(serde_json::json!(ids).to_string())
        .fetch_all(connection)
        .await
        .map_err(from_sqlite)?;
    let marks = rows.into_iter().map(|(id, hash, tenant, answer)| {
        let payload_hash = PayloadHash::from_bytes(&hash);
        (id, Mark { payload_hash, tenant, answer: answer.map(Bytes::from) })
    });
    Ok(marks.collect())
}
