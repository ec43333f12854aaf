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
    let events = if parity.compared == 1 { "event" } else { "events" };
    let mut text = format!(
        "{holds}: {} {events} compared at {}, {} missing, {} extra, {} different",
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

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use postrider::migration::{DatabaseStanding, RelayStanding};

    use super::*;

    /// Both buses, one of two relays obeys, some copies fail.
    fn dual() -> Standing {
        let definition = serde_json::json!({
            "name": "to-topics", "exchange": "shop.events", "events": ["shop.order.*"], "block_on_legacy": false,
            "legacy": {"exchange": "shop.old", "queue": null, "routing_key": null, "format": "bare"},
            "latency": {"warn_ms": 50, "limit_ms": 100, "on_latency": "warn"},
        });
        let relay = |relay: &str, version| RelayStanding {
            relay: relay.to_owned(),
            version,
            new_p99_ms: version.map(|_| 3.04),
            legacy_p99_ms: version.map(|_| 7.0),
        };
        Standing {
            definition: serde_json::from_value(definition).unwrap(),
            phase: Phase::Dual,
            version: 2,
            settled: false,
            started_at: at(0),
            phase_at: at(0),
            new: DeliveryCounts { confirmed: 9, pending: 1, failed: 0, at_least: false },
            legacy: DeliveryCounts { confirmed: 7, pending: 2, failed: 1, at_least: true },
            legacy_error: Some("no route".to_owned()),
            relays: vec![relay("a", Some(2)), relay("b", None)],
            databases: Vec::new(),
            follows: None,
            parity: None,
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    #[test]
    fn a_status_says_who_obeys_what_is_owed_and_what_to_do_next() {
        let told = standing(&dual());
        for line in [
            "to-topics: dual since 2027-01-15T08:00:00Z\n",
            "  from    shop.old (deprecated) to shop.events, events shop.order.*\n",
            "  relays  1 of 2 obey; not settled yet\n",
            "  new     9 confirmed, 1 pending, 0 failed\n",
            "  old     at least 7 copied, 2 owed, 1 failed, tried again\n",
            "  counted since 2027-01-15T08:00:00Z, of what goes to both buses; what arrived is forgotten after a day",
            "\n          the newest failure: no route",
            "\n  p99     3.0 ms to the new bus, 7.0 ms to the old one",
            "\n  parity  never compared; `postrider migration compare` does",
        ] {
            assert!(told.contains(line), "{line:?} is not in:\n{told}");
        }
    }

    #[test]
    fn every_phase_has_its_words() {
        let in_phase = |phase| standing(&Standing { phase, settled: true, phase_at: at(60), ..dual() });
        let rolled_back = in_phase(Phase::Dual);
        assert!(
            rolled_back.contains("the old bus is also owed what went to the new one alone"),
            "{rolled_back}"
        );
        for phase in [Phase::Suspended, Phase::Cutover] {
            let told = in_phase(phase);
            assert!(told.starts_with(&format!("to-topics: {phase} since 2027-01-15T08:01:00Z\n")), "{told}");
            assert!(
                told.contains("1 of 2 obey; settled") && told.contains("A rollback has them copied"),
                "{told}"
            );
            assert!(!told.contains("never compared"), "nobody has to compare now: {told}");
        }
        let finished = in_phase(Phase::Finished);
        assert!(finished.ends_with("  the old bus is gone") && !finished.contains("relays"), "{finished}");
    }

    #[test]
    fn other_databases_are_named_with_how_they_follow() {
        let follower = |settled, error: Option<&str>| DatabaseStanding {
            database: "eu".to_owned(),
            settled,
            error: error.map(str::to_owned),
            new: DeliveryCounts::default(),
            legacy: DeliveryCounts::default(),
        };
        for (there, words) in [
            (follower(true, None), "  with    eu follows; settled\n"),
            (follower(false, None), "  with    eu follows; not settled yet\n"),
            (follower(false, Some("is away")), "  with    eu is away\n"),
        ] {
            let told = standing(&Standing { databases: vec![there], ..dual() });
            assert!(told.contains(words), "{told}");
        }
    }

    #[test]
    fn a_comparison_names_what_differs_and_when_it_is_of_an_earlier_phase() {
        let missing = Difference::Missing {
            side: Side::Legacy,
            event_id: "evt_1".to_owned(),
            error: Some("no route".to_owned()),
        };
        let stranger = Difference::Extra { side: Side::New, event_id: None };
        let report = Parity {
            version: 1,
            at: at(0),
            compared: 10,
            missing: 1,
            extra: 1,
            differences: vec![missing, stranger],
            ..Parity::default()
        };
        let told = standing(&Standing { parity: Some(report), ..dual() });
        for line in [
            "\n  parity  DOES NOT HOLD: 10 events compared at 2027-01-15T08:00:00Z, 1 missing, 1 extra, 0 different",
            "\n          evt_1 is missing on the old bus: no route",
            "\n          a message without an event id is on the new bus: somebody else publishes there",
            "\n          that was in an earlier phase: compare again before the cutover",
        ] {
            assert!(told.contains(line), "{line:?} is not in:\n{told}");
        }
        let holds = parity(&Parity { holds: true, compared: 3, ..Parity::default() });
        assert!(holds.starts_with("holds: 3 events compared"), "{holds}");
        let one = parity(&Parity { holds: true, compared: 1, ..Parity::default() });
        assert!(one.starts_with("holds: 1 event compared"), "{one}");
    }
}
