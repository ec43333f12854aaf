//! Reversals, promises, and the end of a year: always new entries, nothing changed.

use jiff::civil::date;
use postrider::EventId;
use postrider_ledger::LedgerError;
use postrider_ledger::account::Side;
use postrider_ledger::books::{Books, Sums};
use postrider_ledger::correcting::Remark;
use postrider_ledger::dated::{Held, Span};
use postrider_ledger::entry::{Draft, DraftLine, EntryKind, Metadata};
use postrider_ledger::money::Amount;

use super::{BooksFixture, Desk, PENDING, code, currency, event, order, rate};

fn refusal<T: std::fmt::Debug>(result: Result<T, LedgerError>) -> &'static str {
    result.unwrap_err().code()
}

/// A reversal undoes an entry to the last minor unit, in base too, and only once.
pub async fn a_reversal_undoes_an_entry_once<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.ledger.set_rates(&desk.tenant, &[rate("USD", "2026-02-27", "0.333")]).await.unwrap();
    desk.posted(order("o-1", "10.05", "USD")).await;
    let remark = Remark { on: Some(date(2026, 5, 1)), ..Remark::default() };
    let receipt = desk.ledger.reverse(&desk.tenant, 1, &remark).await.unwrap();
    assert_eq!(receipt.entry, 2);
    assert_eq!(desk.held("receivable:alice", "USD").await, 0);
    let balances = desk.ledger.books().balances(&desk.tenant).await.unwrap();
    assert!(
        balances.iter().all(|balance| balance.sums.base_debits == balance.sums.base_credits),
        "{balances:?}"
    );
    assert_eq!(refusal(desk.ledger.reverse(&desk.tenant, 1, &remark).await), "already_reversed");
    assert_eq!(refusal(desk.ledger.reverse(&desk.tenant, 2, &remark).await), "wrong_kind");
    assert_eq!(refusal(desk.ledger.reverse(&desk.tenant, 99, &remark).await), "unknown_entry");
    desk.holds().await;
}

/// A reversal that another program wrote has no base amounts: it undoes the entry at those that it has here, not at the rate of its own day.
pub async fn an_imported_reversal_undoes_an_entry_in_base_too<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let rates = [rate("USD", "2026-02-27", "0.333"), rate("USD", "2026-03-31", "0.9")];
    desk.ledger.set_rates(&desk.tenant, &rates).await.unwrap();
    let line = |account: &str, side: &str, amount: &str| {
        format!(r#"{{"account": "{account}", "side": "{side}", "amount": "{amount}", "currency": "USD"}}"#)
    };
    let paid =
        [line("bank", "debit", "10.05"), line("sales", "credit", "5.02"), line("sales", "credit", "5.03")];
    let undone =
        [line("sales", "debit", "5.03"), line("bank", "credit", "10.05"), line("sales", "debit", "5.02")];
    let file = [
        format!(
            r#"{{"entry": "7", "sourceEvent": "old-7", "effectiveOn": "2026-03-01", "lines": [{}]}}"#,
            paid.join(",")
        ),
        format!(
            r#"{{"entry": "8", "sourceEvent": "old-8", "effectiveOn": "2026-04-01", "kind": "reversal", "refersTo": "7", "lines": [{}]}}"#,
            undone.join(",")
        ),
    ];
    let mut import = desk.ledger.import(&desk.tenant).await.unwrap();
    for (number, entry) in (1..).zip(&file) {
        import.take(number, Ok(serde_json::from_str(entry).unwrap())).await.unwrap();
    }
    let imported = import.finish().await.unwrap();
    assert_eq!((imported.posted, &imported.refused), (2, &Vec::new()));
    let balances = desk.ledger.books().balances(&desk.tenant).await.unwrap();
    assert_eq!(balances.len(), 3, "a residue of rounding, too: {balances:?}");
    let is_even = |sums: &Sums| (sums.debits, sums.base_debits) == (sums.credits, sums.base_credits);
    assert!(balances.iter().all(|balance| is_even(&balance.sums)), "{balances:?}");
    desk.holds().await;
}

