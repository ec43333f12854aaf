//! Progress where several servers meet: the handler's transaction, the view in Redis, and Redis lost or in the way.

mod cluster;
mod script;
mod transaction;
mod view;

use postrider::progress::{Job, JobId, Mark, NewJob, Progress, ProgressStore as _, Total};
use postrider::sqlite::{Sqlite, SqliteConfig};
use postrider::store::Jobs;
use postrider::{Clock, postgres::Postgres, postgres::PostgresConfig};
use postrider_testkit::servers::{TestDatabase, shared};
use tempfile::TempDir;

fn job(id: &str) -> JobId {
    JobId::new(id).unwrap()
}

fn done(items: &[&str]) -> Vec<Mark> {
    items.iter().map(|item| Mark::done(item).unwrap()).collect()
}

async fn sqlite() -> (Sqlite, TempDir) {
    let folder = TempDir::new().unwrap();
    let file = SqliteConfig::new(folder.path().join("postrider.db"));
    (Sqlite::open(file, Clock::system()).await.unwrap(), folder)
}

async fn postgres() -> (Postgres, TestDatabase) {
    let database = shared().unwrap().migrated_database().await.unwrap();
    let store = Postgres::connect(PostgresConfig::new(&database.url), Clock::system()).await.unwrap();
    store.migrate().await.unwrap();
    (store, database)
}

/// A job whose discovery has ended, with this many items.
async fn closed<S: Jobs>(store: &S, id: &str, items: u32) -> Job {
    let progress = Progress::new(store.clone());
    progress.init(&NewJob::new(id).unwrap()).await.unwrap();
    progress.set_total(&job(id), Total::from(items)).await.unwrap();
    progress.end_discovery(&job(id)).await.unwrap()
}
