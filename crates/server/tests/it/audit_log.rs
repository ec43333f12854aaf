//! Every change is in the audit log with who made it and why, whichever way it was made.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::process::{Folder, PYTHON, Serving};
use super::push::ask;

fn entries(serving: &Serving) -> Vec<Value> {
    let log = ask(serving, "GET", "/v1/audit-log?limit=200", &Value::Null).1;
    log["entries"].as_array().unwrap_or_else(|| panic!("{log}")).clone()
}

/// Everything that people change over HTTP; programs publish, pull and report progress, and that is in tables of its own.
#[test]
fn every_change_over_http_is_written_down() {
    let folder = Folder::new();
    let push = "[egress]\nallow = ['127.0.0.1', 'http']\n[[queue]]\nname = 'mail'\nbind = ['a.b']\n[[consumer]]\nname = 'mail'\n";
    folder.write("postrider.toml", push);
    folder.run(&["ledger", "--tenant", "acme", "accounts", "init", "--base", "EUR"]).assert(0, "opened");
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let line = |account: &str, side: &str| json!({ "account": account, "side": side, "amount": "1.00", "currency": "EUR" });
    let entry =
        json!({ "effectiveOn": "2026-03-01", "lines": [line("fees", "debit"), line("bank", "credit")] });
    let account = json!({ "accounts": [{ "code": "petty-cash", "name": "Petty cash", "type": "asset", "currency": "EUR", "active": true }] });
    let rate = json!({ "rates": [{ "currency": "USD", "rate": "0.9", "on": "2026-03-01" }] });
    let why = json!({ "reason": "a test" });
    let endpoint =
        json!({ "name": "erp", "url": "http://127.0.0.1:1/", "keys": ["c.d"], "reason": "a test" });
    let mut seen = entries(&serving).len();
    for (method, path, body, action) in [
        ("POST", "/v1/consumers/mail/pause", why.clone(), "consumer.pause"),
        ("POST", "/v1/consumers/mail/resume", why.clone(), "consumer.resume"),
        ("POST", "/v1/subscriptions", endpoint, "push.add"),
        ("POST", "/v1/subscriptions/erp/test", Value::Null, "push.test"),
        ("POST", "/v1/subscriptions/erp/pause", why.clone(), "consumer.pause"),
        ("POST", "/v1/subscriptions/erp/resume", why.clone(), "consumer.resume"),
        ("POST", "/v1/subscriptions/erp/rotate-secret", why.clone(), "push.rotate-secret"),
        ("DELETE", "/v1/subscriptions/erp?reason=a+test", Value::Null, "push.remove"),
        ("POST", "/v1/ledger/acme/accounts?reason=a+test", account, "ledger.accounts"),
        ("POST", "/v1/ledger/acme/rates?reason=a+test", rate, "ledger.rates"),
        ("POST", "/v1/ledger/acme/entries?reason=a+test", entry, "ledger.entries"),
        (
            "POST",
            "/v1/ledger/acme/entries/1/reversals?reason=a+test",
            Value::Null,
            "ledger.entries.reversals",
        ),
        (
            "POST",
            "/v1/ledger/acme/periods?reason=a+test",
            json!({ "name": "2025", "state": "closed" }),
            "ledger.periods",
        ),
        ("POST", "/v1/ledger/acme/years/2025/close?reason=a+test", Value::Null, "ledger.years.close"),
    ] {
        let (status, answer) = ask(&serving, method, path, &body);
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
        let log = entries(&serving);
        let found = log.iter().find(|entry| entry["action"] == action);
        assert!(log.len() > seen && found.is_some(), "{method} {path} is not in the audit log: {log:#?}");
        let found = &log[0];
        assert_eq!(found["actor"], "api", "{found}");
        assert!(found["reason"] == "a test" || action == "push.test", "{found}");
        seen = log.len();
    }
    // What was refused is there too, and that it was.
    let (status, _) = ask(&serving, "POST", "/v1/ledger/acme/entries/99/voids", &Value::Null);
    assert_eq!((status, &entries(&serving)[0]["action"]), (404, &json!("ledger.entries.voids.refused")));
    // From here on a token is asked for.
    let token = json!({ "role": "admin", "reason": "a test" });
    let (status, made) = ask(&serving, "POST", "/v1/tokens", &token);
    assert_eq!(status, 201, "{made}");
    let bearer = format!("Bearer {}", made["token"].as_str().unwrap());
    let (_, _, log) = serving.http("GET", "/v1/audit-log?limit=1", &[("authorization", &bearer)], "");
    let log: Value = serde_json::from_str(&log).unwrap();
    let newest = &log["entries"][0];
    assert_eq!((&newest["action"], &newest["reason"]), (&json!("token.created"), &json!("a test")), "{log}");
}

