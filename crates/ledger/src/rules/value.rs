//! What an expression can be worth. There is one kind of number: the exact decimal.

use std::borrow::Cow;
use std::cmp::Ordering;

use crate::decimal::{Decimal, DecimalError};
use crate::json::Json;

/// A value, borrowed from the rule or the event where it can be.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    /// `null`
    Null,
    /// `true`, `false`
    Bool(bool),
    /// An exact number.
    Number(Decimal),
    /// A text.
    Text(Cow<'a, str>),
    /// A list or an object of the event.
    Tree(&'a Json<'a>),
    /// A list of the rule.
    List(Vec<Value<'a>>),
}

/// Why an expression has no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoValue {
    /// The event lacks something.
    #[error("the event has no {0}")]
    Missing(String),
    /// It is there, and of the wrong kind; or arithmetic failed.
    #[error("{0}")]
    Wrong(String),
}

impl<'a> Value<'a> {
    /// A value of the event.
    pub(super) fn of(json: &'a Json<'a>) -> Result<Self, NoValue> {
        Ok(match json {
            Json::Null => Self::Null,
            Json::Bool(truth) => Self::Bool(*truth),
            Json::Number(number) => Self::Number(*number),
            Json::Text(text) => Self::Text(Cow::Borrowed(text)),
            Json::List(_) | Json::Object(_) => Self::Tree(json),
            Json::Oversized(text) => {
                let start: String = text.chars().take(40).collect();
                return Err(NoValue::Wrong(format!(
                    "the number {start} has more digits than can be kept exactly"
                )));
            }
        })
    }

    /// What it is, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::Tree(Json::Object(_)) => "an object",
            Self::Tree(_) | Self::List(_) => "a list",
        }
    }

    pub(super) fn truth(&self) -> Result<bool, NoValue> {
        match self {
            Self::Bool(truth) => Ok(*truth),
            other => Err(NoValue::Wrong(format!("{} stands where true or false should", other.kind()))),
        }
    }

    pub(super) fn number(&self) -> Result<Decimal, NoValue> {
        match self {
            Self::Number(number) => Ok(*number),
            Self::Text(_) => {
                Err(NoValue::Wrong("a text stands where a number should; write decimal(…)".to_owned()))
            }
            other => Err(NoValue::Wrong(format!("{} stands where a number should", other.kind()))),
        }
    }

    /// The number, also of a text that is one: what `decimal(…)` does, and what amounts are read by.
    pub fn to_decimal(&self) -> Result<Decimal, NoValue> {
        match self {
            Self::Text(text) => text.parse().map_err(|error: DecimalError| {
                let start: String = text.chars().take(40).collect();
                NoValue::Wrong(format!("{start:?} {error}"))
            }),
            Self::Null => Err(NoValue::Missing("amount: it is null".to_owned())),
            other => other.number(),
        }
    }

    /// The text.
    pub fn text(&self) -> Result<&str, NoValue> {
        match self {
            Self::Text(text) => Ok(text),
            other => {
                Err(NoValue::Wrong(format!("{} stands where a text should; write string(…)", other.kind())))
            }
        }
    }

    /// The text, also of a number or a boolean.
    pub fn to_text(&self) -> Result<Cow<'a, str>, NoValue> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::Number(number) => Ok(number.to_string().into()),
            Self::Bool(truth) => Ok(truth.to_string().into()),
            other => Err(NoValue::Wrong(format!("{} cannot be written as a text", other.kind()))),
        }
    }

    pub(super) fn compared(&self, other: &Self) -> Result<Ordering, NoValue> {
        match (self, other) {
            (Self::Number(left), Self::Number(right)) => Ok(left.cmp(right)),
            (Self::Text(left), Self::Text(right)) => Ok(left.cmp(right)),
            (Self::Text(_), Self::Number(_)) | (Self::Number(_), Self::Text(_)) => {
                Err(NoValue::Wrong("a text cannot be compared with a number; write decimal(…)".to_owned()))
            }
            (left, right) => {
                let text = format!("{} cannot be compared with {}", left.kind(), right.kind());
                Err(NoValue::Wrong(text))
            }
        }
    }

    pub(super) fn len(&self) -> Result<usize, NoValue> {
        match self {
            Self::Text(text) => Ok(text.chars().count()),
            Self::List(items) => Ok(items.len()),
            Self::Tree(Json::List(items)) => Ok(items.len()),
            Self::Tree(Json::Object(members)) => Ok(members.len()),
            other => Err(NoValue::Wrong(format!("{} has no size", other.kind()))),
        }
    }

    /// Whether they are the same; a list of the event and one of the rule are, where their items are.
    pub(super) fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::List(left), Self::List(right)) => {
                left.len() == right.len() && left.iter().zip(right).all(|(left, right)| left.equals(right))
            }
            (Self::List(items), Self::Tree(Json::List(tree)))
            | (Self::Tree(Json::List(tree)), Self::List(items)) => {
                let same = |(item, json): (&Self, &'a Json<'a>)| Self::is(json, item);
                items.len() == tree.len() && items.iter().zip(tree).all(same)
            }
            (left, right) => left == right,
        }
    }

    fn is(json: &'a Json<'a>, item: &Self) -> bool {
        Self::of(json).is_ok_and(|value| value.equals(item))
    }

    pub(super) fn has(&self, item: &Self) -> Result<bool, NoValue> {
        match self {
            Self::List(items) => Ok(items.iter().any(|one| one.equals(item))),
            Self::Tree(Json::List(items)) => Ok(items.iter().any(|json| Self::is(json, item))),
            Self::Tree(Json::Object(members)) => Ok(members.contains_key(item.text()?)),
            other => Err(NoValue::Wrong(format!("nothing can be in {}", other.kind()))),
        }
    }
}
