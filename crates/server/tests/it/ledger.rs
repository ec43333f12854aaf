//! `postrider ledger` as people use it, and the other programs that must agree with it.

use std::process::Command;

use super::process::{Folder, Ran};

const EVENTS: &str = r#"
{"type": "ecommerce.order.completed", "id": "o-1", "tenant": "acme", "data": {"orderId": "o-1", "customerId": "alice", "total": "119.00", "tax": 19, "currency": "EUR", "completedAt": "2026-03-01"}}
{"type": "ecommerce.order.completed", "id": "o-2", "tenant": "acme", "data": {"orderId": "o-2", "customerId": "bob", "total": 10.05, "tax": 1, "currency": "USD", "completedAt": "2026-03-01"}}
{"type": "billing.invoice.paid", "id": "i-1", "tenant": "acme", "data": {"invoiceId": "i \"1\"; é", "customerId": "alice", "amount": "119.00", "fee": 1.19, "currency": "EUR", "paidAt": "2026-03-31"}}
{"type": "payroll.salary.disbursed", "id": "s-1", "tenant": "acme", "data": {"employeeId": "e-1", "gross": 3000, "tax": 1000, "currency": "JPY", "paidOn": "2026-12-31"}}
"#;

const BAD: &str = r#"
{"type": "ecommerce.order.completed", "id": "b-1", "tenant": "acme", "data": {"orderId": "x", "customerId": "c", "total": 1.005, "currency": "EUR"}}
{"type": "unheard.of", "id": "b-2", "tenant": "acme", "data": {}}
{"type": "payroll.salary.disbursed", "id": "b-3", "tenant": "nobody", "data": {}}
not json
{"type": "payroll.salary.disbursed", "tenant": "acme", "data": {}}
"#;

/// A folder with the books of acme, four entries in them.
fn books() -> Folder {
    let folder = Folder::new();
    ledger(&folder, &["accounts", "init", "--base", "EUR"]).assert(0, "opened the books of acme");
    ledger(&folder, &["rates", "add", "USD", "0.333", "--on", "2026-02-27"]).assert(0, "1 USD = 0.333 EUR");
    ledger(&folder, &["rates", "add", "JPY", "0.0061", "--on", "2026-12-31"]).assert(0, "");
    folder.write("events.jsonl", EVENTS);
    folder.run(&["ledger", "ingest", "events.jsonl"]).assert(0, "4 posted, 0 were posted before, 0 refused");
    folder
}

fn ledger(folder: &Folder, args: &[&str]) -> Ran {
    folder.run(&[&["ledger", "--tenant", "acme"], args].concat())
}

/// Runs another program in the folder. It has to be there: scripts/install-servers brings it.
fn program(folder: &Folder, name: &str, args: &[&str]) -> String {
    let ran = Command::new(name).args(args).current_dir(folder.path()).output();
    let ran = ran
        .unwrap_or_else(|error| panic!("{name} does not run ({error}); scripts/install-servers brings it"));
    let (out, err) = (String::from_utf8(ran.stdout).unwrap(), String::from_utf8(ran.stderr).unwrap());
    assert!(ran.status.success(), "{name} {args:?}: {out}{err}");
    out
}

fn export(folder: &Folder, format: &str) {
    let text = ledger(folder, &["export", "--format", format]).assert(0, "").out;
    folder.write(&format!("journal.{format}"), &text);
}

