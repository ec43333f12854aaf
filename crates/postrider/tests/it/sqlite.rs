//! What is particular to the store on one SQLite file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use postrider::envelope::{AggregateId, OrderingKey, TenantId};
use postrider::sqlite::{ServeLock, Sqlite, SqliteConfig};
use postrider::store::{Ask, OutboxRow, PublishResult, RelayId, RowResult, StoreErrorKind};
use postrider::{Clock, Event, Outbox as _, Store as _};
use sqlx::{Connection as _, SqliteConnection};

struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("made/on/the/way/postrider.db")
    }

    async fn open(&self) -> Sqlite {
        self.open_at(Clock::system()).await
    }

    async fn open_at(&self, clock: Clock) -> Sqlite {
        let store = Sqlite::open(SqliteConfig::new(self.path()), clock).await.unwrap();
        store.lease(&relay(), Duration::from_mins(5)).await.unwrap();
        store
    }

    /// A connection as any other program has it.
    async fn foreign(&self) -> SqliteConnection {
        SqliteConnection::connect(&format!("sqlite://{}", self.path().display())).await.unwrap()
    }
}

fn relay() -> RelayId {
    RelayId::new("relay").unwrap()
}

fn event(id: &str) -> Event {
    Event::new("shop.order.placed").unwrap().id(id).unwrap()
}

async fn commit(store: &Sqlite, events: Vec<Event>) {
    let mut tx = store.begin().await.unwrap();
    store.append(&mut tx, events).await.unwrap();
    store.commit(tx).await.unwrap();
}

async fn claim(store: &Sqlite) -> Vec<OutboxRow> {
    store.claim(&relay(), Ask::everything(1000)).await.unwrap()
}

async fn due(store: &Sqlite) -> Vec<String> {
    claim(store).await.into_iter().map(|row| row.envelope.id.to_string()).collect()
}

async fn settle(store: &Sqlite, rows: &[OutboxRow], result: &PublishResult) {
    let results = rows.iter().map(|row| RowResult::new(row.row, result.clone())).collect();
    assert_eq!(store.settle(&relay(), results).await.unwrap(), rows.len());
}

#[tokio::test]
async fn a_file_is_made_once_however_many_open_it() {
    let home = Home::new();
    let opening = (0..8).map(|_| Sqlite::open(SqliteConfig::new(home.path()), Clock::system()));
    for (n, opened) in futures_util::future::join_all(opening).await.into_iter().enumerate() {
        let store = opened.unwrap();
        store.check().await.unwrap();
        commit(&store, vec![event(&format!("event-{n}"))]).await;
    }
    assert_eq!(due(&home.open().await).await.len(), 8);
}

#[tokio::test]
async fn what_is_not_ours_is_left_alone() {
    let home = Home::new();
    drop(home.open().await);
    let mut foreign = home.foreign().await;
    sqlx::query("INSERT INTO schema_version VALUES (99, 0)").execute(&mut foreign).await.unwrap();
    let error = Sqlite::open(SqliteConfig::new(home.path()), Clock::system()).await.err().unwrap();
    assert_eq!(error.kind, StoreErrorKind::Schema);
    assert!(error.message.contains("newer version"), "{error}");

    let other = home.folder.path().join("letter.txt");
    std::fs::write(&other, "Dear all, this is not a database but a letter. ".repeat(100)).unwrap();
    let error = Sqlite::open(SqliteConfig::new(&other), Clock::system()).await.err().unwrap();
    assert!(error.message.contains("not an SQLite database"), "{error}");

    let error = Sqlite::open(SqliteConfig::new(other.join("x.db")), Clock::system()).await.err().unwrap();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn a_file_that_was_left_in_the_middle_has_what_was_committed() {
    let home = Home::new();
    let store = home.open().await;
    commit(&store, vec![event("kept")]).await;
    let mut open = store.begin().await.unwrap();
    store.append(&mut open, vec![event("lost")]).await.unwrap();
    // Another life, while the old one still has its transaction open.
    let again = home.open().await;
    assert_eq!(due(&again).await, ["kept"]);
    drop((open, store));
    commit(&again, vec![event("lost")]).await;
    assert_eq!(due(&again).await, ["kept", "lost"]);
}

#[tokio::test]
async fn a_transaction_without_writes_touches_nothing() {
    let home = Home::new();
    let store = home.open().await;
    let before = store.commits();
    let (one, two) = (store.begin().await.unwrap(), store.begin().await.unwrap());
    commit(&store, vec![event("between")]).await;
    store.commit(one).await.unwrap();
    store.rollback(two).await.unwrap();
    assert_eq!(store.commits() - before, 1);
}

#[tokio::test]
async fn after_a_duplicate_the_transaction_cannot_go_on() {
    let home = Home::new();
    let store = home.open().await;
    commit(&store, vec![event("one")]).await;
    let mut tx = store.begin().await.unwrap();
    store.append(&mut tx, vec![event("two")]).await.unwrap();
    let error = store.append(&mut tx, vec![event("one")]).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Duplicate);
    assert!(tx.connection().await.is_err());
    assert!(store.commit(tx).await.is_err());
    assert_eq!(due(&store).await, ["one"]);
}

