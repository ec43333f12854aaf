//! Whatever somebody changes behind the ledger's back is found and named.

use postrider_ledger::books::Books;
use postrider_ledger::report::Movement;

use super::{BooksFixture, Desk, code, order};

/// The tables themselves refuse to change what was written.
pub async fn entries_and_lines_are_final<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.posted(order("o-1", "10.00", "EUR")).await;
    for statement in [
        "UPDATE {}ledger_entry SET description = 'x'",
        "DELETE FROM {}ledger_entry",
        "UPDATE {}ledger_line SET amount = 1",
        "DELETE FROM {}ledger_line",
        "UPDATE {}ledger_rules SET document = ''",
        "DELETE FROM {}ledger_rules",
    ] {
        assert!(!fixture.try_statement(statement).await, "{statement} was let through");
    }
    desk.holds().await;
}

/// One changed column of one row, anywhere, and verification names it.
pub async fn whatever_is_changed_is_found_and_named<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let batch: Vec<_> = (1..=5).map(|n| order(&format!("o-{n}"), "10.00", "EUR")).collect();
    desk.post(&batch).await;
    desk.holds().await;
    for (change, back, code, entry) in [
        (
            "ledger_entry SET description = 'x' WHERE number = 3",
            "ledger_entry SET description = 'Order o-3' WHERE number = 3",
            "hash_differs",
            Some(3),
        ),
        (
            "ledger_entry SET source_event = 'y' WHERE number = 2",
            "ledger_entry SET source_event = 'o-2' WHERE number = 2",
            "hash_differs",
            Some(2),
        ),
        (
            "ledger_entry SET kind = 7 WHERE number = 5",
            "ledger_entry SET kind = 1 WHERE number = 5",
            "hash_differs",
            Some(5),
        ),
        (
            "ledger_entry SET number = 9 WHERE number = 4",
            "ledger_entry SET number = 4 WHERE number = 9",
            "entries_missing",
            Some(4),
        ),
        (
            "ledger_line SET amount = 1001 WHERE entry = 1 AND line = 1",
            "ledger_line SET amount = 1000 WHERE entry = 1 AND line = 1",
            "hash_differs",
            Some(1),
        ),
        (
            "ledger_line SET account = 'bank' WHERE entry = 4 AND line = 2",
            "ledger_line SET account = 'tax-payable' WHERE entry = 4 AND line = 2",
            "hash_differs",
            Some(4),
        ),
        (
            "ledger_line SET rate = '1' WHERE entry = 4 AND line = 1",
            "ledger_line SET rate = NULL WHERE entry = 4 AND line = 1",
            "hash_differs",
            Some(4),
        ),
        (
            "ledger_balance SET debits = debits + 1 WHERE account = 'receivable:alice'",
            "ledger_balance SET debits = debits - 1 WHERE account = 'receivable:alice'",
            "balance_differs",
            None,
        ),
        (
            "ledger_day SET credits = credits + 1 WHERE account = 'sales'",
            "ledger_day SET credits = credits - 1 WHERE account = 'sales'",
            "balance_differs",
            None,
        ),
        ("ledger_book SET head_number = 4", "ledger_book SET head_number = 5", "head_differs", Some(4)),
    ] {
        fixture.tamper(&format!("UPDATE {{}}{change}")).await;
        let verification = desk.verified().await;
        let found = verification
            .problems
            .iter()
            .any(|problem| problem.code == code && (entry.is_none() || problem.entry == entry));
        assert!(found, "{change}: {:?}", verification.problems);
        fixture.tamper(&format!("UPDATE {{}}{back}")).await;
    }
    desk.holds().await;
    fixture.tamper("DELETE FROM {}ledger_line WHERE entry = 5").await;
    fixture.tamper("DELETE FROM {}ledger_entry WHERE number = 5").await;
    let verification = desk.verified().await;
    assert!(
        verification.problems.iter().any(|problem| problem.code == "entries_missing"),
        "{verification:?}"
    );
}

/// Signed checkpoints follow each other, prove single entries, and notice when the whole chain was written anew.
pub async fn checkpoints_prove_entries<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let key = postrider_ledger::checkpoint::Key::from_seed([7; 32]);
    assert!(desk.ledger.checkpoint(&desk.tenant, &key).await.unwrap().is_none());
    for (from, to) in [(1, 5), (6, 8)] {
        let batch: Vec<_> = (from..=to).map(|n| order(&format!("o-{n}"), "10.00", "EUR")).collect();
        desk.post(&batch).await;
        let made = desk.ledger.checkpoint(&desk.tenant, &key).await.unwrap().unwrap();
        assert_eq!((made.first, made.last), (from, to));
    }
    assert_eq!(desk.verified().await.checkpoints, 2);
    for entry in 1..=8 {
        let proven = desk.ledger.prove(&desk.tenant, entry).await.unwrap().unwrap();
        assert_eq!(proven.proof.root(&proven.hash), proven.checkpoint.root);
    }
    desk.posted(order("o-9", "10.00", "EUR")).await;
    assert!(desk.ledger.prove(&desk.tenant, 9).await.unwrap().is_none());
    desk.holds().await;
    fixture.tamper("UPDATE {}ledger_checkpoint SET last_number = 9 WHERE last_number = 8").await;
    let codes: Vec<_> = desk.verified().await.problems.iter().map(|problem| problem.code).collect();
    assert!(codes.contains(&"checkpoint_unsigned") && codes.contains(&"checkpoint_differs"), "{codes:?}");
}

/// A statement of an account ends in its balance.
pub async fn a_statement_ends_in_the_balance<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.post(&[order("o-1", "10.00", "EUR"), order("o-2", "5.00", "EUR")]).await;
    desk.ledger.reverse(&desk.tenant, 1, &postrider_ledger::correcting::Remark::default()).await.unwrap();
    let statement = desk.ledger.statement(&desk.tenant, &code("receivable:alice"), 100).await.unwrap();
    let balances: Vec<_> = statement.iter().map(|Movement { balance, .. }| balance.as_str()).collect();
    assert_eq!(balances, ["10.00", "15.00", "5.00"]);
    let newest = desk.ledger.statement(&desk.tenant, &code("receivable:alice"), 1).await.unwrap();
    assert_eq!(newest, statement[2..]);
    assert_eq!(desk.ledger.books().head(&desk.tenant).await.unwrap().unwrap().number, 3);
}
