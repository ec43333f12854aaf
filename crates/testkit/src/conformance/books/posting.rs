//! Posting: once, balanced, in the chain, with its neighbours unharmed.

use futures_util::future::join_all;
use jiff::civil::date;
use postrider::Outbox as _;
use postrider::store::{Ask, RelayId, StoreErrorKind};
use postrider::topology::ExchangeName;
use postrider_ledger::Ledger;
use postrider_ledger::account::Side;
use postrider_ledger::books::Books;
use postrider_ledger::entry::{Draft, DraftLine, EntryKind, Metadata};
use postrider_ledger::money::Amount;
use postrider_ledger::pipeline::{Answer, Arrival};

use super::{BooksFixture, Desk, code, currency, event, order};

/// An event becomes lines, balances and totals, and a link of the chain.
pub async fn an_event_becomes_a_balanced_entry<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let receipt = desk.posted(order("o-1", "\"119.00\"", "EUR")).await;
    assert_eq!(receipt.entry, 1);
    assert_eq!(desk.held("receivable:alice", "EUR").await, 11_900);
    assert_eq!(desk.held("sales", "EUR").await, -11_800);
    assert_eq!(desk.held("tax-payable", "EUR").await, -100);
    let entries = desk.ledger.books().entries(&desk.tenant, 0, 10).await.unwrap();
    assert_eq!((entries.len(), entries[0].lines.len(), entries[0].hash), (1, 3, receipt.hash));
    assert_eq!(entries[0].source.rule, "order completed@1");
    desk.holds().await;
}

/// However often an event comes, in whatever batch, it is posted once and gets the first answer again.
pub async fn an_event_is_posted_once<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let first = order("o-1", "10.00", "EUR");
    let answers = desk.post(&[first.clone(), first.clone()]).await;
    let [Answer::Posted(posted), Answer::Duplicate(again)] = answers.as_slice() else {
        panic!("{answers:?}")
    };
    assert_eq!(posted, again);
    let other = desk.another(fixture).await;
    assert_eq!(other.post(&[first]).await, [Answer::Duplicate(*posted)]);
    // The same payload written otherwise is the same payload.
    let answers = desk.post(&[order("o-1", "1e1", "EUR")]).await;
    assert_eq!(answers, [Answer::Duplicate(*posted)]);
    desk.holds().await;
}

/// The same id with another payload is refused, and the first one stands.
pub async fn another_payload_of_an_event_is_a_conflict<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.posted(order("o-1", "10.00", "EUR")).await;
    assert_eq!(desk.refused(order("o-1", "10.01", "EUR")).await, "conflict");
    let answers = desk.post(&[order("o-2", "1.50", "EUR"), order("o-2", "1.60", "EUR")]).await;
    assert!(matches!(answers.as_slice(), [Answer::Posted(_), Answer::Refused(_)]), "{answers:?}");
    assert_eq!(desk.held("receivable:alice", "EUR").await, 1150);
    desk.holds().await;
}

/// What is wrong with one event is no matter of its neighbours.
pub async fn a_bad_event_leaves_its_neighbours_alone<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let batch = [
        order("o-1", "10.00", "EUR"),
        order("o-2", "10.001", "EUR"),
        order("o-3", "10.00", "USD"),
        order("o-4", "-1", "EUR"),
        event("ecommerce.order.completed", "o-5", "{"),
        event("unheard.of.thing", "o-6", "{}"),
        order("o-7", "20.00", "EUR"),
    ];
    let codes: Vec<_> = desk
        .post(&batch)
        .await
        .iter()
        .map(|answer| match answer {
            Answer::Posted(receipt) => receipt.entry.to_string(),
            Answer::Duplicate(_) => "duplicate".to_owned(),
            Answer::Refused(refusal) => refusal.code().to_owned(),
        })
        .collect();
    assert_eq!(
        codes,
        ["1", "too_many_digits", "missing_rate", "amount_not_positive", "malformed", "no_rule", "2"]
    );
    desk.holds().await;
}

