//! Who tells others that a job is done, where no store has an outbox for it.

use std::sync::Arc;

use async_trait::async_trait;

use super::error::{ProgressError, ProgressErrorKind};
use crate::broker::{Broker, Outgoing, Published};
use crate::clock::Clock;
use crate::envelope::{Event, WireFormat, wire};
use crate::store::{Outbox, StoreErrorKind};
use crate::topology::{ExchangeName, RoutingKey};

/// Publishes completion events. A crash may publish one twice, under the same id.
#[async_trait]
pub trait Announcer: Send + Sync + 'static {
    /// Returns once somebody else is responsible for the event.
    async fn announce(&self, event: Event) -> Result<(), ProgressError>;
}

/// Publishes them straight to a broker, and waits for the confirm.
pub struct BrokerAnnouncer {
    /// The broker.
    pub broker: Arc<dyn Broker>,
    /// Where events go that name no exchange.
    pub exchange: ExchangeName,
    /// How they are written.
    pub format: WireFormat,
    /// For the times and ids that are still open.
    pub clock: Clock,
}

#[async_trait]
impl Announcer for BrokerAnnouncer {
    async fn announce(&self, event: Event) -> Result<(), ProgressError> {
        let exchange = event.exchange.clone().unwrap_or_else(|| self.exchange.clone());
        let envelope = event.into_envelope(&self.clock);
        let routing_key = RoutingKey::new(&envelope.event_type)
            .map_err(|error| ProgressError::invalid(error.to_string()))?;
        let message = wire::encode(&envelope, self.format, 0);
        let why = match self.broker.publish(vec![Outgoing { exchange, routing_key, message }]).await.pop() {
            Some(Published::Confirmed) => return Ok(()),
            Some(
                Published::Returned(why)
                | Published::Refused(why)
                | Published::Unfit(why)
                | Published::Declined(why)
                | Published::Unknown(why),
            ) => why,
            None => "the broker did not answer".to_owned(),
        };
        let id = &envelope.id;
        let text =
            format!("the job is done, but its completion event {id} is not published yet ({why}); try again");
        Err(ProgressError::new(ProgressErrorKind::Unavailable, text))
    }
}

/// Commits them to an outbox, once: an event that was committed before is announced already.
pub struct OutboxAnnouncer<S>(pub S);

#[async_trait]
impl<S: Outbox> Announcer for OutboxAnnouncer<S> {
    async fn announce(&self, event: Event) -> Result<(), ProgressError> {
        let mut tx = self.0.begin().await?;
        match self.0.append(&mut tx, vec![event]).await {
            Ok(_) => Ok(self.0.commit(tx).await?),
            Err(error) if error.kind == StoreErrorKind::Duplicate => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
