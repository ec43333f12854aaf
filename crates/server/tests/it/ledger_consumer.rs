//! The ledger is a consumer to everybody: listed, paused, in health, and with an account of its own, on both backends.

use std::time::Duration;

use postrider::Clock;
use postrider::broker::{Broker as _, Verdict};
use postrider::topology::QueueName;
use postrider_testkit::proxy::{Proxy, Weather};
use serde_json::{Value, json};

use super::ledger_serve::{CONFIG, LIMIT, Stage, wait_for};
use super::process::{Folder, Serving};

const QUEUE: &str = "fis.ingestion.queue";
const GOOD: &str = r#"{"employeeId": "e", "gross": "10.01", "currency": "EUR", "paidOn": "2026-03-01"}"#;
/// Without an amount.
const BAD: &str = r#"{"employeeId": "e", "currency": "EUR", "paidOn": "2026-03-01"}"#;

fn publish(folder: &Folder, id: &str, data: &str) {
    let words = ["publish", "payroll.salary.disbursed", "--tenant", "acme", "--id", id, "--data", data];
    folder.run(&words).assert(0, id);
}

fn get(serving: &Serving, path: &str) -> Value {
    let (_, _, body) = serving.http("GET", path, &[], "");
    serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error} in {body}"))
}

/// The ledger among the consumers that are listed.
fn row(all: &Value) -> Value {
    let found = all.as_array().unwrap().iter().find(|one| one["name"] == "ledger");
    found.cloned().unwrap_or_else(|| panic!("no ledger in {all}"))
}

