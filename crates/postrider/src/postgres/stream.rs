//! The outbox's inserts as PostgreSQL's log tells them: logical replication by pgoutput, through the partition root.
//!
//! The replication slot is temporary: it ends with its connection, whatever ends that. So a relay that is gone keeps no log on
//! the server, and after a failover there is no slot to miss. Nothing depends on where a stream was: the table knows what
//! is not published, so a new stream begins after the poller has drained it.

mod decode;
mod door;
mod publication;

#[cfg(any(test, fuzzing))]
pub(crate) use decode::told_by_the_log;
pub(super) use door::Door;
use door::NotOpen;

use std::time::Duration;

use async_trait::async_trait;
use sqlx::Row as _;

use self::decode::{Decoder, Told};
use self::publication::TELLS;
use super::Postgres;
use super::error::failed;
use super::replication::{Heard, Reader, Trouble};
use crate::envelope::OrderingKey;
use crate::store::{
    LogPosition, Opening, RelayId, RowStream, StoreError, StoreErrorKind, StreamLimit, StreamState, Streamed,
};

/// Older servers cannot send what we read.
const OLDEST_SERVER: i32 = 140_000;

/// What streaming needs, in one look.
const MEANS: &str = "SELECT current_setting('wal_level'), \
     current_setting('synchronous_standby_names') <> '' \
         AND COALESCE(current_setting('synchronized_standby_slots', true), '') = '', \
     current_setting('server_version_num')::int, \
     (SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user) \
         OR EXISTS (SELECT FROM pg_roles r WHERE r.rolname = 'rds_replication' AND pg_has_role(r.oid, 'member')), \
     (SELECT count(*) FROM pg_replication_slots) < current_setting('max_replication_slots')::int, \
     (SELECT count(*) FROM pg_stat_replication) < current_setting('max_wal_senders')::int, \
     {tells}, \
     COALESCE((SELECT streamer <> $1 AND streamer_until > now() FROM postrider.outbox WHERE name = $3), false), \
     current_user::text";

/// One relay at a time.
const TAKE: &str = "UPDATE postrider.outbox SET streamer = $2, streamer_until = now() + $3, stream_slot = $4 \
     WHERE name = $1 AND (streamer IS NULL OR streamer = $2 OR streamer_until <= now())";

pub(super) const CLOSE: &str = "UPDATE postrider.outbox SET streamer = NULL, streamer_until = NULL, stream_slot = NULL \
     WHERE name = $1 AND streamer = $2";

const STATE: &str = "SELECT o.streamer, (pg_current_wal_lsn() - LEAST(s.restart_lsn, s.confirmed_flush_lsn))::bigint, \
         (pg_current_wal_lsn() - s.confirmed_flush_lsn)::bigint, {tells} \
     FROM postrider.outbox o JOIN pg_replication_slots s ON s.slot_name = o.stream_slot \
     WHERE o.name = $1 AND o.streamer_until > now() AND s.active AND s.confirmed_flush_lsn IS NOT NULL";

const FAILING: &str =
    "SELECT DISTINCT key FROM {outbox} WHERE status IN ('failed', 'dead') AND key IS NOT NULL";

