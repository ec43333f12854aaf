//! How far an operation is, while somebody looks.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use postrider::store::{Operation, OperationState, Operations};
use uuid::Uuid;

use super::{LOOK_EVERY, find, left};
use crate::commands::Context;
use crate::exit::Exit;

/// Without a terminal, a line this often.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Shows an operation until it is over.
pub(super) async fn watch<S: Operations>(store: &S, id: Uuid, context: &Context) -> anyhow::Result<Exit> {
    let mut progress = Progress::new(context);
    let mut unattended = false;
    // One for all turns: what comes while the store is asked is heard in the next.
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    loop {
        let operation = find(store, id).await?;
        if operation.state.is_over() {
            progress.end();
            let text = format!(
                "{} {}: {} done, {} skipped, {} in all",
                operation.kind.as_str(),
                operation.state.as_str(),
                operation.done,
                operation.skipped,
                operation.total
            );
            context.output.one(&operation, &text)?;
            // What somebody else resolved meanwhile is skipped as well, and nothing is left to do about it.
            let unfit = operation.skipped > 0 && !left(store, id).await?.is_empty();
            if unfit {
                context
                    .output
                    .note(&format!("some were left as they are; `postrider ops get {id}` says why"));
            }
            return Ok(match operation.state {
                OperationState::Failed => Exit::Error,
                OperationState::Cancelled => Exit::Partly,
                // Nothing of what was asked for happened.
                OperationState::Done if operation.done == 0 && operation.skipped > 0 => Exit::Partly,
                OperationState::Done if unfit => Exit::Partly,
                _ => Exit::Ok,
            });
        }
        if operation.runner.is_none() && !unattended {
            unattended = true;
            context
                .output
                .note(&format!("nobody runs it now: `postrider serve` will, or `postrider ops resume {id}`"));
        }
        progress.show(&operation);
        tokio::select! {
            () = context.clock.sleep(LOOK_EVERY) => {}
            _ = &mut interrupted => {
                progress.end();
                context.output.note(&format!("no longer watching; operation {id} goes on"));
                return Ok(Exit::Interrupted);
            }
        }
    }
}

/// A bar on a terminal, else a line now and then; on stderr.
pub(super) struct Progress<'a> {
    context: &'a Context,
    terminal: bool,
    drawn: bool,
    last_line: Duration,
}

impl<'a> Progress<'a> {
    /// Nothing is shown yet.
    pub(super) fn new(context: &'a Context) -> Self {
        let last_line = context.clock.monotonic();
        Self { context, terminal: std::io::stderr().is_terminal(), drawn: false, last_line }
    }

    /// How far it is.
    pub(super) fn show(&mut self, operation: &Operation) {
        const WIDTH: u64 = 30;
        if self.context.output.quiet {
            return;
        }
        let passed = operation.done + operation.skipped;
        let full = usize::try_from(passed * WIDTH / operation.total.max(1)).unwrap_or(0).min(30);
        if self.terminal {
            let (bar, rest) = ("█".repeat(full), "░".repeat(30 - full));
            eprint!("\r{bar}{rest} {passed}/{}", operation.total);
            let _ = std::io::stderr().flush();
            self.drawn = true;
        } else if self.context.clock.since(self.last_line) >= LINE_EVERY {
            self.last_line = self.context.clock.monotonic();
            eprintln!("{passed} of {}", operation.total);
        }
    }

    /// The next line is somebody else's.
    pub(super) fn end(&mut self) {
        if std::mem::take(&mut self.drawn) {
            eprintln!();
        }
    }
}
