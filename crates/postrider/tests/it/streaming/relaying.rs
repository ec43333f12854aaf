//! What a relay that streams publishes: everything, once, in the order of each key.

use std::time::Duration;

use postrider::relay::{RelayConfig, RelayMode};
use postrider::{Outbox as _, Store as _};

use super::{Stage, event, events};

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_polled_and_what_comes_is_streamed() {
    let stage = Stage::new().await;
    stage.commit(events("a", 0..700)).await;
    stage.commit(events("b", 0..700)).await;
    let running = stage.start();
    // Commits while it changes from one to the other.
    let mut number = 700;
    while !running.status.is_streaming() {
        stage.commit(vec![event("a", number), event("b", number)]).await;
        number += 1;
        assert!(number < 100_000, "it never streams");
    }
    for number in number..number + 200 {
        stage.commit(vec![event("a", number), event("b", number)]).await;
    }
    stage.drained(2 * (number + 200)).await;
    stage.in_order();
    assert!(running.status.is_streaming());
    running.stop().await;
    stage.until("nothing is left on the server", async || stage.slots().await == 0).await;
    assert_eq!(stage.store.stream_state().await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduled_event_goes_when_its_time_has_come() {
    let stage = Stage::new().await;
    let running = stage.start_streaming().await;
    let later = stage.clock.now() + Duration::from_secs(1);
    stage.commit(vec![event("a", 1).available_at(later), event("b", 1)]).await;
    stage.until("the other one is out", async || stage.broker.taken() == ["b-1"]).await;
    stage.drained(2).await;
    assert!(stage.clock.now() >= later);
    running.stop().await;
}

/// Brought along as failed: it is found in the table, and what follows it must not come by the stream meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn what_failed_elsewhere_goes_before_what_follows_it() {
    let stage = Stage::new().await;
    let running = stage.start_streaming().await;
    stage
        .execute(
            "INSERT INTO postrider.event_outbox (id, aggregate_type, aggregate_id, event_type, payload, status) VALUES \
             ('a-1', 'shop.order', 'a', 'changed', '{}', 'failed'), ('a-2', 'shop.order', 'a', 'changed', '{}', 'pending')",
        )
        .await;
    stage.until("both are out", async || stage.broker.taken().len() == 2).await;
    assert_eq!(stage.broker.taken(), ["a-1", "a-2"]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_head_holds_its_key_alone_and_the_key_comes_back_to_the_stream() {
    let stage = Stage::new().await;
    let running = stage.start_streaming().await;
    stage.broker.want("a-1", false);
    stage.commit(vec![event("a", 0), event("a", 1), event("a", 2), event("b", 1)]).await;
    stage.until("it failed", async || running.status.failed() > 0).await;
    stage.commit(vec![event("a", 3), event("b", 2)]).await;
    stage.until("the other key flows", async || stage.broker.taken().contains(&"b-2".to_owned())).await;
    stage.broker.want("a-1", true);
    // Some come while what waited is drained, some after it.
    for number in 4..200 {
        stage.commit(vec![event("a", number), event("b", number)]).await;
    }
    stage.drained(200 + 198).await;
    stage.in_order();
    assert!(running.status.is_streaming());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_head_parks_its_key_until_it_is_unparked() {
    use postrider::store::{OutboxDesk as _, Unpark};
    let mut stage = Stage::new().await;
    stage.config.max_attempts = 1;
    stage.broker.want("a-1", false);
    stage.commit(vec![event("a", 1), event("a", 2)]).await;
    // Dead before the stream began.
    let running = stage.start_streaming().await;
    stage.commit(vec![event("a", 3), event("b", 1)]).await;
    stage.until("the other key flows", async || stage.broker.taken() == ["b-1"]).await;
    assert_eq!(stage.store.backlog().await.unwrap().parked_keys, 1);
    stage.broker.want("a-1", true);
    let key = event("a", 1).into_envelope(&stage.clock).ordering_key.unwrap();
    assert_eq!(stage.store.unpark(&Unpark::Key(key)).await.unwrap().len(), 1);
    stage.drained(4).await;
    stage.in_order();
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_hot_key_leaves_room_for_others_and_keeps_its_order() {
    let stage = Stage::new().await;
    let running = stage.start_streaming().await;
    stage.commit(events("hot", 0..3000)).await;
    stage.commit(events("cold", 0..10)).await;
    stage.drained(3010).await;
    stage.in_order();
    let taken = stage.broker.taken();
    let cold = taken.iter().rposition(|id| id.starts_with("cold")).unwrap();
    assert!(cold < 3000, "cold ones wait for nobody: {cold}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_transaction_comes_whole_and_without_what_was_rolled_back() {
    let stage = Stage::new().await;
    let running = stage.start_streaming().await;
    let mut tx = stage.store.begin().await.unwrap();
    for chunk in 0..10 {
        stage.store.append(&mut tx, events(&format!("k{chunk}"), 0..2000)).await.unwrap();
    }
    let connection = tx.connection();
    sqlx::query("SAVEPOINT s").execute(&mut *connection).await.unwrap();
    stage.store.append(&mut tx, events("undone", 0..10)).await.unwrap();
    let connection = tx.connection();
    sqlx::query("ROLLBACK TO SAVEPOINT s").execute(&mut *connection).await.unwrap();
    stage.store.append(&mut tx, events("last", 0..10)).await.unwrap();
    stage.store.commit(tx).await.unwrap();
    stage.drained(20_010).await;
    stage.in_order();
    assert!(running.status.is_streaming());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_was_open_when_it_began_is_not_missed() {
    let stage = Stage::new().await;
    let mut slow = stage.store.begin().await.unwrap();
    stage.store.append(&mut slow, vec![event("slow", 1)]).await.unwrap();
    let running = stage.start();
    // Polled meanwhile: a stream cannot begin before that transaction has ended.
    stage.commit(events("a", 0..10)).await;
    stage.until("others are out", async || stage.broker.taken().len() == 10).await;
    assert!(!running.status.is_streaming());
    stage.store.commit(slow).await.unwrap();
    stage.until("it streams", async || running.status.is_streaming()).await;
    stage.commit(events("a", 10..20)).await;
    stage.drained(21).await;
    stage.in_order();
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_outbox_has_a_stream_of_its_own() {
    use postrider::store::Outboxes as _;
    let stage = Stage::new().await;
    stage.store.create_outbox("fis_outbox").await.unwrap();
    let fis = Stage {
        store: stage.store.outbox("fis_outbox").unwrap(),
        broker: std::sync::Arc::default(),
        clock: stage.clock.clone(),
        config: stage.config.clone(),
        database: super::shared().unwrap().database().await.unwrap(),
    };
    let (ours, theirs) = (stage.start_streaming().await, fis.start_streaming().await);
    stage.commit(events("a", 0..10)).await;
    fis.commit(events("b", 0..20)).await;
    stage.drained(10).await;
    fis.drained(20).await;
    ours.stop().await;
    theirs.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_is_to_poll_polls() {
    let mut stage = Stage::new().await;
    stage.config = RelayConfig { mode: RelayMode::Poll, ..stage.config };
    let running = stage.start();
    stage.commit(events("a", 0..10)).await;
    stage.drained(10).await;
    stage.commit(events("a", 10..20)).await;
    stage.drained(20).await;
    assert_eq!((running.status.is_streaming(), stage.slots().await), (false, 0));
    running.stop().await;
}

/// What waited behind a dead head was passed by long ago: nobody tells a relay that somebody took the head away.
#[tokio::test(flavor = "multi_thread")]
async fn what_waited_behind_a_head_that_is_deleted_is_not_overtaken() {
    let mut stage = Stage::new().await;
    stage.config = RelayConfig { mode: RelayMode::Poll, max_attempts: 1, ..stage.config };
    stage.broker.want("a-1", false);
    stage.commit(vec![event("a", 1), event("a", 2)]).await;
    let running = stage.start();
    stage.until("it is dead", async || stage.store.backlog().await.unwrap().parked_keys == 1).await;
    // Others flow, until the low-water mark is beyond it.
    let (started, mut number) = (stage.clock.monotonic(), 0);
    while stage.clock.since(started) < Duration::from_secs(1) {
        number += 1;
        stage.commit(vec![event("b", number)]).await;
        stage.until("it is out", async || stage.broker.taken().len() == number).await;
    }
    stage.execute("DELETE FROM postrider.event_outbox WHERE id = 'a-1'").await;
    stage.commit(vec![event("a", 3)]).await;
    stage.drained(number + 2).await;
    stage.in_order();
    running.stop().await;
}
