//! The harness on a PostgreSQL of the caller's: handlers with SQL of its own, time that is waited for.

use std::time::Duration;

use postrider::harness::Harness;
use postrider::postgres::{Postgres, PostgresConfig, PostgresTx};
use postrider::registry::Registry;
use postrider::settlement::RetryPolicy;
use postrider::{Clock, Event, Failure, Handler, Incoming};
use postrider_testkit::servers::shared;

/// Reads a number, writes it down, and fails at the first attempt.
struct Billing;

impl Handler<Postgres> for Billing {
    async fn handle(&self, tx: &mut PostgresTx, event: &Incoming) -> Result<(), Failure> {
        let cents: i64 = event.parse()?;
        sqlx::query("INSERT INTO public.invoice VALUES ($1)").bind(cents).execute(tx.connection()).await?;
        if event.attempt == 1 { Err(Failure::transient("not yet")) } else { Ok(()) }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_of_postgresql_are_tested_on_it() {
    let database = shared().unwrap().migrated_database().await.unwrap();
    let store = Postgres::connect(PostgresConfig::new(&database.url), Clock::system()).await.unwrap();
    sqlx::query("CREATE TABLE public.invoice (cents bigint)").execute(store.pool()).await.unwrap();
    let wait = Duration::from_millis(300);
    let harness = Harness::on(store)
        .consumer("billing", "order.*", RetryPolicy::fixed(3, wait), Registry::new().on("#", Billing))
        .unwrap()
        .start()
        .await
        .unwrap();
    for body in [serde_json::json!(1200), serde_json::json!("twelve")] {
        harness.publish(Event::new("order.placed").unwrap().json(&body).unwrap()).await.unwrap();
    }
    harness.until_quiet().await.unwrap();
    harness.advance(wait).await.unwrap();

    let account = harness.account("billing").await.unwrap();
    assert_eq!((account.committed, account.applied, account.dead), (2, 1, 1));
    let letters = harness.dead_letters().await.unwrap();
    assert_eq!((letters[0].reason.as_str(), letters[0].attempts), ("rejected", 1));
    assert_eq!(letters[0].error, "the payload cannot be read: expected i64 (line 1, column 8)");
    let invoices: Vec<i64> = sqlx::query_scalar("SELECT cents FROM public.invoice")
        .fetch_all(harness.store().pool())
        .await
        .unwrap();
    assert_eq!(invoices, [1200], "what the first attempt wrote was rolled back");
}