const PLAIN: &str =
    "INSERT INTO event_outbox (id, group_id, aggregate_type, aggregate_id, event_type, payload) VALUES ";

#[tokio::test]
async fn any_program_can_insert_events() {
    let home = Home::new();
    let store = home.open().await;
    let mut foreign = home.foreign().await;
    let rows = "('a', 'acme', 'shop.order', '42', 'placed', '{\"total\": \"12.50\"}'),
                ('b', NULL, 'shop.order', '42', 'placed', '{}'),
                ('c', 'acme', 'shop.order', NULL, 'placed', '[]')";
    sqlx::query(sqlx::AssertSqlSafe(format!("{PLAIN}{rows}"))).execute(&mut foreign).await.unwrap();
    let rows = claim(&store).await;
    let first = &rows[0].envelope;
    assert_eq!(first.event_type.as_str(), "shop.order.placed");
    assert_eq!(first.payload.bytes(), "{\"total\": \"12.50\"}");
    assert!(first.payload.is_json());
    let (group, order) = (TenantId::new("acme").unwrap(), AggregateId::new("42").unwrap());
    let keys: Vec<_> = rows.iter().map(|row| row.envelope.ordering_key.clone()).collect();
    let of = |group| Some(OrderingKey::of_aggregate(group, "shop.order", &order));
    assert_eq!(keys, [of(Some(&group)), of(None), None]);
    let now = Clock::system().now();
    let age = Duration::try_from(now.duration_since(first.occurred_at)).unwrap();
    assert!(age < Duration::from_mins(1), "{age:?}");

    for broken in [
        "('d', NULL, 'a', 'b', 'c', 'no json')",
        "('', NULL, 'a', 'b', 'c', '{}')",
        "('e', NULL, 'a', 'b', 'c', NULL)",
    ] {
        let refused =
            sqlx::query(sqlx::AssertSqlSafe(format!("{PLAIN}{broken}"))).execute(&mut foreign).await;
        assert!(refused.is_err(), "{broken}");
    }
}

#[tokio::test]
async fn a_row_that_is_no_event_is_dead_and_parks_its_key_alone() {
    let home = Home::new();
    let store = home.open().await;
    let mut foreign = home.foreign().await;
    let rows = "('bad', NULL, 'shop order', '1', 'placed', '{}'), ('behind', NULL, 'shop order', '1', 'placed', '{}'),
                ('good', NULL, 'shop.order', '1', 'placed', '{}')";
    sqlx::query(sqlx::AssertSqlSafe(format!("{PLAIN}{rows}"))).execute(&mut foreign).await.unwrap();
    assert_eq!(due(&store).await, ["good"]);
    let dead: Vec<(String, String)> =
        sqlx::query_as("SELECT id, last_error FROM event_outbox WHERE status = 'dead'")
            .fetch_all(&mut foreign)
            .await
            .unwrap();
    assert!(dead.iter().any(|(id, error)| id == "bad" && error.contains("without spaces")), "{dead:?}");
}

#[tokio::test]
async fn time_is_the_clocks() {
    let home = Home::new();
    let (clock, hands) = Clock::manual("2026-03-01T12:00:00Z".parse().unwrap());
    let store = home.open_at(clock.clone()).await;
    let at = clock.now() + Duration::from_mins(1);
    commit(&store, vec![event("later").available_at(at), event("now")]).await;
    let rows = claim(&store).await;
    assert_eq!(rows.len(), 1);
    let retry_after = Some(Duration::from_secs(90));
    settle(&store, &rows, &PublishResult::Failed { error: "returned".to_owned(), retry_after }).await;
    assert!(due(&store).await.is_empty());
    hands.advance(Duration::from_mins(1));
    assert_eq!(due(&store).await, ["later"]);
    hands.advance(Duration::from_secs(30));
    let rows = claim(&store).await;
    assert_eq!(rows.iter().map(|row| row.attempts).collect::<Vec<_>>(), [0, 1]);
}

