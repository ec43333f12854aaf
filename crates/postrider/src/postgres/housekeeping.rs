//! Partitions of the outbox by time: made ahead, and ended when all in them is old and published.
//!
//! Writers are never held up. A new partition is made beside the outbox and attached, which locks only the default
//! partition. An old one is detached, which needs the whole table for a moment: it gives up after [`PATIENCE`] and tries
//! again in the next round. A detached table is the record of what is to be archived, so a crash forgets nothing.
//! The default partition stays, as the net under writers: should nobody make partitions any more, nobody's INSERT fails.

mod ahead;
mod file;
mod forecast;
mod rows;

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

use super::Postgres;
use super::error::failed;
use crate::store::{Archive, HouseRules, Housekeeping, Kept, RelayId, StoreError, StoreErrorKind};

/// How long to wait for a lock that others would wait behind. What is looked at behind that lock is what was committed by then, whatever
/// isolation this database has by default.
const PATIENCE: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '250ms'";
/// Rows that are archived or removed at a time.
const STEP: i64 = 1_000;

/// Takes or renews the duty. What nobody has done for ten minutes is anybody's.
const DUTY: &str = "UPDATE postrider.outbox SET maintainer = $1, maintained_until = now() + interval '10 minutes' \
     WHERE name = {name} AND (maintained_until IS NULL OR maintained_until < now() OR maintainer = $1) \
     RETURNING partitioned";

const DONE: &str = "UPDATE postrider.outbox SET maintained_at = now(), maintained_until = NULL \
     WHERE name = {name} AND maintainer = $1";

/// A round that failed is over: whoever mends what was wrong need not wait for the duty.
const FAILED: &str =
    "UPDATE postrider.outbox SET maintained_until = NULL WHERE name = {name} AND maintainer = $1";

/// The partitions with their bounds; the default one has none.
const PARTITIONS: &str = "SELECT c.relname::text AS name, \
         (regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM \\(''([^'']+)''\\)'))[1]::timestamptz AS lower, \
         (regexp_match(pg_get_expr(c.relpartbound, c.oid), 'TO \\(''([^'']+)''\\)'))[1]::timestamptz AS upper \
     FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = '{outbox}'::regclass";

/// Partitions in which everything is older than the rules keep.
const OLD: &str = "SELECT name FROM ({partitions}) p WHERE upper <= now() - $1 ORDER BY upper";

/// Whether something in a partition is not published yet.
const WAITING: &str = "SELECT EXISTS (SELECT FROM {schema}.\"{part}\" WHERE status <> 'published')";

/// Takes a partition out. Looked at once more when nobody can write to it: somebody who was at it may have brought an event that is
/// not published. By the index of what is not published, whatever the statistics say: everybody waits for this look. Whoever may read the outbox
/// may read what left it: rights on the outbox are none on a table of its own.
const DETACH: &str = "SET LOCAL enable_seqscan = off; ALTER TABLE {outbox} DETACH PARTITION {schema}.\"{part}\"; \
     DO $$ DECLARE reader name; BEGIN IF EXISTS (SELECT FROM {schema}.\"{part}\" WHERE status <> 'published') THEN \
         RAISE EXCEPTION 'an event that is not published came into it at this moment'; END IF; \
         FOR reader IN SELECT DISTINCT r.rolname FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a \
             JOIN pg_roles r ON r.oid = a.grantee WHERE c.oid = '{outbox}'::regclass AND a.privilege_type = 'SELECT' \
               AND a.grantee <> c.relowner \
         LOOP EXECUTE format('GRANT SELECT ON {schema}.\"{part}\" TO %I', reader); END LOOP; END $$";

/// Tables that were partitions once and are not archived yet; all of them, or those that we may read.
const DETACHED: &str = "SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
     WHERE n.nspname = $1 AND c.relkind = 'r' AND c.relname ~ ('^' || $2 || '_p[0-9]{8}$') \
       AND EXISTS (SELECT FROM postrider.outbox o WHERE o.schema_name = $1 AND o.table_name = $2 AND o.partitioned) \
       AND ($3 OR has_table_privilege(c.oid, 'SELECT')) \
       AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid) ORDER BY 1";

