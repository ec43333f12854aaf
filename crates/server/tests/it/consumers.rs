//! `postrider consumers` on the embedded default.

use postrider_testkit::receiver::{Receiver, Reply, Request};
use serde_json::json;

use super::process::Folder;
use super::push::{ask, until};

const QUEUES: &str = "[[queue]]\nname = 'billing'\nbind = ['shop.order.*']\nordered = true\non_dead = 'park'\n\
    [queue.retry]\nexponential = { base = '1s', max = '1m', steps = 3 }\n[queue.retry.class.timeout]\nmax_retries = 2\n\
    [[consumer]]\nname = 'billing'\nmax_concurrency = 4\n";

fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("postrider.toml", QUEUES);
    folder
}

#[test]
fn a_consumer_is_paused_and_resumed_by_name() {
    let folder = folder();
    let state = || folder.run(&["consumers", "ls", "--json"]).assert(0, "").json()[0].clone();
    assert_eq!(state()["state"], "active");
    folder.run(&["consumers", "pause", "billing", "--dry-run"]).assert(0, "nothing was changed");
    assert_eq!(state()["state"], "active");
    folder
        .run(&["consumers", "pause", "billing", "--reason", "the bank is down"])
        .assert(0, "billing is paused");
    folder.run(&["consumers", "pause", "billing"]).assert(0, "was paused already");
    let paused = state();
    assert_eq!(
        (&paused["state"], &paused["pause"]["reason"]),
        (&"paused".into(), &"the bank is down".into())
    );
    folder.run(&["consumers", "ls"]).assert(0, "the bank is down");
    folder.run(&["consumers", "resume", "billing", "--dry-run"]).assert(0, "would resume billing");
    folder.run(&["consumers", "resume", "billing"]).assert(0, "billing goes on");
    folder.run(&["consumers", "resume", "billing"]).assert(0, "was not paused");
    assert_eq!(state()["state"], "active");
}

#[test]
fn names_and_keys_that_nobody_knows_are_told() {
    let folder = folder();
    folder.run(&["consumers", "pause", "biling"]).assert(1, "there is no consumer biling");
    folder.run(&["consumers", "resume", "biling"]).assert(1, "there is no consumer biling");
    folder.run(&["consumers", "release", "billing", "order/1", "--yes"]).assert(1, "no parked key order/1");
    assert_eq!(folder.run(&["consumers", "held", "--json"]).json(), serde_json::json!([]));
    Folder::new().run(&["consumers", "ls"]).assert(0, "no consumer has started");
}

#[test]
fn a_consumer_that_is_gone_is_forgotten() {
    let folder = folder();
    folder.run(&["consumers", "forget", "billing", "--yes"]).assert(1, "has never started on this store");
    folder.run(&["demo", "--events", "3", "--rate", "0", "--exit"]).assert(0, "holds");
    folder.run(&["consumers", "forget", "email", "--dry-run"]).assert(0, "would forget email");
    folder.run(&["consumers", "forget", "email"]).assert(2, "add --yes");
    folder
        .run(&["consumers", "forget", "email", "--yes", "--reason", "gone"])
        .assert(0, "email is forgotten");
    folder.run(&["consumers", "forget", "email", "--yes"]).assert(1, "there is no consumer email");
    let listed = folder.run(&["consumers", "ls", "--json"]).json();
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|row| row["name"].clone()).collect();
    assert_eq!(names, ["analytics", "billing", "warehouse"]);
}

/// The first event of a key is rejected and parks it; the next two wait until somebody lets them go on.
#[tokio::test(flavor = "multi_thread")]
async fn held_events_are_listed_and_released() {
    let answer = |request: &Request, _: usize| {
        Reply::status(if request.header("webhook-id") == "evt_1" { 422 } else { 200 })
    };
    let receiver = Receiver::start(answer).await;
    let folder = folder();
    let push = format!(
        "[egress]\nallow = ['127.0.0.1', 'http']\n{QUEUES}[[push]]\nname = 'billing'\nqueue = 'billing'\nurl = '{}'\n",
        receiver.url()
    );
    folder.write("postrider.toml", &push);
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    for (id, order) in [("evt_1", "7"), ("evt_2", "7"), ("evt_3", "7"), ("evt_4", "8")] {
        let event = json!({"type": "shop.order.placed", "data": {}, "id": id, "aggregate_id": order});
        assert_eq!(ask(&serving, "POST", "/v1/events", &event).0, 202);
    }
    let held = || folder.run(&["consumers", "held", "--json"]).assert(0, "").json();
    until(|| held()[0]["events"] == 3).await;
    let keys = held();
    assert_eq!((keys.as_array().map(Vec::len), &keys[0]["state"]), (Some(1), &json!("parked")), "{keys}");
    assert_eq!((&keys[0]["consumer"], &keys[0]["head"]), (&json!("billing"), &json!("evt_1")), "{keys}");
    folder.run(&["consumers", "held", "billing"]).assert(0, "when released");
    until(|| folder.run(&["consumers", "ls", "--json"]).json()[0]["held"] == 3).await;

    let key = keys[0]["key"].as_str().unwrap();
    folder.run(&["consumers", "release", "billing", key, "--dry-run"]).assert(0, "would release 2 events");
    assert_eq!(held()[0]["events"], 3, "a dry run changes nothing");
    folder
        .run(&["consumers", "release", "billing", key, "--yes"])
        .assert(0, "released 2 events behind evt_1");
    until(|| held() == json!([])).await;
    let called: Vec<_> = receiver.requests().iter().map(|one| one.header("webhook-id").to_owned()).collect();
    let of_the_key: Vec<_> = called.iter().filter(|id| *id != "evt_4").collect();
    assert_eq!(of_the_key, ["evt_1", "evt_2", "evt_3"], "each once, and in order");
    assert_eq!(folder.run(&["dlq", "ls", "--json"]).json()["letters"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_queue_that_cannot_be_is_told() {
    let folder = Folder::new();
    for (queue, told) in [
        ("on_dead = 'park'", "without ordered = true"),
        ("retry = { delays = [] }", "retries without delays"),
        ("retry = { status = { teapot = { max_retries = 1 } } }", "write 429, 4xx"),
    ] {
        folder.write("postrider.toml", &format!("[[queue]]\nname = 'billing'\n{queue}\n"));
        folder.run(&["consumers", "ls"]).assert(2, told);
    }
}
