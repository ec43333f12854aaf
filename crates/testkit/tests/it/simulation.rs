//! The simulation: schedules from many seeds, every await point of one, and the flaws that it has to find.

use std::collections::BTreeSet;

use postrider_testkit::sim::{Fault, Flaw, Planned, minimise, play, play_plan, replay};

/// A taste of the hundred thousand that `scripts/test` plays with an optimised build.
const SCHEDULES: u64 = 200;

#[test]
fn schedules_keep_every_promise() {
    let Some(seed) = (0..SCHEDULES).find(|seed| !play(*seed, None).verdict.is_clean()) else { return };
    let (plan, played) = minimise(seed, None);
    panic!("seed {seed}: {}\nwith {plan:?}\n{}", played.verdict, played.history.join("\n"));
}

#[test]
fn a_crash_at_any_await_point_keeps_every_promise() {
    let steps = play_plan(1, None, &[], false).steps;
    for at in 0..steps {
        let plan = [Planned { at, fault: Fault::Crash { done: at % 2 == 0 } }];
        let played = play_plan(1, None, &plan, false);
        assert!(played.verdict.is_clean(), "{plan:?}: {}", played.verdict);
    }
}

/// Each broke a promise once, and shows it again as soon as what was mended is taken out: a stream that overtakes what a claim has read
/// ahead, and a probe that dies and leaves the first of a key behind the others.
#[test]
fn schedules_that_found_something_keep_every_promise() {
    for seed in [2_092, 21_222] {
        let played = play(seed, None);
        assert!(played.verdict.is_clean(), "seed {seed}: {}", played.verdict);
    }
}

#[test]
fn the_same_seed_plays_the_same_history() {
    for seed in 0..20 {
        let (first, second) = (replay(seed, None), replay(seed, None));
        assert_eq!(first.history, second.history, "seed {seed}");
        assert_eq!(first.verdict, second.verdict, "seed {seed}");
    }
}

#[test]
fn a_failing_schedule_is_told_with_as_few_faults_as_it_needs() {
    let flaw = Some(Flaw::AckBeforeCommit);
    let seed = (0..2_000).find(|seed| !play(*seed, flaw).verdict.is_clean()).unwrap();
    let (plan, played) = minimise(seed, flaw);
    assert!(!played.verdict.is_clean() && !played.history.is_empty());
    assert!(plan.len() <= 2, "{plan:?}");
}

#[test]
fn every_flaw_turns_the_checkers_red() {
    let mut green = BTreeSet::new();
    for flaw in Flaw::ALL {
        let Some(seed) = (0..2_000).find(|seed| !play(*seed, Some(flaw)).verdict.is_clean()) else {
            green.insert(flaw.as_str());
            continue;
        };
        eprintln!("{}: seed {seed}", flaw.as_str());
    }
    assert!(green.is_empty(), "these flaws were not seen: {green:?}");
}
