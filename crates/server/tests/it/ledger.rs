//! `postrider ledger` as people use it, and the other programs that must agree with it.

use std::process::Command;

use super::process::{Folder, PYTHON, Ran};

pub(super) const EVENTS: &str = r#"
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
pub(super) fn books() -> Folder {
    let folder = Folder::new();
    ledger(&folder, &["accounts", "init", "--base", "EUR"]).assert(0, "opened the books of acme");
    ledger(&folder, &["rates", "add", "USD", "0.333", "--on", "2026-02-27"]).assert(0, "1 USD = 0.333 EUR");
    ledger(&folder, &["rates", "add", "JPY", "0.0061", "--on", "2026-12-31"]).assert(0, "");
    folder.write("events.jsonl", EVENTS);
    folder.run(&["ledger", "ingest", "events.jsonl", "--dry-run"]).assert(0, "4 would be posted");
    folder.run(&["ledger", "ingest", "events.jsonl"]).assert(0, "4 posted, 0 were posted before, 0 refused");
    folder
}

pub(super) fn ledger(folder: &Folder, args: &[&str]) -> Ran {
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

/// Changes the file past the ledger.
pub(super) fn change(folder: &Folder, statement: &str) {
    let change = format!(
        "import sqlite3; db = sqlite3.connect('.postrider/postrider.db'); db.execute(\"{statement}\"); db.commit()"
    );
    program(folder, PYTHON, &["-c", &change]);
}

fn export(folder: &Folder, format: &str) {
    let text = ledger(folder, &["export", "--format", format]).assert(0, "").out;
    folder.write(&format!("journal.{format}"), &text);
}

#[test]
fn events_become_entries_that_add_up() {
    let folder = books();
    folder.run(&["ledger", "ingest", "events.jsonl"]).assert(0, "0 posted, 4 were posted before");
    // Found by its id alone, although nothing but the books has it.
    folder.run(&["event", "trace", "o-1"]).assert(0, "applied by ledger");
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
    let told = ran.json();
    assert_eq!((&told["posted"], &told["duplicates"]), (&1.into(), &3.into()), "{told}");
    let refused = told["refused"].as_array().unwrap();
    let codes: Vec<_> = refused.iter().map(|row| row["code"].as_str().unwrap()).collect();
    assert_eq!(codes, ["too_many_digits", "no_rule", "unknown_tenant", "malformed", "malformed"]);
    let again = folder.run(&["ledger", "ingest", "events.jsonl", "--json"]).assert(0, "").json();
    assert_eq!(again, serde_json::json!({"posted": 0, "duplicates": 4, "refused": []}));
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
    folder.write("stray.toml", &rules.replace("'bank'", "'till'"));
    ledger(&folder, &["rules", "check", "stray.toml"]).assert(0, "there is no account till");
    ledger(&folder, &["rates", "add", "USD", "1e-30", "--on", "2026-03-01"])
        .assert(2, "digits after the point");
    folder.write("broken.toml", &rules.replace("'rest'", "'payload.map(x, x)'"));
    ledger(&folder, &["rules", "check", "broken.toml"]).assert(2, "no loops");
    ledger(&folder, &["rules", "set", "rules.toml", "--dry-run"]).assert(0, "nothing was changed");
    let ghost = ["ledger", "--tenant", "ghost", "rules", "set", "rules.toml", "--dry-run"];
    folder.run(&ghost).assert(1, "has no books");
    ledger(&folder, &["rules", "set", "rules.toml"]).assert(0, "version 2");
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
    assert_eq!(ledger(&folder, &import).assert(0, "this file is entry 5 already").out, first);
    // A corrected file after a reversal, or one of another branch, is another entry of the same day.
    ledger(&folder, &["reverse", first.trim()]).assert(0, "6");
    assert_eq!(ledger(&folder, &import).assert(0, "entry 5 was reversed by 6").out, first);
    folder.write(
        "opening.csv",
        "account,side,amount,currency\nbank,debit,600.00,EUR\nequity,credit,600.00,EUR\n",
    );
    let dry =
        ledger(&folder, &[&import[..], &["--dry-run", "--json"]].concat()).assert(0, "nothing was posted");
    assert_eq!(dry.json()["entry"], "7");
    ledger(&folder, &import).assert(0, "7");
    ledger(&folder, &import).assert(0, "this file is entry 7 already");
    folder.write(
        "opening.csv",
        "account,side,amount,currency\nbank,debit,500.00,EUR\nequity,credit,400.00,EUR\n",
    );
    for more in [&["--dry-run"][..], &[]] {
        let import = [&["import", "opening.csv", "--on", "2025-11-30"][..], more].concat();
        ledger(&folder, &import).assert(1, "must be equal");
    }
}

#[test]
fn a_changed_byte_is_found_here_and_by_the_verifier_in_python() {
    let folder = books();
    ledger(&folder, &["proof", "2"]).assert(3, "no checkpoint has entry 2");
    ledger(&folder, &["checkpoint", "--dry-run"]).assert(0, "would be signed; nothing was changed");
    ledger(&folder, &["checkpoint"]).assert(0, "made a signing key");
    let proof = ledger(&folder, &["proof", "2", "--json"]).assert(0, "").json();
    assert_eq!(proof["holds"], true);
    ledger(&folder, &["proof", "9"]).assert(1, "there is no entry 9");
    export(&folder, "jsonl");
    let head =
        ledger(&folder, &["verify", "--json"]).assert(0, "").json()[0]["head"].as_str().unwrap().to_owned();
    let python = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ledger-verify.py");
    for source in [["--sqlite", ".postrider/postrider.db"], ["--jsonl", "journal.jsonl"]] {
        let said = program(&folder, PYTHON, &[&[python], source.as_slice()].concat());
        assert!(said.contains(&head) && said.contains("holds"), "{said}");
    }
    // Only who knows the key can tell that nobody else signed.
    let verified = ledger(&folder, &["verify", "--json"]).assert(0, "key not pinned").json();
    let key = verified[0]["signed_by"][0].as_str().unwrap().to_owned();
    ledger(&folder, &["verify", "--key", &key]).assert(0, "pinned");
    ledger(&folder, &["verify", "--key", "beef"]).assert(2, "64 hexadecimal digits");
    let stranger = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
    ledger(&folder, &["verify", "--key", stranger]).assert(3, "checkpoint_foreign_key");
    folder.write("postrider.toml", &format!("[ledger]\ntrusted_keys = ['{stranger}']"));
    ledger(&folder, &["verify"]).assert(3, "none of the keys that were named");
    folder.write("postrider.toml", "");
    let pinned = |key: &str| {
        let args = [python, "--sqlite", ".postrider/postrider.db", "--key", key];
        Command::new(PYTHON).args(args).current_dir(folder.path()).output().unwrap().status.code()
    };
    assert_eq!((pinned(&key), pinned(stranger)), (Some(0), Some(3)));
    let ghost = [python, "--sqlite", ".postrider/postrider.db", "--tenant", "ghost"];
    let ghost = Command::new(PYTHON).args(ghost).current_dir(folder.path()).output().unwrap();
    assert_eq!(ghost.status.code(), Some(3), "nothing was verified");
    let found = || {
        let args = [python, "--sqlite", ".postrider/postrider.db"];
        Command::new(PYTHON).args(args).current_dir(folder.path()).output().unwrap()
    };
    for (head, code) in [("3", 3), ("4", 0)] {
        change(&folder, &format!("UPDATE ledger_book SET head_number = {head}"));
        let (found, told) = (found(), ledger(&folder, &["verify", "--quiet"]).assert(code, "").out);
        let said = String::from_utf8(found.stdout).unwrap();
        assert_eq!(
            (found.status.code(), said.contains("the head of the chain says entry 3")),
            (Some(code), code == 3),
            "{said}"
        );
        assert_eq!(told.contains("head_differs"), code == 3, "{told}");
    }
    let tamper = "import sqlite3; db = sqlite3.connect('.postrider/postrider.db'); db.execute('DROP TRIGGER ledger_line_update'); \
        db.execute('UPDATE ledger_line SET base_amount = base_amount + 1 WHERE entry = 2 AND line = 1'); db.commit()";
    program(&folder, PYTHON, &["-c", tamper]);
    let ran = ledger(&folder, &["verify", "--json"]).assert(3, "entry 2");
    assert_eq!(ran.json()[0]["problems"][0]["code"], "hash_differs");
    // What was found is data: it stands on stdout, also where messages are left out.
    let told = ledger(&folder, &["verify", "--quiet"]).assert(3, "").out;
    assert!(told.contains("acme: hash_differs: entry 2") && !told.contains("Sums {"), "{told}");
    assert_eq!(found().status.code(), Some(3));
    // Lines whose entry is gone are named too, also where no entry is left at all.
    for (which, gone) in [("number = 3", "entry 3 is gone"), ("1 = 1", "entry 1 is gone")] {
        let tamper = format!(
            "import sqlite3; db = sqlite3.connect('.postrider/postrider.db'); db.execute('DROP TRIGGER IF EXISTS ledger_entry_delete'); \
             db.execute('DELETE FROM ledger_entry WHERE {which}'); db.commit()"
        );
        program(&folder, PYTHON, &["-c", &tamper]);
        let (found, told) = (found(), ledger(&folder, &["verify", "--quiet"]).assert(3, "").out);
        let said = String::from_utf8(found.stdout).unwrap();
        assert_eq!((found.status.code(), said.contains(gone)), (Some(3), true), "{said}");
        assert!(told.contains("entries_missing") || told.contains("head_differs"), "{told}");
    }
}

#[test]
fn hledger_and_beancount_accept_the_journal_and_agree() {
    let folder = books();
    ledger(&folder, &["reverse", "3"]).assert(0, "");
    export(&folder, "hledger");
    export(&folder, "beancount");
    program(&folder, "bean-check", &["journal.beancount"]);
    program(&folder, "hledger", &["-f", "journal.hledger", "check", "--strict"]);
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
    // beancount has other names for accounts, and the same balances.
    let theirs = program(&folder, PYTHON, &["-c", BEANCOUNT]);
    let mut theirs: Vec<&str> = theirs.lines().collect();
    let ours = trial["rows"].as_array().unwrap().iter().map(|row| {
        let minor = |name: &str| row[name].as_str().unwrap().replace('.', "").parse::<i64>().unwrap();
        format!("{} {}", row["currency"].as_str().unwrap(), minor("debits") - minor("credits"))
    });
    let mut ours: Vec<String> = ours.filter(|balance| !balance.ends_with(" 0")).collect();
    ours.sort_unstable();
    theirs.sort_unstable();
    assert_eq!(theirs, ours);
}

/// Every balance that beancount comes to and that is not zero: the currency, and minor units.
const BEANCOUNT: &str = r#"
from collections import defaultdict
from beancount import loader
from beancount.core.data import Transaction
entries, errors, _ = loader.load_file("journal.beancount")
assert not errors, errors
balances = defaultdict(int)
for entry in entries:
    for posting in entry.postings if isinstance(entry, Transaction) else []:
        balances[posting.account, posting.units.currency] += posting.units.number
for (account, currency), held in balances.items():
    if held:
        print(currency, int(held * (1 if currency == "JPY" else 100)))
"#;

#[test]
fn history_comes_back_from_an_export() {
    let folder = books();
    let odd = r#"{"id": "=odd", "effectiveOn": "2026-03-02", "description": "=1+1, \"x\"\nand more", "metadata": {"note": "é"},
        "lines": [{"account": "fees", "side": "debit", "amount": "1.00", "currency": "EUR"},
        {"account": "bank", "side": "credit", "amount": "1.00", "currency": "EUR"}]}"#;
    folder.write("odd.json", odd);
    ledger(&folder, &["entries", "add", "odd.json", "--dry-run"]).assert(0, "would post 2 lines");
    ledger(&folder, &["entries", "add", "odd.json"]).assert(0, "5");
    ledger(&folder, &["reverse", "3"]).assert(0, "6");
    ledger(&folder, &["periods", "close", "2026-Q1"]).assert(0, "sealed by entry 7");
    ledger(&folder, &["close", "2026", "--yes"]).assert(0, "8");
    let trial = |tenant: &str| {
        let shown =
            folder.run(&["ledger", "--tenant", tenant, "trial-balance", "--json"]).assert(0, "").json();
        (shown["rows"].clone(), shown["totals"].clone())
    };
    let chart = ledger(&folder, &["accounts", "ls", "--json"]).assert(0, "").out;
    folder.write("chart.json", &chart);
    for format in ["jsonl", "csv"] {
        export(&folder, format);
        let (tenant, file) = (format!("copy-{format}"), format!("journal.{format}"));
        let copy = |args: &[&str]| folder.run(&[&["ledger", "--tenant", &tenant], args].concat());
        copy(&["accounts", "init", "--base", "EUR", "--chart", "chart.json"]).assert(0, "opened");
        copy(&["import", &file, "--dry-run"]).assert(0, "7 would be posted, 0 were posted before, 0 refused");
        copy(&["import", &file]).assert(0, "7 posted, 0 were posted before, 0 refused, 1 seal of a period");
        copy(&["import", &file]).assert(0, "0 posted, 7 were posted before, 0 refused");
        copy(&["import", &file, "--dry-run"]).assert(0, "0 would be posted, 7 were posted before");
        assert_eq!(trial(&tenant), trial("acme"), "{format}");
        copy(&["verify"]).assert(0, "hold");
        let (there, here) = (
            ledger(&folder, &["entries", "show", "5", "--json"]).json(),
            copy(&["entries", "show", "5", "--json"]).json(),
        );
        for kept in ["description", "effectiveOn", "kind", "lines", "payloadHash", "sourceEvent"] {
            assert_eq!(there[kept], here[kept], "{format}: {kept}");
        }
        assert_eq!(
            (&here["metadata"]["imported_entry"], &here["metadata"]["note"]),
            (&"acme/5".into(), &"é".into())
        );
        let reversal = copy(&["entries", "show", "6", "--json"]).json();
        assert_eq!((&reversal["kind"], &reversal["refersTo"]), (&"reversal".into(), &"3".into()));
        // Another file says something else: what is wrong is named with its line, and the rest is posted.
        let text = std::fs::read_to_string(folder.path().join(&file)).unwrap();
        folder.write(&file, &text.replace("tax-payable", "nowhere"));
        let other = format!("other-{format}");
        let other = |args: &[&str]| folder.run(&[&["ledger", "--tenant", &other], args].concat());
        other(&["accounts", "init", "--base", "EUR"]).assert(0, "opened");
        let told = other(&["import", &file, "--json"]).assert(6, "refused").json();
        assert_eq!((&told["duplicates"], &told["seals_left_out"]), (&0.into(), &1.into()), "{told}");
        let rows = &told["refused"];
        assert_eq!(
            (&rows[0]["code"], &rows[0]["event"]),
            (&"unknown_account".into(), &"o-1".into()),
            "{rows}"
        );
        assert_eq!(rows[0]["line"], if format == "csv" { 2 } else { 1 });
        other(&["verify"]).assert(0, "hold");
    }
    folder.write("short.csv", "account,side,amount,currency\nbank,debit,1,EUR\n");
    ledger(&folder, &["import", "short.csv"]).assert(6, "the header has no source_event, effective_on");
}

