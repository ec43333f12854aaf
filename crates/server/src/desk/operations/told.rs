//! Plans, for people.

use std::fmt::Write as _;

use postrider::dead_letter::HeaderChange;
use postrider::operation::{EventSurvey, LetterPlan, Plan, Trial};
use postrider::store::OperationKind;
use postrider::topology::QueueName;

/// The plan of a change of dead letters, for people.
pub(crate) fn told(plan: &Plan, letters: &LetterPlan, kind: OperationKind) -> String {
    let survey = &plan.survey;
    let mut text = match survey.letters {
        0 => return "no open dead letter matches".to_owned(),
        1 => "1 open dead letter matches".to_owned(),
        letters => format!("{letters} open dead letters match"),
    };
    let _ = match survey.aggregates {
        0 => Ok(()),
        1 => write!(text, ", of 1 aggregate"),
        aggregates => write!(text, ", of {aggregates} aggregates"),
    };
    let is_limited = plan.total < survey.letters;
    if is_limited {
        let _ = write!(text, "; {} of them, those that failed first, would be taken", plan.total);
    }
    if kind != OperationKind::DiscardLetters {
        let is_edit = kind == OperationKind::EditLetters;
        let again = if is_edit {
            "corrected they are new events, and are applied again"
        } else {
            "a replay of these does nothing"
        };
        let _ = match survey.applied {
            0 => write!(text, "\nnone of them is known to be applied"),
            1 => write!(text, "\n1 of them is applied already: {again}"),
            applied => write!(text, "\n{applied} of them are applied already: {again}"),
        };
        if survey.forgotten > 0 && !is_edit {
            let _ = write!(
                text,
                "\n{} first failed before all that the inbox remembers: were they applied before that, nothing would know it",
                survey.forgotten
            );
        }
        if survey.unidentified > 0 && !is_edit {
            let _ = write!(text, "\n{} have no event id: a repeat of them is not known", survey.unidentified);
        }
        if survey.replayed_before > 0 {
            let _ = write!(text, "\n{} were replayed before and died again", survey.replayed_before);
        }
        // All that match are counted by queue, and a limit takes a part of them: from which queue is known where there is one alone.
        let places = survey.queues.len() + usize::from(survey.unroutable > 0);
        let up_to = if is_limited && places > 1 { "up to " } else { "" };
        let go = |count: u64| if count == 1 { "goes" } else { "go" };
        for (queue, count) in &survey.queues {
            let count = (*count).min(plan.total);
            let _ = match &letters.to_queue {
                Some(to) => write!(text, "\n{up_to}{count} {} to {to}", go(count)),
                None => write!(text, "\n{up_to}{count} {} back to {queue}", go(count)),
            };
        }
        if survey.unroutable > 0 {
            let count = survey.unroutable.min(plan.total);
            let their = if count == 1 { "its" } else { "their" };
            let _ = match &letters.to_queue {
                Some(to) => write!(text, "\n{up_to}{count} that no queue wanted {} to {to}", go(count)),
                None => write!(
                    text,
                    "\n{up_to}{count} that no queue wanted {} to {their} exchange once more",
                    go(count)
                ),
            };
        }
        for queue in &plan.missing_queues {
            let _ = write!(text, "\nthere is no queue {queue}: declare it first, or name another");
        }
    }
    if let Some(takes) = plan.takes {
        let _ = write!(text, "\nat this rate it takes {} s", takes.as_secs().max(1));
    }
    if let Some(trial) = &plan.trial {
        tell_trial(trial, &mut text);
    }
    text
}

/// How a correction fares, with one payload before and after it.
fn tell_trial(trial: &Trial, text: &mut String) {
    let fit = trial.tried - trial.unfit.len();
    let _ = write!(
        text,
        "\ntried on the first {}: {fit} fit, {} do not and would stay open",
        trial.tried,
        trial.unfit.len()
    );
    for unfit in trial.unfit.iter().take(3) {
        let _ = write!(text, "\n  dead letter {}: {}", unfit.letter, unfit.why);
    }
    if let Some(example) = &trial.example {
        let _ = write!(
            text,
            "\ndead letter {} for example\n- {}\n+ {}",
            example.letter,
            plain(&example.before),
            plain(&example.after)
        );
        for HeaderChange { name, before, after } in &example.headers {
            let told = |value: &Option<String>| value.as_deref().map_or("none".to_owned(), plain);
            let _ = write!(text, "\nheader {}: {} becomes {}", plain(name), told(before), told(after));
        }
    }
}

