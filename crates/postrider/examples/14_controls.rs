//! A consumer in somebody's hands: paused, limited in how many and how fast, left alone while its handler fails, fed in batches.
//!
//! `cargo run -p postrider --example 14_controls`
#![allow(clippy::print_stdout, reason = "an example talks to people")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use postrider::consumer::{BreakerConfig, BreakerState, Cause, Concurrency, ConsumerConfig, ConsumerState};
use postrider::handler::{BatchLimits, batch_handler_fn, handler_fn};
use postrider::harness::{Harness, HarnessError};
use postrider::registry::Registry;
use postrider::settlement::RetryPolicy;
use postrider::sqlite::Sqlite;
use postrider::store::Controls as _;
use postrider::topology::ConsumerName;
use postrider::{Event, Failure, Outbox as _, Store as _};
use tokio::sync::Barrier;

/// On a server these are `postrider consumers pause NAME`, and `concurrency`, `max_rate` and `breaker` of the configuration.
#[tokio::main]
async fn main() -> Result<(), HarnessError> {
    pause_and_resume().await?;
    concurrency().await?;
    rate_limit().await?;
    breaker().await?;
    batches().await
}

/// All of them in one transaction.
async fn publish(harness: &Harness, orders: &[&str]) -> Result<(), HarnessError> {
    let placed = |(number, order): (usize, &&str)| {
        Event::new("order.placed").and_then(|event| event.aggregate_id(format!("{order}-{number}")))
    };
    let events: Result<Vec<_>, _> = orders.iter().enumerate().map(placed).collect();
    let mut tx = harness.store().begin().await?;
    harness.store().append(&mut tx, events?).await?;
    Ok(harness.store().commit(tx).await?)
}

/// A pause is kept in the store: every process that runs the consumer obeys it within a second, and so does one that starts later.
async fn pause_and_resume() -> Result<(), HarnessError> {
    let send = handler_fn::<Sqlite, _>(|_tx, _event| Box::pin(async { Ok(()) }));
    let harness = Harness::new()
        .consumer("mail", "order.*", RetryPolicy::default(), Registry::new().on("#", send))?
        .start()
        .await?;
    let (mail, status) = (ConsumerName::new("mail")?, harness.status("mail")?);
    harness.store().pause(&mail, "ann", "the mail server moves").await?;
    harness.advance(Duration::from_secs(1)).await?;
    publish(&harness, &["order"; 3]).await?;
    harness.until_quiet().await?;
    println!("{:?}", status.state());
    assert!(matches!(status.state(), ConsumerState::Paused(pause) if pause.by == "ann"));
    assert_eq!(harness.account("mail").await?.waiting, 3, "nothing is lost: it waits in the queue");

    harness.store().resume(&mail, "ann", "it has moved").await?;
    harness.advance(Duration::from_secs(1)).await?;
    harness.until(async || status.applied() == 3).await?;
    Ok(())
}

