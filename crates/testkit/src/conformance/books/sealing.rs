//! What the seals of periods tell of, changed behind the ledger's back and by people who may.

use postrider_ledger::account::AccountType;
use postrider_ledger::checkpoint::Key;
use postrider_ledger::period::{Period, PeriodState};
use postrider_ledger::verify::{Scope, Verification};

use super::{BooksFixture, Desk, PENDING, chart, code, event, order, rate};

fn march(state: PeriodState) -> Period {
    Period::named("2026-03", state).unwrap()
}

/// Somebody opens a locked period behind the ledger's back, posts into it, and locks it again.
pub async fn nothing_slips_into_a_closed_period<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.posted(order("o-1", "10.00", "EUR")).await;
    for state in [PeriodState::Closed, PeriodState::Open, PeriodState::Closed] {
        desk.ledger.set_period(&desk.tenant, &march(state)).await.unwrap();
        if state == PeriodState::Open {
            desk.posted(order("o-2", "10.00", "EUR")).await;
        }
    }
    desk.ledger.set_period(&desk.tenant, &march(PeriodState::Locked)).await.unwrap();
    desk.holds().await;
    // As if it had never been closed, also to who has its chart in mind.
    fixture.tamper("UPDATE {}ledger_period SET state = 'open'").await;
    fixture.tamper("UPDATE {}ledger_book SET version = version + 1").await;
    desk.posted(order("o-3", "10.00", "EUR")).await;
    let found = async || {
        let problems = desk.verified().await.problems;
        problems.iter().map(|problem| (problem.code, problem.entry)).collect::<Vec<_>>()
    };
    assert_eq!(found().await, [("period_changed", Some(6))], "its last seal says that it is locked");
    fixture.tamper("UPDATE {}ledger_period SET state = 'locked'").await;
    assert_eq!(found().await, [("sealed_period_changed", Some(7))]);
}

/// Changes of a period that is locked and of accounts that had entries by then, how to take each back, and the problem.
const SEALED: [(&str, &str, &str); 9] = [
    ("ledger_period SET state = 'open'", "ledger_period SET state = 'locked'", "period_changed"),
    ("ledger_period SET state = 'closed'", "ledger_period SET state = 'locked'", "period_changed"),
    ("ledger_period SET ends_on = ends_on - 1", "ledger_period SET ends_on = ends_on + 1", "period_changed"),
    (
        "ledger_period SET starts_on = starts_on + 1",
        "ledger_period SET starts_on = starts_on - 1",
        "period_changed",
    ),
    ("ledger_period SET name = '2026-04'", "ledger_period SET name = '2026-03'", "period_changed"),
    (
        "ledger_account SET type = 'liability' WHERE code = 'sales'",
        "ledger_account SET type = 'income' WHERE code = 'sales'",
        "accounts_changed",
    ),
    (
        "ledger_account SET normal_side = 1 WHERE code = 'sales'",
        "ledger_account SET normal_side = NULL WHERE code = 'sales'",
        "accounts_changed",
    ),
    (
        "ledger_account SET currency = 'USD' WHERE code = 'receivable:alice'",
        "ledger_account SET currency = NULL WHERE code = 'receivable:alice'",
        "accounts_changed",
    ),
    (
        "ledger_account SET code = 'sold' WHERE code = 'sales'",
        "ledger_account SET code = 'sales' WHERE code = 'sold'",
        "accounts_changed",
    ),
];

