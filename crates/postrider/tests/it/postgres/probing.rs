//! What a new consumer costs while PostgreSQL's statistics do not know it: each question reads what it asks for, not all there is.

use std::time::Duration;

use bytes::Bytes;
use postrider::envelope::OrderingKey;
use postrider::postgres::{Postgres, PostgresConfig};
use postrider::store::{
    Claim, CopyResult, DualPublishing as _, Held as _, Inbox as _, LetterFilter, LetterQuery, NewOperation,
    OperationKind, Operations as _, Replays as _, SCANNED, Triage as _, Turn,
};
use postrider::topology::{ConsumerName, QueueName};
use postrider::{Clock, EventId, Store as _};
use postrider_testkit::servers::{TestDatabase, shared};

/// Rows that a question about ten may read: each in the index and in the table, and some more for luck.
const FEW: i64 = 200;

/// Consumers that the statistics know, then one with 5,000 rows that they do not. One connection, which tells what it read.
async fn store() -> (Postgres, TestDatabase) {
    let database = shared().unwrap().database().await.unwrap();
    let config = PostgresConfig { max_connections: 1, ..PostgresConfig::new(&database.url) };
    let store = Postgres::connect(config, Clock::system()).await.unwrap();
    store.migrate().await.unwrap();
    for sql in [
        "INSERT INTO postrider.event_inbox (consumer_name, event_id, payload_hash) \
         SELECT 'old-' || n % 4, 'e' || n, decode(repeat('00', 32), 'hex') FROM generate_series(1, 20000) n",
        "INSERT INTO postrider.held_event (consumer_name, ordering_key, event_id, attempt, due_at, exchange, routing_key, head, body) \
         SELECT 'old-' || n % 4, 'k' || n, 'e' || n, 1, now(), '', '', '', '' FROM generate_series(1, 20000) n",
        "INSERT INTO postrider.event_delivery (outbox, position, destination, event_id, status, confirmed_at) \
         SELECT 'other', n, 'legacy', 'e' || n, 'confirmed', now() FROM generate_series(1, 20000) n",
        "ANALYZE postrider.event_inbox, postrider.held_event, postrider.event_delivery",
        "INSERT INTO postrider.event_inbox (consumer_name, event_id, payload_hash) \
         SELECT 'new', 'n' || n, decode(repeat('00', 32), 'hex') FROM generate_series(1, 5000) n",
        "INSERT INTO postrider.held_event (consumer_name, ordering_key, event_id, attempt, due_at, exchange, routing_key, head, body) \
         SELECT 'new', 'k' || n, 'n' || n, 1, now(), '', '', '', '' FROM generate_series(1, 5000) n",
        "INSERT INTO postrider.event_delivery (outbox, position, destination, event_id, status, confirmed_at) \
         SELECT 'postrider.event_outbox', n, 'legacy', 'n' || n, 'confirmed', now() FROM generate_series(1, 5000) n",
    ] {
        sqlx::query(sql).execute(store.pool()).await.unwrap();
    }
    (store, database)
}

/// Rows of a table that this connection has read so far, by whatever plan.
async fn read(store: &Postgres, table: &str) -> i64 {
    sqlx::query("SELECT pg_stat_force_next_flush()").execute(store.pool()).await.unwrap();
    let select = "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables \
                  WHERE schemaname = 'postrider' AND relname = $1";
    sqlx::query_scalar(select).bind(table).fetch_one(store.pool()).await.unwrap()
}

