//! Several outboxes in one database, one of them taken over from somebody else; and publishing with one SELECT.

use postrider::Outbox as _;
use postrider::store::{OutboxDesk as _, Outboxes as _, PublishResult, StoreErrorKind};

use super::{LEASE, append, claim, event, execute, ids, kind, relay, settle, store};

#[tokio::test]
async fn outboxes_are_apart() {
    let (postgres, _database) = store().await;
    assert!(postgres.create_outbox("fis_outbox").await.unwrap());
    assert!(!postgres.create_outbox("fis_outbox").await.unwrap(), "it is there already");
    let fis = postgres.outbox("fis_outbox").unwrap();
    // The same id in both is two events.
    append(&postgres, vec![event("1", Some("a"))]).await;
    append(&fis, vec![event("1", Some("a")), event("2", None)]).await;
    assert_eq!(kind(append_again(&fis).await), StoreErrorKind::Duplicate);

    let (a, b) = (relay("a"), relay("b"));
    assert_eq!(postgres.lease(&a, LEASE).await.unwrap().len(), 64);
    assert_eq!(fis.lease(&b, LEASE).await.unwrap().len(), 64, "each has slots of its own");
    assert_eq!(ids(&claim(&postgres, &a).await), ["1"]);
    let rows = claim(&fis, &b).await;
    assert_eq!(ids(&rows), ["1", "2"]);
    assert!(claim(&fis, &a).await.is_empty());
    assert_eq!(settle(&fis, &b, &rows, &PublishResult::Published).await, 2);
    assert_eq!(fis.backlog().await.unwrap().due, 0);
    assert_eq!(postgres.backlog().await.unwrap().due, 1);
    assert_eq!(kind(postgres.create_outbox("no good").await), StoreErrorKind::Invalid);
}

async fn append_again(
    fis: &postrider::postgres::Postgres,
) -> Result<Vec<postrider::EventId>, postrider::store::StoreError> {
    use postrider::Store as _;
    let mut tx = fis.begin().await.unwrap();
    fis.append(&mut tx, vec![event("1", None)]).await
}

#[tokio::test]
async fn one_transaction_appends_to_several_outboxes() {
    use postrider::Store as _;
    let (postgres, _database) = store().await;
    postgres.create_outbox("fis_outbox").await.unwrap();
    let fis = postgres.outbox("fis_outbox").unwrap();
    let mut tx = postgres.begin().await.unwrap();
    postgres.append(&mut tx, vec![event("1", None)]).await.unwrap();
    fis.append(&mut tx, vec![event("2", None), event("3", None)]).await.unwrap();
    tx.append(vec![event("4", None)]).await.unwrap();
    postgres.commit(tx).await.unwrap();
    let mut own = postgres.pool().begin().await.unwrap();
    fis.append_in(&mut own, vec![event("5", None)]).await.unwrap();
    own.commit().await.unwrap();
    assert_eq!(postgres.backlog().await.unwrap().due, 2);
    assert_eq!(fis.backlog().await.unwrap().due, 3, "each has what was appended to it");
}

/// As Prisma makes it from the HoldCo schema.
pub(super) const HOLDCO: &str = "CREATE TABLE public.event_outbox ( \
     id uuid PRIMARY KEY, group_id uuid NOT NULL, subsidiary_id uuid, aggregate_type text NOT NULL, \
     aggregate_id uuid NOT NULL, event_type text NOT NULL, payload jsonb NOT NULL, status text NOT NULL DEFAULT 'pending', \
     available_at timestamptz NOT NULL DEFAULT CURRENT_TIMESTAMP, attempts integer NOT NULL DEFAULT 0, \
     created_at timestamptz NOT NULL DEFAULT CURRENT_TIMESTAMP)";

/// The project's own INSERT, which knows nothing of us.
const PRISMA: &str = "INSERT INTO public.event_outbox (id, group_id, aggregate_type, aggregate_id, event_type, payload) \
     VALUES ('00000000-0000-7000-8000-00000000000§', '11111111-0000-7000-8000-000000000000', 'order', \
             '22222222-0000-7000-8000-000000000000', 'created', '{\"order_no\": \"ORD-000§\"}')";

