//! A correction of headers: some are set, some are taken off. What Postrider or the broker writes itself is left to them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::replay::DEATH;
use super::{Misfit, header as mark};
use crate::broker::{HeaderValue, Headers};
use crate::envelope::wire::{Identity, Place, header};

/// A header's name is a short string of AMQP.
const LONGEST_NAME: usize = 255;
/// Headers must fit into a frame, all of them together.
const LONGEST_VALUE: usize = 4096;
const MOST: usize = 50;

/// Beside the marks of a death, what says who an event is, what became of it, or where it goes; the producer's wishes about time are not
/// among these.
const RESERVED: [&str; 27] = [
    header::EVENT_ID,
    header::AGGREGATE_TYPE,
    header::AGGREGATE_ID,
    header::GROUP_ID,
    header::SUBSIDIARY_ID,
    header::EVENT_TYPE,
    header::ATTEMPTS,
    header::ORDERING_KEY,
    header::CAUSATION_ID,
    header::CORRELATION_ID,
    header::OCCURRED_AT,
    header::WIRE_FORMAT,
    header::TRACEPARENT,
    header::TRACESTATE,
    header::RETRY_COUNT,
    header::DUE_AT,
    header::FIRST_RECEIVED_AT,
    header::ORIGINAL_EXCHANGE,
    header::ORIGINAL_ROUTING_KEY,
    mark::REPLAY_ID,
    mark::REPLACES,
    mark::REPLAY_COUNT,
    // The broker's own.
    "x-death",
    "x-delivery-count",
    "x-acquired-count",
    "cc",
    "bcc",
];
const RESERVED_BEGINNINGS: [&str; 6] =
    ["x-postrider-", "x-first-death-", "x-last-death-", "cloudevents_", "cloudevents:", "ce-"];

/// Which headers are set, as text, and which are taken off.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Asked")]
pub struct HeaderEdit {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    set: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    remove: BTreeSet<String>,
}

/// A header before an edit and after it, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeaderChange {
    /// Its name.
    pub name: String,
    /// As it is; nothing if there is none.
    pub before: Option<String>,
    /// As it would be sent; nothing if it is taken off.
    pub after: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Asked {
    set: BTreeMap<String, String>,
    remove: BTreeSet<String>,
}

impl TryFrom<Asked> for HeaderEdit {
    type Error = Misfit;

    fn try_from(Asked { set, remove }: Asked) -> Result<Self, Misfit> {
        Self::new(set, remove)
    }
}

impl HeaderEdit {
    /// Refuses what would contradict the event or its history.
    pub fn new(set: BTreeMap<String, String>, remove: BTreeSet<String>) -> Result<Self, Misfit> {
        let wrong = |why: String| Err(Misfit(why));
        let edit = Self { set, remove };
        let count = edit.names().count();
        if count == 0 || count > MOST {
            return wrong(format!("name 1 to {MOST} headers to set or to remove, not {count}"));
        }
        for name in edit.names() {
            if name.is_empty() || name.len() > LONGEST_NAME || name.chars().any(char::is_control) {
                return wrong(format!("a header's name is 1 to {LONGEST_NAME} bytes of plain text"));
            }
            if is_reserved(name) {
                return wrong(format!(
                    "the header {name} cannot be edited: it tells who the event is or what became of it. Correct the payload, \
                     or publish another event"
                ));
            }
        }
        if let Some(name) = edit.remove.iter().find(|name| edit.set.contains_key(*name)) {
            return wrong(format!("the header {name} is set and removed; say one of them"));
        }
        if let Some((name, _)) = edit.set.iter().find(|(_, value)| value.len() > LONGEST_VALUE) {
            return wrong(format!(
                "the value of the header {name} is longer than {LONGEST_VALUE} bytes; put it into the payload"
            ));
        }
        Ok(edit)
    }

    /// What would change of these headers. One by which the queue knows its events is a misfit.
    pub fn changes(&self, headers: &Headers, identity: &Identity) -> Result<Vec<HeaderChange>, Misfit> {
        let places = [&identity.event_id, &identity.tenant, &identity.event_type, &identity.aggregate_id];
        let known_by = |name: &str| {
            let is_it = |place: &Place| matches!(place, Place::Header(header) if header == name);
            places.iter().any(|places| places.iter().any(is_it))
        };
        if let Some(name) = self.names().find(|name| known_by(name)) {
            return Err(Misfit(format!(
                "its queue knows events by the header {name}, which cannot be edited"
            )));
        }
        let set = self.set.iter().map(|(name, value)| (name, Some(HeaderValue::from(value.as_str()))));
        let removed = self.remove.iter().map(|name| (name, None));
        let changes = set.chain(removed).filter(|(name, after)| headers.get(*name) != after.as_ref());
        let changes = changes.map(|(name, after)| HeaderChange {
            name: name.clone(),
            before: headers.get(name).map(shown),
            after: after.as_ref().map(shown),
        });
        Ok(changes.collect())
    }

