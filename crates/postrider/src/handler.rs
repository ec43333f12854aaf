//! What a service does with an event, and how it says that it could not.

use std::future::Future;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::broker::Headers;
use crate::envelope::{Envelope, PayloadHash, misfit};
use crate::store::Store;
use crate::topology::ConsumerName;

/// Handles one event inside the transaction that marks it as handled.
///
/// What the handler writes through `tx`, the events it appends and the inbox's mark commit together or not at all: the
/// effects happen once, however often the event is delivered. What it does outside the database happens at least once;
/// use the event's id as the idempotency key there.
///
/// A panic is a failure of the attempt. So is taking longer than [`handler_limit`](crate::consumer::ConsumerConfig::handler_limit): the
/// future is dropped where it waits, and its transaction is rolled back. A service that is told to stop lets attempts finish.
///
/// ```
/// # #[cfg(feature = "postgres")]
/// # mod example {
/// use postrider::postgres::{Postgres, PostgresTx};
/// use postrider::{Failure, Handler, Incoming};
///
/// struct Billing;
///
/// impl Handler<Postgres> for Billing {
///     async fn handle(&self, tx: &mut PostgresTx, event: &Incoming) -> Result<(), Failure> {
///         let total: i64 = event.parse()?;
///         sqlx::query("INSERT INTO invoice VALUES ($1)").bind(total).execute(tx.connection()).await?;
///         Ok(())
///     }
/// }
/// # }
/// ```
pub trait Handler<S: Store>: Send + Sync + 'static {
    /// Applies the event's effects. An error rolls all of them back.
    fn handle(&self, tx: &mut S::Tx, event: &Incoming) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// Handles many events in one transaction: for effects that cost less together.
///
/// The guarantees are those of [`Handler`], for each event. When a batch fails, its transaction is rolled back and its events
/// are given to the handler one by one, each in a transaction of its own, so that one bad event never fails its
/// neighbours.
pub trait BatchHandler<S: Store>: Send + Sync + 'static {
    /// Applies the effects of all these events, which are in the order of their delivery. An error rolls all of them back.
    fn handle(&self, tx: &mut S::Tx, events: &[Incoming])
    -> impl Future<Output = Result<(), Failure>> + Send;
}

/// Handles one event outside of the database: by calling another service, or by handing it to a worker.
///
/// No transaction is open meanwhile, so it may take its time. The event is marked as applied after the handler has
/// succeeded; a crash in between makes it happen again under the same event id. It happens at least once, and the event's id is
/// the idempotency key.
pub trait OutsideHandler: Send + Sync + 'static {
    /// Does it. Nothing when it gave up because it was told to stop: then the delivery goes back to its queue.
    fn handle(
        &self,
        event: &Incoming,
        stop: &CancellationToken,
    ) -> impl Future<Output = Option<Result<(), Failure>>> + Send;
}

/// How large a batch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchLimits {
    /// At most so many events.
    pub max_size: usize,
    /// How long the first event of a batch waits for more. Without it a batch is what has arrived while the one before it was handled,
    /// for 20 ms at most: one event, at once, when little comes, and many when the queue is backed up.
    pub max_wait: Duration,
}

impl Default for BatchLimits {
    fn default() -> Self {
        Self { max_size: 100, max_wait: Duration::ZERO }
    }
}

/// An event as a handler meets it.
#[derive(Debug, Clone)]
pub struct Incoming {
    /// The consumer it was delivered to.
    pub consumer: ConsumerName,
    /// The event.
    pub envelope: Envelope,
    /// Which attempt this is, counted from 1.
    pub attempt: u32,
    /// Headers of the message beside those that the envelope is made of: its producer's own, and the marks of a replay. Those whose value
    /// is text, a number, or true or false.
    pub headers: Headers,
    notes: Arc<Notes>,
}

/// What is found out about an event while it is handled; shared by its clones.
#[derive(Debug, Default)]
struct Notes {
    hash: OnceLock<PayloadHash>,
    answer: Mutex<Option<Bytes>>,
}

impl Incoming {
    /// An event as a handler would meet it; for tests of handlers.
    pub fn new(consumer: ConsumerName, envelope: Envelope, attempt: u32) -> Self {
        Self { consumer, envelope, attempt, headers: Headers::new(), notes: Arc::default() }
    }

