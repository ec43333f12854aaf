//! SIGHUP: what is in force at once, and what waits for a restart.

use std::time::Duration;

use postrider_testkit::receiver::{Receiver, Reply};
use rustix::process::Signal;

use super::process::{Folder, Serving};

fn configure(folder: &Folder, url: &str, http: &str) {
    folder.write(
        "postrider.toml",
        &format!(
            "[egress]\nallow = ['127.0.0.1', 'http']\n[http]\n{http}\n\
             [[push]]\nname = 'mail'\nkeys = ['shop.order.*']\nurl = '{url}'\n"
        ),
    );
}

fn publish(serving: &Serving) -> u16 {
    serving.post_event(&[], r#"{"type":"shop.order.placed","data":{}}"#).0
}

/// Publishes until the endpoint has got something: a consumer that changes takes a second or so.
async fn until_called(serving: &Serving, endpoint: &Receiver) {
    for _ in 0..600 {
        assert_eq!(publish(serving), 202);
        if !endpoint.requests().is_empty() {
            return;
        }
        tokio::time::timeout(Duration::from_millis(100), std::future::pending::<()>()).await.unwrap_err();
    }
    panic!("the endpoint was not called");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_changes_limits_and_endpoints_while_everything_runs() {
    let (before, after) =
        (Receiver::start(|_, _| Reply::status(200)).await, Receiver::start(|_, _| Reply::status(200)).await);
    let folder = Folder::new();
    configure(&folder, &before.url(), "");
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    until_called(&serving, &before).await;
    assert_eq!(serving.http("GET", "/v1/metrics", &[], "").0, 200);

    configure(&folder, &after.url(), "requests_per_second = 3\nmetrics_token = 'm'\nmax_connections = 99");
    serving.signal(Signal::HUP);
    serving.wait_for("in force now: http.metrics_token, http.requests_per_second, push");
    serving.wait_for("in use after a restart: http.max_connections");
    until_called(&serving, &after).await;
    assert_eq!(serving.http("GET", "/v1/metrics", &[], "").0, 401);
    assert_eq!(serving.http("GET", "/v1/metrics", &[("x-metrics-token", "m")], "").0, 200);
    let limited = (0..40).any(|_| serving.http("GET", "/v1/consumers", &[], "").0 == 429);
    assert!(limited, "three a second");

    // A mistake changes nothing; then nothing can be changed any more.
    configure(&folder, "not a url", "read_only = true");
    serving.signal(Signal::HUP);
    serving.wait_for("not reloaded, everything stays as it is");
    assert_eq!(publish(&serving), 202);
    configure(&folder, &after.url(), "read_only = true");
    serving.signal(Signal::HUP);
    let told = serving.wait_for("in force now: http.metrics_token, http.read_only, http.requests_per_second");
    assert!(!told.contains("push"), "what was only moved has not changed: {told}");
    assert_eq!(publish(&serving), 403);
}

/// A collector of logs reads every line, also those that are said before anything is logged and after.
#[test]
fn with_the_log_in_json_every_line_is() {
    let folder = Folder::new();
    folder.write("postrider.toml", "[log]\nformat = 'json'\n");
    let mut serving = folder.start(&["serve", "--listen", "127.0.0.1:0"]);
    serving.wait_for("\"message\":\"serving ");
    serving.signal(Signal::HUP);
    serving.wait_for("reloaded");
    folder.write("postrider.toml", "[log]\nformat = 'json'\n[http]\nlisten = 'nowhere'\n");
    serving.signal(Signal::HUP);
    serving.wait_for("not reloaded");
    serving.signal(Signal::TERM);
    let (code, said) = serving.ended();
    assert_eq!(code, 0, "{said:#?}");
    let lines: Vec<serde_json::Value> = said
        .iter()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    for line in &lines {
        let time = line["timestamp"].as_str().unwrap_or_default();
        assert!(line["level"].is_string() && line["message"].is_string() && time.ends_with('Z'), "{line}");
    }
    let told: Vec<_> = lines.iter().filter_map(|line| line["message"].as_str()).collect();
    for begin in ["using ", "listening on http://", "serving ", "dashboard at ", "stopping: ", "stopped"] {
        assert!(told.iter().any(|message| message.starts_with(begin)), "{begin}: {told:#?}");
    }
    // One that cannot start says so in the same form.
    folder.write("postrider.toml", "[log]\nformat = 'json'\n[ledger]\n");
    let failed = folder.run(&["serve", "--roles", "ledger"]);
    let last: serde_json::Value = serde_json::from_str(failed.err.lines().last().unwrap()).unwrap();
    assert_eq!((failed.code, &last["level"]), (2, &serde_json::json!("ERROR")), "{last}");
}