/// Beside the chain, seals tell of periods and of what accounts are.
pub async fn what_a_seal_tells_of_is_not_changed_in_silence<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.posted(order("o-1", "10.00", "EUR")).await;
    for state in [PeriodState::Closing, PeriodState::Closed, PeriodState::Locked] {
        desk.ledger.set_period(&desk.tenant, &march(state)).await.unwrap();
    }
    desk.holds().await;
    for (change, back, code) in SEALED {
        fixture.tamper(&format!("UPDATE {{}}{change}")).await;
        let found = desk.verified().await.problems;
        assert!(!found.is_empty() && found.iter().all(|problem| problem.code == code), "{change}: {found:?}");
        fixture.tamper(&format!("UPDATE {{}}{back}")).await;
    }
    let found = desk.verified().await;
    assert_eq!((found.holds(), found.accounts_sealed_by), (true, Some(4)), "{found:?}");
    fixture.tamper("DELETE FROM {}ledger_period").await;
    let found: Vec<_> =
        desk.verified().await.problems.iter().map(|problem| (problem.code, problem.entry)).collect();
    assert_eq!(found, [("period_changed", Some(4))]);
}

/// The base currency is fixed when books are opened: lines contradict another one, and so does a seal.
pub async fn the_base_currency_is_not_changed_in_silence<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.ledger.set_rates(&desk.tenant, &[rate("USD", "2026-03-01", "0.9")]).await.unwrap();
    desk.post(&[order("o-1", "10.00", "EUR"), order("o-2", "10.00", "USD")]).await;
    desk.holds().await;
    let found = async |base: &str| {
        fixture.tamper(&format!("UPDATE {{}}ledger_book SET base_currency = '{base}'")).await;
        let problems = desk.verified().await.problems;
        fixture.tamper("UPDATE {}ledger_book SET base_currency = 'EUR'").await;
        problems.iter().map(|problem| (problem.code, problem.entry)).collect::<Vec<_>>()
    };
    for base in ["USD", "GBP"] {
        assert_eq!(found(base).await, [("base_currency_changed", None)], "{base}");
    }
    desk.ledger.set_period(&desk.tenant, &march(PeriodState::Closed)).await.unwrap();
    assert_eq!(found("GBP").await, [("base_currency_changed", Some(3))], "the seal names it");
    desk.holds().await;
}

/// A seal remembers up to where checkpoints were: the newest one cannot be deleted in silence any more.
pub async fn a_seal_remembers_the_checkpoints<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let key = Key::from_seed([7; 32]);
    for n in 1..=2 {
        desk.posted(order(&format!("o-{n}"), "10.00", "EUR")).await;
        desk.ledger.checkpoint(&desk.tenant, &key).await.unwrap().unwrap();
    }
    desk.ledger.set_period(&desk.tenant, &march(PeriodState::Closed)).await.unwrap();
    let found = desk.verified().await;
    assert_eq!((found.holds(), found.unsigned_entries, found.unsigned_from), (true, 1, Some(3)), "{found:?}");
    fixture.tamper("DELETE FROM {}ledger_checkpoint WHERE last_number = 2").await;
    let found = desk.verified().await;
    let codes: Vec<_> = found.problems.iter().map(|problem| (problem.code, problem.entry)).collect();
    assert_eq!(codes, [("checkpoint_gap", Some(2))]);
    assert_eq!((found.unsigned_entries, found.unsigned_from), (2, Some(2)));
}

/// Whoever is first signs, and the others find nothing left: no entry is signed twice, and nobody waits for a connection that another
/// one holds who waits, too.
pub async fn many_who_sign_at_once_sign_once<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.posted(order("o-1", "10.00", "EUR")).await;
    let key = Key::from_seed([7; 32]);
    let signed = futures_util::future::join_all((0..30).map(|_| desk.ledger.checkpoint(&desk.tenant, &key)));
    let signed = signed.await.into_iter().filter_map(Result::unwrap).count();
    assert_eq!((signed, desk.verified().await.checkpoints), (1, 1));
    desk.holds().await;
}

