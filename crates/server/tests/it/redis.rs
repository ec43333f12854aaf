//! Redis beside a running `serve`: how long keys stay, what is told while it is away, and what doctor makes of its settings.

use postrider_testkit::receiver::{Receiver, Reply};
use postrider_testkit::servers::{Redis, TestDatabase, TestVhost};
use serde_json::{Value, json};

use super::networked::servers;
use super::process::{Folder, Serving};
use super::push::{ask, until};

/// A push of `billing` to a receiver that takes everything.
struct Stage {
    folder: Folder,
    redis: Redis,
    receiver: Receiver,
    _servers: (TestDatabase, TestVhost),
}

impl Stage {
    async fn new() -> Self {
        let (folder, database, vhost) = servers().await;
        let (redis, receiver) =
            (Redis::start().await.unwrap(), Receiver::start(|_, _| Reply::status(200)).await);
        // However slow the machine is, Redis is asked and told.
        let folder = folder
            .with("REDIS_URL", &redis.url())
            .with("POSTRIDER_REDIS__IDEMPOTENCY_LIMIT_MS", "5000")
            .with("POSTRIDER_REDIS__IDEMPOTENCY_TTL_HOURS", "1");
        let url = receiver.url();
        let config = format!(
            "[egress]\nallow = ['127.0.0.1', 'http']\n[[queue]]\nname = 'billing'\nbind = ['shop.order.*']\n\
             [[push]]\nname = 'billing'\nqueue = 'billing'\nurl = '{url}'\n\
             secrets = ['whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw']\n"
        );
        folder.write("postrider.toml", &config);
        folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
        Self { folder, redis, receiver, _servers: (database, vhost) }
    }

    /// How often an event was pushed.
    fn pushed(&self, id: &str) -> usize {
        self.receiver.requests().iter().filter(|request| request.header("webhook-id") == id).count()
    }

    /// Waits until this many keys say that they are done.
    async fn until_done(&self, keys: usize) -> Vec<String> {
        let script = "local done = {} for _, key in ipairs(redis.call('KEYS', '*:ik:*')) do \
             if redis.call('GET', key):find('COMPLETED') then table.insert(done, key .. ' ' .. redis.call('TTL', key)) end end \
             return table.concat(done, '\\n')";
        let mut tries = 0;
        loop {
            let said = self.redis.cli(&["EVAL", script, "0"]).await.unwrap();
            let found: Vec<_> = said.lines().map(str::to_owned).collect();
            if found.len() >= keys {
                return found;
            }
            tries += 1;
            assert!(tries < 3_000, "only these keys are done: {said}");
        }
    }
}

fn post(serving: &Serving, id: &str) {
    let event = json!({ "type": "shop.order.placed", "data": {}, "id": id }).to_string();
    let headers = [("content-type", "application/json"), ("idempotency-key", id)];
    let (status, _, body) = serving.http("POST", "/v1/events", &headers, &event);
    assert_eq!(status, 202, "{body}");
}

fn health(serving: &Serving) -> (u16, Value) {
    ask(serving, "GET", "/v1/health", &Value::Null)
}

