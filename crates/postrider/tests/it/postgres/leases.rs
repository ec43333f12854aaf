//! Relays share the slots, and one that lost them cannot mark.

use std::time::Duration;

use postrider::store::{Ask, PublishResult};
use postrider::{Outbox as _, Store as _};

use super::{LEASE, append, claim, connect, event, execute, ids, relay, settle, store};

#[tokio::test]
async fn a_relay_that_lost_its_lease_cannot_mark() {
    let (postgres, _database) = store().await;
    append(&postgres, vec![event("1", Some("x")), event("2", Some("x"))]).await;
    let (a, b) = (relay("a"), relay("b"));
    postgres.lease(&a, LEASE).await.unwrap();
    let rows = claim(&postgres, &a).await;
    assert_eq!(ids(&rows), ["1", "2"]);
    assert_eq!(postgres.lease(&b, LEASE).await.unwrap().len(), 0);

    // The database's clock decides, so the test moves the lease instead of a clock.
    execute(&postgres, "UPDATE postrider.outbox_slot SET lease_until = now() - interval '1 s'")
        .await
        .unwrap();
    execute(
        &postgres,
        "UPDATE postrider.outbox_relay SET seen_until = now() - interval '1 s' WHERE relay = 'a'",
    )
    .await
    .unwrap();
    assert!(claim(&postgres, &a).await.is_empty(), "an expired lease claims nothing");
    assert_eq!(postgres.lease(&b, LEASE).await.unwrap().len(), 64);
    assert_eq!(settle(&postgres, &a, &rows, &PublishResult::Published).await, 0);
    let failed = PublishResult::Failed { error: "late".to_owned(), retry_after: None };
    assert_eq!(settle(&postgres, &a, &rows, &failed).await, 0);

    let taken = claim(&postgres, &b).await;
    assert_eq!(ids(&taken), ["1", "2"]);
    assert_eq!(settle(&postgres, &b, &taken, &PublishResult::Published).await, 2);
    assert!(claim(&postgres, &b).await.is_empty());
    assert_eq!(postgres.lease(&a, LEASE).await.unwrap().len(), 0, "b gives back at its next renewal");
}

#[tokio::test]
async fn a_lease_that_ended_but_was_not_taken_still_marks() {
    let (postgres, _database) = store().await;
    append(&postgres, vec![event("1", None)]).await;
    let a = relay("a");
    postgres.lease(&a, LEASE).await.unwrap();
    let rows = claim(&postgres, &a).await;
    execute(&postgres, "UPDATE postrider.outbox_slot SET lease_until = now() - interval '1 s'")
        .await
        .unwrap();
    assert_eq!(settle(&postgres, &a, &rows, &PublishResult::Published).await, 1);
    assert_eq!(postgres.lease(&a, LEASE).await.unwrap().len(), 64, "nobody took them: they are renewed");
}

#[tokio::test]
async fn three_relays_come_to_fair_shares_and_share_again_when_one_goes() {
    let (postgres, _database) = store().await;
    let relays = [relay("a"), relay("b"), relay("c")];
    let mut held = [0; 3];
    for _ in 0..3 {
        for (relay, held) in relays.iter().zip(&mut held) {
            *held = postgres.lease(relay, LEASE).await.unwrap().len();
        }
    }
    held.sort_unstable();
    assert_eq!(held, [20, 22, 22]);
    let owned: i64 = sqlx::query_scalar("SELECT count(*) FROM postrider.outbox_slot WHERE owner IS NOT NULL")
        .fetch_one(postgres.pool())
        .await
        .unwrap();
    assert_eq!(owned, 64);

    postgres.release(&relays[0]).await.unwrap();
    for _ in 0..2 {
        assert_eq!(postgres.lease(&relays[1], LEASE).await.unwrap().len(), 32);
        assert_eq!(postgres.lease(&relays[2], LEASE).await.unwrap().len(), 32);
    }
}

