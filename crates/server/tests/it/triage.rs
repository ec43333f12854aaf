//! Dead letters on the command line: found, shown, sent again, discarded, edited, carried elsewhere.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::process::Folder;
use super::push::ask;

const QUEUES: &str = "[[queue]]\nname = 'billing'\nbind = ['shop.order.*']\n\
    [[queue]]\nname = 'strict'\ncollect = false\n";

/// A dead letter as `dlq export` writes it.
fn letter(number: u32, queue: &str, error: &str) -> Value {
    let at = format!("2026-11-15T10:00:{number:02}Z");
    json!({
        "key": format!("key-{number}"),
        "event_id": format!("evt_{number}"),
        "event_type": "shop.order.placed",
        "tenant": "acme",
        "aggregate_id": format!("order-{number}"),
        "ordering_key": format!("acme/shop.order/order-{number}"),
        "consumer": queue,
        "queue": queue,
        "exchange": "postrider.events",
        "routing_key": "shop.order.placed",
        "reason": "retries_exhausted",
        "error": error,
        "error_class": null,
        "attempts": 11,
        "first_failed_at": at,
        "dead_at": at,
        "properties": { "message_id": format!("evt_{number}"), "content_type": "application/json" },
        "headers": { "x-event-id": { "text": format!("evt_{number}") }, "odd": { "bytes": [0, 255] } },
        "body": "eyJ0b3RhbCI6MX0="
    })
}

pub(super) fn with_letters(count: u32) -> Folder {
    let folder = Folder::new().with("USER", "ada");
    folder.write("postrider.toml", QUEUES);
    let lines: Vec<String> =
        (0..count).map(|n| letter(n, "billing", &format!("order {n} has no account")).to_string()).collect();
    folder.run_with(&["dlq", "import", "-"], &lines.join("\n")).assert(0, &format!("{count} dead letters"));
    folder
}

#[test]
fn letters_are_grouped_listed_and_shown() {
    let folder = with_letters(3);
    let groups = folder.run(&["dlq", "groups", "--json"]).assert(0, "").json();
    assert_eq!(groups["groups"].as_array().unwrap().len(), 1, "{groups}");
    assert_eq!((&groups["groups"][0]["open"], &groups["groups"][0]["total"]), (&json!(3), &json!(3)));
    let group = groups["groups"][0]["fingerprint"].as_str().unwrap().to_owned();
    folder.run(&["dlq", "groups"]).assert(0, "has no account");

    let page = folder.run(&["dlq", "ls", "--group", &group, "--limit", "2", "--json"]).json();
    assert_eq!(page["letters"].as_array().unwrap().len(), 2);
    assert_eq!(page["letters"][0]["event_id"], "evt_2");
    let next = page["next"].as_str().unwrap();
    let rest = folder.run(&["dlq", "ls", "--group", &group, "--before", next, "--json"]).json();
    assert_eq!(rest["letters"][0]["event_id"], "evt_0");
    let found = folder.run(&["dlq", "ls", "--text", "ORDER 1", "--json"]).json();
    assert_eq!(found["letters"].as_array().unwrap().len(), 1, "{found}");

    let id = page["letters"][0]["id"].as_str().unwrap();
    let shown = folder.run(&["dlq", "show", id]).assert(0, "retries_exhausted");
    assert!(shown.out.contains("\"total\": 1") && shown.out.contains("order 2 has no account"), "{shown:?}");
    let whole = folder.run(&["dlq", "show", id, "--json"]).json();
    assert_eq!((&whole["event_id"], &whole["body"]), (&json!("evt_2"), &json!("{\"total\":1}")));
    folder.run(&["dlq", "show", "999"]).assert(1, "there is no dead letter 999");
    folder.run(&["dlq", "ls", "--before", "yesterday"]).assert(2, "no place in a list");
    folder.run(&["dlq", "ls", "--since", "yesterday"]).assert(2, "neither a time");
}

