//! The topology as it is configured, and what the broker has of it.

use async_trait::async_trait;
use postrider::topology::Layout;
use postrider::topology::plan::Plan;

use super::{Answer, StoreDesk};
use crate::api::{Code, Problem};
use crate::old_buses;
use crate::wiring::WholeStore;

#[async_trait]
pub(crate) trait Topologies {
    /// As it is configured, with the queues of push subscriptions that were made since.
    async fn layout(&self) -> Answer<Layout>;
    /// What the broker lacks of it, and has beyond it; old buses that a migration removed are not missed. Nothing with the embedded broker, which has what the configuration says.
    async fn drift(&self) -> Answer<Option<Plan>>;
}

#[async_trait]
impl<S: WholeStore> Topologies for StoreDesk<S> {
    async fn layout(&self) -> Answer<Layout> {
        Ok(self.config.layout_with(&self.store.subscriptions().await?))
    }

    async fn drift(&self) -> Answer<Option<Plan>> {
        let Some(operator) = &self.operator else { return Ok(None) };
        let standings = self.store.migrations_of_buses().await?;
        let wanted = old_buses::without_removed(&self.layout().await?.topology, &standings);
        let plan = operator.plan(&wanted, false).await;
        plan.map(Some).map_err(|error| {
            let told = format!("the broker's topology cannot be read: {error}; nothing was changed");
            Problem::new(Code::BrokerUnavailable, told)
        })
    }
}
