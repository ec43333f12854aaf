//! What happens to a stream, and what a relay makes of it: it polls, says so, and comes back; nothing is lost.

use std::sync::atomic::Ordering;
use std::time::Duration;

use postrider::Outbox as _;
use postrider::store::{Opening, RelayId};

use super::{Stage, event, events};

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_cut_off_is_opened_again() {
    let stage = Stage::new().await;
    let running = stage.start_streaming().await;
    for round in 0..3 {
        let from = round * 300;
        stage.commit(events("a", from..from + 100)).await;
        stage.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = current_database()").await;
        stage.commit(events("a", from + 100..from + 200)).await;
        stage.until("it polls", async || !running.status.is_streaming()).await;
        stage.commit(events("a", from + 200..from + 300)).await;
        stage.drained(from + 300).await;
        stage.until("it streams", async || running.status.is_streaming()).await;
    }
    stage.in_order();
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_its_limit_the_log_is_let_go_and_the_table_has_everything() {
    let mut stage = Stage::new().await;
    stage.config.max_lag_bytes = 4 << 20;
    let running = stage.start_streaming().await;
    stage.broker.away.store(true, Ordering::Release);
    let large = "x".repeat(4000);
    for number in 0..4000 {
        // Not compressible by much, so that the log grows.
        let noise: String = (0..40).map(|_| stage.clock.new_id().to_string()).collect();
        stage.commit(vec![event("a", number).json(&(noise, &large)).unwrap()]).await;
        if !running.status.is_streaming() {
            break;
        }
    }
    stage.until("it polls", async || !running.status.is_streaming()).await;
    stage.until("the slot is gone", async || stage.slots().await == 0).await;
    let waiting = usize::try_from(stage.store.backlog().await.unwrap().due).unwrap();
    // However few: the log is the whole server's, and others write too.
    assert!(waiting > 0);
    stage.broker.away.store(false, Ordering::Release);
    stage.drained(waiting).await;
    stage.until("it streams", async || running.status.is_streaming()).await;
    stage.commit(vec![event("a", 9999)]).await;
    stage.drained(waiting + 1).await;
    stage.in_order();
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_broker_pauses_the_stream_and_costs_no_attempt() {
    let stage = Stage::new().await;
    let running = stage.start_streaming().await;
    stage.broker.away.store(true, Ordering::Release);
    stage.commit(events("a", 0..5000)).await;
    stage.until("it pauses", async || running.status.is_paused()).await;
    stage.broker.away.store(false, Ordering::Release);
    stage.drained(5000).await;
    stage.in_order();
    assert!(running.status.is_streaming());
    assert_eq!(running.status.failed(), 0);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_relay_streams_and_the_next_takes_over() {
    let stage = Stage::new().await;
    let first = stage.start_streaming().await;
    let second = stage.start();
    stage.commit(events("a", 0..100)).await;
    stage.drained(100).await;
    assert!(first.status.is_streaming() && !second.status.is_streaming());
    assert_eq!(stage.slots().await, 1);
    first.stop().await;
    stage.commit(events("a", 100..200)).await;
    stage.until("the second streams", async || second.status.is_streaming()).await;
    stage.commit(events("a", 200..300)).await;
    stage.drained(300).await;
    stage.in_order();
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_was_away_beyond_its_lease_marks_nothing_and_begins_anew() {
    let stage = Stage::new().await;
    let first = stage.start_streaming().await;
    stage.commit(events("a", 0..100)).await;
    stage.drained(100).await;
    // As if it had slept: its time is over and another has everything.
    stage
        .execute(
            "WITH slots AS (UPDATE postrider.outbox_slot SET owner = 'other', epoch = epoch + 1, \
                 lease_until = now() + interval '3 s') \
             UPDATE postrider.outbox SET streamer = 'other', streamer_until = now() + interval '3 s', stream_slot = 'gone'",
        )
        .await;
    stage.until("the first ends its stream", async || !first.status.is_streaming()).await;
    stage.commit(events("a", 100..200)).await;
    stage.until("it streams again", async || first.status.is_streaming()).await;
    stage.commit(events("a", 200..300)).await;
    stage.drained(300).await;
    stage.in_order();
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_replicate_polls_and_is_told_what_to_do() {
    let stage = Stage::new().await;
    let role = format!("poor_{}", stage.clock.new_id().simple());
    let sql = format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA postrider TO {role}; \
         GRANT ALL ON ALL TABLES IN SCHEMA postrider TO {role}; GRANT ALL ON ALL SEQUENCES IN SCHEMA postrider TO {role}"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(stage.store.pool()).await.unwrap();
    let url = stage.database.url.replace("postgres@", &format!("{role}@"));
    let poor = Stage {
        store: Stage::connect(&url).await,
        broker: stage.broker.clone(),
        clock: stage.clock.clone(),
        config: stage.config.clone(),
        database: super::shared().unwrap().database().await.unwrap(),
    };
    let opened = poor.store.open_stream(&RelayId::new("r").unwrap(), Duration::from_secs(2)).await.unwrap();
    let Opening::Impossible(why) = opened else { panic!("it may stream") };
    assert!(why.contains(&format!("ALTER ROLE {role} REPLICATION")), "{why}");
    let running = poor.start();
    stage.commit(events("a", 0..10)).await;
    stage.drained(10).await;
    running.stop().await;
    // With the right, the publication is still the owner's to make.
    let grant = format!("ALTER ROLE {role} REPLICATION");
    sqlx::raw_sql(sqlx::AssertSqlSafe(grant)).execute(stage.store.pool()).await.unwrap();
    let opened = poor.store.open_stream(&RelayId::new("r").unwrap(), Duration::from_secs(2)).await.unwrap();
    let Opening::Impossible(why) = opened else { panic!("it may stream") };
    assert!(why.contains("CREATE PUBLICATION postrider_postrider_event_outbox"), "{why}");
    let drop = format!("DROP OWNED BY {role}; DROP ROLE {role}");
    poor.store.close().await;
    sqlx::raw_sql(sqlx::AssertSqlSafe(drop)).execute(stage.store.pool()).await.unwrap();
}
