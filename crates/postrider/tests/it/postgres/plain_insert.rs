//! A service in any language publishes with a plain INSERT.

use postrider::Outbox as _;
use postrider::envelope::{Ordering, OrderingKey};
use postrider::store::{Outboxes as _, PublishResult, StoreErrorKind};
use sqlx::AssertSqlSafe;

use super::{LEASE, append, claim, event, execute, ids, kind, let_rows_be_dated_ahead, relay, settle, store};
use postrider::{Event, Store as _};

#[tokio::test]
async fn a_plain_insert_is_claimed_as_the_event_it_describes() {
    let (postgres, _database) = store().await;
    execute(
        &postgres,
        "INSERT INTO postrider.event_outbox (id, group_id, subsidiary_id, aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('evt_1', 'acme', 'lagos', 'ecommerce.order', '42', 'completed', '{\"total\": \"1.50\"}')",
    )
    .await
    .unwrap();
    let a = relay("a");
    assert_eq!(postgres.lease(&a, LEASE).await.unwrap().len(), 64);
    let rows = claim(&postgres, &a).await;
    let envelope = &rows[0].envelope;
    assert_eq!(envelope.id.as_str(), "evt_1");
    assert_eq!(envelope.event_type.as_str(), "ecommerce.order.completed");
    assert_eq!(envelope.ordering_key.as_ref().unwrap().as_str(), "acme/ecommerce.order/42");
    assert_eq!(envelope.tenant.subsidiary.as_ref().unwrap().as_str(), "lagos");
    assert_eq!(envelope.payload.content_type(), "application/json");
    assert_eq!(envelope.payload.parse::<serde_json::Value>().unwrap()["total"], "1.50");
    assert_eq!(rows[0].attempts, 0);
}

#[tokio::test]
async fn the_rust_api_and_a_plain_insert_make_the_same_key_and_slot() {
    let (postgres, _database) = store().await;
    let event = event("rust", Some("42")).tenant("acme").unwrap();
    let key = event.clone().into_envelope(&postrider::Clock::system()).ordering_key.unwrap();
    append(
        &postgres,
        vec![
            event,
            super::event("keyed", Some("42")).ordering(Ordering::Key(OrderingKey::new("mine").unwrap())),
            super::event("free", Some("42")).ordering(Ordering::Free),
        ],
    )
    .await;
    execute(
        &postgres,
        "INSERT INTO postrider.event_outbox (id, group_id, aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('sql', 'acme', 'shop.order', '42', 'placed', '{}')",
    )
    .await
    .unwrap();
    let rows: Vec<(String, Option<String>, i16)> =
        sqlx::query_as("SELECT id, key, slot FROM postrider.event_outbox ORDER BY position")
            .fetch_all(postgres.pool())
            .await
            .unwrap();
    let keys: Vec<_> = rows.iter().map(|(id, key, _)| (id.as_str(), key.as_deref())).collect();
    assert_eq!(
        keys,
        [("rust", Some(key.as_str())), ("keyed", Some("mine")), ("free", None), ("sql", Some(key.as_str()))]
    );
    assert_eq!(rows[0].2, rows[3].2);
}