    /// Reads its payload, which is JSON, into a type of the handler's.
    ///
    /// What does not fit will not fit later either: the failure is permanent, of the class `payload`. It says what was expected and where, and
    /// never what stands there.
    ///
    /// ```
    /// # use postrider::{Failure, Incoming};
    /// #[derive(serde::Deserialize)]
    /// struct OrderPlaced {
    ///     total: String,
    /// }
    ///
    /// async fn bill(event: &Incoming) -> Result<(), Failure> {
    ///     let order: OrderPlaced = event.parse()?;
    ///     println!("{} for {:?}", order.total, event.envelope.aggregate_id);
    ///     Ok(())
    /// }
    /// ```
    pub fn parse<T: serde::de::DeserializeOwned>(&self) -> Result<T, Failure> {
        let unfit = |error: serde_json::Error| {
            Failure::permanent(format_args!("the payload cannot be read: {}", misfit(&error)))
                .class("payload")
        };
        self.envelope.payload.parse().map_err(unfit)
    }

    /// Answers the event. The answer is kept in the inbox, commits with the effects, and is what every duplicate gets.
    pub fn answer(&self, body: impl Into<Bytes>) {
        self.set_answer(Some(body.into()));
    }

    /// The same event, under another trace context.
    #[cfg(feature = "push")]
    pub(crate) fn traced(&self, traceparent: &str) -> Self {
        let mut traced = self.clone();
        traced.envelope.trace.traceparent = Some(traceparent.to_owned());
        traced
    }

    /// The answer of this attempt; for a duplicate, the first one.
    pub(crate) fn answered(&self) -> Option<Bytes> {
        self.notes.answer.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_answer(&self, answer: Option<Bytes>) {
        *self.notes.answer.lock().unwrap_or_else(PoisonError::into_inner) = answer;
    }

    /// What it says, worked out once.
    pub(crate) fn hash(&self) -> PayloadHash {
        *self.notes.hash.get_or_init(|| self.envelope.payload.hash())
    }
}

/// Why a handler could not apply an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Whether trying again can help.
    pub kind: FailureKind,
    /// What went wrong, for people. Never the payload.
    pub message: String,
    /// A stable word for the kind of error, by which failures are grouped.
    pub class: Option<String>,
    /// The HTTP status, where one was the answer.
    pub status: Option<u16>,
    /// The least time before the next attempt, where the other side asked for one.
    pub retry_after: Option<Duration>,
}

/// Whether trying again can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// It may succeed later.
    Transient,
    /// It will fail again.
    Permanent,
    /// It is too early: not a failure, the same attempt comes again.
    Deferred {
        /// Not before this time.
        until: Timestamp,
    },
}

impl Failure {
    /// It may succeed later.
    pub fn transient(message: impl std::fmt::Display) -> Self {
        Self::new(FailureKind::Transient, message)
    }

    /// It will fail again; it goes straight to the dead letters.
    pub fn permanent(message: impl std::fmt::Display) -> Self {
        Self::new(FailureKind::Permanent, message)
    }

    /// It is too early.
    pub fn deferred(until: Timestamp) -> Self {
        Self::new(FailureKind::Deferred { until }, format_args!("deferred until {until}"))
    }

    /// What an HTTP status means, nothing for a success: 408, 409, 429 and 5xx may pass, 425 is too early, and every other
    /// 4xx will fail again. A policy can say otherwise: see
    /// [`RetryPolicy::event_bus`](crate::settlement::RetryPolicy::event_bus).
    ///
    /// `retry_after` is what the answer asked for ([`retry_after`] reads the header). Without it, what is too early waits
    /// in the shortest wait queue and is asked again.
    pub fn from_status(
        status: u16,
        message: impl std::fmt::Display,
        retry_after: Option<Duration>,
        now: Timestamp,
    ) -> Option<Self> {
        let failure = match status {
            200..=299 => return None,
            425 => {
                let until = now.saturating_add(retry_after.unwrap_or_default()).unwrap_or(now);
                Self::new(FailureKind::Deferred { until }, message)
            }
            408 | 409 | 429 => Self::transient(message),
            400..=499 => Self::permanent(message),
            // 5xx; and what is no answer at all says nothing against the event.
            _ => Self::transient(message),
        };
        Some(Self { retry_after, ..failure.status(status) })
    }

