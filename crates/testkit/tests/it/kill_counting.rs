//! kill -9 between Redis, which alone decides that a job is done, and the outbox, which announces it: one announcement.

use std::sync::Arc;
use std::time::Duration;

use postrider::progress::{JobId, NewJob, OutboxAnnouncer, ProgressStore as _, Status, Total, completion_id};
use postrider::redis::{JobKeys, Redis, RedisConfig, RedisProgress};
use postrider::sqlite::{Sqlite, SqliteConfig};
use postrider::store::{Ask, Outbox as _, RelayId};
use postrider::{Clock, EventId};
use postrider_testkit::servers::Redis as Server;
use postrider_testkit::worker::WorkerProcess;
use postrider_testkit::worker::counter::FinishLine;

const WORKER: &str = env!("CARGO_BIN_EXE_postrider-worker");
const LIMIT: Duration = Duration::from_mins(2);
const PREFIX: &str = "smap:proj:";

/// Redis with jobs, and a file with an outbox.
struct Stage {
    server: Server,
    store: Sqlite,
    file: String,
    progress: RedisProgress,
    _folder: tempfile::TempDir,
}

impl Stage {
    async fn new() -> Self {
        let (server, folder) = (Server::start().await.unwrap(), tempfile::tempdir().unwrap());
        let file = folder.path().join("outbox.db").to_str().unwrap().to_owned();
        let store = Sqlite::open(SqliteConfig::new(&file), Clock::system()).await.unwrap();
        let redis = Redis::connect(RedisConfig::new(server.url())).await.unwrap();
        let announcer = Arc::new(OutboxAnnouncer(store.clone()));
        let progress = RedisProgress::new(redis, JobKeys::default(), announcer, Clock::system());
        Self { server, store, file, progress, _folder: folder }
    }

    /// A job that lacks its last item.
    async fn job(&self, id: &str) -> JobId {
        let job = JobId::new(id).unwrap();
        self.progress.init(&NewJob::new(id).unwrap()).await.unwrap();
        self.progress.set_total(&job, Total::from(1_u32)).await.unwrap();
        self.progress.end_discovery(&job).await.unwrap();
        job
    }

    /// A process of its own marks the last item. Whether it lived to tell.
    async fn delivered(&self, at: FinishLine, job: &JobId) -> bool {
        let url = self.server.url();
        let words = ["count", at.as_str(), &url, PREFIX, &self.file, job.as_str(), "last"];
        let mut worker = WorkerProcess::start(WORKER, &words).unwrap();
        tokio::time::timeout(LIMIT, worker.ended()).await.unwrap().unwrap().success()
    }

    /// The half minute in which whoever died could still have announced it is over.
    async fn half_a_minute_later(&self, job: &JobId) {
        let key = format!("{PREFIX}{job}");
        assert_ne!(self.server.cli(&["HGET", &key, "claimed_until"]).await.unwrap(), "0");
        self.server.cli(&["HSET", &key, "claimed_until", "1"]).await.unwrap();
    }

    /// The completions in the outbox.
    async fn announced(&self) -> Vec<EventId> {
        let relay = RelayId::new("ear").unwrap();
        self.store.lease(&relay, LIMIT).await.unwrap();
        let rows = self.store.claim(&relay, Ask::everything(100)).await.unwrap();
        rows.into_iter().map(|row| row.envelope.id).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_announced_once_wherever_its_last_worker_dies() {
    let stage = Stage::new().await;
    let mut jobs = Vec::new();
    for at in [FinishLine::Counted, FinishLine::Announced] {
        for stood_in_by in ["a-redelivery", "serve"] {
            let job = stage.job(&format!("{}-{stood_in_by}", at.as_str())).await;
            assert!(!stage.delivered(at, &job).await, "it died");
            let counted = stage.progress.get(&job).await.unwrap().unwrap();
            assert_eq!((counted.status, counted.done), (Status::Done, 1), "Redis has counted");
            stage.half_a_minute_later(&job).await;
            if stood_in_by == "serve" {
                stage.progress.announce_late().await.unwrap();
            }
            // The broker delivers again what nobody acked.
            assert!(stage.delivered(FinishLine::Crossed, &job).await);
            jobs.push(job);
        }
    }
    stage.progress.announce_late().await.unwrap();
    let mut expected: Vec<EventId> = jobs.iter().map(completion_id).collect();
    let mut announced = stage.announced().await;
    expected.sort();
    announced.sort();
    assert_eq!(announced, expected);
}
