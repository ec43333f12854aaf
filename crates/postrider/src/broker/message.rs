//! A message as brokers carry it: properties, headers and bytes.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Properties, headers and body. Always persistent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Message {
    /// The standard properties we use; the rest is carried in [`Properties`] untouched.
    pub properties: Properties,
    /// The header table.
    pub headers: Headers,
    /// The bytes.
    pub body: Bytes,
}

/// AMQP's basic properties.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Properties {
    /// Our event id.
    pub message_id: Option<String>,
    /// What the body is.
    pub content_type: Option<String>,
    /// How the body is packed.
    pub content_encoding: Option<String>,
    /// The conversation.
    pub correlation_id: Option<String>,
    /// Seconds since 1970.
    pub timestamp: Option<u64>,
    /// The event type.
    pub kind: Option<String>,
    /// Who published it.
    pub app_id: Option<String>,
    /// Where an answer is wanted.
    pub reply_to: Option<String>,
    /// 0 to 9.
    pub priority: Option<u8>,
}

impl Properties {
    /// When it was sent, as far as that is a time: some producers write milliseconds, which lead to a year that nobody can name.
    pub(crate) fn time(&self) -> Option<Timestamp> {
        Timestamp::from_second(i64::try_from(self.timestamp?).ok()?).ok()
    }
}

/// The header table, sorted by name.
pub type Headers = BTreeMap<String, HeaderValue>;

/// A value in a header table: every type of AMQP has a place, integers of all widths share one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeaderValue {
    /// No value.
    Null,
    /// True or false.
    Bool(bool),
    /// Any integer.
    Int(i64),
    /// A float or double.
    Float(#[serde(with = "float")] f64),
    /// A decimal: value and number of digits after the point.
    Decimal {
        /// Digits after the point.
        scale: u8,
        /// The digits.
        value: u32,
    },
    /// Text.
    Text(String),
    /// Bytes that are not UTF-8.
    Bytes(Vec<u8>),
    /// Seconds since 1970.
    Timestamp(u64),
    /// A list.
    List(Vec<HeaderValue>),
    /// A table.
    Table(Headers),
}

impl HeaderValue {
    /// As people would write it in JSON, for them to read: it does not tell a timestamp from an integer.
    pub fn to_plain_json(&self) -> serde_json::Value {
        match self {
            Self::Null => serde_json::Value::Null,
            Self::Bool(value) => (*value).into(),
            Self::Int(value) => (*value).into(),
            Self::Float(value) if value.is_finite() => (*value).into(),
            Self::Float(value) => value.to_string().into(),
            Self::Decimal { scale, value } => format!("{value}e-{scale}").into(),
            Self::Text(text) => text.as_str().into(),
            Self::Bytes(bytes) => format!("{} bytes that are no text", bytes.len()).into(),
            Self::Timestamp(seconds) => (*seconds).into(),
            Self::List(values) => values.iter().map(Self::to_plain_json).collect(),
            Self::Table(table) => {
                table.iter().map(|(name, value)| (name.clone(), value.to_plain_json())).collect()
            }
        }
    }

    /// The text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The integer, if it is one, or text that reads as one.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(int) => Some(*int),
            Self::Text(text) => text.trim().parse().ok(),
            _ => None,
        }
    }
}

impl From<&str> for HeaderValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for HeaderValue {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for HeaderValue {
    fn from(int: i64) -> Self {
        Self::Int(int)
    }
}

impl From<u32> for HeaderValue {
    fn from(int: u32) -> Self {
        Self::Int(i64::from(int))
    }
}

impl Message {
    /// The text of a header, if it has one.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(HeaderValue::as_str)
    }

    /// Takes out the headers by which RabbitMQ would send it to other queues too. Its broker did so at the first publish.
    pub fn ask_for_no_copies(&mut self) {
        for name in ["CC", "BCC"] {
            self.headers.remove(name);
        }
    }

    /// Takes out what a queue counted of its deliveries: another one counts anew, and till then it would be taken for that one's.
    pub(crate) fn forget_deliveries(&mut self) {
        for name in super::COUNTED {
            self.headers.remove(name);
        }
    }
}

/// JSON has no place for infinite floats and NaN, and its readers may miss the last digit of a long fraction; those are written as text, so
/// that every header can be stored and comes back as it was.
mod float {
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Float {
        Number(f64),
        Text(String),
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
    pub(super) fn serialize<S: Serializer>(float: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        let whole = float.fract() == 0.0 && float.abs() < 1e15;
        if whole { serializer.serialize_f64(*float) } else { serializer.collect_str(float) }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        match Float::deserialize(deserializer)? {
            Float::Number(float) => Ok(float),
            Float::Text(text) => text.parse().map_err(D::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_float_survives_json() {
        for float in [0.1, -1e300, 5.0, f64::INFINITY, f64::NEG_INFINITY] {
            let json = serde_json::to_string(&HeaderValue::Float(float)).unwrap();
            assert_eq!(
                serde_json::from_str::<HeaderValue>(&json).unwrap(),
                HeaderValue::Float(float),
                "{json}"
            );
        }
        let json = serde_json::to_string(&HeaderValue::Float(f64::NAN)).unwrap();
        assert!(matches!(serde_json::from_str(&json).unwrap(), HeaderValue::Float(float) if float.is_nan()));
    }
}