    fn new(kind: FailureKind, message: impl std::fmt::Display) -> Self {
        Self { kind, message: message.to_string(), class: None, status: None, retry_after: None }
    }

    /// Whether it is too early rather than wrong.
    pub fn is_deferred(&self) -> bool {
        matches!(self.kind, FailureKind::Deferred { .. })
    }

    /// Names the kind of error.
    #[must_use]
    pub fn class(mut self, class: impl Into<String>) -> Self {
        self.class = Some(class.into());
        self
    }

    /// Keeps the HTTP status.
    #[must_use]
    pub fn status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self
    }

    /// Asks for at least this much time before the next attempt.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }
}

/// Nobody is waited for any longer: an answer must not send an event to the year 9999.
const MOST_PATIENCE: Duration = Duration::from_hours(24);

/// Reads a `Retry-After` header: seconds, or a date; a day at most. Nothing if it is neither; a date that has passed is no time at
/// all.
pub fn retry_after(text: &str, now: Timestamp) -> Option<Duration> {
    let text = text.trim();
    let asked = if let Ok(seconds) = text.parse::<u64>() {
        Duration::from_secs(seconds)
    } else {
        let date = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
        Duration::try_from(date.duration_since(now)).unwrap_or(Duration::ZERO)
    };
    Some(asked.min(MOST_PATIENCE))
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

/// Any error of a handler may pass; `?` just works. Use [`Failure::permanent`] for what cannot, and [`Incoming::parse`] for the payload.
///
/// `anyhow::Error` is no [`std::error::Error`]: say `.map_err(|error| Failure::transient(format_args!("{error:#}")))?`.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::transient(error_chain(&error))
    }
}

/// An error and its causes on one line, each cause once.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// A handler made of a closure: `handler_fn(|tx, event| Box::pin(async move { … }))`.
pub fn handler_fn<S, F>(handle: F) -> HandlerFn<F>
where
    S: Store,
    F: for<'a> Fn(&'a mut S::Tx, &'a Incoming) -> BoxFuture<'a, Result<(), Failure>> + Send + Sync + 'static,
{
    HandlerFn(handle)
}

/// See [`handler_fn`].
pub struct HandlerFn<F>(F);

impl<S, F> Handler<S> for HandlerFn<F>
where
    S: Store,
    F: for<'a> Fn(&'a mut S::Tx, &'a Incoming) -> BoxFuture<'a, Result<(), Failure>> + Send + Sync + 'static,
{
    async fn handle(&self, tx: &mut S::Tx, event: &Incoming) -> Result<(), Failure> {
        (self.0)(tx, event).await
    }
}

/// A batch handler made of a closure: `batch_handler_fn(|tx, events| Box::pin(async move { … }))`.
pub fn batch_handler_fn<S, F>(handle: F) -> BatchHandlerFn<F>
where
    S: Store,
    F: for<'a> Fn(&'a mut S::Tx, &'a [Incoming]) -> BoxFuture<'a, Result<(), Failure>>
        + Send
        + Sync
        + 'static,
{
    BatchHandlerFn(handle)
}

/// See [`batch_handler_fn`].
pub struct BatchHandlerFn<F>(F);

impl<S, F> BatchHandler<S> for BatchHandlerFn<F>
where
    S: Store,
    F: for<'a> Fn(&'a mut S::Tx, &'a [Incoming]) -> BoxFuture<'a, Result<(), Failure>>
        + Send
        + Sync
        + 'static,
{
    async fn handle(&self, tx: &mut S::Tx, events: &[Incoming]) -> Result<(), Failure> {
        (self.0)(tx, events).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now: Timestamp = "1994-11-06T08:49:00Z".parse().unwrap();
        assert_eq!(retry_after("120", now), Some(Duration::from_mins(2)));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:37 GMT", now), Some(Duration::from_secs(37)));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:00:00 GMT", now), Some(Duration::ZERO));
        assert_eq!(retry_after("99999999999", now), Some(Duration::from_hours(24)));
        assert_eq!(retry_after("Mon, 01 Jan 2035 00:00:00 GMT", now), Some(Duration::from_hours(24)));
        assert_eq!(retry_after("soon", now), None);
        assert_eq!(retry_after("-5", now), None);
    }
}
