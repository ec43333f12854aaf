//! The writer under load, cancellation, failure and its own limits.

use std::time::Duration;

use futures_util::FutureExt as _;
use sqlx::SqliteConnection;

use super::Writer;
use crate::clock::Clock;
use crate::sqlite::{Sqlite, SqliteConfig, from_sqlite};
use crate::store::{Store as _, StoreError, StoreErrorKind};

async fn open(folder: &tempfile::TempDir) -> Sqlite {
    open_by(folder, Clock::system()).await
}

async fn open_by(folder: &tempfile::TempDir, clock: Clock) -> Sqlite {
    let store = Sqlite::open(SqliteConfig::new(folder.path().join("test.db")), clock).await.unwrap();
    let create = "CREATE TABLE note (text TEXT NOT NULL UNIQUE)";
    store.writer().run(|c| execute(c, create).boxed()).await.unwrap();
    store
}

async fn execute(connection: &mut SqliteConnection, sql: &'static str) -> Result<(), StoreError> {
    sqlx::query(sql).execute(connection).await.map(|_| ()).map_err(from_sqlite)
}

async fn note(writer: &Writer, text: String) -> Result<(), StoreError> {
    writer.run(|c| insert(c, text).boxed()).await
}

async fn insert(connection: &mut SqliteConnection, text: String) -> Result<(), StoreError> {
    let query = sqlx::query("INSERT INTO note (text) VALUES (?)").bind(text);
    query.execute(connection).await.map(|_| ()).map_err(from_sqlite)
}

async fn notes(store: &Sqlite) -> Vec<String> {
    sqlx::query_scalar("SELECT text FROM note ORDER BY text").fetch_all(store.readers()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_tasks_share_commits_and_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let before = store.commits();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..50 {
        let store = store.clone();
        tasks.spawn(async move {
            for turn in 0..200 {
                note(store.writer(), format!("{task}/{turn}")).await.unwrap();
                // Told of success, so it must be there for everybody.
                if turn % 50 == 0 {
                    let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM note WHERE text = ?")
                        .bind(format!("{task}/{turn}"))
                        .fetch_one(store.readers())
                        .await
                        .unwrap();
                    assert_eq!(seen, 1);
                }
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(notes(&store).await.len(), 10_000);
    let commits = store.commits() - before;
    assert!(commits < 5_000, "10,000 transactions took {commits} commits");
}

#[tokio::test]
async fn one_who_fails_leaves_its_neighbours() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let before = store.commits();
    let writer = store.writer();
    let (a, twice, b) = tokio::join!(
        note(writer, "a".to_owned()),
        writer.run(|c| {
            async move {
                insert(c, "only half".to_owned()).await?;
                insert(c, "a".to_owned()).await
            }
            .boxed()
        }),
        note(writer, "b".to_owned()),
    );
    a.unwrap();
    b.unwrap();
    assert_eq!(twice.unwrap_err().kind, StoreErrorKind::Invalid);
    assert_eq!(notes(&store).await, ["a", "b"]);
    assert_eq!(store.commits() - before, 1);
}

#[tokio::test]
async fn work_that_is_dropped_half_way_is_undone() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    for turn in 0..20 {
        let neighbour = tokio::spawn({
            let store = store.clone();
            async move { note(store.writer(), format!("kept {turn}")).await }
        });
        let halfway = store.writer().run(|c| {
            async move {
                insert(c, "dropped".to_owned()).await?;
                std::future::pending::<()>().await;
                Ok(())
            }
            .boxed()
        });
        assert!(tokio::time::timeout(Duration::from_millis(5), halfway).await.is_err());
        neighbour.await.unwrap().unwrap();
        note(store.writer(), format!("next {turn}")).await.unwrap();
    }
    let notes = notes(&store).await;
    assert_eq!(notes.len(), 40);
    assert!(!notes.contains(&"dropped".to_owned()));
}

/// Futures are dropped after any number of polls: at the lock, while it begins, in the middle, before the commit.
#[tokio::test]
async fn a_cancel_at_any_point_leaves_the_writer_usable() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    for polls in 0..40_usize {
        let mut cancelled = Box::pin(note(store.writer(), format!("maybe {polls}")));
        let mut kept = Box::pin(note(store.writer(), format!("kept {polls}")));
        let mut done = polls % 2 == 0 && futures_util::poll!(&mut kept).is_ready();
        let mut left = polls;
        while left > 0 && futures_util::poll!(&mut cancelled).is_pending() {
            done = done || (polls % 3 == 0 && futures_util::poll!(&mut kept).is_ready());
            tokio::task::yield_now().await;
            left -= 1;
        }
        if left > 0 {
            // It came to its end.
            assert!(notes(&store).await.contains(&format!("maybe {polls}")));
        }
        drop(cancelled);
        if !done {
            kept.await.unwrap();
        }
        assert!(notes(&store).await.contains(&format!("kept {polls}")), "{polls}");
    }
    // Nothing is left open: another connection can write.
    let other =
        Sqlite::open(SqliteConfig::new(folder.path().join("test.db")), Clock::system()).await.unwrap();
    note(other.writer(), "other".to_owned()).await.unwrap();
}

#[tokio::test]
async fn a_dropped_transaction_frees_the_file_for_others() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let mut tx = store.begin().await.unwrap();
    insert(tx.connection().await.unwrap(), "dropped".to_owned()).await.unwrap();
    drop(tx);
    let other =
        Sqlite::open(SqliteConfig::new(folder.path().join("test.db")), Clock::system()).await.unwrap();
    note(other.writer(), "other".to_owned()).await.unwrap();
    assert_eq!(notes(&store).await, ["other"]);
}

#[tokio::test]
async fn a_transaction_over_its_limit_is_rolled_back() {
    let folder = tempfile::tempdir().unwrap();
    let (clock, hands) = Clock::manual(jiff::Timestamp::UNIX_EPOCH);
    let store = Sqlite::open(SqliteConfig::new(folder.path().join("test.db")), clock).await.unwrap();
    store.writer().run(|c| execute(c, "CREATE TABLE note (text TEXT)").boxed()).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    hands.advance(Duration::from_mins(1));
    insert(tx.connection().await.unwrap(), "slow".to_owned()).await.unwrap();
    hands.advance(Duration::from_secs(6));
    let error = tx.connection().await.unwrap_err();
    assert!(error.is_transient() && error.message.contains("time limit"), "{error}");
    note(store.writer(), "next".to_owned()).await.unwrap();
    assert!(store.commit(tx).await.is_err());
    assert_eq!(notes(&store).await, ["next"]);
}

#[tokio::test]
async fn a_transaction_inside_another_ends_in_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = SqliteConfig::new(folder.path().join("test.db"));
    config.tx_limit = Duration::from_millis(50);
    let store = Sqlite::open(config, Clock::system()).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    tx.connection().await.unwrap();
    let error = note(store.writer(), "inner".to_owned()).await.unwrap_err();
    assert!(error.is_transient() && error.message.contains("one inside another"), "{error}");
}

