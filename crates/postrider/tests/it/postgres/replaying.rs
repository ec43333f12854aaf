//! Published events that are looked for a part of the outbox at a time.

use jiff::Timestamp;
use postrider::store::{EventFilter, Found, NewOperation, OperationKind, Operations as _, Replays as _};
use postrider::{Clock, Store as _};

use super::{execute, store};

/// However far apart their positions are.
#[tokio::test]
async fn all_of_an_outbox_is_looked_through() {
    let (postgres, _database) = store().await;
    let far = "INSERT INTO postrider.event_outbox (position, id, aggregate_type, event_type, payload, status) \
               SELECT place, 'e' || place, 'shop.order', 'placed', '{}', 'published' \
               FROM unnest(ARRAY[1, 2, 250001, 250002, 900000, 7000000000000000000]) place";
    execute(&postgres, far).await.unwrap();
    let (from, to) = (Timestamp::UNIX_EPOCH, Clock::system().now() + jiff::SignedDuration::from_hours(1));
    let filter = EventFilter { aggregate_type: None, event_type: None, tenant: None, from, to };
    assert_eq!(postgres.count_events(&filter).await.unwrap(), Found { live: 6, archived: 0 });
    for (limit, frozen) in [(None, 6), (Some(4), 4), (Some(2), 2), (Some(9), 6)] {
        let operation = NewOperation {
            id: Clock::system().new_id(),
            kind: OperationKind::ReplayOutbox,
            plan: serde_json::json!({}),
            rate: None,
            created_by: "ada".to_owned(),
            reason: None,
        };
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
