//! The schedules of the consumers' model, under our rules and under wrong ones.

use super::super::{Explored, hashes};
use super::message::{Message, of};
use super::{Model, Rules};

fn explore(rules: Rules, schedules: u64) -> Explored {
    const DECKS: [&[Message]; 7] = [
        &[of(0, 0)],
        &[of(0, 0), of(0, 0)],
        &[of(0, 0), of(0, 0), of(1, 0)],
        &[of(0, 0), of(1, 0), of(0, 0), of(1, 0)],
        // Two tenants that number their events alike, and the same event from somebody who names no tenant.
        &[of(0, 0), of(0, 1)],
        &[of(0, 0), of(0, 1), of(0, 0), of(1, 1)],
        &[of(0, 0), of(0, 2), of(0, 0)],
    ];
    let hashes = hashes();
    Explored::by(schedules, |draw| {
        let deck = draw.below(DECKS.len());
        draw.happened(deck);
        let mut model = Model::new(rules, hashes, DECKS[deck]);
        for _ in 0..8 + draw.below(32) {
            model.happen(draw);
        }
        model.check()
    })
}

#[test]
fn no_schedule_loses_or_repeats_an_effect() {
    explore(Rules::Ours, 104_000).assert_all_is_well(100_000);
}

#[test]
fn the_checker_sees_the_event_that_the_document_loses() {
    let explored = explore(Rules::ProcessingIsDuplicate, 3_000);
    assert!(explored.saw("0 effects"), "{explored:?}");
}

#[test]
fn the_checker_sees_what_a_cache_alone_does() {
    let explored = explore(Rules::CacheAlone, 3_000);
    assert!(explored.saw("0 effects") && explored.saw("2 effects"), "{explored:?}");
}

#[test]
fn the_checker_sees_what_a_failover_lost_and_a_note_still_claims() {
    for rules in [Rules::AnyHistory, Rules::StampedLate] {
        let explored = explore(rules, 3_000);
        assert!(
            explored.saw("an event without an effect was taken for a duplicate"),
            "{rules:?}: {explored:?}"
        );
    }
}

#[test]
fn the_checker_sees_one_tenant_answered_for_another() {
    let explored = explore(Rules::OneKeyForAllTenants, 3_000);
    assert!(explored.saw("another event was taken for a duplicate"), "{explored:?}");
}
