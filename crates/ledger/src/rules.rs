//! Rules: which events become which entries.
//!
//! A tenant's rules are one TOML document; every change is a new version, and each entry says by which version of which rule
//! it was made. The first rule whose pattern and condition match an event is the one that counts.

mod drafting;
mod expression;
pub mod ready;
mod template;
mod translate;
mod value;

pub use drafting::day;
pub use expression::{BadExpression, Expression, Facts};
pub use template::Template;
pub use value::{NoValue, Value};

use std::collections::BTreeMap;
use std::thread::ScopedJoinHandle;

use postrider::Envelope;
use postrider::envelope::PayloadHash;
use postrider::topology::topic_matches;
use serde::Deserialize;

use self::drafting::Asked;
use crate::account::Side;
use crate::entry::{Draft, EntryKind};
use crate::json::Json;
use crate::money::Currency;
use crate::refusal::Refusal;

/// The stack for the longest expressions there may be. Of what is not used there is no memory.
const STACK: usize = 64 << 20;

/// The rules of a tenant, ready for use.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    version: u32,
    document: String,
    all: Vec<Rule>,
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
    ///
    /// On a stack of its own: the parser calls itself for every operator and every bracket, and without optimisation that is up to a hundred
    /// kilobytes each. A thousand bytes of `1+1+1…` would fill that of a worker, and end the process.
    pub fn parse(version: u32, text: &str) -> Result<Self, BadRules> {
        std::thread::scope(|scope| {
            let deep = std::thread::Builder::new().stack_size(STACK);
            match deep.spawn_scoped(scope, || Self::read(version, text)).map(ScopedJoinHandle::join) {
                Ok(Ok(rules)) => rules,
                Ok(Err(panic)) => std::panic::resume_unwind(panic),
                // No thread can be had: what people write fits here, too.
                Err(_) => Self::read(version, text),
            }
        })
    }

    fn read(version: u32, text: &str) -> Result<Self, BadRules> {
        let document: Document = toml::from_str(text)?;
        let rules = document.rule.into_iter().map(Rule::read).collect::<Result<Vec<_>, _>>()?;
        for (index, rule) in rules.iter().enumerate() {
            if rules[..index].iter().any(|before| before.name == rule.name) {
                return Err(BadRules::Rule { rule: rule.name.clone(), why: "stands twice".to_owned() });
            }
        }
        Ok(Self { version, document: text.to_owned(), all: rules })
    }

    /// The same, of rules that are to count from now on: an entry keeps a rule's name, and PostgreSQL keeps no NUL. What books have already
    /// can be read all the same.
    pub fn parse_new(version: u32, text: &str) -> Result<Self, BadRules> {
        let rules = Self::parse(version, text)?;
        match rules.all.iter().find(|rule| rule.name.contains('\0')) {
            Some(bad) => {
                Err(BadRules::Rule { rule: bad.name.clone(), why: "needs a name without NUL".to_owned() })
            }
            None => Ok(rules),
        }
    }

    /// As they were written.
    pub fn document(&self) -> &str {
        &self.document
    }

    /// Which version of the tenant's rules these are.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Their names, in the order in which they are asked.
    pub fn names(&self) -> Vec<String> {
        self.all.iter().map(|rule| rule.name.clone()).collect()
    }

    /// The accounts that rules name as they are, without looking at an event, each with the rule that does.
    pub fn fixed_accounts(&self) -> impl Iterator<Item = (&str, &str)> {
        let lines = self.all.iter().flat_map(|rule| rule.lines.iter().map(move |line| (rule, line)));
        lines.filter_map(|(rule, line)| Some((rule.name.as_str(), line.account.fixed()?)))
    }

    /// How many rules there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The draft that an event becomes, in the tenant's base currency unless the rule names another.
    pub fn map(&self, envelope: &Envelope, hash: PayloadHash, base: Currency) -> Result<Draft, Refusal> {
        let payload = Json::parse(envelope.payload.bytes()).map_err(Refusal::Malformed)?;
        let facts = Facts {
            payload: &payload,
            id: envelope.id.as_str(),
            event_type: envelope.event_type.as_str(),
            tenant: envelope.tenant.group.as_ref().map_or("", |tenant| tenant.as_str()),
            aggregate_id: envelope.aggregate_id.as_ref().map(AsRef::as_ref),
            occurred_at: envelope.occurred_at,
        };
        // Most rules name one type, which is compared sooner than it is taken apart.
        let wants =
            |rule: &&Rule| rule.pattern == facts.event_type || topic_matches(&rule.pattern, facts.event_type);
        for rule in self.all.iter().filter(wants) {
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

#[cfg(test)]
mod tests;
