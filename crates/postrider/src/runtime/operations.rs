//! Operations and rules, run by whoever collects dead letters.

use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::operation::{EditWork, EventWork, LetterWork, Runner, RunnerConfig, Work};
use crate::store::{Backend, OperationKind};
use crate::triage::{Rule, keep_rules};

/// Takes up replays of an outbox that has a database of its own, until told to stop.
pub(super) async fn run_replays<S: Backend>(store: S, clock: Clock, stop: CancellationToken) {
    let events = EventWork::new(clock.clone());
    let runner = Runner::new(store, clock, RunnerConfig::default());
    runner.serve(&[(OperationKind::ReplayOutbox, &events)], &stop).await;
}

/// Takes up operations of every kind, and starts those that are due by a rule, until told to stop.
pub(super) async fn run_operations<S: Backend>(
    store: S,
    clock: Clock,
    rules: Vec<Rule>,
    stop: CancellationToken,
) {
    let runner = Runner::new(store.clone(), clock.clone(), RunnerConfig::default());
    let (letters, events) = (LetterWork::new(clock.clone()), EventWork::new(clock.clone()));
    let edits = EditWork::new(clock.clone());
    let kinds: [(OperationKind, &dyn Work<S>); 4] = [
        (OperationKind::ReplayLetters, &letters),
        (OperationKind::DiscardLetters, &letters),
        (OperationKind::EditLetters, &edits),
        (OperationKind::ReplayOutbox, &events),
    ];
    tokio::join!(runner.serve(&kinds, &stop), keep_rules(&store, &clock, &rules, &stop));
}
