//! Hostile input: samples, damaged in every way that files, networks and people damage them. Seeded, so that what broke a
//! parser breaks it again.

use crate::sim::Random;

/// What bytes are replaced with: those that mean something to a parser.
const TELLING: &[u8] = b"\"\\{}[]:,.=#\n\0\x7f\xff\xc3\xe2-+0e9 /*%$'`<";

/// Texts that have broken parsers before.
const NASTY: [&str; 14] = [
    "",
    "null",
    "1e999999999",
    "-0",
    "99999999999999999999999999999999999999999999",
    "0.0000000000000000000000000000000000000000001",
    "\u{202e}gnirts",
    "\u{0}",
    "\u{feff}",
    "{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{",
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    "((((((((((((((((((((((((((((((((",
    "9999-99-99T99:99:99Z",
    "\\ud800",
];

/// A damaged sample: a few bytes flipped, cut, doubled, moved, or replaced by something nasty.
pub fn damaged(seed: u64, sample: &[u8]) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = sample.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.index(bytes.len() + 1);
        let length = random.index(16).min(bytes.len() - at);
        match random.below(8) {
            0 => bytes.truncate(at),
            1 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            2 => bytes.insert(at, TELLING[random.index(TELLING.len())]),
            3 => drop(bytes.drain(at..at + length)),
            4 => {
                let piece = bytes[at..at + length].to_vec();
                let to = random.index(bytes.len() + 1);
                bytes.splice(to..to, piece);
            }
            5 => drop(bytes.splice(at..at + length, NASTY[random.index(NASTY.len())].bytes())),
            6 => {
                let piece = bytes[at..at + length].repeat(1 + random.index(64));
                bytes.splice(at..at, piece);
            }
            _ if at < bytes.len() => bytes[at] = TELLING[random.index(TELLING.len())],
            _ => {}
        }
    }
    bytes
}

/// The same of a text; what is no UTF-8 any more is replaced.
pub fn damaged_text(seed: u64, sample: &str) -> String {
    String::from_utf8_lossy(&damaged(seed, sample.as_bytes())).into_owned()
}