#[test]
fn other_statuses_are_other_groups() {
    let folder = Folder::new();
    folder.write("postrider.toml", QUEUES);
    let of = |number: u32, status: u32| {
        let mut letter = letter(number, "billing", &format!("the endpoint answered {status}"));
        letter["headers"]["x-final-status-code"] = json!({ "int": status });
        letter.to_string()
    };
    folder.run_with(&["dlq", "import", "-"], &[of(0, 404), of(1, 404), of(2, 422)].join("\n")).assert(0, "3");
    let groups = folder.run(&["dlq", "groups", "--json"]).assert(0, "").json();
    let open: Vec<_> = groups["groups"].as_array().unwrap().iter().map(|group| &group["open"]).collect();
    assert_eq!(open, [&json!(1), &json!(2)], "{groups}");
}

#[test]
fn what_is_exported_is_imported_byte_for_byte() {
    let folder = with_letters(5);
    let exported = folder.run(&["dlq", "export"]).assert(0, "5 dead letters were written").out;
    let other = Folder::new();
    other.run_with(&["dlq", "import", "-"], &exported).assert(0, "5 dead letters were read");
    other.run_with(&["dlq", "import", "-"], &exported).assert(0, "");
    assert_eq!(other.run(&["dlq", "export"]).assert(0, "").out, exported);
    other.run_with(&["dlq", "import", "-"], "{\"key\": 1}").assert(2, "line 1 is no exported dead letter");
    let (cut, most) = (Folder::new(), &exported[..exported.len() - 9]);
    cut.run_with(&["dlq", "import", "-", "--dry-run"], most).assert(2, "nothing was stored");
    cut.run_with(&["dlq", "import", "-"], most).assert(2, "the 4 before it are stored");
    assert_eq!(cut.run(&["dlq", "ls", "--json"]).json()["letters"].as_array().unwrap().len(), 4);
}

#[test]
fn bulk_changes_ask_first_and_say_what_they_will_do() {
    let folder = with_letters(3);
    folder.run(&["dlq", "replay"]).assert(2, "say which dead letters");
    folder.run(&["dlq", "discard", "1", "999", "--yes"]).assert(1, "there is no dead letter 999; nothing");
    folder.run(&["dlq", "discard", "--all"]).assert(2, "add --yes");
    folder.run(&["dlq", "discard", "--all", "--rate", "0", "--yes"]).assert(2, "--rate must be");
    let plan = folder.run(&["dlq", "discard", "--all", "--rate", "1", "--dry-run", "--json"]).json();
    assert_eq!((&plan["total"], &plan["survey"]["letters"]), (&json!(3), &json!(3)));
    let done =
        folder.run(&["dlq", "discard", "--all", "--limit", "2", "--reason", "test data", "--yes", "--json"]);
    let operation = done.assert(0, "").json();
    assert_eq!((&operation["state"], &operation["done"]), (&json!("done"), &json!(2)));
    assert_eq!((&operation["created_by"], &operation["reason"]), (&json!("cli:ada"), &json!("test data")));
    let left = folder.run(&["dlq", "ls", "--json"]).json();
    assert_eq!(left["letters"].as_array().unwrap().len(), 1);
    let listed = folder.run(&["ops", "ls", "--json"]).json();
    let id = listed[0]["id"].as_str().unwrap();
    folder.run(&["ops", "get", id]).assert(0, "discard_letters");
    folder.run(&["ops", "watch", id]).assert(0, "2 done");
    folder.run(&["ops", "cancel", id, "--yes"]).assert(2, "done already");
    let gone = "01999999-0000-7000-8000-000000000000";
    folder.run(&["ops", "get", gone]).assert(1, "there is no operation");
    folder.run(&["dlq", "discard", "--all", "--yes"]).assert(0, "1 done");
    folder.run(&["dlq", "discard", "--all", "--yes"]).assert(0, "nothing was changed");
    folder.run(&["dlq", "discard", "1", "--yes"]).assert(0, "dead letter 1 is discarded already");
}

