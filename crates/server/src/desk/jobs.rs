//! Jobs of many items, and how far they are.

use async_trait::async_trait;
use postrider::progress::{Job, JobFilter};

use super::{Answer, StoreDesk};
use crate::wiring::WholeStore;

#[async_trait]
pub(crate) trait JobList {
    /// The newest first.
    async fn jobs(&self, filter: &JobFilter) -> Answer<Vec<Job>>;
}

#[async_trait]
impl<S: WholeStore> JobList for StoreDesk<S> {
    async fn jobs(&self, filter: &JobFilter) -> Answer<Vec<Job>> {
        Ok(self.store.jobs(filter).await?)
    }
}
