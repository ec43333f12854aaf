//! Which dead letters, by flags.

use anyhow::Context as _;
use clap::Args;
use jiff::{Span, Timestamp, tz::TimeZone};
use postrider::envelope::{AggregateId, EventId, TenantId};
use postrider::store::{LetterFilter, LetterStatus};
use postrider::topology::{ConsumerName, QueueName};

use crate::exit::usage;

/// All that fit everything given.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(super) struct FilterArgs {
    /// Who could not handle it
    #[arg(long)]
    consumer: Option<ConsumerName>,
    /// The queue it was consumed from
    #[arg(long)]
    queue: Option<QueueName>,
    /// The type of event
    #[arg(long = "type", value_name = "TYPE")]
    event_type: Option<String>,
    /// The event
    #[arg(long, value_name = "ID")]
    event: Option<EventId>,
    /// Why it is dead: retries_exhausted, rejected, malformed, expired, …
    #[arg(long)]
    reason_of_death: Option<String>,
    /// The kind of error
    #[arg(long)]
    class: Option<String>,
    /// The group, as `postrider dlq groups` shows it
    #[arg(long, value_name = "FINGERPRINT")]
    group: Option<String>,
    /// Whose it is
    #[arg(long)]
    tenant: Option<TenantId>,
    /// The entity it happened to
    #[arg(long, value_name = "ID")]
    aggregate: Option<AggregateId>,
    /// Text in the error, whatever its case, or in the body, as it stands
    #[arg(long)]
    text: Option<String>,
    /// Dead since then: a time, or so long ago, such as 2d
    #[arg(long, value_name = "TIME|DURATION")]
    since: Option<String>,
    /// Dead before then: a time, or so long ago
    #[arg(long, value_name = "TIME|DURATION")]
    until: Option<String>,
    /// Attempted at least so often
    #[arg(long, value_name = "N")]
    min_attempts: Option<u32>,
    /// Attempted at most so often
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
}

impl FilterArgs {
    /// Whether nothing is said.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn into_filter(
        self,
        status: Option<LetterStatus>,
        now: Timestamp,
    ) -> anyhow::Result<LetterFilter> {
        Ok(LetterFilter {
            ids: Vec::new(),
            consumer: self.consumer,
            queue: self.queue,
            event_type: self.event_type,
            event_id: self.event,
            reason: self.reason_of_death,
            error_class: self.class,
            fingerprint: self.group,
            tenant: self.tenant,
            aggregate_id: self.aggregate,
            text: self.text.filter(|text| !text.is_empty()),
            since: self.since.map(|text| since(&text, now)).transpose()?,
            until: self.until.map(|text| since(&text, now)).transpose()?,
            min_attempts: self.min_attempts,
            max_attempts: self.max_attempts,
            max_replays: None,
            status,
        })
    }
}

/// A time, or so long ago.
pub(crate) fn since(text: &str, now: Timestamp) -> anyhow::Result<Timestamp> {
    if let Ok(time) = text.parse() {
        return Ok(time);
    }
    let span: Span = text.parse().map_err(|_| {
        usage(format!("{text:?} is neither a time such as 2026-11-15T12:00:00Z nor a duration such as 2d"))
    })?;
    let then = now.to_zoned(TimeZone::UTC).checked_sub(span).context("that is too long ago")?;
    Ok(then.timestamp())
}

/// `open`, `replayed`, `discarded`, or all of them.
pub(super) fn status(text: &str) -> Result<StatusWord, String> {
    match text {
        "all" => Ok(StatusWord(None)),
        _ => LetterStatus::from_name(text)
            .map(|status| StatusWord(Some(status)))
            .ok_or_else(|| "there are open, replayed, discarded and all".to_owned()),
    }
}

/// What became of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct StatusWord(pub(super) Option<LetterStatus>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_durations_are_both_understood() {
        let now: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        assert_eq!(since("2d", now).unwrap().to_string(), "2026-11-13T12:00:00Z");
        assert_eq!(since("2026-01-01T00:00:00Z", now).unwrap().to_string(), "2026-01-01T00:00:00Z");
        assert!(since("yesterday", now).unwrap_err().to_string().contains("neither a time"));
    }

    #[test]
    fn times_in_any_state_are_understood_or_refused() {
        let now: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        for sample in ["2026-11-15T12:00:00Z", "2d", "P1Y2M3DT4H5M6.789S", "1y 2mo 3w"] {
            for seed in 0..2_000 {
                let text = postrider_testkit::hostile::damaged_text(seed, sample);
                let _understood_or_refused = since(&text, now);
            }
        }
    }
}