impl Postgres {
    pub(super) async fn open_row_stream(
        &self,
        relay: &RelayId,
        lease: Duration,
    ) -> Result<Opening, StoreError> {
        let (name, publication) = (self.table.to_string(), door::publication(&self.table));
        let means = self.table.statement(&MEANS.replace("{tells}", TELLS));
        let look = sqlx::query(means.sql()).bind(relay.as_str()).bind(&publication).bind(&name);
        let means = self.limited("asking for the means to stream", look.fetch_one(self.relays())).await?;
        let means = Means::read(&means).map_err(|cause| self.unreadable(cause))?;
        if means.elsewhere {
            return Ok(Opening::Elsewhere);
        }
        if let Some(missing) = means.missing() {
            return Ok(Opening::Impossible(missing));
        }
        if !means.published
            && let Some(missing) = self.publish_table().await?
        {
            return Ok(Opening::Impossible(missing));
        }
        let slot = door::slot(&self.table, self.clock());
        let reader = match self.inner.door.open(&slot, &publication, self.clock().clone()).await {
            Ok(reader) => reader,
            Err(NotOpen::Slot) => {
                return Ok(Opening::Impossible(
                    "a transaction that writes has been open for ten minutes, and a stream can begin only after it"
                        .to_owned(),
                ));
            }
            Err(NotOpen::Trouble(trouble)) if trouble.is_lasting() => {
                return Ok(Opening::Impossible(format!("PostgreSQL at {}: {trouble}", self.inner.place)));
            }
            Err(NotOpen::Trouble(trouble)) => return Err(self.stream_lost(&trouble)),
        };
        let take = sqlx::query(TAKE).bind(&name).bind(relay.as_str()).bind(lease).bind(&slot);
        let taken = self.limited("taking the stream of the outbox", take.execute(self.relays())).await?;
        if taken.rows_affected() == 0 {
            return Ok(Opening::Elsewhere);
        }
        let stream = Stream {
            reader,
            decoder: Decoder::new(self.table.schema(), self.table.table()),
            told_to: LogPosition::default(),
            store: self.clone(),
        };
        Ok(Opening::Open(Box::new(stream)))
    }

    pub(super) async fn close_row_stream(&self, relay: &RelayId) -> Result<(), StoreError> {
        let close = sqlx::query(CLOSE).bind(self.table.to_string()).bind(relay.as_str());
        self.limited("giving the stream of the outbox back", close.execute(self.relays())).await?;
        Ok(())
    }

    pub(super) async fn read_stream_state(&self) -> Result<Option<StreamState>, StoreError> {
        let name = self.table.to_string();
        let state = self.table.statement(&STATE.replace("{tells}", TELLS));
        let look = sqlx::query_as(state.sql()).bind(&name).bind(door::publication(&self.table)).bind(&name);
        let look = look.fetch_optional(self.relays());
        let found: Option<(String, i64, i64, bool)> =
            self.limited("reading how far the stream is", look).await?;
        let bytes = |number: i64| u64::try_from(number).unwrap_or(0);
        Ok(found.and_then(|(relay, kept, untold, tells)| {
            let relay = RelayId::new(relay).ok()?;
            Some(StreamState { relay, lag_bytes: bytes(kept), untold_bytes: bytes(untold), tells })
        }))
    }

    pub(super) async fn read_failing_keys(&self) -> Result<Vec<OrderingKey>, StoreError> {
        let statement = self.table.statement(FAILING);
        let keys = sqlx::query_scalar::<_, String>(statement.sql());
        let keys = self.limited("listing failing keys", keys.fetch_all(self.relays())).await?;
        Ok(keys.into_iter().filter_map(|key| OrderingKey::new(key).ok()).collect())
    }

    fn stream_lost(&self, trouble: &Trouble) -> StoreError {
        let message = format!("the stream from PostgreSQL at {} ended: {trouble}", self.inner.place);
        StoreError::new(StoreErrorKind::Unavailable, message)
    }

    fn unreadable(&self, cause: sqlx::Error) -> StoreError {
        failed("asking for the means to stream", &self.inner.place, cause)
    }
}

/// What a server says about streaming.
#[allow(clippy::struct_excessive_bools, reason = "each is one answer of the server")]
struct Means {
    wal_level: String,
    /// Commits are told of before a synchronous standby has them.
    ahead_of_standby: bool,
    version: i32,
    right: bool,
    free_slot: bool,
    free_sender: bool,
    published: bool,
    elsewhere: bool,
    user: String,
}

