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
