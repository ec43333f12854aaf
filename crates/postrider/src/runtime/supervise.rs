//! A task that ends with an error is started again.

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::broker::BrokerError;
use crate::clock::Clock;

/// Starts a task again when it ended with an error, for as long as nobody said stop.
pub(super) async fn supervise<F, R>(what: &str, run: F, clock: &Clock, stop: &CancellationToken)
where
    F: Fn() -> R,
    R: Future<Output = Result<(), BrokerError>>,
{
    const FIRST: Duration = Duration::from_secs(1);
    const LONGEST: Duration = Duration::from_secs(30);
    let mut pause = FIRST;
    loop {
        let started = clock.monotonic();
        let Err(error) = run().await else { return };
        if stop.is_cancelled() {
            return;
        }
        // What ran for a while and ended has a new reason: it is not made to wait for the old ones.
        if clock.since(started) > LONGEST {
            pause = FIRST;
        }
        tracing::error!(%error, "the {what} ended; it is started again in {pause:?}");
        tokio::select! {
            () = stop.cancelled() => return,
            () = clock.sleep(pause) => pause = (pause * 2).min(LONGEST),
        }
    }
}