#[test]
fn a_replay_needs_its_queue_and_goes_out_with_whoever_serves() {
    let folder = with_letters(2);
    folder.run(&["dlq", "replay", "--all", "--yes"]).assert(1, "there is no queue billing");
    let mut serve = folder.start(&["serve", "--roles", "relay,collector"]);
    serve.wait_for("serving");
    // Another process on the same file, while it is served.
    let done = folder.run(&["dlq", "replay", "--all", "--yes", "--json"]).assert(0, "").json();
    assert_eq!((&done["state"], &done["done"]), (&json!("done"), &json!(2)));
    let trace = loop {
        let trace = folder.run(&["event", "trace", "evt_1", "--json"]).assert(0, "").json();
        if trace["outbox"][0]["status"] == "published" {
            break trace;
        }
    };
    assert_eq!(trace["outbox"][0]["target_queue"], "billing");
    assert_eq!(trace["dead_letters"][0]["status"], "replayed");
    folder.run(&["event", "trace", "evt_1"]).assert(0, "published; the broker confirmed it");
    folder.run(&["event", "trace", "nobody"]).assert(1, "know the event nobody");
    serve.signal(Signal::TERM);
    assert_eq!(serve.ended().0, 0);
}

/// What no queue wanted goes to its exchange once more, and reaches whoever is bound there by now.
#[test]
fn what_no_queue_wanted_is_sent_to_its_exchange_again() {
    let folder = with_letters(0);
    folder.run(&["publish", "other.thing.happened", "--data", "{}", "--id", "evt_9"]).assert(0, "evt_9");
    let serving = folder.serve(&[]);
    let letters = || folder.run(&["dlq", "ls", "--json"]).json()["letters"].clone();
    while letters()[0]["reason"] != "unroutable" {}
    drop(serving);
    folder.write("postrider.toml", &format!("{QUEUES}[[queue]]\nname = 'others'\nbind = ['other.#']\n"));
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    folder.run(&["dlq", "replay", "--event", "evt_9", "--yes"]).assert(0, "1 done");
    let pull = json!({ "wait_ms": 20_000 });
    let (status, given) = ask(&serving, "POST", "/v1/queues/others/deliveries", &pull);
    assert_eq!((status, &given["deliveries"][0]["id"]), (200, &json!("evt_9")), "{given}");
    assert_eq!(letters(), json!([]));
}

#[test]
fn an_edited_letter_becomes_a_new_event() {
    let folder = with_letters(1);
    folder.run(&["dlq", "edit", "1", "--data", "{\"total\":"]).assert(2, "not JSON any more");
    folder.run(&["dlq", "edit", "1", "--data", "{\"total\":1}"]).assert(5, "nothing was edited");
    folder.run(&["dlq", "edit", "1"]).assert(2, "--data");
    folder.run(&["dlq", "edit", "1", "--data", "{\"total\":\"1\"}"]).assert(2, "add --yes");
    let sent = folder.run(&["dlq", "edit", "1", "--data", "{\"total\":\"1\"}", "--yes", "--json"]).json();
    assert_eq!(sent["replaces"], "evt_0");
    folder.run(&["dlq", "edit", "1", "--data", "{}", "--yes"]).assert(2, "discarded already");
    let new = sent["id"].as_str().unwrap();
    let trace = folder.run(&["event", "trace", new]).assert(0, "corrected from evt_0 (dead letter 1)");
    assert!(trace.out.contains("committed to the outbox, for billing alone"), "{trace:?}");
    folder.run(&["event", "trace", "evt_0"]).assert(0, &format!("corrected as {new} (dead letter 1)"));
    assert_eq!(folder.run(&["event", "trace", new, "--json"]).json()["tenant"], "acme");
}

