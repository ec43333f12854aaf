//! Partitions: made ahead, ended when they are old, and nobody waits for it.

use std::time::Duration;

use postrider::store::{
    Archive, HouseRules, Housekeeping as _, Kept, Outboxes as _, PublishResult, StoreErrorKind,
};
use postrider::{Outbox as _, Store as _};

use super::{LEASE, append, claim, connect, event, execute, let_rows_be_dated_ahead, relay, settle, store};

/// A round, which does what was forecast of it.
async fn keep(postgres: &postrider::postgres::Postgres, rules: &HouseRules) -> Kept {
    let forecast = postgres.would_keep_house(rules).await.unwrap();
    let kept = postgres.keep_house(&relay("keeper"), rules).await.unwrap();
    let kept = kept.expect("nobody else keeps this house");
    if kept.postponed.is_empty() {
        assert_eq!(forecast, kept);
    }
    kept
}

async fn count(postgres: &postrider::postgres::Postgres, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(postgres.pool()).await.unwrap()
}

/// A partition of January 2020 with two published events in it.
async fn with_an_old_partition(postgres: &postrider::postgres::Postgres) {
    for sql in [
        "CREATE TABLE postrider.event_outbox_p20200101 PARTITION OF postrider.event_outbox \
         FOR VALUES FROM ('2020-01-01') TO ('2020-02-01')",
        "INSERT INTO postrider.event_outbox (id, aggregate_type, event_type, payload, status, created_at, available_at) \
         SELECT 'old-' || n, 'shop.order', 'placed', '{}', 'published', '2020-01-10', '2020-01-10' \
         FROM generate_series(1, 2) n",
    ] {
        execute(postgres, sql).await.unwrap();
    }
}

const IN_TWO_WEEKS: &str = "INSERT INTO postrider.event_outbox (id, aggregate_type, event_type, payload, created_at) \
    VALUES ('2', 'shop.order', 'placed', '{}', now() + interval '2 weeks')";

#[tokio::test]
async fn partitions_are_made_ahead_and_take_the_rows() {
    let (postgres, _database) = store().await;
    let kept = keep(&postgres, &HouseRules::default()).await;
    assert_eq!(kept.partitions_made.len(), 4, "{kept:?}");
    append(&postgres, vec![event("1", None)]).await;
    let today = "SELECT count(*) FROM postrider.event_outbox_default";
    assert_eq!(count(&postgres, today).await, 1, "what is written now goes where it went before");
    let_rows_be_dated_ahead(&postgres).await;
    execute(&postgres, IN_TWO_WEEKS).await.unwrap();
    assert_eq!(count(&postgres, today).await, 1, "and what is written in two weeks, into a partition");
    assert_eq!(keep(&postgres, &HouseRules::default()).await, Kept::default(), "nothing is left to do");
    let a = relay("a");
    postgres.lease(&a, LEASE).await.unwrap();
    let rows = claim(&postgres, &a).await;
    assert_eq!(settle(&postgres, &a, &rows, &PublishResult::Published).await, 2);
}

#[tokio::test]
async fn rows_that_came_before_the_partitions_stay_where_they_are() {
    let (postgres, _database) = store().await;
    append(&postgres, vec![event("1", None)]).await;
    let kept = keep(&postgres, &HouseRules::default()).await;
    assert_eq!(kept.partitions_made.len(), 4, "the present one stays with the default: {kept:?}");
    append(&postgres, vec![event("2", None)]).await;
    assert_eq!(count(&postgres, "SELECT count(*) FROM postrider.event_outbox_default").await, 2);
    assert_eq!(count(&postgres, CHECKS).await, 0);
}

