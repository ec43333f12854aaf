//! Whether a subscription is one at the moment, for whoever answers for its health.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a subscription is one at the moment. After a lost connection it starts again by itself; meanwhile nobody takes from its queue.
#[derive(Debug, Clone)]
pub struct Subscribed(Arc<AtomicBool>);

impl Subscribed {
    /// It is one.
    #[allow(clippy::new_without_default, reason = "what is subscribed is no empty value")]
    pub fn new() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    /// Whether it is one now.
    pub fn is(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether this tells of the same subscription.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Notes that it is one, or is not.
    pub fn set(&self, subscribed: bool) {
        self.0.store(subscribed, Ordering::Relaxed);
    }
}
