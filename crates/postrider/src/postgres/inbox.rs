//! The inbox on PostgreSQL: one INSERT a batch, whose key decides.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::{Postgres, PostgresTx};
use crate::envelope::{EventId, PayloadHash};
use crate::store::{Admission, Arrival, Inbox, Mark, StoreError, StoreErrorKind};
use crate::topology::ConsumerName;

/// Waits for any other transaction that holds a mark of the same event; if that one rolls back, the mark is ours.
const MARK: &str = "INSERT INTO postrider.event_inbox (consumer_name, event_id, group_id, payload_hash) \
     SELECT $1, event_id, group_id, payload_hash \
     FROM UNNEST($2::text[], $3::text[], $4::bytea[]) AS arrival (event_id, group_id, payload_hash) \
     ON CONFLICT (consumer_name, event_id) DO NOTHING RETURNING event_id";

/// The same for events that are all new, at two thirds of the cost of a mark. Says whether they were; if not, nothing is marked.
const MARK_NEW: &str = "SELECT postrider.inbox_mark($1, $2, $3, $4)";

/// From so many on [`MARK_NEW`] is cheaper: it begins a transaction within the transaction.
const MANY: usize = 16;

/// Where one duplicate came others follow, after a consumer died or a replay began: so many batches are taken for mixed ones after it.
const MIXED: u32 = 64;

/// Whether duplicates are to be expected. Only a guess at which statement is cheaper: either is right for every batch.
#[derive(Debug, Default)]
pub(super) struct Mixture(AtomicU32);

impl Mixture {
    fn is_expected(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// A batch came, with duplicates in it or without.
    fn came(&self, mixed: bool) {
        let left = if mixed { MIXED } else { self.0.load(Ordering::Relaxed).saturating_sub(1) };
        self.0.store(left, Ordering::Relaxed);
    }
}

/// A probe of the key for each id. Written as `event_id = ANY($2)`, PostgreSQL reads all of a consumer's marks instead while its statistics
/// know nothing of a new consumer, and keeps to that plan: 20 ms instead of 0.1 for 64 ids among 20,000. So it is planned each
/// time, too.
const KNOWN: &str = "SELECT mark.event_id, mark.payload_hash, mark.group_id, mark.response FROM UNNEST($2::text[]) AS asked (event_id) \
     CROSS JOIN LATERAL (SELECT event_id, payload_hash, group_id, response FROM postrider.event_inbox i \
         WHERE i.consumer_name = $1 AND i.event_id = asked.event_id OFFSET 0) mark";

/// The marks are this transaction's own, so that none moves between the probe and the change.
const ANSWER: &str = "UPDATE postrider.event_inbox SET response = ($3::bytea[])[array_position($2, event_id)] \
     WHERE ctid = ANY (ARRAY(SELECT mark.ctid FROM UNNEST($2::text[]) AS asked (event_id) \
         CROSS JOIN LATERAL (SELECT ctid FROM postrider.event_inbox i \
             WHERE i.consumer_name = $1 AND i.event_id = asked.event_id OFFSET 0) mark))";

/// The server's history changes its number with every failover and every restore to a point in time; a restored dump is another
/// database. A disk that is put back as it was, and commits that a crash undid where nobody waits for the disk, keep the number:
/// but the server was started anew. So every start begins another history, and costs the duplicates of older events a look.
const LINEAGE: &str = "SELECT (SELECT system_identifier FROM pg_control_system())::text || '/' \
     || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) || '/' \
     || (SELECT oid FROM pg_database WHERE datname = current_database())::text || '/' \
     || (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint::text";

/// What was marked before, by id.
type Known = HashMap<String, Mark>;

impl Inbox for Postgres {
    async fn admit(
        &self,
        tx: &mut PostgresTx,
        consumer: &ConsumerName,
        arrivals: &[Arrival],
    ) -> Result<Vec<Admission>, StoreError> {
        let firsts = first_of_each(arrivals);
        let mut fresh: HashMap<String, bool> = match self.mark(tx, consumer, &firsts).await? {
            // Each of them once, and every one new: nobody has to be told apart.
            None if firsts.len() == arrivals.len() => return Ok(vec![Admission::New; arrivals.len()]),
            None => firsts.iter().map(|first| (first.event_id.as_str().to_owned(), true)).collect(),
            Some(rows) => rows.iter().map(|row| (row.get(0), true)).collect(),
        };
        let unmarked: Vec<&str> = firsts
            .iter()
            .map(|first| first.event_id.as_str())
            .filter(|id| !fresh.contains_key(*id))
            .collect();
        let known =
            if unmarked.is_empty() { HashMap::new() } else { self.known(tx, consumer, &unmarked).await? };

        // Each fresh one is admitted once.
        arrivals.iter().map(|arrival| admission(arrival, &mut fresh, &firsts, &known)).collect()
    }

    async fn keep_answers(
        &self,
        tx: &mut PostgresTx,
        consumer: &ConsumerName,
        answers: &[(EventId, Bytes)],
    ) -> Result<(), StoreError> {
        let (ids, bodies): (Vec<&str>, Vec<&[u8]>) =
            answers.iter().map(|(id, body)| (id.as_str(), body.as_ref())).unzip();
        let update = sqlx::query(ANSWER).bind(consumer.as_str()).bind(ids).bind(bodies);
        self.limited("keeping answers in the inbox", update.execute(tx.ours())).await?;
        Ok(())
    }