#[tokio::test]
async fn what_is_dated_ahead_is_told_with_what_to_do_about_it() {
    let (postgres, _database) = store().await;
    let_rows_be_dated_ahead(&postgres).await;
    execute(&postgres, IN_TWO_WEEKS).await.unwrap();
    execute(
        &postgres,
        "INSERT INTO postrider.event_outbox_id SELECT id, created_at FROM postrider.event_outbox",
    )
    .await
    .unwrap();
    let kept = keep(&postgres, &HouseRules::default()).await;
    let [told] = &kept.postponed[..] else { panic!("{kept:?}") };
    assert_eq!(kept.partitions_made.len(), 3, "{kept:?}");
    let (why, mend) = told.split_once("Give them that of now: ").unwrap();
    assert!(why.contains("making event_outbox_p") && why.contains("still to come"), "{told}");
    sqlx::query(sqlx::AssertSqlSafe(mend.to_owned())).execute(postgres.pool()).await.unwrap();
    let known =
        "SELECT count(*) FROM postrider.event_outbox JOIN postrider.event_outbox_id USING (id, created_at)";
    assert_eq!(count(&postgres, known).await, 1, "it is found by its id");
    assert_eq!(keep(&postgres, &HouseRules::default()).await.partitions_made.len(), 1);
    let a = relay("a");
    postgres.lease(&a, LEASE).await.unwrap();
    assert_eq!(claim(&postgres, &a).await.len(), 1);
}

#[tokio::test]
async fn an_old_partition_ends_and_its_ids_with_it() {
    let (postgres, _database) = store().await;
    with_an_old_partition(&postgres).await;
    let kept = keep(&postgres, &HouseRules::default()).await;
    assert_eq!(kept.partitions_ended, ["event_outbox_p20200101"]);
    assert_eq!(kept.removed, 2);
    let gone = "SELECT count(*) FROM pg_class WHERE relname = 'event_outbox_p20200101'";
    assert_eq!(count(&postgres, gone).await, 0);
    assert_eq!(count(&postgres, "SELECT count(*) FROM postrider.event_outbox_id").await, 0);
}

#[tokio::test]
async fn an_old_partition_with_something_unpublished_stays() {
    let (postgres, _database) = store().await;
    with_an_old_partition(&postgres).await;
    execute(&postgres, "UPDATE postrider.event_outbox SET status = 'dead' WHERE id = 'old-2'").await.unwrap();
    let kept = keep(&postgres, &HouseRules::default()).await;
    assert_eq!(kept.partitions_kept, ["event_outbox_p20200101"]);
    assert_eq!(
        count(&postgres, "SELECT count(*) FROM postrider.event_outbox WHERE id LIKE 'old-%'").await,
        2
    );
}

#[tokio::test]
async fn an_old_partition_moves_to_the_archive_table() {
    let (postgres, _database) = store().await;
    with_an_old_partition(&postgres).await;
    let rules = HouseRules { archive: Archive::Table, ..HouseRules::default() };
    let kept = keep(&postgres, &rules).await;
    assert_eq!((kept.archived, kept.removed), (2, 2));
    assert_eq!(count(&postgres, "SELECT count(*) FROM postrider.event_outbox").await, 0);
    assert_eq!(count(&postgres, "SELECT count(*) FROM postrider.event_outbox_archive").await, 2);
    assert_eq!(keep(&postgres, &rules).await, Kept::default());
}

#[tokio::test]
async fn a_round_that_did_not_come_to_its_end_is_finished_by_the_next() {
    let (postgres, _database) = store().await;
    with_an_old_partition(&postgres).await;
    let detach = "ALTER TABLE postrider.event_outbox DETACH PARTITION postrider.event_outbox_p20200101";
    execute(&postgres, detach).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let rules = HouseRules { archive: Archive::Files(folder.path().to_owned()), ..HouseRules::default() };
    let kept = keep(&postgres, &rules).await;
    assert_eq!((kept.archived, kept.removed), (2, 2));
    assert!(folder.path().join("postrider.event_outbox_p20200101.jsonl.gz").exists());
}

#[tokio::test]
async fn a_writer_in_its_transaction_is_not_waited_for() {
    let (postgres, _database) = store().await;
    with_an_old_partition(&postgres).await;
    let mut tx = postgres.begin().await.unwrap();
    postgres.append(&mut tx, vec![event("1", None)]).await.unwrap();
    let kept = keep(&postgres, &HouseRules::default()).await;
    assert!(kept.postponed.iter().any(|what| what.contains("event_outbox_p20200101")), "{kept:?}");
    // And others write meanwhile.
    append(&postgres, vec![event("2", None)]).await;
    postgres.commit(tx).await.unwrap();
    assert_eq!(keep(&postgres, &HouseRules::default()).await.partitions_ended.len(), 1);
}

