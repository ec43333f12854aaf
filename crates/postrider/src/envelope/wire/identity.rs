//! Where foreign producers put identity, said per queue.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::draft::{Draft, Found};
use crate::broker::Message;
use crate::envelope::EventType;

/// The places to look for identity, in order. Empty: only what can be told apart without being told.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Where the event id is. The first place that has one decides that the body is the payload.
    pub event_id: Vec<Place>,
    /// Where the tenant is.
    pub tenant: Vec<Place>,
    /// Where the type is; the routing key otherwise.
    pub event_type: Vec<Place>,
    /// Where the aggregate's id is.
    pub aggregate_id: Vec<Place>,
    /// The type of messages that name none, where no routing key can tell it: those of a fanout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usual_type: Option<EventType>,
}

/// One place in a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// A JSON pointer into the body: `/eventId`.
    Body(String),
    /// A header.
    Header(String),
    /// The `message_id` property.
    MessageId,
}

impl Place {
    /// Reads a place as config writes it: `/pointer`, `message_id`, or the name of a header.
    pub fn parse(text: &str) -> Self {
        match text {
            "message_id" => Self::MessageId,
            pointer if pointer.starts_with('/') => Self::Body(pointer.to_owned()),
            header => Self::Header(header.to_owned()),
        }
    }

    /// As config writes it.
    pub fn as_str(&self) -> &str {
        match self {
            Self::MessageId => "message_id",
            Self::Body(pointer) => pointer,
            Self::Header(name) => name,
        }
    }

    fn find<'a>(&self, message: &'a Message, body: Option<&Members<'a>>) -> Found<'a> {
        let found = match self {
            Self::MessageId => message.properties.message_id.as_deref().map(Cow::Borrowed),
            Self::Header(name) => message.header(name).map(Cow::Borrowed),
            Self::Body(pointer) => text_at(body?, pointer),
        };
        found.filter(|text| !text.is_empty())
    }
}

/// The members of an object, as they are written: a number that nobody could hold says nothing of its neighbours.
type Members<'a> = HashMap<Name<'a>, &'a RawValue>;

#[derive(Deserialize, PartialEq, Eq, Hash)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// The text or number that a JSON pointer leads to.
fn text_at<'a>(members: &Members<'a>, pointer: &str) -> Found<'a> {
    let unescaped = |step: &str| step.replace("~1", "/").replace("~0", "~");
    let mut steps = pointer.strip_prefix('/')?.split('/').map(unescaped);
    let first = Name(Cow::Owned(steps.next()?));
    let mut found: &'a str = members.get(&first)?.get();
    for step in steps {
        found = match found.as_bytes().first()? {
            b'{' => serde_json::from_str::<Members<'a>>(found).ok()?.get(&Name(step.into()))?.get(),
            b'[' => {
                serde_json::from_str::<Vec<&'a RawValue>>(found).ok()?.get(step.parse::<usize>().ok()?)?.get()
            }
            _ => return None,
        };
    }
    match found.as_bytes().first()? {
        b'"' => serde_json::from_str::<Name<'a>>(found).ok().map(|name| name.0),
        b'-' | b'0'..=b'9' => Some(Cow::Borrowed(found)),
        _ => None,
    }
}

impl Identity {
    /// The FIS seed's producers: `/eventId` and `/tenantId` in the body, else `message_id`, `x-event-id`, `x-group-id`.
    pub fn fis() -> Self {
        let places = |names: &[&str]| names.iter().copied().map(Place::parse).collect();
        Self {
            event_id: places(&["/eventId", "message_id", "x-event-id"]),
            tenant: places(&["/tenantId", "x-group-id"]),
            ..Self::default()
        }
    }

    /// The place or places that a setting names, separated by commas.
    pub fn places(text: &str) -> Vec<Place> {
        text.split(',').map(str::trim).filter(|place| !place.is_empty()).map(Place::parse).collect()
    }

    pub(super) fn read<'a>(&self, message: &'a Message) -> Draft<'a> {
        if self.event_id.is_empty() {
            return Draft::default();
        }
        let body: Option<Members<'a>> = serde_json::from_slice(&message.body).ok();
        let find = |places: &[Place]| places.iter().find_map(|place| place.find(message, body.as_ref()));
        Draft {
            id: find(&self.event_id),
            group: find(&self.tenant),
            event_type: find(&self.event_type),
            aggregate_id: find(&self.aggregate_id),
            ..Draft::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_leads_through_objects_and_arrays_past_what_nobody_could_hold() {
        let body =
            r#"{"total": 1e400, "meta": {"ids": ["a", "b/c"], "x/y": 7}, "name": "\u00e9", "none": null}"#;
        let members: Members<'_> = serde_json::from_str(body).unwrap();
        let at = |pointer| text_at(&members, pointer).map(Cow::into_owned);
        assert_eq!(at("/meta/ids/1").as_deref(), Some("b/c"));
        assert_eq!(at("/meta/x~1y").as_deref(), Some("7"));
        assert_eq!(at("/name").as_deref(), Some("é"));
        assert_eq!(at("/total").as_deref(), Some("1e400"));
        for absent in ["/none", "/meta", "/meta/ids/2", "/meta/ids/x", "/total/x", "/nowhere", "/", ""] {
            assert_eq!(at(absent), None, "{absent}");
        }
    }
}