/// On one line, without what a terminal would obey.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The plan of a replay of published events, for people.
pub(crate) fn told_of_events(survey: &EventSurvey, to_queue: Option<&QueueName>, reapply: bool) -> String {
    let mut text = match survey.events {
        0 => return "no published event matches".to_owned(),
        1 => "1 published event matches".to_owned(),
        events => format!("{events} published events match"),
    };
    if survey.archived + survey.in_files > 0 {
        let EventSurvey { live, archived, in_files, .. } = survey;
        let _ = write!(
            text,
            ": {live} in the outbox, {archived} in its archive table, {in_files} in archive files"
        );
    }
    if survey.total < survey.events {
        let _ = write!(text, ", {} of them are taken, the oldest first", survey.total);
    }
    match to_queue {
        Some(queue) => {
            let _ = write!(text, "; they go to {queue} alone");
        }
        None => text.push_str("; each goes where it went before"),
    }
    if reapply {
        text.push_str("\nconsumers on this store that have applied an event apply it once more");
    } else {
        text.push_str("\nconsumers skip what is in their inbox");
        for forgetful in &survey.forgotten {
            let _ = write!(
                text,
                "\n{} of them are older than all that the inbox of {} remembers: it may apply these a second time",
                forgetful.events, forgetful.consumer
            );
        }
    }
    if let Some(takes) = survey.takes {
        let _ = write!(text, "\nat this rate it takes {} s", takes.as_secs().max(1));
    }
    text
}

#[cfg(test)]
mod tests {
    use postrider::store::Survey;

    use super::*;

    #[test]
    fn one_is_told_of_as_one() {
        let told_of = |letters: u64, applied: u64| {
            let queues = vec![("mail".to_owned(), letters)];
            let survey = Survey { letters, aggregates: letters, applied, queues, ..Survey::default() };
            let plan = Plan { survey, total: letters, takes: None, missing_queues: Vec::new(), trial: None };
            told(&plan, &LetterPlan::default(), OperationKind::ReplayLetters)
        };
        let one = "1 open dead letter matches, of 1 aggregate\nnone of them is known to be applied\n1 goes back to mail";
        assert_eq!(told_of(1, 0), one);
        assert_eq!(told_of(0, 0), "no open dead letter matches");
        assert!(told_of(3, 2).contains("2 of them are applied already: a replay of these does nothing"));
    }

    #[test]
    fn of_a_canary_no_more_goes_back_than_it_takes() {
        let told_of = |queues: &[(&str, u64)], total: u64| {
            let queues: Vec<_> = queues.iter().map(|(queue, count)| ((*queue).to_owned(), *count)).collect();
            let letters: u64 = queues.iter().map(|(_, count)| count).sum();
            let survey = Survey { letters, aggregates: letters, queues, ..Survey::default() };
            let plan = Plan { survey, total, takes: None, missing_queues: Vec::new(), trial: None };
            told(&plan, &LetterPlan::default(), OperationKind::ReplayLetters)
        };
        let one = told_of(&[("mail", 6)], 5);
        let first =
            "6 open dead letters match, of 6 aggregates; 5 of them, those that failed first, would be taken";
        assert!(one.starts_with(first) && one.ends_with("\n5 go back to mail"), "{one}");
        let two = told_of(&[("mail", 6), ("billing", 1)], 5);
        assert!(two.ends_with("\nup to 5 go back to mail\nup to 1 goes back to billing"), "{two}");
    }

    #[test]
    fn what_no_queue_wanted_is_told_of_where_there_is_some() {
        let told_of = |unroutable: u64, to: Option<&str>| {
            let queues = vec![("mail".to_owned(), 2)];
            let survey = Survey { letters: 2 + unroutable, queues, unroutable, ..Survey::default() };
            let total = survey.letters;
            let plan = Plan { survey, total, takes: None, missing_queues: Vec::new(), trial: None };
            let letters =
                LetterPlan { to_queue: to.map(|to| QueueName::new(to).unwrap()), ..LetterPlan::default() };
            told(&plan, &letters, OperationKind::ReplayLetters)
        };
        assert!(!told_of(0, None).contains("exchange"), "{}", told_of(0, None));
        let some = told_of(3, None);
        assert!(
            some.contains("\n2 go back to mail\n3 that no queue wanted go to their exchange once more"),
            "{some}"
        );
        assert!(told_of(3, Some("jobs")).contains("\n3 that no queue wanted go to jobs"));
    }
}