#[tokio::test]
async fn one_at_a_time_keeps_the_house() {
    let (postgres, _database) = store().await;
    let held =
        "UPDATE postrider.outbox SET maintainer = 'other', maintained_until = now() + interval '1 minute'";
    execute(&postgres, held).await.unwrap();
    assert_eq!(postgres.keep_house(&relay("late"), &HouseRules::default()).await.unwrap(), None);
    let ended = "UPDATE postrider.outbox SET maintained_until = now() - interval '1 second'";
    execute(&postgres, ended).await.unwrap();
    let rules = HouseRules { keep: Duration::from_hours(1), ..HouseRules::default() };
    assert!(postgres.keep_house(&relay("late"), &rules).await.unwrap().is_some());
}

/// It brings an event from elsewhere that has still to be published, with the time that it has there.
#[tokio::test]
async fn what_is_written_into_an_old_partition_at_the_last_moment_is_not_taken_away_with_it() {
    let (postgres, _database) = store().await;
    a_late_event_stays(&postgres).await;
}

/// There a transaction goes on seeing what it saw first, which is before it had its lock.
#[tokio::test]
async fn nor_where_transactions_are_isolated_from_later_ones() {
    let (postgres, database) = store().await;
    let isolated = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = ''repeatable read''', \
                    current_database()); END $$";
    execute(&postgres, isolated).await.unwrap();
    a_late_event_stays(&connect(&database).await).await;
}

async fn a_late_event_stays(postgres: &postrider::postgres::Postgres) {
    with_an_old_partition(postgres).await;
    let mut writer = postgres.pool().begin().await.unwrap();
    let late = "INSERT INTO postrider.event_outbox (id, aggregate_type, event_type, payload, created_at, available_at) \
                VALUES ('late', 'shop.order', 'placed', '{}', '2020-01-11', '2020-01-11')";
    sqlx::query(late).execute(&mut *writer).await.unwrap();
    let (keeper, rules) = (relay("keeper"), HouseRules::default());
    let commit = async {
        somebody_waits(postgres, "AccessExclusiveLock").await;
        writer.commit().await.unwrap();
    };
    let (kept, ()) = tokio::join!(postgres.keep_house(&keeper, &rules), commit);
    let kept = kept.unwrap().unwrap();
    assert!(kept.partitions_ended.is_empty() && kept.postponed.len() == 1, "{kept:?}");
    assert_eq!(count(postgres, "SELECT count(*) FROM postrider.event_outbox WHERE id = 'late'").await, 1);
}

/// For a lock of this mode, in this database.
async fn somebody_waits(postgres: &postrider::postgres::Postgres, mode: &str) {
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = $1 \
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let waiting = async || -> i64 {
        sqlx::query_scalar(waits).bind(mode.to_owned()).fetch_one(postgres.pool()).await.unwrap()
    };
    let waited = tokio::time::timeout(Duration::from_secs(20), async { while waiting().await == 0 {} });
    waited.await.unwrap();
}

const CHECKS: &str = "SELECT count(*) FROM pg_constraint WHERE conname = 'no_row_of_next_partition'";

/// Left there, it would refuse every event from the day on that the partition was meant for.
#[tokio::test]
async fn a_check_for_a_partition_that_could_not_be_made_is_taken_back() {
    let (postgres, _database) = store().await;
    append(&postgres, vec![event("1", None)]).await;
    let mut busy = postgres.pool().begin().await.unwrap();
    // As ANALYZE has it, or whoever makes an index there.
    let lock = "LOCK TABLE ONLY postrider.event_outbox IN SHARE UPDATE EXCLUSIVE MODE";
    sqlx::query(lock).execute(&mut *busy).await.unwrap();
    let kept = keep(&postgres, &HouseRules::default()).await;
    assert_eq!((kept.partitions_made.len(), kept.postponed.len()), (0, 4), "{kept:?}");
    assert_eq!(count(&postgres, CHECKS).await, 0);
    busy.rollback().await.unwrap();
    assert_eq!(keep(&postgres, &HouseRules::default()).await.partitions_made.len(), 4);

    // And where a process ended on the way.
    let left = "ALTER TABLE postrider.event_outbox_default ADD CONSTRAINT no_row_of_next_partition CHECK (created_at < '2100-01-01')";
    execute(&postgres, left).await.unwrap();
    assert_eq!(keep(&postgres, &HouseRules::default()).await, Kept::default());
    assert_eq!(count(&postgres, CHECKS).await, 0);
}

/// Two at a time would write to one file, and remove what is in it.
#[tokio::test]
async fn a_round_that_was_held_up_for_longer_than_its_duty_ends() {
    let (postgres, _database) = store().await;
    with_an_old_partition(&postgres).await;
    let folder = tempfile::tempdir().unwrap();
    let rules = HouseRules { archive: Archive::Files(folder.path().to_owned()), ..HouseRules::default() };
    let mut other = postgres.pool().begin().await.unwrap();
    let lock = "LOCK TABLE postrider.event_outbox_p20200101 IN ACCESS EXCLUSIVE MODE";
    sqlx::query(lock).execute(&mut *other).await.unwrap();
    let take_over = async {
        somebody_waits(&postgres, "AccessShareLock").await;
        let taken = "UPDATE postrider.outbox SET maintainer = 'other', maintained_until = now() + interval '1 minute'";
        sqlx::query(taken).execute(&mut *other).await.unwrap();
        other.commit().await.unwrap();
    };
    let keeper = relay("keeper");
    let (kept, ()) = tokio::join!(postgres.keep_house(&keeper, &rules), take_over);
    assert_eq!(kept.unwrap_err().kind, StoreErrorKind::Contended);
    assert_eq!(count(&postgres, "SELECT count(*) FROM postrider.event_outbox_p20200101").await, 2);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was begun");
    let theirs =
        "SELECT count(*) FROM postrider.outbox WHERE maintainer = 'other' AND maintained_until > now()";
    assert_eq!(count(&postgres, theirs).await, 1);
}

#[tokio::test]
async fn a_round_that_failed_keeps_nobody_from_the_next() {
    let (postgres, _database) = store().await;
    with_an_old_partition(&postgres).await;
    let nowhere = HouseRules { archive: Archive::Files("/proc/nowhere".into()), ..HouseRules::default() };
    postgres.keep_house(&relay("one"), &nowhere).await.unwrap_err();
    let kept = postgres.keep_house(&relay("another"), &HouseRules::default()).await.unwrap();
    assert_eq!(kept.expect("nobody is at it").partitions_ended, ["event_outbox_p20200101"]);
}

/// It was published before anybody adopted its table, or has a type of more words than the usual outbox takes.
#[tokio::test]
async fn what_an_adopted_table_had_is_archived_as_it_was() {
    let (postgres, _database) = store().await;
    execute(&postgres, super::tables::HOLDCO).await.unwrap();
    let old = "INSERT INTO public.event_outbox (id, group_id, aggregate_type, aggregate_id, event_type, payload, status, created_at) \
         SELECT gen_random_uuid(), gen_random_uuid(), kind, gen_random_uuid(), 'order.created', \
             CASE kind WHEN 'order' THEN '{}'::jsonb ELSE 'null' END, 'published', '2020-01-10' \
         FROM unnest(ARRAY['order', 'Order Item']) kind";
    execute(&postgres, old).await.unwrap();
    postgres.adopt_outbox("event_outbox").await.unwrap();
    // As an earlier version made it.
    execute(
        &postgres,
        "CREATE TABLE public.event_outbox_archive (LIKE postrider.event_outbox INCLUDING CONSTRAINTS INCLUDING GENERATED \
         INCLUDING INDEXES) PARTITION BY RANGE (created_at)",
    )
    .await
    .unwrap();
    let rules = HouseRules { archive: Archive::Table, ..HouseRules::default() };
    let kept = keep(&postgres.outbox("event_outbox").unwrap(), &rules).await;
    assert_eq!((kept.archived, kept.removed), (2, 2));
    assert_eq!(count(&postgres, "SELECT count(*) FROM public.event_outbox_archive").await, 2);
    let payloads = "SELECT count(*) FROM public.event_outbox_archive WHERE payload = CASE aggregate_type WHEN 'order' THEN '{}'::jsonb \
         ELSE 'null' END";
    assert_eq!(count(&postgres, payloads).await, 2, "also one that is the JSON null");
}
