//! Changing what entries are made by: it counts from the next batch on, in every process.

use jiff::civil::date;
use postrider_ledger::account::AccountChange;
use postrider_ledger::account::Side;
use postrider_ledger::books::Books;
use postrider_ledger::entry::EntryKind;
use postrider_ledger::period::{BackDated, Period, PeriodState};
use postrider_ledger::pipeline::Answer;

use super::{BooksFixture, Desk, chart, code, event, order, rate};

fn march(state: PeriodState) -> Period {
    Period::named("2026-03", state).unwrap()
}

/// A rule that changes is a new version; entries say by which one they were made.
pub async fn new_rules_count_from_the_next_batch_on<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let other = desk.another(fixture).await;
    other.posted(order("o-1", "10.00", "EUR")).await;
    let rules =
        "[[rule]]\nname='all'\nmatch='#'\nline=[{account='bank',debit='1'},{account='sales',credit='1'}]";
    assert_eq!(desk.ledger.set_rules(&desk.tenant, rules).await.unwrap(), 2);
    assert_eq!(desk.ledger.set_rules(&desk.tenant, rules).await.unwrap(), 2, "the same are the same version");
    other.posted(order("o-2", "10.00", "EUR")).await;
    let entries = desk.ledger.books().entries(&desk.tenant, 0, 10).await.unwrap();
    let rules: Vec<_> = entries.iter().map(|entry| entry.source.rule.as_str()).collect();
    assert_eq!(rules, ["order completed@1", "all@2"]);
    assert!(desk.ledger.set_rules(&desk.tenant, "[[rule]]").await.is_err());
    desk.holds().await;
}

/// What was worked out before the lock counts while the books are as they were then, and not a moment longer; it is for its own
/// event alone.
pub async fn what_was_prepared_by_old_rules_is_worked_out_again<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let orders = [order("o-1", "10.00", "EUR"), order("o-2", "20.00", "EUR"), order("o-3", "30.00", "EUR")];
    let prepare = |desk: &Desk<F::Books>| {
        orders.iter().map(|order| desk.ledger.prepare(&desk.tenant, order)).collect::<Vec<_>>()
    };
    assert!(prepare(&desk).iter().all(Option::is_none), "the chart was not read yet");
    desk.posted(order("o-0", "5.00", "EUR")).await;
    let mut of_old_rules = prepare(&desk);
    assert!(of_old_rules.iter().all(Option::is_some));
    let [first, rest @ ..] = &orders[..] else { unreachable!() };
    let [prepared, others @ ..] = &mut of_old_rules[..] else { unreachable!() };
    let posted = [std::slice::from_ref(first), &orders[..1]].concat();
    let answers = desk.ledger.post_prepared(&desk.tenant, &posted, std::slice::from_mut(prepared)).await;
    assert!(matches!(answers.unwrap()[..], [Answer::Posted(_), Answer::Duplicate(_)]));
    let rules =
        "[[rule]]\nname='all'\nmatch='#'\nline=[{account='bank',debit='1'},{account='sales',credit='1'}]";
    desk.another(fixture).await.ledger.set_rules(&desk.tenant, rules).await.unwrap();
    let answers = desk.ledger.post_prepared(&desk.tenant, rest, others).await.unwrap();
    assert!(matches!(answers[..], [Answer::Posted(_), Answer::Posted(_)]), "{answers:?}");
    let entries = desk.ledger.books().entries(&desk.tenant, 0, 10).await.unwrap();
    let said: Vec<_> = entries
        .iter()
        .map(|entry| (entry.source.event.as_str(), entry.source.rule.as_str(), entry.lines[0].amount))
        .collect();
    let old = "order completed@1";
    let expected = [("o-0", old, 500), ("o-1", old, 1000), ("o-2", "all@2", 100), ("o-3", "all@2", 100)];
    assert_eq!(said, expected);
    desk.holds().await;
}

/// Accounts can be closed for entries, and what they are cannot be changed.
pub async fn accounts_are_closed_for_every_process<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let other = desk.another(fixture).await;
    other.posted(order("o-1", "10.00", "EUR")).await;
    let mut sales = chart().into_iter().find(|account| account.code == code("sales")).unwrap();
    sales.active = false;
    desk.ledger.set_accounts(&desk.tenant, std::slice::from_ref(&sales)).await.unwrap();
    assert_eq!(other.refused(order("o-2", "10.00", "EUR")).await, "inactive_account");
    // One account, and the settings, are read as the chart has them.
    let books = desk.ledger.books();
    assert_eq!(books.account(&desk.tenant, &code("sales")).await.unwrap(), Some(sales.clone()));
    assert_eq!(books.account(&desk.tenant, &code("nowhere")).await.unwrap(), None);
    let kept = books.read_chart(&desk.tenant).await.unwrap().unwrap();
    assert_eq!(books.book(&desk.tenant).await.unwrap(), Some(kept.book));
    // Nobody says which of two would count.
    let error = desk.ledger.set_accounts(&desk.tenant, &[sales.clone(), sales.clone()]).await.unwrap_err();
    assert!(error.to_string().contains("the account sales stands twice"), "{error}");
    let rates = [rate("USD", "2026-02-27", "0.3"), rate("USD", "2026-02-27", "0.4")];
    assert!(desk.ledger.set_rates(&desk.tenant, &rates).await.is_err());
    sales.kind = postrider_ledger::account::AccountType::Asset;
    let error = desk.ledger.set_accounts(&desk.tenant, &[sales]).await.unwrap_err();
    assert!(error.to_string().contains("open a new account"), "{error}");
    desk.holds().await;
}