pub(super) async fn insert(postgres: &postrider::postgres::Postgres, number: u32) {
    let sql = PRISMA.replace('§', &number.to_string());
    sqlx::query(sqlx::AssertSqlSafe(sql)).execute(postgres.pool()).await.unwrap();
}

#[tokio::test]
async fn an_existing_table_is_adopted_and_its_own_inserts_go_on() {
    let (postgres, _database) = store().await;
    execute(&postgres, HOLDCO).await.unwrap();
    insert(&postgres, 1).await;
    insert(&postgres, 2).await;
    assert_eq!(postgres.adopt_outbox("event_outbox").await.unwrap(), 2);
    assert_eq!(postgres.adopt_outbox("event_outbox").await.unwrap(), 0, "may be repeated");
    insert(&postgres, 3).await;

    let adopted = postgres.outbox("event_outbox").unwrap();
    let a = relay("a");
    adopted.lease(&a, LEASE).await.unwrap();
    let rows = claim(&adopted, &a).await;
    let numbers: Vec<_> = rows.iter().map(|row| row.envelope.id.as_str().chars().last().unwrap()).collect();
    assert_eq!(numbers, ['1', '2', '3']);
    let key = rows[0].envelope.ordering_key.clone().unwrap();
    assert!(key.as_str().ends_with("order/22222222-0000-7000-8000-000000000000"), "{key}");
    assert_eq!(rows[0].envelope.event_type.as_str(), "order.created");
    // Those from before the adoption are found, too.
    let all: Vec<_> = rows.iter().map(|row| row.envelope.id.clone()).collect();
    assert_eq!(adopted.committed(&all).await.unwrap().len(), 3);
    assert!(adopted.find(&all[0]).await.unwrap().is_some());

    let failed = PublishResult::Failed { error: "no queue".to_owned(), retry_after: None };
    assert_eq!(settle(&adopted, &a, &rows[..1], &failed).await, 1);
    assert_eq!(adopted.parked(10).await.unwrap()[0].waiting, 2);
    assert!(claim(&adopted, &a).await.is_empty(), "the key is parked");

    // One SELECT writes there too.
    let publish = "SELECT postrider.publish('order.paid', '{}', aggregate_id => '33333333-0000-7000-8000-000000000000', \
                   group_id => '11111111-0000-7000-8000-000000000000', outbox => 'public.event_outbox')";
    let id: String = sqlx::query_scalar(publish).fetch_one(postgres.pool()).await.unwrap();
    assert_eq!(ids(&claim(&adopted, &a).await), [id.as_str()]);
}

#[tokio::test]
async fn what_failed_before_the_adoption_is_tried_again() {
    let (postgres, _database) = store().await;
    execute(&postgres, HOLDCO).await.unwrap();
    insert(&postgres, 1).await;
    // Its publisher set the status, and no time for the next attempt.
    execute(&postgres, "UPDATE public.event_outbox SET status = 'failed', attempts = 2").await.unwrap();
    assert_eq!(postgres.adopt_outbox("event_outbox").await.unwrap(), 1);
    let adopted = postgres.outbox("event_outbox").unwrap();
    let a = relay("a");
    adopted.lease(&a, LEASE).await.unwrap();
    assert_eq!(claim(&adopted, &a).await.len(), 1);
    // From now on a row that could stop the relay is refused.
    let endless = PRISMA
        .replace('§', "2")
        .replace("payload)", "payload, created_at)")
        .replace("\"}')", "\"}', 'infinity')");
    let refused = sqlx::query(sqlx::AssertSqlSafe(endless)).execute(postgres.pool()).await.unwrap_err();
    assert!(refused.to_string().contains("years 1 to 9999"), "{refused}");
}

