//! What a chaos run tells, for people and for machines.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use super::judge::Judgement;

/// The report of a run.
#[derive(Debug, Clone)]
pub struct Report {
    /// From which the schedule follows.
    pub seed: u64,
    /// What was built, if the build knew.
    pub commit: String,
    /// The servers.
    pub versions: BTreeMap<&'static str, String>,
    /// Events that were committed.
    pub events: u64,
    /// Whether as much was tried as was asked for.
    pub enough: bool,
    /// How long faults struck.
    pub lasted: Duration,
    /// Faults that landed, by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Faults that found nobody to strike: not counted.
    pub missed: Vec<String>,
    /// Kinds of faults that cannot strike on this machine, and why.
    pub left_out: BTreeMap<&'static str, String>,
    /// Where the first of the events that something is wrong with went.
    pub stories: Vec<String>,
    /// Commits whose outcome was unknown at first.
    pub unknown_commits: u64,
    /// Deliveries that the consumers knew, as far as they told before they were killed.
    pub duplicates: u64,
    /// The longest time without any effect while events were committed.
    pub longest_stall: Duration,
    /// From the last heal until everything had come to rest; nothing if it did not.
    pub drained: Option<Duration>,
    /// What came of the events.
    pub judgement: Judgement,
    /// Each flaw that was built in on purpose, and whether the checkers saw it.
    pub controls: Vec<(&'static str, bool)>,
}

impl Report {
    /// Whether the promises were kept, everything drained, and every control went red.
    pub fn is_clean(&self) -> bool {
        self.judgement.is_clean() && self.drained.is_some() && self.controls.iter().all(|(_, red)| *red)
    }

    /// For machines.
    pub fn to_json(&self) -> Value {
        let found = &self.judgement;
        let controls: Vec<_> =
            self.controls.iter().map(|(name, red)| json!({ "name": name, "red": red })).collect();
        json!({
            "events": self.events,
            "faults": self.faults.values().sum::<u64>(),
            "lost": found.lost.len(),
            "doubled": found.doubled.len(),
            "out_of_order": found.out_of_order.len(),
            "controls": controls,
            "without_cause": found.without_cause.len(),
            "dead_in_health": found.dead_in_health.len(),
            "broken": found.broken,
            "findings": found.findings(),
            "seed": self.seed,
            "commit": self.commit,
            "versions": self.versions,
            "faults_by_kind": self.faults,
            "faults_missed": self.missed.len(),
            "faults_left_out": self.left_out,
            "enough": self.enough,
            "stories": self.stories,
            "seconds": self.lasted.as_secs(),
            "effects": found.effects,
            "dead_letters": found.dead,
            "jobs_completed": found.jobs,
            "ledger_entries": found.entries,
            "push_calls_repeated": found.repeated_calls,
            "unknown_commits": self.unknown_commits,
            "duplicates_absorbed": self.duplicates,
            "longest_stall_ms": u64::try_from(self.longest_stall.as_millis()).unwrap_or(u64::MAX),
            "drain_ms": self.drained.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = &self.judgement;
        let faults: u64 = self.faults.values().sum();
        writeln!(f, "seed {}, commit {}", self.seed, self.commit)?;
        let versions: Vec<_> =
            self.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
        writeln!(f, "{}", versions.join(", "))?;
        let mut row = |name: &str, value: String| writeln!(f, "  {name:<28}{value:>12}");
        row("events committed", self.events.to_string())?;
        row("effects compared", found.effects.to_string())?;
        row("faults", format!("{faults} in {} s", self.lasted.as_secs()))?;
        row("lost", found.lost.len().to_string())?;
        row("doubled", found.doubled.len().to_string())?;
        row("out of order", found.out_of_order.len().to_string())?;
        row("without cause", found.without_cause.len().to_string())?;
        row("dead letters", format!("{} ({} in health)", found.dead, found.dead_in_health.len()))?;
        row("jobs completed once", found.jobs.to_string())?;
        row("ledger entries", found.entries.to_string())?;
        row("push calls repeated", found.repeated_calls.to_string())?;
        row("commits of unknown outcome", self.unknown_commits.to_string())?;
        row("duplicates absorbed", self.duplicates.to_string())?;
        row("longest stall", format!("{:.1} s", self.longest_stall.as_secs_f64()))?;
        let drained = self.drained.map_or("never".to_owned(), |time| format!("{:.1} s", time.as_secs_f64()));
        row("drained after", drained)?;
        let red = self.controls.iter().filter(|(_, red)| *red).count();
        row("controls red", format!("{red} of {}", self.controls.len()))?;
        writeln!(f, "faults by kind:")?;
        for (kind, count) in &self.faults {
            writeln!(f, "  {kind:<28}{count:>12}")?;
        }
        for (kind, why) in &self.left_out {
            writeln!(f, "left out here: {kind}: {why}")?;
        }
        if !self.enough {
            writeln!(
                f,
                "less was tried than was asked for: give it more time (--at-most), or a faster machine"
            )?;
        }
        for finding in found.findings() {
            writeln!(f, "{finding}")?;
        }
        for story in &self.stories {
            writeln!(f, "{}", story.trim_end())?;
        }
        for (name, _) in self.controls.iter().filter(|(_, red)| !red) {
            writeln!(f, "control stayed green: {name}")?;
        }
        Ok(())
    }
}