#[test]
fn settings_rules_and_rates_are_shown_and_changed_and_an_entry_is_corrected() {
    let folder = books();
    ledger(&folder, &["book", "set"]).assert(2, "what should change?");
    ledger(&folder, &["book", "set", "--rounding", "nowhere"]).assert(1, "there is no account nowhere");
    let set = ["book", "set", "--back-dated", "next_open", "--max-entries", "8", "--no-rounding", "--json"];
    let dry =
        ledger(&folder, &[set.as_slice(), &["--dry-run"]].concat()).assert(0, "nothing was changed").json();
    let before = ledger(&folder, &["book", "show", "--json"]).assert(0, "").json();
    assert_eq!((&before["back_dated"], &before["rounding_account"]), (&"refuse".into(), &"rounding".into()));
    assert_eq!(ledger(&folder, &set).assert(0, "").json(), dry);
    let after = ledger(&folder, &["book", "show", "--json"]).json();
    assert_eq!((&after["back_dated"], &after["max_entries"]), (&"next_open".into(), &8.into()));
    assert_eq!(
        (&after["rounding_account"], &after["retained_account"]),
        (&().into(), &"retained-earnings".into())
    );

    ledger(&folder, &["rules", "ls"]).assert(0, "order completed, salary disbursed, invoice paid");
    let shown = ledger(&folder, &["rules", "show"]).assert(0, "").out;
    folder.write("rules.toml", &format!("{shown}# more\n"));
    ledger(&folder, &["rules", "set", "rules.toml"]).assert(0, "version 2");
    assert_eq!(ledger(&folder, &["rules", "show", "--version", "1"]).assert(0, "").out, shown);
    ledger(&folder, &["rules", "show", "--version", "9"]).assert(1, "there is no such version");
    let rates = ledger(&folder, &["rates", "ls", "USD", "--json"]).assert(0, "").json();
    assert_eq!((&rates[0]["rate"], rates.as_array().unwrap().len()), (&"0.333".into(), 1));

    let right = r#"{"effectiveOn": "2026-03-01", "description": "as it was", "lines": [
        {"account": "bank", "side": "debit", "amount": "100.00", "currency": "EUR"},
        {"account": "sales", "side": "credit", "amount": "100.00", "currency": "EUR"}]}"#;
    folder.write("right.json", right);
    let correct = ["correct", "1", "right.json", "--key", "c-1"];
    ledger(&folder, &[correct.as_slice(), &["--dry-run"]].concat()).assert(0, "nothing was posted");
    let first = ledger(&folder, &correct).assert(0, "entry 5 reverses it, entry 6 is the right one").out;
    assert_eq!(ledger(&folder, &correct).assert(0, "").out, first, "the same key is the same correction");
    ledger(&folder, &["correct", "1", "right.json"]).assert(1, "reversed before");
    folder.write(
        "wrong.json",
        &right.replace("\"100.00\", \"currency\": \"EUR\"}]", "\"99\", \"currency\": \"EUR\"}]"),
    );
    ledger(&folder, &["correct", "2", "wrong.json"]).assert(1, "must be equal");
    let entries = ledger(&folder, &["entries", "ls", "--json"]).json();
    assert_eq!(entries.as_array().unwrap().len(), 6, "both or neither");
    ledger(&folder, &["verify"]).assert(0, "hold");
}