#[tokio::test]
async fn rows_that_no_relay_would_look_at_are_told_and_nothing_is_changed() {
    let (postgres, _database) = store().await;
    execute(&postgres, HOLDCO).await.unwrap();
    for number in 1..=4 {
        insert(&postgres, number).await;
    }
    let unknown = "UPDATE public.event_outbox SET status = CASE WHEN payload->>'order_no' = 'ORD-0001' THEN 'PENDING' ELSE 'sending' END \
                   WHERE payload->>'order_no' <> 'ORD-0004'";
    execute(&postgres, unknown).await.unwrap();
    for error in [
        postgres.would_adopt_outbox("event_outbox").await.unwrap_err(),
        postgres.adopt_outbox("event_outbox").await.unwrap_err(),
    ] {
        assert_eq!(error.kind, StoreErrorKind::Schema);
        let counts = "2 with the status 'sending', 1 with the status 'PENDING'";
        assert!(error.message.contains(counts), "{error}");
        assert!(error.message.contains("WHERE status = 'sending'"), "{error}");
    }
    let columns = "SELECT count(*) FROM information_schema.columns WHERE table_schema = 'public' AND column_name = 'slot'";
    let changed = async || sqlx::query_scalar::<_, i64>(columns).fetch_one(postgres.pool()).await.unwrap();
    assert_eq!(changed().await, 0);
    execute(&postgres, "UPDATE public.event_outbox SET status = 'pending'").await.unwrap();
    assert_eq!(postgres.would_adopt_outbox("event_outbox").await.unwrap(), 4);
    assert_eq!(changed().await, 0, "it was only asked");
    assert_eq!(postgres.adopt_outbox("event_outbox").await.unwrap(), 4);
    assert_eq!(postgres.would_adopt_outbox("event_outbox").await.unwrap(), 0);
    // From now on such a row is refused, rather than forgotten; one that failed elsewhere is taken.
    let as_status = |number: &str, status: &str| {
        let sql = PRISMA.replace('§', number).replace("payload)", "payload, status)");
        sqlx::AssertSqlSafe(sql.replace("\"}')", &format!("\"}}', '{status}')")))
    };
    let refused = sqlx::query(as_status("5", "NEW")).execute(postgres.pool()).await.unwrap_err();
    assert!(refused.to_string().contains("no relay knows the status NEW"), "{refused}");
    sqlx::query(as_status("6", "failed")).execute(postgres.pool()).await.unwrap();
    let adopted = postgres.outbox("event_outbox").unwrap();
    let a = relay("a");
    adopted.lease(&a, LEASE).await.unwrap();
    // The others of its key wait behind what failed.
    let rows = claim(&adopted, &a).await;
    assert!(rows.iter().any(|row| row.envelope.id.as_str().ends_with('6')), "{rows:?}");
}

