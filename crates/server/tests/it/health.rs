//! Health of a running `serve`: every part by its name, on the embedded default and on real servers.

use postrider_testkit::proxy::{Proxy, Weather};
use serde_json::{Value, json};

use super::networked::servers;
use super::process::{Folder, Serving};

fn health(serving: &Serving) -> (u16, Value) {
    let (status, _, body) = serving.http("GET", "/v1/health", &[], "");
    (status, serde_json::from_str(&body).unwrap())
}

fn all_is_well(folder: &Folder) -> Value {
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let (status, body) = health(&serving);
    assert_eq!((status, &body["status"]), (200, &json!("ok")), "{body}");
    for part in ["store", "migrations", "broker"] {
        assert_eq!(body[part], "ok", "{body}");
    }
    assert_eq!(body["relay"]["status"], "running", "{body}");
    assert_eq!(body["clock"]["status"], "ok", "{body}");
    let publisher = &body["outbox_publisher"];
    assert_eq!((&publisher["status"], &publisher["pending"]), (&json!("ok"), &json!(0)), "{body}");
    assert!(publisher["mode"] == "poll" || publisher["mode"] == "cdc", "{body}");
    body
}

#[test]
fn every_part_is_named_on_the_embedded_default() {
    let body = all_is_well(&Folder::new());
    assert_eq!(body.get("redis"), None, "there is none: {body}");
}

#[test]
fn a_process_without_the_api_answers_for_its_health_and_metrics_where_it_is_told_to() {
    let folder = Folder::new();
    let mut relay = folder.serve(&["--roles", "relay"]);
    relay.wait_for("serving relay");
    let (status, body) = health(&relay);
    assert_eq!((status, &body["relay"]["status"]), (200, &json!("running")), "{body}");
    relay.wait_for_metric("postrider_up{part=\"store\"} 1");
    // And for nothing else.
    assert_eq!(relay.post_event(&[], r#"{"type":"shop.order.placed","data":{}}"#).0, 404);
    assert_eq!(relay.http("GET", "/dashboard", &[], "").0, 404);
    drop(relay);
    let folder = folder.with("POSTRIDER_HTTP__HEALTH_LISTEN", "127.0.0.1:0");
    folder.start(&["serve", "--roles", "relay"]).wait_for("listening on http://127.0.0.1:");
    let folder = folder.with("POSTRIDER_HTTP__HEALTH_LISTEN", "everywhere");
    folder.run(&["serve", "--roles", "relay"]).assert(2, "is no address such as");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_part_is_named_on_real_servers() {
    let (folder, _database, _vhost) = servers().await;
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    let body = all_is_well(&folder);
    assert_eq!(body["redis"], "ok", "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_away_degrades_and_no_more() {
    let (folder, _database, _vhost) = servers().await;
    let folder = folder.with("REDIS_URL", "redis://127.0.0.1:1");
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let (status, body) = health(&serving);
    assert_eq!(
        (status, &body["status"], &body["redis"]),
        (200, &json!("degraded"), &json!("degraded")),
        "{body}"
    );
}

/// Nobody consumes here, so nobody but the question itself finds out.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_goes_away_later_is_noticed() {
    let redis = postrider_testkit::servers::Redis::start().await.unwrap();
    let folder = Folder::new().with("REDIS_URL", &redis.url());
    let mut serving = folder.serve(&["--roles", "api"]);
    serving.wait_for("serving");
    assert_eq!(health(&serving).1["redis"], "ok");
    redis.kill().unwrap();
    until(&serving, |body| body["redis"] == "degraded");
}

fn until(serving: &Serving, so: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..600 {
        let (_, body) = health(serving);
        if so(&body) {
            return body;
        }
        std::thread::park_timeout(std::time::Duration::from_millis(100));
    }
    panic!("nobody noticed: {}", health(serving).1);
}

/// Live whatever is away, so that nobody restarts it in vain; ready as long as events can be committed.
#[tokio::test(flavor = "multi_thread")]
async fn live_goes_with_nothing_ready_with_the_store_alone() {
    let (folder, database, vhost) = servers().await;
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    let (store, store_url) = Proxy::in_front_of(&database.url).await.unwrap();
    let (broker, broker_url) = Proxy::in_front_of(&vhost.amqp_url).await.unwrap();
    let folder = folder.with("DATABASE_URL", &store_url).with("RABBITMQ_URL", &broker_url);
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let statuses = || {
        ["/v1/health/live", "/v1/health/ready", "/v1/health"].map(|path| serving.http("GET", path, &[], "").0)
    };
    until(&serving, |body| body["status"] == "ok");
    assert_eq!(statuses(), [200, 200, 200]);

    broker.set(Weather::Cut);
    until(&serving, |body| body["broker"] == "unavailable");
    assert_eq!(statuses(), [200, 200, 503]);
    broker.set(Weather::Clear);
    until(&serving, |body| body["status"] == "ok");

    store.set(Weather::Cut);
    until(&serving, |body| body["store"] == "unavailable");
    assert_eq!(statuses(), [200, 503, 503]);
    store.set(Weather::Clear);
    until(&serving, |body| body["status"] == "ok");
}

/// Names are for those who may read the list of consumers; a count is for everybody.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_nobody_takes_from_is_told_while_the_connection_is_lost() {
    let (folder, _database, vhost) = servers().await;
    let (proxy, url) = Proxy::in_front_of(&vhost.amqp_url).await.unwrap();
    let folder = folder.with("RABBITMQ_URL", &url);
    folder.write(
        "postrider.toml",
        "[egress]\nallow = ['127.0.0.1', 'http']\n[[queue]]\nname = 'billing'\nbind = ['shop.order.*']\n\
         [[push]]\nname = 'billing-push'\nqueue = 'billing'\nurl = 'http://127.0.0.1:9/'\n",
    );
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let well = until(&serving, |body| body["consumers"]["running"] == 1);
    assert_eq!((&well["status"], &well["consumers"]["unsubscribed"]), (&json!("ok"), &json!(0)), "{well}");

    proxy.set(Weather::Cut);
    let lost = until(&serving, |body| body["consumers"]["unsubscribed"] == 1);
    assert_eq!(lost["consumers"]["status"], "degraded", "{lost}");
    assert_eq!(lost["consumers"]["queues_without_subscription"], json!(["billing"]), "{lost}");
    let (_, _, listed) = serving.http("GET", "/v1/consumers", &[], "");
    assert!(listed.contains("unsubscribed"), "{listed}");
    // Once there is a token, nobody else is told names.
    folder.run(&["token", "create", "--role", "viewer"]).assert(0, "prt_");
    until(&serving, |body| {
        let consumers = &body["consumers"];
        consumers["unsubscribed"] == 1 && consumers.get("queues_without_subscription").is_none()
    });
    proxy.set(Weather::Clear);
    until(&serving, |body| body["status"] == "ok" && body["consumers"]["running"] == 1);
}
