//! What cannot be is refused with its reason, and leaves no trace.

use postrider::progress::{
    Change, ItemId, JobFilter, Mark, Marked, NewJob, ProgressErrorKind, ProgressStore as _, Status,
};

use super::{Desk, ProgressFixture, total};

/// Neither when the items come nor when discovery ends.
pub async fn more_done_than_the_total_is_refused<F: ProgressFixture>(fixture: &F) {
    let desk = Desk::init(fixture).await;
    desk.progress.set_total(&desk.job, total(1)).await.unwrap();
    desk.mark(&["a", "b"]).await;
    let error = desk.progress.end_discovery(&desk.job).await.unwrap_err();
    assert_eq!(error.kind, ProgressErrorKind::TooMany, "{error}");
    desk.progress.set_total(&desk.job, total(3)).await.unwrap();
    desk.progress.end_discovery(&desk.job).await.unwrap();
    assert_eq!(desk.refused(&["c", "d"]).await, ProgressErrorKind::TooMany);
    assert!(fixture.announced().await.is_empty());
}

/// Not even the items of it that would have fitted; they can be counted later.
pub async fn a_refused_batch_counts_nothing<F: ProgressFixture>(fixture: &F) {
    let desk = Desk::closed(fixture, 2).await;
    assert_eq!(desk.refused(&["a", "b", "c"]).await, ProgressErrorKind::TooMany);
    assert_eq!(desk.mark(&["a", "b"]).await, Marked { counted: 2, repeated: 0 });
    assert_eq!(desk.stands().await, (Status::Done, 2, 2, 0));
}

/// Repeats are welcome, other items are not.
pub async fn marks_after_done_are_refused<F: ProgressFixture>(fixture: &F) {
    let desk = Desk::closed(fixture, 1).await;
    desk.mark(&["a"]).await;
    assert_eq!(desk.mark(&["a"]).await, Marked { counted: 0, repeated: 1 });
    assert_eq!(desk.refused(&["b"]).await, ProgressErrorKind::AfterDone);
    assert_eq!(desk.refused(&["a", "b"]).await, ProgressErrorKind::AfterDone);
    let error = desk.progress.set_total(&desk.job, total(2)).await.unwrap_err();
    assert_eq!(error.kind, ProgressErrorKind::AfterDone);
    let page = ItemId::new("late").unwrap();
    let error = desk.progress.add_total(&desk.job, page, total(2)).await.unwrap_err();
    assert_eq!(error.kind, ProgressErrorKind::AfterDone);
    assert_eq!(fixture.announced().await.len(), 1);
}

/// In no status.
pub async fn the_total_is_not_lowered_below_what_is_done<F: ProgressFixture>(fixture: &F) {
    let desk = Desk::init(fixture).await;
    desk.progress.set_total(&desk.job, total(5)).await.unwrap();
    desk.mark(&["a", "b"]).await;
    for _ in 0..2 {
        let error = desk.progress.set_total(&desk.job, total(1)).await.unwrap_err();
        assert_eq!(error.kind, ProgressErrorKind::TooMany);
        desk.progress.end_discovery(&desk.job).await.unwrap();
    }
    assert_eq!(desk.stands().await, (Status::Processing, 5, 2, 0));
}

/// Once it has ended, the job may complete at any moment.
pub async fn discovery_does_not_begin_again<F: ProgressFixture>(fixture: &F) {
    let desk = Desk::closed(fixture, 2).await;
    let again = desk.progress.begin_discovery(&desk.job).await.unwrap_err();
    assert_eq!(again.kind, ProgressErrorKind::IllegalMove);
    let late = desk.progress.add_total(&desk.job, ItemId::new("page").unwrap(), total(1)).await.unwrap_err();
    assert_eq!(late.kind, ProgressErrorKind::IllegalMove);
    assert_eq!(desk.stands().await, (Status::ProcessingWait, 2, 0, 0));
}

/// Many walks through all steps: the one who keeps the job and the pure rules always agree.
pub async fn every_step_ends_as_the_rules_say<F: ProgressFixture>(fixture: &F) {
    let progress = fixture.progress();
    for seed in 1..=40_u64 {
        let new = NewJob::new(format!("walk-{seed}")).unwrap();
        let mut job = progress.init(&new).await.unwrap();
        let mut random = Random(seed);
        for step in 0..12 {
            let change = match random.below(8) {
                0 => Some(Change::SetTotal(total(random.below(6)))),
                1 => Some(Change::AddTotal {
                    page: ItemId::new(format!("page-{step}")).unwrap(),
                    found: total(random.below(3)),
                }),
                2 => Some(Change::BeginDiscovery),
                3 => Some(Change::EndDiscovery),
                _ => None,
            };
            let items = random.below(3);
            let failed = random.below(2) == 1;
            let (taken, ruled) = if let Some(change) = change {
                (progress.change(&new.id, change.clone()).await.map(|_| ()), job.counts().try_change(&change))
            } else {
                let item = |n| format!("item-{step}-{n}");
                let marks =
                    (0..items).map(|n| if failed { Mark::failed(item(n)) } else { Mark::done(item(n)) });
                let marks: Vec<_> = marks.collect::<Result<_, _>>().unwrap();
                let errors = if failed { u64::from(items) } else { 0 };
                let ruled = job.counts().try_marks(u64::from(items), errors);
                (progress.mark(&new.id, &marks).await.map(|_| ()), ruled)
            };
            let before = job.counts();
            job = progress.get(&new.id).await.unwrap().unwrap();
            let trace = format!("seed {seed}, step {step}: {before:?} became {:?}", job.counts());
            match ruled {
                Ok(counts) => assert_eq!((taken.is_ok(), job.counts()), (true, counts), "{trace}"),
                Err(kind) => assert_eq!((taken.unwrap_err().kind, job.counts()), (kind, before), "{trace}"),
            }
        }
    }
    let mut finished = 0;
    for job in progress.list(&JobFilter { limit: 1_000, ..JobFilter::default() }).await.unwrap() {
        finished += usize::from(job.status == Status::Done);
    }
    assert!(finished > 5, "the walks end somewhere");
}

/// Small, and the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((self.0 >> 33) % u64::from(end)).unwrap()
    }
}
