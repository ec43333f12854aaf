//! What people must be able to rely on in `postrider ledger`: nothing goes wrong in silence, nothing that is promised is out of sight.

use super::ledger::{books, ledger};

#[test]
fn what_cannot_be_is_refused_before_anybody_relies_on_it() {
    let folder = books();
    ledger(&folder, &["accounts", "init", "--base", "EUR"]).assert(0, "left as they are");
    ledger(&folder, &["accounts", "init", "--base", "USD"])
        .assert(1, "keeps books in EUR already, not in USD");
    ledger(&folder, &["rates", "add", "EUR", "2", "--on", "2026-03-01"])
        .assert(2, "rates are for other currencies");
    // A file that cannot be read to its end is no file of nothing.
    ledger(&folder, &["ingest", "."]).assert(1, "cannot read");
    let rules = ledger(&folder, &["rules", "show"]).assert(0, "").out;
    folder.write("rules.toml", &rules);
    ledger(&folder, &["rules", "check", "rules.toml", "--events", "."]).assert(1, "cannot read");
    // Whose payload cannot be read is known all the same.
    folder
        .write("twice.jsonl", r#"{"type": "a.b", "id": "e-9", "tenant": "acme", "data": {"n": 1, "n": 2}}"#);
    let told = ledger(&folder, &["ingest", "twice.jsonl", "--json"]).assert(6, "").json();
    let refused = &told["refused"];
    assert_eq!((&refused[0]["id"], &refused[0]["code"]), (&"e-9".into(), &"malformed".into()), "{refused}");
    folder.write("nobody.jsonl", r#"{"type": "a.b", "id": "e-10", "data": {}}"#);
    let told = folder.run(&["ledger", "ingest", "nobody.jsonl", "--json"]).assert(6, "").json();
    assert_eq!(told["refused"][0]["code"], "no_tenant", "{told}");
}

#[test]
fn promises_are_seen_in_balances_until_they_are_kept() {
    let folder = books();
    let line = |account: &str, side: &str| {
        format!(r#"{{"account": "{account}", "side": "{side}", "amount": "50.00", "currency": "CHF"}}"#)
    };
    let (debit, credit) = (line("bank", "debit"), line("equity", "credit"));
    ledger(&folder, &["rates", "add", "CHF", "1.05", "--on", "2026-03-01"]).assert(0, "");
    folder.write(
        "promise.json",
        &format!(r#"{{"effectiveOn": "2026-03-05", "pending": true, "lines": [{debit}, {credit}]}}"#),
    );
    let entry = ledger(&folder, &["entries", "add", "promise.json"]).assert(0, "").out;
    let francs = || {
        let rows = ledger(&folder, &["balance", "bank", "--json"]).assert(0, "").json();
        let row = rows.as_array().unwrap().iter().find(|row| row["currency"] == "CHF").unwrap().clone();
        ["balance", "pending_debits", "pending_credits"].map(|name| row[name].as_str().unwrap().to_owned())
    };
    assert_eq!(francs(), ["0.00", "50.00", "0.00"]);
    ledger(&folder, &["settle", entry.trim()]).assert(0, "");
    assert_eq!(francs(), ["50.00", "0.00", "0.00"]);
    // Of other days it is not kept.
    let then = ledger(&folder, &["balance", "bank", "--at", "2026-12-31", "--json"]).assert(0, "").json();
    assert!(then[0]["pending_debits"].is_null() && then[0]["balance"].is_string(), "{then}");
}

#[test]
fn entries_of_many_lines_are_imported_a_part_at_a_time() {
    let folder = books();
    let line =
        |side: &str| format!(r#"{{"account": "bank", "side": "{side}", "amount": "1", "currency": "EUR"}}"#);
    let lines = vec![[line("debit"), line("credit")].join(","); 500].join(",");
    let entry =
        |n: usize| format!(r#"{{"sourceEvent": "m-{n}", "effectiveOn": "2026-03-05", "lines": [{lines}]}}"#);
    folder.write("many.jsonl", &(0..12).map(entry).collect::<Vec<_>>().join("\n"));
    ledger(&folder, &["import", "many.jsonl"]).assert(0, "12 posted, 0 were posted before, 0 refused");
    ledger(&folder, &["import", "many.jsonl"]).assert(0, "0 posted, 12 were posted before");
    ledger(&folder, &["verify"]).assert(0, "hold");
}

#[test]
fn what_the_ledger_tells_is_not_held_to_what_others_may_publish() {
    let folder = books();
    let config = "[topology]\npreset = \"fis\"\n[ledger]\nannounce_exchange = \"fis.domain.exchange\"\n\
        [limits]\nmax_payload_bytes = 300\n";
    folder.write("postrider.toml", config);
    let line = |account: &str, side: &str| {
        format!(r#"{{"account": "{account}", "side": "{side}", "amount": "50.00", "currency": "EUR"}}"#)
    };
    let (debit, credit) = (line("bank", "debit"), line("equity", "credit"));
    folder.write("entry.json", &format!(r#"{{"effectiveOn": "2026-03-05", "lines": [{debit}, {credit}]}}"#));
    ledger(&folder, &["entries", "add", "entry.json"]).assert(0, "5");
}

/// Two exports in one file have an entry 1 each. What refers to one that was refused refers to nothing, and not to the other.
#[test]
fn references_of_an_import_stay_within_the_books_they_are_from() {
    let folder = books();
    let entry = |whose: &str, number: u8, account: &str, more: &str| {
        let line = |account: &str, side: &str| {
            format!(r#"{{"account": "{account}", "side": "{side}", "amount": "7.00", "currency": "EUR"}}"#)
        };
        let lines = format!("{}, {}", line(account, "debit"), line("equity", "credit"));
        format!(
            r#"{{"tenantId": "{whose}", "entry": "{number}", "sourceEvent": "{whose}-{number}", "effectiveOn": "2026-02-01", {more} "lines": [{lines}]}}"#
        )
    };
    let reversal = r#""kind": "reversal", "refersTo": "1","#;
    let file = [
        entry("north", 1, "bank", ""),
        entry("south", 1, "nowhere", ""),
        entry("south", 2, "bank", reversal),
        entry("north", 2, "bank", reversal),
    ];
    folder.write("both.jsonl", &file.join("\n"));
    for more in [&["--dry-run"][..], &[]] {
        let told =
            ledger(&folder, &[&["import", "both.jsonl", "--json"], more].concat()).assert(6, "").json();
        let refused = told["refused"].as_array().unwrap().iter();
        let codes: Vec<_> = refused.map(|row| row["code"].as_str().unwrap()).collect();
        assert_eq!((&told["posted"], codes), (&2.into(), vec!["unknown_account", "unknown_entry"]), "{told}");
    }
    let shown = ledger(&folder, &["entries", "show", "6", "--json"]).assert(0, "").json();
    assert_eq!((&shown["sourceEvent"], &shown["refersTo"]), (&"north-2".into(), &"5".into()), "{shown}");
}

/// Whoever names an account anew says nothing of whether it is closed.
#[test]
fn an_account_that_is_closed_stays_so_when_it_is_named_anew() {
    let folder = books();
    let add = ["accounts", "add", "bank", "--type", "asset", "--name", "Till"];
    ledger(&folder, &["accounts", "close", "bank"]).assert(0, "bank is closed");
    ledger(&folder, &[&add[..], &["--dry-run"]].concat()).assert(0, "closed");
    ledger(&folder, &add).assert(0, "bank is closed");
    let accounts = ledger(&folder, &["accounts", "ls", "--json"]).assert(0, "").json();
    let bank = accounts.as_array().unwrap().iter().find(|account| account["code"] == "bank").unwrap();
    assert_eq!((&bank["name"], &bank["active"]), (&"Till".into(), &false.into()), "{bank}");
    ledger(&folder, &["accounts", "open", "bank"]).assert(0, "bank is open");
}
