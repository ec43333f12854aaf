//! Publishing rows to one bus or, while a migration runs, to two: both at the same time, each half at most once where it is known
//! to have arrived. An old bus that does not answer is not waited for: its copies are made later, by the copier.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};

use super::RelayConfig;
use super::outgoing::{self, Untold};
use crate::broker::{Broker, Outgoing, Published};
use crate::clock::Clock;
use crate::migration::{Definition, Delivered, DeliveryResult, Halves};
use crate::store::{DualPublishing, OutboxRow, PublishResult};

/// That rows are copied, and which halves of them need not go out again.
pub(super) struct Plan {
    pub(super) definition: Arc<Definition>,
    pub(super) confirmed: HashMap<i64, Halves>,
    /// Their copies are made later, because the old bus did not answer of late.
    pub(super) copied_later: bool,
}

/// What the broker said of a row; of its copy too, where it has one.
pub(super) struct Answer {
    new: Published,
    legacy: Option<Published>,
}

impl Answer {
    /// What the broker said of the row itself.
    pub(super) fn of_new(&self) -> &Published {
        &self.new
    }
}

/// Rows that were sent, with the answers, and how long each path took.
pub(super) struct Sent {
    pub(super) rows: Vec<(OutboxRow, Answer)>,
    pub(super) took: Duration,
    pub(super) copies_took: Option<Duration>,
    /// The old bus did not answer in time.
    pub(super) late: bool,
}

/// Sends rows. Without a plan nothing is done but that.
pub(super) async fn publish<S: DualPublishing>(
    store: &S,
    broker: &dyn Broker,
    clock: &Clock,
    config: &RelayConfig,
    rows: Vec<OutboxRow>,
    plan: Option<Plan>,
) -> Sent {
    let Some(mut plan) = plan else {
        let started = clock.monotonic();
        let answers = broker.publish(rows.iter().map(|row| outgoing::outgoing(row, config)).collect()).await;
        let took = clock.since(started);
        let alone = |new| Answer { new, legacy: None };
        return Sent {
            rows: rows.into_iter().zip(answers.into_iter().map(alone)).collect(),
            took,
            copies_took: None,
            late: false,
        };
    };
    plan.look_up(store, &rows).await;
    let halves = |row: &OutboxRow| plan.confirmed.get(&row.row.position).copied().unwrap_or_default();
    let copies: Vec<Option<Outgoing>> =
        rows.iter().map(|row| config.copy_of(row, &plan.definition)).collect();
    let to_new =
        rows.iter().filter(|row| !halves(row).new).map(|row| outgoing::outgoing(row, config)).collect();
    let wanted = rows.iter().zip(&copies).filter(|(row, _)| !plan.copied_later && !halves(row).legacy);
    let to_legacy = wanted.filter_map(|(_, copy)| copy.clone()).collect();
    let (new, legacy) = (timed(broker, clock, to_new), timed(broker, clock, to_legacy));
    let ((new, took), legacy) = if plan.definition.block_on_legacy {
        let (new, legacy) = tokio::join!(new, legacy);
        (new, Some(legacy))
    } else {
        within(new, legacy, config.legacy_patience, clock).await
    };
    let late = legacy.is_none();
    let (legacy, copies_took) =
        legacy.unwrap_or_else(|| (Vec::new(), Some(took.unwrap_or_default() + config.legacy_patience)));
    let (mut new, mut legacy) = (new.into_iter(), legacy.into_iter());
    let rows = rows.into_iter().zip(copies).map(|(row, copy)| {
        let known = halves(&row);
        let answer = Answer {
            new: if known.new { Published::Confirmed } else { next(&mut new) },
            legacy: copy.map(|_| if known.legacy { Published::Confirmed } else { next(&mut legacy) }),
        };
        (row, answer)
    });
    Sent { rows: rows.collect(), took: took.unwrap_or_default(), copies_took, late }
}

/// Both at the same time; nothing of the old bus if it is too late.
async fn within<T>(
    new: impl Future<Output = T>,
    legacy: impl Future<Output = T>,
    patience: Duration,
    clock: &Clock,
) -> (T, Option<T>) {
    match select(pin!(new), pin!(legacy)).await {
        Either::Right((legacy, new)) => (new.await, Some(legacy)),
        Either::Left((new, legacy)) => {
            let legacy = tokio::select! {
                biased;
                legacy = legacy => Some(legacy),
                () = clock.sleep(patience) => None,
            };
            (new, legacy)
        }
    }
}

async fn timed(
    broker: &dyn Broker,
    clock: &Clock,
    batch: Vec<Outgoing>,
) -> (Vec<Published>, Option<Duration>) {
    if batch.is_empty() {
        return (Vec::new(), None);
    }
    let started = clock.monotonic();
    let answers = broker.publish(batch).await;
    (answers, Some(clock.since(started)))
}

fn next(answers: &mut impl Iterator<Item = Published>) -> Published {
    answers.next().unwrap_or_else(|| Published::Unknown("the broker did not answer for it".to_owned()))
}

