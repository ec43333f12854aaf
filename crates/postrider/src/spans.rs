//! Spans by OpenTelemetry's messaging conventions: one for every send, process and push of an event that is traced.
//!
//! An event carries the trace context it was committed with, unchanged, and each span here is a child of that. A finished span is
//! told as one event of [`tracing`] under [`TARGET`], at the level of trace; whoever exports spans takes them from there. Nobody does by
//! default, and then all of this costs a look at a flag.

use std::time::Duration;

use jiff::Timestamp;

use crate::clock::Clock;
use crate::envelope::Envelope;

/// Under which finished spans are told.
pub const TARGET: &str = "postrider::span";

/// What was done, in the words of the conventions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// An event was committed over HTTP.
    Create,
    /// A message was sent to the broker, and confirmed or not.
    Send,
    /// A delivery was handled.
    Process,
    /// An endpoint was called.
    Push,
}

impl Operation {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Send => "send",
            Self::Process => "process",
            Self::Push => "push",
        }
    }
}

/// A span that is not over yet.
#[derive(Debug)]
pub struct Span {
    /// The `traceparent` of this span, for what is caused by it.
    pub own: String,
    parent: String,
    started: Duration,
}

impl Span {
    /// Begins a span under the event's context. Nothing where nobody exports spans, the event has no context, or it is not
    /// sampled.
    pub fn begin(envelope: &Envelope, clock: &Clock) -> Option<Self> {
        Self::under(envelope.trace.traceparent.as_deref(), clock)
    }

    /// Begins a span under a context.
    pub fn under(parent: Option<&str>, clock: &Clock) -> Option<Self> {
        let parent = parent.filter(|_| is_wanted())?;
        let (trace, _) = sampled(parent)?;
        let own = format!("00-{trace}-{}-01", new_id(clock));
        Some(Self { own, parent: parent.to_owned(), started: clock.monotonic() })
    }

    /// Begins a trace. Nothing where nobody exports spans.
    pub fn root(clock: &Clock) -> Option<Self> {
        let trace = is_wanted().then(|| clock.new_id().simple().to_string())?;
        let own = format!("00-{trace}-{}-01", new_id(clock));
        Some(Self { own, parent: String::new(), started: clock.monotonic() })
    }

    /// As if it had begun at this reading of the monotonic clock.
    #[must_use]
    pub fn since(mut self, started: Duration) -> Self {
        self.started = started;
        self
    }

    /// Ends it: what was done to which message where, and the kind of error if it failed.
    pub fn end(
        self,
        operation: Operation,
        destination: &str,
        message_id: &str,
        error: Option<&str>,
        clock: &Clock,
    ) {
        let now = clock.now();
        let began = now.checked_sub(clock.since(self.started)).unwrap_or(now);
        tracing::event!(
            target: TARGET,
            tracing::Level::TRACE,
            operation = operation.as_str(),
            destination,
            message_id,
            parent = self.parent,
            own = self.own,
            began = micros(began),
            ended = micros(now),
            error,
        );
    }
}

/// Whether somebody exports spans.
pub fn is_wanted() -> bool {
    tracing::enabled!(target: TARGET, tracing::Level::TRACE)
}

/// Trace id and span id of a `traceparent`, if it is well-formed and sampled.
pub fn sampled(traceparent: &str) -> Option<(&str, &str)> {
    let (trace, span, flags) = ids(traceparent)?;
    (u8::from_str_radix(flags, 16).ok()? & 1 == 1).then_some((trace, span))
}

/// Version 00 has four parts; a later one may have more behind them.
fn ids(traceparent: &str) -> Option<(&str, &str, &str)> {
    let mut parts = traceparent.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let hex = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let told = |text: &str| text.bytes().any(|byte| byte != b'0');
    let version = hex(version, 2) && version != "ff" && (version != "00" || parts.next().is_none());
    let whole = hex(trace, 32) && told(trace) && hex(span, 16) && told(span) && hex(flags, 2);
    (version && whole).then_some((trace, span, flags))
}

/// The random half of an id.
fn new_id(clock: &Clock) -> String {
    format!("{:016x}", clock.new_id().as_u64_pair().1)
}

fn micros(at: Timestamp) -> i64 {
    at.as_microsecond()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn only_well_formed_and_sampled_contexts_are_followed() {
        assert_eq!(sampled(&format!("00-{TRACE}-{SPAN}-01")), Some((TRACE, SPAN)));
        assert_eq!(sampled(&format!("01-{TRACE}-{SPAN}-03-later")), Some((TRACE, SPAN)));
        for wrong in [
            format!("00-{TRACE}-{SPAN}-00"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-{SPAN}"),
            "garbage".to_owned(),
        ] {
            assert_eq!(sampled(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn nothing_begins_while_nobody_exports() {
        let (clock, _) = Clock::manual(Timestamp::UNIX_EPOCH);
        assert!(Span::under(Some(&format!("00-{TRACE}-{SPAN}-01")), &clock).is_none());
        assert!(Span::root(&clock).is_none());
    }
}
