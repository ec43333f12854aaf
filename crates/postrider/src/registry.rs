//! Which handler wants which type of event. Handlers lose their types here, once.

use futures_util::future::BoxFuture;

use crate::envelope::EventType;
use crate::handler::{Failure, Handler, Incoming};
use crate::store::Store;
use crate::topology::topic_matches;

/// The handlers of one consumer.
pub struct Registry<S: Store> {
    handlers: Vec<(String, Box<dyn ErasedHandler<S>>)>,
}

impl<S: Store> Default for Registry<S> {
    fn default() -> Self {
        Self { handlers: Vec::new() }
    }
}

impl<S: Store> Registry<S> {
    /// No handlers yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives events whose type matches the pattern to this handler: `order.created`, `order.*`, `#`. The first pattern
    /// that matches has it.
    #[must_use]
    pub fn on(mut self, pattern: impl Into<String>, handler: impl Handler<S>) -> Self {
        self.handlers.push((pattern.into(), Box::new(handler)));
        self
    }

    pub(crate) fn find(&self, event_type: &EventType) -> Option<&dyn ErasedHandler<S>> {
        self.handlers
            .iter()
            .find(|(pattern, _)| topic_matches(pattern, event_type.as_str()))
            .map(|(_, handler)| &**handler)
    }
}

/// A handler without its type.
pub(crate) trait ErasedHandler<S: Store>: Send + Sync {
    fn handle<'a>(&'a self, tx: &'a mut S::Tx, event: &'a Incoming) -> BoxFuture<'a, Result<(), Failure>>;
}

impl<S: Store, H: Handler<S>> ErasedHandler<S> for H {
    fn handle<'a>(&'a self, tx: &'a mut S::Tx, event: &'a Incoming) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(Handler::handle(self, tx, event))
    }
}
