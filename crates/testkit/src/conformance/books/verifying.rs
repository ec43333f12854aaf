//! Whatever somebody changes behind the ledger's back is found and named.

use postrider::envelope::TenantId;
use postrider_ledger::correcting::Remark;
use postrider_ledger::verify::{Problem, Scope};

use super::{BooksFixture, Desk, order};

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
        // Each in its own dialect: the other one refuses the words.
        "INSERT OR REPLACE INTO ledger_line SELECT tenant, entry, line, account, side, amount + 1, currency, base_amount, rate, \
         rate_source FROM ledger_line",
        "INSERT OR REPLACE INTO ledger_entry SELECT tenant, number, kind, effective_on, posted_at, source_event, payload_hash, rule, \
         'x', metadata, refers_to, hash FROM ledger_entry",
        "INSERT OR REPLACE INTO ledger_rules SELECT tenant, version, '', created_at FROM ledger_rules",
        "INSERT INTO {}ledger_rules SELECT tenant, version, '', created_at FROM {}ledger_rules WHERE true \
         ON CONFLICT (tenant, version) DO UPDATE SET document = ''",
        // An event is in the books once, whatever an inbox has forgotten and whoever writes.
        "INSERT INTO {}ledger_entry SELECT tenant, number + 1, kind, effective_on, posted_at, source_event, payload_hash, rule, \
         description, metadata, refers_to, hash FROM {}ledger_entry",
        "INSERT OR REPLACE INTO ledger_entry SELECT tenant, number + 1, kind, effective_on, posted_at, source_event, payload_hash, \
         rule, description, metadata, refers_to, hash FROM ledger_entry",
    ] {
        assert!(!fixture.try_statement(statement).await, "{statement} was let through");
    }
    desk.holds().await;
}

