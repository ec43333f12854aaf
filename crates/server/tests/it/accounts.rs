//! `postrider audit` where events move, and where people take them away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use postrider_testkit::receiver::{Receiver, Reply};
use postrider_testkit::servers::RabbitMq;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::networked::servers;
use super::process::Folder;
use super::push::{ask, until};

/// Between a queue and its wait queue, and with the consumer, whose deliveries RabbitMQ's statistics know seconds late.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_deferred_again_and_again_is_not_called_lost() {
    let too_early = Arc::new(AtomicBool::new(true));
    let answer = too_early.clone();
    let endpoint =
        Receiver::start(move |_, _| Reply::status(if answer.load(Ordering::Relaxed) { 425 } else { 200 }))
            .await;
    // A broker of its own: a shared RabbitMQ 3.10 answered everybody with internal errors once this one's virtual host was removed.
    let broker = RabbitMq::start().await.unwrap();
    let (folder, _database, _vhost) = servers().await;
    let folder = folder
        .with("RABBITMQ_URL", &broker.amqp_url())
        .with("RABBITMQ_MANAGEMENT_URL", &broker.management_url());
    let config = format!(
        "[egress]\nallow = ['127.0.0.1', 'http']\n[[queue]]\nname = 'billing'\nbind = ['shop.order.*']\n\
         [queue.retry]\nmax_retries = 3\ndelays = ['200ms']\n\
         [[push]]\nname = 'billing'\nqueue = 'billing'\nurl = '{}'\n",
        endpoint.url()
    );
    folder.write("postrider.toml", &config);
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    for number in 0..30 {
        let event = json!({"type": "shop.order.placed", "data": {}, "id": format!("evt_{number}")});
        assert_eq!(ask(&serving, "POST", "/v1/events", &event).0, 202);
    }
    until(|| endpoint.requests().len() > 60).await;
    for _ in 0..2 {
        let ran = folder.run(&["audit", "--json"]);
        let account = ran.json()["consumers"][0].clone();
        assert!(ran.code == 0 || (ran.code == 6 && account["moving"].is_u64()), "{ran:?}");
        assert!(account["unaccounted_ids"].is_null(), "{account}");
        // Those of the first two seconds of its queue are not asked for.
        assert!(account["committed"].as_u64() > Some(0) && account["applied"] == 0, "{account}");
    }
    too_early.store(false, Ordering::Relaxed);
    until(|| folder.run(&["audit", "--json"]).json()["consumers"][0]["waiting"] == 0).await;
    folder.run(&["audit"]).assert(0, "holds");
}

async fn discarded_in_its_queue(folder: &Folder) {
    let endpoint = Receiver::start(|_, _| Reply::status(422)).await;
    let config = format!(
        "[egress]\nallow = ['127.0.0.1', 'http']\n[[queue]]\nname = 'raw'\nbind = ['shop.order.*']\ncollect = false\n\
         [[push]]\nname = 'raw'\nqueue = 'raw'\nurl = '{}'\n",
        endpoint.url()
    );
    folder.write("postrider.toml", &config);
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    for id in ["evt_1", "evt_2"] {
        let event = json!({"type": "shop.order.placed", "data": {}, "id": id});
        assert_eq!(ask(&serving, "POST", "/v1/events", &event).0, 202);
    }
    let dead = || folder.run(&["audit", "--json"]).json()["consumers"][0]["dead"].clone();
    until(|| dead() == 2).await;
    let trace = folder.run(&["event", "trace", "evt_1"]).assert(0, "raw: given up or waiting");
    let told = "it may lie in raw.dlq (messages there: 2): postrider dlq show --in-queue raw evt_1";
    assert!(trace.out.contains(told), "{trace:?}");
    let story = ask(&serving, "GET", "/v1/events/evt_1/timeline", &Value::Null).1;
    let there = json!({"queue": "raw.dlq", "messages": 2});
    assert_eq!(story["consumers"][0]["may_lie_in"], there, "{story}");
    serving.signal(Signal::TERM);
    assert_eq!(serving.ended().0, 0);
    let discard = ["dlq", "discard", "--in-queue", "raw", "--event", "evt_1", "--reason", "old", "--yes"];
    folder.run(&discard).assert(0, "1 taken out of raw.dlq");
    folder.run(&["audit"]).assert(0, "holds");
    assert_eq!(dead(), 2, "one in its queue, one in the table");
    let kept = folder.run(&["dlq", "ls", "--status", "discarded", "--json"]).assert(0, "").json();
    assert_eq!((&kept["letters"][0]["event_id"], &kept["letters"][1]), (&json!("evt_1"), &json!(null)));
    folder.run(&["event", "trace", "evt_1"]).assert(0, "raw: discarded");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_discarded_in_its_queue_counts_as_dead() {
    discarded_in_its_queue(&Folder::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_discarded_in_its_queue_counts_as_dead_on_servers() {
    let (folder, _database, vhost) = servers().await;
    let folder = folder.with("RABBITMQ_MANAGEMENT_URL", &vhost.management_url);
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    discarded_in_its_queue(&folder).await;
}
