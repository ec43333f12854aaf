//! One rule on one event: the draft it makes, or why it cannot.

use std::fmt;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use postrider::EventId;
use postrider::envelope::PayloadHash;

use super::value::NoValue;
use super::{Expression, Facts, Rule};
use crate::account::{AccountCode, Side};
use crate::entry::{Draft, DraftLine, Metadata, Source};
use crate::money::{Amount, Currency, MAX_AMOUNT};
use crate::period::YEARS;
use crate::refusal::Refusal;

/// One rule on one event.
pub(super) struct Asked<'a> {
    pub(super) rule: &'a Rule,
    pub(super) facts: &'a Facts<'a>,
    pub(super) version: u32,
}

impl Asked<'_> {
    pub(super) fn applies(&self) -> Result<bool, Refusal> {
        self.rule.when.as_ref().map_or(Ok(true), |when| when.holds(self.facts).map_err(self.failed(WHEN)))
    }

    pub(super) fn draft(
        &self,
        event: &EventId,
        hash: PayloadHash,
        at: Timestamp,
        base: Currency,
    ) -> Result<Draft, Refusal> {
        let rule = self.rule;
        let effective_on = match &rule.effective_on {
            None => at.to_zoned(TimeZone::UTC).date(),
            Some(expression) => {
                let value = expression.value(self.facts).map_err(self.failed(EFFECTIVE_ON))?;
                day(value.text().map_err(self.failed(EFFECTIVE_ON))?)?
            }
        };
        let mut metadata = Metadata::new();
        for (key, expression) in &rule.metadata {
            let value = expression.value(self.facts).and_then(|value| value.to_text().map(Into::into));
            metadata.insert(key.clone(), value.map_err(self.failed(Part::of_rule("metadata")))?);
        }
        let source = Source {
            event: event.clone(),
            payload_hash: hash,
            rule: format!("{}@{}", rule.name, self.version),
        };
        Ok(Draft {
            source,
            kind: rule.kind,
            effective_on,
            description: rule
                .description
                .text(self.facts)
                .map_err(self.failed(Part::of_rule("description")))?,
            metadata,
            refers_to: None,
            lines: self.lines(self.currency(rule.currency.as_ref(), base)?)?,
        })
    }

    fn lines(&self, currency: Currency) -> Result<Vec<DraftLine>, Refusal> {
        let (mut lines, mut rest) = (Vec::with_capacity(self.rule.lines.len()), None);
        for (number, line) in (1..).zip(&self.rule.lines) {
            let part = |what| Part { what, line: Some(number) };
            if let Some(when) = &line.when
                && !when.holds(self.facts).map_err(self.failed(part("when")))?
            {
                continue;
            }
            let code = line.account.text(self.facts).map_err(self.failed(part("account")))?;
            let account = AccountCode::new(&code).map_err(|bad| Refusal::BadAccount(bad.0))?;
            let currency = self.currency(line.currency.as_ref(), currency)?;
            let Some(expression) = &line.amount else {
                rest = Some((lines.len(), account, line.side, currency));
                continue;
            };
            let value = expression.value(self.facts).and_then(|value| value.to_decimal());
            let amount = currency.minor(value.map_err(self.no_amount(part("amount")))?)?;
            lines.push(DraftLine { account, side: line.side, amount, currency, base: None });
        }
        if let Some((at, account, side, currency)) = rest
            && let Some(amount) = left_over(&lines, side, currency)?
        {
            lines.insert(at, DraftLine { account, side, amount, currency, base: None });
        }
        Ok(lines)
    }

    fn currency(&self, expression: Option<&Expression>, otherwise: Currency) -> Result<Currency, Refusal> {
        let Some(expression) = expression else { return Ok(otherwise) };
        let value = expression.value(self.facts).map_err(self.failed(Part::of_rule("currency")))?;
        let code = value.text().map_err(self.failed(Part::of_rule("currency")))?;
        Currency::new(code).map_err(|unknown| Refusal::UnknownCurrency(unknown.0))
    }

    fn failed(&self, part: Part) -> impl Fn(NoValue) -> Refusal {
        let rule = &self.rule.name;
        move |why| Refusal::RuleFailed { rule: rule.clone(), part: part.to_string(), why: why.to_string() }
    }

    fn no_amount(&self, part: Part) -> impl Fn(NoValue) -> Refusal {
        let failed = self.failed(part);
        let rule = &self.rule.name;
        move |why| match why {
            NoValue::Missing(_) => {
                Refusal::MissingAmount { rule: rule.clone(), part: part.to_string(), why: why.to_string() }
            }
            NoValue::Wrong(_) => failed(why),
        }
    }
}

/// A part of a rule, put into words only where it failed.
#[derive(Clone, Copy)]
struct Part {
    what: &'static str,
    line: Option<usize>,
}

const WHEN: Part = Part::of_rule("when");
const EFFECTIVE_ON: Part = Part::of_rule("effective_on");

impl Part {
    const fn of_rule(what: &'static str) -> Self {
        Self { what, line: None }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            None => f.write_str(self.what),
            Some(line) => write!(f, "{} of line {line}", self.what),
        }
    }
}

/// What a line on this side has to be for the entry to balance; nothing if it does already.
fn left_over(lines: &[DraftLine], side: Side, currency: Currency) -> Result<Option<Amount>, Refusal> {
    let same = lines.iter().filter(|line| line.currency == currency);
    let sum: i128 = same.map(|line| line.side.sign() * i128::from(line.amount.minor())).sum();
    let rest = -sum * side.sign();
    if rest == 0 {
        return Ok(None);
    }
    let shown = || currency.show(rest);
    if rest < 0 {
        return Err(Refusal::AmountNotPositive { amount: shown() });
    }
    let fits = i64::try_from(rest).ok().filter(|rest| *rest <= MAX_AMOUNT).and_then(Amount::new);
    fits.map(Some).ok_or_else(|| Refusal::AmountTooLarge { amount: shown() })
}

/// A day, or the day of a time in the offset that it was written with.
pub fn day(text: &str) -> Result<Date, Refusal> {
    let day = text.parse::<Zoned>().map_or_else(|_| written_day(text), |zoned| Some(zoned.date()));
    let bad = || Refusal::BadDate(text.chars().take(40).collect());
    day.filter(|day| YEARS.contains(&day.year())).ok_or_else(bad)
}

fn written_day(text: &str) -> Option<Date> {
    // `2026-02-28…`: the calendar day stands first in every way of writing a time.
    let date = text.get(..10)?.parse().ok()?;
    let is_time = || text.parse::<Timestamp>().is_ok() || text.parse::<jiff::civil::DateTime>().is_ok();
    (text.len() == 10 || is_time()).then_some(date)
}