/// Three at a time, never more. By default it goes from 10 to 50 while a queue is backed up, and back.
async fn concurrency() -> Result<(), HarnessError> {
    let (meeting, inside, most) =
        (Arc::new(Barrier::new(3)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let highest = most.clone();
    let meet = handler_fn::<Sqlite, _>(move |_tx, _event| {
        let (meeting, inside, highest) = (meeting.clone(), inside.clone(), highest.clone());
        Box::pin(async move {
            highest.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            meeting.wait().await;
            inside.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        })
    });
    let harness = Harness::new()
        .consumer("meeting", "order.*", RetryPolicy::default(), Registry::new().on("#", meet))?
        .with(ConsumerConfig { concurrency: Concurrency::fixed(3), ..ConsumerConfig::default() })
        .start()
        .await?;
    publish(&harness, &["order"; 9]).await?;
    harness.until_quiet().await?;
    println!(
        "at most {} at a time, of {}",
        most.load(Ordering::SeqCst),
        harness.status("meeting")?.concurrency()
    );
    assert_eq!((most.load(Ordering::SeqCst), harness.account("meeting").await?.applied), (3, 9));
    Ok(())
}

/// So many a second, for the sake of whoever is called.
async fn rate_limit() -> Result<(), HarnessError> {
    let call = handler_fn::<Sqlite, _>(|_tx, _event| Box::pin(async { Ok(()) }));
    let harness = Harness::new()
        .consumer("slowly", "order.*", RetryPolicy::default(), Registry::new().on("#", call))?
        .with(ConsumerConfig { max_rate: Some(10.0), ..ConsumerConfig::default() })
        .start()
        .await?;
    publish(&harness, &["order"; 21]).await?;
    let status = harness.status("slowly")?;
    let mut passed = Duration::ZERO;
    while status.applied() < 21 {
        harness.let_pass(Duration::from_millis(10)).await;
        passed += Duration::from_millis(10);
    }
    println!("21 at 10 a second took {passed:?}");
    assert!(passed >= Duration::from_millis(1500), "a few may go at once, and then one every 100 ms");
    Ok(())
}

/// After five failures in a row the queue is left alone, and probed with one delivery at a time: nobody's retries are used up.
async fn breaker() -> Result<(), HarnessError> {
    let (well, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (works, called) = (well.clone(), calls.clone());
    let charge = handler_fn::<Sqlite, _>(move |_tx, _event| {
        let (works, called) = (works.clone(), called.clone());
        Box::pin(async move {
            called.fetch_add(1, Ordering::SeqCst);
            if works.load(Ordering::SeqCst) { Ok(()) } else { Err(Failure::transient("the bank is down")) }
        })
    });
    let pause = Duration::from_secs(30);
    let harness = Harness::new()
        .consumer("bank", "order.*", RetryPolicy::default(), Registry::new().on("#", charge))?
        .with(ConsumerConfig {
            concurrency: Concurrency::fixed(1),
            breaker: BreakerConfig { failures: 5, pause, max_pause: pause },
            ..ConsumerConfig::default()
        })
        .start()
        .await?;
    let status = harness.status("bank")?;
    publish(&harness, &["order"; 10]).await?;
    let open = ConsumerState::Tripped(BreakerState::Open(Cause::Handler));
    harness.until(async || status.state() == open).await?;
    println!("after {} calls: {:?}", calls.load(Ordering::SeqCst), status.state());
    assert_eq!(calls.load(Ordering::SeqCst), 5, "the other five were never tried");

    well.store(true, Ordering::SeqCst);
    harness.advance(pause).await?;
    harness.until(async || status.applied() == 10).await?;
    assert_eq!((status.state(), status.dead()), (ConsumerState::Running, 0));
    Ok(())
}

/// Many events, one transaction. A batch that fails is tried again one by one, so that a bad event fails alone.
async fn batches() -> Result<(), HarnessError> {
    let sizes = Arc::new(AtomicUsize::new(0));
    let largest = sizes.clone();
    let count = batch_handler_fn::<Sqlite, _>(move |_tx, events| {
        let largest = largest.clone();
        Box::pin(async move {
            largest.fetch_max(events.len(), Ordering::SeqCst);
            let odd = |id: &postrider::envelope::AggregateId| id.as_str().starts_with("odd");
            let bad = events.iter().any(|event| event.envelope.aggregate_id.as_ref().is_some_and(odd));
            if bad { Err(Failure::permanent("there is no such order")) } else { Ok(()) }
        })
    });
    let limits = BatchLimits { max_size: 25, ..BatchLimits::default() };
    let harness = Harness::new()
        .consumer("count", "order.*", RetryPolicy::default(), Registry::new().on_batch("#", limits, count))?
        .start()
        .await?;
    let orders = [&["even"; 40][..], &["odd"], &["even"; 40]].concat();
    publish(&harness, &orders).await?;
    harness.until_quiet().await?;
    let account = harness.account("count").await?;
    println!(
        "{} applied in batches of up to {}, {} dead",
        account.applied,
        sizes.load(Ordering::SeqCst),
        account.dead
    );
    assert_eq!((account.applied, account.dead), (80, 1));
    assert!(sizes.load(Ordering::SeqCst) <= 25);
    Ok(())
}
