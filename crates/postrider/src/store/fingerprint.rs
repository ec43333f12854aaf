//! What dead letters that failed for the same reason have in common.
//!
//! The fingerprint is the hash of consumer (or queue), type, reason, error class, the HTTP status if there was one, and the error
//! with its variable parts taken out: among those are its numbers, and a 404 has another cause than a 422. It is stored with the
//! letter: a change here regroups only what is collected afterwards.

use sha2::{Digest as _, Sha256};

use super::DeadLetter;
use crate::broker::HeaderValue;
use crate::dead_letter::header;

/// Only so much of an error tells it apart; the rest is details, or a stack of them.
const TOLD_BY: usize = 1024;
/// What stands in quotes is a value, unless the quote is never closed nearby.
const LONGEST_QUOTE: usize = 256;

impl DeadLetter {
    /// The same for what failed for the same reason.
    pub fn fingerprint(&self) -> String {
        let who = self.consumer.as_ref().map_or(self.queue.as_str(), AsRef::as_ref);
        let event_type = self.event_type.as_deref().unwrap_or("");
        let class = self.error_class.as_deref().unwrap_or("");
        let status = self.headers.get(header::FINAL_STATUS_CODE).and_then(HeaderValue::as_int);
        let status = status.map_or_else(String::new, |status| format!("\n{status}"));
        let text = [who, event_type, &self.reason, class, &shape(&self.error)].join("\n") + &status;
        let digest = Sha256::digest(text.as_bytes());
        let start = digest.first_chunk().copied().unwrap_or_default();
        format!("{:016x}", u64::from_be_bytes(start))
    }
}

/// The error without what differs from one event to the next: numbers, times, UUIDs and other hexadecimal, quoted values
/// and e-mail addresses each become `#`.
pub(crate) fn shape(error: &str) -> String {
    let error = &error[..error.floor_char_boundary(TOLD_BY)];
    let mut shape: Vec<&str> = Vec::new();
    let mut rest = error;
    while let Some(first) = rest.chars().next() {
        let (word, after) = if is_part(first) {
            let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            let word = rest[..end].trim_end_matches(['.', ':', '-', '+']);
            (if is_variable(word) { "#" } else { word }, end)
        } else {
            match quoted(rest, first) {
                Some(end) => ("#", end),
                None => ("", first.len_utf8()),
            }
        };
        if !word.is_empty() && (word != "#" || shape.last() != Some(&"#")) {
            shape.push(word);
        }
        rest = &rest[after..];
    }
    shape.join(" ")
}

/// What a word may consist of, so that addresses, times and ids stay whole. An apostrophe belongs to its word.
fn is_part(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '@' | ':' | '+' | '\u{2019}')
}

fn is_variable(word: &str) -> bool {
    let hex = |c: char| c.is_ascii_hexdigit() || c == '-';
    word.contains(|c: char| c.is_numeric())
        || word.contains('@')
        || (word.len() >= 8 && word.chars().all(hex) && word.contains(|c: char| c.is_ascii_hexdigit()))
}

/// Where a quoted value ends, if one begins here.
fn quoted(text: &str, open: char) -> Option<usize> {
    let close = match open {
        '"' | '\'' | '`' => open,
        '“' => '”',
        '«' => '»',
        _ => return None,
    };
    let inside = &text[open.len_utf8()..];
    let within = &inside[..inside.floor_char_boundary(LONGEST_QUOTE)];
    within.find(close).map(|end| open.len_utf8() + end + close.len_utf8())
}

#[cfg(test)]
mod tests {
    use super::shape;

    #[test]
    fn ids_and_numbers_do_not_tell_errors_apart() {
        let one = shape("order 0199-ab3f not found after 12.5 s");
        assert_eq!(one, shape("order 42 not found after 3 s"));
        assert_ne!(one, shape("order 42 was paid after 3 s"));
    }

    #[test]
    fn variable_parts_become_one_mark() {
        for (error, expected) in [
            ("no account 'Größe & Söhne' for ada@example.com", "no account # for #"),
            ("key \"a\\b\" at 2026-11-15T12:00:00.5+01:00: deadbeef", "key # at #"),
            ("trace 0af7651916cd43dd8448eb211c80319c lost", "trace # lost"),
            ("it's down", "it s down"),
            ("smtp.example.com refused: try again.", "smtp.example.com refused try again"),
            ("an open \" quote stays 7", "an open quote stays #"),
            ("", ""),
        ] {
            assert_eq!(shape(error), expected, "{error}");
        }
    }

    #[test]
    fn the_longest_error_is_told_by_its_beginning() {
        let long = format!("disk full {}", "ж".repeat(10 * 1024 * 1024));
        assert!(shape(&long).len() <= 1100);
    }
}
