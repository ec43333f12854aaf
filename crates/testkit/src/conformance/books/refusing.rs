//! Every refusal there is, provoked once: each has its code, and what was refused left nothing behind.

use std::collections::BTreeSet;

use jiff::civil::date;
use postrider_ledger::account::{Account, AccountType, Side};
use postrider_ledger::books::Books;
use postrider_ledger::correcting::Remark;
use postrider_ledger::entry::{Draft, DraftLine, EntryKind, Metadata};
use postrider_ledger::money::Amount;
use postrider_ledger::period::{Period, PeriodState};
use postrider_ledger::pipeline::{Answer, Arrival};
use postrider_ledger::refusal::CODES;

use super::{BooksFixture, Desk, chart, code, currency, event, order, rate};

/// An entry by hand, on 2026-03-01.
fn by_hand<B: Books>(desk: &Desk<B>, lines: &[(&str, Side, i64)]) -> Draft {
    let line = |(account, side, amount): &(&str, Side, i64)| DraftLine {
        account: code(account),
        side: *side,
        amount: Amount::new(*amount).unwrap(),
        currency: currency("EUR"),
        base: None,
    };
    Draft {
        source: desk.ledger.by_hand(None, "by hand"),
        kind: EntryKind::Posted,
        effective_on: date(2026, 3, 1),
        description: String::new(),
        metadata: Metadata::new(),
        refers_to: None,
        lines: lines.iter().map(line).collect(),
    }
}

/// What the rules and the pipeline refuse of an event.
fn events() -> Vec<(&'static str, Arrival)> {
    let of_order = |id: &str, customer: &str, on: &str| {
        let payload = format!(
            r#"{{"orderId": "{id}", "customerId": "{customer}", "currency": "EUR", "total": 2, "completedAt": "{on}"}}"#
        );
        event("ecommerce.order.completed", "x", &payload)
    };
    vec![
        ("malformed", event("ecommerce.order.completed", "x", "{")),
        ("no_rule", event("unheard.of.thing", "x", "{}")),
        ("conflict", order("o-1", "11.00", "EUR")),
        ("rule_failed", order("x", "\"a lot\"", "EUR")),
        ("missing_amount", order("x", "null", "EUR")),
        ("amount_not_positive", order("x", "-1", "EUR")),
        ("too_many_digits", order("x", "1.005", "EUR")),
        ("amount_too_large", order("x", "1e30", "EUR")),
        ("unknown_currency", order("x", "2", "EURO")),
        ("missing_rate", order("x", "2", "CHF")),
        ("bad_date", of_order("x", "alice", "2025-02-29")),
        ("bad_text", of_order(&"x".repeat(2000), "alice", "2026-03-01")),
        ("bad_account", of_order("x", "al ice", "2026-03-01")),
    ]
}

