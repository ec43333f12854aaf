//! Operations of several people in one process.
#![cfg(feature = "sqlite")]

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::json;

use super::*;
use crate::sqlite::{Sqlite, SqliteConfig};
use crate::store::{NewOperation, OperationState, Store as _};

/// Does nothing with its items.
struct Idle;

impl Work<Sqlite> for Idle {
    fn chunk<'a>(
        &'a self,
        _: &'a Sqlite,
        _: &'a mut <Sqlite as crate::store::Store>::Tx,
        _: &'a Operation,
        items: Vec<String>,
    ) -> BoxFuture<'a, Result<Chunk, StoreError>> {
        async move { Ok(Chunk { done: items.len() as u64, skipped: 0 }) }.boxed()
    }
}

async fn planned(store: &Sqlite, clock: &Clock, by: &str, rate: Option<f64>) -> Uuid {
    let id = clock.new_id();
    let kind = OperationKind::ReplayLetters;
    let new = NewOperation { id, kind, plan: json!({}), rate, created_by: by.to_owned(), reason: None };
    let mut tx = store.begin().await.unwrap();
    store.create_operation(&mut tx, &new).await.unwrap();
    store.add_items(&mut tx, id, vec!["1".to_owned(), "2".to_owned()]).await.unwrap();
    store.commit(tx).await.unwrap();
    id
}

#[tokio::test]
async fn a_slow_operation_holds_up_those_of_its_own_person_alone() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Clock::system();
    let path = folder.path().join("operations.db");
    let store = Sqlite::open(SqliteConfig::new(path), clock.clone()).await.unwrap();
    // An hour between its two items.
    let slow = planned(&store, &clock, "ann", Some(1.0 / 3600.0)).await;
    let behind = planned(&store, &clock, "ann", None).await;
    let quick = planned(&store, &clock, "bob", None).await;
    let config = RunnerConfig { poll_interval: Duration::from_millis(10), ..RunnerConfig::default() };
    let runner = Runner::new(store.clone(), clock.clone(), config);
    let (stop, kinds) =
        (CancellationToken::new(), [(OperationKind::ReplayLetters, &Idle as &dyn Work<Sqlite>)]);
    let state = async |id| store.operation(id).await.unwrap().unwrap().state;
    let watching = async {
        while state(quick).await != OperationState::Done {
            clock.sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(
            (state(slow).await, state(behind).await),
            (OperationState::Running, OperationState::Planned)
        );
        stop.cancel();
    };
    tokio::join!(runner.serve(&kinds, &stop), watching);
    let left = store.operation(slow).await.unwrap().unwrap();
    assert_eq!((left.state, left.done, left.runner), (OperationState::Running, 1, None), "it was given back");
}

/// Takes its time, with the one writer in its hands.
struct Slow(Clock);

impl Work<Sqlite> for Slow {
    fn chunk<'a>(
        &'a self,
        _: &'a Sqlite,
        _: &'a mut <Sqlite as crate::store::Store>::Tx,
        _: &'a Operation,
        items: Vec<String>,
    ) -> BoxFuture<'a, Result<Chunk, StoreError>> {
        async move {
            self.0.sleep(Duration::from_millis(200)).await;
            Ok(Chunk { done: items.len() as u64, skipped: 0 })
        }
        .boxed()
    }
}

#[tokio::test]
async fn a_transaction_goes_on_while_others_are_looked_for() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Clock::system();
    let path = folder.path().join("operations.db");
    let store = Sqlite::open(SqliteConfig::new(path), clock.clone()).await.unwrap();
    let id = planned(&store, &clock, "ann", None).await;
    let config = RunnerConfig { poll_interval: Duration::from_millis(10), ..RunnerConfig::default() };
    let runner = Runner::new(store.clone(), clock.clone(), config);
    let work = Slow(clock.clone());
    let (stop, kinds) =
        (CancellationToken::new(), [(OperationKind::ReplayLetters, &work as &dyn Work<Sqlite>)]);
    let watching = async {
        while store.operation(id).await.unwrap().unwrap().state != OperationState::Done {
            clock.sleep(Duration::from_millis(10)).await;
        }
        stop.cancel();
    };
    tokio::select! {
        _ = async { tokio::join!(runner.serve(&kinds, &stop), watching) } => {}
        // Left standing, it would take as long as the writer is waited for: ten seconds.
        () = clock.sleep(Duration::from_secs(8)) => panic!("it waited for the writer that it had itself"),
    }
}
