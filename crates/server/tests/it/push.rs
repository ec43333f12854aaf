//! Push and pull of a running `serve`: subscriptions of the configuration, the command line and the API.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postrider_testkit::receiver::{Receiver, Reply, Request};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::networked::servers;
use super::process::{Folder, Serving};

const JSON: (&str, &str) = ("content-type", "application/json");
const CLOUD_EVENT: (&str, &str) = ("content-type", "application/cloudevents+json");

fn config(url: &str) -> String {
    format!(
        "[egress]\nallow = ['127.0.0.1', 'http']\n[[queue]]\nname = 'billing'\nbind = ['shop.order.*']\n\
         [queue.retry]\nmax_retries = 1\ndelays = ['50ms']\n[[queue]]\nname = 'jobs'\nbind = ['shop.job.*']\n\
         [[push]]\nname = 'billing'\nqueue = 'billing'\nurl = '{url}'\n\
         secrets = ['whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw']\n"
    )
}

pub(super) fn ask(serving: &Serving, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let text = if body.is_null() { String::new() } else { body.to_string() };
    let (status, _, answer) = serving.http(method, path, &[JSON], &text);
    (status, serde_json::from_str(&answer).unwrap_or(Value::Null))
}

pub(super) async fn until(mut so: impl FnMut() -> bool) {
    for _ in 0..600 {
        if so() {
            return;
        }
        tokio::time::timeout(Duration::from_millis(100), std::future::pending::<()>()).await.unwrap_err();
    }
    panic!("it did not come about");
}

fn by_status(request: &Request, _: usize) -> Reply {
    Reply::status(request.header("x-aggregate-id").parse().unwrap_or(200))
}

