//! Pull behind a load balancer: a worker's requests go to any of several processes.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::grants::psql;
use super::networked::servers;
use super::process::{Folder, Serving};
use super::push::{ask, until};

const CONFIG: &str = "[[queue]]\nname = 'jobs'\nbind = ['shop.job.*']\n[queue.retry]\nmax_retries = 3\ndelays = ['50ms']\n\
    [[queue]]\nname = 'mails'\nbind = ['shop.mail.*']\n";
const PATH: &str = "/v1/queues/jobs/deliveries";
const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Leases one delivery.
fn given(serving: &Serving, lease_ms: u64) -> Value {
    for _ in 0..6 {
        let given = ask(serving, "POST", PATH, &json!({"wait_ms": 10_000, "lease_ms": lease_ms})).1;
        if let Some(given) = given["deliveries"].get(0) {
            return given.clone();
        }
    }
    panic!("nothing to lease");
}

/// Leases one delivery: its event, its attempt, its token.
fn lease(serving: &Serving, lease_ms: u64) -> (String, u64, Value) {
    let given = given(serving, lease_ms);
    let id = given["id"].as_str().unwrap().to_owned();
    (id, given["attempt"].as_u64().unwrap(), given["lease"].clone())
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
}

fn publish(serving: &Serving, id: &str) {
    let event = json!({"type": "shop.job.made", "data": {}, "id": id});
    assert_eq!(ask(serving, "POST", "/v1/events", &event).0, 202);
}

#[tokio::test(flavor = "multi_thread")]
async fn any_process_settles_and_extends_a_lease() {
    let (folder, database, _vhost) = servers().await;
    folder.write("postrider.toml", CONFIG);
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    let mut giver = folder.serve(&["--roles", "relay,collector,api"]);
    giver.wait_for("serving");
    let mut other = folder.serve(&["--roles", "api"]);
    other.wait_for("serving");
    let tell = |word: &str, body: Value| ask(&other, "POST", &format!("{PATH}:{word}"), &body);
    let over = |(status, told): (u16, Value)| (status, told["code"].clone()) == (410, json!("lease_over"));

    // Retry: it comes again as the next attempt, and the lease is settled once.
    publish(&giver, "retried");
    let (id, attempt, token) = lease(&giver, 60_000);
    assert_eq!((id.as_str(), attempt), ("retried", 1));
    let (status, told) = tell("retry", json!({"leases": [token, token], "reason": "busy"}));
    assert_eq!((status, &told), (200, &json!({"settled": [token], "over": []})));
    assert!(over(tell("retry", json!({"leases": [token]}))), "it was settled before");
    let (id, attempt, token) = lease(&giver, 60_000);
    assert_eq!((id.as_str(), attempt), ("retried", 2));

    // A token that nobody gave, and one of another queue: nothing is settled.
    let forged = token.as_str().unwrap().split('_').enumerate();
    let forged: Vec<_> = forged.map(|(at, part)| if at == 2 { "00" } else { part }).collect();
    let wrong = json!({"leases": ["lease_of_nobody", forged.join("_")]});
    assert!(over(tell("reject", wrong)), "nobody gave these");
    let elsewhere = "/v1/queues/mails/deliveries";
    for word in ["ack", "reject"] {
        let told = ask(&other, "POST", &format!("{elsewhere}:{word}"), &json!({"leases": [token]}));
        assert!(over(told), "{word} for another queue");
    }

    // Nor does a token count that somebody made of a good one: another event is not marked as applied.
    let good = token.as_str().unwrap();
    let made_up = good.replace(&hex("retried"), &hex("notmine"));
    assert!(made_up != good && over(tell("ack", json!({"leases": [made_up]}))), "nobody gave it");
    let marks = psql(&database.url, &["-c", "SELECT count(*) FROM postrider.event_inbox"]).1;
    assert_eq!(marks.trim(), "0");

    // Extend, then reject: the lease still ran.
    assert_eq!(tell("extend", json!({"leases": [token], "lease_ms": 120_000})).0, 200);
    assert_eq!(tell("reject", json!({"leases": [token], "reason": "no such job"})).0, 200);
    let dead = || folder.run(&["dlq", "ls", "--json"]).json()["letters"].clone();
    until(|| dead().as_array().is_some_and(|letters| letters.len() == 1)).await;
    assert!(dead()[0]["error"].as_str().unwrap().contains("no such job"), "{}", dead());

    // An expired lease gives the delivery back, and its old token settles nothing.
    publish(&giver, "expired");
    let (_, _, old) = lease(&giver, 1);
    let (id, attempt, token) = lease(&giver, 60_000);
    assert_eq!((id.as_str(), attempt), ("expired", 1));
    assert!(over(tell("retry", json!({"leases": [old]}))), "it ran out");
    assert_eq!(tell("ack", json!({"leases": [token]})).0, 200);
    // The giver hears of the ack, and does not keep the delivery until the lease runs out.
    let heard = || psql(&database.url, &["-c", "SELECT count(*) FROM postrider.pull_word"]).1.trim() == "0";
    until(heard).await;

    // The giver dies: its lease is over, and the delivery comes again.
    publish(&giver, "left");
    let (_, _, left) = lease(&giver, 60_000);
    giver.signal(Signal::KILL);
    giver.ended();
    assert!(over(tell("retry", json!({"leases": [left]}))), "the process that gave it is gone");
    let (id, attempt, token) = lease(&other, 60_000);
    assert_eq!((id.as_str(), attempt), ("left", 1));
    assert_eq!(tell("ack", json!({"leases": [token]})).0, 200);
}

