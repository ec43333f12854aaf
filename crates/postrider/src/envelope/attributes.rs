//! What a CloudEvent says beside what every event says here: its source, its schema, and extensions of others.
//!
//! They are carried from the publisher through the outbox and the broker to handlers and endpoints, and never interpreted.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::text::InvalidText;

/// Attributes by name, as text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes(BTreeMap<String, String>);

/// The attribute that says where an event comes from.
pub(super) const SOURCE: &str = "source";

/// All names and values together may have so many bytes: they travel as headers.
const MAX_BYTES: usize = 16 * 1024;

/// What the envelope has a place of its own for.
const PLACED: [&str; 13] = [
    "specversion",
    "id",
    "type",
    "subject",
    "time",
    "datacontenttype",
    "data",
    "data_base64",
    "partitionkey",
    "tenant",
    "subsidiary",
    "traceparent",
    "tracestate",
];

impl Attributes {
    /// Whether the envelope has a place of its own for this attribute.
    pub fn is_placed(name: &str) -> bool {
        PLACED.contains(&name)
    }

    /// Sets an attribute, by the rules of CloudEvents: a name is lower-case letters and digits, a value is text without control
    /// characters.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) -> Result<(), InvalidText> {
        let (name, value) = (name.into(), value.into());
        let broken = |what, text: &str, rule| Err(InvalidText::Rule { what, text: start(text), rule });
        let plain = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        if name.is_empty() || name.len() > 128 || !plain {
            return broken("an attribute's name", &name, "is not 1 to 128 lower-case letters and digits");
        }
        if Self::is_placed(&name) {
            return broken("the attribute", &name, "has a place of its own in the event");
        }
        if value.chars().any(char::is_control) {
            return broken("the attribute", &name, "has a control character in its value");
        }
        let others = self.iter().filter(|(other, _)| *other != name);
        let len =
            others.map(|(name, value)| name.len() + value.len()).sum::<usize>() + name.len() + value.len();
        if len > MAX_BYTES {
            return Err(InvalidText::TooLong {
                what: "all attributes",
                len,
                max: MAX_BYTES,
                start: start(&name),
            });
        }
        self.0.insert(name, value);
        Ok(())
    }

    /// The attribute of this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As the outbox keeps them; nothing for none.
    pub(crate) fn to_json(&self) -> Option<String> {
        if self.is_empty() {
            return None;
        }
        // Texts cannot fail to serialize.
        serde_json::to_string(&self.0).ok()
    }

    /// What the outbox kept. A plain INSERT can write anything there; what is no attribute is left out.
    pub(crate) fn from_json(json: Option<&[u8]>) -> Self {
        let mut attributes = Self::default();
        let Some(json) = json else { return attributes };
        let kept: BTreeMap<String, Value> = serde_json::from_slice(json).unwrap_or_default();
        for (name, value) in kept {
            let Some(value) = text(value) else { continue };
            if let Err(why) = attributes.set(name, value) {
                tracing::debug!(%why, "an attribute in the outbox is left out");
            }
        }
        attributes
    }
}

/// CloudEvents' types as the text they have in headers: a string, a number or a boolean.
pub(super) fn text(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn start(text: &str) -> String {
    text.chars().take(32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_comes_back_and_what_is_none_is_left_out() {
        let mut attributes = Attributes::default();
        attributes.set(SOURCE, "/shop/é").unwrap();
        attributes.set("comexampleother", "x").unwrap();
        let json = attributes.to_json().unwrap();
        assert_eq!(Attributes::from_json(Some(json.as_bytes())), attributes);
        assert_eq!(Attributes::default().to_json(), None);
        let foreign = br#"{"n": 5, "is": true, "Upper": "x", "id": "other", "list": [1], "ctl": "a\nb"}"#;
        let read = Attributes::from_json(Some(foreign));
        assert_eq!(read.iter().collect::<Vec<_>>(), [("is", "true"), ("n", "5")]);
        assert_eq!(Attributes::from_json(Some(b"[1]")), Attributes::default());
    }

    #[test]
    fn what_no_header_could_carry_is_refused() {
        let mut attributes = Attributes::default();
        assert!(attributes.set("with-dash", "x").is_err());
        assert!(attributes.set("", "x").is_err());
        assert!(attributes.set("subject", "x").unwrap_err().to_string().contains("a place of its own"));
        assert!(attributes.set("large", "x".repeat(MAX_BYTES)).unwrap_err().to_string().contains("16384"));
    }
}
