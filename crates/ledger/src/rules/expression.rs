//! Expressions of rules: the Common Expression Language, with exact decimals for numbers.
//!
//! The text is parsed by a kept CEL parser; what it means is worked out here, because CEL's own numbers are 64-bit integers
//! and floats, and money must never meet a float. There are no loops (CEL's macros over lists are refused when the rule is
//! read), so the work is bounded by the length of the text.
//!
//! | | |
//! |---|---|
//! | values | `payload…`, `event.id`, `event.type`, `event.tenant`, `event.aggregate_id`, `event.occurred_at` |
//! | operators | `+ - * / == != < <= > >= && \|\| ! ?: in`, `has(payload.x)`, `payload["x y"]`, `payload.list[0]` |
//! | functions | `decimal(x) round(x, digits) abs(x) min(a, b) max(a, b) string(x) size(x)` |
//! | of texts | `x.startsWith(y) x.endsWith(y) x.contains(y) x.lowerAscii() x.upperAscii()` |

use std::borrow::Cow;

use super::translate::translate;
use super::value::{NoValue, Value};
use crate::decimal::DecimalError;
use crate::json::Json;

/// A parsed expression.
#[derive(Debug, Clone)]
pub struct Expression {
    node: Node,
}

/// Why a text is no expression we can use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the expression `{text}` cannot be used: {why}")]
pub struct BadExpression {
    /// The text.
    pub text: String,
    /// What is wrong with it.
    pub why: String,
}

/// What an expression is worked out on.
pub struct Facts<'a> {
    /// The payload.
    pub payload: &'a Json<'a>,
    /// The event's id.
    pub id: &'a str,
    /// Its type.
    pub event_type: &'a str,
    /// Whose it is.
    pub tenant: &'a str,
    /// What it happened to.
    pub aggregate_id: Option<&'a str>,
    /// When.
    pub occurred_at: jiff::Timestamp,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    Literal(Value<'static>),
    Variable(Variable),
    Member { of: Box<Node>, name: String },
    Has { of: Box<Node>, name: String },
    List(Vec<Node>),
    Call(Function, Vec<Node>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Variable {
    Payload,
    Id,
    Type,
    Tenant,
    AggregateId,
    OccurredAt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    And,
    Or,
    Not,
    If,
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Add,
    Subtract,
    Multiply,
    Divide,
    Negate,
    In,
    Index,
    Decimal,
    Round,
    Abs,
    Min,
    Max,
    String,
    Size,
    StartsWith,
    EndsWith,
    Contains,
    Lower,
    Upper,
}

impl Expression {
    /// Reads an expression and refuses what we cannot work out.
    pub fn parse(text: &str) -> Result<Self, BadExpression> {
        let node =
            translate(text).map_err(|why| BadExpression { text: text.chars().take(200).collect(), why })?;
        Ok(Self { node })
    }

    /// Works it out on an event.
    pub fn value<'a>(&'a self, facts: &Facts<'a>) -> Result<Value<'a>, NoValue> {
        self.node.value(facts)
    }

    /// Works it out, and expects true or false.
    pub fn holds(&self, facts: &Facts<'_>) -> Result<bool, NoValue> {
        self.node.value(facts)?.truth()
    }
}

impl Node {
    fn value<'a>(&'a self, facts: &Facts<'a>) -> Result<Value<'a>, NoValue> {
        match self {
            Self::Literal(value) => Ok(value.clone()),
            Self::Variable(variable) => variable.value(facts),
            Self::Member { of, name } => match of.value(facts)? {
                Value::Tree(Json::Object(members)) => match members.get(name.as_str()) {
                    Some(json) => Value::of(json),
                    None => Err(NoValue::Missing(self.path())),
                },
                Value::Null => Err(NoValue::Missing(self.path())),
                other => Err(NoValue::Wrong(format!("{} is {} and has no members", of.path(), other.kind()))),
            },
            Self::Has { of, name } => match of.value(facts) {
                Ok(Value::Tree(Json::Object(members))) => {
                    Ok(Value::Bool(members.contains_key(name.as_str())))
                }
                Ok(_) | Err(NoValue::Missing(_)) => Ok(Value::Bool(false)),
                Err(wrong) => Err(wrong),
            },
            Self::List(items) => {
                Ok(Value::List(items.iter().map(|item| item.value(facts)).collect::<Result<_, _>>()?))
            }
            Self::Call(function, arguments) => function.value(arguments, facts),
        }
    }

    /// How many operators, members and calls stand in one another.
    pub(super) fn depth(&self) -> usize {
        1 + match self {
            Self::Literal(_) | Self::Variable(_) => 0,
            Self::Member { of, .. } | Self::Has { of, .. } => of.depth(),
            Self::List(nodes) | Self::Call(_, nodes) => nodes.iter().map(Self::depth).max().unwrap_or(0),
        }
    }

    /// As a person would name it.
    fn path(&self) -> String {
        match self {
            Self::Member { of, name } => format!("{}.{name}", of.path()),
            Self::Variable(Variable::Payload) => "payload".to_owned(),
            _ => "value".to_owned(),
        }
    }
}

impl Variable {
    fn value<'a>(self, facts: &Facts<'a>) -> Result<Value<'a>, NoValue> {
        let text = |text: &'a str| Ok(Value::Text(Cow::Borrowed(text)));
        match self {
            Self::Payload => Value::of(facts.payload),
            Self::Id => text(facts.id),
            Self::Type => text(facts.event_type),
            Self::Tenant => text(facts.tenant),
            Self::OccurredAt => Ok(Value::Text(facts.occurred_at.to_string().into())),
            Self::AggregateId => {
                facts.aggregate_id.map_or_else(|| Err(NoValue::Missing("aggregate_id".to_owned())), text)
            }
        }
    }
}

