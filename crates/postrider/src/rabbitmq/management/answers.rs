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