/// Unfinished replays of this outbox. Locked, as whoever takes items off their lists has them: an item that changes moves, and would be passed
/// over by who is about to take it.
const SENDING: &str = "SELECT id FROM postrider.operation WHERE kind = 'replay_outbox' AND state IN ('planned', 'running') \
       AND COALESCE(regexp_replace(plan ->> 'outbox', '^([^.]+)$', 'public.\\1'), 'postrider.event_outbox') = {name} FOR UPDATE";

/// What they still have to send of rows that leave for where they would not find them: each of their items becomes the whole document, as one
/// that was read from a file.
const CARRY: &str = "UPDATE postrider.operation_item i SET subject = row_to_json(p)::text FROM {gone} p, ({sending}) o \
     WHERE i.operation_id = o.id AND i.seq = p.position \
       AND i.subject = p.position || '/' || (extract(epoch FROM p.created_at) * 1000000)::bigint";

fn carry(gone: &str) -> String {
    filled(CARRY, &[("{gone}", gone), ("{sending}", SENDING)])
}

impl Postgres {
    /// Tables that were partitions of this outbox once and are not archived yet. Their events are kept, as those of the outbox are. Without
    /// `all` of them, those that may be read: one that may not would refuse what is looked for in the others.
    pub(super) async fn detached<'c>(
        &self,
        executor: impl sqlx::PgExecutor<'c>,
        all: bool,
    ) -> Result<Vec<String>, sqlx::Error> {
        let names = sqlx::query_scalar::<_, String>(DETACHED)
            .bind(self.table.schema())
            .bind(self.table.table())
            .bind(all)
            .fetch_all(executor)
            .await?;
        let schema = self.table.schema();
        Ok(names.into_iter().map(|name| format!("\"{schema}\".\"{name}\"")).collect())
    }
}

impl Housekeeping for Postgres {
    async fn keep_house(&self, worker: &RelayId, rules: &HouseRules) -> Result<Option<Kept>, StoreError> {
        let fail = |cause| failed("looking after the outbox", &self.inner.place, cause);
        let mut connection = self.pool().acquire().await.map_err(fail)?;
        // A round that is broken off may have a transaction open.
        connection.close_on_drop();
        let duty = sqlx::query_scalar(self.table.statement(DUTY).sql()).bind(worker.as_str());
        let Some(partitioned) = duty.fetch_optional(&mut *connection).await.map_err(fail)? else {
            return Ok(None);
        };
        let mut round =
            Round { postgres: self, worker, rules, kept: Kept::default(), connection: &mut connection };
        let done = round.run(partitioned).await;
        let kept = round.kept;
        if let Err(error) = done {
            let over = sqlx::query(self.table.statement(FAILED).sql()).bind(worker.as_str());
            // Where the database is away, the duty ends by itself.
            let _away = over.execute(&mut *connection).await;
            return Err(error);
        }
        let over = sqlx::query(self.table.statement(DONE).sql()).bind(worker.as_str());
        over.execute(&mut *connection).await.map_err(fail)?;
        Ok(Some(kept))
    }

    async fn would_keep_house(&self, rules: &HouseRules) -> Result<Kept, StoreError> {
        forecast::round(self, rules).await.map_err(fail_of(self))
    }
}

/// One round of housekeeping on one connection.
struct Round<'a> {
    postgres: &'a Postgres,
    worker: &'a RelayId,
    rules: &'a HouseRules,
    kept: Kept,
    connection: &'a mut PgConnection,
}