/// Nobody is passed over because the row that all else hangs on is gone.
pub async fn books_that_are_gone_are_named<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    Desk::open_for(fixture, "globex").await;
    let found = async || {
        let all = desk.ledger.verify_everybody(Scope::default()).await.unwrap();
        let codes = |one: &Verification| one.problems.iter().map(|problem| problem.code).collect::<Vec<_>>();
        all.iter().map(|one| (one.tenant.to_string(), codes(one))).collect::<Vec<_>>()
    };
    let none = Vec::<&str>::new();
    let (acme, globex) = (("acme".to_owned(), none.clone()), ("globex".to_owned(), none));
    assert_eq!(found().await, [acme.clone(), globex.clone()]);
    // What cannot be read back is named, and keeps nobody from the books of others.
    desk.posted(order("o-1", "10.00", "EUR")).await;
    for (table, change, back) in [
        ("ledger_balance", "currency = 'QQQ'", "currency = 'EUR'"),
        ("ledger_book", "head_number = -1", "head_number = 1"),
    ] {
        let set = |to: &str| format!("UPDATE {{}}{table} SET {to} WHERE tenant = 'acme'");
        fixture.tamper(&set(change)).await;
        let found = found().await;
        assert!(found[0].1.contains(&"unreadable") && found[1] == globex, "{change}: {found:?}");
        fixture.tamper(&set(back)).await;
    }
    fixture.tamper("DELETE FROM {}ledger_book WHERE tenant = 'globex'").await;
    assert_eq!(found().await, [acme, ("globex".to_owned(), vec!["book_missing"])]);
}

/// A period that is not open and has no seal was not made so by the ledger.
pub async fn a_period_without_a_seal_is_named<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.ledger.set_period(&desk.tenant, &march(PeriodState::Closed)).await.unwrap();
    for state in ["closing", "closed", "locked"] {
        let insert = format!(
            "INSERT INTO {{}}ledger_period SELECT tenant, '2026-04', ends_on + 1, ends_on + 30, '{state}' FROM {{}}ledger_period"
        );
        fixture.tamper(&insert).await;
        let found = desk.verified().await.problems;
        let found: Vec<_> = found.iter().map(|problem| (problem.code, problem.entry)).collect();
        assert_eq!(found, [("period_changed", None)], "{state}");
        fixture.tamper("DELETE FROM {}ledger_period WHERE name = '2026-04'").await;
    }
    desk.holds().await;
}

/// What people may change raises no alarm: names, whether an account takes entries, new accounts, a period that is opened again.
pub async fn what_people_change_after_a_seal_is_no_problem<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    assert_eq!(desk.verified().await.accounts_sealed_by, None, "no seal tells of accounts yet");
    desk.posted(order("o-1", "10.00", "EUR")).await;
    desk.ledger.set_period(&desk.tenant, &march(PeriodState::Closed)).await.unwrap();
    let mut sales = chart().into_iter().find(|account| account.code == code("sales")).unwrap();
    let mut other = sales.clone();
    (other.code, other.kind) = (code("other"), AccountType::Asset);
    "Sold".clone_into(&mut sales.name);
    sales.active = false;
    desk.ledger.set_accounts(&desk.tenant, &[sales.clone(), other]).await.unwrap();
    desk.holds().await;
    desk.ledger.set_period(&desk.tenant, &march(PeriodState::Open)).await.unwrap();
    desk.holds().await;
    sales.active = true;
    desk.ledger.set_accounts(&desk.tenant, &[sales]).await.unwrap();
    desk.posted(order("o-2", "10.00", "EUR")).await;
    // In any runs, the newest seal counts.
    for run in [1, 2, 100] {
        let scope = Scope { run, ..Scope::default() };
        let found = desk.ledger.verify(&desk.tenant, scope).await.unwrap().unwrap();
        assert_eq!((found.holds(), found.accounts_sealed_by), (true, Some(3)), "{found:?}");
    }
    // An account with nothing but a promise has no entries yet, for a seal and for who verifies it.
    desk.ledger.set_rules(&desk.tenant, PENDING).await.unwrap();
    desk.posted(event("hold.placed", "p-1", r#"{"total": "5.00"}"#)).await;
    desk.ledger.set_period(&desk.tenant, &march(PeriodState::Closed)).await.unwrap();
    desk.holds().await;
}
