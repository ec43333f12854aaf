//! What a project that goes on working meets when its table is adopted: its users, its columns, its order.

use postrider::Outbox as _;
use postrider::postgres::Postgres;
use postrider::store::{HouseRules, Housekeeping as _, Outboxes as _, StoreErrorKind};

use super::tables::{HOLDCO, insert};
use super::{LEASE, claim, execute, relay, store};

async fn run(postgres: &Postgres, sql: String) {
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(postgres.pool()).await.unwrap();
}

async fn texts(postgres: &Postgres, sql: &'static str) -> Vec<String> {
    sqlx::query_scalar(sql).fetch_all(postgres.pool()).await.unwrap()
}

/// An administrator adopts, and the service has no right on anything that is new.
#[tokio::test]
async fn the_service_goes_on_inserting_with_the_rights_it_has() {
    let (postgres, _database) = store().await;
    execute(&postgres, HOLDCO).await.unwrap();
    let role = format!("app_{}", postrider::Clock::system().new_id().simple());
    run(&postgres, format!("CREATE ROLE {role}; ALTER TABLE public.event_outbox OWNER TO {role}")).await;
    postgres.adopt_outbox("event_outbox").await.unwrap();
    let inserting = format!(
        "BEGIN; SET LOCAL ROLE {role}; INSERT INTO public.event_outbox (id, group_id, aggregate_type, aggregate_id, event_type, payload) \
         VALUES (gen_random_uuid(), gen_random_uuid(), 'order', gen_random_uuid(), 'created', '{{}}'); COMMIT"
    );
    run(&postgres, inserting).await;
    assert_eq!(postgres.outbox("event_outbox").unwrap().backlog().await.unwrap().due, 1);
    run(&postgres, format!("ALTER TABLE public.event_outbox OWNER TO current_user; DROP ROLE {role}")).await;
}

/// Events of one transaction have one time.
#[tokio::test]
async fn what_waits_keeps_its_order_and_what_comes_meanwhile_is_behind_it() {
    let (postgres, _database) = store().await;
    execute(&postgres, HOLDCO).await.unwrap();
    let many = "INSERT INTO public.event_outbox (id, group_id, aggregate_type, aggregate_id, event_type, payload) \
         SELECT gen_random_uuid(), gen_random_uuid(), 'order', gen_random_uuid(), 'created', jsonb_build_object('n', n) \
         FROM generate_series(1, 2000) n";
    execute(&postgres, many).await.unwrap();
    // Written anew, so that it lies behind the others.
    execute(&postgres, "UPDATE public.event_outbox SET created_at = created_at - interval '1 hour' WHERE payload->>'n' = '1'")
        .await
        .unwrap();
    assert_eq!(postgres.adopt_outbox("event_outbox").await.unwrap(), 2000);
    let misplaced = "SELECT payload->>'n' FROM (SELECT payload, row_number() OVER (ORDER BY position) AS place \
         FROM public.event_outbox) row WHERE payload->>'n' <> place::text";
    assert_eq!(texts(&postgres, misplaced).await, Vec::<String>::new());
    // As if one that was there had not got its place yet when another came: places are kept for those.
    insert(&postgres, 3).await;
    let last = "SELECT (max(position) FILTER (WHERE payload ? 'n') + 1000 < max(position))::text FROM public.event_outbox";
    assert_eq!(texts(&postgres, last).await, ["true"]);
    let left = "SELECT relname::text FROM pg_class WHERE relname = 'event_outbox_place'";
    assert_eq!(texts(&postgres, left).await, Vec::<String>::new(), "nothing is left of it");
}

/// In more steps than one, and where many were written at one time.
#[tokio::test]
async fn a_large_table_gets_its_places_in_the_order_it_was_written() {
    let (postgres, _database) = store().await;
    execute(&postgres, HOLDCO).await.unwrap();
    execute(
        &postgres,
        "INSERT INTO public.event_outbox (id, group_id, aggregate_type, aggregate_id, event_type, payload, created_at) \
         SELECT gen_random_uuid(), gen_random_uuid(), 'order', gen_random_uuid(), 'created', jsonb_build_object('n', n), \
             now() - interval '1 day' + (n / 7000) * interval '1 second' FROM generate_series(1, 12000) n",
    )
    .await
    .unwrap();
    assert_eq!(postgres.adopt_outbox("event_outbox").await.unwrap(), 12_000);
    let wrong = "SELECT n::text FROM (SELECT (payload ->> 'n')::int AS n, row_number() OVER (ORDER BY position) AS place \
                 FROM public.event_outbox) numbered WHERE n <> place";
    assert_eq!(texts(&postgres, wrong).await, Vec::<String>::new());
    let left =
        "SELECT relname::text FROM pg_class WHERE relname IN ('event_outbox_unplaced', 'event_outbox_place')";
    assert_eq!(texts(&postgres, left).await, Vec::<String>::new());
}

