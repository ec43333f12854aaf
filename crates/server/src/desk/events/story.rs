//! The story of an event: everything that happened to it, told in the order of time.

use jiff::Timestamp;
use postrider::EventId;
use postrider::push::Attempt;
use postrider::store::{LogEntry, OutboxStatus, OutboxStep, Trace};

use super::Happened;

fn tries(count: u32) -> String {
    if count == 1 { "1 attempt".to_owned() } else { format!("{count} attempts") }
}

/// What an event was corrected from.
pub(super) struct Origin {
    /// The event, or the key of the dead letter where that was none.
    pub(super) event: String,
    /// The number of the dead letter, where it is kept.
    pub(super) letter: Option<String>,
}

/// What a story is made of.
pub(super) struct Story<'a> {
    pub(super) id: &'a EventId,
    pub(super) trace: &'a Trace,
    pub(super) log: &'a [LogEntry],
    pub(super) attempts: &'a [Attempt],
    pub(super) origin: Option<Origin>,
}

impl Story<'_> {
    /// Everything that happened, the oldest first.
    pub(super) fn told(&self) -> Vec<Happened> {
        let mut steps = self.corrected();
        self.tell_of_rows(&mut steps);
        self.tell_of_attempts(&mut steps);
        for mark in &self.trace.applied {
            steps.push(step(mark.at, "inbox", "ok", format!("applied by {}", mark.consumer), None));
        }
        self.tell_of_letters(&mut steps);
        steps.extend(self.log.iter().filter_map(|entry| in_queue(entry, self.trace)));
        steps.sort_by_key(|step| step.at);
        steps
    }

    /// That it took the place of another; told before its commit, which was at the same moment.
    fn corrected(&self) -> Vec<Happened> {
        let own = self.trace.outbox.iter().find(|row| self.is_own(row));
        let (Some(Origin { event, letter }), Some(row)) = (&self.origin, own) else { return Vec::new() };
        let told = step(row.created_at, "operation", "ok", format!("corrected from {event}"), None);
        vec![Happened { letter: letter.clone(), ..told }]
    }

    /// Whether it is the row of the event itself, and none that sent it again.
    fn is_own(&self, row: &OutboxStep) -> bool {
        row.row_id == self.id.as_str()
    }

    fn tell_of_rows(&self, steps: &mut Vec<Happened>) {
        for row in &self.trace.outbox {
            let what = match (self.is_own(row), &row.target_queue) {
                (true, None) => format!("{} committed to the outbox", row.event_type),
                (true, Some(queue)) => {
                    format!("{} committed to the outbox, for {queue} alone", row.event_type)
                }
                (false, None) => "sent again, to its exchange".to_owned(),
                (false, Some(queue)) => format!("sent again, to {queue} alone"),
            };
            steps.push(step(row.created_at, "outbox", "ok", what, None));
            match (row.published_at, row.status) {
                (Some(at), _) => {
                    let told = "published; the broker confirmed it".to_owned();
                    steps.push(step(at, "exchange", "ok", told, None));
                }
                (None, OutboxStatus::Dead) => {
                    let told = format!("given up after {} to publish it", tries(row.attempts));
                    steps.push(step(row.created_at, "exchange", "failed", told, row.last_error.clone()));
                }
                (None, _) if row.attempts > 0 => {
                    let told = format!("{} to publish it failed; it is tried again", tries(row.attempts));
                    steps.push(step(row.created_at, "exchange", "waiting", told, row.last_error.clone()));
                }
                (None, _) => {}
            }
        }
    }

    fn tell_of_attempts(&self, steps: &mut Vec<Happened>) {
        for attempt in self.attempts {
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
            let detail = (!said.is_empty()).then(|| said.join("\n"));
            steps.push(step(attempt.at, "push", mood, what, detail));
        }
    }

    fn tell_of_letters(&self, steps: &mut Vec<Happened>) {
        for letter in &self.trace.dead_letters {
            let who = letter.consumer.as_deref().unwrap_or(&letter.queue);
            let number = Some(letter.id.to_string());
            let what = format!("{who} gave up after {}: {}", tries(letter.attempts), letter.reason);
            let died = step(letter.dead_at, "dead_letter", "failed", what, Some(letter.error.clone()));
            steps.push(Happened { letter: number.clone(), ..died });
            if let Some(at) = letter.resolved_at {
                let what = match &letter.replaced_by {
                    Some(new) => format!("corrected as {new}"),
                    None => format!("the dead letter of {who} was {}", letter.status.as_str()),
                };
                steps.push(Happened { letter: number, ..step(at, "operation", "ok", what, None) });
            }
        }
    }
}

