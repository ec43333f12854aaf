//! Rules: which events become which entries.
//!
//! A tenant's rules are one TOML document; every change is a new version, and each entry says by which version of which rule
//! it was made. The first rule whose pattern and condition match an event is the one that counts.

mod expression;
pub mod ready;
mod template;
mod translate;
mod value;

pub use expression::{BadExpression, Expression, Facts};
pub use template::Template;
pub use value::{NoValue, Value};

use std::collections::BTreeMap;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use postrider::envelope::PayloadHash;
use postrider::topology::topic_matches;
use postrider::{Envelope, EventId};
use serde::Deserialize;

use crate::account::{AccountCode, Side};
use crate::entry::{Draft, DraftLine, EntryKind, Metadata, Source};
use crate::json::Json;
use crate::money::{Amount, Currency, MAX_AMOUNT};
use crate::refusal::Refusal;

/// The rules of a tenant, ready for use.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    version: u32,
    rules: Vec<Rule>,
}

/// Why a document of rules cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadRules {
    /// Not TOML, or not of the right shape.
    #[error("the rules cannot be read: {0}")]
    Document(#[from] toml::de::Error),
    /// A rule with an expression that cannot be used.
    #[error("the rule {rule:?}, {part}: {source}")]
    Expression {
        /// Which rule.
        rule: String,
        /// Which part of it.
        part: String,
        /// What is wrong.
        source: BadExpression,
    },
    /// A rule that could never post anything.
    #[error("the rule {rule:?} {why}")]
    Rule {
        /// Which rule.
        rule: String,
        /// What is wrong.
        why: String,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    rule: Vec<RuleText>,
}

/// A rule as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    name: String,
    r#match: String,
    when: Option<String>,
    #[serde(default)]
    pending: bool,
    effective_on: Option<String>,
    description: Option<String>,
    currency: Option<String>,
    #[serde(default)]
    metadata: BTreeMap<String, String>,
    line: Vec<LineText>,
}

/// A line as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LineText {
    account: String,
    debit: Option<String>,
    credit: Option<String>,
    currency: Option<String>,
    when: Option<String>,
}

#[derive(Debug, Clone)]
struct Rule {
    name: String,
    pattern: String,
    when: Option<Expression>,
    kind: EntryKind,
    effective_on: Option<Expression>,
    description: Template,
    currency: Option<Expression>,
    metadata: Vec<(String, Expression)>,
    lines: Vec<RuleLine>,
}

#[derive(Debug, Clone)]
struct RuleLine {
    account: Template,
    side: Side,
    /// Absent: what the other lines leave over.
    amount: Option<Expression>,
    currency: Option<Expression>,
    when: Option<Expression>,
}

impl Rules {
    /// Reads a document. Every expression is parsed now; none can fail later for how it is written.
    pub fn parse(version: u32, text: &str) -> Result<Self, BadRules> {
        let document: Document = toml::from_str(text)?;
        let rules = document.rule.into_iter().map(Rule::read).collect::<Result<Vec<_>, _>>()?;
        for (index, rule) in rules.iter().enumerate() {
            if rules[..index].iter().any(|before| before.name == rule.name) {
                return Err(BadRules::Rule { rule: rule.name.clone(), why: "stands twice".to_owned() });
            }
        }
        Ok(Self { version, rules })
    }

    /// Which version of the tenant's rules these are.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// How many rules there are.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The draft that an event becomes, in the tenant's base currency unless the rule names another.
    pub fn map(&self, envelope: &Envelope, hash: PayloadHash, base: Currency) -> Result<Draft, Refusal> {
        let payload = Json::parse(envelope.payload.bytes()).map_err(Refusal::Malformed)?;
        let occurred_at = envelope.occurred_at.to_string();
        let facts = Facts {
            payload: &payload,
            id: envelope.id.as_str(),
            event_type: envelope.event_type.as_str(),
            tenant: envelope.tenant.group.as_ref().map_or("", |tenant| tenant.as_str()),
            aggregate_id: envelope.aggregate_id.as_ref().map(AsRef::as_ref),
            occurred_at: &occurred_at,
        };
        for rule in self.rules.iter().filter(|rule| topic_matches(&rule.pattern, facts.event_type)) {
            let asked = Asked { rule, facts: &facts, version: self.version };
            if asked.applies()? {
                return asked.draft(&envelope.id, hash, envelope.occurred_at, base);
            }
        }
        Err(Refusal::NoRule(envelope.event_type.to_string()))
    }
}

