//! What is asked for and is not there: one exit code in every command, so that scripts need not know which one they asked.

use super::process::Folder;

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
        &["consumers", "pause", "nosuch"],
        &["consumers", "resume", "nosuch"],
        &["consumers", "release", "nosuch", "order/1", "--yes"],
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
