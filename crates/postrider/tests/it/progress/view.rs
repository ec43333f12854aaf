//! The hash in Redis: written after the commit, never older than it was, and made whole again when it is lost.

use std::time::Duration;

use postrider::Clock;
use postrider::progress::view::{self, Shown, View as _, ViewConfig};
use postrider::progress::{Job, Progress, ProgressStore as _, Status};
use postrider::redis::{JobKeys, Redis, RedisConfig, RedisView};
use postrider::sqlite::Sqlite;
use postrider::store::Jobs;
use postrider_testkit::servers::{Redis as Server, shared};
use tokio_util::sync::CancellationToken;

use super::{closed, done, job, postgres, sqlite};

const SOON: Duration = Duration::from_mins(1);

fn quick(url: String) -> RedisConfig {
    RedisConfig { limit: Duration::from_secs(2), ..RedisConfig::new(url) }
}

/// A view with keys of its own on the shared server, and redis-cli for what only others do.
async fn corner() -> (RedisView, Cli, String) {
    let shared = shared().unwrap();
    let prefix = shared.redis_prefix();
    let url = format!("{}/1", shared.redis_url);
    let redis = Redis::connect(quick(url.clone())).await.unwrap();
    (RedisView::new(redis, JobKeys::new(&prefix, JobKeys::TTL).unwrap()), Cli(url), prefix)
}

struct Cli(String);

impl Cli {
    fn run(&self, args: &[&str]) -> String {
        let ran = std::process::Command::new("redis-cli").args(["-u", &self.0]).args(args).output().unwrap();
        String::from_utf8(ran.stdout).unwrap().trim().to_owned()
    }
}