/// The same key again is the same reversal.
pub async fn a_key_makes_a_reversal_once<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.posted(order("o-1", "10.00", "EUR")).await;
    let remark = Remark { key: Some(EventId::new("k-1").unwrap()), ..Remark::default() };
    let first = desk.ledger.reverse(&desk.tenant, 1, &remark).await.unwrap();
    assert_eq!(desk.ledger.reverse(&desk.tenant, 1, &remark).await.unwrap(), first);
    let other = Remark { description: Some("another".to_owned()), ..remark };
    assert_eq!(refusal(desk.ledger.reverse(&desk.tenant, 1, &other).await), "conflict");
}

/// A correction is a reversal and a new entry, both or neither.
pub async fn a_correction_is_both_or_neither<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.posted(order("o-1", "10.00", "EUR")).await;
    let draft = |credit: i64| Draft {
        source: desk.ledger.by_hand(None, "right"),
        kind: EntryKind::Posted,
        effective_on: date(2026, 3, 1),
        description: "as it should have been".to_owned(),
        metadata: Metadata::new(),
        refers_to: None,
        lines: [("bank", Side::Debit, 700), ("sales", Side::Credit, credit)]
            .map(|(account, side, amount)| DraftLine {
                account: code(account),
                side,
                amount: Amount::new(amount).unwrap(),
                currency: currency("EUR"),
                base: None,
            })
            .into(),
    };
    let remark = Remark::default();
    assert_eq!(refusal(desk.ledger.correct(&desk.tenant, 1, &remark, draft(600)).await), "unbalanced");
    assert_eq!(desk.verified().await.entries, 1);
    let (reversed, posted) = desk.ledger.correct(&desk.tenant, 1, &remark, draft(700)).await.unwrap();
    assert_eq!((reversed.entry, posted.entry), (2, 3));
    assert_eq!(desk.held("bank", "EUR").await, 700);
    desk.holds().await;
}

/// What is promised counts as pending until it is settled or voided, once.
pub async fn promises_are_settled_or_voided_once<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.ledger.set_rules(&desk.tenant, PENDING).await.unwrap();
    for id in ["p-1", "p-2"] {
        desk.posted(event("hold.placed", id, r#"{"total": "5.00"}"#)).await;
    }
    let pending = async || {
        let balances = desk.ledger.books().balances(&desk.tenant).await.unwrap();
        let bob = balances.iter().find(|balance| balance.account == code("receivable:bob")).unwrap();
        (bob.sums.pending_debits, bob.sums.debits)
    };
    assert_eq!(pending().await, (1000, 0));
    let remark = Remark::default();
    desk.ledger.settle(&desk.tenant, 1, &remark).await.unwrap();
    assert_eq!(pending().await, (500, 500));
    desk.ledger.void(&desk.tenant, 2, &remark).await.unwrap();
    assert_eq!(pending().await, (0, 500));
    assert_eq!(refusal(desk.ledger.void(&desk.tenant, 1, &remark).await), "already_resolved");
    assert_eq!(refusal(desk.ledger.settle(&desk.tenant, 2, &remark).await), "already_resolved");
    assert_eq!(refusal(desk.ledger.reverse(&desk.tenant, 1, &remark).await), "wrong_kind");
    desk.ledger.reverse(&desk.tenant, 3, &remark).await.unwrap();
    assert_eq!(desk.held("receivable:bob", "EUR").await, 0);
    desk.holds().await;
}

/// A year may earn more than one event may bring, and its closing can be undone.
pub async fn a_year_of_more_than_an_event_brings_is_closed<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    for id in ["o-1", "o-2"] {
        desk.posted(order(id, "9000000000000.00", "EUR")).await;
    }
    let earned = 1_799_999_999_999_800;
    assert_eq!(desk.held("sales", "EUR").await, -earned);
    assert_eq!(desk.ledger.close_year(&desk.tenant, date(2026, 12, 31)).await.unwrap().len(), 1);
    assert_eq!((desk.held("sales", "EUR").await, desk.held("retained-earnings", "EUR").await), (0, -earned));
    desk.holds().await;
    desk.ledger.reverse(&desk.tenant, 3, &Remark::default()).await.unwrap();
    assert_eq!((desk.held("sales", "EUR").await, desk.held("retained-earnings", "EUR").await), (-earned, 0));
    desk.holds().await;
}

