//! Redis alone as the authority: what it loses is an error, never a wrong count; what it finishes is announced.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use postrider::progress::view::{Shown, View as _};
use postrider::progress::{
    Announcer, BrokerAnnouncer, Change, Job, Keeping, NewJob, Progress, ProgressError, ProgressErrorKind,
    ProgressStore as _, Status, Update, completion_id,
};
use postrider::redis::{JobKeys, Redis, RedisConfig, RedisProgress, RedisView};
use postrider::settlement::RetryPolicy;
use postrider::store::Jobs;
use postrider::topology::{ExchangeKind, ExchangeName, ServiceQueue, Topology};
use postrider::{Clock, Event};
use postrider_testkit::servers::{Redis as Server, shared};
use postrider_testkit::worker;

use super::{closed, done, job, postgres, sqlite};
use crate::conformance::redis::Ear;

struct World {
    server: Server,
    progress: RedisProgress,
    ear: Ear,
}

async fn world() -> World {
    let server = Server::start().await.unwrap();
    let config = RedisConfig { limit: Duration::from_secs(2), ..RedisConfig::new(server.url()) };
    let redis = Redis::connect(config).await.unwrap();
    let ear = Ear::default();
    let progress = RedisProgress::new(redis, JobKeys::default(), Arc::new(ear.clone()), Clock::system());
    World { server, progress: progress.retries(&[Duration::from_millis(10); 3]), ear }
}

impl World {
    fn cli(&self, args: &[&str]) -> String {
        let url = self.server.url();
        let ran = std::process::Command::new("redis-cli").args(["-u", &url]).args(args).output().unwrap();
        String::from_utf8(ran.stdout).unwrap().trim().to_owned()
    }

    async fn closed(&self, id: &str, items: u32) {
        self.progress.init(&NewJob::new(id).unwrap()).await.unwrap();
        self.progress.set_total(&job(id), items.into()).await.unwrap();
        self.progress.end_discovery(&job(id)).await.unwrap();
    }