#[tokio::test]
async fn a_full_disk_fails_everybody_of_the_batch_and_passes() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    store.writer().run(|c| execute(c, "PRAGMA max_page_count = 60").boxed()).await.unwrap();
    let writer = store.writer();
    let (small, large) =
        tokio::join!(note(writer, "small".to_owned()), note(writer, "large".repeat(100_000)));
    let large = large.unwrap_err();
    assert_eq!(large.kind, StoreErrorKind::Unavailable);
    assert!(large.message.contains("full"), "{large}");
    // SQLite rolls back the statement or everything; its neighbour is told the truth either way.
    let told = small.is_ok();
    assert_eq!(notes(&store).await.contains(&"small".to_owned()), told);
    note(writer, "afterwards".to_owned()).await.unwrap();
}

#[tokio::test]
async fn nobody_commits_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let writer = store.writer();
    let sly = writer.run(|c| {
        async move {
            insert(c, "sly".to_owned()).await?;
            let _refused = execute(c, "COMMIT").await;
            let _refused = insert(c, "outside".to_owned()).await;
            Ok(())
        }
        .boxed()
    });
    let (neighbour, sly) = tokio::join!(note(writer, "neighbour".to_owned()), sly);
    assert!(sly.is_err());
    assert!(neighbour.unwrap_err().is_transient());
    note(writer, "afterwards".to_owned()).await.unwrap();
    assert_eq!(notes(&store).await, ["afterwards"]);
}

#[tokio::test]
async fn a_commit_that_one_of_many_breaks_fails_only_for_that_one_at_the_next_try() {
    let folder = tempfile::tempdir().unwrap();
    // No batch is too old for a second member, however busy the machine.
    let (still, _) = Clock::manual("2026-01-01T00:00:00Z".parse().unwrap());
    let store = open_by(&folder, still).await;
    let writer = store.writer();
    let child = "CREATE TABLE child (parent TEXT REFERENCES note (text) DEFERRABLE INITIALLY DEFERRED)";
    writer.run(|c| execute(c, child).boxed()).await.unwrap();
    let orphan = || writer.run(|c| execute(c, "INSERT INTO child VALUES ('nobody')").boxed());
    let (good, bad) = tokio::join!(note(writer, "good".to_owned()), orphan());
    assert!(good.unwrap_err().is_transient());
    assert!(bad.unwrap_err().is_transient());
    let (good, bad) = tokio::join!(note(writer, "good".to_owned()), orphan());
    good.unwrap();
    assert_eq!(bad.unwrap_err().kind, StoreErrorKind::Invalid);
}
