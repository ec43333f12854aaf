//! Periods on the command line: closed, opened again, locked, and a year carried on.

use super::ledger::{EVENTS, books, change, ledger};

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

/// Whatever would be refused is refused by a dry run too, with the same words and exit code, and nothing is kept of what would not.
#[test]
fn a_dry_run_refuses_what_the_command_refuses() {
    let folder = books();
    for (words, code, told) in [
        (&["reverse", "99"][..], 1, "99"),
        (&["settle", "1"][..], 1, ""),
        (&["void", "1"][..], 1, ""),
        (&["periods", "lock", "2027", "--yes"][..], 2, "cannot become locked"),
        (&["rates", "add", "EUR", "1.1", "--on", "2026-03-01"][..], 2, "rates are for other currencies"),
        (&["book", "set", "--retained", "sales"][..], 2, "kept on an equity account"),
        (&["book", "set", "--rounding", "nowhere"][..], 1, "there is no account nowhere"),
    ] {
        let dry = ledger(&folder, &[words, &["--dry-run"]].concat()).assert(code, told);
        assert_eq!(dry.out, ledger(&folder, words).assert(code, told).out, "{words:?}");
    }
    let dry =
        |words: &[&str]| ledger(&folder, &[words, &["--dry-run", "--json"]].concat()).assert(0, "").json();
    let told = dry(&["reverse", "1"]);
    assert_eq!(
        (&told["dry_run"], &told["refers_to"], &told["entry"]),
        (&true.into(), &"1".into(), &"5".into())
    );
    let told = dry(&["periods", "close", "2026-Q1"]);
    assert_eq!((&told["period"], &told["state"]), (&"2026-Q1".into(), &"closed".into()));
    let told = dry(&["close", "2026"]);
    assert_eq!((&told["currency"], &told["entries"]), (&"EUR".into(), &1.into()), "{told}");
    let told = dry(&["rates", "add", "USD", "0.9", "--on", "2026-04-01"]);
    assert!(told["would"].as_str().unwrap().contains("1 USD = 0.9 EUR"), "{told}");
    assert_eq!(ledger(&folder, &["entries", "ls", "--json"]).json().as_array().unwrap().len(), 4);
    assert!(ledger(&folder, &["periods", "ls", "--json"]).json().as_array().unwrap().is_empty());
    assert_eq!(ledger(&folder, &["rates", "ls", "--json"]).json().as_array().unwrap().len(), 2);
    ledger(&folder, &["verify"]).assert(0, "hold");
}

#[test]
fn a_locked_period_says_what_to_do_and_stays_locked() {
    let folder = books();
    let periods = |what: &str| ledger(&folder, &["periods", what, "2026-03", "--yes"]);
    periods("close").assert(0, "sealed by entry 5");
    periods("open").assert(0, "recorded by entry 6");
    periods("close").assert(0, "sealed by entry 7");
    periods("lock").assert(0, "recorded by entry 8");
    periods("open").assert(2, "is locked and cannot become open");
    folder.write("late.jsonl", &EVENTS.replace("\"o-1\"", "\"o-9\""));
    let late = folder.run(&["ledger", "ingest", "late.jsonl", "--json"]).assert(6, "").json();
    let why = late["refused"][0]["why"].as_str().unwrap();
    assert!(why.contains("cannot be opened again") && why.contains("--back-dated next_open"), "{why}");
    let verified = ledger(&folder, &["verify", "--json"]).assert(0, "the chain does not cover").json();
    assert_eq!(verified[0]["accounts_sealed_by"], "8", "{verified}");
    assert!(verified[0]["not_covered"].as_array().unwrap().contains(&"ledger_rate".into()), "{verified}");
    for (statement, found) in [
        ("UPDATE ledger_period SET state = 'open'", "period_changed: the period 2026-03 is open"),
        ("UPDATE ledger_period SET state = 'closed'", "by its seal in entry 8 it is locked"),
    ] {
        change(&folder, statement);
        let told = ledger(&folder, &["verify", "--quiet"]).assert(3, "").out;
        assert!(told.contains(found), "{told}");
    }
    change(&folder, "UPDATE ledger_period SET state = 'locked'");
    change(&folder, "UPDATE ledger_account SET type = 'asset' WHERE code = 'sales'");
    ledger(&folder, &["verify"]).assert(3, "accounts_changed: the type, the normal side or the currency");
}
