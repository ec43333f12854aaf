//! Events become drafts, or are refused by name.

use jiff::civil::date;
use postrider::{Clock, Event, Payload};
use proptest::prelude::*;

use super::*;
use crate::entry::DraftLine;
use crate::money::MAX_AMOUNT;

fn envelope(event_type: &str, payload: &str) -> Envelope {
    let event = Event::new(event_type).unwrap().id("evt_1").unwrap().tenant("acme").unwrap();
    let event = event.occurred_at("2026-03-01T00:30:00Z".parse().unwrap());
    event.payload(Payload::new("application/json", payload.to_owned())).into_envelope(&Clock::system())
}

fn map(rules: &str, event_type: &str, payload: &str) -> Result<Draft, Refusal> {
    let envelope = envelope(event_type, payload);
    let hash = envelope.payload.hash();
    Rules::parse(7, rules).unwrap().map(&envelope, hash, Currency::new("EUR").unwrap())
}

fn shown(draft: &Draft) -> Vec<String> {
    let line = |line: &DraftLine| {
        let amount = line.currency.show(line.amount.minor().into());
        format!("{} {} {amount} {}", line.side.as_str(), line.account, line.currency)
    };
    draft.lines.iter().map(line).collect()
}

#[test]
fn the_ready_rules_cover_the_three_examples() {
    let order =
        r#"{"orderId": "o-1", "customerId": "alice", "total": "119.00", "tax": 19, "currency": "NGN"}"#;
    let draft = map(ready::RULES, "ecommerce.order.completed", order).unwrap();
    assert_eq!(
        shown(&draft),
        ["debit receivable:alice 119.00 NGN", "credit tax-payable 19.00 NGN", "credit sales 100.00 NGN"]
    );
    assert_eq!((draft.source.rule.as_str(), draft.description.as_str()), ("order completed@7", "Order o-1"));
    assert_eq!(draft.effective_on, date(2026, 3, 1));

    let salary = r#"{"employeeId": "e-1", "gross": 5000.5, "currency": "USD", "paidOn": "2024-02-29"}"#;
    let draft = map(ready::RULES, "payroll.salary.disbursed", salary).unwrap();
    assert_eq!(shown(&draft), ["debit salaries 5000.50 USD", "credit bank 5000.50 USD"]);
    assert_eq!(draft.effective_on, date(2024, 2, 29));

    let paid =
        r#"{"invoiceId": "i-1", "customerId": "alice", "amount": 119, "fee": "1.19", "currency": "NGN"}"#;
    let draft = map(ready::RULES, "billing.invoice.paid", paid).unwrap();
    assert_eq!(
        shown(&draft),
        ["debit bank 117.81 NGN", "debit fees 1.19 NGN", "credit receivable:alice 119.00 NGN"]
    );
}