/// `receivable:alice` is opened by its first entry, below a parent that allows it.
pub async fn children_are_opened_by_their_first_entry<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let other = desk.another(fixture).await;
    // Whoever renames the parent says nothing of its children.
    let renamed =
        AccountChange { name: Some("Debtors".to_owned()), ..AccountChange::new(code("receivable")) };
    desk.ledger.change_accounts(&desk.tenant, vec![renamed]).await.unwrap();
    let unknown = vec![AccountChange::new(code("nowhere"))];
    let error = desk.ledger.change_accounts(&desk.tenant, unknown).await.unwrap_err();
    assert!(error.to_string().contains("nowhere is new: say its type"), "{error}");
    for (desk, id) in [(&desk, "o-1"), (&other, "o-2"), (&desk, "o-3")] {
        desk.posted(order(id, "10.00", "EUR")).await;
    }
    let chart = desk.ledger.books().read_chart(&desk.tenant).await.unwrap().unwrap();
    let child = &chart.accounts[&code("receivable:alice")];
    let parent = &chart.accounts[&code("receivable")];
    assert_eq!((child.kind, parent.name.as_str()), (parent.kind, "Debtors"));
    assert!(child.active);
    desk.holds().await;
}

/// Lines in another currency are kept in base at the rate of their day; what rounding leaves over is a line of its own.
pub async fn foreign_amounts_are_kept_in_base_with_the_residue_as_a_line<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let rates = [
        rate("USD", "2026-02-27", "0.333"),
        rate("USD", "2026-03-02", "0.9"),
        rate("USD", "2026-02-26", "0.5"),
    ];
    desk.ledger.set_rates(&desk.tenant, &rates).await.unwrap();
    // 2026-03-01 is a Sunday: the rate of Friday counts. 10.05 = 1.00 + 9.05 in USD; 3.35 = 0.33 + 3.01 + 0.01 in EUR.
    desk.posted(order("o-1", "10.05", "USD")).await;
    let entries = desk.ledger.books().entries(&desk.tenant, 0, 10).await.unwrap();
    let lines = &entries[0].lines;
    let base: Vec<_> = lines.iter().map(|line| (line.side, line.amount, line.base_amount)).collect();
    let expected =
        [(Side::Debit, 1005, 335), (Side::Credit, 100, 33), (Side::Credit, 905, 301), (Side::Credit, 0, 1)];
    assert_eq!(base, expected);
    assert_eq!(lines[3].account, code("rounding"));
    let used = lines[0].rate.as_ref().unwrap();
    assert_eq!((used.rate.as_str(), used.source.as_str()), ("0.333", "ecb 2026-02-27"));
    // A week later there is no rate that is young enough.
    let late = r#"{"orderId": "x", "customerId": "alice", "total": 2, "currency": "USD", "completedAt": "2026-03-10"}"#;
    assert_eq!(desk.refused(event("ecommerce.order.completed", "o-2", late)).await, "missing_rate");
    desk.holds().await;
}

