//! The inbox on PostgreSQL: one INSERT a batch, whose key decides.

use std::collections::HashMap;

use sqlx::Row as _;

use super::{Postgres, PostgresTx};
use crate::envelope::PayloadHash;
use crate::store::{Admission, Arrival, Inbox, StoreError, StoreErrorKind};
use crate::topology::ConsumerName;

/// Waits for any other transaction that holds a mark of the same event; if that one rolls back, the mark is ours.
const MARK: &str = "INSERT INTO postrider.event_inbox (consumer_name, event_id, group_id, payload_hash) \
     SELECT $1, event_id, group_id, payload_hash \
     FROM UNNEST($2::text[], $3::text[], $4::bytea[]) AS arrival (event_id, group_id, payload_hash) \
     ON CONFLICT (consumer_name, event_id) DO NOTHING RETURNING event_id";

const KNOWN: &str = "SELECT event_id, payload_hash FROM postrider.event_inbox \
     WHERE consumer_name = $1 AND event_id = ANY($2)";

impl Inbox for Postgres {
    async fn admit(
        &self,
        tx: &mut PostgresTx,
        consumer: &ConsumerName,
        arrivals: &[Arrival],
    ) -> Result<Vec<Admission>, StoreError> {
        let firsts = first_of_each(arrivals);
        let marked = self.mark(tx, consumer, &firsts).await?;
        let unmarked: Vec<&str> = firsts
            .iter()
            .map(|first| first.event_id.as_str())
            .filter(|id| !marked.contains_key(*id))
            .collect();
        let known =
            if unmarked.is_empty() { HashMap::new() } else { self.known(tx, consumer, &unmarked).await? };

        let mut fresh = marked;
        arrivals.iter().map(|arrival| admission(arrival, &mut fresh, &firsts, &known)).collect()
    }

    async fn look(
        &self,
        consumer: &ConsumerName,
        arrivals: &[Arrival],
    ) -> Result<Vec<Admission>, StoreError> {
        let ids: Vec<&str> = arrivals.iter().map(|arrival| arrival.event_id.as_str()).collect();
        let select = sqlx::query(KNOWN).bind(consumer.as_str()).bind(ids);
        let rows = self.limited("looking into the inbox", select.fetch_all(self.pool())).await?;
        let known: HashMap<String, Option<PayloadHash>> =
            rows.iter().map(|row| (row.get(0), PayloadHash::from_bytes(row.get(1)))).collect();
        let judge = |arrival: &Arrival| match known.get(arrival.event_id.as_str()) {
            None => Admission::New,
            Some(hash) if *hash == Some(arrival.payload_hash) => Admission::Duplicate,
            Some(_) => Admission::Conflict,
        };
        Ok(arrivals.iter().map(judge).collect())
    }
}

impl Postgres {
    /// Marks what is new. Returns the new ones, each to be admitted once.
    async fn mark(
        &self,
        tx: &mut PostgresTx,
        consumer: &ConsumerName,
        firsts: &[&Arrival],
    ) -> Result<HashMap<String, bool>, StoreError> {
        if firsts.is_empty() {
            return Ok(HashMap::new());
        }
        let ids: Vec<&str> = firsts.iter().map(|first| first.event_id.as_str()).collect();
        let groups: Vec<Option<&str>> =
            firsts.iter().map(|first| first.tenant.as_ref().map(AsRef::as_ref)).collect();
        let hashes: Vec<&[u8]> =
            firsts.iter().map(|first| first.payload_hash.as_bytes().as_slice()).collect();
        let insert = sqlx::query(MARK).bind(consumer.as_str()).bind(ids).bind(groups).bind(hashes);
        let rows = self.limited("marking events in the inbox", insert.fetch_all(tx.ours())).await?;
        Ok(rows.iter().map(|row| (row.get(0), true)).collect())
    }

    /// What was marked before, with its hash.
    async fn known(
        &self,
        tx: &mut PostgresTx,
        consumer: &ConsumerName,
        ids: &[&str],
    ) -> Result<HashMap<String, Option<PayloadHash>>, StoreError> {
        let select = sqlx::query(KNOWN).bind(consumer.as_str()).bind(ids);
        let rows = self.limited("reading the inbox", select.fetch_all(tx.ours())).await?;
        Ok(rows.iter().map(|row| (row.get(0), PayloadHash::from_bytes(row.get(1)))).collect())
    }
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
    known: &HashMap<String, Option<PayloadHash>>,
) -> Result<Admission, StoreError> {
    let id = arrival.event_id.as_str();
    let before = match fresh.get_mut(id) {
        Some(new) if *new => {
            *new = false;
            return Ok(Admission::New);
        }
        // The second time in this batch: compare with the first.
        Some(_) => firsts
            .binary_search_by(|first| first.event_id.cmp(&arrival.event_id))
            .ok()
            .map(|index| firsts[index].payload_hash),
        None => *known.get(id).ok_or_else(|| {
            // Marked before, and forgotten by retention just now.
            let message = format!("the inbox forgot event {id} while it was asked for it; try again");
            StoreError::new(StoreErrorKind::Contended, message)
        })?,
    };
    Ok(if before == Some(arrival.payload_hash) { Admission::Duplicate } else { Admission::Conflict })
}
