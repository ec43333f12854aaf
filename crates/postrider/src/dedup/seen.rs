//! What a looked-up key means, and what is noted afterwards. Pure: the consumer and the model share it.

use bytes::Bytes;

use super::cache::Found;
use super::record::{Record, Status};
use crate::envelope::PayloadHash;
use crate::settlement::Outcome;

/// What a cache said of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// It was not there, and is noted as being processed now. It may have been forgotten.
    New,
    /// Its effects are committed, with this payload; the first answer.
    CompletedSame(Option<Bytes>),
    /// Effects of its id are committed, with another payload.
    CompletedOther,
    /// Somebody began with it, and may have died since.
    Processing,
    /// An attempt failed.
    Failed,
    /// No answer, or none that can be believed.
    Unknown,
}

/// What follows from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Course {
    /// It is a duplicate; this was the first answer. The store is not asked.
    Duplicate(Option<Bytes>),
    /// The store decides.
    AskStore,
}

impl Seen {
    /// Reads what was found for a payload. A record of another lineage is about another history, and proves nothing.
    pub fn of(found: &Found, hash: PayloadHash, lineage: &str) -> Self {
        let bytes = match found {
            Found::Nothing => return Self::New,
            Found::Unreadable => return Self::Unknown,
            Found::Value(bytes) => bytes,
        };
        let Some(record) = Record::read(bytes) else { return Self::Unknown };
        if lineage.is_empty() || record.lineage != lineage {
            return Self::Unknown;
        }
        match record.status {
            Status::Processing => Self::Processing,
            Status::Failed => Self::Failed,
            Status::Completed if record.payload_hash == hash.to_string() => {
                Self::CompletedSame(record.response())
            }
            Status::Completed => Self::CompletedOther,
        }
    }

    /// What follows. A conflict is the store's to declare, and `PROCESSING` is never a duplicate: whoever began may have died
    /// before his commit, and then nobody else would apply the event.
    pub fn course(self) -> Course {
        match self {
            Self::CompletedSame(response) => Course::Duplicate(response),
            Self::New | Self::CompletedOther | Self::Processing | Self::Failed | Self::Unknown => {
                Course::AskStore
            }
        }
    }

    /// The word for it, in metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::New => "new",
            Self::CompletedSame(_) => "duplicate",
            Self::CompletedOther => "other_payload",
            Self::Processing => "processing",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

/// What is noted once the store has decided. Nothing of a conflict: the note of what was applied stays.
pub fn note(outcome: &Outcome) -> Option<Status> {
    match outcome {
        Outcome::Applied | Outcome::Duplicate => Some(Status::Completed),
        Outcome::Failed(failure) if !failure.is_deferred() => Some(Status::Failed),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::Payload;
    use crate::handler::Failure;

    const LINEAGE: &str = "7301/1/5/mail";

    fn hash(text: &'static str) -> PayloadHash {
        Payload::new("text/plain", text).hash()
    }

    fn found(status: Status, lineage: &str) -> Found {
        let record = Record {
            status,
            payload_hash: hash("one").to_string(),
            response_body: Some("42".to_owned()),
            created_at: jiff::Timestamp::UNIX_EPOCH,
            owner: "me".to_owned(),
            lease_until: None,
            lineage: lineage.to_owned(),
        };
        Found::Value(record.to_bytes())
    }

    #[test]
    fn only_the_same_payload_completed_in_this_lineage_is_a_duplicate() {
        let same = Seen::of(&found(Status::Completed, LINEAGE), hash("one"), LINEAGE);
        assert_eq!(same.course(), Course::Duplicate(Some(Bytes::from("42"))));
        for (found, hash, lineage, seen) in [
            (Found::Nothing, hash("one"), LINEAGE, Seen::New),
            (Found::Unreadable, hash("one"), LINEAGE, Seen::Unknown),
            (Found::Value(b"{}".to_vec()), hash("one"), LINEAGE, Seen::Unknown),
            (Found::Value(b"\xff".to_vec()), hash("one"), LINEAGE, Seen::Unknown),
            (found(Status::Completed, LINEAGE), hash("two"), LINEAGE, Seen::CompletedOther),
            (found(Status::Completed, "7301/2/5/mail"), hash("one"), LINEAGE, Seen::Unknown),
            (found(Status::Completed, ""), hash("one"), "", Seen::Unknown),
            (found(Status::Processing, LINEAGE), hash("one"), LINEAGE, Seen::Processing),
            (found(Status::Failed, LINEAGE), hash("one"), LINEAGE, Seen::Failed),
        ] {
            let said = Seen::of(&found, hash, lineage);
            assert_eq!(said, seen);
            assert_eq!(said.course(), Course::AskStore);
        }
    }

    #[test]
    fn a_record_is_written_as_the_document_has_it() {
        let Found::Value(bytes) = found(Status::Processing, LINEAGE) else { unreachable!() };
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(json["status"], "PROCESSING");
        assert!(json["payloadHash"].as_str().unwrap().starts_with("sha256:"));
        assert_eq!(
            (&json["responseBody"], &json["createdAt"]),
            (&"42".into(), &"1970-01-01T00:00:00Z".into())
        );
        // What the document itself would have written can be read, and is not believed.
        let theirs = r#"{"status":"COMPLETED","payloadHash":"sha256:ab","createdAt":"2026-02-25T10:00:00Z"}"#;
        assert_eq!(Seen::of(&Found::Value(theirs.into()), hash("one"), LINEAGE), Seen::Unknown);
    }

    #[test]
    fn what_is_noted_follows_the_outcome() {
        assert_eq!(note(&Outcome::Applied), Some(Status::Completed));
        assert_eq!(note(&Outcome::Duplicate), Some(Status::Completed));
        assert_eq!(note(&Outcome::Failed(Failure::permanent("no amount"))), Some(Status::Failed));
        assert_eq!(note(&Outcome::Failed(Failure::deferred(jiff::Timestamp::MAX))), None);
        assert_eq!(note(&Outcome::Conflict), None);
    }
}
