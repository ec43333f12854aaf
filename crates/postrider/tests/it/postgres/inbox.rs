//! Two transactions at the same door.

use std::time::Duration;

use postrider::postgres::{Postgres, PostgresTx};
use postrider::store::{Admission, Arrival};
use postrider::topology::ConsumerName;
use postrider::{EventId, Inbox as _, Payload, Store as _};

use super::store;

fn arrival(id: &str, payload: &str) -> Arrival {
    let payload_hash = Payload::new("application/json", payload.to_owned()).hash();
    Arrival { event_id: EventId::new(id).unwrap(), tenant: None, payload_hash }
}

async fn admit(postgres: &Postgres, tx: &mut PostgresTx, arrivals: &[Arrival]) -> Vec<Admission> {
    let consumer = ConsumerName::new("mail").unwrap();
    postgres.admit(tx, &consumer, arrivals).await.unwrap()
}

/// An arrival among so many others that it is not marked alone.
fn among_others(arrival: Arrival, others: usize, of: &str) -> Vec<Arrival> {
    let others = (0..others).map(|other| self::arrival(&format!("{of}-{other}"), "{}"));
    std::iter::once(arrival).chain(others).collect()
}

/// The first transaction holds the mark while the second asks; returns what the second is told. Of one event, and of one among others.
async fn second_while_first(commit: bool, payload: &'static str) -> Admission {
    let alone = second_of(commit, payload, 0).await;
    assert_eq!(alone, second_of(commit, payload, 40).await);
    alone
}

async fn second_of(commit: bool, payload: &'static str, others: usize) -> Admission {
    let (postgres, _database) = store().await;
    let mut first = postgres.begin().await.unwrap();
    let arrivals = among_others(arrival("1", "{}"), others, "first");
    assert_eq!(admit(&postgres, &mut first, &arrivals).await, vec![Admission::New; 1 + others]);
    let second = tokio::spawn({
        let postgres = postgres.clone();
        async move {
            let mut tx = postgres.begin().await.unwrap();
            let arrivals = among_others(arrival("1", payload), others, "second");
            let admissions = admit(&postgres, &mut tx, &arrivals).await;
            postgres.commit(tx).await.unwrap();
            assert!(admissions[1..].iter().all(|admission| *admission == Admission::New), "{admissions:?}");
            admissions[0].clone()
        }
    });
    loop {
        let waiting: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.datname = current_database() \
                 JOIN pg_stat_activity a ON a.pid = l.pid AND a.datid = d.oid WHERE NOT l.granted",
        )
        .fetch_one(postgres.pool())
        .await
        .unwrap();
        if waiting > 0 {
            break;
        }
    }
    assert!(!second.is_finished(), "the second waits for the first");
    if commit {
        postgres.commit(first).await.unwrap();
    } else {
        postgres.rollback(first).await.unwrap();
    }
    tokio::time::timeout(Duration::from_secs(10), second).await.unwrap().unwrap()
}

#[tokio::test]
async fn the_second_waits_and_is_new_if_the_first_rolls_back() {
    assert_eq!(second_while_first(false, "{}").await, Admission::New);
}

#[tokio::test]
async fn the_second_waits_and_is_a_duplicate_if_the_first_commits() {
    assert_eq!(second_while_first(true, " {} ").await, Admission::Duplicate(None));
    assert_eq!(second_while_first(true, "[]").await, Admission::Conflict);
}

#[tokio::test]
async fn the_same_id_twice_in_a_batch_is_new_once() {
    let (postgres, _database) = store().await;
    let mut tx = postgres.begin().await.unwrap();
    let batch = [arrival("b", "1"), arrival("a", "1"), arrival("b", "1"), arrival("b", "2")];
    let expected = [Admission::New, Admission::New, Admission::Duplicate(None), Admission::Conflict];
    assert_eq!(admit(&postgres, &mut tx, &batch).await, expected);
    assert_eq!(admit(&postgres, &mut tx, &[]).await, []);
    postgres.commit(tx).await.unwrap();
    let mut tx = postgres.begin().await.unwrap();
    let expected = [
        Admission::Duplicate(None),
        Admission::Duplicate(None),
        Admission::Duplicate(None),
        Admission::Conflict,
    ];
    assert_eq!(admit(&postgres, &mut tx, &batch).await, expected);
    let other = ConsumerName::new("ledger").unwrap();
    assert_eq!(postgres.admit(&mut tx, &other, &batch[..1]).await.unwrap(), [Admission::New]);
}

#[tokio::test]
async fn a_duplicate_among_many_takes_nothing_back_that_was_written_before() {
    let (postgres, _database) = store().await;
    let many = among_others(arrival("1", "{}"), 40, "many");
    let mut tx = postgres.begin().await.unwrap();
    assert_eq!(admit(&postgres, &mut tx, &many[..1]).await, [Admission::New]);
    postgres.commit(tx).await.unwrap();

    let mut tx = postgres.begin().await.unwrap();
    sqlx::raw_sql("CREATE TABLE effect (what text); INSERT INTO effect VALUES ('before')")
        .execute(tx.connection())
        .await
        .unwrap();
    let mut expected = vec![Admission::New; many.len()];
    expected[0] = Admission::Duplicate(None);
    assert_eq!(admit(&postgres, &mut tx, &many).await, expected);
    postgres.commit(tx).await.unwrap();

    let count = |sql| sqlx::query_scalar::<_, i64>(sql).fetch_one(postgres.pool());
    assert_eq!(count("SELECT count(*) FROM effect").await.unwrap(), 1);
    assert_eq!(count("SELECT count(*) FROM postrider.event_inbox").await.unwrap(), 41);
}

#[tokio::test]
async fn batches_in_any_order_do_not_deadlock() {
    let (postgres, _database) = store().await;
    let mut tasks = Vec::new();
    for task in 0..6 {
        let postgres = postgres.clone();
        tasks.push(tokio::spawn(async move {
            let mut fresh = 0;
            for round in 0..10 {
                let mut batch: Vec<_> = (0..50).map(|i| arrival(&format!("{round}-{i}"), "{}")).collect();
                if task % 2 == 0 {
                    batch.reverse();
                }
                let mut tx = postgres.begin().await.unwrap();
                let admissions = admit(&postgres, &mut tx, &batch).await;
                postgres.commit(tx).await.unwrap();
                fresh += admissions.iter().filter(|admission| **admission == Admission::New).count();
            }
            fresh
        }));
    }
    let mut fresh = 0;
    for task in tasks {
        fresh += task.await.unwrap();
    }
    assert_eq!(fresh, 500);
}