/// An event that was refused is posted when it comes again after the cause is mended.
pub async fn a_refused_event_is_posted_once_the_cause_is_mended<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    assert_eq!(desk.refused(order("o-1", "10.00", "USD")).await, "missing_rate");
    desk.ledger.set_rates(&desk.tenant, &[super::rate("USD", "2026-02-27", "0.9")]).await.unwrap();
    desk.posted(order("o-1", "10.00", "USD")).await;
    desk.holds().await;
}

/// Ids are opaque.
pub async fn ids_may_be_any_text<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    for id in ["évt_1 {x}", "事件", "o'1\\;--", &"x".repeat(128)] {
        let paid = r#"{"employeeId": "e", "gross": 1, "currency": "EUR"}"#;
        desk.posted(event("payroll.salary.disbursed", id, paid)).await;
        assert_eq!(desk.refused(event("payroll.salary.disbursed", id, "{}")).await, "conflict");
    }
    desk.holds().await;
}

/// Nobody's books are anybody else's, and who has none is refused.
pub async fn tenants_are_apart<F: BooksFixture>(fixture: &F) {
    let acme = Desk::open(fixture).await;
    let other = Desk::open_for(fixture, "other").await;
    let receipts =
        [acme.posted(order("o-1", "10.00", "EUR")).await, other.posted(order("o-1", "7.00", "EUR")).await];
    assert_eq!(receipts.map(|receipt| receipt.entry), [1, 1]);
    assert_eq!((acme.held("sales", "EUR").await, other.held("sales", "EUR").await), (-900, -600));
    let nobody = postrider::envelope::TenantId::new("nobody").unwrap();
    let answers = acme.ledger.post(&nobody, &[order("o-1", "1.50", "EUR")]).await.unwrap();
    assert!(matches!(&answers[0], Answer::Refused(refusal) if refusal.code() == "unknown_tenant"));
    assert_eq!(acme.ledger.books().tenants().await.unwrap().len(), 2);
    acme.holds().await;
    other.holds().await;
}

/// Several processes post for one tenant: no number is missing or taken twice, whoever was first.
pub async fn processes_side_by_side_leave_no_gap<F: BooksFixture>(fixture: &F) {
    const PROCESSES: usize = 4;
    const BATCHES: usize = 6;
    let desk = Desk::open(fixture).await;
    let mut others = Vec::new();
    for _ in 0..PROCESSES {
        others.push(desk.another(fixture).await);
    }
    let posting = others.iter().enumerate().map(|(process, desk)| async move {
        for batch in 0..BATCHES {
            // Every event is sent by two of them.
            let id = |n: usize| format!("o-{}-{batch}-{n}", process / 2);
            let batch: Vec<_> = (0..20).map(|n| order(&id(n), "2.00", "EUR")).collect();
            let answers = desk.post(&batch).await;
            assert!(answers.iter().all(|answer| !matches!(answer, Answer::Refused(_))), "{answers:?}");
        }
    });
    join_all(posting).await;
    let posted = PROCESSES / 2 * BATCHES * 20;
    assert_eq!(desk.verified().await.entries, posted as u64);
    assert_eq!(desk.held("receivable:alice", "EUR").await, 200 * i64::try_from(posted).unwrap());
    desk.holds().await;
}

/// A sum that would leave its range is refused, whatever else is in its batch, and a rehearsal says the same.
pub async fn a_balance_that_would_overflow_is_refused<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.posted(order("o-1", "2.00", "EUR")).await;
    let nearly = i64::MAX - 600;
    let set = format!("UPDATE {{}}ledger_balance SET debits = {nearly} WHERE account = 'receivable:alice'");
    fixture.tamper(&set).await;
    let batch = [
        order("o-2", "5.00", "EUR"),
        order("o-3", "5.00", "EUR"),
        order("o-2", "5.00", "EUR"),
        event("payroll.salary.disbursed", "s-1", r#"{"employeeId": "e", "gross": 1, "currency": "EUR"}"#),
    ];
    let rehearsed = desk.ledger.rehearse(&desk.tenant, &batch).await.unwrap();
    for answers in [rehearsed, desk.post(&batch).await] {
        let [Answer::Posted(_), Answer::Refused(refusal), Answer::Duplicate(_), Answer::Posted(_)] =
            answers.as_slice()
        else {
            panic!("{answers:?}")
        };
        assert_eq!(refusal.code(), "balance_overflow");
    }
}

