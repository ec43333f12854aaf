//! A push subscription that is removed, or wants other keys: its queue gets no more, and keeps what it has.

use postrider_testkit::receiver::{Receiver, Reply};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::networked::servers;
use super::process::{Folder, Serving};
use super::push::{ask, until};

/// Somebody wants every event, so that none is without a queue.
const ALL: &str = "[egress]\nallow = ['127.0.0.1', 'http']\n[[queue]]\nname = 'all'\nbind = ['#']\n";

fn pushed(keys: &str, url: &str) -> String {
    format!("{ALL}[[push]]\nname = 'erp'\nkeys = [{keys}]\nurl = '{url}'\n")
}

/// Publishes an event and waits until the broker has it, wherever it went.
async fn publish(serving: &Serving, kind: &str, id: &str) {
    let event = json!({"type": kind, "data": {}, "id": id});
    assert_eq!(ask(serving, "POST", "/v1/events", &event).0, 202);
    let path = format!("/v1/events/{id}");
    until(|| ask(serving, "GET", &path, &Value::Null).1["status"] == "published").await;
}

/// What waits in the queue of a consumer.
fn ready(serving: &Serving, name: &str) -> Value {
    let page = ask(serving, "GET", "/v1/consumers", &Value::Null).1;
    let rows = page["consumers"].as_array().unwrap().clone();
    rows.into_iter().find(|row| row["name"] == name).map_or(Value::Null, |row| row["ready"].clone())
}

/// A line that it said, or will say: the endpoints start beside everything else.
fn heard(serving: &mut Serving, text: &str) -> String {
    match serving.said().iter().find(|line| line.contains(text)) {
        Some(line) => line.clone(),
        None => serving.wait_for(text),
    }
}

fn came(receiver: &Receiver, id: &str) -> bool {
    receiver.requests().iter().any(|one| one.header("webhook-id") == id)
}

async fn removed_and_made_anew(folder: &Folder) {
    let (first, second) =
        (Receiver::start(|_, _| Reply::status(200)).await, Receiver::start(|_, _| Reply::status(200)).await);
    folder.write("postrider.toml", ALL);
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let add = |url: &str, key: &str| {
        folder.run(&["push", "add", "erp", "--url", url, "--keys", key, "--reason", "moving"]).assert(0, "");
    };
    add(&first.url(), "shop.order.*");
    serving.wait_for("pushing");
    drop(serving);
    // Nobody pushes, so it waits.
    let mut serving = folder.serve(&["--roles", "relay,collector,api"]);
    serving.wait_for("serving");
    publish(&serving, "shop.order.placed", "waits").await;
    until(|| ready(&serving, "erp") == 1).await;
    folder.run(&["push", "rm", "erp", "--dry-run"]).assert(0, "1 that wait there stay");
    folder.run(&["push", "rm", "erp", "--yes", "--reason", "moved"]).assert(0, "done");
    // Whoever pushes next finds what is left of it, also after a restart.
    drop(serving);
    let mut serving = folder.serve(&[]);
    heard(&mut serving, "its queue is unbound, and keeps what is in it");
    publish(&serving, "shop.order.placed", "missed").await;
    assert_eq!(ready(&serving, "erp"), 1, "the queue gets no more");
    folder.run(&["audit"]).assert(0, "");
    let log = ask(&serving, "GET", "/v1/audit-log?action=push.add", &Value::Null).1;
    assert_eq!(log["entries"][0]["reason"], "moving", "{log}");

    // Made anew, it gets what was kept, and what its own keys want.
    add(&first.url(), "shop.refund.*");
    serving.wait_for("pushing");
    until(|| came(&first, "waits")).await;
    publish(&serving, "shop.order.placed", "other").await;
    publish(&serving, "shop.refund.paid", "refund").await;
    until(|| came(&first, "refund")).await;
    // What was published before it came is nothing that it lacks.
    folder.run(&["audit"]).assert(0, "holds");
    // Between two looks: it is another one all the same, with other keys.
    folder.run(&["push", "rm", "erp", "--yes"]).assert(0, "done");
    add(&second.url(), "shop.job.*");
    serving.wait_for("pushing");
    publish(&serving, "shop.refund.paid", "late").await;
    publish(&serving, "shop.job.made", "job").await;
    until(|| came(&second, "job")).await;
    assert_eq!(ready(&serving, "erp"), 0);
    for (id, receiver) in [("missed", &first), ("other", &first), ("late", &first), ("late", &second)] {
        assert!(!came(receiver, id), "{id} was not for it");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_subscription_gets_no_more_on_the_embedded_default() {
    removed_and_made_anew(&Folder::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_subscription_gets_no_more_on_real_servers() {
    let (folder, _database, _vhost) = servers().await;
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    removed_and_made_anew(&folder).await;
}

async fn changed_in_the_configuration(folder: &Folder) {
    let receiver = Receiver::start(|_, _| Reply::status(200)).await;
    folder.write("postrider.toml", &pushed("'shop.order.*', 'shop.refund.*'", &receiver.url()));
    let mut serving = folder.serve(&[]);
    heard(&mut serving, "pushing");
    publish(&serving, "shop.order.placed", "first").await;
    until(|| came(&receiver, "first")).await;

    folder.write("postrider.toml", &pushed("'shop.refund.*', 'shop.job.*'", &receiver.url()));
    serving.signal(Signal::HUP);
    let told = serving.wait_for("its queue is not bound by these keys any more");
    assert!(told.contains("shop.order.*") && !told.contains("shop.refund.*"), "{told}");
    publish(&serving, "shop.order.placed", "second").await;
    publish(&serving, "shop.refund.paid", "third").await;
    publish(&serving, "shop.job.made", "fourth").await;
    until(|| came(&receiver, "third") && came(&receiver, "fourth")).await;

    folder.write("postrider.toml", ALL);
    serving.signal(Signal::HUP);
    serving.wait_for("its queue is unbound");
    // What starts meanwhile does not bind again what this process began with.
    let more = ["push", "add", "crm", "--url", &receiver.url(), "--keys", "shop.crm.*"];
    folder.run(&more).assert(0, "");
    serving.wait_for("pushing");
    publish(&serving, "shop.refund.paid", "fifth").await;
    assert_eq!(ready(&serving, "erp"), 0);
    assert!(!came(&receiver, "second") && !came(&receiver, "fifth"));
    drop(serving);

    // Taken out while nothing ran: another process may have it, so somebody has to say that it is gone.
    folder.write("postrider.toml", &pushed("'shop.order.*'", &receiver.url()));
    folder.serve(&[]).wait_for("pushing consumer=erp");
    folder.write("postrider.toml", ALL);
    let mut serving = folder.serve(&[]);
    heard(&mut serving, "`postrider push rm erp` unbinds it");
    publish(&serving, "shop.order.placed", "sixth").await;
    until(|| ready(&serving, "erp") == 1).await;
    folder.run(&["push", "rm", "erp", "--yes"]).assert(0, "1 that wait there stay");
    serving.wait_for("its queue is unbound");
    publish(&serving, "shop.order.placed", "seventh").await;
    assert_eq!(ready(&serving, "erp"), 1);
    folder.run(&["push", "rm", "erp", "--yes"]).assert(1, "there is no push subscription erp");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_leave_the_configuration_are_unbound_on_the_embedded_default() {
    changed_in_the_configuration(&Folder::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_leave_the_configuration_are_unbound_on_real_servers() {
    let (folder, _database, _vhost) = servers().await;
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    changed_in_the_configuration(&folder).await;
}
