//! A process that only carries out operations, and ends, as kill -9 does, at one named step of a chunk.
//!
//! It paces itself by a clock of its own, which stands still while it rests: so the rest after the last chunk, before the operation
//! is said to be over, is a place to die at too, every time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use futures_util::future::BoxFuture;
use postrider::Clock;
use postrider::operation::{Chunk, EditWork, Runner, RunnerConfig, Work};
use postrider::store::{Backend, Operation, OperationState, StoreError};
use tokio_util::sync::CancellationToken;

/// Between which two steps of an operation the process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkStep {
    /// A chunk is committed, the next is off the list, and nothing was done with it.
    Taken,
    /// Its letters are replaced in the transaction, which is not committed.
    Worked,
    /// Everything is committed, and nobody has said that the operation is over.
    Over,
}

impl ChunkStep {
    const ALL: [Self; 3] = [Self::Taken, Self::Worked, Self::Over];

    /// The word for it on the worker's command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::Worked => "worked",
            Self::Over => "over",
        }
    }
}

impl std::str::FromStr for ChunkStep {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> Result<Self> {
        match Self::ALL.into_iter().find(|step| step.as_str() == text) {
            Some(step) => Ok(step),
            None => bail!("there is no step {text:?} of an operation"),
        }
    }
}

/// Edits letters, and dies in its second chunk.
struct DyingWork {
    work: EditWork,
    step: ChunkStep,
    chunks: AtomicUsize,
}

impl DyingWork {
    fn pass(&self, at: ChunkStep) {
        if self.step == at && self.chunks.load(Ordering::SeqCst) == 2 {
            // No destructor runs and nothing is flushed.
            std::process::abort();
        }
    }
}

impl<S: Backend> Work<S> for DyingWork {
    fn chunk<'a>(
        &'a self,
        store: &'a S,
        tx: &'a mut S::Tx,
        operation: &'a Operation,
        items: Vec<String>,
    ) -> BoxFuture<'a, std::result::Result<Chunk, StoreError>> {
        Box::pin(async move {
            self.chunks.fetch_add(1, Ordering::SeqCst);
            self.pass(ChunkStep::Taken);
            let done = self.work.chunk(store, tx, operation, items).await?;
            self.pass(ChunkStep::Worked);
            Ok(done)
        })
    }
}

/// Carries out the newest edit, until it dies at this step.
pub async fn edit<S: Backend>(store: S, clock: Clock, step: ChunkStep) -> Result<()> {
    let (pace, hands) = Clock::manual(clock.now());
    let runner = Runner::new(store.clone(), pace, RunnerConfig::default());
    let work = DyingWork { work: EditWork::new(clock.clone()), step, chunks: AtomicUsize::new(0) };
    let never = CancellationToken::new();
    // One operation, and nothing beside it that sleeps: whoever looks while it rests knows that it stands still.
    let Some(edit) = store.operations(None, 1).await?.pop() else { bail!("there is nothing to edit") };
    let lets_time_pass = async {
        loop {
            if let Some(rest) = hands.next_wake() {
                let running = store.operations(None, 1).await?.pop();
                let all_done = |operation: &Operation| {
                    operation.state == OperationState::Running && operation.done == operation.total
                };
                if step == ChunkStep::Over && running.as_ref().is_some_and(all_done) {
                    std::process::abort();
                }
                hands.advance(rest);
            }
            clock.sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        ended = runner.run(edit.id, &work, &never) => bail!("the edit ended as {ended:?}, and nobody died"),
        failed = lets_time_pass => failed,
    }
}
