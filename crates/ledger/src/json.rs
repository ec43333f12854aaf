//! A JSON document whose numbers keep every digit.
//!
//! Numbers are taken from the text as exact decimals. A number that cannot be kept exactly stays in the tree as text and is
//! an error only for the rule that asks for it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::decimal::Decimal;

/// Deeper nesting is refused.
const MAX_DEPTH: usize = 32;

/// One value. Strings without escapes are borrowed from the text.
#[derive(Debug, Clone, PartialEq)]
pub enum Json<'a> {
    /// `null`
    Null,
    /// `true`, `false`
    Bool(bool),
    /// A number, exactly.
    Number(Decimal),
    /// A number with more digits than can be kept.
    Oversized(&'a str),
    /// A string.
    Text(Cow<'a, str>),
    /// An array.
    List(Vec<Json<'a>>),
    /// An object. No name stands twice in it.
    Object(BTreeMap<Cow<'a, str>, Json<'a>>),
}

impl<'a> Json<'a> {
    /// Reads a document, or says in words why not.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, String> {
        let raw: &RawValue = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        value(raw.get(), 0)
    }
}

/// A name or a string, borrowed where it has no escapes.
#[derive(serde::Deserialize, PartialEq, Eq, PartialOrd, Ord)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// The members of an object. Readers would disagree about which of two with one name counts, so there are no books on either.
struct Members<'a>(BTreeMap<Cow<'a, str>, &'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor).map(Members)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = BTreeMap<Cow<'de, str>, &'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut members = BTreeMap::new();
        while let Some(Name(name)) = access.next_key()? {
            let raw = access.next_value()?;
            match members.entry(name) {
                Entry::Vacant(place) => place.insert(raw),
                Entry::Occupied(first) => {
                    let told = format!("key {:?} twice; readers would disagree", first.key());
                    return Err(A::Error::custom(told));
                }
            };
        }
        Ok(members)
    }
}

fn value(text: &str, depth: usize) -> Result<Json<'_>, String> {
    if depth > MAX_DEPTH {
        return Err(format!("it is nested deeper than {MAX_DEPTH}"));
    }
    let broken = |error: serde_json::Error| error.to_string();
    let text = text.trim_ascii();
    Ok(match text.as_bytes().first() {
        Some(b'{') => {
            let Members(members) = serde_json::from_str(text).map_err(broken)?;
            let members = members.into_iter().map(|(name, raw)| Ok((name, value(raw.get(), depth + 1)?)));
            Json::Object(members.collect::<Result<_, String>>()?)
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text).map_err(broken)?;
            Json::List(items.into_iter().map(|raw| value(raw.get(), depth + 1)).collect::<Result<_, _>>()?)
        }
        Some(b'"') => Json::Text(serde_json::from_str::<Name<'_>>(text).map_err(broken)?.0),
        Some(b't') => Json::Bool(true),
        Some(b'f') => Json::Bool(false),
        Some(b'n') => Json::Null,
        _ => text.parse().map_or(Json::Oversized(text), Json::Number),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_every_digit() {
        let Json::Object(members) =
            Json::parse(br#"{"a": 0.1000000000000000055, "b": "x\n", "c": 1e400}"#).unwrap()
        else {
            panic!("an object");
        };
        assert_eq!(members["a"], Json::Number("0.1000000000000000055".parse().unwrap()));
        assert_eq!(members["b"], Json::Text("x\n".into()));
        assert_eq!(members["c"], Json::Oversized("1e400"));
    }

    #[test]
    fn what_is_not_json_says_why() {
        for bad in ["", "{", "{\"a\":}", "nonsense", "[1,]", "{\"a\":{\"b\":1,\"b\":1}}"] {
            assert!(Json::parse(bad.as_bytes()).is_err(), "{bad:?}");
        }
        assert!(Json::parse("[".repeat(5000).as_bytes()).is_err());
        let deep = format!("{}{}", "[".repeat(60), "]".repeat(60));
        assert!(Json::parse(deep.as_bytes()).unwrap_err().contains("nested"));
    }
}
