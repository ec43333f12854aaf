//! What is shallow comes through as it was, what is deep is cut off where it begins, and how the bytes arrive makes no difference.

use super::*;

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).unwrap();
    [&[kind, 0, 1], &size.to_be_bytes()[..], payload, &[0xCE]].concat()
}

fn text(text: &str) -> Vec<u8> {
    [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
}

fn sized(kind: u8, inside: &[u8]) -> Vec<u8> {
    [&[kind], &u32::try_from(inside.len()).unwrap().to_be_bytes()[..], inside].concat()
}

/// Headers of one message that has both short texts before them and a property behind them.
fn content(fields: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let fields: Vec<u8> =
        fields.iter().flat_map(|(name, value)| [text(name), value.clone()].concat()).collect();
    let flags = (CONTENT_TYPE | CONTENT_ENCODING | HEADERS | 1 << 12).to_be_bytes();
    let fixed = [&[0, 60, 0, 0][..], &7_u64.to_be_bytes(), &flags].concat();
    let table = sized(b'F', &fields).split_off(1);
    frame(CONTENT_FRAME, &[fixed, text("application/json"), text("gzip"), table, vec![2]].concat())
}

/// So many lists and tables in turn, with a number in the innermost and one behind each.
fn nested(levels: usize) -> Vec<u8> {
    let mut value = vec![b'I', 0, 0, 0, 5];
    for level in 0..levels {
        value.extend([b'V']);
        value = match level % 2 {
            0 => sized(b'A', &value),
            _ => {
                sized(b'F', &[text("in"), value[..value.len() - 1].to_vec(), text("v"), vec![b'V']].concat())
            }
        };
    }
    value
}

fn sifted(bytes: &[u8], at_a_time: usize) -> Vec<u8> {
    let (mut sieve, mut bytes) = (Sieve::default(), bytes.to_vec());
    for part in bytes.chunks_mut(at_a_time) {
        sieve.pass(part);
    }
    assert!(sieve.want == Want::Frame && sieve.skip == 0, "{sieve:?}");
    bytes
}

/// One value of every type.
fn all() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("void", vec![b'V']),
        ("bool", vec![b't', 1]),
        ("tiny", vec![b'b', 255]),
        ("tiny unsigned", vec![b'B', 255]),
        ("short", vec![b's', 1, 2]),
        ("short again", vec![b'U', 1, 2]),
        ("short unsigned", vec![b'u', 1, 2]),
        ("int", vec![b'I', 1, 2, 3, 4]),
        ("unsigned", vec![b'i', 1, 2, 3, 4]),
        ("float", vec![b'f', 1, 2, 3, 4]),
        ("decimal", vec![b'D', 2, 1, 2, 3, 4]),
        ("long", vec![b'l', 1, 2, 3, 4, 5, 6, 7, 8]),
        ("long again", vec![b'L', 1, 2, 3, 4, 5, 6, 7, 8]),
        ("double", vec![b'd', 1, 2, 3, 4, 5, 6, 7, 8]),
        ("time", vec![b'T', 1, 2, 3, 4, 5, 6, 7, 8]),
        ("text", sized(b'S', b"AAAAFFFF")),
        ("bytes", sized(b'x', b"AAAAFFFF")),
        ("empty list", sized(b'A', b"")),
        ("empty table", sized(b'F', b"")),
    ]
}

#[test]
fn what_is_shallow_comes_through_as_it_was() {
    let deepest = content(&[all(), vec![("deep", nested(DEEPEST - 1))], all()].concat());
    let none =
        frame(CONTENT_FRAME, &[&[0, 60, 0, 0][..], &[0; 8], &(1_u16 << 12).to_be_bytes(), &[2]].concat());
    let stream =
        [frame(1, b"A method"), deepest.clone(), frame(3, b"A body"), frame(8, b""), none, deepest].concat();
    for at_a_time in [1, 2, 3, 7, 64, stream.len()] {
        assert!(sifted(&stream, at_a_time) == stream, "{at_a_time} bytes at a time");
    }
}

#[test]
fn what_is_deep_is_bytes_from_there_on_and_nothing_else_changes() {
    for levels in [DEEPEST, DEEPEST + 1, 1_000, 20_000] {
        let value = nested(levels);
        let stream =
            [content(&[("deep", value.clone()), ("a", nested(2))]), frame(3, b"A"), content(&all())].concat();
        let once = sifted(&stream, stream.len());
        let changed: Vec<_> = (0..stream.len()).filter(|at| stream[*at] != once[*at]).collect();
        assert_eq!(changed.len(), 1, "{levels} levels");
        assert!(matches!(stream[changed[0]], b'A' | b'F') && once[changed[0]] == BYTES);
        for at_a_time in [1, 5, 4096] {
            assert!(sifted(&stream, at_a_time) == once, "{levels} levels, {at_a_time} bytes at a time");
        }
    }
}

#[test]
fn siblings_are_counted_each_for_itself() {
    let stream =
        content(&[("a", nested(DEEPEST - 1)), ("b", nested(DEEPEST + 1)), ("c", nested(DEEPEST + 2))]);
    let once = sifted(&stream, 9);
    assert_eq!((0..stream.len()).filter(|at| stream[*at] != once[*at]).count(), 2);
}

#[test]
fn lengths_that_lie_end_with_their_frame() {
    let good = content(&[("a", nested(DEEPEST + 5))]);
    let mended = sifted(&good, 1);
    for at in 7..good.len() - 1 {
        for lie in [0, 1, 127, 255] {
            let mut bad = good.clone();
            bad[at] = lie;
            let stream = [bad, good.clone()].concat();
            let sifted = sifted(&stream, 11);
            assert!(sifted[good.len()..] == mended, "byte {at} was {lie}");
        }
    }
}