/// Waits for news in the background; the clock stands still, so that nothing else ends the wait.
fn listen(store: &Sqlite) -> tokio::task::JoinHandle<()> {
    let store = store.clone();
    tokio::spawn(async move { store.wait(Duration::from_mins(10)).await })
}

async fn within(limit: Duration, task: tokio::task::JoinHandle<()>) {
    tokio::time::timeout(limit, task).await.expect("nobody woke it").unwrap();
}

#[tokio::test]
async fn an_append_wakes_a_relay_even_one_that_was_claiming() {
    let home = Home::new();
    let (clock, _hands) = Clock::manual("2026-03-01T12:00:00Z".parse().unwrap());
    let store = home.open_at(clock).await;
    store.claim(&relay(), Ask::everything(10)).await.unwrap();
    let waiting = listen(&store);
    commit(&store, vec![event("one")]).await;
    within(Duration::from_secs(5), waiting).await;
    // Nobody waited when this came.
    commit(&store, vec![event("two")]).await;
    within(Duration::from_secs(5), listen(&store)).await;
    let quiet = listen(&store);
    assert!(tokio::time::timeout(Duration::from_millis(100), quiet).await.is_err(), "woken without news");
}

#[tokio::test]
async fn what_another_process_appends_wakes_too() {
    let home = Home::new();
    let store = home.open().await;
    assert!(due(&store).await.is_empty());
    let mut foreign = home.foreign().await;
    let insert = format!("{PLAIN}('a', NULL, 'shop.order', '1', 'placed', '{{}}')");
    // Between the claim and the wait, and during the wait.
    sqlx::query(sqlx::AssertSqlSafe(insert)).execute(&mut foreign).await.unwrap();
    within(Duration::from_secs(5), listen(&store)).await;
    assert_eq!(due(&store).await, ["a"]);
    let waiting = listen(&store);
    tokio::task::yield_now().await;
    let insert = format!("{PLAIN}('b', NULL, 'shop.order', '1', 'placed', '{{}}')");
    sqlx::query(sqlx::AssertSqlSafe(insert)).execute(&mut foreign).await.unwrap();
    within(Duration::from_secs(5), waiting).await;
    assert_eq!(due(&store).await, ["a", "b"]);
}

#[tokio::test]
async fn another_process_that_writes_is_waited_for_and_then_named() {
    let home = Home::new();
    let mut config = SqliteConfig::new(home.path());
    config.busy_timeout = Duration::from_millis(100);
    let store = Sqlite::open(config, Clock::system()).await.unwrap();
    let mut foreign = home.foreign().await;
    sqlx::query("BEGIN IMMEDIATE").execute(&mut foreign).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    let error = store.append(&mut tx, vec![event("one")]).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Contended, "{error}");
    sqlx::query("ROLLBACK").execute(&mut foreign).await.unwrap();
    commit(&store, vec![event("one")]).await;
}

#[tokio::test]
async fn a_copy_of_the_file_alone_has_what_was_written_back() {
    let home = Home::new();
    let store = home.open().await;
    commit(&store, vec![event("one")]).await;
    store.write_back().await;
    let copy = home.path().with_file_name("copy.db");
    std::fs::copy(home.path(), &copy).unwrap();
    let copied = Sqlite::open(SqliteConfig::new(copy), Clock::system()).await.unwrap();
    copied.lease(&relay(), Duration::from_mins(5)).await.unwrap();
    assert_eq!(due(&copied).await, ["one"]);
}

#[test]
fn a_second_serve_on_the_same_file_is_refused() {
    let home = Home::new();
    let first = ServeLock::acquire(&home.path()).unwrap();
    let error = ServeLock::acquire(&home.path()).unwrap_err();
    assert!(error.message.contains(&format!("process {}", std::process::id())), "{error}");
    assert_eq!(first.path(), Path::new(&format!("{}.lock", home.path().display())));
    drop(first);
    ServeLock::acquire(&home.path()).unwrap();
}

#[tokio::test]
async fn a_link_to_the_file_has_the_same_lock() {
    let home = Home::new();
    let _store = home.open().await;
    let link = home.path().with_file_name("link.db");
    std::os::unix::fs::symlink(home.path(), &link).unwrap();
    let _first = ServeLock::acquire(&home.path()).unwrap();
    let error = ServeLock::acquire(&link).unwrap_err();
    assert!(error.message.contains("serves this file already"), "{error}");
}