/// A year's result belongs to the owners: no other account takes it.
pub async fn retained_earnings_are_equity<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let mut book = desk.ledger.books().read_chart(&desk.tenant).await.unwrap().unwrap().book;
    for wrong in ["sales", "bank"] {
        book.retained_account = Some(code(wrong));
        let error = desk.ledger.set_book(&book).await.unwrap_err();
        assert!(error.to_string().contains("kept on an equity account"), "{error}");
    }
    // Books that have one from before can change all else, and close no year.
    fixture.tamper("UPDATE {}ledger_book SET retained_account = 'sales', version = version + 1").await;
    book.retained_account = Some(code("sales"));
    book.max_entries = Some(100);
    desk.ledger.set_book(&book).await.unwrap();
    let error = desk.ledger.close_year(&desk.tenant, date(2026, 12, 31)).await.unwrap_err();
    assert!(error.to_string().contains("sales is of the type income"), "{error}");
}

/// An account that takes one currency takes no result in another.
pub async fn retained_earnings_take_their_currency_alone<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.ledger.set_rates(&desk.tenant, &[rate("USD", "2026-02-27", "0.333")]).await.unwrap();
    let mut euros = super::chart().into_iter().find(|one| one.code == code("retained-earnings")).unwrap();
    (euros.code, euros.currency) = (code("earned-euros"), Some(currency("EUR")));
    desk.ledger.set_accounts(&desk.tenant, &[euros]).await.unwrap();
    let mut book = desk.ledger.books().read_chart(&desk.tenant).await.unwrap().unwrap().book;
    book.retained_account = Some(code("earned-euros"));
    desk.ledger.set_book(&book).await.unwrap();
    desk.posted(order("o-1", "10.00", "EUR")).await;
    assert_eq!(desk.ledger.close_year(&desk.tenant, date(2026, 12, 31)).await.unwrap().len(), 1);
    desk.posted(order("o-2", "10.05", "USD")).await;
    assert_eq!(refusal(desk.ledger.close_year(&desk.tenant, date(2026, 12, 31)).await), "wrong_currency");
    desk.holds().await;
}

/// At the end of a year the result goes to retained earnings, and a second time nothing is left to go.
pub async fn a_year_ends_in_retained_earnings<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.ledger.set_rates(&desk.tenant, &[rate("USD", "2026-02-27", "0.333")]).await.unwrap();
    desk.posted(order("o-1", "10.05", "USD")).await;
    desk.posted(order("o-2", "101.00", "EUR")).await;
    let last_day = date(2026, 12, 31);
    let earned = async || desk.ledger.income_statement(&desk.tenant, None, Some(last_day)).await.unwrap();
    let before = earned().await;
    assert_eq!(before.sums["carried"], "0.00");
    // What an account holds is carried on though it takes no entries any more.
    let mut sales = super::chart().into_iter().find(|account| account.code == super::code("sales")).unwrap();
    sales.active = false;
    desk.ledger.set_accounts(&desk.tenant, &[sales]).await.unwrap();
    assert_eq!(desk.ledger.close_year(&desk.tenant, last_day).await.unwrap().len(), 1);
    assert_eq!(desk.held("sales", "EUR").await, 0);
    assert_eq!(desk.held("sales", "USD").await, 0);
    assert_eq!(desk.held("retained-earnings", "EUR").await, -10_000);
    let sheet = desk.ledger.balance_sheet(&desk.tenant, Some(last_day)).await.unwrap();
    assert!(sheet.balanced, "{sheet:?}");
    assert_eq!(sheet.sums["result"], "0.00");
    assert!(desk.ledger.close_year(&desk.tenant, last_day).await.unwrap().is_empty());
    // What was earned is told as before, and that it was carried; once the closing is reversed, that it was not.
    let closed = earned().await;
    assert_eq!((&closed.rows, &closed.sums["result"]), (&before.rows, &before.sums["result"]));
    assert_eq!(closed.sums["carried"], before.sums["result"]);
    desk.ledger.reverse(&desk.tenant, 3, &Remark::default()).await.unwrap();
    let undone = earned().await;
    assert_eq!((&undone.rows, &undone.sums), (&before.rows, &before.sums));
    desk.holds().await;
}

