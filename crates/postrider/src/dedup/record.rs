//! What a cache remembers of an event, as JSON that people and other services can read.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::envelope::PayloadHash;

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

/// What the records of one look have in common, written once: when it was, who looked, and in which history.
///
/// The lineage is as it was before the attempt: a commit that a failover undid later is never noted as one of the new history.
#[derive(Debug, PartialEq, Eq)]
pub struct Stamp {
    lineage: String,
    in_hand: String,
    settled: String,
}

impl Stamp {
    pub(super) fn new(at: Timestamp, lease: Duration, owner: &str, lineage: String) -> Self {
        let tail = |lease_until: Option<Timestamp>| {
            let record = Record {
                status: Status::Processing,
                payload_hash: String::new(),
                response_body: None,
                created_at: at,
                owner: owner.to_owned(),
                lease_until,
                lineage: lineage.clone(),
            };
            let text = String::from_utf8(record.to_bytes()).unwrap_or_default();
            text.split_once(CREATED_AT).map(|(_, tail)| format!("{CREATED_AT}{tail}")).unwrap_or_default()
        };
        Self { in_hand: tail(at.checked_add(lease).ok()), settled: tail(None), lineage }
    }

    /// Which history it was.
    pub(super) fn lineage(&self) -> &str {
        &self.lineage
    }

    /// A record of this look, byte for byte what [`Record::to_bytes`] writes.
    pub(super) fn record(&self, status: Status, hash: PayloadHash, response: Option<&str>) -> Vec<u8> {
        let (status, tail) = match status {
            Status::Processing => ("PROCESSING", &self.in_hand),
            Status::Completed => ("COMPLETED", &self.settled),
            Status::Failed => ("FAILED", &self.settled),
        };
        let mut text = String::with_capacity(128 + tail.len());
        for part in [r#"{"status":""#, status, r#"","payloadHash":""#, &hash.to_string(), "\""] {
            text.push_str(part);
        }
        if let Some(Ok(response)) = response.map(serde_json::to_string) {
            text.push_str(r#","responseBody":"#);
            text.push_str(&response);
        }
        text.push_str(tail);
        text.into_bytes()
    }
}

const CREATED_AT: &str = r#","createdAt":"#;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::Payload;

    #[test]
    fn a_stamped_record_is_the_record_byte_for_byte() {
        let (at, lease) = ("2026-02-25T10:00:00Z".parse().unwrap(), Duration::from_secs(30));
        let hash = Payload::new("text/plain", "one").hash();
        for owner in ["host/4711", r#"a"b,"createdAt":"#] {
            let stamp = Stamp::new(at, lease, owner, "7301/1/5/mail".to_owned());
            for status in [Status::Processing, Status::Completed, Status::Failed] {
                for response in [None, Some("{\"a\":\"ö\n\"}")] {
                    let record = Record {
                        status,
                        payload_hash: hash.to_string(),
                        response_body: response.map(str::to_owned),
                        created_at: at,
                        owner: owner.to_owned(),
                        lease_until: (status == Status::Processing).then(|| at + lease),
                        lineage: "7301/1/5/mail".to_owned(),
                    };
                    assert_eq!(stamp.record(status, hash, response), record.to_bytes());
                }
            }
        }
    }
}
