//! The alerts that are generated, by Prometheus's own tool, and the metrics of a running server by the page that lists them.

use std::collections::BTreeSet;
use std::process::Command;

use super::networked::servers;
use super::process::Folder;

fn promtool(folder: &Folder, args: &[&str]) -> String {
    let ran = Command::new("promtool").args(args).current_dir(folder.path()).output();
    let ran = ran.unwrap_or_else(|error| panic!("promtool: {error}; scripts/install-servers installs it"));
    let said = [ran.stdout, ran.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(ran.status.success(), "{said}");
    said
}

/// Series over time, and which alerts they raise when: those that wake somebody up, and one that must not.
const CASES: &str = include_str!("alerts.yaml");

#[test]
fn prometheus_takes_the_rules_and_raises_them_when_it_should() {
    let folder = Folder::new();
    let rules =
        folder.run(&["generate", "alerts", "--runbooks", "https://example.com/runbooks/"]).assert(0, "").out;
    assert!(rules.contains("https://example.com/runbooks/PostriderOutboxBehind.md"), "{rules}");
    folder.write("rules.yaml", &rules);
    promtool(&folder, &["check", "rules", "rules.yaml"]);
    folder.write("cases.yaml", CASES);
    promtool(&folder, &["test", "rules", "cases.yaml"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_running_server_measures_is_on_the_page() {
    let (folder, _database, _vhost) = servers().await;
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    assert_eq!(serving.post_event(&[], r#"{"type":"shop.order.placed","data":{}}"#).0, 202);
    serving.wait_for_metric("postrider_relay_published_total 1");
    serving.wait_for_metric(r#"postrider_up{part="broker"} 1"#);
    serving.wait_for_metric(r#"postrider_consumer_lag_messages{consumer="billing"} 1"#);
    // What alerts watch grow is there before it grows.
    serving.wait_for_metric(r#"postrider_dead_letters_open{queue="billing"} 0"#);
    serving.wait_for_metric("postrider_outbox_housekeeping_failed_total 0");

    let page = folder.run(&["generate", "metrics"]).assert(0, "").out;
    let listed: BTreeSet<_> = page.lines().filter_map(|line| line.split('`').nth(1)).collect();
    let (_, _, text) = serving.http("GET", "/v1/metrics", &[], "");
    let types: Vec<_> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    assert!(types.len() > 15, "{text}");
    for name in types {
        assert!(listed.contains(name), "{name} is not on the page");
        assert!(text.contains(&format!("# HELP {name} ")), "{name} says nothing of itself");
    }
    promtool_reads(&folder, &text);
}

/// An alert about a consumer begins with its first conflict, and ends with the consumer.
#[test]
fn a_consumer_is_there_before_anything_happens_and_is_not_paused_once_it_is_gone() {
    let folder = Folder::new();
    folder.write("postrider.toml", "[egress]\nallow = ['127.0.0.1', 'http']\n");
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let push = |args: &[&str]| {
        folder.run(&[&["push"], args, &["--reason", "a test"]].concat()).assert(0, "");
    };
    push(&["add", "erp", "--url", "http://127.0.0.1:1/", "--keys", "shop.*"]);
    serving.wait_for_metric(r#"postrider_consumer_dead_total{consumer="erp",reason="conflict"} 0"#);
    push(&["pause", "erp"]);
    serving.wait_for_metric(r#"postrider_consumer_paused{consumer="erp"} 1"#);
    push(&["rm", "erp", "--yes"]);
    serving.wait_for_metric(r#"postrider_consumer_paused{consumer="erp"} 0"#);
}

/// Prometheus reads the text as we mean it.
fn promtool_reads(folder: &Folder, text: &str) {
    folder.write("metrics.txt", text);
    let check = format!("promtool check metrics < '{}'", folder.path().join("metrics.txt").display());
    let ran = Command::new("sh").args(["-c", &check]).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    // 3 is advice about names; what cannot be read is 1.
    assert!(matches!(ran.status.code(), Some(0 | 3)), "{said}");
}