fn step(
    at: Timestamp,
    place: &'static str,
    mood: &'static str,
    what: String,
    detail: Option<String>,
) -> Happened {
    Happened { at, place, mood, what, detail, letter: None }
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
    use postrider::store::AppliedStep;
    use serde_json::json;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn row(row_id: &str, target_queue: Option<&str>, second: i64) -> OutboxStep {
        OutboxStep {
            row_id: row_id.to_owned(),
            tenant: None,
            event_type: "shop.order.placed".to_owned(),
            status: OutboxStatus::Published,
            target_queue: target_queue.map(str::to_owned),
            exchange: None,
            routing_key: None,
            created_at: at(second),
            published_at: Some(at(second + 1)),
            attempts: 0,
            last_error: None,
            replaces: None,
        }
    }

    fn told(trace: &Trace, log: &[LogEntry], origin: Option<Origin>) -> Vec<Happened> {
        let id = EventId::new("evt_1").unwrap();
        Story { id: &id, trace, log, attempts: &[], origin }.told()
    }

    fn words(steps: &[Happened]) -> Vec<&str> {
        steps.iter().filter(|step| step.place != "exchange").map(|step| step.what.as_str()).collect()
    }

    #[test]
    fn a_story_is_told_in_the_order_of_time() {
        let mark = AppliedStep { consumer: "billing".to_owned(), at: at(3) };
        let trace = Trace { outbox: vec![row("evt_1", None, 1)], applied: vec![mark], ..Trace::default() };
        let steps = told(&trace, &[], None);
        let places: Vec<_> = steps.iter().map(|step| step.place).collect();
        assert_eq!(places, ["outbox", "exchange", "inbox"]);
    }

    #[test]
    fn what_is_sent_again_is_told_by_its_row_and_not_by_where_it_goes() {
        let first = Trace { outbox: vec![row("evt_1", Some("q1"), 1)], ..Trace::default() };
        assert_eq!(
            words(&told(&first, &[], None)),
            ["shop.order.placed committed to the outbox, for q1 alone"]
        );
        // Its own row is archived.
        let again = vec![row("replay/7/1", None, 1), row("replay/8/1", Some("q1"), 5)];
        let again = Trace { outbox: again, ..Trace::default() };
        let wanted = ["sent again, to its exchange", "sent again, to q1 alone"];
        assert_eq!(words(&told(&again, &[], None)), wanted);
    }

    #[test]
    fn a_corrected_event_names_the_one_it_replaces() {
        let trace = Trace { outbox: vec![row("evt_1", Some("q1"), 1)], ..Trace::default() };
        let origin = Origin { event: "evt_0".to_owned(), letter: Some("42".to_owned()) };
        let steps = told(&trace, &[], Some(origin));
        assert_eq!(
            (steps[0].what.as_str(), steps[0].letter.as_deref()),
            ("corrected from evt_0", Some("42"))
        );
        assert_eq!(words(&steps).len(), 2);
    }

    #[test]
    fn what_was_sent_again_from_the_queue_of_its_dead_letters_is_told() {
        let entry = LogEntry {
            at: at(0),
            actor: "ada".to_owned(),
            action: "dead_letter.replayed".to_owned(),
            subject: "event/evt_1".to_owned(),
            reason: None,
            detail: Some(json!({ "operation": "1", "in_queue": "raw.dlq", "queue": "raw" })),
        };
        let erased = LogEntry { action: "event.erased".to_owned(), detail: None, ..entry.clone() };
        assert_eq!(words(&told(&Trace::default(), &[erased, entry], None)), ["sent again from raw.dlq"]);
    }
}
