//! Marks in the handler's own transaction: all of it or nothing.

use std::time::Duration;

use postrider::progress::{Change, Progress, ProgressErrorKind, ProgressStore as _, Status};
use postrider::store::{Ask, Backend, Jobs, RelayId, Store as _, StoreErrorKind};

use super::{closed, done, job, postgres, sqlite};

async fn announced<S: Backend>(store: &S) -> usize {
    let relay = RelayId::new("ear").unwrap();
    store.lease(&relay, std::time::Duration::from_mins(5)).await.unwrap();
    store.claim(&relay, Ask::everything(1_000)).await.unwrap().len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_uncounts_and_a_commit_counts() {
    let (store, _folder) = sqlite().await;
    rolls_back_and_commits(&store).await;
    let (store, _database) = postgres().await;
    rolls_back_and_commits(&store).await;
}

async fn rolls_back_and_commits<S: Backend + Jobs>(store: &S) {
    let progress = Progress::new(store.clone());
    closed(store, "7", 2).await;
    let mut tx = store.begin().await.unwrap();
    progress.mark_in(&mut tx, &job("7"), &done(&["a", "b"])).await.unwrap();
    store.rollback(tx).await.unwrap();
    assert_eq!(progress.get(&job("7")).await.unwrap().unwrap().done, 0);
    assert_eq!(announced(store).await, 0);

    let mut tx = store.begin().await.unwrap();
    progress.mark_in(&mut tx, &job("7"), &done(&["a"])).await.unwrap();
    let repeated = progress.mark_in(&mut tx, &job("7"), &done(&["a", "b"])).await.unwrap();
    assert_eq!(repeated.counted, 1);
    store.commit(tx).await.unwrap();
    assert_eq!(progress.get(&job("7")).await.unwrap().unwrap().status, Status::Done);
    assert_eq!(announced(store).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn marks_and_the_end_of_discovery_may_share_a_transaction() {
    let (store, _folder) = sqlite().await;
    shares_a_transaction(&store).await;
    let (store, _database) = postgres().await;
    shares_a_transaction(&store).await;
}

async fn shares_a_transaction<S: Backend + Jobs>(store: &S) {
    let progress = Progress::new(store.clone());
    let new = postrider::progress::NewJob::new("7").unwrap();
    let mut tx = store.begin().await.unwrap();
    progress.init_in(&mut tx, &new).await.unwrap();
    progress.change_in(&mut tx, &new.id, &Change::SetTotal(2.into())).await.unwrap();
    progress.mark_in(&mut tx, &new.id, &done(&["a", "b"])).await.unwrap();
    let ended = progress.change_in(&mut tx, &new.id, &Change::EndDiscovery).await.unwrap();
    assert_eq!(ended.status, Status::Done);
    store.commit(tx).await.unwrap();
    assert_eq!(announced(store).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_step_cannot_be_committed() {
    let (store, _folder) = sqlite().await;
    refuses_to_commit(&store).await;
    let (store, _database) = postgres().await;
    refuses_to_commit(&store).await;
}

async fn refuses_to_commit<S: Backend + Jobs>(store: &S) {
    let progress = Progress::new(store.clone());
    closed(store, "7", 1).await;
    let mut tx = store.begin().await.unwrap();
    let refused = progress.mark_in(&mut tx, &job("7"), &done(&["a", "b"])).await.unwrap_err();
    assert_eq!(refused.kind, ProgressErrorKind::TooMany);
    let swallowed = store.commit(tx).await.unwrap_err();
    assert_eq!(swallowed.kind, StoreErrorKind::Invalid);
    assert!(swallowed.to_string().contains("not passed on"), "{swallowed}");
    assert_eq!(progress.mark(&job("7"), &done(&["a"])).await.unwrap().counted, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_transactions_that_overshoot_one_is_told_to_try_again() {
    let (store, _database) = postgres().await;
    let progress = Progress::new(store.clone());
    closed(&store, "7", 1).await;
    let (mut first, mut second) = (store.begin().await.unwrap(), store.begin().await.unwrap());
    progress.mark_in(&mut first, &job("7"), &done(&["a"])).await.unwrap();
    progress.mark_in(&mut second, &job("7"), &done(&["b"])).await.unwrap();
    store.commit(first).await.unwrap();
    let late = store.commit(second).await.unwrap_err();
    assert_eq!(late.kind, StoreErrorKind::Contended, "{late}");
    let again = progress.mark(&job("7"), &done(&["b"])).await.unwrap_err();
    assert_eq!(again.kind, ProgressErrorKind::AfterDone);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_mark_keeps_nobody_else_of_its_job_waiting() {
    let (store, _database) = postgres().await;
    let progress = Progress::new(store.clone());
    closed(&store, "7", 3).await;
    let mut slow = store.begin().await.unwrap();
    progress.mark_in(&mut slow, &job("7"), &done(&["a"])).await.unwrap();
    // A row lock held by the open transaction would stop this one here.
    progress.mark(&job("7"), &done(&["b"])).await.unwrap();
    assert_eq!(progress.get(&job("7")).await.unwrap().unwrap().done, 1);
    store.commit(slow).await.unwrap();
    assert_eq!(progress.get(&job("7")).await.unwrap().unwrap().done, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_items_of_old_jobs_are_forgotten_and_their_repeats_are_still_repeats() {
    let (store, _folder) = sqlite().await;
    forgets(&store).await;
    let (store, _database) = postgres().await;
    forgets(&store).await;
}

async fn forgets<S: Backend + Jobs>(store: &S) {
    let progress = Progress::new(store.clone());
    closed(store, "old", 2).await;
    closed(store, "running", 2).await;
    progress.mark(&job("old"), &done(&["a", "b"])).await.unwrap();
    progress.mark(&job("running"), &done(&["a"])).await.unwrap();
    assert_eq!(store.forget_items(Duration::from_hours(1), 10).await.unwrap(), 0);
    assert_eq!(store.forget_items(Duration::ZERO, 10).await.unwrap(), 2);
    assert_eq!(store.forget_items(Duration::ZERO, 10).await.unwrap(), 0);
    assert_eq!(progress.mark(&job("old"), &done(&["a", "c"])).await.unwrap().repeated, 2);
    assert_eq!(progress.mark(&job("running"), &done(&["a"])).await.unwrap().repeated, 1);
    assert_eq!(announced(store).await, 1);
}
