//! Hostile input: samples, damaged in every way that files, networks and people damage them. Seeded, so that what broke a
//! parser breaks it again.

use std::fs;
use std::path::Path;

use crate::sim::Random;

/// The corpus and the targets of cargo-fuzz, in the repository.
const FUZZ: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz");

/// Numbers that lengths, counts and positions lie with.
const LIES: [u64; 9] = [0, 1, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 0x7fff_ffff_ffff_ffff];

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

/// Feeds a target with every file of its corpus, and with so many damaged copies of each: bits flipped, cuts, splices of two files,
/// lengths that lie.
///
/// # Panics
/// Where the target does, and says with what: that belongs into the corpus, as a file, when it is mended.
pub fn feed(name: &str, copies: u64, target: fn(&[u8])) {
    let corpus = Path::new(FUZZ).join("corpus").join(name);
    assert!(
        Path::new(FUZZ).join("fuzz_targets").join(format!("{name}.rs")).exists(),
        "cargo-fuzz does not know {name}"
    );
    let mut files: Vec<_> = fs::read_dir(&corpus)
        .unwrap_or_else(|error| panic!("{}: {error}", corpus.display()))
        .map(|file| file.unwrap_or_else(|error| panic!("{}: {error}", corpus.display())).path())
        .collect();
    files.sort();
    let read = |path: &Path| fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let samples: Vec<_> = files.iter().map(|path| read(path)).collect();
    assert!(samples.len() > 2, "the corpus of {name} has hardly anything in it");
    let withstands = |input: &[u8], what: &str| {
        let ended = std::panic::catch_unwind(|| target(input));
        assert!(ended.is_ok(), "{name} fell over {what}: {}", input.escape_ascii());
    };
    for (path, sample) in files.iter().zip(&samples) {
        let file = path.file_name().unwrap_or_default().display();
        withstands(sample, &file.to_string());
        for seed in 0..copies {
            withstands(&bred(seed, sample, &samples), &format!("{file}, damaged by seed {seed}"));
        }
    }
}

/// A damaged sample, half of them with a piece of another sample or a number that lies.
fn bred(seed: u64, sample: &[u8], others: &[Vec<u8>]) -> Vec<u8> {
    let mut random = Random::new(seed ^ 0x5eed);
    let mut bytes = sample.to_vec();
    let at = random.index(bytes.len() + 1);
    match random.below(4) {
        0 => {
            let other = &others[random.index(others.len())];
            let from = random.index(other.len() + 1);
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        1 => {
            let (lie, width) = (LIES[random.index(LIES.len())], [1, 2, 4, 8][random.index(4)]);
            let lie = &lie.to_be_bytes()[8 - width..];
            let end = (at + width).min(bytes.len());
            bytes.splice(at..end, lie.iter().copied());
        }
        _ => {}
    }
    // What was bred is fed as it is from time to time.
    if random.one_in(4) { bytes } else { damaged(seed, &bytes) }
}
