//! The verifier in Python by itself: what no hash tells, and whoever changed it.

use std::process::Command;

use super::ledger::{books, change, ledger};
use super::process::{Folder, PYTHON};

/// What it says, and its exit code.
fn verified(folder: &Folder, args: &[&str]) -> (Option<i32>, String) {
    let python = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ledger-verify.py");
    let ran = Command::new(PYTHON).arg(python).args(args).current_dir(folder.path()).output().unwrap();
    let (out, err) = (String::from_utf8(ran.stdout).unwrap(), String::from_utf8(ran.stderr).unwrap());
    (ran.status.code(), out + &err)
}

#[test]
fn an_export_with_another_point_name_or_base_currency_does_not_hold() {
    let folder = books();
    ledger(&folder, &["periods", "close", "2026-01"]).assert(0, "sealed by entry 5");
    let text = ledger(&folder, &["export", "--format", "jsonl"]).assert(0, "").out;
    let export = |text: &str| {
        folder.write("journal.jsonl", text);
        verified(&folder, &["--jsonl", "journal.jsonl"])
    };
    let (code, said) = export(&text);
    assert_eq!(code, Some(0), "{said}");
    for (of, changed, named) in [
        // The digits are hashed, and where the point stands is not.
        (r#""amount":"119.00""#, r#""amount":"11900""#, "not how an amount in EUR is written"),
        (r#""amount":"119.00""#, r#""amount":"11.900""#, "not how an amount in EUR is written"),
        (r#""amount":"3000""#, r#""amount":"30.00""#, "not how an amount in JPY is written"),
        (r#""amount":"119.00""#, r#""amount":"999.00","amount":"119.00""#, "stands twice"),
        (r#""entry":"2""#, r#""entry":"0_2""#, "not how the number of an entry is written"),
        (r#""baseCurrency":"EUR""#, r#""baseCurrency":"CHF""#, "another base currency"),
    ] {
        assert!(text.contains(of), "{text}");
        let (code, said) = export(&text.replace(of, changed));
        assert!(code == Some(3) && said.contains(named), "{changed}: {said}");
    }
}

#[test]
fn what_is_hashed_like_nothing_or_not_at_all_is_named() {
    let folder = books();
    ledger(&folder, &["checkpoint"]).assert(0, "");
    ledger(&folder, &["periods", "close", "2026-01"]).assert(0, "");
    ledger(&folder, &["checkpoint"]).assert(0, "");
    let source = ["--sqlite", ".postrider/postrider.db"];
    let (code, said) = verified(&folder, &source);
    assert_eq!(code, Some(0), "{said}");
    for trigger in ["ledger_entry_update", "ledger_line_update", "ledger_checkpoint_delete"] {
        change(&folder, &format!("DROP TRIGGER {trigger}"));
    }
    let (first, nothing) = ("WHERE entry = 1 AND line = 1", "an empty rate, or with a rate or a source");
    for (falsified, back, named) in [
        ("ledger_entry SET refers_to = 0", "ledger_entry SET refers_to = NULL", "has 0 for a reference"),
        ("ledger_line SET rate_source = ''", "ledger_line SET rate_source = NULL", nothing),
        (
            "ledger_line SET rate = '', rate_source = ''",
            "ledger_line SET rate = NULL, rate_source = NULL",
            nothing,
        ),
        ("ledger_line SET amount = 'much'", "ledger_line SET amount = 11900", "a value that no ledger wrote"),
    ] {
        let which = if falsified.starts_with("ledger_entry") { "WHERE number = 1" } else { first };
        change(&folder, &format!("UPDATE {falsified} {which}"));
        let (code, said) = verified(&folder, &source);
        assert!(code == Some(3) && said.contains(named) && said.contains("entry 1 "), "{falsified}: {said}");
        ledger(&folder, &["verify"]).assert(3, "entry 1 ");
        change(&folder, &format!("UPDATE {back} {which}"));
    }
    change(&folder, "UPDATE ledger_line SET line = line + 100 WHERE entry = 1");
    let (code, said) = verified(&folder, &source);
    assert!(code == Some(3) && said.contains("the lines of entry 1 are not numbered"), "{said}");
    change(&folder, "UPDATE ledger_line SET line = line - 100 WHERE entry = 1");
    // A seal remembers the first checkpoint, and the second one follows it.
    change(&folder, "DELETE FROM ledger_checkpoint WHERE first_number = 1");
    let (code, said) = verified(&folder, &source);
    assert!(code == Some(3) && said.contains("does not follow the one before"), "{said}");
    change(&folder, "DELETE FROM ledger_checkpoint");
    let (code, said) = verified(&folder, &source);
    assert!(code == Some(3) && said.contains("the checkpoint of 1 is gone"), "{said}");
    let (_, said) = verified(&folder, &[&source[..], &["--key", "00"]].concat());
    assert!(said.contains("there is no checkpoint, and a key was named"), "{said}");
}