/// A closed period refuses events, and its seal has the hash of the trial balance.
pub async fn a_closed_period_is_sealed_and_refuses_events<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let other = desk.another(fixture).await;
    // Producers choose the ids of events: none can take that of a seal.
    other.posted(order("seal:2026-03:2", "10.00", "EUR")).await;
    let trial = desk.ledger.books().movements(&desk.tenant, None, Some(date(2026, 3, 31))).await.unwrap();
    let sealed = desk.ledger.set_period(&desk.tenant, &march(PeriodState::Closed)).await.unwrap().unwrap();
    assert_eq!(sealed.entry, 2);
    assert_eq!(other.refused(order("o-2", "10.00", "EUR")).await, "period_closed");
    // Closing it again does nothing; a lock cannot be taken back.
    assert_eq!(desk.ledger.set_period(&desk.tenant, &march(PeriodState::Closed)).await.unwrap(), None);
    let seal = desk.ledger.books().entries(&desk.tenant, 1, 1).await.unwrap().pop().unwrap();
    assert_eq!((seal.kind, seal.lines.len()), (EntryKind::Seal, 0));
    let text = postrider_ledger::closing::trial_balance_text(&trial);
    let hash = postrider::Payload::new("text/plain", text).hash();
    assert_eq!(seal.source.payload_hash, hash);

    let opened = desk.ledger.set_period(&desk.tenant, &march(PeriodState::Open)).await.unwrap().unwrap();
    let record = desk.ledger.books().entries(&desk.tenant, opened.entry - 1, 1).await.unwrap().pop().unwrap();
    assert!(record.kind == EntryKind::Seal && record.metadata.contains(r#""state":"open""#), "{record:?}");
    other.posted(order("o-2", "10.00", "EUR")).await;
    desk.ledger.set_period(&desk.tenant, &march(PeriodState::Closed)).await.unwrap();
    desk.ledger.set_period(&desk.tenant, &march(PeriodState::Locked)).await.unwrap();
    assert!(desk.ledger.set_period(&desk.tenant, &march(PeriodState::Open)).await.is_err());
    let year = Period::named("2026", PeriodState::Closed).unwrap();
    let error = desk.ledger.set_period(&desk.tenant, &year).await.unwrap_err();
    assert!(error.to_string().contains("shares days"), "{error}");
    desk.holds().await;
}

/// A period is closed while others post into it: every entry is in the trial balance that the seal hashes, or was refused.
pub async fn a_close_in_the_middle_of_posting_splits_it_cleanly<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let (one, other) = (desk.another(fixture).await, desk.another(fixture).await);
    desk.posted(order("o-first", "10.00", "EUR")).await;
    let posting = async {
        let (mut posted, mut refused) = (1, 0);
        for batch in 0.. {
            let batch: Vec<_> = (0..5).map(|n| order(&format!("o-{batch}-{n}"), "10.00", "EUR")).collect();
            let answers = other.post(&batch).await;
            let of_batch = answers.iter().filter(|answer| matches!(answer, Answer::Posted(_))).count();
            (posted, refused) = (posted + of_batch, refused + answers.len() - of_batch);
            if refused > 0 {
                break;
            }
        }
        (posted, refused)
    };
    let closed = march(PeriodState::Closed);
    let closing = one.ledger.set_period(&one.tenant, &closed);
    let ((posted, refused), sealed) = futures_util::future::join(posting, closing).await;
    let seal = sealed.unwrap().unwrap().entry;
    assert_eq!(
        (seal, refused % 5),
        (posted as u64 + 1, 0),
        "the seal is the last entry, and no batch was split"
    );
    let trial = desk.ledger.books().movements(&desk.tenant, None, None).await.unwrap();
    let hash =
        postrider::Payload::new("text/plain", postrider_ledger::closing::trial_balance_text(&trial)).hash();
    let entry = desk.ledger.books().entries(&desk.tenant, seal - 1, 1).await.unwrap().pop().unwrap();
    assert_eq!((entry.kind, entry.source.payload_hash), (EntryKind::Seal, hash));
    desk.holds().await;
}

/// Every version of the rules is kept, for those who ask what made an entry.
pub async fn every_version_of_the_rules_is_kept<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.ledger.set_rules(&desk.tenant, super::PENDING).await.unwrap();
    let versions = desk.ledger.books().rules_versions(&desk.tenant).await.unwrap();
    let kept: Vec<_> = versions.iter().map(|kept| (kept.version, kept.document.as_str())).collect();
    assert_eq!(kept, [(1, postrider_ledger::rules::ready::RULES), (2, super::PENDING)]);
    assert!(versions[0].since <= versions[1].since);
}

/// Where the tenant wants it, a back-dated event counts for the next open day and says which day it had.
pub async fn back_dated_events_move_on_where_the_tenant_wants_it<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.ledger.set_period(&desk.tenant, &march(PeriodState::Closed)).await.unwrap();
    let mut book = desk.ledger.books().read_chart(&desk.tenant).await.unwrap().unwrap().book;
    book.back_dated = BackDated::NextOpen;
    desk.ledger.set_book(&book).await.unwrap();
    let receipt = desk.posted(order("o-1", "10.00", "EUR")).await;
    let entry = desk.ledger.books().entries(&desk.tenant, receipt.entry - 1, 1).await.unwrap().pop().unwrap();
    assert_eq!(entry.effective_on, date(2026, 4, 1));
    assert!(entry.metadata.contains(r#""back_dated_from":"2026-03-01""#), "{}", entry.metadata);
    desk.holds().await;
}

/// A tenant with a quota posts no more than that.
pub async fn a_quota_is_kept<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let mut book = desk.ledger.books().read_chart(&desk.tenant).await.unwrap().unwrap().book;
    book.max_entries = Some(1);
    desk.ledger.set_book(&book).await.unwrap();
    desk.posted(order("o-1", "10.00", "EUR")).await;
    assert_eq!(desk.refused(order("o-2", "10.00", "EUR")).await, "quota_exceeded");
    // The records of periods are the ledger's own.
    let closed = desk.ledger.set_period(&desk.tenant, &march(PeriodState::Closed)).await.unwrap();
    assert_eq!(closed.unwrap().entry, 2);
    book.base_currency = super::currency("USD");
    assert!(desk.ledger.set_book(&book).await.is_err());
}