    async fn refused(&self, id: &str) -> ProgressError {
        self.progress.mark(&job(id), &done(&["z"])).await.unwrap_err()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_key_of_a_job_expires_with_it() {
    let world = world().await;
    world.closed("7", 3).await;
    world.progress.mark(&job("7"), &done(&["a"])).await.unwrap();
    let keys = world.cli(&["KEYS", "*"]);
    assert_eq!(keys.lines().count(), 2, "{keys}");
    for key in keys.lines() {
        assert!(world.cli(&["TTL", key]).parse::<i64>().unwrap() > 6 * 24 * 3600, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_job_is_unknown_and_not_made_again_by_a_mark() {
    let world = world().await;
    world.closed("7", 3).await;
    world.cli(&["DEL", "smap:proj:7"]);
    assert_eq!(world.refused("7").await.kind, ProgressErrorKind::UnknownJob);
    assert_eq!(world.cli(&["EXISTS", "smap:proj:7"]), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_a_whole_job_is_a_clear_error() {
    let world = world().await;
    world.cli(&["SET", "smap:proj:text", "mine"]);
    let error = world.refused("text").await;
    assert_eq!(error.kind, ProgressErrorKind::WrongType);
    assert!(error.to_string().contains("holds a string instead of a hash"), "{error}");

    world.cli(&["HINCRBY", "smap:proj:half", "done", "1"]);
    let error = world.refused("half").await;
    assert!(error.to_string().contains("lacks a field"), "{error}");

    world.closed("evicted", 3).await;
    world.progress.mark(&job("evicted"), &done(&["a"])).await.unwrap();
    world.cli(&["DEL", "{smap:proj:evicted}:items"]);
    let error = world.refused("evicted").await;
    assert!(error.to_string().contains("repeats cannot be told"), "{error}");

    world.closed("set", 3).await;
    world.cli(&["SET", "{smap:proj:set}:items", "mine"]);
    assert_eq!(world.refused("set").await.kind, ProgressErrorKind::WrongType);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_script_is_loaded_again() {
    let world = world().await;
    world.closed("7", 1).await;
    world.cli(&["SCRIPT", "FLUSH"]);
    world.progress.mark(&job("7"), &done(&["a"])).await.unwrap();
    assert_eq!(world.ear.heard().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_is_an_error_that_can_be_tried_again() {
    let world = world().await;
    world.closed("7", 1).await;
    world.server.kill().unwrap();
    let error = world.refused("7").await;
    assert!(error.is_transient(), "{error}");
    world.server.restart().await.unwrap();
    world.progress.mark(&job("7"), &done(&["a"])).await.unwrap();
    assert_eq!(world.progress.get(&job("7")).await.unwrap().unwrap().status, Status::Done);
}

/// A service without a database: RabbitMQ has its events, Redis its jobs, and Redis is away.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_goes_on_without_redis_and_what_he_did_is_counted_and_announced_later() {
    let world = world().await;
    let (clock, vhost) = (Clock::system(), shared().unwrap().vhost().await.unwrap());
    let broker = worker::connect_rabbitmq(&vhost.amqp_url, &clock).await.unwrap();
    let exchange = ExchangeName::new("jobs").unwrap();
    let ears = ServiceQueue::new("ears", RetryPolicy::default()).unwrap().bind(&exchange, "job.*").unwrap();
    let topology = Topology::default().exchange(exchange.clone(), ExchangeKind::Topic).service(&ears);
    broker.declare(&topology).await.unwrap();
    let format = postrider::WireFormat::Envelope;
    let announcer =
        Arc::new(BrokerAnnouncer { broker: broker.clone(), exchange, format, clock: clock.clone() });
    let redis = Redis::lazy(RedisConfig::new(world.server.url())).unwrap();
    let progress = RedisProgress::new(redis, JobKeys::default(), announcer, clock.clone());
    let progress = progress.retries(&[Duration::from_millis(10); 3]);
    let keeping = Keeping::at_most(6, progress.clone(), clock.clone());
    assert!(matches!(keeping.init(&NewJob::new("7").unwrap()).await.unwrap(), Update::Made(_)));

    world.server.kill().unwrap();
    let (id, total) = (job("7"), Change::SetTotal(3_u32.into()));
    assert_eq!(keeping.change(&id, total).await.unwrap(), Update::Kept);
    for items in [&["a", "b"][..], &["b"]] {
        assert_eq!(keeping.mark(&id, &done(items)).await.unwrap(), Update::Kept);
    }
    assert_eq!(keeping.change(&id, Change::EndDiscovery).await.unwrap(), Update::Kept);
    // Refused when Redis is back, which holds up nobody behind it.
    assert_eq!(keeping.mark(&job("nobody"), &done(&["x"])).await.unwrap(), Update::Kept);
    assert_eq!(keeping.kept(), 6);
    let full = keeping.mark(&id, &done(&["c"])).await.unwrap_err();
    assert!(full.is_transient() && full.to_string().contains("not kept"), "{full}");
    assert!(!keeping.settled(Duration::ZERO).await);

    world.server.restart().await.unwrap();
    assert!(keeping.settled(Duration::from_mins(1)).await);
    let counted = progress.get(&id).await.unwrap().unwrap();
    assert_eq!((counted.status, counted.total, counted.done), (Status::Processing, 3, 2));
    assert!(matches!(keeping.mark(&id, &done(&["c"])).await.unwrap(), Update::Made(_)));
    let mut heard = broker.subscribe(ears.name(), 10).await.unwrap();
    let told = heard.next(10).await.unwrap();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].message.properties.message_id.as_deref(), Some(completion_id(&id).as_str()));
}

/// Fails the first time: the broker is away.
#[derive(Default)]
struct Stutter {
    calls: AtomicU32,
    ear: Ear,
}

#[async_trait]
impl Announcer for Stutter {
    async fn announce(&self, event: Event) -> Result<(), ProgressError> {
        if self.calls.fetch_add(1, Ordering::SeqCst) == 0 {
            return Err(ProgressError::new(ProgressErrorKind::Unavailable, "the broker is away"));
        }
        self.ear.announce(event).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_be_announced_is_announced_by_a_repeat_or_later() {
    let world = world().await;
    let redis = Redis::connect(RedisConfig::new(world.server.url())).await.unwrap();
    for (id, repeats) in [("by-a-repeat", true), ("later", false)] {
        world.closed(id, 1).await;
        let stutter = Arc::new(Stutter::default());
        let progress =
            RedisProgress::new(redis.clone(), JobKeys::default(), stutter.clone(), Clock::system());
        let error = progress.mark(&job(id), &done(&["a"])).await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        if repeats {
            assert_eq!(progress.mark(&job(id), &done(&["a"])).await.unwrap().repeated, 1);
        } else {
            progress.announce_late().await.unwrap();
        }
        progress.mark(&job(id), &done(&["a"])).await.unwrap();
        assert_eq!(stutter.ear.heard().len(), 1, "{id}");
    }
}

/// Whoever announces with it dies before it is done.
struct Mute;

#[async_trait]
impl Announcer for Mute {
    async fn announce(&self, _event: Event) -> Result<(), ProgressError> {
        std::future::pending().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_killed_while_it_announces_is_stood_in_for() {
    let world = world().await;
    world.closed("7", 1).await;
    let redis = Redis::connect(RedisConfig::new(world.server.url())).await.unwrap();
    let dying = RedisProgress::new(redis, JobKeys::default(), Arc::new(Mute), Clock::system());
    let worker = tokio::spawn(async move { dying.mark(&job("7"), &done(&["a"])).await });
    for _ in 0..600 {
        if world.cli(&["HGET", "smap:proj:7", "claimed_until"]) != "0" {
            break;
        }
        tokio::time::timeout(Duration::from_millis(100), std::future::pending::<()>()).await.unwrap_err();
    }
    worker.abort();
    assert_eq!(world.ear.heard().len(), 0);
    // Half a minute later his claim is over, and whoever gets the same delivery announces it.
    world.cli(&["HSET", "smap:proj:7", "claimed_until", "1"]);
    for _ in 0..2 {
        assert_eq!(world.progress.mark(&job("7"), &done(&["a"])).await.unwrap().repeated, 1);
        assert_eq!(world.ear.heard().len(), 1);
    }
}

/// The clocks of services need not agree.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_by_a_clock_that_is_far_ahead_is_not_waited_for() {
    let world = world().await;
    world.closed("7", 1).await;
    world.progress.mark(&job("7"), &done(&["a"])).await.unwrap();
    world.cli(&["HSET", "smap:proj:7", "announced", "0", "claimed_until", "8000000000000000"]);
    let again = async { world.progress.mark(&job("7"), &done(&["a"])).await.unwrap() };
    let again = tokio::time::timeout(Duration::from_secs(10), again).await.expect("it does not wait");
    assert_eq!(again.repeated, 1);
    assert_eq!(world.cli(&["HGET", "smap:proj:7", "announced"]), "1");
}

/// A store takes them once, as they are.
async fn archives<S: Jobs>(store: &S, finished: &[Job], world: &World) {
    assert_eq!(store.archive_jobs(finished).await.unwrap(), 1);
    assert_eq!(store.archive_jobs(finished).await.unwrap(), 0);
    let progress = Progress::new(store.clone());
    assert_eq!(progress.get(&job("redis")).await.unwrap(), world.progress.get(&job("redis")).await.unwrap());
    assert_eq!(progress.mark(&job("redis"), &done(&["a"])).await.unwrap().repeated, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_jobs_are_archived_and_a_store_leaves_redis_own_jobs_alone() {
    let world = world().await;
    world.closed("redis", 1).await;
    world.progress.mark(&job("redis"), &done(&["a"])).await.unwrap();
    world.closed("running", 1).await;
    let redis = Redis::connect(RedisConfig::new(world.server.url())).await.unwrap();
    let view = RedisView::new(redis, JobKeys::default());
    let (store, _folder) = sqlite().await;
    let finished = view.finished().await.unwrap();
    assert_eq!(finished.len(), 1);
    archives(&store, &finished, &world).await;
    // What was archived is the same job, and nobody is in anybody's way.
    assert_eq!(view.show(&finished).await.unwrap(), [Shown::Newer]);
    let (servers, _database) = postgres().await;
    archives(&servers, &finished, &world).await;

    let same_name = closed(&store, "running", 1).await;
    let shown = view.show(&[same_name]).await.unwrap();
    assert!(
        matches!(&shown[0], Shown::Refused(why) if why.contains("Redis itself is the authority")),
        "{shown:?}"
    );
    let theirs = Progress::new(store);
    view.show(&[theirs.init(&NewJob::new("stored").unwrap()).await.unwrap()]).await.unwrap();
    let error = world.refused("stored").await;
    assert!(error.to_string().contains("kept by a store"), "{error}");
}
