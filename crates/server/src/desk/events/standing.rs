//! Where an event stands for a consumer: by what is stored, and by what waits at the broker.

use std::sync::Arc;

use postrider::Broker;
use postrider::store::{
    LetterStatus, LetterSummary, LogEntry, OutboxStatus, OutboxStep, Registration, Trace,
};
use postrider::topology::{ExchangeName, QueueName, RoutingKey, ServiceQueue, Topology};

use super::{DeadThere, InQueue};
use crate::config::Config;

/// Kept back by a consumer, so that the order of its key holds.
pub(super) const HELD: &str = "held";
/// At the broker, one hopes.
const PUBLISHED: &str = "published, not applied yet";
/// Not for it: the broker had routed the event when the queue was bound.
const EARLIER: &str = "published before its queue was bound";
/// Published, where nobody collects dead letters: whether it is one is known to the broker alone.
const UNCOLLECTED: &str = "given up or waiting";

/// Where an event stands, with what the broker says.
pub(super) struct Standing {
    pub(super) state: &'static str,
    pub(super) waiting_there: Option<u64>,
    pub(super) may_lie_in: Option<DeadThere>,
}

/// Asks the broker about an event that is with it.
pub(super) async fn at_broker(
    state: &'static str,
    consumer: &Registration,
    broker: Option<&Arc<dyn Broker>>,
    config: &Config,
) -> Standing {
    if ![PUBLISHED, EARLIER].contains(&state) {
        return Standing { state, waiting_there: None, may_lie_in: None };
    }
    let waiting_there = match broker {
        Some(broker) => depth(broker, &consumer.service).await,
        None => None,
    };
    // Its queue may have been bound by fewer keys before, and that one among them: while something waits there, it may be this.
    let (state, waiting_there) = match waiting_there {
        Some(1..) => (PUBLISHED, waiting_there),
        _ if state == EARLIER => (EARLIER, None),
        _ => (PUBLISHED, waiting_there),
    };
    let configured = config.own.layout.services.iter().find(|own| own.name() == consumer.service.name());
    let service = configured.unwrap_or(&consumer.service);
    if service.collect && config.own.layout.collect {
        return Standing { state, waiting_there, may_lie_in: None };
    }
    let queue = &service.dead_letter_queue;
    let messages = match broker {
        Some(broker) => broker.depth(queue).await.ok(),
        None => None,
    };
    if messages == Some(0) {
        return Standing { state, waiting_there, may_lie_in: None };
    }
    let may_lie_in = Some(DeadThere { queue: queue.to_string(), messages });
    Standing { state: UNCOLLECTED, waiting_there, may_lie_in }
}

/// The queues of the configuration that a published event is routed to and nobody has registered for: services that are not Postrider's
/// take from them, or nobody does.
pub(super) async fn unclaimed(
    trace: &Trace,
    registered: &[Registration],
    broker: Option<&Arc<dyn Broker>>,
    config: &Config,
) -> Vec<InQueue> {
    let layout = &config.own.layout;
    let mut found = Vec::new();
    for service in routed_services(trace, &layout.services, &layout.topology, &layout.exchange) {
        if registered.iter().any(|known| known.service.name() == service.name()) {
            continue;
        }
        let waiting_there = match broker {
            Some(broker) => depth(broker, service).await,
            None => None,
        };
        found.push(InQueue { queue: service.name().to_string(), waiting_there });
    }
    found
}

/// Those that a published row reaches by its key, or is meant for.
fn routed_services<'a>(
    trace: &Trace,
    services: &'a [ServiceQueue],
    topology: &Topology,
    usual: &ExchangeName,
) -> Vec<&'a ServiceQueue> {
    let published = |row: &&OutboxStep| row.status == OutboxStatus::Published;
    let reached = |service: &&ServiceQueue| {
        trace.outbox.iter().filter(published).any(|row| reaches(row, service.name(), topology, usual))
    };
    services.iter().filter(reached).collect()
}

/// Whether a row goes to a queue: it names it, or its exchange and key lead there.
fn reaches(row: &OutboxStep, queue: &QueueName, topology: &Topology, usual: &ExchangeName) -> bool {
    if let Some(target) = &row.target_queue {
        return target == queue.as_str();
    }
    let key = RoutingKey::new(row.routing_key.as_ref().unwrap_or(&row.event_type)).ok();
    let named = row.exchange.as_ref().map(|name| ExchangeName::new(name).ok());
    let exchange = named.unwrap_or_else(|| Some(usual.clone()));
    let (Some(exchange), Some(key)) = (exchange, key) else { return false };
    topology.route(&exchange, &key).contains(&queue)
}

