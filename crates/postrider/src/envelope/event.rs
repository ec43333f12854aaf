//! What a service wants to say, before it is committed.

use jiff::Timestamp;

use super::{
    AggregateId, Attributes, Envelope, EventId, EventType, OrderingKey, Payload, Tenant, TenantId,
    TraceContext,
};
use crate::clock::Clock;
use crate::store::{StoreError, StoreErrorKind};
use crate::text::InvalidText;
use crate::topology::{ExchangeName, QueueName, RoutingKey};

/// An event to be committed. Everything but its type and payload has a sensible default.
///
/// ```
/// use postrider::Event;
///
/// let event = Event::new("shop.order.placed")?
///     .aggregate_id("order-42")?
///     .tenant("acme")?
///     .json(&serde_json::json!({ "total": "125000.00", "currency": "NGN" }))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Event {
    /// Its type, the routing key unless [`Self::routing_key`] says otherwise.
    pub event_type: EventType,
    /// Its id; a new UUID v7 when absent.
    pub id: Option<EventId>,
    /// The entity it happened to.
    pub aggregate_id: Option<AggregateId>,
    /// Whose it is.
    pub tenant: Tenant,
    /// When it happened; the time of the commit when absent.
    pub occurred_at: Option<Timestamp>,
    /// What it must keep its order with.
    pub ordering: Ordering,
    /// The event that caused it.
    pub causation_id: Option<EventId>,
    /// The conversation it belongs to.
    pub correlation_id: Option<EventId>,
    /// W3C trace context.
    pub trace: TraceContext,
    /// What a CloudEvent says beside that.
    pub attributes: Attributes,
    /// What it says.
    pub payload: Payload,
    /// Where it goes; the outbox's own exchange when absent.
    pub exchange: Option<ExchangeName>,
    /// How it is routed; by its type when absent.
    pub routing_key: Option<RoutingKey>,
    /// One queue alone, past the exchange: a replay to the queue that failed.
    pub target_queue: Option<QueueName>,
    /// Not before this time; at once when absent.
    pub available_at: Option<Timestamp>,
}

/// A payload larger than this is refused when an event is appended, unless the store is configured otherwise.
pub const MAX_PAYLOAD_BYTES: usize = 256 * 1024;

/// What an event keeps its order with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Ordering {
    /// The other events of its aggregate, if it names one.
    #[default]
    Aggregate,
    /// The events of this key.
    Key(OrderingKey),
    /// Nothing: it flows freely.
    Free,
}

impl Event {
    /// An event of this type with an empty JSON object as its payload.
    pub fn new(event_type: impl AsRef<str>) -> Result<Self, InvalidText> {
        Ok(Self {
            event_type: EventType::new(event_type)?,
            id: None,
            aggregate_id: None,
            tenant: Tenant::default(),
            occurred_at: None,
            ordering: Ordering::default(),
            causation_id: None,
            correlation_id: None,
            trace: TraceContext::default(),
            attributes: Attributes::default(),
            payload: Payload::empty_object(),
            exchange: None,
            routing_key: None,
            target_queue: None,
            available_at: None,
        })
    }

    /// Its id, where the caller has one that a repeat would carry too.
    pub fn id(mut self, id: impl AsRef<str>) -> Result<Self, InvalidText> {
        self.id = Some(EventId::new(id)?);
        Ok(self)
    }

    /// The entity it happened to. Its events keep their order unless [`Self::ordering`] says otherwise.
    pub fn aggregate_id(mut self, id: impl AsRef<str>) -> Result<Self, InvalidText> {
        self.aggregate_id = Some(AggregateId::new(id)?);
        Ok(self)
    }

    /// The tenant (group) it belongs to.
    pub fn tenant(mut self, group: impl AsRef<str>) -> Result<Self, InvalidText> {
        self.tenant.group = Some(TenantId::new(group)?);
        Ok(self)
    }

    /// What it keeps its order with.
    #[must_use]
    pub fn ordering(mut self, ordering: Ordering) -> Self {
        self.ordering = ordering;
        self
    }

    /// When it happened.
    #[must_use]
    pub fn occurred_at(mut self, when: Timestamp) -> Self {
        self.occurred_at = Some(when);
        self
    }

    /// Publishes it not before this time.
    #[must_use]
    pub fn available_at(mut self, when: Timestamp) -> Self {
        self.available_at = Some(when);
        self
    }

    /// The event that caused it; its conversation and trace go on.
    #[must_use]
    pub fn caused_by(mut self, cause: &Envelope) -> Self {
        self.causation_id = Some(cause.id.clone());
        self.correlation_id = cause.correlation_id.clone().or_else(|| Some(cause.id.clone()));
        self.trace = cause.trace.clone();
        self
    }

    /// Another exchange than the outbox's own.
    #[must_use]
    pub fn exchange(mut self, exchange: ExchangeName) -> Self {
        self.exchange = Some(exchange);
        self
    }

    /// Its payload, as JSON.
    pub fn json(mut self, payload: &impl serde::Serialize) -> Result<Self, serde_json::Error> {
        self.payload = Payload::json(payload)?;
        Ok(self)
    }

    /// Its payload, as it is.
    #[must_use]
    pub fn payload(mut self, payload: Payload) -> Self {
        self.payload = payload;
        self
    }

    /// Fills in what is still open: a new id, the time, the key of its aggregate.
    pub fn into_envelope(self, clock: &Clock) -> Envelope {
        let ordering_key = self.ordering_key();
        Envelope {
            id: self.id.unwrap_or_else(|| EventId::from_uuid(clock.new_id())),
            event_type: self.event_type,
            aggregate_id: self.aggregate_id,
            tenant: self.tenant,
            occurred_at: self.occurred_at.unwrap_or_else(|| clock.now()),
            ordering_key,
            causation_id: self.causation_id,
            correlation_id: self.correlation_id,
            trace: self.trace,
            attributes: self.attributes,
            payload: self.payload,
        }
    }

    /// Refuses a payload that is too large to be an event.
    pub(crate) fn check_size(&self, max: usize) -> Result<(), StoreError> {
        let bytes = self.payload.bytes().len();
        if bytes <= max {
            return Ok(());
        }
        let text = format!(
            "the payload of this {} has {bytes} bytes, more than the {max} allowed; store the body elsewhere and send a \
             reference to it",
            self.event_type
        );
        Err(StoreError::new(StoreErrorKind::Invalid, text))
    }

    fn ordering_key(&self) -> Option<OrderingKey> {
        match &self.ordering {
            Ordering::Free => None,
            Ordering::Key(key) => Some(key.clone()),
            Ordering::Aggregate => {
                let id = self.aggregate_id.as_ref()?;
                Some(OrderingKey::of_aggregate(
                    self.tenant.group.as_ref(),
                    self.event_type.aggregate_type(),
                    id,
                ))
            }
        }
    }
}