/// Changes of one column, how to take each back, the problem that verification names, and the entry.
type Change = (&'static str, &'static str, &'static str, Option<u64>);
const CHANGES: [Change; 23] = [
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
        "ledger_line SET base_amount = 1001, amount = 1000 WHERE entry = 2 AND line = 1",
        "ledger_line SET base_amount = 1000 WHERE entry = 2 AND line = 1",
        "hash_differs",
        Some(2),
    ),
    (
        "ledger_line SET side = 2 WHERE entry = 2 AND line = 1",
        "ledger_line SET side = 1 WHERE entry = 2 AND line = 1",
        "hash_differs",
        Some(2),
    ),
    (
        "ledger_line SET currency = 'USD' WHERE entry = 5 AND line = 1",
        "ledger_line SET currency = 'EUR' WHERE entry = 5 AND line = 1",
        "unbalanced",
        Some(5),
    ),
    (
        "ledger_line SET rate_source = 'x' WHERE entry = 5 AND line = 1",
        "ledger_line SET rate_source = NULL WHERE entry = 5 AND line = 1",
        "hash_differs",
        Some(5),
    ),
    (
        "ledger_line SET line = 9 WHERE entry = 3 AND line = 1",
        "ledger_line SET line = 1 WHERE entry = 3 AND line = 9",
        "hash_differs",
        Some(3),
    ),
    (
        "ledger_entry SET rule = 'other@1' WHERE number = 1",
        "ledger_entry SET rule = 'order completed@1' WHERE number = 1",
        "hash_differs",
        Some(1),
    ),
    (
        "ledger_entry SET metadata = '{ }' WHERE number = 1",
        "ledger_entry SET metadata = '{\"order\":\"o-1\"}' WHERE number = 1",
        "hash_differs",
        Some(1),
    ),
    (
        "ledger_entry SET refers_to = 1 WHERE number = 4",
        "ledger_entry SET refers_to = NULL WHERE number = 4",
        "hash_differs",
        Some(4),
    ),
    // Of nothing and of these the hash is the same.
    (
        "ledger_entry SET refers_to = 0 WHERE number = 4",
        "ledger_entry SET refers_to = NULL WHERE number = 4",
        "hash_differs",
        Some(4),
    ),
    ("ledger_line SET rate = ''", "ledger_line SET rate = NULL", "hash_differs", Some(1)),
    (
        "ledger_entry SET effective_on = effective_on + 1 WHERE number = 4",
        "ledger_entry SET effective_on = effective_on - 1 WHERE number = 4",
        "hash_differs",
        Some(4),
    ),
    (
        "ledger_book SET head_hash = (SELECT hash FROM {}ledger_entry WHERE number = 4)",
        "ledger_book SET head_hash = (SELECT hash FROM {}ledger_entry WHERE number = 5)",
        "head_differs",
        Some(5),
    ),
    // The sum over all days stays as it is.
    (
        "ledger_day SET day = day + 1 WHERE account = 'sales'",
        "ledger_day SET day = day - 1 WHERE account = 'sales'",
        "balance_differs",
        None,
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
];

/// One changed column of one row, anywhere, and verification names it.
pub async fn whatever_is_changed_is_found_and_named<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let batch: Vec<_> = (1..=5).map(|n| order(&format!("o-{n}"), "10.00", "EUR")).collect();
    desk.post(&batch).await;
    desk.holds().await;
    for (change, back, code, entry) in CHANGES {
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
    // What cannot be put back, each in an entry of its own.
    for (change, entry) in [
        ("payload_hash = hash WHERE number = 2", 2),
        ("hash = (SELECT hash FROM {}ledger_entry WHERE number = 1) WHERE number = 4", 4),
    ] {
        fixture.tamper(&format!("UPDATE {{}}ledger_entry SET {change}")).await;
        let found = desk.verified().await.problems;
        let named = |problem: &Problem| problem.code == "hash_differs" && problem.entry == Some(entry);
        assert!(found.iter().any(named), "{change}: {found:?}");
    }
    fixture.tamper("DELETE FROM {}ledger_line WHERE entry = 5").await;
    fixture.tamper("DELETE FROM {}ledger_entry WHERE number = 5").await;
    let verification = desk.verified().await;
    assert!(
        verification.problems.iter().any(|problem| problem.code == "entries_missing"),
        "{verification:?}"
    );
}

/// What is written and taken away past the chain, where no hash is compared, and what verification names.
const BEYOND: [(&str, &str, &str, Option<u64>); 5] = [
    (
        "INSERT INTO {}ledger_entry SELECT tenant, 6, kind, effective_on, posted_at, 'forged', payload_hash, rule, description, \
         metadata, refers_to, hash FROM {}ledger_entry WHERE number = 5",
        "DELETE FROM {}ledger_entry WHERE number = 6",
        "head_differs",
        Some(6),
    ),
    (
        "INSERT INTO {}ledger_line SELECT tenant, 77, line, account, side, amount, currency, base_amount, rate, rate_source \
         FROM {}ledger_line WHERE entry = 1",
        "DELETE FROM {}ledger_line WHERE entry = 77",
        "lines_without_entry",
        Some(77),
    ),
    (
        "INSERT INTO {}ledger_line SELECT tenant, 0, line, account, side, amount, currency, base_amount, rate, rate_source \
         FROM {}ledger_line WHERE entry = 1",
        "DELETE FROM {}ledger_line WHERE entry = 0",
        "lines_without_entry",
        Some(0),
    ),
    (
        "INSERT INTO {}ledger_line SELECT tenant, -3, line, account, side, amount, currency, base_amount, rate, rate_source \
         FROM {}ledger_line WHERE entry = 1",
        "DELETE FROM {}ledger_line WHERE entry = -3",
        "lines_without_entry",
        None,
    ),
    (
        "UPDATE {}ledger_line SET line = 7 WHERE entry = 5 AND line = 3",
        "UPDATE {}ledger_line SET line = 3 WHERE entry = 5 AND line = 7",
        "lines_renumbered",
        Some(5),
    ),
];

/// Entries beyond the head, lines of entries that are not there, lines with other numbers: all of it, and from an entry on.
pub async fn what_lies_beyond_the_chain_is_named<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let batch: Vec<_> = (1..=5).map(|n| order(&format!("o-{n}"), "10.00", "EUR")).collect();
    desk.post(&batch).await;
    for (change, back, code, entry) in BEYOND {
        fixture.tamper(change).await;
        for after in [0, 3] {
            let scope = Scope { after, run: 2, ..Scope::default() };
            let found = desk.ledger.verify(&desk.tenant, scope).await.unwrap().unwrap().problems;
            let found: Vec<_> = found.iter().map(|problem| (problem.code, problem.entry)).collect();
            assert_eq!(found, [(code, entry)], "after {after}: {change}");
        }
        fixture.tamper(back).await;
        desk.holds().await;
    }
}

