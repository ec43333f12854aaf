//! What takes more than a look at the settings to find out: who stands between us and the server, and what a failover would lose.

use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{Connection as _, Executor as _, PgConnection, Row as _};

use crate::postgres::{OutboxTable, Postgres};
use crate::store::StoreError;

/// A pooler may have several servers at hand; one of a few tries gets the one that was used last.
const TRIES: u32 = 5;

/// Standbys that are connected, ours of the outbox's stream left out, and whom a commit waits for.
const STANDBYS: &str = "SELECT current_setting('synchronous_standby_names'), current_setting('synchronous_commit'), \
     (SELECT count(*) FROM pg_stat_replication WHERE application_name IS DISTINCT FROM current_setting('application_name'))";

/// Slots that outlive their connection, whether somebody reads from them, and how much log each keeps.
const SLOTS: &str = "SELECT slot_name::text, active, coalesce(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() \
     THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, restart_lsn), 0)::bigint, wal_status IS NOT DISTINCT FROM 'lost' \
     FROM pg_replication_slots WHERE NOT temporary ORDER BY 1";

/// The last position that a row has, and the last that was given out. Nothing for who may not read the sequence: PostgreSQL 17 says to him what
/// it says of one that was never used.
const POSITIONS: &str = "SELECT COALESCE((SELECT max(position) FROM {outbox}), 0), \
     COALESCE(pg_sequence_last_value('{positions}'::regclass), 0) WHERE has_sequence_privilege('{positions}', 'SELECT, USAGE')";

/// A slot that keeps more log than this is far behind.
const FAR_BEHIND: i64 = 1 << 30;

impl Postgres {
    pub(super) async fn look_closely(&self) -> Result<Vec<String>, StoreError> {
        let mut findings = Vec::new();
        let options = self.pool().connect_options();
        // Who may not connect twice is told so by everything else.
        if is_pooled_by_transaction(&options).await.unwrap_or(false) {
            findings.push(
                "a pooler (PgBouncer) in transaction mode stands in front of PostgreSQL: LISTEN, settings of a session and prepared \
                 statements do not hold there, so relays look late and statements may fail; connect to PostgreSQL itself, or set \
                 pool_mode = session for this user"
                    .to_owned(),
            );
        }
        let asked = async {
            let row = sqlx::query(STANDBYS).fetch_one(self.pool()).await?;
            Ok((row.try_get::<String, _>(0)?, row.try_get::<String, _>(1)?, row.try_get::<i64, _>(2)?))
        };
        let (names, commit, standbys) = self.limited("asking for standbys", asked).await?;
        findings.extend(weak_replication(&names, &commit, standbys));
        // Without a prepared statement, as in `server_of`: this is asked through poolers too.
        let asked = async {
            let rows = self.pool().fetch_all(sqlx::raw_sql(SLOTS)).await?;
            rows.iter().map(slot).collect::<Result<Vec<_>, sqlx::Error>>()
        };
        let slots = self.limited("asking for replication slots", asked).await?;
        findings.extend(
            slots.iter().filter_map(|(name, active, kept, lost)| slow_slot(name, *active, *kept, *lost)),
        );
        // Whoever may not read an outbox is told so by everything else.
        for table in self.limited("listing outboxes", self.tables()).await.unwrap_or_default() {
            let asked = self.positions(&table);
            if let Ok((last, given)) = self.limited("asking for positions", asked).await {
                findings.extend(positions_behind(&table, last, given));
            }
        }
        Ok(findings)
    }

    async fn tables(&self) -> Result<Vec<OutboxTable>, sqlx::Error> {
        let names = sqlx::raw_sql("SELECT name FROM postrider.outbox ORDER BY name");
        let rows = self.pool().fetch_all(names).await?;
        let names = rows.iter().map(|row| row.try_get_unchecked::<String, _>(0));
        Ok(names
            .collect::<Result<Vec<_>, _>>()?
            .iter()
            .filter_map(|name| OutboxTable::new(name).ok())
            .collect())
    }

    /// The last position in it, and the last that was given out.
    async fn positions(&self, table: &OutboxTable) -> Result<(i64, i64), sqlx::Error> {
        let row = self.pool().fetch_one(sqlx::raw_sql(table.statement(POSITIONS).sql())).await?;
        Ok((row.try_get_unchecked(0)?, row.try_get_unchecked(1)?))
    }
}

/// Its name, whether it is read from, the bytes it keeps, and whether it is lost. Answers of plain statements are text.
fn slot(row: &PgRow) -> Result<(String, bool, i64, bool), sqlx::Error> {
    Ok((
        row.try_get_unchecked(0)?,
        row.try_get_unchecked(1)?,
        row.try_get_unchecked(2)?,
        row.try_get_unchecked(3)?,
    ))
}