impl Plan {
    /// Rows that were tried before may have arrived on one side. Where the store cannot say so, both sides get them again.
    async fn look_up<S: DualPublishing>(&mut self, store: &S, rows: &[OutboxRow]) {
        let tried: Vec<_> = rows.iter().filter(|row| row.attempts > 0).map(|row| row.row.position).collect();
        if tried.is_empty() {
            return;
        }
        for (position, known) in store.confirmed_halves(tried).await.unwrap_or_default() {
            let halves = self.confirmed.entry(position).or_default();
            halves.new |= known.new;
            halves.legacy |= known.legacy;
        }
    }
}

/// Answers that say nothing about the message itself.
pub(super) struct Undecided {
    pub(super) why: Untold,
    /// Which halves have arrived.
    pub(super) halves: Halves,
    /// Both deliveries, where the row has two.
    pub(super) delivered: Option<Delivered>,
}

/// What the answers mean for the row, and for both deliveries where it has two; otherwise why they say nothing about the message itself.
pub(super) fn judge(
    row: &OutboxRow,
    answer: Answer,
    blocks: bool,
    config: &RelayConfig,
    clock: &Clock,
) -> Result<(PublishResult, Option<Delivered>), Undecided> {
    let Some(legacy) = answer.legacy else {
        let result = outgoing::judge(row, answer.new, config, clock);
        let alone = |why| Undecided { why, halves: Halves::default(), delivered: None };
        return result.map(|result| (result, None)).map_err(alone);
    };
    let halves = Halves { new: answer.new == Published::Confirmed, legacy: legacy == Published::Confirmed };
    let delivered = Delivered {
        event_id: row.envelope.id.clone(),
        new: delivery(&answer.new),
        legacy: delivery(&legacy),
    };
    let undecided = |why| Undecided { why, halves, delivered: Some(delivered.clone()) };
    let mut result = outgoing::judge(row, answer.new, config, clock).map_err(undecided)?;
    if let DeliveryResult::Failed(error) = &delivered.legacy {
        metrics::counter!("postrider_migration_legacy_failed_total").increment(1);
        tracing::warn!(event_id = %row.envelope.id, %error, "the copy of an event did not reach the old bus; it is tried again");
    }
    if blocks && result == PublishResult::Published {
        result = outgoing::judge(row, legacy, config, clock).map_err(undecided)?;
    }
    Ok((result, Some(delivered)))
}

fn delivery(answer: &Published) -> DeliveryResult {
    match answer {
        Published::Confirmed => DeliveryResult::Confirmed,
        Published::Returned(why) | Published::Refused(why) | Published::Unfit(why) => {
            DeliveryResult::Failed(why.clone())
        }
        Published::Declined(_) | Published::Unknown(_) => DeliveryResult::Pending,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::tests::row;

    fn judged(new: Published, legacy: Published, blocks: bool) -> Result<(PublishResult, Delivered), Halves> {
        let (clock, _) = Clock::manual(jiff::Timestamp::UNIX_EPOCH);
        let answer = Answer { new, legacy: Some(legacy) };
        judge(&row(1), answer, blocks, &RelayConfig::default(), &clock)
            .map(|(result, delivered)| (result, delivered.unwrap()))
            .map_err(|undecided| undecided.halves)
    }

    fn returned() -> Published {
        Published::Returned("no queue".to_owned())
    }

    fn away() -> Published {
        Published::Unknown("away".to_owned())
    }

    #[tokio::test]
    async fn an_old_bus_that_never_answers_is_not_waited_for() {
        let (clock, later) = (Clock::system(), Duration::from_millis(100));
        let (soon, never) = (std::future::ready, std::future::pending);
        assert_eq!(within(soon(1), soon(2), later, &clock).await, (1, Some(2)));
        assert_eq!(within(soon(1), never(), later, &clock).await, (1, None));
        // The new one is waited for as long as it takes.
        let slow = async {
            clock.sleep(later * 2).await;
            1
        };
        assert_eq!(within(slow, soon(2), later, &clock).await, (1, Some(2)));
    }

    #[test]
    fn a_copy_that_fails_holds_up_nothing() {
        for copy in [returned(), away()] {
            let (result, delivered) = judged(Published::Confirmed, copy, false).unwrap();
            assert_eq!(result, PublishResult::Published);
            assert_ne!(delivered.legacy, DeliveryResult::Confirmed);
        }
    }

    #[test]
    fn a_copy_that_fails_holds_up_its_event_where_asked_to() {
        let (result, delivered) = judged(Published::Confirmed, returned(), true).unwrap();
        assert!(matches!(result, PublishResult::Failed { .. }), "{result:?}");
        assert_eq!(delivered.new, DeliveryResult::Confirmed);
        let halves = judged(Published::Confirmed, away(), true).unwrap_err();
        assert_eq!(halves, Halves { new: true, legacy: false });
    }

    #[test]
    fn an_event_that_fails_remembers_that_its_copy_arrived() {
        let (result, delivered) = judged(returned(), Published::Confirmed, false).unwrap();
        assert!(matches!(result, PublishResult::Failed { .. }));
        assert_eq!(delivered.legacy, DeliveryResult::Confirmed);
        let halves = judged(away(), Published::Confirmed, false).unwrap_err();
        assert_eq!(halves, Halves { new: false, legacy: true });
    }
}