async fn pushed_by_configuration(folder: &Folder) {
    let receiver = Receiver::start(by_status).await;
    folder.write("postrider.toml", &config(&receiver.url()));
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    for (id, status) in [("evt_1", "200"), ("evt_2", "500"), ("evt_3", "404")] {
        let event = json!({"type": "shop.order.placed", "data": {}, "id": id, "aggregate_id": status});
        assert_eq!(ask(&serving, "POST", "/v1/events", &event).0, 202);
    }
    let dead = || folder.run(&["dlq", "ls", "--json"]).json()["letters"].clone();
    until(|| dead().as_array().is_some_and(|letters| letters.len() == 2)).await;
    let calls = |id: &str| receiver.requests().iter().filter(|one| one.header("webhook-id") == id).count();
    assert_eq!([calls("evt_1"), calls("evt_2"), calls("evt_3")], [1, 2, 1]);
    assert!(receiver.requests().iter().all(|one| one.header("webhook-signature").starts_with("v1,")));

    let tried = || folder.run(&["push", "attempts", "billing", "--event", "evt_2", "--json"]).json();
    until(|| tried().as_array().is_some_and(|attempts| attempts.len() == 2)).await;
    assert_eq!((&tried()[0]["attempt"], &tried()[0]["status"]), (&json!(2), &json!(500)));
    let (_, attempts) =
        ask(&serving, "GET", "/v1/subscriptions/billing/attempts?event_id=evt_2", &Value::Null);
    assert_eq!(attempts["attempts"].as_array().map(Vec::len), Some(2), "{attempts}");
    let report = folder.run(&["audit", "--json"]).assert(0, "").json();
    let row = &report["consumers"][0];
    assert_eq!(
        (&row["committed"], &row["applied"], &row["dead"]),
        (&json!(3), &json!(1), &json!(2)),
        "{report}"
    );

    folder.run(&["push", "test", "billing"]).assert(0, "took it: 200");
    folder.run(&["push", "pause", "billing", "--reason", "moving"]).assert(0, "done");
    let rows = folder.run(&["push", "ls", "--json"]).assert(0, "paused");
    assert!(!rows.out.contains("MfKQ9r8GKYqr"), "{}", rows.out);
    folder.run(&["push", "resume", "billing"]).assert(0, "done");
    folder.run(&["push", "rotate-secret", "billing"]).assert(1, "of the configuration");
    folder.run(&["push", "pause", "nobody"]).assert(1, "no push subscription nobody");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_of_the_configuration_on_the_embedded_default() {
    // A proxy of the environment is not asked: through it a request would reach what the checks refuse.
    let proxies = ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"];
    let nobody = |folder: Folder, name: &&str| folder.with(name, "http://127.0.0.1:9");
    pushed_by_configuration(&proxies.iter().fold(Folder::new(), nobody)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_of_the_configuration_on_real_servers() {
    let (folder, _database, _vhost) = servers().await;
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    pushed_by_configuration(&folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_is_made_over_the_api_and_its_secret_shown_once() {
    let receiver = Receiver::start(|_, _| Reply::status(200)).await;
    let folder = Folder::new();
    folder.write("postrider.toml", &config(&receiver.url()));
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let new = json!({"name": "erp", "url": receiver.url(), "keys": ["shop.refund.*"], "form": "cloudevents",
        "headers": {"authorization": "Bearer hidden"}, "timeout": "2s"});
    let (status, made) = ask(&serving, "POST", "/v1/subscriptions", &new);
    let secret = made["secret"].as_str().unwrap().to_owned();
    assert!(status == 201 && secret.starts_with("whsec_") && made["bound"] == true, "{made}");
    // At once: it was answered when its queue was bound, so that no event misses it.
    let event = json!({"specversion": "1.0", "type": "shop.refund.paid", "source": "/till/7", "level": 3, "data": {},
        "id": "evt_1"});
    let (status, _, told) = serving.http("POST", "/v1/events", &[CLOUD_EVENT], &event.to_string());
    assert_eq!(status, 202, "{told}");
    assert_eq!(ask(&serving, "POST", "/v1/subscriptions", &new).1["code"], "conflict");
    for path in ["/v1/subscriptions", "/v1/subscriptions/erp"] {
        let (status, _, listed) = serving.http("GET", path, &[], "");
        assert!(status == 200 && listed.contains("authorization"), "{listed}");
        assert!(!listed.contains(&secret) && !listed.contains("hidden"), "{listed}");
    }
    let unsafe_url = json!({"name": "inside", "url": "https://169.254.169.254/latest", "keys": ["a.b"]});
    let (status, problem) = ask(&serving, "POST", "/v1/subscriptions", &unsafe_url);
    assert_eq!((status, problem["code"].as_str()), (422, Some("invalid_request")), "{problem}");
    assert_eq!(ask(&serving, "GET", "/v1/subscriptions/nobody", &Value::Null).0, 404);
    // Nor may one take what goes to others.
    for (name, from, told) in [
        ("jobs", json!({"keys": ["a.b"]}), "there is a queue jobs already"),
        ("orders", json!({"keys": ["shop.order.*", "shop.ord*"]}), "\"shop.ord*\" matches no event"),
        ("billing.dlq", json!({"keys": ["a.b"]}), "there is a queue billing.dlq already"),
        ("erp.dlq", json!({"keys": ["a.b"]}), "the push subscription erp has a queue erp.dlq"),
        ("crm", json!({"queue": "billing"}), "the push subscription billing takes from the queue billing"),
        (
            "slow",
            json!({"keys": ["a.b"], "retry": {"max_retries": 60, "delays": ["24h"]}}),
            "must be at least 90",
        ),
    ] {
        let mut new = from.clone();
        (new["name"], new["url"]) = (json!(name), json!(receiver.url()));
        let (status, problem) = ask(&serving, "POST", "/v1/subscriptions", &new);
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(status == 422 && detail.contains(told), "{problem}");
    }
    let pulled = ask(&serving, "POST", "/v1/queues/billing/deliveries", &json!({}));
    assert_eq!((pulled.0, &pulled.1["code"]), (409, &json!("conflict")), "{}", pulled.1);

    let refund = |one: &Request| one.header("ce-type") == "shop.refund.paid";
    until(|| receiver.requests().iter().any(refund)).await;
    let sent =
        receiver.requests().into_iter().find(|one| one.header("ce-type") == "shop.refund.paid").unwrap();
    assert_eq!((sent.header("ce-source"), sent.header("ce-level")), ("/till/7", "3"));
    let (_, rotated) =
        ask(&serving, "POST", "/v1/subscriptions/erp/rotate-secret", &json!({"signing": "ed25519"}));
    assert!(rotated["public_key"].as_str().is_some_and(|key| key.starts_with("whpk_")), "{rotated}");
    assert_eq!(rotated["changed_from"], "hmac", "{rotated}");
    let rows = ask(&serving, "GET", "/v1/subscriptions/erp", &Value::Null).1;
    assert_eq!(rows["secrets"], 2);
    let (_, tested) = ask(&serving, "POST", "/v1/subscriptions/erp/test", &Value::Null);
    assert_eq!(tested["taken"], true, "{tested}");
    let sent = receiver.requests().into_iter().find(|one| one.header("ce-type") == "postrider.push.test");
    let signed = sent.unwrap().header("webhook-signature").to_owned();
    assert!(signed.starts_with("v1a,") && signed.contains(" v1,"), "{signed}");
    // Who does not say which kind gets another of the same.
    let (_, rotated) = ask(&serving, "POST", "/v1/subscriptions/erp/rotate-secret", &json!({}));
    assert!(rotated["public_key"].is_string() && rotated.get("secret").is_none(), "{rotated}");
    assert!(rotated.get("changed_from").is_none(), "{rotated}");
    folder.run(&["push", "rotate-secret", "erp"]).assert(0, "whpk_");
    folder
        .run(&["push", "rotate-secret", "erp", "--signing", "hmac"])
        .assert(0, "receivers that know ed25519");
    for (word, state) in [("pause", "paused"), ("resume", "active")] {
        let path = format!("/v1/subscriptions/erp/{word}");
        assert_eq!(ask(&serving, "POST", &path, &json!({"reason": "moving"})).1["changed"], true);
        assert_eq!(ask(&serving, "GET", "/v1/subscriptions/erp", &Value::Null).1["state"], state);
    }
    assert_eq!(serving.http("DELETE", "/v1/subscriptions/erp?reason=moved", &[], "").0, 204);
    let log = ask(&serving, "GET", "/v1/audit-log?action=push.remove", &Value::Null).1;
    assert_eq!(log["entries"][0]["reason"], "moved", "{log}");
    // What was a subscription may be one again.
    assert_eq!(ask(&serving, "POST", "/v1/subscriptions", &new).0, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn made_anew_it_is_called_though_its_endpoint_was_gone() {
    let gone = Arc::new(AtomicBool::new(true));
    let told = gone.clone();
    let endpoint = move |_: &Request, _| Reply::status(if told.load(Ordering::Relaxed) { 410 } else { 200 });
    let receiver = Receiver::start(endpoint).await;
    let folder = Folder::new();
    folder.write("postrider.toml", "[egress]\nallow = ['127.0.0.1', 'http']\n");
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let new = json!({"name": "erp", "url": receiver.url(), "keys": ["shop.refund.*"]});
    assert_eq!(ask(&serving, "POST", "/v1/subscriptions", &new).0, 201);
    let state = || ask(&serving, "GET", "/v1/subscriptions/erp", &Value::Null).1["state"].clone();
    let mut number = 0;
    until(|| {
        number += 1;
        let event = json!({"type": "shop.refund.paid", "data": {}, "id": format!("evt_{number}")});
        assert_eq!(ask(&serving, "POST", "/v1/events", &event).0, 202);
        state() == "paused"
    })
    .await;
    gone.store(false, Ordering::Relaxed);
    assert_eq!(serving.http("DELETE", "/v1/subscriptions/erp", &[], "").0, 204);
    let (status, made) = ask(&serving, "POST", "/v1/subscriptions", &new);
    assert!(status == 201 && made.get("paused_by").is_none(), "{made}");
    until(|| state() == "active").await;
    // What somebody has paused stays so, and whoever makes it anew is told.
    assert_eq!(ask(&serving, "POST", "/v1/subscriptions/erp/pause", &json!({})).0, 200);
    assert_eq!(serving.http("DELETE", "/v1/subscriptions/erp", &[], "").0, 204);
    assert_eq!(ask(&serving, "POST", "/v1/subscriptions", &new).1["paused_by"], "api");
}

/// What the message has of its own, a correction among it, comes to the endpoint.
#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_is_told_of_a_replay_and_gets_corrected_headers() {
    let wanted = |request: &Request, _: usize| {
        let known = request.header("region") == "eu" || request.header("x-replay-count") == "1";
        Reply::status(if known { 200 } else { 404 })
    };
    let receiver = Receiver::start(wanted).await;
    let folder = Folder::new();
    folder.write("postrider.toml", &config(&receiver.url()));
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    for id in ["evt_1", "evt_2"] {
        let event = json!({"type": "shop.order.placed", "data": {}, "id": id});
        assert_eq!(ask(&serving, "POST", "/v1/events", &event).0, 202);
    }
    let dead = || folder.run(&["dlq", "ls", "--json"]).json()["letters"].clone();
    until(|| dead().as_array().is_some_and(|letters| letters.len() == 2)).await;
    assert!(receiver.requests().iter().all(|one| one.header("x-replay-id").is_empty()));
    let edit = ["dlq", "edit", "--all", "--limit", "1", "--set-header", "region=eu", "--yes"];
    folder.run(&edit).assert(0, "1 done");
    until(|| receiver.requests().iter().any(|one| one.header("region") == "eu")).await;
    let sent = receiver.requests().into_iter().find(|one| one.header("region") == "eu").unwrap();
    assert!(sent.header("x-replaces").starts_with("evt_") && sent.header("x-replay-id").is_empty());
    folder.run(&["dlq", "replay", "--all", "--yes"]).assert(0, "1 done");
    until(|| receiver.requests().iter().any(|one| !one.header("x-replay-id").is_empty())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_is_down_is_left_alone_until_a_probe_succeeds() {
    let down = Arc::new(AtomicBool::new(true));
    let told = down.clone();
    let endpoint = move |_: &Request, _| Reply::status(if told.load(Ordering::Relaxed) { 503 } else { 200 });
    let receiver = Receiver::start(endpoint).await;
    let odd = Receiver::start(by_status).await;
    let folder = Folder::new();
    folder.write(
        "postrider.toml",
        &format!(
            "[egress]\nallow = ['127.0.0.1', 'http']\n[[push]]\nname = 'erp'\nkeys = ['shop.order.*']\nurl = '{}'\n\
             retry = {{ max_retries = 50, delays = ['50ms'] }}\n\
             [[consumer]]\nname = 'erp'\nbreaker_failures = 3\nbreaker_pause = '200ms'\nbreaker_max_pause = '200ms'\n\
             [[push]]\nname = 'odd'\nkeys = ['shop.refund.*']\nurl = '{}'\nstatus = {{ 404 = 'ack', 5xx = 'reject' }}\n",
            receiver.url(),
            odd.url()
        ),
    );
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let publish = |id: &str, kind: &str, status: &str| {
        let event = json!({"type": kind, "data": {}, "id": id, "aggregate_id": status});
        assert_eq!(ask(&serving, "POST", "/v1/events", &event).0, 202);
    };
    for number in 0..6 {
        publish(&format!("evt_{number}"), "shop.order.placed", &format!("order-{number}"));
    }
    let state = |path: &str| ask(&serving, "GET", path, &Value::Null).1["state"].clone();
    until(|| state("/v1/subscriptions/erp") == "tripped").await;
    // The overview says so, in its sentence.
    until(|| serving.http("GET", "/dashboard", &[], "").2.contains("erp has stopped taking events")).await;
    down.store(false, Ordering::Relaxed);
    let account = || folder.run(&["audit", "--json"]).json();
    let row = |name: &str| {
        let report = account();
        let rows = report["consumers"].as_array().unwrap().clone();
        rows.into_iter()
            .find(|row| row["consumer"] == name || row["name"] == name)
            .unwrap_or_else(|| panic!("{report}"))
    };
    until(|| row("erp")["applied"] == 6).await;
    assert_eq!(row("erp")["dead"], 0);
    until(|| state("/v1/subscriptions/erp") == "active").await;

    // Rows of a status table of one's own.
    publish("gone", "shop.refund.paid", "404");
    publish("broken", "shop.refund.paid", "500");
    until(|| (row("odd")["applied"].clone(), row("odd")["dead"].clone()) == (json!(1), json!(1))).await;
    assert_eq!(odd.requests().len(), 2, "neither was tried again");
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_lease_settle_and_extend_over_http() {
    let folder = Folder::new();
    folder.write("postrider.toml", &config("http://127.0.0.1:9/"));
    let mut serving = folder.serve(&["--roles", "relay,collector,api"]);
    serving.wait_for("serving");
    let path = "/v1/queues/jobs/deliveries";
    let lease = |body: Value| ask(&serving, "POST", path, &body).1["deliveries"].clone();
    assert_eq!(lease(json!({})), json!([]));
    for number in 1..=3 {
        let event = json!({"type": "shop.job.made", "data": {"n": number}, "id": format!("evt_{number}")});
        assert_eq!(ask(&serving, "POST", "/v1/events", &event).0, 202);
    }
    let mut given = Vec::new();
    while given.len() < 3 {
        let more = lease(json!({"max": 10, "wait_ms": 10_000, "lease_ms": 60_000}));
        given.extend(more.as_array().unwrap().clone());
    }
    assert_eq!((&given[0]["attempt"], &given[0]["type"]), (&json!(1), &json!("shop.job.made")));
    let token = |index: usize| given[index]["lease"].as_str().unwrap().to_owned();
    let say = |word: &str, body: Value| ask(&serving, "POST", &format!("{path}:{word}"), &body);
    assert_eq!(say("extend", json!({"leases": [token(0)], "lease_ms": 120_000})).0, 200);
    let (status, answer) = say("ack", json!({"leases": [token(0), "lease_unknown"]}));
    assert_eq!(
        (status, &answer["settled"], &answer["over"]),
        (200, &json!([token(0)]), &json!(["lease_unknown"]))
    );
    assert_eq!(say("ack", json!({"leases": [token(0)]})).1["code"], "lease_over");
    assert_eq!(say("retry", json!({"leases": [token(1)], "reason": "busy"})).0, 200);
    assert_eq!(say("reject", json!({"leases": [token(2)], "reason": "no such job"})).0, 200);
    let dead = || folder.run(&["dlq", "ls", "--json"]).json()["letters"].clone();
    until(|| dead().as_array().is_some_and(|letters| letters.len() == 1)).await;
    assert_eq!(say("ack", json!({"leases": []})).0, 200);
    assert_eq!(ask(&serving, "POST", "/v1/queues/nowhere/deliveries", &json!({})).1["code"], "not_found");
    assert_eq!(say("extend", json!({"leases": [], "lease_ms": 0})).1["code"], "invalid_request");
    let (status, none) = ask(&serving, "POST", path, &json!({"max": 0}));
    assert_eq!((status, &none["code"]), (422, &json!("invalid_request")));
    assert_eq!(none["detail"], "max is from 1 to 100");
}

/// Another process, as far as the lease can tell.
#[tokio::test(flavor = "multi_thread")]
async fn an_ack_counts_after_a_restart() {
    let folder = Folder::new();
    folder.write("postrider.toml", &config("http://127.0.0.1:9/"));
    let path = "/v1/queues/jobs/deliveries";
    let ask_for_one = json!({"wait_ms": 10_000, "lease_ms": 60_000});
    let mut before = folder.serve(&["--roles", "relay,collector,api"]);
    before.wait_for("serving");
    let publish = |serving: &_, id: &str| {
        let event = json!({"type": "shop.job.made", "data": {}, "id": id});
        assert_eq!(ask(serving, "POST", "/v1/events", &event).0, 202);
    };
    let lease = |serving: &_| loop {
        if let Some(given) = ask(serving, "POST", path, &ask_for_one).1["deliveries"].get(0) {
            return (given["id"].as_str().unwrap().to_owned(), given["lease"].clone());
        }
    };
    publish(&before, "evt_1");
    let (id, token) = lease(&before);
    assert_eq!(id, "evt_1");
    before.signal(Signal::KILL);
    before.ended();

    let mut after = folder.serve(&["--roles", "relay,collector,api"]);
    after.wait_for("serving");
    let say = |word: &str, leases: Value| {
        ask(&after, "POST", &format!("{path}:{word}"), &json!({"leases": leases}))
    };
    let (status, told) = say("retry", json!([token]));
    assert_eq!((status, &told["code"]), (410, &json!("lease_over")), "{told}");
    assert_eq!(say("ack", json!([token])), (200, json!({"settled": [token], "over": []})));
    // It is in front of the second one, and nobody is given it again.
    publish(&after, "evt_2");
    assert_eq!(lease(&after).0, "evt_2");
}

#[test]
fn a_queue_of_a_subscriptions_own_is_part_of_the_topology() {
    let folder = Folder::new();
    let push = "[[push]]\nname = 'mail'\nkeys = ['shop.order.*']\nurl = 'https://example.com/hook'\n";
    folder.write("postrider.toml", push);
    let ran = folder.run(&["publish", "shop.order.placed", "--data", "{}"]).assert(0, "");
    assert!(!ran.err.contains("no queue"), "{ran:?}");
    folder.run(&["topology", "route", "shop.order.placed"]).assert(0, "mail");
    folder.run(&["topology", "render", "--json"]).assert(0, "mail.dlq");
}