/// Two clients share a server only if a pooler lends it out by the transaction: the first is idle and between transactions, the
/// second is in one.
async fn is_pooled_by_transaction(options: &PgConnectOptions) -> Result<bool, sqlx::Error> {
    let mut first = PgConnection::connect_with(options).await?;
    let mut second = PgConnection::connect_with(options).await?;
    let mut shared = false;
    for _ in 0..TRIES {
        let one = server_of(&mut first).await?;
        second.execute("BEGIN").await?;
        let other = server_of(&mut second).await?;
        second.execute("ROLLBACK").await?;
        shared |= one == other;
    }
    // Only a courtesy to the server.
    let _closed = tokio::join!(first.close(), second.close());
    Ok(shared)
}

/// Asked without a prepared statement, which a pooler in that mode may not know.
async fn server_of(connection: &mut PgConnection) -> Result<i32, sqlx::Error> {
    let row = connection.fetch_one(sqlx::raw_sql("SELECT pg_backend_pid()")).await?;
    // Answers of plain statements are text.
    row.try_get_unchecked::<i32, _>(0)
}

fn weak_replication(names: &str, commit: &str, standbys: i64) -> Option<String> {
    if standbys == 0 {
        return None;
    }
    if names.is_empty() {
        return Some(format!(
            "{standbys} standbys follow this server and no commit waits for one: a failover loses the last commits, and events with \
             them; set synchronous_standby_names"
        ));
    }
    matches!(commit, "local" | "remote_write" | "off").then(|| {
        format!(
            "synchronous_commit is {commit}: a commit does not wait until the standby has it on disk, so a failover may lose it; \
             set it to on"
        )
    })
}

/// Sequences stay behind where a database was copied by logical replication: new events would then come before old ones that wait.
fn positions_behind(outbox: &OutboxTable, last: i64, given: i64) -> Option<String> {
    let (schema, table) = (outbox.schema(), outbox.table());
    (given < last).then(|| {
        format!(
            "the outbox {outbox} has events up to position {last}, and the next one gets {}: positions are given out twice, and \
             new events go before older ones of their key that still wait. An upgrade by logical replication does not bring sequences along; run: \
             SELECT setval('\"{schema}\".\"{table}_position\"', GREATEST({last}, nextval('\"{schema}\".\"{table}_position\"')))",
            given.saturating_add(1)
        )
    })
}

/// Ours are temporary and end with their connection; another's that nobody reads fills the disk, and then nothing commits.
fn slow_slot(name: &str, active: bool, kept: i64, lost: bool) -> Option<String> {
    let megabytes = kept >> 20;
    let told = match (active, lost) {
        (_, true) => format!(
            "the replication slot {name} is lost: its log was removed before it was read; drop it and begin anew"
        ),
        (false, _) => format!(
            "nobody reads from the replication slot {name}, and PostgreSQL keeps {megabytes} MB of its log for it, more with every \
             commit until the disk is full; start its reader, or drop it (pg_drop_replication_slot), and set max_slot_wal_keep_size"
        ),
        (true, _) if kept > FAR_BEHIND => format!(
            "the reader of the replication slot {name} is {megabytes} MB of log behind; look at it before the disk is full"
        ),
        (true, _) => return None,
    };
    Some(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_keeps_the_log_is_told() {
        assert_eq!(slow_slot("a", true, 5 << 20, false), None);
        assert!(slow_slot("a", false, 0, false).is_some_and(|told| told.contains("0 MB")));
        assert!(slow_slot("a", true, 3 << 30, false).is_some_and(|told| told.contains("3072 MB")));
        assert!(slow_slot("a", false, 0, true).is_some_and(|told| told.contains("lost")));
    }

    #[test]
    fn a_sequence_that_began_anew_is_told() {
        let outbox = OutboxTable::new("s.t").unwrap();
        assert_eq!(positions_behind(&outbox, 7, 7), None);
        assert_eq!(positions_behind(&outbox, 0, 0), None);
        let told = positions_behind(&outbox, 7, 2).unwrap();
        assert!(
            told.contains("gets 3") && told.contains(r#"setval('"s"."t_position"', GREATEST(7, "#),
            "{told}"
        );
    }

    #[test]
    fn a_standby_that_nobody_waits_for_is_told() {
        assert_eq!(weak_replication("", "on", 0), None);
        assert_eq!(weak_replication("s1", "on", 1), None);
        assert_eq!(weak_replication("s1", "remote_apply", 1), None);
        assert!(weak_replication("", "on", 2).is_some_and(|told| told.contains("failover loses")));
        assert!(weak_replication("s1", "local", 1).is_some_and(|told| told.contains("local")));
    }
}