impl Means {
    fn read(row: &sqlx::postgres::PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            wal_level: row.try_get(0)?,
            ahead_of_standby: row.try_get(1)?,
            version: row.try_get(2)?,
            right: row.try_get(3)?,
            free_slot: row.try_get(4)?,
            free_sender: row.try_get(5)?,
            published: row.try_get(6)?,
            elsewhere: row.try_get(7)?,
            user: row.try_get(8)?,
        })
    }

    /// What stands in the way, and how to mend it.
    fn missing(&self) -> Option<String> {
        let Self { wal_level, user, .. } = self;
        if wal_level != "logical" {
            return Some(format!("wal_level is {wal_level}; set it to logical and restart PostgreSQL"));
        }
        if self.version < OLDEST_SERVER {
            return Some("PostgreSQL is older than 14".to_owned());
        }
        if !self.right {
            return Some(format!("the user may not replicate; run: ALTER ROLE {user} REPLICATION"));
        }
        if self.ahead_of_standby {
            let text = "synchronous_standby_names is set: a stream would tell of commits that the standby does not have yet, \
                        and a failover would undo. PostgreSQL 17 waits for it with synchronized_standby_slots";
            return Some(text.to_owned());
        }
        if !self.free_slot {
            return Some("all replication slots are in use; raise max_replication_slots".to_owned());
        }
        (!self.free_sender).then(|| "all WAL senders are in use; raise max_wal_senders".to_owned())
    }
}

/// One stream. Its connection, and with it its slot, ends when it is dropped.
struct Stream {
    reader: Reader,
    decoder: Decoder,
    told_to: LogPosition,
    store: Postgres,
}

#[async_trait]
impl RowStream for Stream {
    async fn next(&mut self, limit: StreamLimit) -> Result<Streamed, StoreError> {
        let (mut streamed, mut bytes, mut moved) = (Streamed::default(), 0, false);
        while streamed.rows.len() < limit.rows && bytes < limit.bytes {
            let heard = if moved || !streamed.rows.is_empty() {
                match self.reader.ready() {
                    Ok(None) => break,
                    Ok(Some(heard)) => Ok(heard),
                    Err(trouble) => Err(trouble),
                }
            } else {
                self.reader.next().await
            };
            let told = match heard.map_err(|trouble| self.store.stream_lost(&trouble))? {
                Heard::Log(message) => self.decoder.read(message),
                Heard::Alive(position) => Told::Committed(position),
            };
            match told {
                Told::Row(row) => {
                    bytes += row.envelope.payload.bytes().len();
                    streamed.rows.push(*row);
                }
                Told::Failing(key) => {
                    streamed.failing.push(key);
                    moved = true;
                }
                Told::Unreadable(position) => {
                    let first = streamed.unreadable.get_or_insert(position);
                    *first = position.min(*first);
                    moved = true;
                }
                Told::Committed(position) => {
                    moved |= position > self.told_to;
                    self.told_to = self.told_to.max(position);
                }
                Told::Nothing => {}
            }
        }
        // What was told need not be kept: should we die now, the table still has it.
        self.reader.confirm(self.told_to);
        streamed.told_to = self.told_to;
        Ok(streamed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn means() -> Means {
        Means {
            wal_level: "logical".to_owned(),
            ahead_of_standby: false,
            version: 150_000,
            right: true,
            free_slot: true,
            free_sender: true,
            published: true,
            elsewhere: false,
            user: "relay".to_owned(),
        }
    }

    #[test]
    fn what_is_missing_is_said_with_its_remedy() {
        assert_eq!(means().missing(), None);
        let replica = Means { wal_level: "replica".to_owned(), ..means() };
        assert!(replica.missing().unwrap().contains("set it to logical"));
        assert!(
            Means { right: false, ..means() }.missing().unwrap().contains("ALTER ROLE relay REPLICATION")
        );
        assert!(Means { ahead_of_standby: true, ..means() }.missing().unwrap().contains("standby"));
        assert!(Means { free_slot: false, ..means() }.missing().unwrap().contains("max_replication_slots"));
        assert!(Means { free_sender: false, ..means() }.missing().unwrap().contains("max_wal_senders"));
        assert!(Means { version: 130_000, ..means() }.missing().is_some());
    }
}
