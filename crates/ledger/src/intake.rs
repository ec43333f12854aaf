//! From a queue into the books: delivery, sequencer, commit; then, and only then, the delivery is settled.
//!
//! Posted and known events are acked. A refused one is published to the queue's dead letters with the refusal's code and text, with
//! confirm, and then acked; one that fits through no broker is stored where dead letters are collected. Nothing of it is in the books,
//! and a replay after the cause is mended posts it. A crash before the commit leaves nothing, and the broker delivers again; after it,
//! the books know the event. There is no inbox: the books are one that never forgets. Redis may stand in front of them ([`Sight`]) and
//! spare them duplicates.

mod bury;
mod sight;
mod status;

pub use sight::Sight;
pub use status::{IntakeState, IntakeStatus};

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use postrider::broker::{Broker, BrokerError, Delivery, Receipt, Settler, Subscription, Verdict};
use postrider::dead_letter;
use postrider::dedup::Sighting;
use postrider::envelope::{TenantId, wire};
use postrider::store::DeadLetters;
use postrider::topology::{ConsumerName, ServiceQueue};
use postrider::{Clock, EventId, Inbox};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::books::Books;
use crate::pipeline::{Answer, Arrival, refusing_panics};
use crate::refusal::Refusal;
use crate::sequencer::{NoAnswer, Sequencer};

/// Deliveries settled at once.
const SETTLE: usize = 512;
/// The pause before a publish or a subscription is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// Takes a queue's events into the books.
pub struct Intake<B> {
    /// Where they are posted.
    pub sequencer: Sequencer<B>,
    /// Where they come from.
    pub broker: Arc<dyn Broker>,
    /// The queue, where identity stands in its messages, and where its dead letters go.
    pub service: ServiceQueue,
    /// The name under which dead letters say who refused them.
    pub name: ConsumerName,
    /// The tenant of events that name none; such an event is refused when absent.
    pub tenant: Option<TenantId>,
    /// Unsettled deliveries the broker may hand out to each run.
    pub prefetch: u16,
    /// Idempotency keys in front of the books, where there are any.
    pub sight: Option<Sight<B>>,
    /// Tells the time.
    pub clock: Clock,
    /// What it has done.
    pub status: Arc<IntakeStatus>,
}

/// A delivery that was read.
struct Arrived {
    delivery: Delivery,
    /// Its id, where it has one.
    event: Option<EventId>,
    /// Whose event it is, or why it is none.
    read: Result<(TenantId, Arrival), Refusal>,
    sighting: Option<Sighting>,
    /// Whether it is a duplicate for certain, without asking the books.
    known: bool,
}