/// A worker that asks once in a while and does not wait would be told each time that there is nothing.
#[test]
fn who_asks_first_gets_what_there_is_without_waiting() {
    let folder = Folder::new();
    folder.write("postrider.toml", CONFIG);
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    publish(&serving, "early");
    serving.wait_for_metric("postrider_relay_published_total 1");
    let given = ask(&serving, "POST", PATH, &json!({})).1;
    assert_eq!(given["deliveries"][0]["id"], "early", "{given}");
    // Nobody means to hide it for years.
    let late = json!({"leases": [given["deliveries"][0]["lease"]], "after_ms": 31_622_400_001_u64});
    let (status, problem) = ask(&serving, "POST", &format!("{PATH}:retry"), &late);
    assert_eq!((status, &problem["code"]), (422, &json!("invalid_request")), "{problem}");
}

/// What the CloudEvent says, what the message has of its own, and whether it is a replay.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_is_told_what_an_endpoint_would_be_told() {
    let folder = Folder::new();
    folder.write("postrider.toml", CONFIG);
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let event = json!({
        "specversion": "1.0", "id": "evt_1", "type": "shop.job.made", "source": "/shop/é", "dataschema": "urn:job",
        "priority": 7, "traceparent": TRACE, "tracestate": "vendor=a", "data": {},
    });
    let kind = ("content-type", "application/cloudevents+json");
    assert_eq!(serving.http("POST", "/v1/events", &[kind], &event.to_string()).0, 202);
    let first = given(&serving, 60_000);
    assert_eq!(
        first["attributes"],
        json!({"source": "/shop/é", "dataschema": "urn:job", "priority": "7"}),
        "{first}"
    );
    assert_eq!((&first["tracestate"], &first["headers"]), (&json!("vendor=a"), &json!({})), "{first}");
    let reject = |given: &Value| {
        let told = ask(&serving, "POST", &format!("{PATH}:reject"), &json!({"leases": [given["lease"]]}));
        assert_eq!(told.0, 200, "{}", told.1);
    };
    let dead = || folder.run(&["dlq", "ls", "--json"]).json()["letters"].as_array().map_or(0, Vec::len);

    reject(&first);
    until(|| dead() == 1).await;
    folder.run(&["dlq", "edit", "--all", "--set-header", "Region=eu west", "--yes"]).assert(0, "1 done");
    let corrected = given(&serving, 60_000);
    let headers = &corrected["headers"];
    assert_eq!(
        (&headers["region"], &headers["x-replaces"]),
        (&json!("eu west"), &json!("evt_1")),
        "{corrected}"
    );
    assert_eq!(corrected["attributes"], first["attributes"]);

    reject(&corrected);
    until(|| dead() == 1).await;
    folder.run(&["dlq", "replay", "--all", "--yes"]).assert(0, "1 done");
    let replayed = given(&serving, 60_000);
    let headers = &replayed["headers"];
    assert!(headers["x-replay-id"].is_string() && headers["region"] == "eu west", "{replayed}");
    assert_eq!((&headers["x-replay-count"], &replayed["attempt"]), (&json!(1), &json!(1)), "{replayed}");
}

