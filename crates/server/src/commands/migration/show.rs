//! A migration, for people.

use std::fmt::Write as _;

use postrider::migration::{Definition, DeliveryCounts, Difference, P99, Parity, Phase, Side, Standing};

/// So many differences are shown.
const SHOWN: usize = 20;

/// Which events are copied.
pub(super) fn patterns(definition: &Definition) -> String {
    definition.events.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Where it stands.
pub(super) fn standing(standing: &Standing) -> String {
    let Definition { name, exchange, legacy, .. } = &standing.definition;
    let mut text = format!("{name}: {} since {}\n", standing.phase, standing.phase_at);
    let _ = writeln!(
        text,
        "  from    {} (deprecated) to {exchange}, events {}",
        legacy.exchange,
        patterns(&standing.definition)
    );
    if standing.phase == Phase::Finished {
        text.push_str("  the old bus is gone");
        return text;
    }
    let obey = standing.obedient();
    let settled = if standing.settled { "settled" } else { "not settled yet" };
    let _ = writeln!(text, "  relays  {obey} of {} obey; {settled}", standing.relays.len());
    for there in &standing.databases {
        let how = match &there.error {
            Some(error) => error.as_str(),
            None if there.settled => "follows; settled",
            None => "follows; not settled yet",
        };
        let _ = writeln!(text, "  with    {} {how}", there.database);
    }
    if standing.follows.is_some() {
        text.push_str("  kept in another database; take its steps there\n");
    }
    let _ = writeln!(text, "  new     {}", counts(&standing.new, ["confirmed", "pending"]));
    let _ = writeln!(text, "  old     {}", counts(&standing.legacy, ["copied", "owed"]));
    let _ = write!(text, "  counted {}; what arrived is forgotten after a day", standing.counted());
    if let Some(error) = &standing.legacy_error {
        let _ = write!(text, "\n          the newest failure: {error}");
    }
    if let P99 { new: Some(new), legacy: Some(old) } = standing.slowest() {
        let _ = write!(text, "\n  p99     {new:.1} ms to the new bus, {old:.1} ms to the old one");
    }
    match &standing.parity {
        Some(report) => {
            let _ = write!(text, "\n  parity  {}", parity(report).replace('\n', "\n          "));
            if standing.is_parity_outdated() {
                text.push_str("\n          that was in an earlier phase: compare again before the cutover");
            }
        }
        None if standing.phase == Phase::Dual => {
            text.push_str("\n  parity  never compared; `postrider migration compare` does");
        }
        None => {}
    }
    text
}

/// What has arrived and what has not, in these words.
fn counts(counts: &DeliveryCounts, [there, not_yet]: [&str; 2]) -> String {
    let DeliveryCounts { confirmed, pending, failed, at_least } = counts;
    let at_least = if *at_least { "at least " } else { "" };
    let again = if *failed > 0 { ", tried again" } else { "" };
    format!("{at_least}{confirmed} {there}, {pending} {not_yet}, {failed} failed{again}")
}

/// The report of a comparison.
pub(super) fn parity(parity: &Parity) -> String {
    let holds = if parity.holds { "holds" } else { "DOES NOT HOLD" };
    let mut text = format!(
        "{holds}: {} events compared at {}, {} missing, {} extra, {} different",
        parity.compared, parity.at, parity.missing, parity.extra, parity.different
    );
    if let Some(note) = &parity.note {
        let _ = write!(text, "\n{note}");
    }
    for difference in parity.differences.iter().take(SHOWN) {
        let _ = write!(text, "\n{}", told(difference));
    }
    let more = parity.differences.len().saturating_sub(SHOWN);
    if more > 0 {
        let _ = write!(text, "\nand {more} more; -o json has them");
    }
    text
}

fn told(difference: &Difference) -> String {
    let bus = |side: &Side| match side {
        Side::New => "the new bus",
        Side::Legacy => "the old bus",
    };
    match difference {
        Difference::Missing { side, event_id, error } => {
            let why = error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
            format!("{event_id} is missing on {}{why}", bus(side))
        }
        Difference::Extra { side, event_id: Some(event_id) } => {
            format!("{event_id} is on {}, and nobody committed it", bus(side))
        }
        Difference::Extra { side, event_id: None } => {
            format!("a message without an event id is on {}: somebody else publishes there", bus(side))
        }
        Difference::Different { side, event_id, expected, found } => {
            format!("{event_id} is different on {}: {found} instead of {expected}", bus(side))
        }
    }
}
