//! The story of an event: everything that happened to it, told in the order of time.

use postrider::push::Attempt;
use postrider::store::{LogEntry, OutboxStatus, Trace};

use super::Happened;

fn tries(count: u32) -> String {
    if count == 1 { "1 attempt".to_owned() } else { format!("{count} attempts") }
}

/// Everything that happened, the oldest first.
pub(super) fn of(trace: &Trace, log: &[LogEntry], attempts: &[Attempt]) -> Vec<Happened> {
    let mut steps = Vec::new();
    let mut tell = |at, place, mood, what: String, detail: Option<String>| {
        steps.push(Happened { at, place, mood, what, detail, letter: None });
    };
    for row in &trace.outbox {
        let again = row.target_queue.as_ref().map(|queue| format!("sent again, to {queue} alone"));
        let what = again.unwrap_or_else(|| format!("{} committed to the outbox", row.event_type));
        tell(row.created_at, "outbox", "ok", what, None);
        match (row.published_at, row.status) {
            (Some(at), _) => {
                let told = "published; the broker confirmed it".to_owned();
                tell(at, "exchange", "ok", told, None);
            }
            (None, OutboxStatus::Dead) => {
                let told = format!("given up after {} to publish it", tries(row.attempts));
                tell(row.created_at, "exchange", "failed", told, row.last_error.clone());
            }
            (None, _) if row.attempts > 0 => {
                let told = format!("{} to publish it failed; it is tried again", tries(row.attempts));
                tell(row.created_at, "exchange", "waiting", told, row.last_error.clone());
            }
            (None, _) => {}
        }
    }
    for attempt in attempts {
        let number = attempt.attempt;
        let (mood, what) = match (attempt.status, &attempt.error) {
            (Some(status), None) => ("ok", format!("attempt {number} at {}: {status}", attempt.consumer)),
            (Some(status), Some(_)) => {
                ("failed", format!("attempt {number} at {}: {status}", attempt.consumer))
            }
            (None, _) => ("failed", format!("attempt {number} at {}: no answer", attempt.consumer)),
        };
        let said = [attempt.error.as_deref().unwrap_or_default(), attempt.answer.as_str()];
        let said: Vec<&str> = said.into_iter().filter(|text| !text.is_empty()).collect();
        tell(attempt.at, "push", mood, what, (!said.is_empty()).then(|| said.join("\n")));
    }
    for mark in &trace.applied {
        tell(mark.at, "inbox", "ok", format!("applied by {}", mark.consumer), None);
    }
    for letter in &trace.dead_letters {
        let who = letter.consumer.as_deref().unwrap_or(&letter.queue);
        let number = Some(letter.id.to_string());
        steps.push(Happened {
            at: letter.dead_at,
            place: "dead_letter",
            mood: "failed",
            what: format!("{who} gave up after {}: {}", tries(letter.attempts), letter.reason),
            detail: Some(letter.error.clone()),
            letter: number.clone(),
        });
        if let Some(at) = letter.resolved_at {
            let what = format!("the dead letter of {who} was {}", letter.status.as_str());
            steps.push(Happened { at, place: "operation", mood: "ok", what, detail: None, letter: number });
        }
    }
    steps.extend(log.iter().filter_map(|entry| in_queue(entry, trace)));
    steps.sort_by_key(|step| step.at);
    steps
}

/// What somebody did to it in the queue of its dead letters, unless a dead letter that was kept of it tells that already.
fn in_queue(entry: &LogEntry, trace: &Trace) -> Option<Happened> {
    let detail = entry.detail.as_ref()?;
    let queue = detail["in_queue"].as_str()?;
    let what = match entry.action.as_str() {
        "dead_letter.replayed" => format!("sent again from {queue}"),
        "dead_letter.discarded" => format!("discarded from {queue}"),
        _ => return None,
    };
    let mut told = trace.dead_letters.iter().filter_map(|letter| letter.operation_id);
    if told.any(|operation| detail["operation"] == operation.to_string()) {
        return None;
    }
    Some(Happened { at: entry.at, place: "operation", mood: "ok", what, detail: None, letter: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use postrider::store::{AppliedStep, OutboxStep};
    use serde_json::json;

    #[test]
    fn a_story_is_told_in_the_order_of_time() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let row = OutboxStep {
            row_id: "evt_1".to_owned(),
            event_type: "shop.order.placed".to_owned(),
            status: OutboxStatus::Published,
            target_queue: None,
            created_at: at(1),
            published_at: Some(at(2)),
            attempts: 0,
            last_error: None,
        };
        let mark = AppliedStep { consumer: "billing".to_owned(), at: at(3) };
        let trace =
            Trace { outbox: vec![row], applied: vec![mark], dead_letters: Vec::new(), held: Vec::new() };
        let places: Vec<_> = of(&trace, &[], &[]).into_iter().map(|step| step.place).collect();
        assert_eq!(places, ["outbox", "exchange", "inbox"]);
    }
    #[test]
    fn what_was_sent_again_from_the_queue_of_its_dead_letters_is_told() {
        let entry = LogEntry {
            at: Timestamp::UNIX_EPOCH,
            actor: "ada".to_owned(),
            action: "dead_letter.replayed".to_owned(),
            subject: "event/evt_1".to_owned(),
            reason: None,
            detail: Some(json!({ "operation": "1", "in_queue": "raw.dlq", "queue": "raw" })),
        };
        let erased = LogEntry { action: "event.erased".to_owned(), detail: None, ..entry.clone() };
        let steps = of(&Trace::default(), &[erased, entry], &[]);
        let told: Vec<_> = steps.iter().map(|step| step.what.as_str()).collect();
        assert_eq!(told, ["sent again from raw.dlq"]);
    }
}
