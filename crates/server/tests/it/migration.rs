//! `postrider migration` as docs/migration.md has it, and `/v1/migrations`.

use std::time::Duration;

use postrider::broker::Removal;
use postrider::rabbitmq::{RabbitMq, RabbitMqConfig};
use postrider::topology::{BindingKey, ExchangeKind, ExchangeName, QueueName, Topology};
use postrider::{Broker as _, Clock};
use serde_json::{Value, json};

use super::networked::servers;
use super::process::{Folder, Serving};

pub(crate) const CONFIG: &str = r#"
[topology]
preset = "smap"

[migration]
legacy_template = '{"to": "/data/email", "code": "/data/code", "message_id": "$id"}'
"#;

const EMAIL: &str = r#"{"data": {"email": "ann@example.com", "code": "4711"}, "idempotency_key": "k1"}"#;

fn publish(folder: &Folder) {
    folder.run(&["publish", "email.verification.requested", "--data", EMAIL]).assert(0, "");
}

pub(crate) fn standing(folder: &Folder) -> Value {
    folder.run(&["migration", "status", "--json"]).json()[0].clone()
}

/// Waits until so many copies have arrived.
fn until_copied(folder: &Folder, copies: u64) -> Value {
    for _ in 0..600 {
        let standing = standing(folder);
        if standing["legacy"]["confirmed"] == json!(copies) {
            return standing;
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
    panic!("{copies} copies did not arrive: {}", standing(folder));
}

/// The same, and as many events on the new bus.
fn copied(folder: &Folder, copies: u64) {
    assert_eq!(until_copied(folder, copies)["new"]["confirmed"], json!(copies));
}

/// Publishes for as long as it compares, so that there is something to compare. Returns how many.
fn compare(folder: &Folder) -> u64 {
    std::thread::scope(|scope| {
        let comparing = scope.spawn(|| folder.run(&["migration", "compare", "--for", "3"]));
        let mut published = 0;
        while !comparing.is_finished() {
            publish(folder);
            published += 1;
            std::thread::park_timeout(Duration::from_millis(200));
        }
        comparing.join().unwrap().assert(0, "holds");
        published
    })
}

/// The four weeks.
fn migrates(folder: &Folder, serving: &mut Serving) {
    folder.run(&["migration", "status"]).assert(0, "none was started");
    folder.run(&["migration", "start", "--dry-run"]).assert(0, "would go to smtp_send_email_exc too");
    folder.run(&["migration", "start", "--reason", "we move"]).assert(0, "dual since");
    serving.wait_for("deprecated exchange smtp_send_email_exc");
    folder.run(&["migration", "start"]).assert(1, "there is a migration");
    publish(folder);
    copied(folder, 1);
    folder.run(&["migration", "cutover"]).assert(3, "never compared");
    folder.run(&["migration", "cutover", "--dry-run"]).assert(3, "never compared");
    let forced = ["migration", "cutover", "--dry-run", "--force", "--reason", "a test"];
    folder.run(&forced).assert(0, "would be overruled: ");
    folder.run(&["migration", "finish", "--dry-run"]).assert(1, "does not follow");
    let (status, _, refused) = serving.http("POST", "/v1/migrations/old-bus/cutover", &[], "");
    assert_eq!((status, refused.contains("parity_not_proven")), (409, true), "{refused}");

    let both = 1 + compare(folder);
    copied(folder, both);
    folder.run(&["migration", "cutover", "--dry-run"]).assert(0, "parity is proven");
    folder.run(&["migration", "cutover", "--reason", "parity is proven"]).assert(0, "cutover since");
    publish(folder);
    folder.run(&["migration", "rollback"]).assert(0, "dual since");
    folder.run(&["migration", "status"]).assert(0, "that was in an earlier phase");
    // What went to the new bus alone is copied.
    until_copied(folder, both + 1);
    folder.run(&["migration", "cutover", "--force"]).assert(2, "--reason");
    folder.run(&["migration", "cutover", "--force", "--reason", "no time"]).assert(0, "overruled");
    folder.run(&["migration", "finish"]).assert(2, "add --yes");
    folder.run(&["migration", "finish", "--yes"]).assert(3, &format!("messages: {},", both + 1));
}

#[test]
fn a_migration_goes_through_its_phases_on_the_embedded_default() {
    let folder = Folder::new();
    folder.write("postrider.toml", CONFIG);
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    migrates(&folder, &mut serving);
    let (status, _, shown) = serving.http("GET", "/v1/migrations/old-bus", &[], "");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((status, &shown["phase"], &shown["settled"]), (200, &json!("cutover"), &json!(true)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_goes_through_its_phases_on_servers() {
    let (folder, _database, _vhost) = servers().await;
    folder.write("postrider.toml", CONFIG);
    folder.run(&["db", "migrate"]).assert(0, "applied");
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    migrates(&folder, &mut serving);
}

/// Of two relays on one database one streams and has every slot; the other waits, and obeys each phase all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_only_stands_by_obeys_too() {
    let (folder, _database, _vhost) = servers().await;
    folder.write("postrider.toml", CONFIG);
    folder.run(&["db", "migrate"]).assert(0, "applied");
    let mut streams = folder.serve(&[]);
    streams.wait_for("the relay streams");
    let mut waits = folder.serve(&[]);
    waits.wait_for("serving");
    folder.run(&["migration", "start"]).assert(0, "dual since");
    waits.wait_for("deprecated exchange smtp_send_email_exc");
    let settled = until(&folder, "settling", |standing| standing["settled"] == true);
    assert_eq!(settled["relays"].as_array().map(Vec::len), Some(2), "{settled}");
    compare(&folder);
    until(&folder, "the last copy", |standing| standing["legacy"]["pending"] == 0);
    folder.run(&["migration", "cutover"]).assert(0, "cutover since");
    until(&folder, "settling", |standing| standing["settled"] == true);
}

#[test]
fn the_variable_starts_it_once_and_the_stored_phase_decides() {
    let folder = Folder::new().with("ENABLE_DUAL_PUBLISH", "true");
    folder.write("postrider.toml", CONFIG);
    let mut serving = folder.serve(&[]);
    serving.wait_for("deprecated exchange smtp_send_email_exc");
    assert_eq!(standing(&folder)["phase"], "dual");
    folder.run(&["migration", "cutover", "--force", "--reason", "test"]).assert(0, "cutover");
    drop(serving);
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    assert_eq!(standing(&folder)["phase"], "cutover");
    drop(serving);
    // Nobody serves: the command does it itself, and what is gone is not declared again.
    folder.run(&["migration", "finish", "--yes"]).assert(0, "are gone");
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    publish(&folder);
    folder.run(&["migration", "start"]).assert(1, "there is no queue");
    // Who does not say from where is told that nothing comes of it.
    let nowhere = Folder::new().with("ENABLE_DUAL_PUBLISH", "true");
    let said = nowhere.serve(&[]).said().concat();
    assert!(said.contains("no old exchange is named"), "{said}");
}

/// Waits until the migration says so.
pub(crate) fn until(folder: &Folder, what: &str, so: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..600 {
        let standing = standing(folder);
        if so(&standing) {
            return standing;
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
    panic!("{what} did not happen: {}", standing(folder));
}

pub(crate) fn post(serving: &Serving, path: &str, body: &Value) -> (u16, Value) {
    let (status, _, answer) = serving.http("POST", path, &[], &body.to_string());
    (status, serde_json::from_str(&answer).unwrap_or(Value::Null))
}

/// Waits for the operation that an answer names.
pub(crate) fn carried_out(serving: &Serving, (status, asked): (u16, Value), meanwhile: impl Fn()) -> Value {
    assert_eq!(status, 202, "{asked}");
    let path = format!("/v1/operations/{}", asked["operation"].as_str().unwrap());
    for _ in 0..600 {
        let operation: Value = serde_json::from_str(&serving.http("GET", &path, &[], "").2).unwrap();
        if !matches!(operation["state"].as_str(), Some("planned" | "running")) {
            return operation;
        }
        meanwhile();
        std::thread::park_timeout(Duration::from_millis(100));
    }
    panic!("{path} is not over");
}

/// Both buses are compared, the phases are changed and what is still in use is kept, each by a request.
fn migrates_over_http(folder: &Folder) {
    folder.write("postrider.toml", CONFIG);
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let (status, started) = post(&serving, "/v1/migrations", &json!({ "reason": "we move" }));
    assert_eq!((status, &started["phase"]), (201, &json!("dual")), "{started}");
    until(folder, "settling", |standing| standing["settled"] == true);
    let asked = post(&serving, "/v1/migrations/old-bus/compare", &json!({ "listen_ms": 2000 }));
    let compared = carried_out(&serving, asked, || publish(folder));
    assert_eq!(compared["state"], "done", "{compared}");
    let parity = until(folder, "a report", |standing| !standing["parity"].is_null())["parity"].clone();
    assert!(parity["holds"] == true && parity["compared"].as_u64() > Some(0), "{parity}");
    until(folder, "the last copy", |standing| standing["legacy"]["pending"] == 0);
    let (status, cut) = post(&serving, "/v1/migrations/old-bus/cutover", &json!({ "reason": "proven" }));
    assert_eq!((status, &cut["phase"]), (200, &json!("cutover")), "{cut}");
    // Nobody has consumed the copies.
    until(folder, "settling", |standing| standing["settled"] == true);
    let refused = carried_out(&serving, post(&serving, "/v1/migrations/old-bus/finish", &json!({})), || {});
    assert!(
        refused["state"] == "failed" && refused["error"].as_str().unwrap().contains("messages"),
        "{refused}"
    );
    assert_eq!(standing(folder)["phase"], "cutover");
}

#[test]
fn a_migration_goes_through_its_phases_over_http() {
    migrates_over_http(&Folder::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_goes_through_its_phases_over_http_on_servers() {
    let (folder, _database, _vhost) = servers().await;
    folder.run(&["db", "migrate"]).assert(0, "applied");
    migrates_over_http(&folder);
}

/// Who waits for it is told so, and the next one need not wait until its time is over.
#[test]
fn a_comparison_that_is_cancelled_ends() {
    let folder = Folder::new();
    folder.write("postrider.toml", CONFIG);
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    folder.run(&["migration", "start"]).assert(0, "dual since");
    let comparing = folder.start(&["migration", "compare", "--for", "3600"]);
    let running = || {
        let newest = folder.run(&["ops", "ls", "--json"]).json()[0].clone();
        (newest["state"] == "running").then(|| newest["id"].as_str().unwrap().to_owned())
    };
    let mut operation = running();
    while operation.is_none() {
        std::thread::park_timeout(Duration::from_millis(100));
        operation = running();
    }
    folder.run(&["ops", "cancel", &operation.unwrap(), "--yes"]).assert(0, "cancelled");
    assert_eq!(comparing.ended().0, 1);
    folder.run(&["migration", "compare", "--for", "1"]).assert(3, "nothing is proven");
}

/// Every publish is too slow here: copies are turned off, the new bus goes on, and a rollback makes up for them.
#[test]
fn copies_that_take_too_long_are_turned_off_and_made_up_for() {
    let folder = Folder::new();
    folder.write("postrider.toml", &format!("{CONFIG}on_latency = 'disable'\nwarn_ms = 0\nlimit_ms = 0\n"));
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    folder.run(&["migration", "start"]).assert(0, "dual since");
    let mut published = 0;
    while standing(&folder)["phase"] != "suspended" {
        publish(&folder);
        published += 1;
        assert!(published < 500, "it was never too slow: {}", standing(&folder));
    }
    until(&folder, "every relay obeying", |standing| standing["settled"] == true);
    publish(&folder);
    published += 1;
    serving.wait_for_metric(&format!("postrider_relay_published_total {published}"));
    let copied = standing(&folder)["legacy"]["confirmed"].as_u64().unwrap();
    assert!(copied < published, "{copied} of {published}");
    folder.run(&["migration", "rollback", "--reason", "the old bus is fast again"]).assert(0, "dual since");
    until_copied(&folder, published);
}

/// An old bus that refuses holds its event up, which the new bus has once and no more often.
#[test]
fn an_event_is_published_only_when_the_old_bus_has_it_too_if_asked() {
    let folder = Folder::new();
    let config = "[outbox]\nexchange = 'shop.events'\n[relay]\nbackoff_base_ms = 200\nbackoff_max_ms = 500\n\
        [migration]\nlegacy_exchange = 'old'\nblock_on_legacy = true\n\
        [[exchange]]\nname = 'old'\nkind = 'fanout'\nalternate = ''\n\
        [[queue]]\nname = 'billing'\nbind = ['shop.order.*']\n[[consumer]]\nname = 'billing'\n";
    folder.write("postrider.toml", config);
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    folder.run(&["migration", "start"]).assert(0, "dual since");
    folder.run(&["publish", "shop.order.placed", "--data", "{}", "--id", "evt_1"]).assert(0, "");
    let held_up = until(&folder, "a refusal", |standing| standing["legacy"]["failed"] == 1);
    assert_eq!(held_up["new"]["confirmed"], 1, "{held_up}");
    let row = folder.run(&["outbox", "show", "evt_1", "--json"]).json();
    assert_eq!(row["status"], "failed", "{row}");
    drop(serving);
    // The old bus has a queue again.
    folder.write("postrider.toml", &format!("{config}[[queue]]\nname = 'old-mail'\nbind = ['old:']\n"));
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    until_copied(&folder, 1);
    until(&folder, "both", |standing| standing["new"]["confirmed"] == 1);
    let consumers = folder.run(&["consumers", "ls", "--json"]).json();
    assert_eq!(consumers[0]["ready"], 1, "the new bus has it once: {consumers}");
}

/// Both consumers are of the configuration, with one inbox: what the old one has done, the new one is not given.
#[test]
fn an_old_and_a_new_consumer_work_side_by_side_from_the_configuration() {
    let folder = Folder::new();
    let both = "[[consumer]]\nname = 'smtp'\nqueue = 'smtp_send_email_v2'\n\
        [[consumer]]\nname = 'smtp-legacy'\nqueue = 'smtp_send_email'\ninbox = 'smtp'\n";
    folder.write("postrider.toml", &format!("{CONFIG}{both}"));
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    folder.run(&["migration", "start"]).assert(0, "dual since");
    publish(&folder);
    copied(&folder, 1);
    let lease = |queue: &str, wait_ms: u32| {
        let path = format!("/v1/queues/{queue}/deliveries");
        let (status, given) = post(&serving, &path, &json!({ "wait_ms": wait_ms }));
        assert_eq!(status, 200, "{given}");
        given["deliveries"].clone()
    };
    let old = lease("smtp_send_email", 20_000);
    assert_eq!(old[0]["data"]["to"], "ann@example.com", "{old}");
    let leases = json!({ "leases": [old[0]["lease"]] });
    let (_, told) = post(&serving, "/v1/queues/smtp_send_email/deliveries:ack", &leases);
    assert_eq!(told["settled"].as_array().unwrap().len(), 1, "{told}");
    serving.wait_for_metric("postrider_consumer_applied_total{consumer=\"smtp-legacy\"} 1");
    assert_eq!(lease("smtp_send_email_v2", 500), json!([]));
    serving.wait_for_metric("postrider_consumer_duplicates_total{consumer=\"smtp\"} 1");
}

/// The old exchange is gone: copies fail, are counted and shown apart, and the new bus goes on. When it is there again, they arrive.
/// Everything is slower than the limits here, which is said and changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_bus_that_is_gone_holds_up_nothing() {
    let (folder, _database, vhost) = servers().await;
    let config =
        format!("{CONFIG}warn_ms = 0\nlimit_ms = 0\n[relay]\nbackoff_base_ms = 200\nbackoff_max_ms = 500\n");
    folder.write("postrider.toml", &config);
    folder.run(&["db", "migrate"]).assert(0, "applied");
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    folder.run(&["migration", "start"]).assert(0, "dual since");
    let broker = RabbitMq::connect(RabbitMqConfig::new(&vhost.amqp_url), Clock::system()).await.unwrap();
    let old = ExchangeName::new("smtp_send_email_exc").unwrap();
    let gone = Removal { exchanges: vec![old.clone()], ..Removal::default() };
    broker.remove(&gone).await.unwrap();
    let event = format!(r#"{{"type": "email.verification.requested", "data": {EMAIL}}}"#);
    for number in 1..=30 {
        assert_eq!(serving.post_event(&[], &event).0, 202);
        // One by one, so that there are enough batches for their slowest to count.
        serving.wait_for_metric(&format!("postrider_relay_published_total {number}"));
    }
    let failing = until(&folder, "a failed copy", |standing| standing["legacy"]["failed"].as_u64() > Some(0));
    assert_eq!((&failing["new"]["confirmed"], &failing["legacy"]["confirmed"]), (&json!(30), &json!(0)));
    assert!(failing["legacy_error"].as_str().unwrap().contains("smtp_send_email_exc"), "{failing}");
    folder.run(&["migration", "cutover"]).assert(3, "copies have not reached the old bus");
    let (_, _, metrics) = serving.http("GET", "/v1/metrics", &[], "");
    let failed =
        metrics.lines().find_map(|line| line.strip_prefix("postrider_migration_legacy_failed_total "));
    assert!(failed.unwrap().parse::<u64>().unwrap() >= 30, "{metrics}");

    let queue = QueueName::new("smtp_send_email").unwrap();
    let back = Topology::default().exchange(old.clone(), ExchangeKind::Fanout).bind(
        old,
        queue.clone(),
        BindingKey::new("").unwrap(),
    );
    broker.declare(&back).await.unwrap();
    until_copied(&folder, 30);
    assert_eq!(broker.depth(&queue).await.unwrap(), 30);
    let (_, _, metrics) = serving.http("GET", "/v1/metrics", &[], "");
    for path in ["new", "legacy"] {
        let bucket = format!("event_publish_duration_seconds_bucket{{path=\"{path}\",le=\"0.1\"}}");
        assert!(metrics.contains(&bucket), "{path}: {metrics}");
    }
    serving.wait_for("takes long");
    assert_eq!(standing(&folder)["phase"], "dual", "`warn` only says so");
}
