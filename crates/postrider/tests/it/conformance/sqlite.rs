//! SQLite under the store suite.

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;

use postrider::sqlite::{Sqlite, SqliteConfig, SqliteTx};
use postrider::store::{Store, StoreError, StoreErrorKind};
use postrider::{Clock, EventId};
use postrider_testkit::conformance::Crash;
use postrider_testkit::conformance::store::StoreFixture;
use sqlx::{Connection as _, SqliteConnection};
use tempfile::TempDir;

postrider_testkit::store_conformance!(async { File::new() }, async { File::new() });

/// A file that can be as it was when its process died.
///
/// The crash is an image of the file and its log, taken between two system calls: what the operating system had at that
/// moment, which is all that a killed process leaves. The process of before lives on as a ghost, on a file nobody reads.
pub(super) struct File {
    folder: TempDir,
    state: Mutex<State>,
}

struct State {
    lives: u32,
    store: Option<Sqlite>,
}

impl File {
    pub(super) fn new() -> Self {
        Self { folder: TempDir::new().unwrap(), state: Mutex::new(State { lives: 0, store: None }) }
    }

    fn path(&self) -> PathBuf {
        let lives = self.state.lock().unwrap().lives;
        self.folder.path().join(format!("{lives}/postrider.db"))
    }

    /// The next life begins with what this one has on disk.
    pub(super) fn crash(&self) {
        let before = self.path();
        let mut state = self.state.lock().unwrap();
        state.lives += 1;
        state.store = None;
        drop(state);
        let after = self.path();
        fs::create_dir_all(after.parent().unwrap()).unwrap();
        fs::copy(&before, &after).unwrap();
        let log = |path: &PathBuf| path.with_extension("db-wal");
        if log(&before).exists() {
            fs::copy(log(&before), log(&after)).unwrap();
        }
    }
}

impl StoreFixture for File {
    type Store = Sqlite;

    async fn store(&self) -> Sqlite {
        if let Some(store) = &self.state.lock().unwrap().store {
            return store.clone();
        }
        let store = Sqlite::open(SqliteConfig::new(self.path()), Clock::system()).await.unwrap();
        let mut tx = store.begin().await.unwrap();
        let effects = "CREATE TABLE IF NOT EXISTS effects (consumer TEXT NOT NULL, event_id TEXT NOT NULL)";
        sqlx::query(effects).execute(tx.connection().await.unwrap()).await.unwrap();
        store.commit(tx).await.unwrap();
        self.state.lock().unwrap().store = Some(store.clone());
        store
    }

    async fn insert_effect(
        &self,
        tx: &mut SqliteTx,
        consumer: &str,
        event: &EventId,
    ) -> Result<(), StoreError> {
        let insert = sqlx::query("INSERT INTO effects VALUES (?, ?)").bind(consumer).bind(event.as_str());
        let done = insert.execute(tx.connection().await?).await;
        done.map(|_| ()).map_err(|error| StoreError::new(StoreErrorKind::Other, error.to_string()))
    }

    async fn effects(&self) -> Vec<(String, EventId)> {
        let url = format!("sqlite://{}", self.path().display());
        let mut connection = SqliteConnection::connect(&url).await.unwrap();
        let all = sqlx::query_as("SELECT consumer, event_id FROM effects ORDER BY rowid");
        let rows: Vec<(String, String)> = all.fetch_all(&mut connection).await.unwrap();
        rows.into_iter().map(|(consumer, event)| (consumer, EventId::new(event).unwrap())).collect()
    }
}

impl Crash for File {
    async fn restart(&self) {
        self.crash();
    }
}