async fn depth(broker: &Arc<dyn Broker>, service: &ServiceQueue) -> Option<u64> {
    let mut waiting = broker.depth(service.name()).await.ok()?;
    for wait in &service.wait_queues {
        waiting += broker.depth(&wait.name).await.unwrap_or(0);
    }
    Some(waiting)
}

/// Where an event stands for a consumer; nothing if it is not routed there. Applied goes before dead before waiting.
pub(super) fn state(consumer: &Registration, trace: &Trace, log: &[LogEntry]) -> Option<&'static str> {
    let (name, queue) = (consumer.name.as_str(), consumer.service.name());
    if trace.applied.iter().any(|mark| mark.consumer == consumer.inbox().as_str()) {
        return Some("applied");
    }
    let letters = trace.dead_letters.iter().filter(|letter| letter.queue == queue.as_str());
    if let Some(last) = letters.clone().next_back() {
        let pending = |row: &&OutboxStep| {
            row.target_queue.as_deref() == Some(queue.as_str()) && row.status != OutboxStatus::Published
        };
        return Some(match last.status {
            LetterStatus::Open => "dead",
            LetterStatus::Discarded => "discarded",
            LetterStatus::Replayed if is_elsewhere(last, trace) => "sent to another queue",
            LetterStatus::Replayed if trace.outbox.iter().any(|row| pending(&row)) => {
                "replayed, not published yet"
            }
            LetterStatus::Replayed if is_held(trace, name) => HELD,
            LetterStatus::Replayed => PUBLISHED,
        });
    }
    if is_held(trace, name) {
        return Some(HELD);
    }
    if is_discarded(log, queue.as_str()) {
        return Some("discarded");
    }
    let routed = |row: &&OutboxStep| reaches(row, queue, &consumer.topology, &consumer.exchange);
    let too_early = |row: &OutboxStep| {
        row.target_queue.is_none() && row.published_at.is_some_and(|at| consumer.is_later_than(at))
    };
    let rows: Vec<_> = trace.outbox.iter().filter(routed).collect();
    let Some(row) = rows.iter().find(|row| !too_early(row)) else {
        return rows.first().map(|_| EARLIER);
    };
    Some(match row.status {
        OutboxStatus::Published => PUBLISHED,
        OutboxStatus::Dead => "dead in the outbox",
        OutboxStatus::Pending | OutboxStatus::Failed => "not published yet",
    })
}

/// Whether a letter was sent to another queue than its own: then nobody waits for it there any more.
fn is_elsewhere(letter: &LetterSummary, trace: &Trace) -> bool {
    let row = letter.operation_id.map(|operation| format!("replay/{operation}/{}", letter.id));
    let sent = trace.outbox.iter().find(|sent| Some(&sent.row_id) == row.as_ref());
    sent.and_then(|sent| sent.target_queue.as_ref()).is_some_and(|to| *to != letter.queue)
}

fn is_held(trace: &Trace, consumer: &str) -> bool {
    trace.held.iter().any(|held| held.consumer == consumer)
}