/// A closing carries what there is of earlier years, too. Closed after it, such a year would be carried twice; what came in later is not.
pub async fn years_are_closed_in_their_order<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let (year, later) = (date(2026, 12, 31), date(2027, 12, 31));
    desk.posted(order("o-1", "101.00", "EUR")).await;
    let close = async |day| desk.ledger.close_year(&desk.tenant, day).await;
    let retained = async || desk.held("retained-earnings", "EUR").await;
    assert_eq!(close(later).await.unwrap().len(), 1);
    let error = close(year).await.unwrap_err();
    assert!(error.to_string().contains("entry 2 closed a later year"), "{error}");
    assert_eq!(retained().await, -10_000);
    desk.ledger.reverse(&desk.tenant, 2, &Remark::default()).await.unwrap();
    assert_eq!((close(year).await.unwrap().len(), close(later).await.unwrap().len()), (1, 0));
    assert_eq!(retained().await, -10_000);
    // The next year is closed, and then something comes in for the one before.
    let next = Remark { on: Some(date(2027, 3, 1)), ..Remark::default() };
    desk.ledger.reverse(&desk.tenant, 1, &next).await.unwrap();
    assert_eq!(close(later).await.unwrap().len(), 1);
    assert_eq!(retained().await, 0);
    desk.posted(order("o-2", "11.00", "EUR")).await;
    assert_eq!((close(year).await.unwrap().len(), close(later).await.unwrap().len()), (1, 0));
    assert_eq!((desk.held("sales", "EUR").await, retained().await), (0, -1_000));
    desk.holds().await;
}

/// A statement of some days begins with what the account itself held before them, whatever those below it hold.
pub async fn a_statement_of_days_begins_with_what_was_held<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let days = [date(2026, 3, 1), date(2026, 3, 31), date(2026, 4, 1)];
    for (on, amount) in days.into_iter().zip([700, 20, 3]) {
        for (account, side) in [("receivable", Side::Debit), ("receivable:alice", Side::Credit)] {
            let lines = [(account, side), ("bank", side.opposite())].map(|(account, side)| DraftLine {
                account: code(account),
                side,
                amount: Amount::new(amount).unwrap(),
                currency: currency("EUR"),
                base: None,
            });
            let draft = Draft {
                source: desk.ledger.by_hand(None, "by hand"),
                kind: EntryKind::Posted,
                effective_on: on,
                description: String::new(),
                metadata: Metadata::new(),
                refers_to: None,
                lines: lines.into(),
            };
            desk.ledger.post_draft(&desk.tenant, draft).await.unwrap();
        }
    }
    let statement = async |from, to| {
        let of = Span { from, to, after: None };
        let told = desk.ledger.dated_statement(&desk.tenant, &code("receivable"), &of, 10).await.unwrap();
        let held = |held: &[Held]| held.iter().map(|held| held.balance.clone()).collect::<Vec<_>>().join(" ");
        (held(&told.opening), told.movements.len(), held(&told.closing))
    };
    let expected =
        |opening: &str, movements, closing: &str| (opening.to_owned(), movements, closing.to_owned());
    assert_eq!(statement(Some(days[1]), Some(days[1])).await, expected("7.00", 1, "7.20"));
    assert_eq!(statement(None, Some(days[1])).await, expected("", 2, "7.20"));
    assert_eq!(statement(Some(days[2]), None).await, expected("7.20", 1, "7.23"));
    // Days that no database keeps are days all the same.
    let (first, last) = (Some(date(-9999, 1, 1)), Some(date(9999, 12, 31)));
    assert_eq!(statement(first, last).await, expected("", 3, "7.23"));
    assert_eq!(statement(first, first).await, expected("", 0, ""));
    let earned = desk.ledger.income_statement(&desk.tenant, first, last).await.unwrap();
    assert_eq!(earned.sums["result"], "0.00");
    assert!(desk.ledger.trial_balance(&desk.tenant, first).await.unwrap().rows.is_empty());
    let error = desk.ledger.set_rates(&desk.tenant, &[rate("USD", "-009999-01-01", "1")]).await.unwrap_err();
    assert!(error.to_string().contains("books have the years 1900 to 2999"), "{error}");
}