fn says(serving: &Serving, line: &str) -> bool {
    let (_, _, text) = serving.http("GET", "/v1/metrics", &[], "");
    text.lines().any(|found| found == line)
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_stay_as_long_as_the_configuration_says() {
    let stage = Stage::new().await;
    let mut serving = stage.folder.serve(&[]);
    serving.wait_for("serving");
    post(&serving, "evt_1");
    // One of the consumer, one of the request.
    let keys = stage.until_done(2).await;
    for key in &keys {
        let (_, left) = key.split_once(' ').unwrap();
        assert!((3_500..=3_600).contains(&left.parse::<u64>().unwrap()), "{keys:?}");
    }
    let of = |beginning: &str| keys.iter().filter(|key| key.starts_with(beginning)).count();
    assert_eq!((of("billing:ik::evt_1 "), of("http:ik::")), (1, 1), "{keys:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn while_redis_is_away_serve_says_so_and_goes_on() {
    let stage = Stage::new().await;
    let mut serving = stage.folder.serve(&[]);
    serving.wait_for("serving");
    post(&serving, "evt_before");
    until(|| stage.pushed("evt_before") == 1).await;
    let (status, body) = health(&serving);
    assert_eq!((status, &body["status"], &body["redis"]), (200, &json!("ok"), &json!("ok")), "{body}");
    assert!(says(&serving, "postrider_dedup_degraded 0"));

    stage.redis.kill().unwrap();
    let mut events = Vec::new();
    until(|| {
        let id = format!("evt_{}", events.len());
        post(&serving, &id);
        events.push(id);
        health(&serving).1["redis"] == "degraded"
    })
    .await;
    let (status, body) = health(&serving);
    assert_eq!((status, &body["status"]), (200, &json!("degraded")), "everything works: {body}");
    serving.wait_for_metric("postrider_dedup_degraded 1");
    // Consumers and the API go on meanwhile, a repeated request included.
    for _ in 0..10 {
        let id = format!("evt_{}", events.len());
        post(&serving, &id);
        post(&serving, &id);
        events.push(id);
    }
    until(|| events.iter().all(|id| stage.pushed(id) == 1)).await;
    assert_eq!(health(&serving).1["redis"], "degraded");

    stage.redis.restart().await.unwrap();
    until(|| health(&serving).1["redis"] == "ok").await;
    assert_eq!(health(&serving).1["status"], "ok");
    serving.wait_for_metric("postrider_dedup_degraded 0");
    stage.redis.cli(&["FLUSHALL"]).await.unwrap();
    post(&serving, "evt_after");
    assert_eq!(stage.until_done(2).await.len(), 2, "it is told again");
    let calls = stage.receiver.requests().len();
    assert_eq!((calls, stage.pushed("evt_after")), (events.len() + 2, 1), "each was pushed once");
    let line = "degraded: Redis is left alone, and every duplicate asks the database";
    assert!(serving.wait_for("Redis answers again").contains("without the database"));
    assert_eq!(serving.said().iter().filter(|said| said.contains(line)).count(), 1, "{:#?}", serving.said());
}

#[tokio::test(flavor = "multi_thread")]
async fn while_redis_is_full_health_says_that_new_keys_are_refused() {
    let stage = Stage::new().await;
    let mut serving = stage.folder.serve(&[]);
    serving.wait_for("serving");
    stage.redis.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await.unwrap();
    stage.redis.cli(&["CONFIG", "SET", "maxmemory", "1"]).await.unwrap();
    post(&serving, "evt_1");
    until(|| health(&serving).1["redis"] == "degraded").await;
    let (status, body) = health(&serving);
    assert_eq!((status, &body["status"]), (200, &json!("degraded")), "everything works: {body}");
    assert_eq!(body["redis_reason"], "full: new keys are refused", "{body}");
    until(|| stage.pushed("evt_1") == 1).await;
    assert!(says(&serving, "postrider_dedup_degraded 0"), "it is asked still");
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_says_what_the_settings_of_redis_mean() {
    let (folder, _database, _vhost) = servers().await;
    let redis = Redis::start().await.unwrap();
    let folder = folder.with("REDIS_URL", &redis.url());
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    for (maxmemory, policy, judged, told) in [
        ("0", "noeviction", "warn", "maxmemory is not set: idempotency keys grow until they end"),
        ("0", "allkeys-lru", "warn", "maxmemory is not set"),
        ("100mb", "noeviction", "ok", "noeviction: when it is full new keys are refused"),
        ("100mb", "volatile-ttl", "ok", "duplicates of what vanished ask the database"),
        ("512kb", "noeviction", "warn", "it is full, so new keys are refused"),
        ("512kb", "volatile-ttl", "warn", "it is full, so idempotency keys and shown jobs vanish"),
        ("100mb", "allkeys-lru", "warn", "any key may vanish, those of other applications too"),
    ] {
        redis.cli(&["CONFIG", "SET", "maxmemory", maxmemory]).await.unwrap();
        redis.cli(&["CONFIG", "SET", "maxmemory-policy", policy]).await.unwrap();
        let report = folder.run(&["doctor", "--json"]).assert(0, "").json();
        let row = |name: &str| report.as_array().unwrap().iter().find(|row| row["check"] == name).unwrap();
        assert!(row("redis")["detail"].as_str().unwrap().contains("answers"), "{report}");
        let settings = row("redis settings")["detail"].as_str().unwrap();
        assert!(settings.contains(told), "{maxmemory} {policy}: {settings}");
        assert_eq!(row("redis settings")["status"], judged, "{maxmemory} {policy}: {settings}");
        if maxmemory == "100mb" {
            assert!(settings.contains("100 MB, ") && settings.contains(" % used"), "{settings}");
        }
    }
    redis.kill().unwrap();
    folder.run(&["doctor"]).assert(0, "everything works without it, slower");
}