/// A worker that was killed, or lost its patience, while it waited would keep the next delivery from all others until its lease runs out.
#[test]
fn who_hangs_up_while_waiting_is_given_nothing() {
    use std::io::Write as _;

    let folder = Folder::new();
    folder.write("postrider.toml", CONFIG);
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    assert_eq!(ask(&serving, "POST", PATH, &json!({})).1["deliveries"], json!([]));
    let body = json!({"wait_ms": 20_000, "lease_ms": 600_000}).to_string();
    let head = "host: localhost\r\ncontent-type: application/json";
    let asked = format!("POST {PATH} HTTP/1.1\r\n{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let mut worker = std::net::TcpStream::connect(&serving.address).unwrap();
    worker.write_all(asked.as_bytes()).unwrap();
    std::thread::park_timeout(Duration::from_secs(1));
    drop(worker);
    // Within a moment it is known.
    std::thread::park_timeout(Duration::from_secs(2));
    publish(&serving, "next");
    assert_eq!(lease(&serving, 60_000).0, "next");
}

/// It would wait for nothing, and keep the process from ending.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_while_the_process_stops_is_answered_at_once() {
    use std::io::{Read as _, Write as _};

    let folder = Folder::new();
    folder.write("postrider.toml", CONFIG);
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let body = json!({"wait_ms": 20_000}).to_string();
    let head = "host: localhost\r\ncontent-type: application/json\r\nconnection: close";
    let asked = format!("POST {PATH} HTTP/1.1\r\n{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let mut worker = std::net::TcpStream::connect(&serving.address).unwrap();
    worker.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    worker.write_all(asked.as_bytes()).unwrap();
    // The queue has a consumer while somebody asks.
    let waits = || {
        let listed = ask(&serving, "GET", "/v1/consumers", &Value::Null).1;
        listed["consumers"].as_array().is_some_and(|all| all.iter().any(|one| one["queue"] == "jobs"))
    };
    until(waits).await;
    serving.signal(Signal::TERM);
    let mut answer = String::new();
    worker.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with(r#"{"deliveries":[]}"#), "{answer}");
    let (code, said) = serving.ended();
    assert!(code == 0 && !said.iter().any(|line| line.contains("cut off")), "{said:#?}");
}

/// What was delivered before, and waits for a worker, is not given out either.
#[test]
fn while_its_consumer_is_paused_workers_get_nothing() {
    let folder = Folder::new();
    folder.write("postrider.toml", CONFIG);
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    publish(&serving, "one");
    publish(&serving, "two");
    serving.wait_for_metric("postrider_relay_published_total 2");
    let (first, _, token) = lease(&serving, 60_000);
    assert_eq!(ask(&serving, "POST", &format!("{PATH}:ack"), &json!({"leases": [token]})).0, 200);
    assert_eq!(ask(&serving, "POST", "/v1/consumers/jobs/pause", &json!({"reason": "moving"})).0, 200);
    serving.wait_for_metric("postrider_consumer_paused{consumer=\"jobs\"} 1");
    assert_eq!(ask(&serving, "POST", PATH, &json!({"wait_ms": 1000})).1["deliveries"], json!([]));
    assert_eq!(ask(&serving, "POST", "/v1/consumers/jobs/resume", &json!({})).0, 200);
    let (second, _, _) = lease(&serving, 60_000);
    assert_ne!(first, second);
}

/// What a worker has in hand is in no queue of RabbitMQ: its statistics know of it, some seconds late.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_worker_has_in_hand_waits_in_the_account() {
    let (folder, database, vhost) = servers().await;
    let folder = folder.with("RABBITMQ_MANAGEMENT_URL", &vhost.management_url);
    folder.write("postrider.toml", CONFIG);
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    // The first question makes the consumer. Its account asks for what is published from two seconds later on.
    assert_eq!(ask(&serving, "POST", PATH, &json!({})).1["deliveries"], json!([]));
    let begun = "SELECT count(*) FROM postrider.consumer WHERE name = 'jobs' AND (registration->>'since')::timestamptz < now()";
    until(|| psql(&database.url, &["-c", begun]).1.trim() == "1").await;

    publish(&serving, "in-hand");
    let (id, _, token) = lease(&serving, 600_000);
    assert_eq!(id, "in-hand");
    let account = || {
        let ran = folder.run(&["audit", "--json"]);
        (ran.code, ran.json()["consumers"][0].clone())
    };
    let holds = |applied: u64, waiting: u64| {
        (0, json!({"name": "jobs", "committed": 1, "applied": applied, "waiting": waiting, "dead": 0}))
    };
    until(|| account() == holds(0, 1)).await;
    let acked = ask(&serving, "POST", &format!("{PATH}:ack"), &json!({"leases": [token]}));
    assert_eq!(acked.0, 200);
    until(|| account() == holds(1, 0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_lease_holds_up_nobody_once_a_pause_is_over() {
    let folder = Folder::new();
    folder.write("postrider.toml", CONFIG);
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    publish(&serving, "long");
    assert_eq!(lease(&serving, 600_000).0, "long");
    for (word, paused) in [("pause", 1), ("resume", 0)] {
        assert_eq!(ask(&serving, "POST", &format!("/v1/consumers/jobs/{word}"), &json!({})).0, 200);
        until(|| ask(&serving, "GET", "/v1/health", &Value::Null).1["consumers"]["paused"] == paused).await;
    }
    publish(&serving, "next");
    assert_eq!(lease(&serving, 600_000).0, "next");
}