/// A table of every code, and the way to it. The one that is missing here is for queues: `no_tenant`.
pub async fn every_code_of_a_refusal_is_provoked<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let dollars = Account {
        code: code("dollars"),
        name: String::new(),
        kind: AccountType::Asset,
        normal_side: None,
        currency: Some(currency("USD")),
        active: true,
        opens_children: false,
    };
    let mut fees = chart().into_iter().find(|account| account.code == code("fees")).unwrap();
    fees.active = false;
    desk.ledger.set_accounts(&desk.tenant, &[dollars, fees]).await.unwrap();
    desk.ledger.set_rates(&desk.tenant, &[rate("USD", "2026-02-27", "0.333")]).await.unwrap();
    desk.ledger.set_period(&desk.tenant, &Period::named("2020", PeriodState::Closed).unwrap()).await.unwrap();
    // Entries 2 to 5: one, its reversal, a promise, its end.
    desk.posted(order("o-1", "10.00", "EUR")).await;
    let remark = Remark::default();
    desk.ledger.reverse(&desk.tenant, 2, &remark).await.unwrap();
    let two = [("bank", Side::Debit, 5), ("sales", Side::Credit, 5)];
    let promise = Draft { kind: EntryKind::Pending, ..by_hand(&desk, &two) };
    desk.ledger.post_draft(&desk.tenant, promise).await.unwrap();
    desk.ledger.void(&desk.tenant, 4, &remark).await.unwrap();

    let mut seen = BTreeSet::new();
    let mut provoked = |expected: &'static str, code: &'static str| {
        assert_eq!(code, expected);
        seen.insert(code);
    };
    for (expected, arrival) in events() {
        provoked(expected, desk.refused(arrival).await);
    }
    let line =
        |account: &'static str| by_hand(&desk, &[(account, Side::Debit, 5), ("sales", Side::Credit, 5)]);
    let many: Vec<_> =
        (0..1002).map(|n| ("bank", if n % 2 == 0 { Side::Debit } else { Side::Credit }, 5)).collect();
    for (expected, draft) in [
        ("unknown_account", line("nowhere")),
        ("inactive_account", line("fees")),
        ("wrong_currency", line("dollars")),
        ("too_few_lines", by_hand(&desk, &two[..1])),
        ("too_many_lines", by_hand(&desk, &many)),
        ("unbalanced", by_hand(&desk, &[("bank", Side::Debit, 5), ("sales", Side::Credit, 6)])),
        ("period_closed", Draft { effective_on: date(2020, 2, 29), ..by_hand(&desk, &two) }),
        ("bad_date", Draft { effective_on: date(-9000, 1, 1), ..by_hand(&desk, &two) }),
        ("bad_date", Draft { effective_on: date(3000, 1, 1), ..by_hand(&desk, &two) }),
        ("unknown_entry", Draft { kind: EntryKind::Reversal, refers_to: Some(99), ..by_hand(&desk, &two) }),
        ("already_reversed", Draft { kind: EntryKind::Reversal, refers_to: Some(2), ..by_hand(&desk, &two) }),
        (
            "already_resolved",
            Draft { kind: EntryKind::Settlement, refers_to: Some(4), ..by_hand(&desk, &two) },
        ),
        ("wrong_kind", Draft { kind: EntryKind::Void, refers_to: Some(2), ..by_hand(&desk, &two) }),
    ] {
        provoked(expected, desk.refused(Arrival::Draft(Box::new(draft))).await);
    }
    // Base amounts that were brought along differ by more than rounding leaves.
    let mut brought = by_hand(&desk, &two);
    brought.lines[0].base = Some((9_900, None));
    provoked("unbalanced", desk.refused(Arrival::Draft(Box::new(brought))).await);
    let nobody = postrider::envelope::TenantId::new("nobody").unwrap();
    let answers = desk.ledger.post(&nobody, &[order("x", "2", "EUR")]).await.unwrap();
    let [Answer::Refused(refusal)] = answers.as_slice() else { panic!("{answers:?}") };
    provoked("unknown_tenant", refusal.code());

    let mut book = desk.ledger.books().read_chart(&desk.tenant).await.unwrap().unwrap().book;
    book.rounding_account = None;
    desk.ledger.set_book(&book).await.unwrap();
    provoked("no_rounding_account", desk.refused(order("x", "10.05", "USD")).await);
    book.max_entries = Some(5);
    desk.ledger.set_book(&book).await.unwrap();
    provoked("quota_exceeded", desk.refused(order("x", "2", "EUR")).await);
    book.max_entries = None;
    desk.ledger.set_book(&book).await.unwrap();
    desk.holds().await;
    assert_eq!(desk.verified().await.entries, 5, "nothing that was refused is in the books");
    // The id of what was refused is free.
    desk.posted(order("x", "2.00", "EUR")).await;

    let nearly = i64::MAX - 100;
    let set = format!("UPDATE {{}}ledger_balance SET debits = {nearly} WHERE account = 'receivable:alice'");
    fixture.tamper(&set).await;
    provoked("balance_overflow", desk.refused(order("y", "5.00", "EUR")).await);

    let missing: Vec<_> = CODES.into_iter().filter(|code| !seen.contains(code)).collect();
    assert_eq!(missing, ["no_tenant", "panicked"], "the intake's own, and a defect that nobody can provoke");
}
