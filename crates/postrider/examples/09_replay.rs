//! Dead letters are found, tried as a canary, and sent again: what is applied already stays applied once.
//!
//! `cargo run -p postrider --example 09_replay`
#![allow(clippy::print_stdout, reason = "an example talks to people")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use postrider::handler::handler_fn;
use postrider::harness::{Harness, HarnessError};
use postrider::operation::{LetterPlan, LetterWork, Runner, RunnerConfig, plan, start};
use postrider::registry::Registry;
use postrider::settlement::RetryPolicy;
use postrider::sqlite::Sqlite;
use postrider::store::{GroupQuery, LetterFilter, OperationKind, Triage as _};
use postrider::{Clock, Event, Failure};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), HarnessError> {
    let deployed = Arc::new(AtomicBool::new(false));
    let fixed = deployed.clone();
    let charge = handler_fn::<Sqlite, _>(move |_tx, event| {
        let fixed = fixed.load(Ordering::SeqCst);
        Box::pin(async move {
            if fixed {
                return Ok(());
            }
            Err(Failure::permanent(format_args!("no account for {}", event.envelope.id)).class("no_account"))
        })
    });
    let harness = Harness::new()
        .consumer("billing", "order.#", RetryPolicy::default(), Registry::new().on("order.placed", charge))?
        .start()
        .await?;
    for order in 0..20 {
        harness.publish(Event::new("order.placed")?.aggregate_id(format!("order-{order}"))?).await?;
    }
    harness.until_quiet().await?;

    // Twenty different texts, one reason.
    let (store, clock) = (harness.store(), Clock::system());
    let now = clock.now();
    let query = GroupQuery { filter: LetterFilter::open(), after: None, limit: 10, hours: 24, now };
    let groups = store.groups(&query).await?.groups;
    println!("{} letters in {} group: {}", groups[0].open, groups.len(), groups[0].error);
    assert_eq!((groups.len(), groups[0].open), (1, 20));

    // The bug is fixed. Five first, then the rest.
    deployed.store(true, Ordering::SeqCst);
    let filter = LetterFilter { fingerprint: Some(groups[0].fingerprint.clone()), ..LetterFilter::open() };
    for limit in [Some(5), None] {
        let letters = LetterPlan { filter: filter.clone(), limit, ..LetterPlan::default() };
        let drawn = plan(store, None, &letters, None).await?;
        println!("{} match, {} are taken", drawn.survey.letters, drawn.total);
        let kind = OperationKind::ReplayLetters;
        let id = start(store, &clock, kind, &letters, None, "example", Some("bug fixed")).await?;
        let runner = Runner::new(store.clone(), clock.clone(), RunnerConfig::default());
        if let Some(id) = id {
            runner.run(id, &LetterWork::new(clock.clone()), &CancellationToken::new()).await?;
        }
        harness.until_quiet().await?;
        println!("applied: {}", harness.account("billing").await?.applied);
    }
    let account = harness.account("billing").await?;
    assert_eq!((account.committed, account.applied, account.dead), (20, 20, 0));
    Ok(())
}
