//! The hash chain of a tenant, byte by byte.
//!
//! The hash of an entry is SHA-256 over these bytes, in this order. Integers are big-endian; a *text* is its length in bytes
//! as u32, then its UTF-8 bytes.
//!
//! | what | how |
//! |---|---|
//! | version of this layout | one byte, 1 |
//! | hash of the entry before | 32 bytes; zeros before the first |
//! | tenant | text |
//! | number | u64 |
//! | kind | one byte: posted 1, pending 2, settlement 3, void 4, reversal 5, closing 6, opening 7, seal 8 |
//! | effective date | i32, days since 1970-01-01 |
//! | posting time | i64, microseconds since 1970-01-01T00:00:00Z |
//! | source event id | text |
//! | payload hash | 32 bytes |
//! | rule | text |
//! | description | text |
//! | metadata | text, the JSON as it is stored |
//! | entry referred to | u64, 0 for none |
//! | number of lines | u32 |
//! | each line: account | text |
//! | side | one byte: debit 1, credit 2 |
//! | amount | i64, minor units |
//! | currency | text |
//! | base amount | i64, minor units |
//! | rate | text, empty for none |
//! | rate source | text, empty for none |
//!
//! Whoever changes one byte of one entry changes its hash and every hash after it. `docs/ledger-verify.py` is this table in
//! Python.

use std::fmt;

use jiff::civil::{Date, date};
use sha2::{Digest as _, Sha256};

use crate::entry::Sealed;
use crate::stored::{EntryRow, LineRow};

/// The layout above.
const VERSION: u8 = 1;

/// SHA-256 of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// What stands before the first entry.
    pub const ZERO: Self = Self([0; 32]);

    /// From what a store kept.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// From 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&postrider::envelope::hex(&self.0))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl serde::Serialize for Hash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The hash of an entry that follows `before`. The entry's own `hash` is not read.
pub fn hash(before: &Hash, entry: &Sealed) -> Hash {
    let lines: Vec<LineRow<'_>> = (1..).zip(&entry.lines).map(|(place, line)| line.row(place)).collect();
    let mut bytes = Vec::with_capacity(256 + 96 * lines.len());
    hash_columns(&mut bytes, before, entry.tenant.as_str(), &entry.row(), &lines)
}

/// The same of the columns that a store has. `bytes` is overwritten: whoever hashes many entries brings one along.
pub(crate) fn hash_columns(
    bytes: &mut Vec<u8>,
    before: &Hash,
    tenant: &str,
    entry: &EntryRow<'_>,
    lines: &[LineRow<'_>],
) -> Hash {
    bytes.clear();
    write(bytes, before, tenant, entry);
    bytes.extend_from_slice(&length(lines.len()));
    for line in lines {
        write_line(bytes, line);
    }
    Hash(Sha256::digest(&*bytes).into())
}

fn write(out: &mut Vec<u8>, before: &Hash, tenant: &str, entry: &EntryRow<'_>) {
    out.push(VERSION);
    out.extend_from_slice(&before.0);
    text(out, tenant);
    out.extend_from_slice(&entry.number.to_be_bytes());
    out.push(byte(entry.kind));
    out.extend_from_slice(&entry.effective_on.to_be_bytes());
    out.extend_from_slice(&entry.posted_at.to_be_bytes());
    text(out, entry.source_event);
    out.extend_from_slice(entry.payload_hash);
    text(out, entry.rule);
    text(out, entry.description);
    text(out, entry.metadata);
    out.extend_from_slice(&entry.refers_to.unwrap_or(0).to_be_bytes());
}

fn write_line(out: &mut Vec<u8>, line: &LineRow<'_>) {
    text(out, line.account);
    out.push(byte(line.side));
    out.extend_from_slice(&line.amount.to_be_bytes());
    text(out, line.currency);
    out.extend_from_slice(&line.base_amount.to_be_bytes());
    text(out, line.rate.unwrap_or(""));
    text(out, line.rate_source.unwrap_or(""));
}

/// What no ledger writes becomes 0, which no kind and no side is.
fn byte(number: i16) -> u8 {
    u8::try_from(number).unwrap_or(0)
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&length(text.len()));
    out.extend_from_slice(text.as_bytes());
}

fn length(of: usize) -> [u8; 4] {
    u32::try_from(of).unwrap_or(u32::MAX).to_be_bytes()
}

/// Days since 1970-01-01.
pub fn days(day: Date) -> i32 {
    let epoch = date(1970, 1, 1);
    day.since(epoch).map_or(0, |span| span.get_days())
}

/// The day so many days after 1970-01-01.
pub fn day(days: i32) -> Option<Date> {
    date(1970, 1, 1).checked_add(jiff::Span::new().try_days(days).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted_from_1970() {
        for (on, number) in [(date(1970, 1, 1), 0), (date(2024, 2, 29), 19_782), (date(1969, 12, 31), -1)] {
            assert_eq!(days(on), number);
            assert_eq!(day(number), Some(on));
        }
    }

    #[test]
    fn a_hash_is_read_back() {
        let hash = Hash([0xa5; 32]);
        assert_eq!(Hash::from_hex(&hash.to_string()), Some(hash));
        assert_eq!(Hash::from_hex("zz"), None);
    }
}
