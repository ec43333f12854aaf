//! Push endpoints: what they are, how the last attempts went; tried, and given a new secret.

use async_trait::async_trait;
use postrider::push::Attempt;
use postrider::topology::ConsumerName;

use super::{Answer, StoreDesk};
use crate::config::OLD_SECRET_STAYS;
use crate::push_desk::{PushDesk, Row, Shown, Tested};
use crate::wiring::WholeStore;

#[async_trait]
pub(crate) trait Endpoints {
    /// All of them.
    async fn endpoints(&self) -> Answer<Vec<Row>>;
    /// How the last attempts at one went.
    async fn attempts(&self, name: &ConsumerName, limit: u32) -> Answer<Vec<Attempt>>;
    /// Sends one an event of its own, past the queue.
    async fn try_endpoint(&self, name: &ConsumerName, by: &str) -> Answer<Tested>;
    /// A new secret beside the old one.
    async fn rotate(&self, name: &ConsumerName, by: &str, reason: &str) -> Answer<Shown>;
}

#[async_trait]
impl<S: WholeStore> Endpoints for StoreDesk<S> {
    async fn endpoints(&self) -> Answer<Vec<Row>> {
        Ok(self.push().rows().await?)
    }

    async fn attempts(&self, name: &ConsumerName, limit: u32) -> Answer<Vec<Attempt>> {
        Ok(self.store.attempts(name, None, limit).await?)
    }

    async fn try_endpoint(&self, name: &ConsumerName, by: &str) -> Answer<Tested> {
        Ok(self.push().test(name, by).await?)
    }

    async fn rotate(&self, name: &ConsumerName, by: &str, reason: &str) -> Answer<Shown> {
        Ok(self.push().rotate(name, None, OLD_SECRET_STAYS, by, reason).await?)
    }
}

impl<S: WholeStore> StoreDesk<S> {
    fn push(&self) -> PushDesk<S> {
        let (store, config) = (self.store.clone(), self.live.clone());
        PushDesk { store, config, clock: self.clock.clone(), at_work: self.at_work.clone() }
    }
}