/// Waits until the view shows this.
async fn until(view: &RedisView, id: &str, shows: impl Fn(&Job) -> bool) -> Job {
    let looking = async {
        loop {
            if let Ok(Some(shown)) = view.look(&job(id)).await
                && shows(&shown)
            {
                return shown;
            }
            Clock::system().sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, looking).await.expect("the view is kept")
}

fn keep<S: Jobs>(store: &S, view: &RedisView, config: ViewConfig) -> CancellationToken {
    let stop = CancellationToken::new();
    tokio::spawn(view::keep(store.clone(), view.clone(), Clock::system(), config, stop.clone()));
    stop
}

#[tokio::test(flavor = "multi_thread")]
async fn others_read_what_was_committed() {
    let (store, _database) = postgres().await;
    let (view, cli, prefix) = corner().await;
    let progress = Progress::new(store.clone());
    closed(&store, "7", 2).await;
    let _stop = keep(&store, &view, ViewConfig::default()).drop_guard();
    until(&view, "7", |shown| shown.status == Status::ProcessingWait).await;
    progress.mark(&job("7"), &done(&["a", "b"])).await.unwrap();
    let shown = until(&view, "7", |shown| shown.status == Status::Done).await;
    assert_eq!(Some(shown), progress.get(&job("7")).await.unwrap());
    let key = format!("{prefix}7");
    assert_eq!(cli.run(&["HMGET", &key, "status", "total", "done", "errors"]), "DONE\n2\n2\n0");
    let ttl: u64 = cli.run(&["TTL", &key]).parse().unwrap();
    assert!(ttl > 6 * 24 * 3600 && ttl <= 7 * 24 * 3600, "{ttl}");
    let unshown = async { while !store.unshown_jobs(10).await.unwrap().is_empty() {} };
    tokio::time::timeout(SOON, unshown).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_older_version_never_replaces_a_newer_one() {
    let (store, _folder) = sqlite().await;
    let (view, ..) = corner().await;
    let older = closed(&store, "7", 2).await;
    let progress = Progress::new(store.clone());
    progress.mark(&job("7"), &done(&["a"])).await.unwrap();
    let newer = progress.get(&job("7")).await.unwrap().unwrap();
    let both = [newer.clone(), older];
    assert_eq!(view.show(&both[..1]).await.unwrap(), [Shown::Written]);
    assert_eq!(view.show(&both[1..]).await.unwrap(), [Shown::Newer]);
    assert_eq!(view.look(&job("7")).await.unwrap(), Some(newer));
}

/// A database that was made anew counts versions from the beginning, and what is left of its predecessor in Redis is no newer.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_database_that_is_gone_has_left_behind_is_replaced() {
    let (before, _folder) = sqlite().await;
    let (view, ..) = corner().await;
    let old = closed(&before, "7", 2).await;
    let busy = Job { version: old.version + 100, ..old };
    assert_eq!(view.show(&[busy]).await.unwrap(), [Shown::Written]);
    let (store, _folder) = sqlite().await;
    let made = closed(&store, "7", 3).await;
    assert_eq!(view.show(std::slice::from_ref(&made)).await.unwrap(), [Shown::Written]);
    assert_eq!(view.look(&job("7")).await.unwrap(), Some(made));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_or_half_empty_key_is_rebuilt_whole() {
    let (store, _folder) = sqlite().await;
    let (view, cli, prefix) = corner().await;
    let made = closed(&store, "7", 2).await;
    let key = format!("{prefix}7");
    // What an increment after the expiry leaves behind: one field, and no time to live.
    cli.run(&["HINCRBY", &key, "done", "1"]);
    assert_eq!(view.look(&job("7")).await.unwrap(), None);
    assert_eq!(view::read(&store, &view, &job("7")).await.unwrap(), Some(made.clone()));
    assert_eq!(view.look(&job("7")).await.unwrap(), Some(made.clone()));
    assert_ne!(cli.run(&["TTL", &key]), "-1");
    cli.run(&["DEL", &key]);
    assert_eq!(view::read(&store, &view, &job("7")).await.unwrap(), Some(made.clone()));
    assert_eq!(view.look(&job("7")).await.unwrap(), Some(made));
    assert_eq!(view::read(&store, &view, &job("8")).await.unwrap(), None);
}

/// What was shown first is lost with what tells that it is being shown.
#[tokio::test]
async fn a_loss_in_the_middle_of_showing_everything_anew_is_noticed() {
    let (view, cli, prefix) = corner().await;
    assert!(!view.remembers().await.unwrap());
    view.begin("first").await.unwrap();
    cli.run(&["DEL", &format!("{{{prefix}}}:shown")]);
    assert!(!view.remember("first").await.unwrap());
    assert!(!view.remembers().await.unwrap());
    for name in ["second", "third"] {
        view.begin(name).await.unwrap();
        assert!(!view.remembers().await.unwrap(), "not all of it is there");
    }
    assert!(!view.remember("second").await.unwrap(), "somebody began after it");
    for name in ["third", "second"] {
        assert!(view.remember(name).await.unwrap() && view.remembers().await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_type_in_the_way_is_left_alone_and_holds_up_nobody() {
    let (store, _folder) = sqlite().await;
    let (view, cli, prefix) = corner().await;
    let blocked = closed(&store, "7", 2).await;
    cli.run(&["SET", &format!("{prefix}7"), "mine"]);
    let shown = view.show(&[blocked]).await.unwrap();
    let [Shown::Refused(why)] = shown.as_slice() else { panic!("it was shown: {shown:?}") };
    assert!(why.contains("holds a string instead of a hash") && why.contains("delete it"), "{why}");
    closed(&store, "8", 2).await;
    let _stop = keep(&store, &view, ViewConfig::default()).drop_guard();
    until(&view, "8", |_| true).await;
    assert_eq!(cli.run(&["GET", &format!("{prefix}7")]), "mine");
    // The store answers for it.
    assert!(view::read(&store, &view, &job("7")).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn work_goes_on_without_redis_and_is_shown_when_it_is_back() {
    let server = Server::start().await.unwrap();
    let (store, _folder): (Sqlite, _) = sqlite().await;
    let url = format!("{}/1", server.url());
    let view = RedisView::new(Redis::lazy(quick(url)).unwrap(), JobKeys::default());
    let retries = vec![Duration::from_millis(10); 3];
    let _stop = keep(&store, &view, ViewConfig { retries, ..ViewConfig::default() }).drop_guard();
    closed(&store, "before", 1).await;
    until(&view, "before", |_| true).await;
    // What is shown is noted a moment later.
    while !store.unshown_jobs(10).await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }

    server.kill().unwrap();
    let progress = Progress::new(store.clone());
    closed(&store, "during", 1).await;
    progress.mark(&job("during"), &done(&["a"])).await.unwrap();
    assert_eq!(progress.get(&job("during")).await.unwrap().unwrap().status, Status::Done);
    assert_eq!(store.unshown_jobs(10).await.unwrap().len(), 1, "the update is kept");

    server.restart().await.unwrap();
    until(&view, "during", |shown| shown.status == Status::Done).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_told_where_there_is_a_limit() {
    let server = Server::start().await.unwrap();
    let view = RedisView::new(Redis::connect(quick(server.url())).await.unwrap(), JobKeys::default());
    assert_eq!(view.memory_used().await.unwrap(), None);
    Cli(server.url()).run(&["CONFIG", "SET", "maxmemory", "1gb"]);
    let used = view.memory_used().await.unwrap().unwrap();
    assert!(used > 0.0 && used < 0.5, "{used}");
}
