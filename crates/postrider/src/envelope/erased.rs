//! The note in the place of a payload that was erased. It says which hash the payload had, and nothing else.

use super::payload::PayloadHash;

const NAME: &str = "postrider_erased";
/// No note is longer.
const LONGEST: usize = 160;

/// The note, as JSON.
pub(crate) fn note(hash: PayloadHash) -> String {
    format!("{{\"{NAME}\":{{\"payload_hash\":\"{hash}\"}}}}")
}

/// The hash that an erased payload had; nothing if these bytes are no note.
pub(crate) fn hash_in(bytes: &[u8]) -> Option<PayloadHash> {
    if bytes.len() > LONGEST || !bytes.starts_with(b"{\"postrider_erased\"") {
        return None;
    }
    let note: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    let hex = note.get(NAME)?.get("payload_hash")?.as_str()?.strip_prefix("sha256:")?;
    let digits =
        hex.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
    PayloadHash::from_bytes(&digits.collect::<Option<Vec<_>>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::Payload;

    #[test]
    fn an_erased_payload_keeps_its_hash() {
        let payload = Payload::new("application/json", br#"{"email":"jane@example.com"}"#.to_vec());
        let note = note(payload.hash());
        assert!(!note.contains("jane") && note.len() <= LONGEST);
        assert_eq!(Payload::new("application/json", note.clone()).hash(), payload.hash());
        // As PostgreSQL prints it.
        assert_eq!(
            Payload::new("", note.replace(':', ": ").replace("sha256: ", "sha256:")).hash(),
            payload.hash()
        );
    }

    #[test]
    fn what_only_looks_like_a_note_is_a_payload() {
        for other in [r#"{"postrider_erased":{}}"#, r#"{"postrider_erased":{"payload_hash":"sha256:00"}}"#] {
            assert_eq!(hash_in(other.as_bytes()), None, "{other}");
        }
    }
}
