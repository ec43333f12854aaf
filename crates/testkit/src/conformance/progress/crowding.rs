//! Many workers at once, every item delivered twice.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use postrider::progress::{JobFilter, JobId, Mark, NewJob, ProgressErrorKind, ProgressStore, Status};

use super::{Desk, ProgressFixture, job, total};

const WORKERS: usize = 100;

/// Every worker takes the next delivery until there is none, as consumers of one queue do.
async fn work<P: ProgressStore>(progress: &P, deliveries: Vec<(JobId, Vec<Mark>)>) {
    let (deliveries, next) = (Arc::new(deliveries), Arc::new(AtomicUsize::new(0)));
    let workers = (0..WORKERS).map(|_| {
        let (progress, deliveries, next) = (progress.clone(), deliveries.clone(), next.clone());
        tokio::spawn(async move {
            while let Some((job, marks)) = deliveries.get(next.fetch_add(1, Ordering::Relaxed)) {
                // A delivery that meets another in its way comes again.
                while let Err(error) = progress.mark(job, marks).await {
                    assert_eq!(error.kind, ProgressErrorKind::Unavailable, "{error}");
                }
            }
        })
    });
    for worker in join_all(workers).await {
        worker.unwrap();
    }
}

/// The hot job: one row, one hash, one hundred workers.
pub async fn a_hundred_workers_on_one_job_count_every_item_once<F: ProgressFixture>(fixture: &F) {
    let desk = Desk::closed(fixture, 1_000).await;
    let item = |n: usize| vec![Mark::done(format!("item-{}", n % 1_000)).unwrap()];
    work(&desk.progress, (0..2_000).map(|n| (desk.job.clone(), item(n))).collect()).await;
    assert_eq!(desk.stands().await, (Status::Done, 1_000, 1_000, 0));
    assert_eq!(fixture.announced().await.len(), 1);
}

/// 1,000 jobs of 3 items, each delivered twice, while the discovery of half of them is still going on.
pub async fn a_thousand_jobs_complete_once_each<F: ProgressFixture>(fixture: &F) {
    const JOBS: usize = 1_000;
    let progress = fixture.progress();
    let name = |n: usize| job(&format!("job-{n:04}"));
    let making = (0..JOBS).map(async |n| {
        progress.init(&NewJob::new(name(n)).unwrap()).await.unwrap();
        progress.set_total(&name(n), total(3)).await.unwrap();
        if n % 2 == 0 {
            progress.end_discovery(&name(n)).await.unwrap();
        }
    });
    join_all(making).await;
    let mut deliveries: Vec<_> = (0..3)
        .flat_map(|item| (0..JOBS).map(move |n| (n, item)))
        .map(|(n, item)| (name(n), vec![Mark::done(format!("item-{item}")).unwrap()]))
        .collect();
    deliveries.extend(deliveries.clone().into_iter().rev());
    let ending = join_all((0..JOBS).filter(|n| n % 2 == 1).map(async |n| {
        progress.end_discovery(&name(n)).await.unwrap();
    }));
    tokio::join!(work(&progress, deliveries), ending);

    let all = JobFilter { limit: 2_000, ..JobFilter::default() };
    let jobs = progress.list(&all).await.unwrap();
    assert_eq!(jobs.iter().filter(|job| job.status == Status::Done && job.done == 3).count(), JOBS);
    let mut times: HashMap<String, usize> = HashMap::new();
    for event in fixture.announced().await {
        *times.entry(event.aggregate_id.unwrap().to_string()).or_default() += 1;
    }
    assert_eq!(times.len(), JOBS, "every job is announced");
    assert!(times.values().all(|times| *times == 1), "none is announced twice");
}
