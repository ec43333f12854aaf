//! One dead letter, with all that is known of it.

use std::fmt::Write as _;

use postrider::dead_letter::{FailedAttempt, failed_attempts, header};
use postrider::envelope::{AggregateId, EventId};
use postrider::push::Attempt;
use postrider::settlement::DeadReason;
use postrider::store::{DeadLetter, LetterId, LetterSummary, LogEntry, StoredLetter, Subscriptions};
use postrider::topology::{ConsumerName, QueueName};
use serde::Serialize;

use super::Context;
use crate::desk::payload;
use crate::exit::{Exit, absent};
use crate::output::ago;
use crate::wiring::WholeStore;

/// Entries of the log that are shown.
const LOGGED: usize = 20;

#[derive(Serialize)]
struct Shown<'a> {
    /// With the whole error, of which a list has the beginning.
    #[serde(flatten)]
    summary: LetterSummary,
    exchange: &'a str,
    routing_key: &'a str,
    properties: &'a postrider::broker::Properties,
    headers: &'a postrider::broker::Headers,
    /// The body as text, where it is text; else as base64 in `letter`.
    body: Option<&'a str>,
    letter: &'a DeadLetter,
    /// The attempts before the last one: the newest ten.
    failed_attempts: &'a [FailedAttempt],
    /// What a push endpoint said last of the event, while that is remembered.
    last_answer: Option<&'a Attempt>,
    log: &'a [LogEntry],
}

pub(super) async fn run<S: WholeStore>(id: LetterId, store: &S, context: &Context) -> anyhow::Result<Exit> {
    let Some(stored) = store.letter(id).await? else {
        return Err(absent(format!(
            "there is no dead letter {id}; `postrider dlq ls --status all` lists them"
        )));
    };
    let log = store.log_of(&format!("dead_letter/{id}"), LOGGED).await?;
    let last_answer = last_answer(&stored.summary, store).await?;
    let letter = &stored.letter;
    let failed = failed_attempts(&letter.headers);
    let shown = Shown {
        summary: LetterSummary { error: letter.error.clone(), ..stored.summary.clone() },
        exchange: &letter.exchange,
        routing_key: &letter.routing_key,
        properties: &letter.properties,
        headers: &letter.headers,
        body: std::str::from_utf8(&letter.body).ok(),
        letter,
        failed_attempts: &failed,
        last_answer: last_answer.as_ref(),
        log: &log,
    };
    context.output.one(&shown, &text(&stored, last_answer.as_ref(), &log, context))?;
    Ok(Exit::Ok)
}

/// A message that is not collected: what can be told of it where it lies.
pub(super) fn of_message(letter: &DeadLetter, queue: &QueueName, context: &Context) -> anyhow::Result<Exit> {
    let mut text = String::new();
    let facts = [
        ("event", letter.event_id.as_ref().map(ToString::to_string)),
        ("type", letter.event_type.clone()),
        (
            "aggregate",
            aggregate(letter.event_type.as_deref(), letter.aggregate_id.as_ref().map(AggregateId::as_str)),
        ),
        ("tenant", letter.tenant.as_ref().map(ToString::to_string)),
        ("consumer", letter.consumer.as_ref().map(ToString::to_string)),
        ("queue", Some(letter.queue.to_string())),
        ("lies in", Some(queue.to_string())),
        ("reason", Some(letter.reason.clone())),
        ("error class", letter.error_class.clone()),
        ("group", Some(letter.fingerprint())),
        ("attempts", Some(letter.attempts.to_string())),
    ];
    for (name, value) in facts {
        let _ = writeln!(text, "{name:<14} {}", plain(&value.unwrap_or_else(|| "(none)".to_owned())));
    }
    text.push_str(&story(letter));
    context.output.one(letter, &text)?;
    Ok(Exit::Ok)
}

/// The last attempt at the endpoint that its consumer pushes to, if it pushes to one and the attempt is still remembered.
async fn last_answer<S: Subscriptions>(
    summary: &LetterSummary,
    store: &S,
) -> anyhow::Result<Option<Attempt>> {
    // The endpoint was called with the other event of this id, and not with this one.
    if summary.reason == DeadReason::Conflict.as_str() {
        return Ok(None);
    }
    let consumer = summary.consumer.as_deref().and_then(|name| ConsumerName::new(name).ok());
    let event = summary.event_id.as_deref().and_then(|id| EventId::new(id).ok());
    let (Some(consumer), Some(event)) = (consumer, event) else { return Ok(None) };
    Ok(store.attempts(&consumer, Some(&event), 1).await?.pop())
}