#[tokio::test]
async fn what_no_relay_could_publish_is_refused_at_the_insert() {
    let (postgres, _database) = store().await;
    let long = "x".repeat(129);
    let type_of_256 = "x".repeat(255);
    for (columns, values) in [
        ("id, aggregate_type, event_type, payload", "'', 'order', 'created', '{}'".to_owned()),
        ("id, aggregate_type, event_type, payload", format!("'{long}', 'order', 'created', '{{}}'")),
        ("id, aggregate_type, event_type, payload", "'1', 'order.', 'created', '{}'".to_owned()),
        ("id, aggregate_type, event_type, payload", "'1', '.order', 'created', '{}'".to_owned()),
        ("id, aggregate_type, event_type, payload", "'1', 'a..b', 'created', '{}'".to_owned()),
        ("id, aggregate_type, event_type, payload", "'1', '', 'created', '{}'".to_owned()),
        ("id, aggregate_type, event_type, payload", "'1', 'order', '', '{}'".to_owned()),
        ("id, aggregate_type, event_type, payload", "'1', 'order', 'two.words', '{}'".to_owned()),
        ("id, aggregate_type, event_type, payload", "'1', 'my order', 'created', '{}'".to_owned()),
        ("id, aggregate_type, event_type, payload", "'1', E'order\\n', 'created', '{}'".to_owned()),
        ("id, aggregate_type, event_type, payload", "'1', E'or\\u2003der', 'created', '{}'".to_owned()),
        ("id, aggregate_type, event_type, payload", "'1', 'stock_*', 'created', '{}'".to_owned()),
        ("id, aggregate_type, event_type, payload", "'1', 'order', '#', '{}'".to_owned()),
        ("id, aggregate_type, event_type, payload", format!("'1', '{type_of_256}', 'x', '{{}}'")),
        ("id, aggregate_type, event_type", "'1', 'order', 'created'".to_owned()),
        ("id, aggregate_type, event_type, payload, body", "'1', 'order', 'created', '{}', ''".to_owned()),
        (
            "id, aggregate_type, event_type, payload, status",
            "'1', 'order', 'created', '{}', 'new'".to_owned(),
        ),
        (
            "id, aggregate_type, event_type, payload, aggregate_id",
            "'1', 'order', 'created', '{}', ''".to_owned(),
        ),
        (
            "id, aggregate_type, event_type, payload, group_id",
            format!("'1', 'order', 'created', '{{}}', '{long}'"),
        ),
        (
            "id, aggregate_type, event_type, payload, routing_key",
            format!("'1', 'order', 'created', '{{}}', '{type_of_256}x'"),
        ),
        (
            "id, aggregate_type, event_type, payload, target_queue",
            "'1', 'order', 'created', '{}', ''".to_owned(),
        ),
        (
            "id, aggregate_type, event_type, payload, created_at",
            "'1', 'order', 'created', '{}', 'infinity'".to_owned(),
        ),
        (
            "id, aggregate_type, event_type, payload, created_at",
            "'1', 'order', 'created', '{}', now() + interval '25 hours'".to_owned(),
        ),
        (
            "id, aggregate_type, event_type, payload, available_at",
            "'1', 'order', 'created', '{}', 'infinity'".to_owned(),
        ),
        (
            "id, aggregate_type, event_type, payload, occurred_at",
            "'1', 'order', 'created', '{}', '30000-01-01'".to_owned(),
        ),
    ] {
        let sql = format!("INSERT INTO postrider.event_outbox ({columns}) VALUES ({values})");
        let refused = sqlx::query(AssertSqlSafe(sql.clone())).execute(postgres.pool()).await;
        let code = refused.expect_err(&sql).into_database_error().unwrap().code().unwrap().into_owned();
        assert_eq!(code, "23514", "{sql}");
    }
}

#[tokio::test]
async fn rows_with_times_that_nobody_can_read_get_others_when_the_schema_is_brought_up_to_date() {
    let (postgres, _database) = store().await;
    let_rows_be_dated_ahead(&postgres).await;
    execute(&postgres, "ALTER TABLE postrider.event_outbox DROP CONSTRAINT times_are_of_years_1_to_9999")
        .await
        .unwrap();
    execute(
        &postgres,
        "INSERT INTO postrider.event_outbox (id, aggregate_type, event_type, payload, created_at, occurred_at) \
         VALUES ('1', 'order', 'created', '{}', 'infinity', now()), ('2', 'order', 'created', '{}', now(), '-infinity')",
    )
    .await
    .unwrap();
    let migration = include_str!("../../../../../migrations/postgres/0033_outbox_times.sql");
    sqlx::raw_sql(migration).execute(postgres.pool()).await.unwrap();
    let a = relay("a");
    postgres.lease(&a, LEASE).await.unwrap();
    assert_eq!(ids(&claim(&postgres, &a).await), ["1", "2"]);
}

