//! What travels: an event as facts, never attempts.
//!
//! An [`Event`] is what a service wants to say; an [`Envelope`] is that event with its id and time, as it is committed,
//! published and handled. How an envelope looks on the wire is chosen per exchange: see [`WireFormat`].

mod attributes;
mod canonical;
mod erased;
mod event;
mod id;
mod payload;
pub mod wire;

pub use attributes::Attributes;
pub(crate) use erased::{hash_in as erased_hash, note as erased_note};
pub use event::{Event, MAX_PAYLOAD_BYTES, Ordering};
pub use id::{AggregateId, EventId, EventType, OrderingKey, TenantId};
pub(crate) use payload::misfit;
pub use payload::{Payload, PayloadHash, hex};
pub use wire::WireFormat;

use jiff::Timestamp;

/// One event, complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// Who it is: opaque, unique, the key of every duplicate check.
    pub id: EventId,
    /// What happened: two words or more, the routing key by default.
    pub event_type: EventType,
    /// The entity it happened to.
    pub aggregate_id: Option<AggregateId>,
    /// Whose it is.
    pub tenant: Tenant,
    /// When it happened.
    pub occurred_at: Timestamp,
    /// Events of one key are handled in the order of their commits.
    pub ordering_key: Option<OrderingKey>,
    /// The event that caused this one.
    pub causation_id: Option<EventId>,
    /// The conversation it belongs to.
    pub correlation_id: Option<EventId>,
    /// W3C trace context, carried unchanged from commit to effect.
    pub trace: TraceContext,
    /// What a CloudEvent says beside that; empty for all others.
    pub attributes: Attributes,
    /// What the service said.
    pub payload: Payload,
}

/// Whose an event is: a group and, within it, a subsidiary.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Tenant {
    /// The group, or simply the tenant.
    pub group: Option<TenantId>,
    /// A part of the group.
    pub subsidiary: Option<TenantId>,
}

/// W3C trace context as it came; never interpreted, so never broken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceContext {
    /// The `traceparent` header.
    pub traceparent: Option<String>,
    /// The `tracestate` header.
    pub tracestate: Option<String>,
}