/// However the entries are cut into runs, the same is found; from an entry on, balances are left alone.
pub async fn runs_side_by_side_find_what_one_finds<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.ledger.set_rules(&desk.tenant, super::PENDING).await.unwrap();
    let promises: Vec<_> =
        (1..=5).map(|n| super::event("hold.placed", &format!("p-{n}"), r#"{"total": "5.00"}"#)).collect();
    desk.post(&promises).await;
    // What ends a promise is in another run than the promise.
    desk.ledger.settle(&desk.tenant, 1, &Remark::default()).await.unwrap();
    desk.ledger.void(&desk.tenant, 2, &Remark::default()).await.unwrap();
    let verify = async |after: u64| {
        let scope = Scope { after, side_by_side: 3, run: 2, ..Scope::default() };
        desk.ledger.verify(&desk.tenant, scope).await.unwrap().unwrap()
    };
    let whole = verify(0).await;
    assert!(whole.holds() && whole.balances_compared && whole.entries == 7, "{whole:?}");
    let rest = verify(3).await;
    assert!(rest.holds() && !rest.balances_compared && rest.entries == 4, "{rest:?}");
    fixture.tamper("UPDATE {}ledger_entry SET description = 'x' WHERE number = 5").await;
    for after in [0, 3] {
        let found: Vec<_> =
            verify(after).await.problems.iter().map(|problem| (problem.code, problem.entry)).collect();
        assert_eq!(found, [("hash_differs", Some(5))], "after {after}");
    }
    assert!(verify(5).await.holds(), "what was changed lies before");
}

/// Books of several tenants are verified side by side: each has its own answer, in their order, and who keeps none has none.
pub async fn many_tenants_are_verified_side_by_side<F: BooksFixture>(fixture: &F) {
    let mut desks = Vec::new();
    for (tenant, orders) in [("acme", 5), ("globex", 3), ("initech", 4)] {
        let desk = Desk::open_for(fixture, tenant).await;
        let batch: Vec<_> = (1..=orders).map(|n| order(&format!("o-{n}"), "10.00", "EUR")).collect();
        desk.post(&batch).await;
        desks.push(desk);
    }
    let mut tenants: Vec<_> = desks.iter().map(|desk| desk.tenant.clone()).collect();
    tenants.insert(1, TenantId::new("nobody").unwrap());
    fixture
        .tamper("UPDATE {}ledger_line SET amount = 1001 WHERE tenant = 'globex' AND entry = 2 AND line = 1")
        .await;
    for side_by_side in [1, 2, 9] {
        let scope = Scope { side_by_side, run: 2, ..Scope::default() };
        let found = desks[0].ledger.verify_all(&tenants, scope).await.unwrap();
        let told: Vec<_> = found.iter().flatten().map(|one| (one.tenant.as_str(), one.entries)).collect();
        assert_eq!(told, [("acme", 5), ("globex", 3), ("initech", 4)]);
        assert!(found[1].is_none(), "who keeps no books has nothing to verify");
        let [acme, globex, initech] = [0, 2, 3].map(|place| found[place].as_ref().unwrap());
        assert!(acme.holds() && initech.holds() && acme.balances_compared, "{found:?}");
        let named = |problem: &Problem| problem.code == "hash_differs" && problem.entry == Some(2);
        assert!(globex.problems.iter().any(named), "{globex:?}");
    }
}
