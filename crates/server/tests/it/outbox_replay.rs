//! Published events sent again on the command line.

use std::time::Duration;

use postrider::Clock;
use postrider::postgres::{Postgres, PostgresConfig};
use postrider::sqlite::{Sqlite, SqliteConfig};
use postrider::store::{Archive, Backend, HouseRules, RelayId};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::process::Folder;

const QUEUES: &str = "[[queue]]\nname = 'billing'\nbind = ['shop.order.*']\n[[queue]]\nname = 'late'\n";

/// Orders of all times.
const RANGE: [&str; 8] =
    ["outbox", "replay", "--aggregate-type", "shop.order", "--from", "1h", "--to", "2999-01-01T00:00:00Z"];

#[test]
fn a_replay_is_planned_then_run_and_reaches_the_queue_it_names() {
    let folder = Folder::new().with("USER", "ada");
    folder.write("postrider.toml", QUEUES);
    let replay = |more: &[&str]| folder.run(&[&RANGE[..], more].concat());
    for id in ["one", "two"] {
        folder.run(&["publish", "shop.order.placed", "--data", "{}", "--id", id]).assert(0, "");
    }
    replay(&["--yes"]).assert(0, "no published event matches");
    let serving = folder.serve(&[]);
    serving.wait_for_metric("postrider_relay_published_total 2");

    replay(&["--to-queue", "late"]).assert(2, "add --yes");
    replay(&["--to-queue", "nowhere", "--yes"]).assert(1, "there is no queue nowhere");
    replay(&["--type", "shop.bill.paid", "--yes"]).assert(2, "not of the aggregate type");
    replay(&["--rate", "0", "--yes"]).assert(2, "above 0");
    let plan =
        replay(&["--type", "shop.order.placed", "--limit", "1", "--dry-run", "--json"]).assert(0, "").json();
    assert_eq!((&plan["events"], &plan["total"], &plan["forgotten"]), (&json!(2), &json!(1), &json!([])));
    replay(&["--to-queue", "late", "--reason", "new service", "--yes"]).assert(0, "2 done");
    serving.wait_for_metric("postrider_relay_published_total 4");
    replay(&["--reapply", "--yes"]).assert(0, "apply it once more");
    serving.wait_for_metric("postrider_relay_published_total 6");

    let trace = folder.run(&["event", "trace", "one", "--json"]).assert(0, "").json();
    assert!(trace.to_string().contains("\"late\""), "{trace}");
    let operations = folder.run(&["ops", "ls", "--json"]).assert(0, "").json();
    assert!(operations.to_string().contains("replay_outbox"), "{operations}");
    serving.signal(Signal::TERM);
    assert_eq!(serving.ended().0, 0);

    let swapped = ["outbox", "replay", "--aggregate-type", "a", "--from", "1h", "--to", "2h"];
    folder.run(&swapped).assert(2, "must be before");
}

/// What is in archive files is sent again; the process that does it is killed on the way, and another goes on with exactly the rest.
async fn goes_on_after_a_kill<S: Backend>(folder: &Folder, store: impl AsyncFn() -> S, events: usize) {
    let lines: Vec<_> =
        (0..events).map(|n| format!(r#"{{"type":"shop.order.placed","id":"e{n}","data":{{}}}}"#)).collect();
    let serving = folder.serve(&[]);
    let body = format!("[{}]", lines.join(","));
    assert_eq!(
        serving.http("POST", "/v1/events:batch", &[("content-type", "application/json")], &body).0,
        202
    );
    serving.wait_for_metric(&format!("postrider_relay_published_total {events}"));
    serving.signal(Signal::TERM);
    assert_eq!(serving.ended().0, 0);
    let (archive, clock) = (Archive::Files(folder.path().join(".postrider/archive")), Clock::system());
    let rules = HouseRules { keep: Duration::ZERO, archive, ..HouseRules::default() };
    let kept = store().await.keep_house(&RelayId::of_process(&clock), &rules).await.unwrap().unwrap();
    assert_eq!(kept.archived, events as u64);

    let plan = folder.run(&[&RANGE[..], &["--dry-run", "--json"]].concat()).assert(0, "").json();
    assert_eq!((&plan["in_files"], &plan["live"]), (&json!(events), &json!(0)));
    let replaying = folder.start(&[&RANGE[..], &["--rate", "8", "--yes", "--quiet"]].concat());
    let operation = |state: &dyn Fn(&Value) -> bool| {
        for _ in 0..600 {
            let found = folder.run(&["ops", "ls", "--json"]).json()[0].clone();
            if state(&found) {
                return found;
            }
            std::thread::park_timeout(Duration::from_millis(100));
        }
        panic!("the operation did not come so far");
    };
    operation(&|found| found["done"].as_u64() > Some(0));
    replaying.signal(Signal::KILL);
    drop(replaying);
    let left = operation(&|found| found["done"].as_u64() > Some(0));
    assert!(left["done"].as_u64() < Some(events as u64), "the kill was to come before the end: {left}");
    // The files may be gone by now.
    std::fs::remove_dir_all(folder.path().join(".postrider/archive")).unwrap();
    let serving = folder.serve(&[]);
    let done = operation(&|found| found["state"] == "done");
    assert_eq!((&done["done"], &done["skipped"]), (&json!(events), &json!(0)));
    for _ in 0..600 {
        let status = folder.run(&["outbox", "status", "--json"]).json();
        if status["due"] == 0 {
            break;
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
    let rows = folder.run(&["outbox", "ls", "--limit", "200", "--json"]).assert(0, "").json();
    assert_eq!(rows.as_array().unwrap().len(), events, "each was sent again once: {rows}");
    drop(serving);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_from_files_goes_on_after_a_kill_on_the_embedded_default() {
    let folder = Folder::new();
    folder.write("postrider.toml", QUEUES);
    let path = folder.path().join(".postrider/postrider.db");
    let store = async || Sqlite::open(SqliteConfig::new(&path), Clock::system()).await.unwrap();
    goes_on_after_a_kill(&folder, store, 24).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_from_files_goes_on_after_a_kill_on_postgresql() {
    let (folder, database, _vhost) = super::networked::servers().await;
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    let store =
        async || Postgres::connect(PostgresConfig::new(&database.url), Clock::system()).await.unwrap();
    goes_on_after_a_kill(&folder, store, 24).await;
}