#[tokio::test]
async fn relays_that_lease_at_the_same_time_never_hold_the_same_slot() {
    let (postgres, _database) = store().await;
    let mut tasks = Vec::new();
    for index in 0..8 {
        let postgres = postgres.clone();
        tasks.push(tokio::spawn(async move {
            let relay = relay(&format!("r{index}"));
            for _ in 0..20 {
                postgres.lease(&relay, LEASE).await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    for _ in 0..2 {
        for index in 0..8 {
            postgres.lease(&relay(&format!("r{index}")), LEASE).await.unwrap();
        }
    }
    let shares: Vec<i64> = sqlx::query_scalar("SELECT count(*) FROM postrider.outbox_slot GROUP BY owner")
        .fetch_all(postgres.pool())
        .await
        .unwrap();
    assert_eq!(shares, [8; 8]);
}

#[tokio::test]
async fn relays_share_also_where_transactions_are_serializable_by_default() {
    let (postgres, database) = store().await;
    let serializable = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = ''serializable''', \
         current_database()); END $$";
    execute(&postgres, serializable).await.unwrap();
    let postgres = connect(&database).await;
    let mut tasks = Vec::new();
    for index in 0..8 {
        let postgres = postgres.clone();
        tasks.push(tokio::spawn(async move {
            let relay = relay(&format!("r{index}"));
            for _ in 0..20 {
                postgres.lease(&relay, LEASE).await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn a_limited_claim_takes_the_lowest_positions() {
    let (postgres, _database) = store().await;
    append(&postgres, (0..300).map(|i| event(&format!("{i:03}"), Some(&format!("k{}", i % 7)))).collect())
        .await;
    let a = relay("a");
    postgres.lease(&a, LEASE).await.unwrap();
    for limit in [1, 3, 64, 100, 299] {
        let rows = postgres.claim(&a, Ask::everything(limit)).await.unwrap();
        let expected: Vec<_> = (0..limit).map(|i| format!("{i:03}")).collect();
        assert_eq!(ids(&rows), expected, "limit {limit}");
    }
}

#[tokio::test]
async fn an_append_wakes_whoever_waits() {
    let (postgres, _database) = store().await;
    // The first wait starts the listener, and ends when it listens.
    postgres.wait(Duration::from_secs(20)).await;
    let waiter = postgres.clone();
    let waiting = tokio::spawn(async move { waiter.wait(Duration::from_mins(1)).await });
    append(&postgres, vec![event("1", None)]).await;
    tokio::time::timeout(Duration::from_secs(5), waiting).await.expect("woken in time").unwrap();

    // An append between two waits is not missed either.
    let waiter = postgres.clone();
    append(&postgres, vec![event("2", None)]).await;
    execute(&postgres, "SELECT pg_sleep(0.2)").await.unwrap();
    tokio::time::timeout(Duration::from_secs(5), waiter.wait(Duration::from_mins(1)))
        .await
        .expect("not missed");
}

#[tokio::test]
async fn who_commits_beside_a_notifying_transaction_is_found_soon() {
    let (postgres, _database) = store().await;
    postgres.wait(Duration::from_secs(20)).await;
    // Two open transactions notify when they commit; a third beside them does not.
    let mut open = Vec::new();
    for id in ["1", "2"] {
        let mut tx = postgres.begin().await.unwrap();
        postgres.append(&mut tx, vec![event(id, None)]).await.unwrap();
        open.push(tx);
    }
    append(&postgres, vec![event("3", None)]).await;
    let a = relay("a");
    postgres.lease(&a, LEASE).await.unwrap();
    let mut seen = Vec::new();
    let looking = async {
        while seen.len() < 3 {
            postgres.wait(Duration::from_mins(1)).await;
            let rows = claim(&postgres, &a).await;
            settle(&postgres, &a, &rows, &PublishResult::Published).await;
            seen.extend(rows.into_iter().map(|row| row.envelope.id.to_string()));
            for tx in open.drain(..) {
                postgres.commit(tx).await.unwrap();
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), looking).await.expect("found long before the wait is over");
    assert_eq!(seen, ["3", "1", "2"]);
}

/// They keep others from it for a moment, and not for as long as they take. However often one appends, it holds one lock for it.
#[tokio::test]
async fn transactions_that_stay_open_keep_nobody_from_waking_relays() {
    let (postgres, _database) = store().await;
    let mut listener = sqlx::postgres::PgListener::connect_with(postgres.pool()).await.unwrap();
    listener.listen("postrider_outbox").await.unwrap();
    let mut open = Vec::new();
    for id in ["1", "2"] {
        let mut tx = postgres.begin().await.unwrap();
        postgres.append(&mut tx, vec![event(id, None)]).await.unwrap();
        open.push(tx);
    }
    execute(&postgres, "SELECT pg_sleep(0.5)").await.unwrap();
    append(&postgres, vec![event("3", None)]).await;
    tokio::time::timeout(Duration::from_secs(5), listener.recv()).await.expect("woken").unwrap();
    postgres.append(&mut open[0], vec![event("4", None)]).await.unwrap();
    let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1886352244 AND pid = pg_backend_pid()";
    let held: i64 = sqlx::query_scalar(held).fetch_one(open[0].connection()).await.unwrap();
    assert_eq!(held, 1);
    for tx in open {
        postgres.commit(tx).await.unwrap();
    }
}
