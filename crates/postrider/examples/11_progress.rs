//! A job of many items: workers mark them in their own transactions, and whoever marks the last one announces the job, once.
//!
//! `cargo run -p postrider --example 11_progress`
#![allow(clippy::print_stdout, reason = "an example talks to people")]

use postrider::handler::handler_fn;
use postrider::harness::{Harness, HarnessError};
use postrider::progress::{JobId, Mark, NewJob, Progress, ProgressError, ProgressStore as _, Status};
use postrider::registry::Registry;
use postrider::settlement::RetryPolicy;
use postrider::sqlite::Sqlite;
use postrider::{Event, Failure};

#[tokio::main]
async fn main() -> Result<(), HarnessError> {
    let (seen, mut completions) = tokio::sync::mpsc::unbounded_channel();
    // The store is known once the harness runs; handlers that start with a store take it directly.
    let (give, take) = tokio::sync::watch::channel(None::<Progress<Sqlite>>);
    let worker = handler_fn::<Sqlite, _>(move |tx, event| {
        let progress = take.borrow().clone();
        Box::pin(async move {
            let progress = progress.ok_or_else(|| Failure::transient("not started yet"))?;
            let page = event.envelope.aggregate_id.as_ref().ok_or_else(|| Failure::permanent("no page"))?;
            // Page 3 cannot be read: it counts as handled, and as an error.
            let mark = if page.as_str() == "page-3" { Mark::failed(page)? } else { Mark::done(page)? };
            let marked = progress.mark_in(tx, &JobId::new("project-7")?, &[mark]).await;
            marked.map(|_| ()).map_err(ProgressError::into_failure)
        })
    });
    let report = handler_fn::<Sqlite, _>(move |_tx, event| {
        let seen = seen.clone();
        Box::pin(async move {
            seen.send(event.envelope.clone())?;
            Ok(())
        })
    });
    let harness = Harness::new()
        .consumer("worker", "page.*", RetryPolicy::default(), Registry::new().on("page.found", worker))?
        .consumer("report", "job.*", RetryPolicy::default(), Registry::new().on("job.completed", report))?
        .start()
        .await?;
    let progress = Progress::new(harness.store().clone());
    give.send(Some(progress.clone()))?;

    let job = progress.init(&NewJob::new("project-7")?).await?.id;
    progress.begin_discovery(&job).await?;
    for page in ["page-1", "page-2", "page-3"] {
        harness.publish(Event::new("page.found")?.aggregate_id(page)?).await?;
    }
    progress.set_total(&job, 3_u32.into()).await?;
    harness.until_quiet().await?;
    let crawling = progress.get(&job).await?.ok_or("no job")?;
    println!("{}: {} of {} done", crawling.status, crawling.done, crawling.total);
    assert_eq!((crawling.status, crawling.done), (Status::Crawling, 3));

    // Everything is done already, so ending discovery crosses the finish line.
    progress.end_discovery(&job).await?;
    harness.until_quiet().await?;
    let completed = completions.recv().await.ok_or("not announced")?;
    println!("{} {}", completed.event_type, String::from_utf8_lossy(completed.payload.bytes()));
    assert!(completions.try_recv().is_err(), "once");
    assert_eq!(progress.get(&job).await?.ok_or("no job")?.errors, 1);
    Ok(())
}
