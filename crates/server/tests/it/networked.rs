//! The same commands on PostgreSQL and RabbitMQ.

use std::time::Duration;

use postrider::Clock;
use postrider_testkit::servers::{RabbitVersion, TestDatabase, TestVhost, shared};
use rustix::process::Signal;

use super::process::Folder;

const QUEUES: &str = "[[queue]]\nname = 'billing'\nbind = ['shop.order.*']\n[[consumer]]\nname = 'billing'\n";

pub(crate) async fn servers() -> (Folder, TestDatabase, TestVhost) {
    servers_on(RabbitVersion::Packaged).await
}

pub(crate) async fn servers_on(version: RabbitVersion) -> (Folder, TestDatabase, TestVhost) {
    let shared = shared().unwrap();
    let (database, vhost) = (shared.database().await.unwrap(), shared.vhost_on(version).await.unwrap());
    let folder = Folder::new()
        .with("DATABASE_URL", &database.url)
        .with("RABBITMQ_URL", &vhost.amqp_url)
        .with("REDIS_URL", &shared.redis_url);
    folder.write("postrider.toml", QUEUES);
    (folder, database, vhost)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_schema_is_made_only_when_somebody_says_so() {
    let (folder, _database, _vhost) = servers().await;
    let rows = folder.run(&["db", "status", "--json"]).assert(3, "run `postrider db migrate`").json();
    assert_eq!(rows[0]["state"], "missing");
    folder.run(&["publish", "a.b", "--data", "{}"]).assert(1, "run `postrider db migrate`");
    folder.run(&["serve"]).assert(1, "run `postrider db migrate`");
    folder.run(&["doctor"]).assert(3, "run `postrider db migrate`");
    folder.run(&["db", "migrate", "--dry-run"]).assert(3, "foundation");
    folder.run(&["db", "migrate"]).assert(0, "applied");
    folder.run(&["db", "migrate"]).assert(0, "the schema is up to date");
    folder.run(&["db", "status"]).assert(0, "applied");
}

#[tokio::test(flavor = "multi_thread")]
async fn serve_publishes_on_real_servers() {
    let (folder, _database, _vhost) = servers().await;
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "using PostgreSQL");
    folder.run(&["publish", "shop.order.placed", "--data", "{}", "--id", "evt_1"]).assert(0, "evt_1");
    folder
        .run(&["publish", "shop.order.placed", "--data", "{}", "--id", "evt_1"])
        .assert(1, "committed before");
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let (status, _) = serving.post_event(&[], r#"{"type":"shop.order.paid","data":{}}"#);
    assert_eq!(status, 202);
    serving.wait_for_metric("postrider_relay_published_total 2");
    assert_eq!(serving.http("GET", "/v1/health", &[], "").0, 200);
    folder.run(&["doctor"]).assert(0, "all 4 queues are there");
    let report = folder.run(&["audit", "--json"]).assert(0, "").json();
    assert_eq!(
        (&report["consumers"][0]["committed"], &report["consumers"][0]["waiting"]),
        (&2.into(), &2.into())
    );

    let made = folder
        .run(&["token", "create", "--role", "operator", "--expires", "1d", "--json"])
        .assert(0, "")
        .json();
    let bearer = format!("Bearer {}", made["token"].as_str().unwrap());
    let event = r#"{"type":"shop.order.paid","data":{}}"#;
    assert_eq!(serving.post_event(&[], event).0, 401);
    assert_eq!(serving.post_event(&[("authorization", &bearer)], event).0, 202);
    folder.run(&["token", "revoke", made["id"].as_str().unwrap(), "--yes"]).assert(0, "revoked");
    assert_eq!(serving.post_event(&[("authorization", &bearer)], event).0, 401);
    assert_eq!(folder.run(&["token", "ls", "--json"]).json()[0]["state"], "revoked");

    serving.signal(Signal::INT);
    let (code, said) = serving.ended();
    assert_eq!((code, said.last().map(String::as_str)), (0, Some("stopped")), "{said:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_queue_wants_is_kept_by_a_policy_that_serve_sets() {
    let (folder, _database, vhost) = servers().await;
    let folder = folder.with("RABBITMQ_MANAGEMENT_URL", &vhost.management_url);
    let topology = format!(
        "[outbox]\nexchange = 'shop.events'\n[[exchange]]\nname = 'shop.events'\n{QUEUES}\
                 [[push]]\nname = 'erp'\nkeys = ['shop.refund.*']\nurl = 'https://example.com/hook'\n"
    );
    folder.write("postrider.toml", &topology);
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    folder.run(&["topology", "drift"]).assert(3, "");
    folder
        .run(&["publish", "shop.invoice.sent", "--data", "{}", "--id", "evt_1"])
        .assert(0, "it goes to shop.events.unroutable, as a dead letter");
    let mut serving = folder.serve(&[]);
    let line = serving.wait_for("set policies that the broker did not have");
    assert!(line.contains("billing") && line.contains("erp"), "{line}");
    serving.wait_for("serving");
    folder.run(&["topology", "drift"]).assert(0, "has what it should have");
    serving.wait_for_metric("postrider_dead_letters_collected_total 1");
    let page = folder.run(&["dlq", "ls", "--json"]).assert(0, "").json();
    let letters = page["letters"].as_array().unwrap();
    assert_eq!((letters.len(), letters[0]["reason"].as_str()), (1, Some("unroutable")), "{page}");
    assert_eq!(letters[0]["event_id"], "evt_1");
}

#[tokio::test(flavor = "multi_thread")]
async fn serve_goes_on_without_the_management_api_and_says_what_is_unprotected() {
    let (folder, _database, _vhost) = servers().await;
    let folder = folder.with("RABBITMQ_MANAGEMENT_URL", "http://guest:guest@127.0.0.1:1");
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    let mut serving = folder.serve(&[]);
    serving.wait_for("policies are not set: until they are, dead letters may be lost");
    serving.wait_for("serving");
    drop(serving);
    let folder = folder.with("POSTRIDER_BROKER__SET_POLICIES", "false");
    let mut serving = folder.serve(&[]);
    let line = serving.wait_for("serving");
    assert!(!serving.said().iter().any(|said| said.contains("policies")), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_are_exit_4_and_not_shown() {
    let (_, database, vhost) = servers().await;
    let nobody = database.url.replacen("://", "://nobody:hunter2@", 1);
    let nobody = match nobody.rsplit_once('@') {
        Some((_, place)) => format!("postgres://nobody:hunter2@{place}"),
        None => nobody,
    };
    let folder = Folder::new().with("DATABASE_URL", &nobody).with("RABBITMQ_URL", &vhost.amqp_url);
    let ran =
        folder.run(&["publish", "a.b", "--data", "{}"]).assert(4, "check user, password and pg_hba.conf");
    assert!(!ran.err.contains("hunter2"), "{ran:?}");

    let place = vhost.amqp_url.rsplit_once('@').unwrap().1;
    let intruder = format!("amqp://guest:hunter2@{place}");
    let folder = Folder::new().with("DATABASE_URL", &database.url).with("RABBITMQ_URL", &intruder);
    folder.run(&["db", "migrate"]).assert(0, "");
    let ran = folder.run(&["audit"]).assert(4, "RabbitMQ");
    assert!(!ran.err.contains("hunter2"), "{ran:?}");
    let ran = folder.run(&["doctor"]).assert(3, "FAIL");
    assert!(!ran.out.contains("hunter2") && !ran.err.contains("hunter2"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn serve_starts_without_a_broker_and_keeps_events() {
    let (_, database, _vhost) = servers().await;
    let folder = Folder::new()
        .with("DATABASE_URL", &database.url)
        .with("RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:1/")
        .with("POSTRIDER_BROKER__CONNECT_TIMEOUT_MS", "500");
    folder.run(&["db", "migrate"]).assert(0, "");
    let mut serving = folder.serve(&[]);
    serving.wait_for("events wait in the outbox");
    assert_eq!(serving.post_event(&[], r#"{"type":"a.b","data":{}}"#).0, 202);
    assert_eq!(serving.http("GET", "/v1/health/ready", &[], "").0, 200);
    assert_eq!(serving.http("GET", "/v1/health", &[], "").0, 503);
    serving.signal(Signal::TERM);
    assert_eq!(serving.ended().0, 0);
}

/// Each of them waits for the broker as long as a connection may take, one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn endpoints_that_wait_for_a_broker_hold_up_no_stop() {
    let (_, database, _vhost) = servers().await;
    let folder = Folder::new()
        .with("DATABASE_URL", &database.url)
        .with("RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:1/")
        .with("POSTRIDER_BROKER__CONNECT_TIMEOUT_MS", "20000");
    let endpoint = |number: u32| {
        format!("[[push]]\nname = 'to{number}'\nurl = 'https://example.com'\nkeys = ['shop.order.*']\n")
    };
    folder.write("postrider.toml", &(0..8).map(endpoint).collect::<String>());
    folder.run(&["db", "migrate"]).assert(0, "");
    let serving = folder.serve(&[]);
    let (clock, drain) = (Clock::system(), Duration::from_secs(10));
    let told = clock.monotonic();
    serving.signal(Signal::TERM);
    assert_eq!(serving.ended().0, 0);
    assert!(clock.since(told) < drain, "it took {:?}", clock.since(told));
}
