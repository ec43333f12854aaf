//! What rows go through between append and published.

use std::time::Duration;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use postrider::broker::{HeaderValue, Properties};
use postrider::postgres::{Postgres, PostgresConfig};
use postrider::store::{Ask, DeadLetter, DeadLetters as _, OutboxDesk as _, PublishResult, Wanted};
use postrider::topology::QueueName;
use postrider::{Clock, EventId, Outbox as _, Payload, Store as _};

use super::{LEASE, append, claim, event, execute, ids, let_rows_be_dated_ahead, relay, settle, store};

/// No index has the ids: whoever looked for one that is not there would read the whole table.
#[tokio::test]
async fn an_id_that_is_not_among_the_ids_is_not_looked_for_in_the_table() {
    let (postgres, _database) = store().await;
    // One after the other: what was committed together has one time, and is found by that of its neighbour.
    append(&postgres, vec![event("1", None)]).await;
    append(&postgres, vec![event("2", None)]).await;
    let known = ["1", "2"].map(|id| EventId::new(id).unwrap());
    assert_eq!(postgres.committed(&known).await.unwrap().len(), 2);
    execute(&postgres, "DELETE FROM postrider.event_outbox_id WHERE id = '2'").await.unwrap();
    assert!(postgres.find(&known[0]).await.unwrap().is_some());
    assert!(postgres.find(&known[1]).await.unwrap().is_none());
    assert_eq!(postgres.committed(&known).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_failed_head_holds_up_its_key_and_nothing_else() {
    let (postgres, _database) = store().await;
    append(
        &postgres,
        vec![event("a1", Some("a")), event("a2", Some("a")), event("b1", Some("b")), event("free", None)],
    )
    .await;
    let a = relay("a");
    postgres.lease(&a, LEASE).await.unwrap();
    let rows = claim(&postgres, &a).await;
    let retry_after = Some(Duration::MAX);
    let failed = PublishResult::Failed { error: "no \0 route".to_owned(), retry_after };
    assert_eq!(settle(&postgres, &a, &rows[..1], &failed).await, 1);
    assert_eq!(ids(&claim(&postgres, &a).await), ["b1", "free"]);

    // Its time comes: the head alone.
    execute(&postgres, "UPDATE postrider.event_outbox SET available_at = now() WHERE id = 'a1'")
        .await
        .unwrap();
    let rows = claim(&postgres, &a).await;
    assert_eq!(ids(&rows), ["a1", "b1", "free"]);
    assert_eq!(rows[0].attempts, 1);
    assert_eq!(settle(&postgres, &a, &rows, &PublishResult::Published).await, 3);
    let rows = claim(&postgres, &a).await;
    assert_eq!(ids(&rows), ["a2"]);

    // A dead head parks its key for good.
    let dead = PublishResult::Failed { error: "too large".to_owned(), retry_after: None };
    assert_eq!(settle(&postgres, &a, &rows, &dead).await, 1);
    append(&postgres, vec![event("a3", Some("a")), event("c1", Some("c"))]).await;
    assert_eq!(ids(&claim(&postgres, &a).await), ["c1"]);
    let counts: Vec<(String, String, i32)> =
        sqlx::query_as("SELECT id, status, attempts FROM postrider.event_outbox ORDER BY position")
            .fetch_all(postgres.pool())
            .await
            .unwrap();
    assert_eq!(counts[0], ("a1".to_owned(), "published".to_owned(), 1));
    assert_eq!(counts[1], ("a2".to_owned(), "dead".to_owned(), 1));
}

#[tokio::test]
async fn a_row_dated_days_ahead_is_found_by_the_look_at_everything() {
    let (postgres, _database) = store().await;
    append(&postgres, vec![event("now", None)]).await;
    let_rows_be_dated_ahead(&postgres).await;
    let ahead = "INSERT INTO postrider.event_outbox (id, aggregate_type, event_type, payload, created_at) \
                 VALUES ('ahead', 'shop.order', 'placed', '{}', now() + interval '40 days')";
    execute(&postgres, ahead).await.unwrap();
    let a = relay("a");
    postgres.lease(&a, LEASE).await.unwrap();
    let look = async |since| {
        let wanted = Wanted::New { after: 0, since };
        let rows = postgres.claim(&a, Ask { wanted, ..Ask::everything(10) }).await.unwrap();
        ids(&rows).join(" ")
    };
    assert_eq!(look(Some(Clock::system().now() - SignedDuration::from_hours(24))).await, "now");
    assert_eq!(look(None).await, "now ahead");
}

#[tokio::test]
async fn several_failed_rows_of_a_key_come_back_one_by_one() {
    let (postgres, _database) = store().await;
    append(&postgres, (1..=3).map(|i| event(&i.to_string(), Some("x"))).collect()).await;
    let a = relay("a");
    postgres.lease(&a, LEASE).await.unwrap();
    let rows = claim(&postgres, &a).await;
    let failed = PublishResult::Failed { error: "returned".to_owned(), retry_after: Some(Duration::ZERO) };
    settle(&postgres, &a, &rows, &failed).await;
    for id in ["1", "2", "3"] {
        let rows = claim(&postgres, &a).await;
        assert_eq!(ids(&rows), [id]);
        settle(&postgres, &a, &rows, &PublishResult::Published).await;
    }
}

/// As many as a full queue leaves behind, each of a key of its own, and more than PostgreSQL hashes. What they hold up waits, and nothing else.
#[tokio::test]
async fn a_claim_is_quick_beside_very_many_failing_keys() {
    let (postgres, database) = store().await;
    for sql in [
        // So that fewer of them are very many.
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET work_mem = ''1MB''', current_database()); END $$",
        "INSERT INTO postrider.event_outbox (id, aggregate_type, aggregate_id, event_type, payload, status, available_at) \
         SELECT 'full-' || n, 'shop.order', 'order-of-a-customer-' || n, 'placed', '{}', 'failed', now() + interval '1 hour' \
         FROM generate_series(1, 60000) n",
        "INSERT INTO postrider.event_outbox (id, aggregate_type, aggregate_id, event_type, payload) \
         SELECT 'behind-' || n, 'shop.order', 'order-of-a-customer-' || n * 30, 'changed', '{}' FROM generate_series(1, 2000) n",
        "INSERT INTO postrider.event_outbox (id, aggregate_type, aggregate_id, event_type, payload) \
         SELECT 'free-' || n, 'shop.item', 'item-' || n, 'sold', '{}' FROM generate_series(1, 2000) n",
        "ANALYZE postrider.event_outbox",
    ] {
        execute(&postgres, sql).await.unwrap();
    }
    let config =
        PostgresConfig { statement_limit: Duration::from_secs(8), ..PostgresConfig::new(&database.url) };
    let quick = Postgres::connect(config, Clock::system()).await.unwrap();
    let a = relay("a");
    quick.lease(&a, LEASE).await.unwrap();
    let rows = quick.claim(&a, Ask::everything(5000)).await.unwrap();
    assert_eq!(rows.len(), 2000);
    assert!(ids(&rows).iter().all(|id| id.starts_with("free-")));
    // And of those whose time has come, each is the head of its key.
    let due = "UPDATE postrider.event_outbox SET available_at = now() WHERE id LIKE 'full-1%'";
    execute(&postgres, due).await.unwrap();
    let rows = quick.claim(&a, Ask { wanted: Wanted::Timed, ..Ask::everything(500) }).await.unwrap();
    assert_eq!(rows.len(), 500);
    assert!(ids(&rows).iter().all(|id| id.starts_with("full-1")));
}

#[tokio::test]
async fn a_published_row_stays_published() {
    let (postgres, _database) = store().await;
    append(&postgres, vec![event("1", None)]).await;
    let a = relay("a");
    postgres.lease(&a, LEASE).await.unwrap();
    let rows = claim(&postgres, &a).await;
    assert_eq!(settle(&postgres, &a, &rows, &PublishResult::Published).await, 1);
    let failed = PublishResult::Failed { error: "late".to_owned(), retry_after: None };
    assert_eq!(settle(&postgres, &a, &rows, &failed).await, 0);
}

#[tokio::test]
async fn a_retry_waits_for_its_delay_whatever_our_clock_says() {
    let (postgres, database) = store().await;
    append(&postgres, vec![event("1", None)]).await;
    // A client whose clock stands in 1970.
    let (clock, _hands) = Clock::manual(Timestamp::UNIX_EPOCH);
    let config = PostgresConfig::new(&database.url);
    let client = Postgres::connect(config, clock.clone()).await.unwrap();
    let a = relay("a");
    client.lease(&a, LEASE).await.unwrap();
    let rows = claim(&client, &a).await;
    // Backoff has fractions that an interval of PostgreSQL has not.
    let retry_after = Some(Duration::new(600, 123_456_789));
    settle(&client, &a, &rows, &PublishResult::Failed { error: "x".to_owned(), retry_after }).await;
    let seconds: f64 = sqlx::query_scalar(
        "SELECT extract(epoch FROM available_at - now())::float8 FROM postrider.event_outbox",
    )
    .fetch_one(postgres.pool())
    .await
    .unwrap();
    assert!((590.0..=600.2).contains(&seconds), "{seconds}");
}

#[tokio::test]
async fn a_scheduled_event_waits() {
    let (postgres, _database) = store().await;
    let tomorrow = Clock::system().now().saturating_add(SignedDuration::from_hours(24)).unwrap();
    append(&postgres, vec![event("later", None).available_at(tomorrow), event("now", None)]).await;
    let a = relay("a");
    postgres.lease(&a, LEASE).await.unwrap();
    assert_eq!(ids(&claim(&postgres, &a).await), ["now"]);
}

#[tokio::test]
async fn bytes_of_any_kind_come_back_as_they_were() {
    let (postgres, _database) = store().await;
    let body = Bytes::from((0..=255).collect::<Vec<u8>>());
    append(&postgres, vec![event("1", None).payload(Payload::new("application/x-any", body.clone()))]).await;
    let json = Bytes::from_static(b"{ \"b\":1, \"a\": \"\\u0000\" }");
    append(&postgres, vec![event("2", None).payload(Payload::new("application/json", json.clone()))]).await;
    let a = relay("a");
    postgres.lease(&a, LEASE).await.unwrap();
    let rows = claim(&postgres, &a).await;
    assert_eq!(rows[0].envelope.payload, Payload::new("application/x-any", body));
    assert_eq!(rows[1].envelope.payload, Payload::new("application/json", json));
}

#[tokio::test]
async fn a_caller_appends_in_a_transaction_of_its_own() {
    let (postgres, _database) = store().await;
    let clock = Clock::system();
    let mut transaction = postgres.pool().begin().await.unwrap();
    sqlx::query("CREATE TABLE public.orders (id int)").execute(&mut *transaction).await.unwrap();
    let ids = postrider::postgres::append_in(&mut transaction, &clock, vec![event("1", None)]).await.unwrap();
    assert_eq!(ids[0].as_str(), "1");
    transaction.commit().await.unwrap();

    // And with the store's own transaction, rolled back: neither effect nor event.
    let mut tx = postgres.begin().await.unwrap();
    sqlx::query("INSERT INTO public.orders VALUES (1)").execute(tx.connection()).await.unwrap();
    postgres.append(&mut tx, vec![event("2", None)]).await.unwrap();
    drop(tx);
    let orders: i64 =
        sqlx::query_scalar("SELECT count(*) FROM public.orders").fetch_one(postgres.pool()).await.unwrap();
    assert_eq!(orders, 0);
    let a = relay("a");
    postgres.lease(&a, LEASE).await.unwrap();
    assert_eq!(super::ids(&claim(&postgres, &a).await), ["1"]);
}

fn letter(key: &str) -> DeadLetter {
    let when = Timestamp::from_second(1_800_000_000).unwrap();
    DeadLetter {
        key: key.to_owned(),
        event_id: None,
        event_type: None,
        tenant: None,
        aggregate_id: None,
        ordering_key: None,
        consumer: None,
        queue: QueueName::new("mail").unwrap(),
        exchange: "shop".to_owned(),
        routing_key: "order.placed".to_owned(),
        reason: "malformed".to_owned(),
        error: "not JSON".to_owned(),
        error_class: None,
        attempts: 1,
        first_failed_at: when,
        dead_at: when,
        properties: Properties::default(),
        headers: [("n".to_owned(), HeaderValue::Int(i64::MAX))].into(),
        body: Bytes::from_static(b"\0\xff"),
    }
}

#[tokio::test]
async fn a_dead_letter_loses_nothing_not_even_a_nul() {
    let (postgres, _database) = store().await;
    let mut odd = letter("2");
    odd.error = "a\0b \\u0000".to_owned();
    odd.routing_key = "\0".to_owned();
    odd.properties.app_id = Some("x\0".to_owned());
    let list =
        vec![HeaderValue::Text("in\0side".to_owned()), HeaderValue::Bytes(vec![0, 255]), HeaderValue::Null];
    odd.headers.insert("key\0".to_owned(), HeaderValue::List(list));
    odd.headers.insert("f".to_owned(), HeaderValue::Float(0.1));
    odd.headers.insert("t".to_owned(), HeaderValue::Timestamp(u64::MAX));
    odd.dead_at = odd.dead_at.saturating_add(SignedDuration::from_micros(1)).unwrap();
    postgres.collect(vec![odd.clone(), letter("1")]).await.unwrap();
    postgres.collect(vec![letter("1"), odd.clone()]).await.unwrap();
    assert_eq!(postgres.dead_letters(10).await.unwrap(), [odd, letter("1")]);
    assert_eq!(postgres.dead_letters(1).await.unwrap().len(), 1);
    let shown: String = sqlx::query_scalar("SELECT error FROM postrider.dead_letter WHERE exact IS NOT NULL")
        .fetch_one(postgres.pool())
        .await
        .unwrap();
    assert_eq!(shown, "a\u{fffd}b \\u0000");
}