#[test]
fn what_is_done_at_the_keyboard_names_the_person() {
    let folder = Folder::new().with("USER", "ada");
    let push = "[egress]\nallow = ['127.0.0.1', 'http']\n[[queue]]\nname = 'mail'\nbind = ['a.b']\n[[consumer]]\nname = 'mail'\n";
    folder.write("postrider.toml", push);
    let url = "http://127.0.0.1:1/";
    folder
        .run(&["push", "add", "mail.dlq", "--url", url, "--keys", "c.d"])
        .assert(2, "there is a queue mail.dlq already");
    folder
        .run(&["push", "add", "erp", "--url", url, "--keys", "c.d", "--reason", "wanted"])
        .assert(0, "whsec_");
    folder.run(&["push", "rotate-secret", "erp", "--reason", "leaked"]).assert(0, "whsec_");
    folder.run(&["push", "test", "erp"]).assert(3, "did not take it");
    folder.run(&["push", "rm", "erp", "--reason", "moved", "--yes"]).assert(0, "done");
    folder.run(&["push", "rm", "erp", "--yes"]).assert(1, "no push subscription erp");
    folder.run(&["consumers", "pause", "mail", "--reason", "moving"]).assert(0, "paused");
    let made = folder.run(&["token", "create", "--role", "viewer", "--json"]).assert(0, "prt_").json();
    folder
        .run(&["token", "revoke", made["id"].as_str().unwrap(), "--reason", "lost", "--yes"])
        .assert(0, "revoked");
    for id in ["evt_1", "evt_2"] {
        folder.run(&["publish", "a.b", "--data", "{}", "--id", id]).assert(0, "");
    }
    let give_up = "import sqlite3; db = sqlite3.connect('.postrider/postrider.db'); \
        db.execute(\"UPDATE event_outbox SET status = 'dead', attempts = 10\"); db.commit()";
    let done = Command::new(PYTHON).args(["-c", give_up]).current_dir(folder.path()).status().unwrap();
    assert!(done.success());
    let unpark = ["outbox", "unpark", "--id", "evt_1", "--reason", "mended"];
    folder.run(&[&unpark[..], &["--dry-run"]].concat()).assert(0, "nothing was changed");
    folder.run(&unpark).assert(0, "evt_1");
    folder.run(&unpark).assert(1, "no event evt_1 is dead");
    let ledger = |words: &[&str]| folder.run(&[&["ledger", "--tenant", "acme"], words].concat());
    ledger(&["accounts", "init", "--base", "EUR"]).assert(0, "opened");
    ledger(&["book", "set", "--max-entries", "9"]).assert(0, "");
    ledger(&["rates", "add", "USD", "0.9", "--on", "2026-03-01"]).assert(0, "");
    ledger(&["periods", "close", "2025", "--dry-run"]).assert(0, "nothing was changed");
    let serving = folder.serve(&["--roles", "api"]);
    let log = entries(&serving);
    for (action, reason) in [
        ("push.add", json!("wanted")),
        ("push.rotate-secret", json!("leaked")),
        ("push.test", Value::Null),
        ("push.remove", json!("moved")),
        ("consumer.pause", json!("moving")),
        ("token.created", Value::Null),
        ("token.revoked", json!("lost")),
        ("outbox.unparked", json!("mended")),
        ("ledger.accounts.init", Value::Null),
        ("ledger.book", Value::Null),
        ("ledger.rates", Value::Null),
    ] {
        let found = log
            .iter()
            .find(|entry| entry["action"] == action)
            .unwrap_or_else(|| panic!("{action}: {log:#?}"));
        assert_eq!((&found["actor"], &found["reason"]), (&json!("cli:ada"), &reason), "{found}");
    }
    assert!(log.iter().all(|entry| entry["action"] != "ledger.periods"), "a dry run changes nothing");
    let unparked = log.iter().filter(|entry| entry["action"] == "outbox.unparked").count();
    assert_eq!(unparked, 1, "what is not there was not changed: {log:#?}");
    let again = json!({ "id": "evt_2", "reason": "mended" });
    let (status, freed) = ask(&serving, "POST", "/v1/outbox/unpark", &again);
    assert_eq!((status, &freed["ids"]), (200, &json!(["evt_2"])), "{freed}");
    assert_eq!(ask(&serving, "POST", "/v1/outbox/unpark", &again).0, 404);
}

#[test]
fn a_stream_ends_with_its_token() {
    let folder = Folder::new();
    let made = folder.run(&["token", "create", "--role", "viewer", "--json"]).assert(0, "prt_").json();
    let serving = folder.serve(&["--roles", "api"]);
    let mut stream = TcpStream::connect(&serving.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    let token = made["token"].as_str().unwrap();
    let head = format!("GET /v1/stream HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    folder.run(&["token", "revoke", made["id"].as_str().unwrap(), "--yes"]).assert(0, "revoked");
    // The last chunk: nothing comes after it, though the connection may stay.
    let mut seen = Vec::new();
    while !seen.ends_with(b"\r\n0\r\n\r\n") {
        let mut more = [0; 4096];
        let count = stream.read(&mut more).unwrap();
        if count == 0 {
            break;
        }
        seen.extend_from_slice(&more[..count]);
    }
}
