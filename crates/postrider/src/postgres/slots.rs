//! Leases of slots: which relay publishes which keys.
//!
//! A crash here is harmless: each statement is a transaction of its own, and what a dead relay holds is free once its lease
//! has ended by the database's clock. A relay that gives a slot back may still have rows of it in hand: the next owner
//! publishes them again, in their order, and the inbox knows them.

use std::time::Duration;

use super::Postgres;
use crate::store::{RelayId, SlotLease, StoreError};

/// Says that this relay lives, renews what it holds up to its fair share, and gives the rest back.
/// The fair share is the slots divided by the relays that live, rounded up; all of them for a relay that streams, and none
/// for those beside it.
pub(super) const RENEW: &str = "WITH seen AS ( \
         INSERT INTO postrider.outbox_relay (outbox, relay, seen_until) VALUES ({name}, $1, now() + $2) \
         ON CONFLICT (outbox, relay) DO UPDATE SET seen_until = EXCLUDED.seen_until \
     ), streams AS ( \
         UPDATE postrider.outbox SET streamer_until = now() + $2 WHERE name = {name} AND streamer = $1 RETURNING name \
     ), share AS ( \
         SELECT CASE WHEN EXISTS (SELECT FROM streams) THEN 64 \
             WHEN EXISTS (SELECT FROM postrider.outbox o \
                 WHERE o.name = {name} AND o.streamer <> $1 AND o.streamer_until > now()) THEN 0 \
             ELSE ceil(64.0 / (1 + count(*)))::bigint END AS slots FROM postrider.outbox_relay \
         WHERE outbox = {name} AND relay <> $1 AND seen_until > now() \
     ), held AS ( \
         SELECT slot FROM postrider.outbox_slot WHERE outbox = {name} AND owner = $1 ORDER BY slot FOR UPDATE \
     ), ranked AS ( \
         SELECT slot, row_number() OVER (ORDER BY slot) <= share.slots AS keep FROM held, share \
     ), renewed AS ( \
         UPDATE postrider.outbox_slot s SET owner = CASE WHEN keep THEN owner END, \
             lease_until = CASE WHEN keep THEN now() + $2 END \
         FROM ranked WHERE s.outbox = {name} AND s.slot = ranked.slot RETURNING keep \
     ) \
     SELECT (SELECT count(*) FROM renewed WHERE keep), (SELECT slots FROM share)";

/// Takes so many slots that are free or whose lease has ended. Two relays never wait for each other here.
pub(super) const TAKE: &str = "WITH free AS MATERIALIZED ( \
         SELECT slot FROM postrider.outbox_slot WHERE outbox = {name} AND (owner IS NULL OR lease_until <= now()) \
         ORDER BY slot LIMIT $3 FOR UPDATE SKIP LOCKED \
     ) \
     UPDATE postrider.outbox_slot s SET owner = $1, lease_until = now() + $2, epoch = epoch + 1 \
     FROM free WHERE s.outbox = {name} AND s.slot = free.slot";

/// What it holds now.
pub(super) const HELD: &str = "SELECT slot, epoch FROM postrider.outbox_slot \
     WHERE outbox = {name} AND owner = $1 AND lease_until > now()";

/// Relays that were not seen for this long are forgotten.
const FORGET: &str = "DELETE FROM postrider.outbox_relay WHERE seen_until < now() - interval '1 hour'";

impl Postgres {
    pub(super) async fn lease_slots(
        &self,
        relay: &RelayId,
        lease: Duration,
    ) -> Result<Vec<SlotLease>, StoreError> {
        let statements = &self.statements;
        self.limited("leasing slots of the outbox", async {
            let mut connection = self.relays().acquire().await?;
            let (held, share): (i64, i64) = sqlx::query_as(statements.renew.sql())
                .bind(relay.as_str())
                .bind(lease)
                .fetch_one(&mut *connection)
                .await?;
            if held < share {
                let take = sqlx::query(statements.take.sql()).bind(relay.as_str()).bind(lease);
                if take.bind(share - held).execute(&mut *connection).await?.rows_affected() > 0 {
                    sqlx::query(FORGET).execute(&mut *connection).await?;
                }
            }
            let held: Vec<(i16, i64)> = sqlx::query_as(statements.held.sql())
                .bind(relay.as_str())
                .fetch_all(&mut *connection)
                .await?;
            Ok(held.into_iter().map(|(slot, epoch)| SlotLease { slot, epoch }).collect())
        })
        .await
    }

    pub(super) async fn release_slots(&self, relay: &RelayId) -> Result<(), StoreError> {
        let name = self.table.to_string();
        self.limited("giving slots of the outbox back", async {
            let mut connection = self.relays().acquire().await?;
            let give_back = "UPDATE postrider.outbox_slot SET owner = NULL, lease_until = NULL \
                             WHERE outbox = $1 AND owner = $2";
            sqlx::query(give_back).bind(&name).bind(relay.as_str()).execute(&mut *connection).await?;
            sqlx::query(super::stream::CLOSE)
                .bind(&name)
                .bind(relay.as_str())
                .execute(&mut *connection)
                .await?;
            sqlx::query("DELETE FROM postrider.outbox_relay WHERE outbox = $1 AND relay = $2")
                .bind(&name)
                .bind(relay.as_str())
                .execute(&mut *connection)
                .await?;
            Ok(())
        })
        .await
    }
}
