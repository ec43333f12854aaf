//! The finish line is crossed once, when discovery has ended and everything is done, and not before.

use postrider::progress::{Mark, NewJob, ProgressStore as _, Status, completion_id};
use serde_json::{Value, json};

use super::{Desk, ProgressFixture, done, job, total};

/// Once, with the numbers it ended with.
pub async fn the_last_item_announces_the_job<F: ProgressFixture>(fixture: &F) {
    let progress = fixture.progress();
    let new = NewJob::new("project-7").unwrap().tenant("acme").unwrap();
    progress.init(&new).await.unwrap();
    progress.set_total(&new.id, total(3)).await.unwrap();
    progress.end_discovery(&new.id).await.unwrap();
    progress.mark(&new.id, &[Mark::done("a").unwrap(), Mark::failed("b").unwrap()]).await.unwrap();
    assert!(fixture.announced().await.is_empty());
    progress.mark(&new.id, &done(&["c"])).await.unwrap();
    progress.mark(&new.id, &done(&["c", "a"])).await.unwrap();

    let finished = progress.get(&new.id).await.unwrap().unwrap();
    assert_eq!(finished.status, Status::Done);
    let announced = fixture.announced().await;
    let [event] = announced.as_slice() else { panic!("one event, not {announced:?}") };
    assert_eq!(event.event_type.as_str(), "job.completed");
    assert_eq!(event.id, completion_id(&new.id));
    assert_eq!(event.aggregate_id.as_ref().unwrap().as_str(), "project-7");
    assert_eq!(event.tenant.group, new.tenant);
    assert_eq!(Some(event.occurred_at), finished.finished_at);
    let payload: Value = serde_json::from_slice(event.payload.bytes()).unwrap();
    assert_eq!(
        payload,
        json!({
            "job": "project-7", "status": "DONE", "total": 3, "done": 3, "errors": 1,
            "started_at": finished.created_at, "finished_at": finished.finished_at,
        })
    );
}

/// However many are done, the total may still grow.
pub async fn completion_waits_for_the_end_of_discovery<F: ProgressFixture>(fixture: &F) {
    let desk = Desk::init(fixture).await;
    desk.progress.begin_discovery(&desk.job).await.unwrap();
    desk.add("page-1", 2).await;
    desk.mark(&["a", "b", "c"]).await;
    assert_eq!(desk.stands().await, (Status::Crawling, 2, 3, 0));
    desk.add("page-2", 2).await;
    desk.progress.end_discovery(&desk.job).await.unwrap();
    assert_eq!(desk.stands().await, (Status::Processing, 4, 3, 0));
    assert!(fixture.announced().await.is_empty());
    desk.mark(&["d"]).await;
    assert_eq!(desk.stands().await, (Status::Done, 4, 4, 0));
    assert_eq!(fixture.announced().await.len(), 1);
}

/// A job whose last item was done while it was CRAWLING completes too.
pub async fn ending_discovery_runs_the_finish_check<F: ProgressFixture>(fixture: &F) {
    let desk = Desk::init(fixture).await;
    desk.progress.begin_discovery(&desk.job).await.unwrap();
    desk.add("page-1", 2).await;
    desk.mark(&["a", "b"]).await;
    assert_eq!(desk.progress.end_discovery(&desk.job).await.unwrap().status, Status::Done);
    assert_eq!(desk.progress.end_discovery(&desk.job).await.unwrap().status, Status::Done);
    assert_eq!(fixture.announced().await.len(), 1);
}

/// Nothing to do is done.
pub async fn a_job_without_items_completes<F: ProgressFixture>(fixture: &F) {
    let desk = Desk::init(fixture).await;
    desk.progress.begin_discovery(&desk.job).await.unwrap();
    assert_eq!(desk.progress.end_discovery(&desk.job).await.unwrap().status, Status::Done);
    assert_eq!(fixture.announced().await.len(), 1);
}

/// The way out for a job whose total was too high.
pub async fn lowering_the_total_runs_the_finish_check<F: ProgressFixture>(fixture: &F) {
    let desk = Desk::closed(fixture, 3).await;
    desk.mark(&["a", "b"]).await;
    assert_eq!(desk.progress.set_total(&desk.job, total(2)).await.unwrap().status, Status::Done);
    assert_eq!(fixture.announced().await.len(), 1);
}

/// Of the type that the job names.
pub async fn another_event_is_announced_where_asked_for<F: ProgressFixture>(fixture: &F) {
    let progress = fixture.progress();
    progress.init(&NewJob::new("crawl").unwrap().announces("smap.project.crawled").unwrap()).await.unwrap();
    progress.end_discovery(&job("crawl")).await.unwrap();
    assert_eq!(fixture.announced().await[0].event_type.as_str(), "smap.project.crawled");
}