fn text(stored: &StoredLetter, last: Option<&Attempt>, log: &[LogEntry], context: &Context) -> String {
    let StoredLetter { summary, letter } = stored;
    let now = context.clock.now();
    let none = || "(none)".to_owned();
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<14} {}", plain(value));
    };
    line("dead letter", &format!("{} ({})", summary.id, summary.status.as_str()));
    line("event", &summary.event_id.clone().unwrap_or_else(|| "(no id: kept at least once)".to_owned()));
    line("type", &summary.event_type.clone().unwrap_or_else(none));
    let aggregate = aggregate(summary.event_type.as_deref(), summary.aggregate_id.as_deref());
    line("aggregate", &aggregate.unwrap_or_else(none));
    line("tenant", &summary.tenant.clone().unwrap_or_else(none));
    line("consumer", &summary.consumer.clone().unwrap_or_else(none));
    line("queue", &format!("{}   from {:?} by {:?}", summary.queue, letter.exchange, letter.routing_key));
    line("reason", &summary.reason);
    line("error class", &summary.error_class.clone().unwrap_or_else(none));
    line("group", &summary.fingerprint);
    line("attempts", &summary.attempts.to_string());
    line("first failed", &format!("{} ({})", summary.first_failed_at, ago(summary.first_failed_at, now)));
    line("dead", &format!("{} ({})", summary.dead_at, ago(summary.dead_at, now)));
    if summary.replays > 0 {
        let of = summary.replay_of.map_or_else(String::new, |of| format!(", the last of dead letter {of}"));
        line("replayed", &format!("{} times before{of}", summary.replays));
    }
    if let Some(by) = &summary.replaced_by {
        line("replaced by", by);
    }
    if let Some(error) = &summary.replay_error {
        line("replay failed", &format!("{error}; it is open again"));
    }
    if let Some(last) = last {
        let status = last.status.map_or_else(|| "no answer".to_owned(), |status| status.to_string());
        let _ = writeln!(text, "\nthe endpoint's last answer ({status} in {} ms)", last.took_ms);
        let _ =
            writeln!(text, "{}", indented(if last.answer.is_empty() { "(nothing)" } else { &last.answer }));
    }
    text.push_str(&story(letter));
    if !log.is_empty() {
        text.push_str("\n\nlog");
        for LogEntry { at, actor, action, reason, detail, .. } in log {
            let reason = reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
            let why = detail.as_ref().and_then(|detail| detail["why"].as_str());
            let why = why.map_or_else(String::new, |why| format!(" ({why})"));
            let _ = write!(text, "\n  {at} {action} by {}{}{}", plain(actor), plain(&reason), plain(&why));
        }
    }
    text
}

/// Of which type and which one, as `publish --aggregate` takes it: ids are told apart within a type alone.
fn aggregate(event_type: Option<&str>, id: Option<&str>) -> Option<String> {
    let kind = event_type.and_then(|event_type| event_type.rsplit_once('.')).map(|(kind, _)| kind);
    id.map(|id| kind.map_or_else(|| id.to_owned(), |kind| format!("{kind}/{id}")))
}

/// What went wrong and when, the headers and the payload.
fn story(letter: &DeadLetter) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "\nerror\n{}", indented(&letter.error));
    let _ = writeln!(text, "\nattempts\n{}", history(letter));
    text.push_str("\nheaders\n");
    // The story of its attempts and deaths is told above.
    let told = |name: &str| name == "x-death" || name == header::FAILED_ATTEMPTS;
    for (name, value) in letter.headers.iter().filter(|(name, _)| !told(name)) {
        let _ = writeln!(text, "  {:<24} {}", plain(name), plain(&value.to_plain_json().to_string()));
    }
    let _ = write!(
        text,
        "\npayload ({} bytes)\n{}",
        letter.body.len(),
        indented(&payload::for_people(&letter.body))
    );
    text
}

/// What the message knows of its attempts: those that it remembers, and every death that a broker wrote down.
fn history(letter: &DeadLetter) -> String {
    use postrider::broker::HeaderValue as Value;
    let failed = failed_attempts(&letter.headers);
    let mut lines = Vec::new();
    if letter.attempts > 1 && failed.first().is_none_or(|first| first.attempt > 1) {
        lines.push(format!("  {} first failure", letter.first_failed_at));
    }
    for FailedAttempt { attempt, at, class, error } in failed {
        let class = class.map_or_else(String::new, |class| format!(" [{class}]"));
        lines.push(format!("  {at} attempt {attempt}{}: {}", plain(&class), plain(&error)));
    }
    if let Some(Value::List(deaths)) = letter.headers.get("x-death") {
        for death in deaths.iter().rev() {
            let Value::Table(death) = death else { continue };
            let text = |name: &str| death.get(name).and_then(Value::as_str).unwrap_or("?").to_owned();
            let count = death.get("count").and_then(Value::as_int).unwrap_or(1);
            let at = match death.get("time") {
                Some(Value::Timestamp(seconds)) => i64::try_from(*seconds).ok(),
                _ => None,
            };
            let at = at.and_then(|at| jiff::Timestamp::from_second(at).ok());
            let at = at.map_or_else(|| "                    ".to_owned(), |at| at.to_string());
            lines.push(format!(
                "  {at} {} in {}, {count} times",
                plain(&text("reason")),
                plain(&text("queue"))
            ));
        }
    }
    if letter.reason == DeadReason::Unroutable.as_str() {
        return "  none: no queue wanted it".to_owned();
    }
    lines.push(format!("  {} attempt {}, the last", letter.dead_at, letter.attempts));
    lines.join("\n")
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {}", plain(line))).collect::<Vec<_>>().join("\n")
}

/// Without what a terminal would obey.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aggregate_is_named_with_its_type_where_that_is_known() {
        let named = |event_type, id| aggregate(event_type, id).unwrap_or_default();
        assert_eq!(named(Some("shop.order.placed"), Some("42")), "shop.order/42");
        assert_eq!(named(None, Some("42")), "42");
        assert_eq!(named(Some("shop.order.placed"), None), "");
    }
}