    async fn lineage(&self) -> Result<String, StoreError> {
        let select = sqlx::query_scalar(LINEAGE).fetch_one(self.pool());
        self.limited("asking which history the server has", select).await
    }

    async fn look(
        &self,
        consumer: &ConsumerName,
        arrivals: &[Arrival],
    ) -> Result<Vec<Admission>, StoreError> {
        let ids: Vec<&str> = arrivals.iter().map(|arrival| arrival.event_id.as_str()).collect();
        let select = sqlx::query(KNOWN).bind(consumer.as_str()).bind(ids).persistent(false);
        let known = read(&self.limited("looking into the inbox", select.fetch_all(self.pool())).await?);
        let judge = |arrival: &Arrival| match known.get(arrival.event_id.as_str()) {
            None => Admission::New,
            Some(mark) => mark.judge(arrival),
        };
        Ok(arrivals.iter().map(judge).collect())
    }
}

impl Postgres {
    /// Marks what is new. Returns the new ones, or nothing if all are.
    async fn mark(
        &self,
        tx: &mut PostgresTx,
        consumer: &ConsumerName,
        firsts: &[&Arrival],
    ) -> Result<Option<Vec<PgRow>>, StoreError> {
        if firsts.is_empty() {
            return Ok(None);
        }
        let ids: Vec<&str> = firsts.iter().map(|first| first.event_id.as_str()).collect();
        let groups: Vec<Option<&str>> =
            firsts.iter().map(|first| first.tenant.as_ref().map(AsRef::as_ref)).collect();
        let hashes: Vec<&[u8]> =
            firsts.iter().map(|first| first.payload_hash.as_bytes().as_slice()).collect();
        let (doing, mixture) = ("marking events in the inbox", &self.inner.mixture);
        if ids.len() >= MANY && !mixture.is_expected() {
            let insert =
                sqlx::query_scalar(MARK_NEW).bind(consumer.as_str()).bind(&ids).bind(&groups).bind(&hashes);
            if self.limited(doing, insert.fetch_one(tx.ours())).await? {
                return Ok(None);
            }
        }
        let insert = sqlx::query(MARK).bind(consumer.as_str()).bind(ids).bind(groups).bind(hashes);
        let rows = self.limited(doing, insert.fetch_all(tx.ours())).await?;
        let all_new = rows.len() == firsts.len();
        mixture.came(!all_new);
        Ok((!all_new).then_some(rows))
    }

    /// What was marked before.
    async fn known(
        &self,
        tx: &mut PostgresTx,
        consumer: &ConsumerName,
        ids: &[&str],
    ) -> Result<Known, StoreError> {
        let select = sqlx::query(KNOWN).bind(consumer.as_str()).bind(ids).persistent(false);
        Ok(read(&self.limited("reading the inbox", select.fetch_all(tx.ours())).await?))
    }
}

fn read(rows: &[PgRow]) -> Known {
    let mark = |row: &PgRow| Mark {
        payload_hash: PayloadHash::from_bytes(row.get(1)),
        tenant: row.get(2),
        answer: row.get::<Option<Vec<u8>>, _>(3).map(Bytes::from),
    };
    rows.iter().map(|row| (row.get(0), mark(row))).collect()
}

/// Each id once, sorted, so that two batches with the same events wait for each other instead of deadlocking.
fn first_of_each(arrivals: &[Arrival]) -> Vec<&Arrival> {
    let mut firsts: Vec<&Arrival> = arrivals.iter().collect();
    firsts.sort_by(|a, b| a.event_id.cmp(&b.event_id));
    firsts.dedup_by(|later, first| later.event_id == first.event_id);
    firsts
}

fn admission(
    arrival: &Arrival,
    fresh: &mut HashMap<String, bool>,
    firsts: &[&Arrival],
    known: &Known,
) -> Result<Admission, StoreError> {
    let id = arrival.event_id.as_str();
    match fresh.get_mut(id) {
        Some(new) if *new => {
            *new = false;
            Ok(Admission::New)
        }
        // The second time in this batch: compare with the first, which has no answer yet.
        Some(_) => {
            let first = firsts.binary_search_by(|first| first.event_id.cmp(&arrival.event_id));
            Ok(first.map_or(Admission::Conflict, |index| Mark::of(firsts[index]).judge(arrival)))
        }
        None => known.get(id).map(|mark| mark.judge(arrival)).ok_or_else(|| {
            // Marked before, and forgotten by retention just now.
            let message = format!("the inbox forgot event {id} while it was asked for it; try again");
            StoreError::new(StoreErrorKind::Contended, message)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_duplicate_some_batches_are_taken_for_mixed_ones() {
        let mixture = Mixture::default();
        assert!(!mixture.is_expected());
        mixture.came(true);
        for _ in 0..MIXED {
            assert!(mixture.is_expected());
            mixture.came(false);
        }
        assert!(!mixture.is_expected());
    }
}
