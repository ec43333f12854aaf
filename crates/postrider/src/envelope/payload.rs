//! What an event says, and the hash that tells two sayings apart.

use std::borrow::Cow;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::{canonical, erased};

/// Bytes and what they are. JSON unless said otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    content_type: Cow<'static, str>,
    bytes: Bytes,
}

/// The content type of JSON.
pub(super) const JSON: &str = "application/json";

impl Payload {
    /// A value as JSON.
    pub fn json(value: &impl serde::Serialize) -> Result<Self, serde_json::Error> {
        Ok(Self::json_bytes(serde_json::to_vec(value)?.into()))
    }

    /// Any bytes, with their content type.
    pub fn new(content_type: impl Into<String>, bytes: impl Into<Bytes>) -> Self {
        Self { content_type: Cow::Owned(content_type.into()), bytes: bytes.into() }
    }

    /// Bytes that are JSON.
    pub(super) fn json_bytes(bytes: Bytes) -> Self {
        Self { content_type: Cow::Borrowed(JSON), bytes }
    }

    /// `{}`.
    pub fn empty_object() -> Self {
        Self::json_bytes(Bytes::from_static(b"{}"))
    }

    /// The content type.
    pub fn content_type(&self) -> &str {
        &self.content_type
    }

    /// The bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Whether the content type is JSON: `application/json` or any `…+json`, with or without parameters.
    pub fn is_json(&self) -> bool {
        let essence = self.content_type.split(';').next().unwrap_or("").trim();
        essence.eq_ignore_ascii_case(JSON) || essence.to_ascii_lowercase().ends_with("+json")
    }

    /// Reads the JSON into a type of the caller's.
    pub fn parse<T: serde::de::DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.bytes)
    }

    /// SHA-256 of the canonical JSON, or of the raw bytes if it is not JSON: the same event in two wire formats has the
    /// same hash.
    pub fn hash(&self) -> PayloadHash {
        // What was erased has the hash it had.
        if let Some(hash) = erased::hash_in(&self.bytes) {
            return hash;
        }
        let canonical = canonical::json(&self.bytes);
        let bytes = canonical.as_deref().unwrap_or(&self.bytes);
        PayloadHash(Sha256::digest(bytes).into())
    }
}

/// What was expected of JSON and where, in words that never repeat what stands there: the parser's own quote it.
pub(crate) fn misfit(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let said = text.rsplit_once(" at line ").map_or(text.as_str(), |(said, _)| said);
    let names = |known: &str| said.starts_with(known);
    let what = match said.rsplit_once(", expected ") {
        _ if !error.is_data() || names("missing field") || names("duplicate field") => Cow::Borrowed(said),
        Some((_, wanted)) => Cow::Owned(format!("expected {wanted}")),
        None => Cow::Borrowed("a value does not fit"),
    };
    format!("{what} (line {}, column {})", error.line(), error.column())
}

/// `sha256:` and 64 hexadecimal digits, when shown.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PayloadHash([u8; 32]);

impl PayloadHash {
    /// The 32 bytes, as stores keep them.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// From the 32 bytes a store kept.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl std::fmt::Display for PayloadHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("sha256:")?;
        f.write_str(&hex(&self.0))
    }
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |number: u8| char::from(DIGITS[usize::from(number & 15)]);
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(digit(byte >> 4));
        text.push(digit(*byte));
    }
    text
}

impl std::fmt::Debug for PayloadHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misfit_is_told_without_the_value() {
        #[derive(Debug, serde::Deserialize)]
        #[expect(dead_code, reason = "it is only read")]
        struct Order {
            cents: u64,
            currency: Option<Currency>,
        }
        #[derive(Debug, serde::Deserialize)]
        enum Currency {
            Eur,
        }
        let told = |body: &'static str| {
            let payload = Payload::json_bytes(Bytes::from_static(body.as_bytes()));
            misfit(&payload.parse::<Order>().unwrap_err())
        };
        assert_eq!(told("{}"), "missing field `cents` (line 1, column 2)");
        assert_eq!(told(r#"{"cents":"4711, expected 5"}"#), "expected u64 (line 1, column 27)");
        assert_eq!(told(r#"{"cents":1,"currency":"Secret"}"#), "expected `Eur` (line 1, column 30)");
        assert_eq!(told("order 4711"), "expected value (line 1, column 1)");
        assert_eq!(told(r#"{"cents":"#), "EOF while parsing a value (line 1, column 9)");
    }
}