#[test]
fn a_correction_is_made_to_everything_that_matches() {
    let folder = with_letters(3);
    let mut odd = letter(3, "billing", "order 3 has no account");
    odd["body"] = json!("bm90IGpzb24=");
    folder.run_with(&["dlq", "import", "-"], &odd.to_string()).assert(0, "1 dead letters");
    let edit = |more: &[&str]| folder.run(&[&["dlq", "edit"], more].concat());
    edit(&[]).assert(2, "give the number of one dead letter");
    edit(&["1", "--limit", "2", "--data", "{}"]).assert(2, "needs its number alone");
    edit(&["--all", "--merge", "{", "--yes"]).assert(2, "the merge patch cannot be read");
    edit(&["--all", "--patch", "{}", "--yes"]).assert(2, "the JSON Patch cannot be read");
    edit(&["--merge", "{\"total\":2}", "--yes"]).assert(2, "say which dead letters");
    edit(&["--all", "--merge", "{\"total\":2}", "--yes"]).assert(1, "there is no queue billing");
    let plan = edit(&["--all", "--merge", "{\"total\":2}", "--dry-run"]).assert(0, "+ {\"total\":2}");
    assert!(plan.out.contains("4 aggregates") && plan.out.contains("3 fit, 1 do not"), "{plan:?}");
    let mut serve = folder.start(&["serve", "--roles", "relay,collector"]);
    serve.wait_for("serving");
    folder.write(
        "fix.json",
        r#"[{"op":"test","path":"/total","value":1},{"op":"add","path":"/currency","value":"EUR"}]"#,
    );
    let file = format!("@{}", folder.path().join("fix.json").display());
    let done =
        edit(&["--all", "--patch", &file, "--reason", "no currency", "--yes", "--json"]).assert(6, "").json();
    assert_eq!((&done["done"], &done["skipped"], &done["state"]), (&json!(3), &json!(1), &json!("done")));
    folder
        .run(&["ops", "get", done["id"].as_str().unwrap()])
        .assert(0, "left       4: its payload is not JSON");
    folder
        .run(&["dlq", "show", "4"])
        .assert(0, "dead_letter.left by cli:ada: no currency (its payload is not JSON)");
    let one = folder.run(&["dlq", "show", "1", "--json"]).json();
    assert_eq!(one["status"], "discarded");
    folder.run(&["event", "trace", one["replaced_by"].as_str().unwrap()]).assert(0, "for billing alone");
    edit(&["--all", "--patch", &file, "--yes"]).assert(6, "0 done, 1 skipped");
    serve.signal(Signal::TERM);
    assert_eq!(serve.ended().0, 0);
}

#[test]
fn headers_are_corrected_in_everything_that_matches() {
    let folder = with_letters(3);
    let edit = |more: &[&str]| folder.run(&[&["dlq", "edit"], more].concat());
    edit(&["--all", "--set-header", "region", "--yes"]).assert(2, "--set-header takes NAME=VALUE");
    edit(&["--all", "--set-header", "x-postrider-a=1", "--yes"]).assert(2, "x-postrider-a cannot be edited");
    edit(&["--all", "--remove-header", "X-Event-Id", "--yes"]).assert(2, "X-Event-Id cannot be edited");
    edit(&["--all", "--set-header", "a=1", "--set-header", "a=2", "--yes"]).assert(2, "twice");
    edit(&["1", "--set-header", "a=1", "--data", "{}"]).assert(2, "cannot be used with");
    edit(&["--set-header", "region=eu", "--yes"]).assert(2, "say which dead letters");
    let mut serve = folder.start(&["serve", "--roles", "relay,collector"]);
    serve.wait_for("serving");
    edit(&["--all", "--set-header", "region=eu=1", "--dry-run"])
        .assert(0, "header region: none becomes eu=1");
    let canary = ["--all", "--limit", "1", "--set-header", "region=eu=1", "--remove-header", "debug"];
    let done = edit(&[&canary[..], &["--reason", "moved", "--yes", "--json"]].concat()).assert(0, "").json();
    assert_eq!((&done["done"], &done["skipped"], &done["state"]), (&json!(1), &json!(0), &json!("done")));
    let operation = folder.run(&["ops", "get", done["id"].as_str().unwrap(), "--json"]).json();
    assert_eq!(operation["plan"]["headers"], json!({ "set": { "region": "eu=1" }, "remove": ["debug"] }));
    let one = folder.run(&["dlq", "show", "1", "--json"]).json();
    assert_eq!(one["status"], "discarded");
    folder.run(&["dlq", "show", "1"]).assert(0, "dead_letter.edited by cli:ada: moved");
    folder.run(&["event", "trace", one["replaced_by"].as_str().unwrap()]).assert(0, "for billing alone");
    serve.signal(Signal::TERM);
    assert_eq!(serve.ended().0, 0);
}

