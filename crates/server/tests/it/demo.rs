//! The demo on both backends: its account holds, the audit agrees, and a kill -9 in the middle changes nothing.

use rustix::process::Signal;
use serde_json::Value;

use super::networked::servers;
use super::process::{Folder, Ran};

const QUICK: [&str; 6] = ["demo", "--events", "120", "--rate", "0", "--json"];

/// What one consumer's account says, in the order committed, applied, waiting, dead.
fn account(report: &Value, consumer: &str) -> [u64; 4] {
    let accounts = report["consumers"].as_array().unwrap();
    let account = accounts.iter().find(|account| account["name"] == consumer).unwrap();
    ["committed", "applied", "waiting", "dead"].map(|term| account[term].as_u64().unwrap())
}

/// Everything took effect once, poison is dead, and the audit finds the same in what is stored.
fn assert_whole(folder: &Folder, demo: &Ran) {
    let report = demo.json();
    assert_eq!(report["holds"], true);
    assert_eq!(report.get("doubled_effects"), None, "{report}");
    let audit = folder.run(&["audit", "--json"]).assert(0, "holds").json();
    for consumer in ["billing", "email", "warehouse", "analytics"] {
        let [committed, applied, waiting, dead] = account(&report, consumer);
        assert_eq!((committed, waiting), (applied + dead, 0), "{consumer}: {report}");
        assert_eq!(account(&audit, consumer), [committed, applied, waiting, dead], "{consumer}");
    }
    let [_, _, _, poisoned] = account(&report, "warehouse");
    assert!(poisoned > 0, "no order was poisoned: {report}");
    assert_eq!(
        account(&report, "analytics")[0],
        2 * account(&report, "billing")[0],
        "an invoice for every order"
    );
}

#[test]
fn the_demo_holds_on_the_embedded_default() {
    let folder = Folder::new();
    let demo = folder.run(&QUICK).assert(0, "SQLite file .postrider/postrider.db");
    assert_eq!(account(&demo.json(), "email")[..2], [120, 120]);
    assert_whole(&folder, &demo);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_holds_on_servers() {
    let (folder, _database, _vhost) = servers().await;
    folder.run(&QUICK).assert(1, "run `postrider db migrate`");
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    let demo = folder.run(&QUICK).assert(0, "using PostgreSQL");
    assert_whole(&folder, &demo);
}

#[test]
fn a_demo_that_was_killed_holds_when_it_is_run_again() {
    let folder = Folder::new();
    let mut killed = folder.start(&["demo", "--events", "100000", "--rate", "200", "--json"]);
    // It says how it goes every two seconds; by its second line much is in flight.
    killed.wait_for("orders");
    killed.wait_for("orders");
    killed.signal(Signal::KILL);
    killed.ended();
    let demo = folder.run(&QUICK).assert(0, "");
    let [committed, ..] = account(&demo.json(), "billing");
    assert!(committed > 120, "the killed run left nothing behind: {demo:?}");
    assert_whole(&folder, &demo);
}

#[test]
fn an_interrupted_demo_tells_what_waits_and_ends_with_130() {
    let folder = Folder::new();
    let mut demo = folder.start(&["demo", "--events", "100000", "--rate", "50"]);
    demo.wait_for("orders");
    demo.signal(Signal::INT);
    let (code, _) = demo.ended();
    assert_eq!(code, 130);
    folder.run(&["audit"]).assert(0, "holds");
}

/// With what the shop does, for as long as it goes on.
#[test]
fn the_demo_serves_its_dashboard() {
    let folder = Folder::new().with("POSTRIDER_HTTP__LISTEN", "127.0.0.1:0");
    let mut demo = folder.start(&["demo", "--events", "100000", "--rate", "100"]);
    let line = demo.wait_for("see it in a browser: http://");
    demo.address = line.rsplit("http://").next().unwrap().trim_end_matches("/dashboard").to_owned();
    demo.wait_for("orders");
    for (path, shows) in [
        ("/dashboard", "Overview"),
        ("/dashboard/consumers", "warehouse"),
        ("/dashboard/topology.svg", "billing"),
        ("/dashboard/failures", "Failures"),
        ("/dashboard/style.css", "body"),
        ("/v1/consumers", "analytics"),
    ] {
        let (status, _, page) = demo.http("GET", path, &[], "");
        assert!(status == 200 && page.contains(shows), "{path}: {status} {page}");
    }
    demo.signal(Signal::INT);
    assert_eq!(demo.ended().0, 130);
}

#[test]
fn the_benchmark_gives_ratios_and_a_picture() {
    let folder = Folder::new();
    let few = ["bench", "--only", "relay,embedded", "--keys", "0", "--events", "300", "--rounds", "1"];
    let ran = folder.run(&[&few[..], &["--json", "--svg", "figures.svg"]].concat()).assert(0, "");
    let figures = ran.json()["figures"].as_array().unwrap().clone();
    assert!(figures.len() >= 2, "{figures:?}");
    for figure in &figures {
        let number = |member: &str| figure[member].as_f64().unwrap();
        assert!(number("value") > 0.0 && number("raw") > 0.0, "{figure}");
        assert!(matches!(figure["better"].as_str(), Some("higher" | "lower")), "{figure}");
        assert!(figure.as_object().unwrap().contains_key("target"), "{figure}");
    }
    let picture = std::fs::read_to_string(folder.path().join("figures.svg")).unwrap();
    assert!(picture.contains("<rect"), "{picture}");
    folder.run(&["bench", "--events", "0"]).assert(2, "must be at least 1");
    folder.run(&["bench", "--only", "ledger"]).assert(2, "scripts/bench");
}