#[test]
fn events_become_entries_that_add_up() {
    let folder = books();
    folder.run(&["ledger", "ingest", "events.jsonl"]).assert(0, "0 posted, 4 were posted before");
    let trial = ledger(&folder, &["trial-balance", "--json"]).assert(0, "").json();
    let totals: Vec<_> = trial["totals"].as_array().unwrap().iter().map(|total| &total["balanced"]).collect();
    assert_eq!(totals, [true, true, true, true], "base, EUR, JPY, USD: {trial}");
    let earlier =
        ledger(&folder, &["balance", "receivable", "--at", "2026-03-01", "-o", "jsonl"]).assert(0, "").out;
    assert_eq!(earlier.lines().count(), 2, "alice and bob: {earlier}");
    assert!(earlier.contains(r#""balance":"119.00""#), "{earlier}");
    let statement = ledger(&folder, &["statement", "receivable:alice", "--json"]).json();
    assert_eq!((&statement[0]["balance"], &statement[1]["balance"]), (&"119.00".into(), &"0.00".into()));
    let sheet = ledger(&folder, &["balance-sheet", "--json"]).assert(0, "").json();
    assert_eq!(sheet["balanced"], true);
    let income =
        ledger(&folder, &["income-statement", "--from", "2026-04-01", "--json"]).assert(0, "").json();
    assert_eq!(income["sums"]["expenses"], "18.30");
}

#[test]
fn bad_events_are_named_and_the_rest_is_posted() {
    let folder = books();
    folder.write("bad.jsonl", &format!("{BAD}{}", EVENTS.replace("\"s-1\"", "\"s-2\"")));
    let ran = folder
        .run(&["ledger", "ingest", "bad.jsonl", "--json"])
        .assert(6, "1 posted, 3 were posted before, 5 refused");
    let codes: Vec<_> =
        ran.json().as_array().unwrap().iter().map(|row| row["code"].as_str().unwrap().to_owned()).collect();
    assert_eq!(codes, ["too_many_digits", "no_rule", "unknown_tenant", "malformed", "malformed"]);
}

#[test]
fn rules_are_checked_and_tried_before_they_count() {
    let folder = books();
    let rules = "[[rule]]\nname = 'flat'\nmatch = 'payroll.#'\nline = [{account='salaries',debit='payload.gross'},{account='bank',credit='rest'}]\n";
    folder.write("rules.toml", rules);
    ledger(&folder, &["rules", "check", "rules.toml"]).assert(0, "1 rules can be used");
    let tried = ledger(&folder, &["rules", "check", "rules.toml", "--events", "events.jsonl", "--json"]);
    let tried = tried.assert(3, "1 of 4 events would be posted; nothing was").json();
    assert_eq!((&tried[0]["refused"], &tried[3]["lines"][1]["account"]), (&"no_rule".into(), &"bank".into()));
    folder.write("broken.toml", &rules.replace("'rest'", "'payload.map(x, x)'"));
    ledger(&folder, &["rules", "check", "broken.toml"]).assert(2, "no loops");
    ledger(&folder, &["rules", "set", "rules.toml"]).assert(0, "version 2");
}

#[test]
fn a_reversal_a_period_and_a_year() {
    let folder = books();
    ledger(&folder, &["reverse", "1", "--key", "k-1"]).assert(0, "");
    ledger(&folder, &["reverse", "1", "--key", "k-2"]).assert(1, "reversed before");
    let shown = ledger(&folder, &["entries", "show", "5", "--json"]).json();
    assert_eq!((&shown["kind"], &shown["refersTo"]), (&"reversal".into(), &"1".into()));
    ledger(&folder, &["periods", "close", "2026-Q1"]).assert(0, "2026-Q1 of acme is closed");
    ledger(&folder, &["reverse", "2"]).assert(1, "which is closed");
    ledger(&folder, &["periods", "close", "spring"]).assert(2, "write a month");
    ledger(&folder, &["close", "2026"]).assert(2, "add --yes");
    ledger(&folder, &["close", "2026", "--yes"]).assert(0, "");
    let income = ledger(&folder, &["income-statement", "--to", "2026-12-31", "--json"]).json();
    assert_ne!(income["sums"]["result"], "0.00", "before closing: {income}");
    assert_eq!(income["sums"]["carried"], income["sums"]["result"]);
    ledger(&folder, &["close", "2026", "--dry-run"]).assert(0, "would carry 0.00 EUR");
    ledger(&folder, &["verify"]).assert(0, "");
}

#[test]
fn opening_balances_are_imported_once() {
    let folder = books();
    folder.write(
        "opening.csv",
        "account,side,amount,currency\nbank,debit,500.00,EUR\nequity,credit,500.00,EUR\n",
    );
    let import = ["import", "opening.csv", "--on", "2025-12-31"];
    let first = ledger(&folder, &import).assert(0, "").out;
    assert_eq!(ledger(&folder, &import).assert(0, "").out, first);
    folder.write(
        "opening.csv",
        "account,side,amount,currency\nbank,debit,500.00,EUR\nequity,credit,400.00,EUR\n",
    );
    ledger(&folder, &["import", "opening.csv", "--on", "2025-11-30"]).assert(1, "must be equal");
}

#[test]
fn a_changed_byte_is_found_here_and_by_the_verifier_in_python() {
    let folder = books();
    ledger(&folder, &["checkpoint"]).assert(0, "made a signing key");
    let proof = ledger(&folder, &["proof", "2", "--json"]).assert(0, "").json();
    assert_eq!(proof["holds"], true);
    ledger(&folder, &["proof", "9"]).assert(3, "no checkpoint has entry 9");
    export(&folder, "jsonl");
    let head =
        ledger(&folder, &["verify", "--json"]).assert(0, "").json()[0]["head"].as_str().unwrap().to_owned();
    let python = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ledger-verify.py");
    for source in [["--sqlite", ".postrider/postrider.db"], ["--jsonl", "journal.jsonl"]] {
        let said = program(&folder, "python3", &[&[python], source.as_slice()].concat());
        assert!(said.contains(&head) && said.contains("holds"), "{said}");
    }
    let tamper = "import sqlite3; db = sqlite3.connect('.postrider/postrider.db'); db.execute('DROP TRIGGER ledger_line_update'); \
        db.execute('UPDATE ledger_line SET base_amount = base_amount + 1 WHERE entry = 2 AND line = 1'); db.commit()";
    program(&folder, "python3", &["-c", tamper]);
    let ran = ledger(&folder, &["verify", "--json"]).assert(3, "entry 2");
    assert_eq!(ran.json()[0]["problems"][0]["code"], "hash_differs");
    let found = Command::new("python3")
        .args([python, "--sqlite", ".postrider/postrider.db"])
        .current_dir(folder.path())
        .output();
    assert_eq!(found.unwrap().status.code(), Some(3));
}

#[test]
fn hledger_and_beancount_accept_the_journal_and_agree() {
    let folder = books();
    ledger(&folder, &["reverse", "3"]).assert(0, "");
    export(&folder, "hledger");
    export(&folder, "beancount");
    program(&folder, "bean-check", &["journal.beancount"]);
    program(&folder, "hledger", &["-f", "journal.hledger", "check", "accounts"]);
    // ACCOUNT, then the balance: debits count up.
    let theirs = program(
        &folder,
        "hledger",
        &["-f", "journal.hledger", "balance", "-N", "--flat", "-E", "-O", "csv", "--layout", "bare"],
    );
    let trial = ledger(&folder, &["trial-balance", "--json"]).json();
    let mut compared = 0;
    for row in trial["rows"].as_array().unwrap() {
        let text = |name: &str| row[name].as_str().unwrap();
        let (debits, credits): (f64, f64) =
            (text("debits").parse().unwrap(), text("credits").parse().unwrap());
        let (account, currency) = (text("account"), text("currency"));
        let theirs = theirs.lines().find_map(|line| {
            let cells: Vec<_> = line.split(',').map(|cell| cell.trim_matches('"')).collect();
            (cells[0] == account && cells[1] == currency).then(|| cells[2].parse::<f64>().unwrap())
        });
        let difference = debits - credits - theirs.unwrap_or(0.0);
        assert!(difference.abs() < 0.001, "{account} {currency}: {row} is {theirs:?} there");
        compared += 1;
    }
    assert!(compared >= 9, "{trial}");
}
