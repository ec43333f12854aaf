//! `postrider progress`, and what `serve` does for jobs.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use postrider::Clock;
use postrider::postgres::{Postgres, PostgresConfig};
use postrider::progress::{JobId, Mark, NewJob, Progress, ProgressStore as _};
use postrider::redis::{JobKeys, Redis, RedisConfig, RedisView};
use postrider::sqlite::{Sqlite, SqliteConfig};
use postrider::store::Jobs;
use serde_json::json;

use super::networked::servers;
use super::process::Folder;

fn job(id: &str) -> JobId {
    JobId::new(id).unwrap()
}

/// A job with 4 items, one of them failed and one still to come.
async fn running<S: Jobs>(store: S, id: &str) -> Progress<S> {
    let progress = Progress::new(store);
    progress.init(&NewJob::new(id).unwrap()).await.unwrap();
    progress.set_total(&job(id), 4_u32.into()).await.unwrap();
    progress.end_discovery(&job(id)).await.unwrap();
    let marks = [Mark::done("a").unwrap(), Mark::done("b").unwrap(), Mark::failed("c").unwrap()];
    progress.mark(&job(id), &marks).await.unwrap();
    progress
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_listed_shown_and_watched() {
    let folder = Folder::new();
    folder.run(&["progress", "ls"]).assert(0, "JOB");
    assert_eq!(folder.run(&["progress", "ls", "--json"]).json(), json!([]));
    let file = SqliteConfig::new(folder.path().join(".postrider/postrider.db"));
    let progress = running(Sqlite::open(file, Clock::system()).await.unwrap(), "project-7").await;

    folder.run(&["progress", "ls", "--status", "processing"]).assert(0, "project-7");
    assert_eq!(folder.run(&["progress", "ls", "--status", "done", "--json"]).json(), json!([]));
    folder.run(&["progress", "get", "project-7"]).assert(0, "project-7 PROCESSING 3 of 4 (75 %), 1 error");
    let shown = folder.run(&["progress", "get", "project-7", "--json"]).json();
    assert_eq!(
        (&shown["status"], &shown["total"], &shown["done"], &shown["errors"]),
        (&json!("PROCESSING"), &json!(4), &json!(3), &json!(1))
    );

    let mut watching = folder.start(&["progress", "watch", "project-7"]);
    watching.wait_for("3 of 4");
    progress.mark(&job("project-7"), &[Mark::done("d").unwrap()]).await.unwrap();
    assert_eq!(watching.ended().0, 0);
    let last = folder.run(&["progress", "watch", "project-7", "-o", "jsonl"]).assert(0, "DONE");
    assert_eq!(last.json()["done"], 4);
}

#[test]
fn bad_input_is_told() {
    let folder = Folder::new();
    folder.run(&["progress", "get", "nobody"]).assert(1, "there is no job nobody");
    folder.run(&["progress", "watch", "nobody"]).assert(1, "`postrider progress ls` lists them");
    folder.run(&["progress", "get", "a b"]).assert(2, "no braces, spaces");
    folder.run(&["progress", "get", "{7}"]).assert(2, "no braces, spaces");
    folder.run(&["progress", "ls", "--status", "ready"]).assert(2, "processing_wait");
    let braces = Folder::new().with("POSTRIDER_PROGRESS__KEY_PREFIX", "{smap}:");
    braces.run(&["progress", "ls"]).assert(2, "without braces");
    let forever = Folder::new().with("POSTRIDER_PROGRESS__TTL_DAYS", "0");
    forever.run(&["progress", "ls"]).assert(2, "from 1 to 3650");
}

#[tokio::test(flavor = "multi_thread")]
async fn serve_shows_jobs_in_the_state_database_of_redis() {
    let (folder, database, _vhost) = servers().await;
    let shared = postrider_testkit::servers::shared().unwrap();
    let prefix = shared.redis_prefix();
    let folder = folder.with("POSTRIDER_PROGRESS__KEY_PREFIX", &prefix).with("REDIS_STATE_DB", "3");
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    let store = Postgres::connect(PostgresConfig::new(&database.url), Clock::system()).await.unwrap();
    running(store, "project-7").await;
    let _serving = folder.serve(&["--roles", "api,progress"]);
    let redis = Redis::connect(RedisConfig::new(format!("{}/3", shared.redis_url))).await.unwrap();
    let view = RedisView::new(redis, JobKeys::new(prefix, JobKeys::TTL).unwrap());
    let shown = async {
        use postrider::progress::view::View as _;
        loop {
            if let Some(shown) = view.look(&job("project-7")).await.unwrap() {
                return shown;
            }
        }
    };
    let shown = tokio::time::timeout(std::time::Duration::from_mins(1), shown).await.unwrap();
    assert_eq!((shown.done, shown.errors), (3, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn serve_calls_somebody_when_redis_is_almost_full() {
    let redis = postrider_testkit::servers::Redis::start().await.unwrap();
    let url = redis.url();
    // An empty server uses about a mebibyte.
    let mut direct = TcpStream::connect(url.trim_start_matches("redis://")).unwrap();
    direct.write_all(b"CONFIG SET maxmemory 1mb\r\n").unwrap();
    let mut answer = [0; 5];
    direct.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+OK\r\n");
    let folder = Folder::new().with("REDIS_URL", &url);
    let serving = folder.serve(&["--roles", "api,progress"]);
    serving.wait_for_metric("postrider_progress_alerts_total{alert=\"memory\"} 1");
}

/// Redis loses everything; no job changes. The hash is back whole, with its time to live: at a read, and by `serve` alone. Then it dies.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_key_is_rebuilt_when_it_is_read_and_by_itself() {
    let redis = postrider_testkit::servers::Redis::start().await.unwrap();
    let folder = Folder::new().with("REDIS_URL", &redis.url()).with("POSTRIDER_PROGRESS__TTL_DAYS", "2");
    let file = SqliteConfig::new(folder.path().join(".postrider/postrider.db"));
    folder.run(&["progress", "ls"]).assert(0, "JOB");
    running(Sqlite::open(file, Clock::system()).await.unwrap(), "project-7").await;
    let cli = |args: &[&str]| {
        let url = format!("{}/1", redis.url());
        let ran = std::process::Command::new("redis-cli").args(["-u", &url]).args(args).output().unwrap();
        String::from_utf8(ran.stdout).unwrap().trim().to_owned()
    };
    let is_back = |how: &str| {
        let whole = || cli(&["HMGET", "smap:proj:project-7", "status", "total", "done", "errors"]);
        for _ in 0..600 {
            if whole() == "PROCESSING\n4\n3\n1" {
                let ttl: u64 = cli(&["TTL", "smap:proj:project-7"]).parse().unwrap();
                assert!(ttl > 47 * 3600 && ttl <= 48 * 3600, "{ttl}");
                assert_eq!(cli(&["FLUSHDB"]), "OK");
                return;
            }
            std::thread::park_timeout(std::time::Duration::from_millis(100));
        }
        panic!("{how}: {}", whole());
    };
    folder.run(&["progress", "get", "project-7"]).assert(0, "3 of 4");
    is_back("read by a command");
    let serving = folder.serve(&["--roles", "api"]);
    assert_eq!(serving.http("GET", "/v1/progress/project-7", &[], "").0, 200);
    is_back("read over HTTP");
    drop(serving);
    let serving = folder.serve(&["--roles", "api,progress"]);
    is_back("shown for the first time");
    is_back("lost while nobody reads it");
    // When it is away somebody is called, once, after 1, 2 and 4 s, although no job changes.
    redis.kill().unwrap();
    serving.wait_for_metric("postrider_progress_alerts_total{alert=\"unavailable\"} 1");
}

#[test]
fn jobs_are_made_marked_and_shown_over_http() {
    let folder = Folder::new().with("POSTRIDER_PROGRESS__COMPLETED", "project.completed");
    let serving = folder.serve(&["--roles", "api"]);
    let post = |path: &str, body: &str, code: u16| {
        let (status, _, answer) = serving.http("POST", &format!("/v1/progress{path}"), &[], body);
        assert_eq!(status, code, "{path}: {answer}");
        serde_json::from_str::<serde_json::Value>(&answer).unwrap()
    };
    for _ in 0..2 {
        let made = post("", r#"{"id": "project-7"}"#, 201);
        assert_eq!(made["announces"], "project.completed");
    }
    post("/project-7/steps", r#"{"step": "page", "page": "1", "found": 2}"#, 200);
    post("/project-7/steps", r#"{"step": "total", "total": -1}"#, 422);
    let marked = post("/project-7/items", r#"{"done": ["a"], "failed": ["b"]}"#, 200);
    assert_eq!((&marked["counted"], &marked["repeated"]), (&json!(2), &json!(0)));
    assert_eq!(post("/project-7/steps", r#"{"step": "end"}"#, 200)["status"], "DONE");
    assert_eq!(post("/project-7/items", r#"{"done": ["a"]}"#, 200)["repeated"], 1);
    post("/project-7/items", r#"{"done": ["c"]}"#, 409);
    post("/nobody/items", r#"{"done": ["c"]}"#, 404);
    let (status, _, shown) = serving.http("GET", "/v1/progress/project-7", &[], "");
    assert_eq!((status, shown.contains("\"errors\":1")), (200, true), "{shown}");
    let (_, _, listed) = serving.http("GET", "/v1/progress?status=done&limit=1", &[], "");
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["jobs"][0]["id"], "project-7");
    let next = listed["next"].as_str().unwrap().replace('+', "%2B");
    let (status, _, rest) = serving.http("GET", &format!("/v1/progress?cursor={next}"), &[], "");
    assert_eq!((status, rest.as_str()), (200, r#"{"jobs":[]}"#));
    folder.run(&["outbox", "ls"]).assert(0, "project.completed");
}