/// An entry that somebody else wrote is in the way of every further one. That is the fault of no event, and none is refused for it.
pub async fn a_forged_entry_refuses_no_event<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.posted(order("o-1", "2.00", "EUR")).await;
    let forge = "INSERT INTO {}ledger_entry SELECT tenant, 2, kind, effective_on, posted_at, 'forged', payload_hash, rule, \
         description, metadata, refers_to, hash FROM {}ledger_entry";
    fixture.tamper(forge).await;
    for last in [2, 3] {
        let batch: Vec<_> = (2..=last).map(|n| order(&format!("o-{n}"), "2.00", "EUR")).collect();
        let error = desk.ledger.post(&desk.tenant, &batch).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Other, "{error}");
        assert!(error.message.contains("ledger verify"), "{error}");
    }
    fixture.tamper("DELETE FROM {}ledger_entry WHERE number = 2").await;
    desk.posted(order("o-2", "2.00", "EUR")).await;
    desk.holds().await;
}

/// Every entry is told of by one event, committed with it.
pub async fn every_entry_is_told_of_once<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let exchange = ExchangeName::new("fis.domain.exchange").unwrap();
    let ledger = Ledger::new(fixture.books().await, postrider::Clock::system()).announcing(exchange.clone());
    let batch = [order("o-1", "10.00", "EUR"), order("o-2", "bad", "EUR"), order("o-1", "10.00", "EUR")];
    ledger.post(&desk.tenant, &batch).await.unwrap();
    ledger.post(&desk.tenant, &batch).await.unwrap();
    ledger.reverse(&desk.tenant, 1, &postrider_ledger::correcting::Remark::default()).await.unwrap();

    let (books, relay) = (ledger.books(), RelayId::new("relay").unwrap());
    books.lease(&relay, std::time::Duration::from_mins(5)).await.unwrap();
    let rows = books.claim(&relay, Ask::everything(100)).await.unwrap();
    let told: Vec<_> = rows.iter().map(|row| row.envelope.event_type.to_string()).collect();
    assert_eq!(told, ["fis.journal.posted", "fis.journal.reverted"]);
    assert!(rows.iter().all(|row| row.exchange.as_ref() == Some(&exchange)));
    let payload: serde_json::Value = rows[0].envelope.payload.parse().unwrap();
    assert_eq!((&payload["entry"], &payload["sourceEvent"]), (&"1".into(), &"o-1".into()));
    assert_eq!(payload["lines"][0]["amount"], "10.00");
}

/// A batch of very many lines is posted in several transactions, and answered as one.
pub async fn a_batch_of_very_many_lines_is_posted_in_parts<F: BooksFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let pair = [Side::Debit, Side::Credit].map(|side| DraftLine {
        account: code("bank"),
        side,
        amount: Amount::new(1).unwrap(),
        currency: currency("EUR"),
        base: None,
    });
    let draft = |_| Draft {
        source: desk.ledger.by_hand(None, "by hand"),
        kind: EntryKind::Posted,
        effective_on: date(2026, 3, 1),
        description: String::new(),
        metadata: Metadata::new(),
        refers_to: None,
        lines: pair.iter().cycle().take(1_000).cloned().collect(),
    };
    let mut arrivals: Vec<_> = (0..12).map(|number| Arrival::Draft(Box::new(draft(number)))).collect();
    arrivals.push(arrivals[0].clone());
    let answers = desk.post(&arrivals).await;
    let told = |answer: &Answer| match answer {
        Answer::Posted(receipt) => (receipt.entry, "posted"),
        Answer::Duplicate(receipt) => (receipt.entry, "duplicate"),
        Answer::Refused(refusal) => panic!("{refusal}"),
    };
    let expected: Vec<_> = (1..=12).map(|number| (number, "posted")).chain([(1, "duplicate")]).collect();
    assert_eq!(answers.iter().map(told).collect::<Vec<_>>(), expected);
    let entries = desk.ledger.books().entries(&desk.tenant, 0, 20).await.unwrap();
    let [first, tenth, eleventh] = [0, 9, 10].map(|at: usize| entries[at].posted_at);
    assert!(first == tenth && tenth < eleventh, "10,000 lines, then the rest: {first} {tenth} {eleventh}");
    desk.holds().await;
}