#[test]
fn every_bad_event_has_its_refusal() {
    let order =
        |rest: &str| format!(r#"{{"orderId": "o-1", "customerId": "alice", "currency": "EUR" {rest}}}"#);
    for (payload, code) in [
        (order(""), "missing_amount"),
        (order(r#", "total": null"#), "missing_amount"),
        (order(r#", "total": 1.005"#), "too_many_digits"),
        (order(r#", "total": -1"#), "amount_not_positive"),
        (order(r#", "total": 0"#), "amount_not_positive"),
        (order(r#", "total": 1e30"#), "amount_too_large"),
        (order(r#", "total": 1e300"#), "rule_failed"),
        (order(r#", "total": "a lot""#), "rule_failed"),
        (order(r#", "total": 1, "tax": 2"#), "amount_not_positive"),
        (order(r#", "total": 1, "completedAt": "2025-02-29""#), "bad_date"),
        (order(r#", "total": 1, "completedAt": "0001-01-01""#), "bad_date"),
        (order(r#", "total": 1, "completedAt": "2026-01-01garbage""#), "bad_date"),
        (order(r#", "total": 1, "completedAt": "1066-10-14T12:00:00+00:00[UTC]""#), "bad_date"),
        (order(r#", "total": 1, "completedAt": "-009000-10-14T12:00:00+00:00[UTC]""#), "bad_date"),
        (order(r#", "total": 1"#).replace("EUR", "EURO"), "unknown_currency"),
        (order(r#", "total": 1"#).replace("alice", "al ice"), "bad_account"),
        ("{\"orderId\":".to_owned(), "malformed"),
        ("[]".to_owned(), "rule_failed"),
    ] {
        let refusal = map(ready::RULES, "ecommerce.order.completed", &payload).unwrap_err();
        assert_eq!(refusal.code(), code, "{payload}: {refusal}");
    }
    assert_eq!(map(ready::RULES, "other.thing.happened", "{}").unwrap_err().code(), "no_rule");
    let zero =
        "[[rule]]\nname='z'\nmatch='#'\nline=[{account='a',debit='1/payload.x'},{account='b',credit='rest'}]";
    assert_eq!(map(zero, "a.b", r#"{"x": 0}"#).unwrap_err().code(), "rule_failed");
}

#[test]
fn the_first_rule_whose_condition_holds_counts_and_its_metadata_travel() {
    let lines = "line=[{account='a',debit='payload.total'},{account='b',credit='rest'}]";
    let rules = format!(
        "[[rule]]\nname='large'\nmatch='shop.#'\nwhen='payload.total >= 100'\n\
         metadata={{size='\"large\"',total='payload.total',of='event.tenant'}}\n{lines}\n\
         [[rule]]\nname='any'\nmatch='shop.*'\nwhen='has(payload.total)'\n{lines}"
    );
    let large = map(&rules, "shop.sold", r#"{"total": 100.50}"#).unwrap();
    let said: Vec<_> = large.metadata.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(
        (large.source.rule.as_str(), said),
        ("large@7", vec![("of", "acme"), ("size", "large"), ("total", "100.5")])
    );
    let small = map(&rules, "shop.sold", r#"{"total": 99.99}"#).unwrap();
    assert_eq!((small.source.rule.as_str(), small.metadata.len()), ("any@7", 0));
    assert_eq!(map(&rules, "shop.sold", r#"{"total": "a lot"}"#).unwrap_err().code(), "rule_failed");
    assert_eq!(map(&rules, "shop.sold.again", r#"{"total": 1}"#).unwrap_err().code(), "no_rule");
    let gone = rules.replace("payload.total >= 100", "payload.kind == \"x\"");
    assert_eq!(
        map(&gone, "shop.sold", r#"{"total": 1}"#).unwrap_err().code(),
        "rule_failed",
        "a condition is no guess"
    );
}

#[test]
fn rules_that_could_never_work_are_refused_when_they_are_read() {
    for (rules, says) in [
        ("[[rule]]\nname='a'\nmatch='#'\nline=[]", "fewer than two lines"),
        (
            "[[rule]]\nname='a'\nmatch='#'\nline=[{account='a',debit='1'},{account='b'}]",
            "either a debit or a credit",
        ),
        (
            "[[rule]]\nname='a'\nmatch='#'\nline=[{account='a',debit='rest'},{account='b',credit='rest'}]",
            "the rest",
        ),
        (
            "[[rule]]\nname='a'\nmatch='#'\nline=[{account='{x',debit='1'},{account='b',credit='1'}]",
            "not closed",
        ),
        (
            "[[rule]]\nname='a'\nmatch='#'\nline=[{account='a',debit='f('},{account='b',credit='1'}]",
            "amount of line 1",
        ),
        (
            "[[rule]]\nname=\"a\\u0000\"\nmatch='#'\nline=[{account='a',debit='1'},{account='b',credit='1'}]",
            "without NUL",
        ),
        ("[[rule]]\nnme='a'", "unknown field"),
        ("nonsense", "cannot be read"),
    ] {
        let said = Rules::parse_new(1, rules).unwrap_err().to_string();
        assert!(said.contains(says), "{rules}: {said}");
    }
}

#[test]
fn a_time_counts_for_the_day_where_it_was_written() {
    for (text, on) in [
        ("2026-12-31", date(2026, 12, 31)),
        ("2026-12-31T23:59:59Z", date(2026, 12, 31)),
        ("2026-12-31T23:30:00-05:00", date(2026, 12, 31)),
        ("2024-02-29T00:00:00", date(2024, 2, 29)),
        ("2026-12-31T23:30:00-05:00[-05:00]", date(2026, 12, 31)),
    ] {
        assert_eq!(day(text), Ok(on), "{text}");
    }
}

proptest! {
    /// However an amount is split, the line that takes the rest makes the entry balance.
    #[test]
    fn splits_always_balance(total in 2_i64..MAX_AMOUNT, rate in 0_u32..100) {
        let rules = "[[rule]]\nname='s'\nmatch='#'\nline=[{account='a',debit='payload.total'},\
            {account='t',credit='round(payload.total * payload.rate / 100, 2)',when='round(payload.total * payload.rate / 100, 2) > 0'},\
            {account='n',credit='rest'}]";
        let euro = Currency::new("EUR").unwrap();
        let payload = format!(r#"{{"total": {}, "rate": {rate}}}"#, euro.show(total.into()));
        let draft = map(rules, "a.b", &payload).unwrap();
        let sum: i128 = draft.lines.iter().map(|line| line.side.sign() * i128::from(line.amount.minor())).sum();
        prop_assert_eq!(sum, 0);
    }
}

/// Each of these filled the stack of a thread, and the process was gone.
#[test]
fn long_expressions_are_refused_and_harm_nobody() {
    let rules = |amount: &str| {
        let lines = format!("[{{account='bank', debit='{amount}'}}, {{account='sales', credit='rest'}}]");
        format!("[[rule]]\nname = 'long'\nmatch = '#'\nline = {lines}")
    };
    let brackets = |inner: &str| format!("{}{inner}{}", "(".repeat(10), ")".repeat(10));
    for long in [
        format!("1{}", "+1".repeat(490)),
        format!("1{}", "<1".repeat(490)),
        format!("payload{}", ".a".repeat(480)),
        format!("payload.a{}", "[0]".repeat(320)),
        brackets(&format!("1{}", "+1".repeat(450))),
    ] {
        let told = Rules::parse_new(1, &rules(&long)).unwrap_err().to_string();
        assert!(told.contains("operators stand in one another"), "{told}");
    }
    let sum = format!("payload.a{}", "+payload.a".repeat(99));
    let draft = map(&rules(&sum), "a.b", r#"{"a": 0.01}"#).unwrap();
    assert_eq!(shown(&draft), ["debit bank 1.00 EUR", "credit sales 1.00 EUR"]);
}