impl Round<'_> {
    async fn run(&mut self, partitioned: bool) -> Result<(), StoreError> {
        if partitioned {
            self.make_partitions().await?;
            self.end_partitions().await?;
            self.clear_away().await?;
        }
        self.remove_old_rows(partitioned).await
    }

    async fn end_partitions(&mut self) -> Result<(), StoreError> {
        let old: Vec<String> = sqlx::query_scalar(self.sql(&OLD.replace("{partitions}", PARTITIONS)))
            .bind(self.rules.keep)
            .fetch_all(&mut *self.connection)
            .await
            .map_err(self.fail())?;
        for name in old {
            let waiting = filled(WAITING, &[("{part}", &name)]);
            let waiting: bool = sqlx::query_scalar(self.sql(&waiting))
                .fetch_one(&mut *self.connection)
                .await
                .map_err(self.fail())?;
            if waiting {
                tracing::warn!(partition = %name, "events in an old partition are not published; it stays until they are");
                self.kept.partitions_kept.push(name);
                continue;
            }
            if let Err(error) = self.patiently(&filled(DETACH, &[("{part}", &name)])).await {
                self.postpone(&format!("detaching {name}"), &error);
            }
        }
        Ok(())
    }

    /// Archives and removes what is detached, of this round or of one that did not come to its end.
    async fn clear_away(&mut self) -> Result<(), StoreError> {
        let table = &self.postgres.table;
        let detached: Vec<String> = sqlx::query_scalar(DETACHED)
            .bind(table.schema())
            .bind(table.table())
            .bind(true)
            .fetch_all(&mut *self.connection)
            .await
            .map_err(self.fail())?;
        for name in detached {
            self.go_on().await?;
            let part = [("{part}", name.as_str())];
            let ids = "DELETE FROM {ids} i USING {schema}.\"{part}\" p WHERE i.id = p.id::text;";
            // The replays first, for as long as a step of theirs takes: whoever is at one reads from this table next. Then nobody finds events
            // in it any more, and begins to send them again.
            let drop = format!(
                "{ids} SET LOCAL lock_timeout = '10s'; {SENDING}; SET LOCAL lock_timeout = '250ms'; \
                 LOCK TABLE {{schema}}.\"{{part}}\"; {}; DROP TABLE {{schema}}.\"{{part}}\"",
                carry("{schema}.\"{part}\"")
            );
            let count: i64 =
                sqlx::query_scalar(self.sql(&filled("SELECT count(*) FROM {schema}.\"{part}\"", &part)))
                    .fetch_one(&mut *self.connection)
                    .await
                    .map_err(self.fail())?;
            let (end, archived) = match &self.rules.archive {
                Archive::Nowhere => (drop, 0),
                Archive::Files(folder) => {
                    let folder = folder.clone();
                    (drop, self.write_file(&folder, &name).await?)
                }
                Archive::Table => {
                    self.make_archive_table().await.map_err(self.fail())?;
                    let from = "SELECT min(created_at)::text, (max(created_at) + interval '1 microsecond')::text \
                                FROM {schema}.\"{part}\"";
                    let (from, to): (Option<String>, Option<String>) =
                        sqlx::query_as(self.sql(&filled(from, &part)))
                            .fetch_one(&mut *self.connection)
                            .await
                            .map_err(self.fail())?;
                    let end = match (from, to) {
                        (Some(from), Some(to)) => format!(
                            "{ids} ALTER TABLE {{archive}} ATTACH PARTITION {{schema}}.\"{{part}}\" \
                             FOR VALUES FROM ('{from}') TO ('{to}')"
                        ),
                        _ => "DROP TABLE {schema}.\"{part}\"".to_owned(),
                    };
                    (end, count.unsigned_abs())
                }
            };
            match self.patiently(&filled(&end, &part)).await {
                Ok(()) => {}
                // A replay reads from it, or somebody counts.
                Err(error) if is_held(&error) => {
                    self.postpone(&format!("clearing {name} away"), &error);
                    continue;
                }
                Err(error) => return Err(self.fail()(error)),
            }
            self.kept.archived += archived;
            self.kept.removed += count.unsigned_abs();
            self.kept.partitions_ended.push(name);
        }
        Ok(())
    }

    /// The archive has the outbox's shape, so that old partitions move there without a copy, and none of its rules: what was published
    /// is kept as it was. A table that was adopted may have rows that the usual outbox would refuse.
    async fn make_archive_table(&mut self) -> Result<(), sqlx::Error> {
        self.patiently(
            "CREATE TABLE IF NOT EXISTS {archive} (LIKE postrider.event_outbox INCLUDING GENERATED INCLUDING INDEXES) \
                 PARTITION BY RANGE (created_at); \
             CREATE TABLE IF NOT EXISTS {archive_default} PARTITION OF {archive} DEFAULT; \
             DO $$ DECLARE rule name; BEGIN \
                 FOR rule IN SELECT conname FROM pg_constraint WHERE conrelid = '{archive}'::regclass AND contype = 'c' LOOP \
                     EXECUTE format('ALTER TABLE {archive} DROP CONSTRAINT %I', rule); \
                 END LOOP; \
             END $$",
        )
        .await
    }

    /// Renews the duty, lest a long round be joined by another: two would write one archive file, and each remove what the other had
    /// spoilt. A round that was held up for longer than its duty ends here.
    async fn go_on(&mut self) -> Result<(), StoreError> {
        let renew = sqlx::query_scalar::<_, bool>(self.sql(DUTY)).bind(self.worker.as_str());
        let ours = renew.fetch_optional(&mut *self.connection).await.map_err(self.fail())?;
        ours.map(|_| ()).ok_or_else(|| {
            let text =
                "another process has taken over looking after the outbox; nothing is lost, it goes on there";
            StoreError::new(StoreErrorKind::Contended, text)
        })
    }

    /// Runs statements in one transaction that does not keep others waiting for long.
    async fn patiently(&mut self, statements: &str) -> Result<(), sqlx::Error> {
        let statements = self.sql(statements);
        let mut transaction = self.connection.begin().await?;
        transaction.execute(PATIENCE).await?;
        transaction.execute(sqlx::raw_sql(statements)).await?;
        transaction.commit().await
    }

    fn postpone(&mut self, what: &str, error: &dyn std::fmt::Display) {
        tracing::info!(%error, "{what} is tried again later");
        self.kept.postponed.push(format!("{what}: {error}"));
    }

    fn sql(&self, template: &str) -> AssertSqlSafe<std::sync::Arc<str>> {
        sql(self.postgres, template)
    }

    fn fail(&self) -> impl Fn(sqlx::Error) -> StoreError + use<> {
        fail_of(self.postgres)
    }
}

/// Whether somebody had a lock for longer than we wait.
fn is_held(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(answer) if answer.code().as_deref() == Some("55P03"))
}

fn filled(template: &str, values: &[(&str, &str)]) -> String {
    values.iter().fold(template.to_owned(), |text, (name, value)| text.replace(name, value))
}

/// Every name in it was checked, or was read from the catalogue after it was made of such a name.
fn sql(postgres: &Postgres, template: &str) -> AssertSqlSafe<std::sync::Arc<str>> {
    let (schema, table) = (postgres.table.schema(), postgres.table.table());
    let names = [
        ("{schema}", format!("\"{schema}\"")),
        ("{default}", format!("\"{schema}\".\"{table}_default\"")),
        ("{archive}", format!("\"{schema}\".\"{table}_archive\"")),
        ("{archive_default}", format!("\"{schema}\".\"{table}_archive_default\"")),
    ];
    let filled = names.iter().fold(template.to_owned(), |text, (name, value)| text.replace(name, value));
    postgres.table.statement(&filled).sql()
}

fn fail_of(postgres: &Postgres) -> impl Fn(sqlx::Error) -> StoreError + use<> {
    let place = postgres.inner.place.clone();
    move |cause| failed("looking after the outbox", &place, cause)
}
