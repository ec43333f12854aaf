//! What the management API answers, as far as we read it.

use serde::Deserialize;

/// The broker.
#[derive(Debug, Clone, Deserialize)]
pub struct Overview {
    /// `3.10.8`
    pub rabbitmq_version: String,
}

/// A user.
#[derive(Debug, Clone, Deserialize)]
pub struct Whoami {
    /// Its name.
    pub name: String,
    /// `management`, `policymaker`, `monitoring`, `administrator`.
    pub tags: Vec<String>,
}

impl Whoami {
    /// Whether it may create virtual hosts.
    pub fn is_administrator(&self) -> bool {
        self.tags.iter().any(|tag| tag == "administrator")
    }

    /// Whether it may set policies, in virtual hosts it has access to.
    pub fn may_set_policies(&self) -> bool {
        self.is_administrator() || self.tags.iter().any(|tag| tag == "policymaker")
    }
}

/// A virtual host.
#[derive(Debug, Clone, Deserialize)]
pub struct Vhost {
    /// Its name.
    pub name: String,
    /// The type of queues that are declared without one; absent or `undefined` means classic.
    #[serde(default)]
    pub default_queue_type: Option<String>,
}

/// What a user may do in a virtual host: patterns of names.
#[derive(Debug, Clone, Deserialize)]
pub struct Permission {
    /// Declare and delete.
    pub configure: String,
    /// Publish and bind.
    pub write: String,
    /// Consume and bind.
    pub read: String,
}

/// What consumers do with a queue: statistics, up to five seconds late, and absent while there are none.
#[derive(Debug, Clone, Deserialize)]
pub struct Traffic {
    /// The queue.
    pub name: String,
    /// Delivered and not yet settled.
    #[serde(default)]
    pub messages_unacknowledged: Option<u64>,
    #[serde(default)]
    message_stats: Option<MessageStats>,
}

#[derive(Debug, Clone, Deserialize)]
struct MessageStats {
    #[serde(default)]
    ack_details: Option<Details>,
}

#[derive(Debug, Clone, Deserialize)]
struct Details {
    #[serde(default)]
    rate: Option<f64>,
}

impl Traffic {
    /// Deliveries that are acked a second.
    pub fn acked_per_second(&self) -> Option<f64> {
        self.message_stats.as_ref()?.ack_details.as_ref()?.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_is_read_whether_or_not_there_was_any() {
        let busy = r#"{"name":"a","messages_unacknowledged":7,"message_stats":{"ack_details":{"rate":2.5}}}"#;
        let busy: Traffic = serde_json::from_str(busy).unwrap();
        assert_eq!((busy.messages_unacknowledged, busy.acked_per_second()), (Some(7), Some(2.5)));
        let idle: Traffic = serde_json::from_str(r#"{"name":"a"}"#).unwrap();
        assert_eq!((idle.messages_unacknowledged, idle.acked_per_second()), (None, None));
    }
}