/// What the usual outbox refuses is refused here, too, by the same names: the relay would find it later, and bury it.
#[tokio::test]
async fn an_adopted_table_refuses_what_no_relay_could_publish() {
    let (postgres, _database) = store().await;
    let loose = "CREATE TABLE public.loose (id text, group_id text, subsidiary_id text, aggregate_type text, aggregate_id text, \
         event_type text, payload jsonb, status text DEFAULT 'pending', available_at timestamptz DEFAULT now(), \
         attempts integer DEFAULT 0, created_at timestamptz DEFAULT now(), correlation_id uuid)";
    execute(&postgres, loose).await.unwrap();
    postgres.adopt_outbox("loose").await.unwrap();
    let insert = async |given: &str| {
        let mut row = serde_json::json!({"id": "1", "aggregate_type": "order", "event_type": "created", "payload": {},
            "correlation_id": "11111111-0000-7000-8000-000000000000", "status": "pending", "attempts": 0,
            "available_at": "2026-01-01Z", "created_at": "2026-01-01Z", "content_type": "application/json"});
        let given: serde_json::Value = serde_json::from_str(given).unwrap();
        row.as_object_mut().unwrap().extend(given.as_object().unwrap().clone());
        let insert =
            "INSERT INTO public.loose SELECT * FROM jsonb_populate_record(NULL::public.loose, $1::jsonb)";
        let done = sqlx::query(insert).bind(row.to_string()).execute(postgres.pool()).await;
        done.map_err(|error| {
            let error = error.into_database_error().unwrap();
            let rule = error.constraint().map_or_else(|| error.message().to_owned(), str::to_owned);
            (error.code().unwrap().into_owned(), rule)
        })
    };
    let long = format!(r#"{{"group_id": "{}"}}"#, "x".repeat(129));
    for (given, rule) in [
        (r#"{"id": ""}"#, "id_has_1_to_128_bytes"),
        (long.as_str(), "group_id_has_1_to_128_bytes"),
        (r#"{"aggregate_id": ""}"#, "aggregate_id_has_1_to_128_bytes"),
        (r#"{"aggregate_type": "my order"}"#, "aggregate_type_is_words_with_dots"),
        (r#"{"aggregate_type": "order."}"#, "aggregate_type_is_words_with_dots"),
        (r#"{"event_type": "stock_*"}"#, "event_type_is_words_with_dots"),
        (r#"{"event_type": "creat\u2003ed"}"#, "event_type_is_words_with_dots"),
        (r#"{"event_type": ""}"#, "event_type_is_words_with_dots"),
        (r#"{"payload": null}"#, "either_payload_or_body"),
        (r#"{"attempts": -1}"#, "attempts_is_not_negative"),
        (r#"{"position": 0}"#, "position_is_positive"),
        (r#"{"target_queue": ""}"#, "target_queue_has_1_to_255_bytes"),
        (r#"{"occurred_at": "infinity"}"#, "times of the years 1 to 9999"),
        (r#"{"created_at": "2999-01-01Z"}"#, "set available_at to publish an event later"),
        (r#"{"status": "new"}"#, "no relay knows the status new"),
    ] {
        let (code, told) = insert(given).await.expect_err(given);
        assert!(code == "23514" && told.contains(rule), "{given}: {told}");
    }
    for column in ["id", "aggregate_type", "event_type", "available_at", "attempts", "created_at"] {
        let (code, told) = insert(&format!(r#"{{"{column}": null}}"#)).await.expect_err(column);
        assert!(code == "23502" && told.contains(column), "{column}: {told}");
    }
    // Several words in the last column are a type that relays can publish.
    insert(r#"{"event_type": "line.added", "correlation_id": null}"#).await.unwrap();
    let adopted = postgres.outbox("loose").unwrap();
    let a = relay("a");
    adopted.lease(&a, LEASE).await.unwrap();
    let rows = claim(&adopted, &a).await;
    assert_eq!(rows[0].envelope.event_type.as_str(), "order.line.added");
}

#[tokio::test]
async fn what_only_looks_like_a_table_is_refused_before_anything_is_changed() {
    let (postgres, _database) = store().await;
    execute(&postgres, HOLDCO).await.unwrap();
    execute(&postgres, "CREATE VIEW public.seen AS SELECT * FROM public.event_outbox").await.unwrap();
    let parted = "CREATE TABLE public.parted (LIKE public.event_outbox) PARTITION BY RANGE (created_at)";
    execute(&postgres, parted).await.unwrap();
    for (table, told) in [("seen", "public.seen is a view"), ("parted", "public.parted is partitioned")] {
        for error in [
            postgres.would_adopt_outbox(table).await.unwrap_err(),
            postgres.adopt_outbox(table).await.unwrap_err(),
        ] {
            assert_eq!(error.kind, StoreErrorKind::Schema);
            assert!(error.message.contains(told) && error.message.contains("nothing was changed"), "{error}");
        }
    }
    let made = "SELECT count(*) FROM pg_class WHERE relname ~ '^(seen|parted)_'";
    assert_eq!(sqlx::query_scalar::<_, i64>(made).fetch_one(postgres.pool()).await.unwrap(), 0);
}

/// As in the configuration, an outbox is named without its schema, where that is enough.
#[tokio::test]
async fn one_select_finds_an_outbox_by_its_table() {
    let (postgres, _database) = store().await;
    execute(&postgres, "CREATE SCHEMA fis").await.unwrap();
    for outbox in ["fis_outbox", "fis.other_outbox"] {
        postgres.create_outbox(outbox).await.unwrap();
    }
    let publish = async |outbox: &str| {
        let publish = "SELECT postrider.publish('shop.order.placed', '{}', outbox => $1)";
        let done = sqlx::query(publish).bind(outbox).execute(postgres.pool()).await;
        done.map(|_| ()).map_err(|error| error.to_string())
    };
    for outbox in ["fis_outbox", "public.fis_outbox", "other_outbox", "fis.other_outbox", "event_outbox"] {
        publish(outbox).await.unwrap();
    }
    assert_eq!(postgres.outbox("fis_outbox").unwrap().backlog().await.unwrap().due, 2);
    assert_eq!(postgres.outbox("fis.other_outbox").unwrap().backlog().await.unwrap().due, 2);
    assert_eq!(postgres.backlog().await.unwrap().due, 1);
    postgres.create_outbox("fis.fis_outbox").await.unwrap();
    publish("public.fis_outbox").await.unwrap();
    for wrong in ["fis_outbox", "nosuch"] {
        let told = publish(wrong).await.unwrap_err();
        let all = "there are fis.fis_outbox, fis.other_outbox, postrider.event_outbox, public.fis_outbox";
        assert!(told.contains(wrong) && told.contains(all), "{told}");
    }
}

#[tokio::test]
async fn a_table_of_another_shape_is_refused_and_left_alone() {
    let (postgres, _database) = store().await;
    let error = postgres.adopt_outbox("nosuch").await.unwrap_err();
    assert!(error.message.contains("there is no table public.nosuch"), "{error}");
    execute(&postgres, "CREATE TABLE public.other (id uuid PRIMARY KEY, payload json)").await.unwrap();
    let error = postgres.adopt_outbox("other").await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Schema);
    assert!(error.message.contains("it has no column status"), "{error}");
    assert!(error.message.contains("payload is json, not jsonb"), "{error}");
}

/// As an ORM makes it, which would rather have an enum.
#[tokio::test]
async fn a_status_of_another_type_is_named_with_the_statement_that_makes_it_text() {
    let (postgres, _database) = store().await;
    execute(&postgres, HOLDCO).await.unwrap();
    execute(
        &postgres,
        "CREATE TYPE public.\"OutboxStatus\" AS ENUM ('pending', 'published', 'failed', 'dead')",
    )
    .await
    .unwrap();
    execute(
        &postgres,
        "ALTER TABLE public.event_outbox ALTER status DROP DEFAULT, \
         ALTER status TYPE public.\"OutboxStatus\" USING status::public.\"OutboxStatus\", ALTER status SET DEFAULT 'pending'",
    )
    .await
    .unwrap();
    let error = postgres.adopt_outbox("event_outbox").await.unwrap_err();
    assert!(error.message.contains("status is of the type public.OutboxStatus, not text"), "{error}");
    let (_, statement) = error.message.split_once("to make it one: ").unwrap();
    let statement = statement.split_once(')').unwrap().0.to_owned();
    sqlx::query(sqlx::AssertSqlSafe(statement)).execute(postgres.pool()).await.unwrap();
    postgres.adopt_outbox("event_outbox").await.unwrap();
    insert(&postgres, 1).await;
}

#[tokio::test]
async fn a_table_that_was_not_adopted_says_how_it_is() {
    let (postgres, _database) = store().await;
    execute(&postgres, HOLDCO).await.unwrap();
    let error = postgres.create_outbox("event_outbox").await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Schema);
    assert!(error.message.contains("`postrider db adopt public.event_outbox` takes it over"), "{error}");
    let theirs = postgres.outbox("event_outbox").unwrap();
    let error = theirs.backlog().await.unwrap_err();
    assert!(error.message.contains("`postrider db adopt public.event_outbox` takes it over"), "{error}");
    postgres.adopt_outbox("event_outbox").await.unwrap();
    assert!(!postgres.create_outbox("event_outbox").await.unwrap(), "it is one now");
    assert_eq!(theirs.backlog().await.unwrap().due, 0);
}

#[tokio::test]
async fn one_select_publishes_in_the_callers_transaction() {
    let (postgres, _database) = store().await;
    let publish = "SELECT postrider.publish('shop.order.placed', '{\"total\": \"12.50\"}', aggregate_id => '4711', \
                   group_id => 'acme', correlation_id => 'c-1')";
    let mut rolled_back = postgres.pool().begin().await.unwrap();
    sqlx::query(publish).execute(&mut *rolled_back).await.unwrap();
    rolled_back.rollback().await.unwrap();
    let id: String = sqlx::query_scalar(publish).fetch_one(postgres.pool()).await.unwrap();
    assert_eq!(uuid_version(&id), '7');

    let a = relay("a");
    postgres.lease(&a, LEASE).await.unwrap();
    let rows = claim(&postgres, &a).await;
    assert_eq!(ids(&rows), [id.as_str()]);
    let envelope = &rows[0].envelope;
    assert_eq!(envelope.event_type.as_str(), "shop.order.placed");
    assert_eq!(envelope.ordering_key.as_ref().unwrap().as_str(), "acme/shop.order/4711");
    assert_eq!(envelope.correlation_id.as_ref().unwrap().as_str(), "c-1");

    let later =
        "SELECT postrider.publish('shop.order.reminded', '{}', available_at => now() + interval '1 day')";
    execute(&postgres, later).await.unwrap();
    assert_eq!(postgres.backlog().await.unwrap().later, 1);
    let wrong = execute(&postgres, "SELECT postrider.publish('placed', '{}')").await.unwrap_err();
    assert!(wrong.to_string().contains("two words or more"), "{wrong}");
    let twice = "SELECT postrider.publish('a.b', '{}', id => 'x'), postrider.publish('a.b', '{}', id => 'x')";
    assert!(execute(&postgres, twice).await.is_err());

    let large = "SELECT postrider.publish('shop.order.drawn', jsonb_build_object('picture', repeat('x', 300 * 1024)))";
    let refused = execute(&postgres, large).await.unwrap_err();
    assert!(refused.to_string().contains("more than the 262144 allowed"), "{refused}");
    let mut allowed = postgres.pool().begin().await.unwrap();
    sqlx::query("SET LOCAL postrider.max_payload_bytes = 400000").execute(&mut *allowed).await.unwrap();
    sqlx::query(large).execute(&mut *allowed).await.unwrap();
}

fn uuid_version(id: &str) -> char {
    id.chars().nth(14).unwrap()
}

#[tokio::test]
async fn a_service_needs_no_right_but_to_publish() {
    let (postgres, database) = store().await;
    let role = format!("service_{}", database.url.rsplit('/').next().unwrap());
    for sql in [
        format!("CREATE ROLE {role} LOGIN"),
        format!("GRANT USAGE ON SCHEMA postrider TO {role}"),
        format!("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA postrider TO {role}"),
    ] {
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(postgres.pool()).await.unwrap();
    }
    let mut service = postgres.pool().begin().await.unwrap();
    let become_it = format!("SET LOCAL ROLE {role}");
    sqlx::query(sqlx::AssertSqlSafe(become_it)).execute(&mut *service).await.unwrap();
    let publish = "SELECT postrider.publish('shop.order.placed', '{}')";
    sqlx::query(publish).execute(&mut *service).await.unwrap();
    let read = sqlx::query("SELECT FROM postrider.event_outbox").execute(&mut *service).await;
    assert!(read.unwrap_err().to_string().contains("permission denied"));
    drop(service);
    for sql in [format!("DROP OWNED BY {role}"), format!("DROP ROLE {role}")] {
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(postgres.pool()).await.unwrap();
    }
}