#[test]
fn an_operation_is_left_gone_on_with_and_cancelled() {
    let folder = with_letters(6);
    let begun = |args: &[&str]| {
        let working = folder.start(&[&["dlq", "discard", "--yes"], args].concat());
        let id = loop {
            let listed = folder.run(&["ops", "ls", "--json"]).json();
            if listed[0]["state"] == "running" && listed[0]["done"] != 0 {
                break listed[0]["id"].as_str().unwrap().to_owned();
            }
        };
        (working, id)
    };
    // Who is interrupted detaches, and it waits.
    let (working, id) = begun(&["1", "2", "3", "--rate", "0.4"]);
    working.signal(Signal::INT);
    assert_eq!(working.ended().0, 130);
    folder.run(&["ops", "get", &id]).assert(0, "running");
    let resumed = folder.run(&["ops", "resume", &id, "--json"]).assert(0, "").json();
    assert_eq!((&resumed["state"], &resumed["done"]), (&json!("done"), &json!(3)));
    // While it rests for the next one, somebody else ends it.
    let (working, id) = begun(&["--all", "--rate", "0.05"]);
    folder
        .run(&["ops", "cancel", &id, "--reason", "enough", "--yes"])
        .assert(0, "1 items are done and stay so");
    let (code, said) = working.ended();
    assert_eq!(code, 6, "{said:?}");
    folder.run(&["ops", "resume", &id]).assert(6, "cancelled");
    assert_eq!(folder.run(&["dlq", "ls", "--json"]).json()["letters"].as_array().unwrap().len(), 2);
}

#[test]
fn what_a_killed_process_left_is_gone_on_with() {
    let folder = with_letters(2);
    let killed = folder.start(&["dlq", "discard", "--all", "--yes", "--rate", "0.4"]);
    let id = loop {
        let listed = folder.run(&["ops", "ls", "--json"]).json();
        if listed[0]["done"] == 1 {
            break listed[0]["id"].as_str().unwrap().to_owned();
        }
    };
    killed.signal(Signal::KILL);
    let _ = killed.ended();
    // Its lease still runs.
    folder.run(&["ops", "resume", &id]).assert(0, "2 done");
}

#[test]
fn a_rule_replays_what_it_matches_while_somebody_serves() {
    let folder = with_letters(2);
    let rule = "[[triage.rule]]\nname = 'accounts'\nevery = '1h'\nqueue = 'billing'\ntext = 'has no account'\nrate = 100\n";
    folder.write("postrider.toml", &format!("{QUEUES}{rule}"));
    let mut serve = folder.start(&["serve", "--roles", "relay,collector"]);
    serve.wait_for("serving");
    let operation = loop {
        let operations = folder.run(&["ops", "ls", "--json"]).assert(0, "").json();
        if operations[0]["state"] == "done" {
            break operations[0].clone();
        }
    };
    assert_eq!((&operation["created_by"], &operation["done"]), (&json!("rule:accounts"), &json!(2)));
    let replayed = folder.run(&["dlq", "ls", "--status", "replayed", "--json"]).json();
    assert_eq!(replayed["letters"].as_array().unwrap().len(), 2);
    serve.signal(Signal::TERM);
    assert_eq!(serve.ended().0, 0);
}