impl Function {
    fn value<'a>(self, arguments: &'a [Node], facts: &Facts<'a>) -> Result<Value<'a>, NoValue> {
        // Those that do not look at every argument.
        match (self, arguments) {
            (Self::And, [left, right]) => {
                return Ok(Value::Bool(left.value(facts)?.truth()? && right.value(facts)?.truth()?));
            }
            (Self::Or, [left, right]) => {
                return Ok(Value::Bool(left.value(facts)?.truth()? || right.value(facts)?.truth()?));
            }
            (Self::If, [condition, yes, no]) => {
                return if condition.value(facts)?.truth()? { yes.value(facts) } else { no.value(facts) };
            }
            _ => {}
        }
        let one = |index: usize| match arguments.get(index) {
            Some(node) => node.value(facts),
            None => Err(NoValue::Wrong("an argument is missing".to_owned())),
        };
        let first = one(0)?;
        match self {
            Self::And | Self::Or | Self::If => Err(NoValue::Wrong("an argument is missing".to_owned())),
            Self::Not => Ok(Value::Bool(!first.truth()?)),
            Self::Equal => Ok(Value::Bool(first.equals(&one(1)?))),
            Self::Unequal => Ok(Value::Bool(!first.equals(&one(1)?))),
            Self::Less => Ok(Value::Bool(first.compared(&one(1)?)?.is_lt())),
            Self::LessOrEqual => Ok(Value::Bool(first.compared(&one(1)?)?.is_le())),
            Self::Greater => Ok(Value::Bool(first.compared(&one(1)?)?.is_gt())),
            Self::GreaterOrEqual => Ok(Value::Bool(first.compared(&one(1)?)?.is_ge())),
            Self::In => Ok(Value::Bool(one(1)?.has(&first)?)),
            Self::Index => index(&first, &one(1)?),
            Self::Size => Ok(Value::Number(whole(first.len()?)?)),
            Self::String => Ok(Value::Text(first.to_text()?)),
            Self::StartsWith => Ok(Value::Bool(first.text()?.starts_with(one(1)?.text()?))),
            Self::EndsWith => Ok(Value::Bool(first.text()?.ends_with(one(1)?.text()?))),
            Self::Contains => Ok(Value::Bool(first.text()?.contains(one(1)?.text()?))),
            Self::Lower => Ok(Value::Text(first.text()?.to_ascii_lowercase().into())),
            Self::Upper => Ok(Value::Text(first.text()?.to_ascii_uppercase().into())),
            Self::Add => match (&first, one(1)?) {
                (Value::Text(left), Value::Text(right)) => Ok(Value::Text(format!("{left}{right}").into())),
                (left, right) => exact(left.number()?.add(right.number()?)),
            },
            Self::Subtract => exact(first.number()?.sub(one(1)?.number()?)),
            Self::Multiply => exact(first.number()?.mul(one(1)?.number()?)),
            Self::Divide => exact(first.number()?.div(one(1)?.number()?)),
            Self::Negate => Ok(Value::Number(first.number()?.negated())),
            Self::Abs => {
                let number = first.number()?;
                Ok(Value::Number(if number.is_negative() { number.negated() } else { number }))
            }
            Self::Min => Ok(Value::Number(first.number()?.min(one(1)?.number()?))),
            Self::Max => Ok(Value::Number(first.number()?.max(one(1)?.number()?))),
            Self::Decimal => Ok(Value::Number(first.to_decimal()?)),
            Self::Round => {
                let digits = one(1)?.number()?.units(0).and_then(|digits| u32::try_from(digits).ok());
                let digits =
                    digits.ok_or_else(|| NoValue::Wrong("round(…, n) takes whole digits".to_owned()))?;
                exact(first.number()?.round(digits))
            }
        }
    }
}

fn exact(result: Result<crate::decimal::Decimal, DecimalError>) -> Result<Value<'static>, NoValue> {
    result.map(Value::Number).map_err(|error| NoValue::Wrong(format!("the result {error}")))
}