impl<B: Books + Inbox + DeadLetters> Intake<B> {
    /// Works until told to stop, then settles what is posted. The rest goes back to the queue. May run several times side by side,
    /// each with a subscription of its own; what they take is posted together. While it is paused, or its store is away, it has none.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) -> Result<(), BrokerError> {
        let standing = self.status.standing().clone();
        self.status.begin(&self.name);
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = standing.free() => self.session(&stop).await?,
            }
        }
    }

    /// One subscription, until it is told to stop or is held up. What was begun is finished and settled.
    async fn session(self: &Arc<Self>, stop: &CancellationToken) -> Result<(), BrokerError> {
        let mut subscription = self.subscribe(stop).await?;
        let _opened = self.status.standing().note_subscription(subscription.subscribed());
        let standing = self.status.standing();
        let (settled, to_settle) = mpsc::channel(usize::from(self.prefetch.max(1)));
        let settling = tokio::spawn(settle(subscription.settler(), to_settle));
        let tasks = TaskTracker::new();
        let ended = loop {
            let deliveries = tokio::select! {
                () = stop.cancelled() => break Ok(()),
                () = standing.held_up() => break Ok(()),
                deliveries = subscription.next(usize::from(self.prefetch.max(1))) => deliveries,
            };
            match deliveries {
                Err(error) => break Err(error),
                Ok(deliveries) => {
                    for arrived in self.meet(deliveries).await {
                        let (this, settled, stop) = (self.clone(), settled.clone(), stop.clone());
                        let in_hand = standing.begin();
                        tasks.spawn(async move {
                            let _closing = settled.send(this.take(arrived, &stop).await).await;
                            drop(in_hand);
                        });
                    }
                }
            }
        };
        tasks.close();
        tasks.wait().await;
        drop(settled);
        let _panicked = settling.await;
        ended
    }

    async fn subscribe(&self, stop: &CancellationToken) -> Result<Box<dyn Subscription>, BrokerError> {
        loop {
            match self.broker.subscribe(self.service.name(), self.prefetch).await {
                Err(error) if error.is_transient() && !stop.is_cancelled() => {
                    tracing::warn!(intake = %self.name, %error, "cannot subscribe yet; trying again");
                    tokio::select! {
                        () = stop.cancelled() => return Err(error),
                        () = self.clock.sleep(PAUSE) => {}
                    }
                }
                answer => return answer,
            }
        }
    }

    /// Reads deliveries, and looks up what is known of them.
    async fn meet(&self, deliveries: Vec<Delivery>) -> Vec<Arrived> {
        let mut arrived: Vec<_> = deliveries.into_iter().map(|delivery| self.read(delivery)).collect();
        if let Some(sight) = &self.sight {
            sight.look(&mut arrived).await;
        }
        arrived
    }

    /// One that somebody brought back from the dead letters begins anew.
    fn read(&self, mut delivery: Delivery) -> Arrived {
        dead_letter::revive(&mut delivery.message);
        let (identity, now) = (&self.service.identity, self.clock.now());
        // Out of a panic here the whole subscription would not come back.
        let read = refusing_panics(|| {
            let envelope = wire::decode(&delivery.message, &delivery.routing_key, identity, now)
                .map_err(|malformed| Refusal::Malformed(malformed.0))?;
            let tenant = envelope.tenant.group.clone().or_else(|| self.tenant.clone());
            Ok((envelope.id.clone(), tenant, Arrival::event(envelope)))
        });
        let (event, read) = match read {
            Err(refusal) => (None, Err(refusal)),
            Ok((event, tenant, arrival)) => {
                (Some(event), tenant.map(|tenant| (tenant, arrival)).ok_or(Refusal::NoTenant))
            }
        };
        Arrived { delivery, event, read, sighting: None, known: false }
    }

    /// One delivery, to the verdict on it. It is settled whatever happens: one whose task panicked would be in hand until the subscription
    /// ends, and as many of them as the prefetch has would stand in the way of all others.
    async fn take(&self, arrived: Arrived, stop: &CancellationToken) -> (Receipt, Verdict) {
        let Arrived { delivery, event, read, sighting, known } = arrived;
        let judging = self.judge(&delivery, event.as_ref(), read, sighting, known, stop);
        let verdict = if let Ok(verdict) = AssertUnwindSafe(judging).catch_unwind().await {
            verdict
        } else {
            tracing::error!(intake = %self.name, event = event.as_ref().map_or("", EventId::as_str),
                "the ledger panicked over an event; it goes back to its queue");
            self.give_back(stop).await
        };
        (delivery.receipt, verdict)
    }

    async fn judge(
        &self,
        delivery: &Delivery,
        event: Option<&EventId>,
        read: Result<(TenantId, Arrival), Refusal>,
        sighting: Option<Sighting>,
        known: bool,
        stop: &CancellationToken,
    ) -> Verdict {
        let answer = match read {
            Ok(_) if known => None,
            Err(refusal) => Some(Answer::Refused(refusal)),
            Ok((tenant, arrival)) => match self.sequencer.submit(&tenant, arrival).await {
                Ok(answer) => Some(answer),
                Err(NoAnswer::Stopped) => return Verdict::Requeue,
                Err(NoAnswer::Store(error)) => {
                    tracing::error!(intake = %self.name, event = event.map_or("", EventId::as_str), %error,
                        "the books cannot be written; the event goes back to its queue");
                    return self.give_back(stop).await;
                }
            },
        };
        if let (Some(sight), Some(sighting), Some(answer)) = (&self.sight, &sighting, &answer) {
            sight.note(sighting, answer);
        }
        match answer {
            Some(Answer::Refused(refusal)) => self.bury(delivery, event, &refusal, stop).await,
            Some(Answer::Posted(_)) => self.status.count_posted(&self.name),
            Some(Answer::Duplicate(_)) | None => self.status.count_duplicate(&self.name),
        }
    }

    /// Back to its queue, and not at once again: whatever is wrong needs a person.
    async fn give_back(&self, stop: &CancellationToken) -> Verdict {
        let _stopped = stop.run_until_cancelled(self.clock.sleep(PAUSE)).await;
        Verdict::Requeue
    }
}

/// Settles whatever is ready in one go. A lost connection needs nothing: the broker delivers again.
async fn settle(settler: Box<dyn Settler>, mut ready: mpsc::Receiver<(Receipt, Verdict)>) {
    let mut batch = Vec::new();
    while ready.recv_many(&mut batch, SETTLE).await > 0 {
        if let Err(error) = settler.settle(std::mem::take(&mut batch)).await {
            tracing::warn!(%error, "deliveries could not be settled; the broker delivers them again");
        }
    }
}