#[tokio::test]
async fn a_row_before_the_first_position_is_refused_and_one_that_is_there_gets_a_place() {
    let (postgres, _database) = store().await;
    let insert = "INSERT INTO postrider.event_outbox (position, id, aggregate_type, event_type, payload) \
         VALUES (0, '2', 'order', 'created', '{}'), (-7, '1', 'order', 'created', '{}')";
    let refused = execute(&postgres, insert).await.unwrap_err().to_string();
    assert!(refused.contains("position_is_positive"), "{refused}");
    execute(&postgres, "ALTER TABLE postrider.event_outbox DROP CONSTRAINT position_is_positive")
        .await
        .unwrap();
    execute(&postgres, insert).await.unwrap();
    let migration = include_str!("../../../../../migrations/postgres/0039_positions.sql");
    sqlx::raw_sql(migration).execute(postgres.pool()).await.unwrap();
    let a = relay("a");
    postgres.lease(&a, LEASE).await.unwrap();
    assert_eq!(ids(&claim(&postgres, &a).await), ["1", "2"]);
}

#[tokio::test]
async fn an_event_is_scheduled_by_when_it_is_available_and_not_by_when_it_was_written() {
    let (postgres, _database) = store().await;
    assert!(postgres.create_outbox("fis_outbox").await.unwrap());
    for outbox in ["postrider.event_outbox", "public.fis_outbox"] {
        let insert = |column: &str| {
            let sql = format!(
                "INSERT INTO {outbox} (id, aggregate_type, event_type, payload, {column}) \
                 VALUES ('{column}', 'order', 'created', '{{}}', now() + interval '1 year')"
            );
            sqlx::query(AssertSqlSafe(sql)).execute(postgres.pool())
        };
        let refused = insert("created_at").await.unwrap_err().to_string();
        assert!(refused.contains("set available_at to publish an event later"), "{refused}");
        insert("available_at").await.unwrap();
    }
    assert_eq!(postgres.backlog().await.unwrap().later, 1);
}

#[tokio::test]
async fn what_a_service_with_a_clock_ahead_writes_is_due_at_once() {
    let (postgres, _database) = store().await;
    execute(
        &postgres,
        "INSERT INTO postrider.event_outbox (id, aggregate_type, event_type, payload, created_at, available_at) VALUES \
         ('ahead', 'order', 'created', '{}', now() + interval '10 min', now() + interval '10 min'), \
         ('scheduled', 'order', 'created', '{}', now(), now() + interval '10 min')",
    )
    .await
    .unwrap();
    let a = relay("a");
    postgres.lease(&a, LEASE).await.unwrap();
    assert_eq!(ids(&claim(&postgres, &a).await), ["ahead"]);
}

/// `failed` is failed at least once and still tried, whoever says it, and whether or not he says when.
#[tokio::test]
async fn what_is_written_as_failed_is_tried_again() {
    let (postgres, _database) = store().await;
    execute(
        &postgres,
        "INSERT INTO postrider.event_outbox (id, aggregate_type, aggregate_id, event_type, payload, status, available_at) VALUES \
         ('untimed', 'order', '1', 'created', '{}', 'failed', now()), \
         ('behind it', 'order', '1', 'paid', '{}', 'failed', now() - interval '1 min'), \
         ('free', 'order', NULL, 'created', '{}', 'failed', '2020-01-01Z'), \
         ('later', 'order', '2', 'created', '{}', 'failed', now() + interval '10 min'), \
         ('new', 'order', '3', 'created', '{}', 'pending', now())",
    )
    .await
    .unwrap();
    let a = relay("a");
    postgres.lease(&a, LEASE).await.unwrap();
    let rows = claim(&postgres, &a).await;
    assert_eq!(ids(&rows), ["untimed", "free", "new"]);
    assert_eq!(settle(&postgres, &a, &rows, &PublishResult::Published).await, 3);
    assert_eq!(ids(&claim(&postgres, &a).await), ["behind it"]);
    // By hand, too.
    let by_hand =
        "UPDATE postrider.event_outbox SET status = 'failed', available_at = created_at WHERE id = 'later'";
    execute(&postgres, by_hand).await.unwrap();
    assert_eq!(ids(&claim(&postgres, &a).await), ["behind it", "later"]);
}