impl Rule {
    fn read(text: RuleText) -> Result<Self, BadRules> {
        let name = text.name;
        let bad = |why: &str| BadRules::Rule { rule: name.clone(), why: why.to_owned() };
        if name.is_empty() || name.len() > 100 || name.contains('@') {
            return Err(bad("needs a name of 1 to 100 bytes without @"));
        }
        if text.line.len() < 2 {
            return Err(bad("has fewer than two lines, so its entries could not balance"));
        }
        if text.line.iter().filter(|line| line.rest()).count() > 1 {
            return Err(bad("has more than one line that takes the rest"));
        }
        let within = |part: &str| {
            let (rule, part) = (name.clone(), part.to_owned());
            move |source| BadRules::Expression { rule, part, source }
        };
        let parse = |part: &str, text: &str| Expression::parse(text).map_err(within(part));
        let optional =
            |part: &str, text: &Option<String>| text.as_deref().map(|text| parse(part, text)).transpose();
        let mut lines = Vec::new();
        for (number, line) in (1..).zip(&text.line) {
            let (side, amount) = match (&line.debit, &line.credit) {
                (Some(amount), None) => (Side::Debit, amount),
                (None, Some(amount)) => (Side::Credit, amount),
                _ => return Err(bad(&format!("line {number} needs either a debit or a credit"))),
            };
            let part = |what: &str| format!("{what} of line {number}");
            lines.push(RuleLine {
                account: Template::parse(&line.account).map_err(within(&part("account")))?,
                side,
                amount: if amount == REST { None } else { Some(parse(&part("amount"), amount)?) },
                currency: optional(&part("currency"), &line.currency)?,
                when: optional(&part("when"), &line.when)?,
            });
        }
        let metadata = text.metadata.iter().map(|(key, value)| Ok((key.clone(), parse("metadata", value)?)));
        Ok(Self {
            when: optional("when", &text.when)?,
            effective_on: optional("effective_on", &text.effective_on)?,
            description: Template::parse(text.description.as_deref().unwrap_or(""))
                .map_err(within("description"))?,
            currency: optional("currency", &text.currency)?,
            metadata: metadata.collect::<Result<_, BadRules>>()?,
            kind: if text.pending { EntryKind::Pending } else { EntryKind::Posted },
            pattern: text.r#match,
            lines,
            name: name.clone(),
        })
    }
}

/// The amount of the line that takes what the others leave over.
const REST: &str = "rest";

impl LineText {
    fn rest(&self) -> bool {
        [&self.debit, &self.credit].into_iter().flatten().any(|amount| amount == REST)
    }
}

/// One rule on one event.
struct Asked<'a> {
    rule: &'a Rule,
    facts: &'a Facts<'a>,
    version: u32,
}

impl Asked<'_> {
    fn applies(&self) -> Result<bool, Refusal> {
        self.rule.when.as_ref().map_or(Ok(true), |when| when.holds(self.facts).map_err(self.failed("when")))
    }

    fn draft(
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
                let value = expression.value(self.facts).map_err(self.failed("effective_on"))?;
                day(value.text().map_err(self.failed("effective_on"))?)?
            }
        };
        let mut metadata = Metadata::new();
        for (key, expression) in &rule.metadata {
            let value = expression.value(self.facts).and_then(|value| value.to_text().map(Into::into));
            metadata.insert(key.clone(), value.map_err(self.failed("metadata"))?);
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
            description: rule.description.text(self.facts).map_err(self.failed("description"))?,
            metadata,
            refers_to: None,
            lines: self.lines(self.currency(rule.currency.as_ref(), base)?)?,
        })
    }

    fn lines(&self, currency: Currency) -> Result<Vec<DraftLine>, Refusal> {
        let (mut lines, mut rest) = (Vec::with_capacity(self.rule.lines.len()), None);
        for (number, line) in (1..).zip(&self.rule.lines) {
            let part = |what: &str| format!("{what} of line {number}");
            if let Some(when) = &line.when
                && !when.holds(self.facts).map_err(self.failed(&part("when")))?
            {
                continue;
            }
            let code = line.account.text(self.facts).map_err(self.failed(&part("account")))?;
            let account = AccountCode::new(&code).map_err(|bad| Refusal::BadAccount(bad.0))?;
            let currency = self.currency(line.currency.as_ref(), currency)?;
            let Some(expression) = &line.amount else {
                rest = Some((lines.len(), account, line.side, currency));
                continue;
            };
            let value = expression.value(self.facts).and_then(|value| value.to_decimal());
            let amount = currency.minor(value.map_err(self.no_amount(&part("amount")))?)?;
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
        let value = expression.value(self.facts).map_err(self.failed("currency"))?;
        let code = value.text().map_err(self.failed("currency"))?;
        Currency::new(code).map_err(|unknown| Refusal::UnknownCurrency(unknown.0))
    }

    fn failed(&self, part: &str) -> impl Fn(NoValue) -> Refusal {
        let (rule, part) = (self.rule.name.clone(), part.to_owned());
        move |why| Refusal::RuleFailed { rule: rule.clone(), part: part.clone(), why: why.to_string() }
    }

    fn no_amount(&self, part: &str) -> impl Fn(NoValue) -> Refusal {
        let (rule, part) = (self.rule.name.clone(), part.to_owned());
        move |why| match &why {
            NoValue::Missing(_) => {
                Refusal::MissingAmount { rule: rule.clone(), part: part.clone(), why: why.to_string() }
            }
            NoValue::Wrong(why) => {
                Refusal::RuleFailed { rule: rule.clone(), part: part.clone(), why: why.clone() }
            }
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
    let shown = currency.show(rest);
    if rest < 0 {
        return Err(Refusal::AmountNotPositive { amount: shown });
    }
    let fits = i64::try_from(rest).ok().filter(|rest| *rest <= MAX_AMOUNT).and_then(Amount::new);
    fits.map(Some).ok_or(Refusal::AmountTooLarge { amount: shown })
}

/// A day, or the day of a time in the offset that it was written with.
pub fn day(text: &str) -> Result<Date, Refusal> {
    if let Ok(zoned) = text.parse::<Zoned>() {
        return Ok(zoned.date());
    }
    let bad = || Refusal::BadDate(text.chars().take(40).collect());
    // `2026-02-28…`: the calendar day stands first in every way of writing a time.
    let date: Date = text.get(..10).and_then(|day| day.parse().ok()).ok_or_else(bad)?;
    if text.len() > 10 && text.parse::<Timestamp>().is_err() && text.parse::<jiff::civil::DateTime>().is_err()
    {
        return Err(bad());
    }
    if !(1900..=2999).contains(&date.year()) {
        return Err(bad());
    }
    Ok(date)
}

#[cfg(test)]
mod tests;
