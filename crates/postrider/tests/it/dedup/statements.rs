//! What the inbox asks of PostgreSQL, as its own log tells it: statements of a batch, and the pages that forgetting touches.

use std::sync::Arc;
use std::time::Duration;

use postrider::embedded::EmbeddedBroker;
use postrider::handler::{BatchLimits, batch_handler_fn};
use postrider::postgres::Postgres;
use postrider::registry::Registry;
use postrider::sqlite::{Sqlite, SqliteConfig};
use postrider::store::InboxMemory as _;
use postrider::{Clock, Failure};
use postrider_testkit::effects::Effects as _;
use postrider_testkit::servers::{self, Redis};
use sqlx::{Connection as _, PgConnection};

use super::mail::Mail;
use super::{accelerator, postgres, quick, until};

/// Does this on the server, before anybody who is watched connects.
async fn set_up(server: &servers::Postgres, sql: &'static str) {
    let mut connection = PgConnection::connect(&server.url()).await.unwrap();
    sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
}

/// The log's entries, each with the session it is of; lines that go on belong to the entry before.
fn entries(log: &str) -> Vec<(&str, String)> {
    let mut entries: Vec<(&str, String)> = Vec::new();
    for line in log.lines() {
        let session = line.split_once(" [").and_then(|(_, rest)| rest.split_once("] LOG:  "));
        match (session, entries.last_mut()) {
            (Some((session, told)), _) => entries.push((session, told.to_owned())),
            (None, Some((_, told))) => {
                told.push('\n');
                told.push_str(line);
            }
            (None, None) => {}
        }
    }
    entries
}