#[tokio::test]
async fn every_type_the_table_takes_can_be_read_back() {
    let (postgres, _database) = store().await;
    // Every character once, as a type of its own: what the table accepts, EventType must accept too.
    let characters = "SELECT chr(c) FROM generate_series(1, 65535) c WHERE c NOT BETWEEN 55296 AND 57343";
    let accepted: Vec<String> = sqlx::query_scalar(AssertSqlSafe(format!(
        "SELECT ch FROM ({characters}) t (ch) WHERE ch ~ \
         (SELECT substring(pg_get_constraintdef(oid) FROM '~ ''(.*)''::text') FROM pg_constraint \
          WHERE conname = 'event_type_is_one_word' AND conrelid = 'postrider.event_outbox'::regclass)"
    )))
    .fetch_all(postgres.pool())
    .await
    .unwrap();
    assert!(accepted.len() > 60_000, "only {}", accepted.len());
    let refused: Vec<String> = accepted
        .iter()
        .filter(|ch| Event::new(format!("a.{ch}")).is_err())
        .map(|ch| ch.escape_unicode().to_string())
        .collect();
    assert_eq!(refused, Vec::<String>::new());
}

#[tokio::test]
async fn an_id_is_committed_once_however_it_is_written() {
    let (postgres, _database) = store().await;
    append(&postgres, vec![event("1", None)]).await;
    let again = execute(
        &postgres,
        "INSERT INTO postrider.event_outbox (id, aggregate_type, event_type, payload) VALUES ('1', 'a', 'b', '{}')",
    );
    assert_eq!(again.await.unwrap_err().into_database_error().unwrap().code().unwrap(), "23505");

    let mut tx = postgres.begin().await.unwrap();
    let error = postgres.append(&mut tx, vec![event("2", None), event("1", None)]).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Duplicate);
    assert!(error.message.contains("(1)"), "{error}");
    drop(tx);
    let mut tx = postgres.begin().await.unwrap();
    assert_eq!(
        kind(postgres.append(&mut tx, vec![event("3", None), event("3", None)]).await),
        StoreErrorKind::Duplicate
    );
    postgres.rollback(tx).await.unwrap();

    let a = relay("a");
    postgres.lease(&a, LEASE).await.unwrap();
    assert_eq!(ids(&claim(&postgres, &a).await), ["1"]);
}

#[tokio::test]
async fn a_producer_needs_no_right_but_insert() {
    let (postgres, _database) = store().await;
    let mut connection = postgres.pool().acquire().await.unwrap();
    for sql in [
        "DROP ROLE IF EXISTS postrider_test_producer",
        "CREATE ROLE postrider_test_producer",
        "GRANT USAGE ON SCHEMA postrider TO postrider_test_producer",
        "GRANT USAGE ON SEQUENCE postrider.event_outbox_position TO postrider_test_producer",
        "GRANT INSERT ON postrider.event_outbox TO postrider_test_producer",
        "SET ROLE postrider_test_producer",
        "INSERT INTO postrider.event_outbox (id, aggregate_type, event_type, payload) VALUES ('1', 'a', 'b', '{}')",
        "RESET ROLE",
        "DROP OWNED BY postrider_test_producer",
        "DROP ROLE postrider_test_producer",
    ] {
        sqlx::query(sql).execute(&mut *connection).await.unwrap();
    }
}

#[tokio::test]
async fn a_row_that_cannot_be_read_is_dead_and_stops_nobody() {
    let (postgres, _database) = store().await;
    append(&postgres, vec![event("1", None)]).await;
    execute(&postgres, "ALTER TABLE postrider.event_outbox DROP CONSTRAINT event_type_is_one_word")
        .await
        .unwrap();
    execute(&postgres, "UPDATE postrider.event_outbox SET event_type = 'two words'").await.unwrap();
    append(&postgres, vec![event("2", None)]).await;
    let a = relay("a");
    postgres.lease(&a, LEASE).await.unwrap();
    let rows = claim(&postgres, &a).await;
    assert_eq!(ids(&rows), ["2"]);
    let (status, error): (String, String) =
        sqlx::query_as("SELECT status, last_error FROM postrider.event_outbox WHERE id = '1'")
            .fetch_one(postgres.pool())
            .await
            .unwrap();
    assert_eq!(status, "dead");
    assert!(error.contains("two words"), "{error}");
    assert_eq!(settle(&postgres, &a, &rows, &PublishResult::Published).await, 1);
}