fn whole(number: usize) -> Result<crate::decimal::Decimal, NoValue> {
    let digits = i128::try_from(number).unwrap_or(i128::MAX);
    crate::decimal::Decimal::new(digits, 0).map_err(|error| NoValue::Wrong(error.to_string()))
}

fn index<'a>(of: &Value<'a>, at: &Value<'a>) -> Result<Value<'a>, NoValue> {
    let found = match of {
        Value::Tree(Json::Object(members)) => members.get(at.text()?),
        Value::Tree(Json::List(items)) => {
            at.number()?.units(0).and_then(|at| usize::try_from(at).ok()).and_then(|at| items.get(at))
        }
        other => return Err(NoValue::Wrong(format!("{} has no members", other.kind()))),
    };
    found.map_or_else(|| Err(NoValue::Missing("such member".to_owned())), Value::of)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(expression: &str, payload: &str) -> Result<String, String> {
        let expression = Expression::parse(expression).map_err(|bad| bad.why)?;
        let payload = Json::parse(payload.as_bytes()).unwrap();
        let facts = Facts {
            payload: &payload,
            id: "evt_1",
            event_type: "a.b",
            tenant: "acme",
            aggregate_id: None,
            occurred_at: "2026-11-15T12:00:00Z".parse().unwrap(),
        };
        let value = expression.value(&facts).map_err(|error| error.to_string())?;
        value.to_text().map(Cow::into_owned).map_err(|error| error.to_string())
    }

    #[test]
    fn numbers_are_exact() {
        let payload = r#"{"total": 0.1, "tax": "0.2", "big": 9007199254740993}"#;
        assert_eq!(value("payload.total + decimal(payload.tax)", payload).unwrap(), "0.3");
        assert_eq!(value("payload.big + 1", payload).unwrap(), "9007199254740994");
        assert_eq!(value("round(119.00 / 1.19 * 0.19, 2)", payload).unwrap(), "19");
        assert_eq!(value("1 / 4", payload).unwrap(), "0.25");
    }

    #[test]
    fn conditions_and_texts_work() {
        let payload = r#"{"a": {"b": [1, 2]}, "kind": "card", "x y": true,
            "lines": [{"sku1234567890123456": true}]}"#;
        for (expression, worth) in [
            ("payload.kind == 'card' && payload.a.b[1] == 2", "true"),
            ("payload.kind in ['card', 'cash'] ? 'till' : 'bank'", "till"),
            ("has(payload.a.c) || !has(payload.a.b)", "false"),
            ("payload['x y']", "true"),
            ("has(payload.a) && payload.lines[0].sku1234567890123456", "true"),
            ("2 in payload.a.b", "true"),
            ("payload.a.b == [1, 2.0] && [1, 2] == payload.a.b", "true"),
            ("payload.a.b != [2, 1] && payload.a.b != [1] && payload.a.b in [[], [1, 2]]", "true"),
            ("payload.kind.upperAscii() + '-' + string(size(payload.a.b))", "CARD-2"),
            ("event.id + event.tenant", "evt_1acme"),
            ("-3 < -2 && max(1, 2) == 2 && abs(-1) == 1", "true"),
        ] {
            assert_eq!(value(expression, payload).as_deref(), Ok(worth), "{expression}");
        }
    }

    #[test]
    fn what_goes_wrong_is_said() {
        let payload = r#"{"total": "12", "huge": 1e500}"#;
        for (expression, says) in [
            ("payload.missing.x", "the event has no payload.missing"),
            ("payload.total * 2", "write decimal(…)"),
            ("payload.total > 2", "write decimal(…)"),
            ("1 / 0", "divided by zero"),
            ("payload.huge", "more digits than can be kept"),
            ("1 && true", "true or false"),
            ("event.aggregate_id", "no aggregate_id"),
        ] {
            let said = value(expression, payload).unwrap_err();
            assert!(said.contains(says), "{expression}: {said}");
        }
    }

    #[test]
    fn what_cannot_be_worked_out_is_refused_when_it_is_read() {
        let long = "1 + ".repeat(1000) + "1";
        let deep = "(".repeat(400) + &")".repeat(400);
        for (expression, says) in [
            ("payload.items.map(x, x * 2)", "no loops"),
            ("[1].all(x, x > 0)", "no loops"),
            ("other.total", "there are payload and event"),
            ("event.nothing", "event has"),
            ("unknown(1)", "no function unknown"),
            ("round(1)", "takes 2"),
            ("1 +", ""),
            ("", ""),
            ("0.12345678901234567", "write decimal(\"0.12345678901234567\")"),
            ("payload.line2 * 12345678901234567e-3", "with its exponent, in quotes"),
            ("payload.line2 * 12345678901234567e0", "15 digits"),
            ("{'a': 1}", "maps"),
            (&long, "longer than"),
            (&deep, ""),
        ] {
            let said = value(expression, "{}").unwrap_err();
            assert!(said.contains(says), "{expression}: {said}");
        }
    }
}