fn until(what: &str, so: impl Fn() -> bool) {
    let clock = Clock::system();
    let start = clock.monotonic();
    while !so() {
        assert!(clock.since(start) < LIMIT, "{what} did not come");
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

/// Its account: committed, applied, waiting, dead. The exit code says whether it holds.
fn account(folder: &Folder, code: i32) -> (Value, [u64; 4]) {
    let report = folder.run(&["audit", "--json"]).assert(code, "").json();
    let of_it = row(&report["consumers"]);
    let count = ["committed", "applied", "waiting", "dead"].map(|term| of_it[term].as_u64().unwrap());
    (of_it, count)
}

/// What holds on both backends; leaves the ledger running.
fn plays(folder: &Folder, serving: &mut Serving) {
    serving.wait_for("serving");
    // Alerts watch these grow, so they are there before anything is refused.
    serving.wait_for_metric(r#"postrider_ledger_refused_total{code="missing_rate"} 0"#);
    serving.wait_for_metric(r#"postrider_consumer_dead_total{consumer="ledger",reason="conflict"} 0"#);
    publish(folder, "s-1", GOOD);
    publish(folder, "s-2", BAD);
    wait_for(serving, "postrider_ledger_posted_total", 1);
    wait_for(serving, "postrider_ledger_refused_total", 1);
    wait_for(serving, r#"postrider_consumer_applied_total{consumer="ledger"}"#, 1);

    // Listed, with what waits for it and what it has in hand.
    let listed = row(&folder.run(&["consumers", "ls", "--json"]).assert(0, "").json());
    assert_eq!(
        (&listed["queue"], &listed["state"], &listed["ready"]),
        (&json!(QUEUE), &json!("active"), &json!(0))
    );
    let over_http = row(&get(serving, "/v1/consumers")["consumers"]);
    assert!(over_http["in_flight"].is_u64(), "{over_http}");
    let (_, _, page) = serving.http("GET", "/dashboard/consumers", &[], "");
    assert!(page.contains("ledger") && page.contains(QUEUE), "{page}");
    let health = get(serving, "/v1/health");
    assert_eq!(
        (&health["ledger"]["status"], &health["ledger"]["posted"]),
        (&json!("running"), &json!(1)),
        "{health}"
    );
    assert_eq!(account(folder, 0).1, [2, 1, 0, 1]);
    folder.run(&["event", "trace", "s-1"]).assert(0, "applied by ledger");

    // Paused: what comes waits.
    folder.run(&["consumers", "pause", "ledger", "--reason", "year's end"]).assert(0, "ledger is paused");
    serving.wait_for_metric(r#"postrider_consumer_paused{consumer="ledger"} 1"#);
    until("the pause", || get(serving, "/v1/health")["ledger"]["status"] == "paused");
    publish(folder, "s-3", GOOD);
    until("the event in its queue", || row(&folder.run(&["consumers", "ls", "--json"]).json())["ready"] == 1);
    assert_eq!(get(serving, "/v1/health")["ledger"]["posted"], 1);
    assert_eq!(account(folder, 0).1, [3, 1, 1, 1]);
    folder.run(&["consumers", "resume", "ledger"]).assert(0, "ledger goes on");
    wait_for(serving, "postrider_ledger_posted_total", 2);
    serving.wait_for_metric(r#"postrider_consumer_paused{consumer="ledger"} 0"#);
    assert_eq!(account(folder, 0).1, [3, 2, 0, 1]);
}

#[test]
fn on_the_embedded_default_the_ledger_is_listed_paused_and_accounted_for() {
    let folder = Folder::new();
    folder.write("postrider.toml", CONFIG);
    // Known before it first starts.
    assert_eq!(row(&folder.run(&["consumers", "ls", "--json"]).assert(0, "").json())["queue"], QUEUE);
    folder.run(&["ledger", "--tenant", "acme", "accounts", "init", "--base", "EUR"]).assert(0, "opened");
    let mut serving = folder.serve(&[]);
    plays(&folder, &mut serving);
}

/// Here somebody steals an event from the queue, too, and the account says which.
#[tokio::test(flavor = "multi_thread")]
async fn on_servers_the_ledger_is_listed_paused_and_accounted_for() {
    let stage = Stage::new(&["acme"]).await;
    let folder = &stage.folder;
    let mut serving = folder.serve(&[]);
    plays(folder, &mut serving);

    folder.run(&["consumers", "pause", "ledger"]).assert(0, "ledger is paused");
    until("the pause", || get(&serving, "/v1/health")["ledger"]["status"] == "paused");
    // What is published within two seconds of the queue's first binding is not missed by anybody; by now it was bound for longer.
    let clock = Clock::system();
    let start = clock.monotonic();
    until("a few seconds", || clock.since(start) > Duration::from_secs(3));
    publish(folder, "s-4", GOOD);
    let mut thief = stage.broker.subscribe(&QueueName::new(QUEUE).unwrap(), 1).await.unwrap();
    let stolen = tokio::time::timeout(LIMIT, thief.next(1)).await.unwrap().unwrap();
    let receipts = stolen.into_iter().map(|delivery| (delivery.receipt, Verdict::Ack)).collect();
    thief.settler().settle(receipts).await.unwrap();
    drop(thief);
    // Its row may not be marked as published yet; then it waits.
    until("the loss", || account_is(folder, [4, 2, 0, 1]));
    let (of_it, counted) = account(folder, 3);
    assert_eq!(counted, [4, 2, 0, 1]);
    assert_eq!((&of_it["unaccounted"], &of_it["unaccounted_ids"]), (&json!(1), &json!(["s-4"])), "{of_it}");
}

fn account_is(folder: &Folder, wanted: [u64; 4]) -> bool {
    let report = folder.run(&["audit", "--json"]).json();
    let of_it = row(&report["consumers"]);
    ["committed", "applied", "waiting", "dead"].map(|term| of_it[term].as_u64().unwrap()) == wanted
}

/// Each in its own word, and it goes on by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_whose_broker_or_books_are_away_says_which() {
    let Stage { folder, database, vhost, .. } = Stage::new(&["acme"]).await;
    let (to_broker, amqp) = Proxy::in_front_of(&vhost.amqp_url).await.unwrap();
    let (to_books, postgres) = Proxy::in_front_of(&database.url).await.unwrap();
    let folder = folder.with("RABBITMQ_URL", &amqp).with("DATABASE_URL", &postgres);
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let is = |serving: &Serving, word: &str| get(serving, "/v1/health")["ledger"]["status"] == word;
    until("its subscription", || is(&serving, "running"));

    to_broker.set(Weather::Cut);
    until("the loss of its broker", || is(&serving, "disconnected"));
    let listed = || row(&get(&serving, "/v1/consumers")["consumers"]);
    until("that in the list", || listed()["state"] == "unsubscribed");
    to_broker.set(Weather::Clear);
    until("its broker", || is(&serving, "running"));
    until("that in the list", || listed()["state"] == "active");

    to_books.set(Weather::Cut);
    until("the loss of its books", || is(&serving, "tripped"));
    let consumers = get(&serving, "/v1/health")["consumers"].clone();
    assert_eq!((&consumers["status"], &consumers["tripped"]), (&json!("degraded"), &json!(1)), "{consumers}");
    to_books.set(Weather::Clear);
    until("its books", || is(&serving, "running"));

    publish(&folder, "s-1", GOOD);
    wait_for(&serving, "postrider_ledger_posted_total", 1);
}

#[test]
fn a_consumer_that_would_be_taken_for_the_ledger_is_refused() {
    let folder = Folder::new();
    for named in ["name = 'ledger'\nqueue = 'other'", "name = 'books'\nqueue = 'fis.ingestion.queue'"] {
        folder.write(
            "postrider.toml",
            &format!("{CONFIG}[[queue]]\nname = 'other'\nbind = ['a.b']\n[[consumer]]\n{named}\n"),
        );
        folder.run(&["consumers", "ls"]).assert(2, "the ledger is the consumer ledger");
    }
}
