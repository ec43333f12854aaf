//! Published events that are looked for: a part of the outbox at a time, and wherever they went.

use jiff::Timestamp;
use postrider::postgres::Postgres;
use postrider::store::{
    Archive, Erase, Erasure as _, EventFilter, Found, HouseRules, Housekeeping as _, NewOperation,
    OperationKind, Operations as _, Replays as _,
};
use postrider::{Clock, EventId, Store as _};

use super::{execute, relay, store};

fn everything() -> EventFilter {
    let (from, to) = (Timestamp::UNIX_EPOCH, Clock::system().now() + jiff::SignedDuration::from_hours(1));
    EventFilter { aggregate_type: None, event_type: None, tenant: None, from, to }
}

fn operation() -> NewOperation {
    NewOperation {
        id: Clock::system().new_id(),
        kind: OperationKind::ReplayOutbox,
        plan: serde_json::json!({}),
        rate: None,
        created_by: "ada".to_owned(),
        reason: None,
    }
}

/// Two published events of January 2020, in a partition of their own.
async fn with_an_old_partition(postgres: &Postgres) {
    for sql in [
        "CREATE TABLE postrider.event_outbox_p20200101 PARTITION OF postrider.event_outbox \
         FOR VALUES FROM ('2020-01-01') TO ('2020-02-01')",
        "INSERT INTO postrider.event_outbox (id, aggregate_type, aggregate_id, event_type, payload, status, created_at, available_at) \
         SELECT 'old-' || n, 'shop.order', '1', 'placed', '{\"name\": \"Jane\"}', 'published', '2020-01-10', '2020-01-10' \
         FROM generate_series(1, 2) n",
    ] {
        execute(postgres, sql).await.unwrap();
    }
}

/// A partition that could not be archived, because its folder was full.
#[tokio::test]
async fn what_is_on_its_way_to_the_archive_is_found() {
    let (postgres, _database) = store().await;
    with_an_old_partition(&postgres).await;
    let detach = "ALTER TABLE postrider.event_outbox DETACH PARTITION postrider.event_outbox_p20200101";
    execute(&postgres, detach).await.unwrap();
    let found = postgres.count_events(&everything()).await.unwrap();
    assert_eq!(found, Found { live: 0, archived: 2 });
    let (operation, mut tx) = (operation(), postgres.begin().await.unwrap());
    postgres.create_operation(&mut tx, &operation).await.unwrap();
    assert_eq!(postgres.freeze_events(&mut tx, operation.id, &everything(), None).await.unwrap(), 2);
    let items: Vec<String> = sqlx::query_scalar("SELECT subject FROM postrider.operation_item ORDER BY seq")
        .fetch_all(tx.connection())
        .await
        .unwrap();
    assert_eq!(postgres.take_events(&mut tx, &items).await.unwrap().len(), 2);
    postgres.rollback(tx).await.unwrap();

    let one = Erase::Event(EventId::new("old-1").unwrap());
    assert_eq!(postgres.erase(&one, "ada", "asked").await.unwrap().rows, 1);
    let janes = "SELECT count(*) FROM postrider.event_outbox_p20200101 WHERE payload::text LIKE '%Jane%'";
    let janes: i64 = sqlx::query_scalar(janes).fetch_one(postgres.pool()).await.unwrap();
    assert_eq!(janes, 1, "the other one");
}

#[tokio::test]
async fn a_partition_that_ends_leaves_a_replay_what_it_has_to_send() {
    let (postgres, _database) = store().await;
    with_an_old_partition(&postgres).await;
    let (operation, mut tx) = (operation(), postgres.begin().await.unwrap());
    postgres.create_operation(&mut tx, &operation).await.unwrap();
    assert_eq!(postgres.freeze_events(&mut tx, operation.id, &everything(), None).await.unwrap(), 2);
    postgres.commit(tx).await.unwrap();
    let rules = HouseRules { archive: Archive::Nowhere, ..HouseRules::default() };
    let kept = postgres.keep_house(&relay("keeper"), &rules).await.unwrap().unwrap();
    assert_eq!(kept.partitions_ended, ["event_outbox_p20200101"]);
    let items: Vec<String> = sqlx::query_scalar("SELECT subject FROM postrider.operation_item ORDER BY seq")
        .fetch_all(postgres.pool())
        .await
        .unwrap();
    assert!(items.len() == 2 && items.iter().all(|item| item.contains("Jane")), "{items:?}");
    let id = "1".try_into().unwrap();
    for (which, left) in [
        (Erase::Event(EventId::new("old-1").unwrap()), 1),
        (Erase::Aggregate { kind: "shop.order".to_owned(), id }, 2),
    ] {
        assert_eq!(postgres.would_erase(&which).await.unwrap().replaying, left, "{which:?}");
    }
}

/// Where a sequence began anew: after an upgrade by logical replication, which does not bring sequences along.
#[tokio::test]
async fn retention_leaves_what_is_not_published_at_the_position_of_an_old_event() {
    let (postgres, _database) = store().await;
    let rows = "INSERT INTO postrider.event_outbox (position, id, aggregate_type, event_type, payload, status, created_at, available_at) VALUES \
        (1, 'old', 'shop.order', 'placed', '{}', 'published', '2020-01-10', '2020-01-10'), \
        (1, 'new', 'shop.order', 'placed', '{}', 'pending', now(), now() + interval '1 day')";
    execute(&postgres, rows).await.unwrap();
    let kept = postgres.keep_house(&relay("keeper"), &HouseRules::default()).await.unwrap().unwrap();
    assert_eq!(kept.removed, 1);
    let left: Vec<String> =
        sqlx::query_scalar("SELECT id FROM postrider.event_outbox").fetch_all(postgres.pool()).await.unwrap();
    assert_eq!(left, ["new"]);
}

/// However far apart their positions are.
#[tokio::test]
async fn all_of_an_outbox_is_looked_through() {
    let (postgres, _database) = store().await;
    let far = "INSERT INTO postrider.event_outbox (position, id, aggregate_type, event_type, payload, status) \
               SELECT place, 'e' || place, 'shop.order', 'placed', '{}', 'published' \
               FROM unnest(ARRAY[1, 2, 250001, 250002, 900000, 7000000000000000000]) place";
    execute(&postgres, far).await.unwrap();
    let filter = everything();
    assert_eq!(postgres.count_events(&filter).await.unwrap(), Found { live: 6, archived: 0 });
    for (limit, frozen) in [(None, 6), (Some(4), 4), (Some(2), 2), (Some(9), 6)] {
        let operation = operation();
        let mut tx = postgres.begin().await.unwrap();
        postgres.create_operation(&mut tx, &operation).await.unwrap();
        let total = postgres.freeze_events(&mut tx, operation.id, &filter, limit).await.unwrap();
        assert_eq!(total, frozen, "{limit:?}");
        let last: Option<i64> = sqlx::query_scalar("SELECT max(seq) FROM postrider.operation_item")
            .fetch_one(tx.connection())
            .await
            .unwrap();
        let expected = [2, 250_002, 7_000_000_000_000_000_000];
        assert_eq!(last, Some(expected[usize::try_from(frozen / 2 - 1).unwrap()]), "the first of them");
        postgres.rollback(tx).await.unwrap();
    }
}