/// Whoever looks after it would look for its partitions.
#[tokio::test]
async fn a_table_takes_the_place_of_an_outbox_that_was_dropped() {
    let (postgres, _database) = store().await;
    assert!(postgres.create_outbox("event_outbox").await.unwrap());
    execute(&postgres, "DROP TABLE public.event_outbox, public.event_outbox_id").await.unwrap();
    execute(&postgres, HOLDCO).await.unwrap();
    insert(&postgres, 1).await;
    postgres.adopt_outbox("event_outbox").await.unwrap();
    let adopted = postgres.outbox("event_outbox").unwrap();
    adopted.keep_house(&relay("a"), &HouseRules::default()).await.unwrap().unwrap();
    adopted.lease(&relay("a"), LEASE).await.unwrap();
    assert_eq!(claim(&adopted, &relay("a")).await.len(), 1);
}

/// An index that was not finished looks like one that is there.
#[tokio::test]
async fn an_index_whose_making_was_cut_off_is_made_again() {
    let (postgres, _database) = store().await;
    execute(&postgres, HOLDCO).await.unwrap();
    postgres.adopt_outbox("event_outbox").await.unwrap();
    execute(
        &postgres,
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'public.event_outbox_new'::regclass",
    )
    .await
    .unwrap();
    postgres.adopt_outbox("event_outbox").await.unwrap();
    let half_made = "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid";
    assert_eq!(texts(&postgres, half_made).await, Vec::<String>::new());
}

#[tokio::test]
async fn columns_of_the_project_are_read_or_refused_and_never_overwritten() {
    let (postgres, _database) = store().await;
    execute(&postgres, HOLDCO).await.unwrap();
    execute(&postgres, "ALTER TABLE public.event_outbox ADD published_at timestamp(3), ADD key text")
        .await
        .unwrap();
    for error in [
        postgres.would_adopt_outbox("event_outbox").await.unwrap_err(),
        postgres.adopt_outbox("event_outbox").await.unwrap_err(),
    ] {
        assert_eq!(error.kind, StoreErrorKind::Schema);
        let types = "published_at is timestamp without time zone, not timestamp with time zone";
        assert!(error.message.contains(types), "{error}");
        assert!(error.message.contains("it has a column key of its own"), "{error}");
    }
    execute(
        &postgres,
        "ALTER TABLE public.event_outbox DROP published_at, DROP key, ADD correlation_id uuid DEFAULT gen_random_uuid()",
    )
    .await
    .unwrap();
    postgres.adopt_outbox("event_outbox").await.unwrap();
    insert(&postgres, 1).await;
    let adopted = postgres.outbox("event_outbox").unwrap();
    let a = relay("a");
    adopted.lease(&a, LEASE).await.unwrap();
    assert!(claim(&adopted, &a).await[0].envelope.correlation_id.is_some());
}

/// A service that says the present for both times, one a moment after the other, schedules nothing, also if its clock is ahead.
#[tokio::test]
async fn what_is_due_when_it_is_written_has_no_time_of_its_own() {
    let (postgres, _database) = store().await;
    execute(&postgres, HOLDCO).await.unwrap();
    postgres.adopt_outbox("event_outbox").await.unwrap();
    let written = "INSERT INTO public.event_outbox \
             (id, group_id, aggregate_type, aggregate_id, event_type, payload, created_at, available_at) \
         SELECT gen_random_uuid(), gen_random_uuid(), kind, gen_random_uuid(), 'created', '{}', now() + ahead, now() + ahead + later \
         FROM (VALUES ('moment', interval '-1 second', interval '3 microseconds'), ('ahead', '5 seconds', '2 milliseconds'), \
             ('hour', '0 seconds', '1 hour')) event (kind, ahead, later)";
    execute(&postgres, written).await.unwrap();
    let scheduled = "SELECT aggregate_type FROM public.event_outbox WHERE available_at > created_at";
    assert_eq!(texts(&postgres, scheduled).await, ["hour"]);
}
