//! Which handler wants which type of event. Handlers lose their types here, once.

use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::envelope::EventType;
use crate::handler::{BatchHandler, BatchLimits, Failure, Handler, Incoming, OutsideHandler};
use crate::store::Store;
use crate::topology::topic_matches;

/// The handlers of one consumer. An event that none of them wants is a dead letter, `no_handler`: nothing is thrown away.
pub struct Registry<S: Store> {
    entries: Vec<Entry<S>>,
}

/// A handler and what it wants.
pub(crate) struct Entry<S: Store> {
    /// Its place among the handlers.
    pub(crate) number: usize,
    pattern: String,
    pub(crate) handler: Box<dyn ErasedHandler<S>>,
    /// How many events it takes at a time; one if it says nothing.
    pub(crate) batch: Option<BatchLimits>,
}

impl<S: Store> Default for Registry<S> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<S: Store> Registry<S> {
    /// No handlers yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives events whose type matches the pattern to this handler: `order.created`, `order.*`, `#`. The first pattern
    /// that matches has it. A wildcard is a whole word: `order.cre*` matches nothing.
    #[must_use]
    pub fn on(self, pattern: impl Into<String>, handler: impl Handler<S>) -> Self {
        self.push(pattern.into(), Box::new(One(handler)), None)
    }

    /// Gives them to this handler, many at a time.
    #[must_use]
    pub fn on_batch(
        self,
        pattern: impl Into<String>,
        limits: BatchLimits,
        handler: impl BatchHandler<S>,
    ) -> Self {
        self.push(pattern.into(), Box::new(Many(handler)), Some(limits))
    }

    /// Gives them to this handler, which works outside of the database and without a transaction.
    #[must_use]
    pub fn on_outside(self, pattern: impl Into<String>, handler: impl OutsideHandler) -> Self {
        self.push(pattern.into(), Box::new(Outside(handler)), None)
    }

    fn push(
        mut self,
        pattern: String,
        handler: Box<dyn ErasedHandler<S>>,
        batch: Option<BatchLimits>,
    ) -> Self {
        self.entries.push(Entry { number: self.entries.len(), pattern, handler, batch });
        self
    }

    pub(crate) fn find(&self, event_type: &EventType) -> Option<&Entry<S>> {
        self.entries.iter().find(|entry| topic_matches(&entry.pattern, event_type.as_str()))
    }

    /// The handler with this number.
    pub(crate) fn entry(&self, number: usize) -> Option<&Entry<S>> {
        self.entries.get(number)
    }

    /// The largest batch that any handler takes; none if none does.
    pub(crate) fn largest_batch(&self) -> Option<usize> {
        self.entries.iter().filter_map(|entry| entry.batch).map(|batch| batch.max_size.max(1)).max()
    }

    /// Whether any handler works outside of the database.
    pub(crate) fn works_outside(&self) -> bool {
        self.entries.iter().any(|entry| entry.handler.outside().is_some())
    }
}

/// A handler without its type. One that takes single events is only ever given one.
pub(crate) trait ErasedHandler<S: Store>: Send + Sync {
    fn handle<'a>(&'a self, tx: &'a mut S::Tx, events: &'a [Incoming]) -> BoxFuture<'a, Result<(), Failure>>;

    /// Itself, if it works without a transaction.
    fn outside(&self) -> Option<&dyn ErasedOutside> {
        None
    }
}

/// A handler that works without a transaction, without its type.
pub(crate) trait ErasedOutside: Send + Sync {
    fn handle_outside<'a>(
        &'a self,
        event: &'a Incoming,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, Option<Result<(), Failure>>>;
}

struct One<H>(H);

impl<S: Store, H: Handler<S>> ErasedHandler<S> for One<H> {
    fn handle<'a>(&'a self, tx: &'a mut S::Tx, events: &'a [Incoming]) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            for event in events {
                self.0.handle(tx, event).await?;
            }
            Ok(())
        })
    }
}

struct Many<H>(H);

impl<S: Store, H: BatchHandler<S>> ErasedHandler<S> for Many<H> {
    fn handle<'a>(&'a self, tx: &'a mut S::Tx, events: &'a [Incoming]) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(BatchHandler::handle(&self.0, tx, events))
    }
}

struct Outside<H>(H);

impl<H: OutsideHandler> ErasedOutside for Outside<H> {
    fn handle_outside<'a>(
        &'a self,
        event: &'a Incoming,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, Option<Result<(), Failure>>> {
        Box::pin(self.0.handle(event, stop))
    }
}

impl<S: Store, H: OutsideHandler> ErasedHandler<S> for Outside<H> {
    /// A consumer never does this: it asks for [`ErasedHandler::outside`] first.
    fn handle<'a>(
        &'a self,
        _tx: &'a mut S::Tx,
        events: &'a [Incoming],
    ) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let never = CancellationToken::new();
            for event in events {
                self.0.handle(event, &never).await.unwrap_or(Ok(()))?;
            }
            Ok(())
        })
    }

    fn outside(&self) -> Option<&dyn ErasedOutside> {
        Some(self)
    }
}