/// Whether it was discarded in the queue of its dead letters, as the audit log says, the newest first. By now that leaves a dead letter
/// in the table; it did not always.
fn is_discarded(log: &[LogEntry], queue: &str) -> bool {
    let of_queue = |entry: &&LogEntry| {
        let detail = entry.detail.as_ref();
        detail.is_some_and(|detail| detail["queue"] == queue && detail["in_queue"].is_string())
    };
    log.iter().find(of_queue).is_some_and(|entry| entry.action == "dead_letter.discarded")
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use postrider::settlement::RetryPolicy;
    use postrider::store::{AppliedIn, AppliedStep};
    use postrider::topology::{ConsumerName, ExchangeKind};
    use serde_json::json;

    /// Of a queue that takes everything of this exchange, on a topology of two.
    fn consumer(name: &str, of: &str) -> Registration {
        let [shop, other] = ["shop", "other"].map(|name| ExchangeName::new(name).unwrap());
        let bound = ExchangeName::new(of).unwrap();
        let service = ServiceQueue::new(name, RetryPolicy::default()).unwrap().bind(&bound, "#").unwrap();
        let topology = [&shop, &other].into_iter().fold(Topology::default(), |topology, exchange| {
            topology.exchange(exchange.clone(), ExchangeKind::Topic)
        });
        Registration {
            name: ConsumerName::new(name).unwrap(),
            inbox: None,
            applied_in: AppliedIn::Inbox,
            topology: topology.service(&service),
            service,
            exchange: shop,
            since: None,
            push: None,
        }
    }

    fn published(exchange: Option<&str>) -> Trace {
        let row = OutboxStep {
            row_id: "evt_1".to_owned(),
            tenant: None,
            event_type: "order.placed".to_owned(),
            status: OutboxStatus::Published,
            target_queue: None,
            exchange: exchange.map(str::to_owned),
            routing_key: None,
            created_at: Timestamp::UNIX_EPOCH,
            published_at: Some(Timestamp::UNIX_EPOCH),
            attempts: 0,
            last_error: None,
            replaces: None,
        };
        Trace { outbox: vec![row], ..Trace::default() }
    }

    #[test]
    fn an_event_is_looked_for_where_it_was_published_to() {
        let (usual, others) = (consumer("usual", "shop"), consumer("others", "other"));
        let found = |trace: &Trace| [&usual, &others].map(|one| state(one, trace, &[]));
        assert_eq!(found(&published(None)), [Some(PUBLISHED), None]);
        assert_eq!(found(&published(Some("other"))), [None, Some(PUBLISHED)]);
    }

    #[test]
    fn what_was_published_before_its_queue_was_bound_is_not_waited_for() {
        let mut late = consumer("late", "shop");
        let since = |seconds| Some(Timestamp::UNIX_EPOCH + std::time::Duration::from_secs(seconds));
        late.since = since(60);
        assert_eq!(state(&late, &published(None), &[]), Some(EARLIER));
        // Sent again to its queue, it is.
        let mut again = published(None);
        let replay = OutboxStep { target_queue: Some("late".to_owned()), ..again.outbox[0].clone() };
        again.outbox.push(replay);
        assert_eq!(state(&late, &again, &[]), Some(PUBLISHED));
        // In the first moments clocks may differ, and nobody says so.
        late.since = since(2);
        assert_eq!(state(&late, &published(None), &[]), Some(PUBLISHED));
    }

    #[test]
    fn a_queue_that_nobody_registered_for_is_told_of() {
        let (mine, other) = (consumer("mine", "shop"), consumer("theirs", "other"));
        let services = [mine.service.clone(), other.service.clone()];
        let topology = mine.topology.clone().service(&other.service);
        let found = |trace: &Trace| {
            let services = routed_services(trace, &services, &topology, &mine.exchange);
            services.iter().map(|service| service.name().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(found(&published(None)), ["mine"]);
        assert_eq!(found(&published(Some("other"))), ["theirs"]);
        let mut pending = published(None);
        pending.outbox[0].status = OutboxStatus::Pending;
        assert!(found(&pending).is_empty());
    }

    #[test]
    fn who_shares_an_inbox_has_applied_what_is_in_it() {
        let mut sharing = consumer("new", "shop");
        sharing.inbox = Some(ConsumerName::new("mailer").unwrap());
        let mark = |of: &str| AppliedStep { consumer: of.to_owned(), at: Timestamp::UNIX_EPOCH };
        let trace = Trace { applied: vec![mark("mailer")], ..published(None) };
        assert_eq!(state(&sharing, &trace, &[]), Some("applied"));
        assert_eq!(state(&consumer("old", "shop"), &trace, &[]), Some(PUBLISHED));
    }

    #[test]
    fn what_was_discarded_in_its_queue_is_not_waited_for() {
        let entry = |action: &str, queue: &str| LogEntry {
            at: Timestamp::UNIX_EPOCH,
            actor: "ada".to_owned(),
            action: action.to_owned(),
            subject: "event/evt_1".to_owned(),
            reason: None,
            detail: Some(json!({ "in_queue": format!("{queue}.dlq"), "queue": queue })),
        };
        let discarded = entry("dead_letter.discarded", "raw");
        assert!(is_discarded(std::slice::from_ref(&discarded), "raw"));
        assert!(!is_discarded(std::slice::from_ref(&discarded), "other"));
        // Discarded once, and here again later, by hand.
        assert!(!is_discarded(&[entry("dead_letter.replayed", "raw"), discarded], "raw"));
    }
}