#[test]
fn what_is_not_collected_is_worked_on_in_its_queue() {
    let folder = with_letters(2);
    let mut serve = folder.start(&["serve", "--roles", "relay,collector"]);
    serve.wait_for("serving");
    folder.run(&["dlq", "ls", "--in-queue", "strict"]).assert(4, "serves this file already");
    // As if they had died there.
    folder.run(&["dlq", "replay", "--all", "--to-queue", "strict.dlq", "--yes"]).assert(0, "2 done");
    for event in ["evt_0", "evt_1"] {
        while folder.run(&["event", "trace", event, "--json"]).json()["outbox"][0]["status"] != "published" {}
    }
    serve.signal(Signal::TERM);
    assert_eq!(serve.ended().0, 0);
    folder.run(&["dlq", "ls", "--in-queue", "billing"]).assert(2, "are collected");
    folder.run(&["dlq", "ls", "--text", "nowhere"]).assert(0, "strict are not collected: --in-queue strict");
    folder.run(&["dlq", "ls", "--in-queue", "unknown"]).assert(1, "is known for unknown");
    let groups = folder.run(&["dlq", "groups", "--in-queue", "strict", "--json"]).assert(0, "").json();
    assert_eq!((&groups[0]["messages"], groups.as_array().unwrap().len()), (&json!(2), 1), "{groups}");
    folder.run(&["dlq", "show", "evt_1", "--in-queue", "strict"]).assert(0, "\"total\": 1");
    folder.run(&["dlq", "show", "evt_9", "--in-queue", "strict"]).assert(1, "no message of the event evt_9");
    folder.run(&["dlq", "show", "evt_1"]).assert(2, "no number of a dead letter");
    let discard = ["dlq", "discard", "--in-queue", "strict", "--event", "evt_0", "--reason", "old", "--yes"];
    folder
        .run(&discard)
        .assert(0, "1 taken out of strict.dlq, 0 could not be sent and stay, 1 were not wanted");
    let left = folder.run(&["dlq", "ls", "--in-queue", "strict", "--json"]).assert(0, "").json();
    assert_eq!((&left[0]["event_id"], left.as_array().unwrap().len()), (&json!("evt_1"), 1));
    folder
        .run(&["dlq", "replay", "--in-queue", "strict", "--all", "--yes"])
        .assert(0, "1 taken out of strict.dlq");
    folder
        .run(&["dlq", "replay", "--in-queue", "strict", "--all", "--yes"])
        .assert(0, "0 taken out of strict.dlq");
    for (words, why) in [
        (&["replay", "--yes"][..], "say which messages"),
        (&["replay", "42", "--yes"], "have no numbers"),
        (&["discard", "42", "--yes"], "have no numbers"),
        (&["replay", "--all", "--rate", "5", "--yes"], "--rate is for collected"),
        (&["edit", "--merge", "{}", "--all", "--yes"], "cannot be edited there"),
        (&["replay", "--all", "--keep-count", "--yes"], "--keep-count is not for --in-queue"),
    ] {
        folder.run(&[&["dlq"], words, &["--in-queue", "strict"]].concat()).assert(2, why);
    }
}

/// Nobody collects what no queue wanted either: it is found in its queue, and goes to its exchange from there.
#[test]
fn what_no_queue_wanted_is_worked_on_in_its_queue() {
    let folder = Folder::new();
    let collect = "[topology]\ncollect = false\n";
    folder.write("postrider.toml", &format!("{collect}{QUEUES}"));
    folder.run(&["publish", "other.thing.happened", "--data", "{}", "--id", "evt_9"]).assert(0, "evt_9");
    let unroutable = |what: &[&str]| {
        folder.run(&[&["dlq"], what, &["--in-queue", "postrider.events.unroutable"]].concat())
    };
    let serving = folder.serve(&[]);
    while folder.run(&["event", "trace", "evt_9", "--json"]).json()["outbox"][0]["status"] != "published" {}
    drop(serving);
    assert_eq!(unroutable(&["ls", "--json"]).assert(0, "").json()[0]["reason"], "unroutable");
    let others = "[[queue]]\nname = 'others'\nbind = ['other.#']\n";
    folder.write("postrider.toml", &format!("{collect}{QUEUES}{others}"));
    folder.serve(&[]).wait_for("serving");
    unroutable(&["replay", "--all", "--yes"]).assert(0, "1 taken out of postrider.events.unroutable");
    let serving = folder.serve(&[]);
    let (_, given) = ask(&serving, "POST", "/v1/queues/others/deliveries", &json!({ "wait_ms": 20_000 }));
    assert_eq!(given["deliveries"][0]["id"], "evt_9", "{given}");
}

#[test]
fn a_rule_that_says_too_little_is_refused_at_the_start() {
    let folder = Folder::new();
    folder.write("postrider.toml", "[[triage.rule]]\nname = 'all'\nevery = '1h'\n");
    folder.run(&["audit"]).assert(2, "say which dead letters");
}