/// The statement that an entry tells of.
fn statement(told: &str) -> Option<&str> {
    let told = told.strip_prefix("statement: ").or_else(|| {
        let (name, rest) = told.strip_prefix("execute ")?.split_once(": ")?;
        (!name.contains(' ')).then_some(rest)
    })?;
    Some(told.trim())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_100_costs_one_statement_of_the_inbox() {
    const MARKS: &str = "SELECT postrider.inbox_mark(";
    let (server, redis) = (servers::Postgres::start().await.unwrap(), Redis::start().await.unwrap());
    set_up(&server, "ALTER DATABASE postgres SET log_statement = 'all'").await;
    let store = postgres(&server.url()).await;
    store.create_effects().await.unwrap();
    let handler = batch_handler_fn::<Postgres, _>(|tx, events| {
        Box::pin(async move {
            let ids: Vec<_> = events.iter().map(|event| event.envelope.id.to_string()).collect();
            let insert = sqlx::query("INSERT INTO effect SELECT 'mail', unnest($1::text[])").bind(ids);
            insert.execute(tx.connection()).await.map_err(Failure::transient)?;
            Ok(())
        })
    });
    // Nobody is called before all of them are there.
    let limits = BatchLimits { max_size: 100, max_wait: Duration::from_mins(1) };
    let (clock, folder) = (Clock::system(), tempfile::tempdir().unwrap());
    let file = Sqlite::open(SqliteConfig::new(folder.path().join("queues.db")), clock.clone()).await.unwrap();
    let broker = Arc::new(EmbeddedBroker::open(file, clock).await.unwrap());
    let cache = accelerator(&redis.url(), quick()).await;
    let handlers = Registry::new().on_batch("#", limits, handler);
    let mail = Mail::with(store, broker, handlers, &cache).await;
    let events: Vec<_> = (0..100).map(|number| Mail::event(&format!("evt_{number}"))).collect();
    mail.deliver_all(&events).await;
    until(async || mail.status.applied() == 100).await;
    assert_eq!(mail.store.effects().await.unwrap().len(), 100);

    let log = server.log().unwrap();
    let entries = entries(&log);
    let marks = entries.iter().filter(|(_, told)| statement(told).is_some_and(|sql| sql.starts_with(MARKS)));
    let [(session, _)] = marks.collect::<Vec<_>>()[..] else {
        panic!("the inbox was written oftener:\n{log}")
    };
    let said: Vec<_> = entries.iter().filter(|(one, _)| one == session).collect();
    let said: Vec<_> = said.iter().filter_map(|(_, told)| statement(told)).collect();
    let place = said.iter().position(|sql| sql.starts_with(MARKS)).unwrap();
    let first = said[..place].iter().rposition(|sql| sql.starts_with("BEGIN")).unwrap();
    let last = place + said[place..].iter().position(|sql| sql.starts_with("COMMIT")).unwrap();
    // SELECT 1 is for the handler's own statements: had one failed unseen, COMMIT would roll back and call it success.
    let beginnings = ["BEGIN", MARKS, "INSERT INTO effect", "SELECT 1", "COMMIT"];
    let transaction = &said[first..=last];
    assert_eq!(transaction.len(), beginnings.len(), "{transaction:#?}");
    for (sql, beginning) in transaction.iter().zip(beginnings) {
        assert!(sql.starts_with(beginning), "{transaction:#?}");
    }
}

/// The plan of the last statement that forgot, as `auto_explain` told it, and how many pages it touched.
fn last_forgotten(server: &servers::Postgres) -> (String, u64) {
    let log = server.log().unwrap();
    let plans = entries(&log).into_iter().map(|(_, told)| told);
    let mut plan =
        plans.filter(|told| told.contains("plan:") && told.contains("DELETE FROM postrider.event_inbox"));
    let plan = plan.next_back().unwrap_or_else(|| panic!("no plan in:\n{log}"));
    let pages = |line: &str| {
        let (_, told) = line.trim().split_once("Buffers: shared ")?;
        let figure = |name: &str| {
            let word = told.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            word.map_or(0, |number| number.parse::<u64>().unwrap())
        };
        Some(figure("hit") + figure("read"))
    };
    let pages = plan.lines().filter_map(pages).max().unwrap();
    (plan, pages)
}

#[tokio::test(flavor = "multi_thread")]
async fn forgetting_costs_the_same_however_much_is_remembered() {
    const STEP: u32 = 5_000;
    let server = servers::Postgres::start().await.unwrap();
    let store = postgres(&server.url()).await;
    // The oldest first, from 60 days ago on.
    let fill = async |from: u32, to: u32| {
        let insert = "INSERT INTO postrider.event_inbox (consumer_name, event_id, payload_hash, processed_at) \
                      SELECT 'mail', 'evt_' || n, sha256(n::text::bytea), now() - interval '60 days' + n * interval '2 seconds' \
                      FROM generate_series($1, $2) n";
        // In parts that stay below a statement's time limit, however busy the machine is.
        for part in (from..to).step_by(50_000) {
            let last = to.min(part + 50_000).cast_signed() - 1;
            let insert = sqlx::query(insert).bind(part.cast_signed()).bind(last);
            insert.execute(store.pool()).await.unwrap();
        }
        sqlx::raw_sql("ANALYZE postrider.event_inbox").execute(store.pool()).await.unwrap();
    };
    set_up(
        &server,
        "ALTER TABLE postrider.event_inbox SET (autovacuum_enabled = off); \
         ALTER DATABASE postgres SET session_preload_libraries = 'auto_explain'; \
         ALTER DATABASE postgres SET auto_explain.log_min_duration = 0; \
         ALTER DATABASE postgres SET auto_explain.log_analyze = on; \
         ALTER DATABASE postgres SET auto_explain.log_buffers = on",
    )
    .await;
    // Those who connect from now on are watched.
    let watched = postgres(&server.url()).await;
    let keep = Duration::from_hours(24 * 30);
    let forget = async || {
        let forgotten = watched.forget("keeper", keep, STEP).await.unwrap().unwrap();
        assert_eq!((forgotten.marks, forgotten.more), (u64::from(STEP), true));
        let (plan, pages) = last_forgotten(&server);
        assert!(plan.contains("Index Scan using event_inbox_processed_at"), "{plan}");
        assert!(!plan.contains("Seq Scan on event_inbox"), "{plan}");
        pages
    };
    fill(0, 100_000).await;
    let few = forget().await;
    fill(100_000, 1_000_000).await;
    let many = forget().await;
    assert!(many <= few + few / 5, "{few} pages with 100,000 marks, {many} with 1,000,000");
    // Nor does it grow with what is gone and not vacuumed yet.
    for _ in 0..18 {
        forget().await;
    }
    let last = forget().await;
    assert!(
        last <= few + few / 5,
        "{few} pages for the first step, {last} after 100,000 marks were forgotten"
    );
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM postrider.event_inbox")
        .fetch_one(store.pool())
        .await
        .unwrap();
    assert_eq!(left, 1_000_000 - 21 * i64::from(STEP));
}
