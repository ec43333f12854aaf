//! What a cache remembers of an event, as JSON that people and other services can read.

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The value of a key: the fields of the FIS document, and three of ours.
///
/// ```json
/// {"status":"COMPLETED","payloadHash":"sha256:…","responseBody":"{…}","createdAt":"2026-02-25T10:00:00Z",
///  "owner":"host/4711","leaseUntil":null,"lineage":"7301…/1/16384/ledger"}
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// How far it has come.
    pub status: Status,
    /// `sha256:…` of the payload it was seen with.
    pub payload_hash: String,
    /// The first answer, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_body: Option<String>,
    /// When it was first seen by whoever wrote this.
    pub created_at: Timestamp,
    /// Who wrote this; for people.
    #[serde(default)]
    pub owner: String,
    /// Until when its owner expects to be done, while it is being processed. A hint: nobody waits for it.
    #[serde(default)]
    pub lease_until: Option<Timestamp>,
    /// Which history of which database this is about, and whose: another one proves nothing.
    #[serde(default)]
    pub lineage: String,
}

/// How far an event has come, in the words of the FIS document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    /// Somebody has begun with it. He may be dead.
    Processing,
    /// Its effects are committed.
    Completed,
    /// An attempt failed, and nothing of it is committed.
    Failed,
}

impl Record {
    /// As it is stored.
    pub fn to_bytes(&self) -> Vec<u8> {
        // A record of texts and times can always be written; nothing would be read back as unknown.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// As it was stored; nothing if that is no record.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    /// The first answer.
    pub fn response(&self) -> Option<Bytes> {
        self.response_body.clone().map(Bytes::from)
    }
}
