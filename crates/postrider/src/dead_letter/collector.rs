//! Takes dead letters from their queue into the table. Committed first, then acked.

use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::header as mark;
use crate::broker::{Broker, BrokerError, Delivery, HeaderValue, Verdict};
use crate::clock::Clock;
use crate::envelope::wire::{self, header};
use crate::settlement::DeadReason;
use crate::store::{DeadLetter, DeadLetters};
use crate::topology::{ConsumerName, QueueName, ServiceQueue};

/// Dead letters taken at a time.
const BATCH: usize = 200;

/// Collects the dead letters of one queue.
pub struct Collector<S> {
    store: S,
    broker: Arc<dyn Broker>,
    clock: Clock,
    service: ServiceQueue,
}

impl<S: DeadLetters> Collector<S> {
    /// A collector for a service queue's dead letters.
    pub fn new(store: S, broker: Arc<dyn Broker>, clock: Clock, service: ServiceQueue) -> Self {
        Self { store, broker, clock, service }
    }

    /// Works until told to stop. An outage of the store is waited out; the letters stay in their queue meanwhile.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) -> Result<(), BrokerError> {
        let prefetch = u16::try_from(BATCH).unwrap_or(u16::MAX);
        let mut subscription = loop {
            match self.broker.subscribe(&self.service.dead_letter_queue, prefetch).await {
                Err(error) if error.is_transient() => tokio::select! {
                    () = stop.cancelled() => return Ok(()),
                    () = self.clock.sleep(Duration::from_secs(1)) => {}
                },
                subscribed => break subscribed?,
            }
        };
        let settler = subscription.settler();
        loop {
            let deliveries = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                deliveries = subscription.next(BATCH) => deliveries?,
            };
            let letters: Vec<_> = deliveries.iter().map(|delivery| self.letter(delivery)).collect();
            if !self.store_surely(letters, &stop).await {
                return Ok(());
            }
            metrics::counter!("postrider_dead_letters_collected_total").increment(deliveries.len() as u64);
            let done = deliveries.into_iter().map(|delivery| (delivery.receipt, Verdict::Ack)).collect();
            settler.settle(done).await?;
        }
    }

    /// Tries until it is committed; false when told to stop before that.
    async fn store_surely(&self, letters: Vec<DeadLetter>, stop: &CancellationToken) -> bool {
        while let Err(error) = self.store.collect(letters.clone()).await {
            tracing::warn!(queue = %self.service.dead_letter_queue, %error,
                "dead letters could not be stored; they stay in their queue, trying again");
            tokio::select! {
                () = stop.cancelled() => return false,
                () = self.clock.sleep(Duration::from_secs(1)) => {}
            }
        }
        true
    }

    fn letter(&self, delivery: &Delivery) -> DeadLetter {
        let message = &delivery.message;
        let now = self.clock.now();
        let read = wire::decode(message, &delivery.routing_key, &self.service.identity, now).ok();
        let text = |name: &str| message.header(name).map(str::to_owned);
        let time = |name: &str| message.header(name).and_then(|time| time.parse().ok());
        let routing_key =
            text(header::ORIGINAL_ROUTING_KEY).unwrap_or_else(|| delivery.routing_key.to_string());
        let retries = message.headers.get(mark::FINAL_RETRY_COUNT).and_then(HeaderValue::as_int);
        let queue = message.header(mark::ORIGINAL_QUEUE).and_then(|queue| QueueName::new(queue).ok());
        DeadLetter {
            key: self.key(delivery),
            event_id: read.as_ref().map(|envelope| envelope.id.clone()),
            event_type: read
                .as_ref()
                .map(|envelope| envelope.event_type.to_string())
                .or(Some(routing_key.clone())),
            tenant: read.as_ref().and_then(|envelope| envelope.tenant.group.clone()),
            consumer: message.header(mark::CONSUMER).and_then(|name| ConsumerName::new(name).ok()),
            queue: queue.unwrap_or_else(|| self.service.name().clone()),
            exchange: text(header::ORIGINAL_EXCHANGE).unwrap_or_else(|| delivery.exchange.to_string()),
            routing_key,
            reason: text(mark::DEAD_REASON).unwrap_or_else(|| self.found_dead(delivery).as_str().to_owned()),
            error: text(mark::FINAL_ERROR).unwrap_or_default(),
            error_class: text(mark::ERROR_CLASS),
            attempts: u32::try_from(retries.unwrap_or(0)).unwrap_or(0).saturating_add(1),
            first_failed_at: time(mark::FIRST_FAILED_AT).unwrap_or(now),
            dead_at: time(mark::LAST_FAILED_AT).unwrap_or(now),
            properties: message.properties.clone(),
            headers: message.headers.clone(),
            body: message.body.clone(),
        }
    }

    /// Why a message that none of our consumers gave up is here. One that never died and was published to another exchange
    /// than that of the dead letters came through an alternate exchange, which changes neither exchange nor key.
    fn found_dead(&self, delivery: &Delivery) -> DeadReason {
        let published_here =
            delivery.exchange.is_default() || delivery.exchange == self.service.dead_letter.exchange;
        if published_here || delivery.message.headers.contains_key("x-death") {
            DeadReason::Foreign
        } else {
            DeadReason::Unroutable
        }
    }

    /// The id of this death, or, for dead letters that others made, a hash of what makes them this one.
    fn key(&self, delivery: &Delivery) -> String {
        let message = &delivery.message;
        if let Some(id) = message.header(mark::DEAD_LETTER_ID) {
            return id.to_owned();
        }
        let mut hash = Sha256::new();
        hash.update(self.service.dead_letter_queue.as_str());
        hash.update(message.properties.message_id.as_deref().unwrap_or_default());
        hash.update(serde_json::to_vec(&message.headers.get("x-death")).unwrap_or_default());
        hash.update(&message.body);
        hash.finalize().iter().fold(String::from("sha256:"), |key, byte| format!("{key}{byte:02x}"))
    }
}
