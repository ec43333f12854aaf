//! The commands on the embedded default: nothing configured, one file.

use std::process::{Command, Stdio};

use rustix::process::Signal;

use super::process::Folder;

const QUEUES: &str = "[[queue]]\nname = 'billing'\nbind = ['shop.order.*']\n[[consumer]]\nname = 'billing'\n";

#[test]
fn an_event_is_committed_and_accounted_for() {
    let folder = Folder::new();
    folder.write("postrider.toml", QUEUES);
    let args =
        ["publish", "shop.order.placed", "--data", r#"{"total":"1.50"}"#, "--aggregate", "shop.order/42"];
    let ran = folder.run(&args);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(ran.err, "using SQLite file .postrider/postrider.db with the embedded broker\n");
    assert_eq!(ran.out.trim().len(), 36, "an id and nothing else: {ran:?}");

    let report = folder.run(&["audit", "--json"]).assert(0, "").json();
    assert_eq!(report["holds"], true);
    let account =
        serde_json::json!({"name": "billing", "committed": 1, "applied": 0, "waiting": 1, "dead": 0});
    assert_eq!(report["consumers"][0], account);
    folder.run(&["audit"]).assert(0, "billing");
}

#[test]
fn the_same_id_is_committed_once() {
    let folder = Folder::new();
    let args = ["publish", "a.b", "--data", "-", "--id", "evt_1", "--json"];
    assert_eq!(folder.run_with(&args, "{}").json()["id"], "evt_1");
    folder.run_with(&args, "{}").assert(1, "committed before");
}

#[test]
fn a_dry_run_commits_nothing() {
    let folder = Folder::new();
    let shown = folder.run(&["publish", "a.b", "--data", "{}", "--dry-run", "--json"]).assert(0, "").json();
    assert_eq!((&shown["dry_run"], &shown["type"]), (&true.into(), &"a.b".into()));
    assert_eq!(
        folder.run(&["token", "create", "--role", "admin", "--dry-run"]).assert(0, "nothing was made").out,
        ""
    );
    assert_eq!(folder.run(&["token", "ls", "--json"]).json(), serde_json::json!([]));
}

#[test]
fn a_warning_says_when_nobody_wants_an_event() {
    let folder = Folder::new();
    folder.run(&["publish", "a.b", "--data", "{}"]).assert(0, "no [[queue]] of the configuration is bound");
    let quiet = folder.run(&["publish", "a.b", "--data", "{}", "--quiet"]);
    assert_eq!(quiet.err.lines().count(), 1, "{quiet:?}");
    // A queue of an exchange that the outbox does not publish to.
    let config =
        "[[exchange]]\nname = 'shop.events'\n[[queue]]\nname = 'billing'\nbind = ['shop.events:a.*']\n";
    folder.write("postrider.toml", config);
    let wanted = "A queue of shop.events wants it: set outbox.exchange";
    folder.run(&["publish", "a.b", "--data", "{}"]).assert(0, wanted);
    let at = ["publish", "a.b", "--data", "{}", "--exchange", "shop.events"];
    assert!(!folder.run(&at).assert(0, "").err.contains("warning"));
}

#[test]
fn what_is_written_wrong_is_answered_with_what_is_right() {
    let folder = Folder::new();
    folder.run(&["ops", "get", "1"]).assert(2, "write the whole id");
    folder.run(&["publish", "a.b", "--data", "{}", "--at", "tomorrow"]).assert(2, "2026-12-24T18:00:00Z");
    folder.write("postrider.toml", "[http]\nlisten = 'localhost:7070'\n");
    folder
        .run(&["doctor"])
        .assert(2, "line 2: http.listen: \"localhost:7070\" is no address such as 127.0.0.1:7070");
}

#[test]
fn the_schema_is_there_when_the_file_is_opened() {
    let folder = Folder::new();
    let rows = folder.run(&["db", "status", "--json"]).assert(0, "").json();
    assert!(rows.as_array().unwrap().iter().all(|row| row["state"] == "applied"), "{rows}");
    folder.run(&["db", "migrate"]).assert(0, "the schema is up to date");
}

#[test]
fn the_doctor_finds_a_fresh_folder_healthy() {
    let folder = Folder::new();
    folder.write("postrider.toml", QUEUES);
    let ran = folder.run(&["doctor"]).assert(0, "SQLite 3");
    assert!(
        ran.out.contains(
            "4 of 4 queues are not there: billing, billing.wait.5s, billing.dlq, postrider.events.unroutable"
        ),
        "{ran:?}"
    );
    // People read the first few of many, programs all of them.
    folder.write("postrider.toml", &format!("{QUEUES}\n[[queue]]\nname = 'mail'\nbind = ['shop.mail.*']\n"));
    let (people, programs) = (folder.run(&["doctor"]), folder.run(&["doctor", "--json"]));
    assert!(people.out.contains(" and 2 more; `postrider serve`"), "{people:?}");
    assert!(programs.out.contains("mail.dlq") && !programs.out.contains(" more; "), "{programs:?}");
}

#[test]
fn tokens_are_made_listed_and_revoked() {
    let folder = Folder::new();
    let made = folder
        .run(&["token", "create", "--role", "viewer", "--name", "ci", "--tenant", "acme", "--json"])
        .json();
    let (id, secret) = (made["id"].as_str().unwrap(), made["token"].as_str().unwrap());
    assert!(secret.starts_with("prt_") && secret.len() == 68, "{made}");
    let listed = folder.run(&["token", "ls", "--json"]);
    assert!(!listed.out.contains(secret) && listed.json()[0]["state"] == "valid", "{listed:?}");

    folder.run(&["token", "revoke", id]).assert(2, "add --yes");
    folder.run(&["token", "revoke", id, "--dry-run"]).assert(0, "nothing was changed");
    folder.run(&["token", "revoke", id, "--yes"]).assert(0, "revoked the token");
    assert_eq!(folder.run(&["token", "ls", "-o", "jsonl"]).json()["state"], "revoked");
    let unknown = "00000000-0000-7000-8000-000000000000";
    folder.run(&["token", "revoke", unknown, "--yes"]).assert(1, "there is no token");
}

#[test]
fn completions_and_the_manual_need_nothing() {
    let folder = Folder::new();
    let ran = folder.run(&["generate", "completions", "bash"]).assert(0, "_postrider");
    assert_eq!(ran.err, "");
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        folder.run(&["generate", "completions", shell]).assert(0, "postrider");
    }
    folder.run(&["generate", "man"]).assert(0, ".TH postrider");
    let replay = folder.run(&["generate", "man", "dlq", "replay"]).assert(0, ".TH postrider").out;
    assert!(replay.contains("dry") && replay.contains("limit"), "{replay}");
    folder.run(&["generate", "man", "dlq", "sing"]).assert(2, "has no command sing");
    let schema = folder.run(&["generate", "config-schema"]).assert(0, "").json();
    assert_eq!(schema["properties"]["http"]["properties"]["read_only"]["type"], "boolean", "{schema}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    let command = command.args(["generate", "openapi"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
}

#[test]
fn serve_publishes_what_was_committed_and_stops_in_order() {
    let folder = Folder::new();
    folder.write("postrider.toml", QUEUES);
    folder.run(&["publish", "shop.order.placed", "--data", "{}"]).assert(0, "");
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving relay, collector, api");
    serving.wait_for_metric("postrider_relay_published_total 1");
    // Committed by another process while it runs.
    folder.run(&["publish", "shop.order.paid", "--data", "{}"]).assert(0, "");
    serving.wait_for_metric("postrider_relay_published_total 2");

    let report = folder.run(&["audit", "--json"]).assert(0, "").json();
    assert_eq!(
        (&report["consumers"][0]["committed"], &report["consumers"][0]["waiting"]),
        (&2.into(), &2.into())
    );
    folder.run(&["doctor"]).assert(0, "all 4 queues are there");
    folder.run(&["serve"]).assert(4, "serves this file already");

    serving.signal(Signal::TERM);
    let (code, said) = serving.ended();
    assert_eq!((code, said.last().map(String::as_str)), (0, Some("stopped")), "{said:#?}");
}

#[test]
fn a_reload_applies_the_log_level_and_says_what_has_to_wait() {
    let folder = Folder::new();
    folder.write("postrider.toml", "[log]\nlevel = 'info'\n");
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    folder.write("postrider.toml", "[log]\nlevel = 'debug'\n[relay]\nlanes = 2\n");
    serving.signal(Signal::HUP);
    serving.wait_for("reloaded: log.level is debug");
    serving.wait_for("changed, and in use after a restart: relay.lanes");
    folder.write("postrider.toml", "[log]\nlevel = 7\n");
    serving.signal(Signal::HUP);
    serving.wait_for("not reloaded, everything stays as it is: postrider.toml, line 2: log.level");
    serving.signal(Signal::INT);
    assert_eq!(serving.ended().0, 0);
}

#[test]
fn ctrl_c_ends_a_command_that_waits_for_what_it_reads() {
    let folder = Folder::new();
    for args in [&["publish", "a.b", "--data", "-"][..], &["dlq", "import", "-"]] {
        let mut waiting = folder.start(args);
        waiting.wait_for("using SQLite file");
        waiting.signal(Signal::INT);
        assert_eq!(waiting.ended().0, 130, "{args:?}");
    }
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let folder = Folder::new();
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    // A request whose body never comes keeps the first stop waiting.
    let _held = serving.hold_a_request();
    serving.signal(Signal::INT);
    serving.wait_for("stopping");
    serving.signal(Signal::INT);
    let (code, said) = serving.ended();
    assert_eq!(code, 130, "{said:#?}");
}

#[test]
fn work_in_flight_has_a_limit() {
    let folder = Folder::new().with("POSTRIDER_SHUTDOWN__DRAIN_MS", "300");
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let _held = serving.hold_a_request();
    serving.signal(Signal::TERM);
    let (code, said) = serving.ended();
    assert_eq!(code, 0, "{said:#?}");
    assert!(said.iter().any(|line| line.contains("requests were cut off")), "{said:#?}");
}

#[test]
fn a_port_in_use_is_told_at_once() {
    let folder = Folder::new();
    let serving = folder.serve(&["--roles", "api"]);
    let other = Folder::new();
    other.run(&["serve", "--listen", &serving.address]).assert(1, "choose another http.listen or --listen");
}

#[test]
fn the_log_can_be_json() {
    let folder = Folder::new().with("POSTRIDER_LOG__FORMAT", "json").with("POSTRIDER_LOG__LEVEL", "debug");
    let mut serving = folder.serve(&["--roles", "api"]);
    serving.http("GET", "/v1/health/live?secret=hunter2", &[], "");
    let line = serving.wait_for("answered");
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&line["level"], &line["status"]), (&"DEBUG".into(), &200.into()));
    assert!(!line.to_string().contains("hunter2"), "{line}");
}
