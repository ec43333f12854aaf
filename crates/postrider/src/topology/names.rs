//! Names as AMQP knows them: short strings of at most 255 bytes.

use crate::text::text_newtype;

text_newtype!(
    /// The name of an exchange; empty for the default exchange, which routes by queue name.
    ExchangeName, "an exchange name", 0..=255
);
text_newtype!(
    /// The name of a queue.
    QueueName, "a queue name", 1..=255
);
text_newtype!(
    /// The key a message is published with.
    RoutingKey, "a routing key", 0..=255
);
text_newtype!(
    /// The pattern a queue is bound with.
    BindingKey, "a binding key", 0..=255
);
text_newtype!(
    /// The name of a consumer: its events take effect once per this name.
    ConsumerName, "a consumer name", 1..=128
);

text_newtype!(
    /// The name of a virtual host.
    VhostName, "a virtual host", 1..=255
);

impl ExchangeName {
    /// The default exchange.
    pub fn default_exchange() -> Self {
        Self("".into())
    }

    /// Whether this is the default exchange.
    pub fn is_default(&self) -> bool {
        self.0.is_empty()
    }
}

impl RoutingKey {
    /// The key that reaches a queue through the default exchange.
    pub fn to_queue(queue: &QueueName) -> Self {
        Self(queue.0.clone())
    }
}

impl From<&crate::envelope::EventType> for RoutingKey {
    fn from(event_type: &crate::envelope::EventType) -> Self {
        Self(event_type.as_str().into())
    }
}
