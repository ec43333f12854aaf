//! The simulation: schedules from many seeds, every await point of one, and the flaws that it has to find.

use std::collections::BTreeSet;

use postrider_testkit::sim::{Fault, Flaw, Planned, minimise, play, play_plan, replay};

/// A taste of the hundred thousand that `scripts/test` plays with an optimised build.
const SCHEDULES: u64 = 1_000;

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
        for done in [false, true] {
            let plan = [Planned { at, fault: Fault::Crash { done } }];
            let played = play_plan(1, None, &plan, false);
            assert!(played.verdict.is_clean(), "{plan:?}: {}", played.verdict);
        }
    }
}

#[test]
fn the_same_seed_plays_the_same_history() {
    for seed in 0..50 {
        let (first, second) = (replay(seed, None), replay(seed, None));
        assert_eq!(first.history, second.history, "seed {seed}");
        assert_eq!(first.verdict, second.verdict, "seed {seed}");
    }
}

#[test]
fn every_flaw_turns_the_checkers_red() {
    let mut green = BTreeSet::new();
    for flaw in Flaw::ALL {
        let Some(seed) = (0..2_000).find(|seed| !play(*seed, Some(flaw)).verdict.is_clean()) else {
            green.insert(flaw.as_str());
            continue;
        };
        let (plan, played) = minimise(seed, Some(flaw));
        assert!(!played.verdict.is_clean(), "{}: the shortest plan no longer fails", flaw.as_str());
        eprintln!("{}: seed {seed}, {} faults left, {}", flaw.as_str(), plan.len(), played.verdict);
    }
    assert!(green.is_empty(), "these flaws were not seen: {green:?}");
}