fn ids() -> Vec<EventId> {
    (0..10).map(|number| EventId::new(format!("n{}", 1 + number * 400)).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inbox_of_a_consumer_that_is_new_is_probed() {
    let (store, _database) = store().await;
    let new = ConsumerName::new("new").unwrap();
    let before = read(&store, "event_inbox").await;
    let mut tx = store.begin().await.unwrap();
    let answers: Vec<_> = ids().into_iter().map(|id| (id, Bytes::from_static(b"42"))).collect();
    store.keep_answers(&mut tx, &new, &answers).await.unwrap();
    let kept: i64 = sqlx::query_scalar("SELECT count(*) FROM postrider.event_inbox WHERE response = '42'")
        .fetch_one(tx.connection())
        .await
        .unwrap();
    assert_eq!(kept, 10);
    store.commit(tx).await.unwrap();
    // That was a look at all 25,000.
    let asked = read(&store, "event_inbox").await - before - 25_000;
    assert!(asked < FEW, "{asked} rows were read to keep ten answers");

    let before = read(&store, "event_inbox").await;
    let mut tx = store.begin().await.unwrap();
    assert_eq!(store.forget_events(&mut tx, &new, &ids()).await.unwrap(), 10);
    store.commit(tx).await.unwrap();
    let forgotten = read(&store, "event_inbox").await - before;
    assert!(forgotten < FEW, "{forgotten} rows were read to forget ten");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_consumer_that_is_new_holds_is_probed() {
    let (store, _database) = store().await;
    let new = ConsumerName::new("new").unwrap();
    let before = read(&store, "held_event").await;
    let keys: Vec<_> = (1..=10).map(|number| OrderingKey::new(format!("k{number}")).unwrap()).collect();
    let heads = store.held_heads(&new, &keys).await.unwrap();
    assert_eq!((heads.len(), heads[&keys[3]].event_id.as_str()), (10, "n4"));
    let mut tx = store.begin().await.unwrap();
    for id in ids() {
        store.let_go(&mut tx, &new, &id).await.unwrap();
    }
    store.commit(tx).await.unwrap();
    let held = read(&store, "held_event").await - before;
    assert!(held < FEW, "{held} rows were read to let ten go");
    let left = "SELECT count(*) FROM postrider.held_event WHERE consumer_name = 'new'";
    assert_eq!(sqlx::query_scalar::<_, i64>(left).fetch_one(store.pool()).await.unwrap(), 4990);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deliveries_of_an_outbox_that_is_new_are_probed() {
    let (store, _database) = store().await;
    let before = read(&store, "event_delivery").await;
    let positions: Vec<i64> = (0..10).map(|number| 1 + number * 400).collect();
    assert_eq!(store.confirmed_halves(positions.clone()).await.unwrap().len(), 10);
    assert!(store.claim_copies(100, std::time::Duration::from_mins(1)).await.unwrap().is_empty());
    let confirmed = positions.into_iter().map(|position| (position, CopyResult::Confirmed)).collect();
    store.settle_copies(confirmed).await.unwrap();
    let looked = read(&store, "event_delivery").await - before;
    assert!(looked < FEW, "{looked} rows were read for ten copies");
}

/// Letters that were just stored, in 20 groups: nobody has counted them yet, and to PostgreSQL they look like few.
async fn letters() -> (Postgres, TestDatabase) {
    let database = shared().unwrap().database().await.unwrap();
    let config = PostgresConfig { max_connections: 1, ..PostgresConfig::new(&database.url) };
    let store = Postgres::connect(config, Clock::system()).await.unwrap();
    store.migrate().await.unwrap();
    for sql in [
        "ALTER TABLE postrider.dead_letter SET (autovacuum_enabled = off)",
        "INSERT INTO postrider.dead_letter (key, event_id, queue, exchange, routing_key, reason, error, fingerprint, attempts, \
             first_failed_at, dead_at, properties, headers, body) \
         SELECT 'k' || n, 'e' || n, 'mail', '', '', 'rejected', 'refused', 'group-' || n % 20, 1, now(), \
             now() - n * interval '1 second', '{}', '{}', '{}' FROM generate_series(1, 60000) n",
    ] {
        sqlx::query(sql).execute(store.pool()).await.unwrap();
    }
    (store, database)
}

/// Letters that were read for a page of 50, and how many it has.
async fn page(store: &Postgres, filter: LetterFilter) -> (i64, usize) {
    let before = read(store, "dead_letter").await;
    let page = store.letters(&LetterQuery { filter, turn: Turn::Newest, limit: 50 }).await.unwrap();
    (read(store, "dead_letter").await - before, page.letters.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_letters_that_were_just_stored_reads_what_it_shows() {
    let (store, _database) = letters().await;
    let open = LetterFilter::open;
    let group = || Some("group-7".to_owned());
    for filter in [
        open(),
        LetterFilter { fingerprint: group(), ..open() },
        LetterFilter { fingerprint: group(), ..LetterFilter::default() },
        LetterFilter { queue: Some(QueueName::new("mail").unwrap()), ..open() },
        LetterFilter { event_id: Some(EventId::new("e7").unwrap()), ..open() },
    ] {
        let (read, shown) = page(&store, filter.clone()).await;
        assert!(shown == 50 || filter.event_id.is_some() && shown == 1, "{filter:?}: {shown}");
        assert!(read < FEW, "{filter:?}: {read} letters were read");
    }
    // What no index knows is searched for among the newest: once to see how far that is, and once to look at them.
    let text = LetterFilter { text: Some("nowhere".to_owned()), ..open() };
    let (read, shown) = page(&store, text).await;
    assert_eq!(shown, 0);
    assert!(read < 2 * i64::from(SCANNED) + FEW, "{read} letters were read for a text that is nowhere");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chunk_of_an_operation_reads_its_own_items_and_not_all_that_are_left() {
    let (store, _database) = store().await;
    let id = Clock::system().new_id();
    let operation = NewOperation {
        id,
        kind: OperationKind::ReplayLetters,
        plan: serde_json::json!({}),
        rate: None,
        created_by: "ada".to_owned(),
        reason: None,
    };
    let mut tx = store.begin().await.unwrap();
    store.create_operation(&mut tx, &operation).await.unwrap();
    let items = (0..5000).map(|number| format!("item {number}")).collect();
    store.add_items(&mut tx, id, items).await.unwrap();
    store.commit(tx).await.unwrap();
    let lease = Duration::from_secs(10);
    assert!(store.claim_operation(&Claim::This(id), "runner", lease).await.unwrap().is_some());

    for analyzed in [false, true] {
        if analyzed {
            sqlx::query("ANALYZE postrider.operation_item").execute(store.pool()).await.unwrap();
        }
        let before = read(&store, "operation_item").await;
        let mut tx = store.begin().await.unwrap();
        let taken = store.next_items(&mut tx, id, "runner", 10, lease).await.unwrap().unwrap();
        store.commit(tx).await.unwrap();
        let first = if analyzed { 10 } else { 0 };
        assert_eq!(taken, (first..first + 10).map(|number| format!("item {number}")).collect::<Vec<_>>());
        let asked = read(&store, "operation_item").await - before;
        assert!(asked < FEW, "{asked} rows were read to take ten");
    }
    let mut tx = store.begin().await.unwrap();
    let rest = store.next_items(&mut tx, id, "runner", 10_000, lease).await.unwrap().unwrap();
    assert_eq!((rest.len(), rest.last().map(String::as_str)), (4980, Some("item 4999")));
    assert_eq!(store.next_items(&mut tx, id, "runner", 10, lease).await.unwrap(), Some(Vec::new()));
    store.rollback(tx).await.unwrap();
}