    /// Sets and takes off.
    pub fn apply(&self, headers: &mut Headers) {
        let set = self.set.iter().map(|(name, value)| (name.clone(), HeaderValue::from(value.as_str())));
        headers.extend(set);
        for name in &self.remove {
            headers.remove(name);
        }
    }

    /// All that it names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.set.keys().chain(&self.remove).map(String::as_str)
    }
}

/// Whoever reads headers may or may not tell great letters from small ones.
fn is_reserved(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let mut reserved = RESERVED.iter().chain(&DEATH);
    reserved.any(|reserved| *reserved == name)
        || RESERVED_BEGINNINGS.iter().any(|begin| name.starts_with(begin))
}

fn shown(value: &HeaderValue) -> String {
    let text = match value {
        HeaderValue::Text(text) => text.clone(),
        other => other.to_plain_json().to_string(),
    };
    super::cut(&text, 200)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(set: &[(&str, &str)], remove: &[&str]) -> Result<HeaderEdit, Misfit> {
        let set = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        HeaderEdit::new(set, remove.iter().map(ToString::to_string).collect())
    }

    fn headers(of: &[(&str, HeaderValue)]) -> Headers {
        of.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
    }

    #[test]
    fn what_identifies_an_event_or_tells_its_story_is_refused() {
        for name in RESERVED.iter().chain(&DEATH).copied().chain([
            "X-Event-Id",
            "x-postrider-anything",
            "ce-id",
            "cloudEvents_type",
        ]) {
            for refused in [edit(&[(name, "v")], &[]), edit(&[], &[name])] {
                let told = refused.unwrap_err().0;
                assert!(told.contains(name) && told.contains("cannot be edited"), "{told}");
            }
        }
        let long = "v".repeat(LONGEST_VALUE + 1);
        for (set, remove, why) in [
            (&[][..], &[][..], "name 1 to 50"),
            (&[("", "v")], &[], "a header's name is"),
            (&[("a\nb", "v")], &[], "a header's name is"),
            (&[("a", "v")], &["a"], "set and removed"),
            (&[("a", long.as_str())], &[], "longer than 4096"),
        ] {
            let told = edit(set, remove).unwrap_err().0;
            assert!(told.contains(why), "{told}");
        }
        // What a producer may wish is no history.
        assert!(edit(&[("x-process-after", "2026-01-01T00:00:00Z")], &["processAfterDelayMs"]).is_ok());
    }

    #[test]
    fn only_what_is_named_changes() {
        let edit = edit(&[("region", "eu"), ("new", "1")], &["debug", "absent"]).unwrap();
        let mut before = headers(&[("region", "us".into()), ("debug", 7_u32.into()), ("kept", "k".into())]);
        let changes = edit.changes(&before, &Identity::default()).unwrap();
        let told: Vec<_> = changes
            .iter()
            .map(|change| (change.name.as_str(), change.before.as_deref(), change.after.as_deref()))
            .collect();
        assert_eq!(
            told,
            [("new", None, Some("1")), ("region", Some("us"), Some("eu")), ("debug", Some("7"), None)]
        );
        edit.apply(&mut before);
        assert_eq!(before, headers(&[("region", "eu".into()), ("new", "1".into()), ("kept", "k".into())]));
        assert_eq!(edit.changes(&before, &Identity::default()).unwrap(), []);
        let by_region = Identity { tenant: vec![Place::Header("region".to_owned())], ..Identity::default() };
        assert!(
            edit.changes(&headers(&[]), &by_region)
                .unwrap_err()
                .0
                .contains("knows events by the header region")
        );
    }

    #[test]
    fn it_is_read_as_it_was_written_and_checked_again() {
        let edit = edit(&[("region", "eu")], &[]).unwrap();
        let json = serde_json::to_value(&edit).unwrap();
        assert_eq!(json, serde_json::json!({ "set": { "region": "eu" } }));
        assert_eq!(serde_json::from_value::<HeaderEdit>(json).unwrap(), edit);
        let refused = serde_json::from_str::<HeaderEdit>(r#"{"remove": ["x-event-id"]}"#).unwrap_err();
        assert!(refused.to_string().contains("x-event-id cannot be edited"), "{refused}");
        assert!(serde_json::from_str::<HeaderEdit>(r#"{"unset": ["a"]}"#).is_err());
    }
}
