//! What is asked for and is not there: one exit code in every command, so that scripts need not know which one they asked.

use serde_json::{Value, json};

use super::process::Folder;
use super::push::ask;

const NO_ID: &str = "00000000-0000-7000-8000-000000000000";

#[test]
fn what_is_not_there_is_exit_1_in_every_command() {
    let folder = Folder::new();
    let ledger = ["ledger", "--tenant", "acme"];
    folder.run(&[&ledger[..], &["accounts", "init", "--base", "EUR"]].concat()).assert(0, "");
    for asked in [
        &["dlq", "show", "99"][..],
        &["dlq", "replay", "99", "--yes"],
        &["dlq", "discard", "99", "--yes"],
        &["dlq", "edit", "99", "--data", "{}", "--yes"],
        &["ops", "get", NO_ID],
        &["ops", "watch", NO_ID],
        &["ops", "resume", NO_ID],
        &["ops", "cancel", NO_ID, "--yes"],
        &["event", "trace", "nosuch"],
        &["outbox", "show", "nosuch"],
        &["outbox", "ls", "--table", "nosuch"],
        &["outbox", "unpark", "no/such"],
        &["outbox", "unpark", "no/such", "--dry-run"],
        &["outbox", "unpark", "--id", "nosuch"],
        &["consumers", "held", "nosuch"],
        &["consumers", "pause", "nosuch"],
        &["consumers", "resume", "nosuch"],
        &["consumers", "resume", "nosuch", "--dry-run"],
        &["consumers", "release", "nosuch", "order/1", "--yes"],
        &["push", "attempts", "nosuch"],
        &["push", "test", "nosuch"],
        &["push", "pause", "nosuch"],
        &["push", "resume", "nosuch"],
        &["push", "rotate-secret", "nosuch"],
        &["push", "rm", "nosuch", "--yes"],
        &["progress", "get", "nosuch"],
        &["progress", "watch", "nosuch"],
        &["token", "revoke", NO_ID, "--yes"],
        &["topology", "route", "a.b", "--exchange", "nosuch"],
        &["ledger", "--tenant", "nosuch", "entries", "show", "1"],
        &["ledger", "--tenant", "acme", "entries", "show", "7"],
        &["ledger", "--tenant", "acme", "proof", "7"],
        &["ledger", "--tenant", "acme", "statement", "nosuch"],
        &["ledger", "--tenant", "acme", "accounts", "close", "nosuch", "--yes"],
        &["ledger", "--tenant", "nosuch", "balance"],
    ] {
        let ran = folder.run(asked);
        assert_eq!(ran.code, 1, "{asked:?}: {ran:?}");
        assert!(ran.out.is_empty() && ran.err.contains("error: "), "{asked:?}: {ran:?}");
    }
}

#[test]
fn what_is_not_there_is_404_over_http() {
    let folder = Folder::new();
    let serving = folder.serve(&["--roles", "api"]);
    let of_key = json!({ "key": "no/such", "reason": "mended" });
    let of_event = json!({ "id": "nosuch", "reason": "mended" });
    for (method, path, body, lists) in [
        ("GET", "/v1/consumers/nosuch/held", &Value::Null, "/v1/consumers lists them"),
        ("GET", "/v1/subscriptions/nosuch/attempts", &Value::Null, "push ls` lists them"),
        ("POST", "/v1/outbox/unpark", &of_key, "outbox status` lists"),
        ("POST", "/v1/outbox/unpark", &of_event, "outbox ls --status dead` lists"),
    ] {
        let (status, problem) = ask(&serving, method, path, body);
        assert_eq!((status, &problem["code"]), (404, &json!("not_found")), "{method} {path}: {problem}");
        assert!(problem["detail"].as_str().is_some_and(|told| told.contains(lists)), "{problem}");
    }
    let log = ask(&serving, "GET", "/v1/audit-log", &Value::Null).1;
    let entries = log["entries"].as_array().unwrap();
    assert!(entries.iter().all(|entry| entry["action"] != "outbox.unparked"), "nothing was changed: {log}");
}
