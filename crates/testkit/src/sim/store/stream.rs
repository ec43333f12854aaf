//! Committed rows as the simulated database tells of them.

use std::time::Duration;

use async_trait::async_trait;
use postrider::store::{LogPosition, OutboxRow, RowStream, StoreError, StreamLimit, Streamed};

use super::SimStore;

/// How long a reader waits before it hears that there is nothing.
const QUIET: Duration = Duration::from_secs(1);

/// One reader's place in the log.
pub(super) struct SimStream {
    pub(super) store: SimStore,
    pub(super) told: usize,
}

#[async_trait]
impl RowStream for SimStream {
    async fn next(&mut self, limit: StreamLimit) -> Result<Streamed, StoreError> {
        let mut waited = false;
        loop {
            let told = self.told;
            let rows: Vec<OutboxRow> = self
                .store
                .call("stream", move |world| {
                    let rows: Vec<_> =
                        world.database.log.iter().skip(told).take(limit.rows.max(1)).cloned().collect();
                    world.note_ids(rows.iter().map(|row| row.envelope.id.as_str()));
                    rows
                })
                .await?;
            self.told += rows.len();
            if waited || !rows.is_empty() {
                return Ok(Streamed { rows, told_to: LogPosition(self.told as u64), ..Streamed::default() });
            }
            waited = true;
            self.store.wait_for_news(QUIET).await;
        }
    }
}
