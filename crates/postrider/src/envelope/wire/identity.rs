//! Where foreign producers put identity, said per queue.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;

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

    fn find<'a>(&self, message: &'a Message, body: Option<&Value>) -> Found<'a> {
        let found = match self {
            Self::MessageId => message.properties.message_id.as_deref().map(Cow::Borrowed),
            Self::Header(name) => message.header(name).map(Cow::Borrowed),
            Self::Body(pointer) => match body?.pointer(pointer)? {
                Value::String(text) => Some(Cow::Owned(text.clone())),
                Value::Number(number) => Some(Cow::Owned(number.to_string())),
                _ => None,
            },
        };
        found.filter(|text| !text.is_empty())
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
        let body: Option<Value> = serde_json::from_slice(&message.body).ok();
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
