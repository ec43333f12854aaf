//! Publications that somebody made or changed by hand.

use postrider::store::Outboxes as _;
use postrider::{Event, Outbox as _, Store as _};

use super::{Stage, event, events};

/// Whether a stream is open that brings every new row.
async fn tells(stage: &Stage) -> bool {
    stage.store.stream_state().await.unwrap().is_some_and(|state| state.tells)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_other_tables_of_a_publication_have_is_none_of_ours() {
    let stage = Stage::new().await;
    stage.store.create_outbox("other_outbox").await.unwrap();
    let other = stage.store.outbox("other_outbox").unwrap();
    stage
        .execute(
            "CREATE PUBLICATION postrider_postrider_event_outbox FOR ALL TABLES \
             WITH (publish = 'insert', publish_via_partition_root = true)",
        )
        .await;
    let running = stage.start_streaming().await;
    // At the same positions, and in the same transactions.
    for number in 0..20 {
        let mut tx = stage.store.begin().await.unwrap();
        let strange = Event::new("shop.order.placed").unwrap().id(format!("other-{number}")).unwrap();
        other.append(&mut tx, vec![strange]).await.unwrap();
        stage.store.append(&mut tx, vec![event("a", number)]).await.unwrap();
        stage.store.commit(tx).await.unwrap();
    }
    stage.drained(20).await;
    stage.in_order();
    assert!(stage.broker.taken().iter().all(|id| id.starts_with("a-")), "{:?}", stage.broker.taken());
    assert_eq!(other.backlog().await.unwrap().due, 20, "they wait for their own relay");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publication_that_tells_of_nothing_is_made_anew() {
    let stage = Stage::new().await;
    stage
        .execute("CREATE PUBLICATION postrider_postrider_event_outbox FOR TABLE postrider.event_outbox WITH (publish = 'update')")
        .await;
    let running = stage.start_streaming().await;
    stage.until("it tells", async || tells(&stage).await).await;
    stage.commit(events("a", 0..10)).await;
    stage.drained(10).await;
    // While it streams.
    stage
        .execute("ALTER PUBLICATION postrider_postrider_event_outbox DROP TABLE postrider.event_outbox")
        .await;
    stage.commit(events("a", 10..20)).await;
    stage.until("it tells again", async || tells(&stage).await).await;
    stage.commit(events("a", 20..30)).await;
    stage.drained(30).await;
    stage.in_order();
    running.stop().await;
}
