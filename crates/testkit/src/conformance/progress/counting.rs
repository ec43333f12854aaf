//! Items are counted once, whatever they are called and however often they come.

use postrider::progress::{JobFilter, Mark, Marked, NewJob, ProgressErrorKind, ProgressStore as _, Status};

use super::{Desk, ProgressFixture, done, job, total};

/// Exactly as the first time, and without undoing what happened since.
pub async fn a_new_job_is_initializing_and_init_may_be_repeated<F: ProgressFixture>(fixture: &F) {
    let progress = fixture.progress();
    let new = NewJob::new("project-7").unwrap().tenant("acme").unwrap();
    let made = progress.init(&new).await.unwrap();
    assert_eq!((made.status, made.total, made.done, made.errors), (Status::Initializing, 0, 0, 0));
    assert_eq!(made.tenant, new.tenant);
    assert_eq!(progress.get(&new.id).await.unwrap(), Some(made));
    let changed = progress.set_total(&new.id, total(3)).await.unwrap();
    assert_eq!(progress.init(&new).await.unwrap(), changed);
}

/// Neither by a mark nor by a change.
pub async fn an_unknown_job_is_refused_and_not_made<F: ProgressFixture>(fixture: &F) {
    let (progress, nobody) = (fixture.progress(), job("nobody"));
    for refused in [
        progress.mark(&nobody, &done(&["a"])).await.map(|_| ()),
        progress.set_total(&nobody, total(1)).await.map(|_| ()),
        progress.begin_discovery(&nobody).await.map(|_| ()),
        progress.end_discovery(&nobody).await.map(|_| ()),
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind, ProgressErrorKind::UnknownJob);
        assert!(error.to_string().contains("nobody"), "{error}");
    }
    assert_eq!(progress.get(&nobody).await.unwrap(), None);
    assert_eq!(progress.list(&JobFilter::default()).await.unwrap(), []);
}

/// In one batch, in two, and in another order.
pub async fn items_are_counted_once_by_their_ids<F: ProgressFixture>(fixture: &F) {
    let desk = Desk::closed(fixture, 5).await;
    assert_eq!(desk.mark(&["a", "b", "a"]).await, Marked { counted: 2, repeated: 1 });
    assert_eq!(desk.mark(&["b", "a"]).await, Marked { counted: 0, repeated: 2 });
    assert_eq!(desk.mark(&["c", "b"]).await, Marked { counted: 1, repeated: 1 });
    assert_eq!(desk.stands().await, (Status::Processing, 5, 3, 0));
}

/// A failed item was handled too. What was said of it first counts.
pub async fn failed_items_are_done_and_errors<F: ProgressFixture>(fixture: &F) {
    let desk = Desk::closed(fixture, 3).await;
    let marks = [Mark::failed("a").unwrap(), Mark::done("b").unwrap()];
    desk.progress.mark(&desk.job, &marks).await.unwrap();
    desk.progress.mark(&desk.job, &[Mark::done("a").unwrap(), Mark::failed("b").unwrap()]).await.unwrap();
    assert_eq!(desk.stands().await, (Status::Processing, 3, 2, 1));
}

/// But the job has to be there.
pub async fn marking_nothing_is_fine<F: ProgressFixture>(fixture: &F) {
    let desk = Desk::closed(fixture, 1).await;
    let before = desk.get().await;
    assert_eq!(desk.mark(&[]).await, Marked::default());
    assert_eq!(desk.get().await, before);
    let unknown = desk.progress.mark(&job("nobody"), &[]).await.unwrap_err();
    assert_eq!(unknown.kind, ProgressErrorKind::UnknownJob);
}

/// A page that is reported twice found its items once.
pub async fn pages_are_added_once<F: ProgressFixture>(fixture: &F) {
    let desk = Desk::init(fixture).await;
    desk.progress.begin_discovery(&desk.job).await.unwrap();
    assert_eq!(desk.add("page-1", 10).await.total, 10);
    assert_eq!(desk.add("page-1", 10).await.total, 10);
    assert_eq!(desk.add("page-2", 5).await.total, 15);
    assert_eq!(desk.add("page-3", 0).await.total, 15);
    desk.progress.end_discovery(&desk.job).await.unwrap();
    assert_eq!(desk.add("page-2", 5).await.total, 15, "a late repeat is no error");
    assert_eq!(desk.stands().await, (Status::ProcessingWait, 15, 0, 0));
}

/// Texts that mean something to a database, a script or a shell mean nothing here.
pub async fn odd_ids_are_told_apart<F: ProgressFixture>(fixture: &F) {
    let progress = fixture.progress();
    let items =
        ["a", "A", " a", "a ", "{a}", "'a'", "\"a\"", "a\nb", "größe", "gröss", "%", "_", "1", "01", "nil"];
    for id in ["größe:7", "a'b", "*", "a?c", "[x]"] {
        progress.init(&NewJob::new(id).unwrap()).await.unwrap();
        let marked = progress.mark(&job(id), &done(&items)).await.unwrap();
        assert_eq!(marked.counted, items.len() as u64, "{id}");
    }
    assert_eq!(progress.list(&JobFilter::default()).await.unwrap().len(), 5);
    assert_eq!(progress.get(&job("abc")).await.unwrap(), None);
}

/// One round trip, however many.
pub async fn a_large_batch_is_marked_at_once<F: ProgressFixture>(fixture: &F) {
    let desk = Desk::closed(fixture, 5_000).await;
    let marks: Vec<Mark> = (0..5_000).map(|n| Mark::done(format!("item-{n}")).unwrap()).collect();
    assert_eq!(desk.progress.mark(&desk.job, &marks[..4_999]).await.unwrap().counted, 4_999);
    let rest = desk.progress.mark(&desk.job, &marks).await.unwrap();
    assert_eq!(rest, Marked { counted: 1, repeated: 4_999 });
    assert_eq!(desk.stands().await, (Status::Done, 5_000, 5_000, 0));
}

/// By status, by tenant, and page by page.
pub async fn jobs_are_listed_the_newest_first<F: ProgressFixture>(fixture: &F) {
    let progress = fixture.progress();
    for n in 1..=5 {
        let new = NewJob::new(format!("job-{n}")).unwrap();
        let tenant = if n % 2 == 0 { "even" } else { "odd" };
        progress.init(&new.tenant(tenant).unwrap()).await.unwrap();
    }
    progress.end_discovery(&job("job-2")).await.unwrap();
    let list = async |filter: JobFilter| {
        let jobs = progress.list(&filter).await.unwrap();
        jobs.iter().map(|job| job.id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(list(JobFilter::default()).await, ["job-5", "job-4", "job-3", "job-2", "job-1"]);
    let done = JobFilter { status: Some(Status::Done), ..JobFilter::default() };
    assert_eq!(list(done).await, ["job-2"]);
    let even = NewJob::new("x").unwrap().tenant("even").unwrap().tenant;
    assert_eq!(list(JobFilter { tenant: even, ..JobFilter::default() }).await, ["job-4", "job-2"]);
    let two = JobFilter { limit: 2, ..JobFilter::default() };
    assert_eq!(list(two.clone()).await, ["job-5", "job-4"]);
    let fourth = progress.get(&job("job-4")).await.unwrap().unwrap();
    assert_eq!(
        list(JobFilter { after: Some((fourth.created_at, fourth.id)), ..two }).await,
        ["job-3", "job-2"]
    );
}
