//! Topology as declarations. What exists with other settings is named, and left as it is. Policies are not set here: AMQP
//! has no word for them.

use std::time::Duration;

use super::desk::Desk;
use super::line::Line;
use crate::broker::{BrokerError, BrokerErrorKind, Removal};
use crate::topology::{Binding, QueueName, Topology};

/// Declares exchanges and queues, then binds. All that cannot be declared is reported together, and then nothing is bound.
pub(super) async fn declare(line: &Line, topology: &Topology, limit: Duration) -> Result<(), BrokerError> {
    let mut desk = Desk::new(line, limit);
    let mut refused = Vec::new();
    for exchange in topology.exchanges.iter().filter(|exchange| !exchange.name.is_default()) {
        if let Err(error) = desk.exchange(exchange).await {
            refused.push(error);
        }
    }
    for queue in &topology.queues {
        if let Err(error) = desk.queue(queue).await {
            refused.push(error);
        }
    }
    if refused.is_empty() {
        // Every queue is bound to the default exchange by its name already.
        for binding in topology.bindings.iter().filter(|binding| !binding.exchange.is_default()) {
            if let Err(error) = desk.bind(binding).await {
                refused.push(error);
            }
        }
    }
    desk.close().await;
    together(refused)
}

/// How many messages wait in a queue.
pub(super) async fn depth(line: &Line, queue: &QueueName, limit: Duration) -> Result<u64, BrokerError> {
    let mut desk = Desk::new(line, limit);
    let seen = desk.look(queue.as_str()).await?;
    desk.close().await;
    Ok(seen.ready)
}

/// Whether a queue has consumers.
pub(super) async fn is_attended(
    line: &Line,
    queue: &QueueName,
    limit: Duration,
) -> Result<bool, BrokerError> {
    let mut desk = Desk::new(line, limit);
    let seen = desk.look(queue.as_str()).await?;
    desk.close().await;
    Ok(seen.consumers > 0)
}

/// Takes bindings away. RabbitMQ has nothing against unbinding what is not bound; older ones want both ends to be there.
pub(super) async fn unbind(line: &Line, bindings: &[Binding], limit: Duration) -> Result<(), BrokerError> {
    let mut desk = Desk::new(line, limit);
    let mut refused = Vec::new();
    for binding in bindings {
        match desk.unbind(binding).await {
            Err(error) if error.kind != BrokerErrorKind::NotFound => refused.push(error),
            _ => {}
        }
    }
    desk.close().await;
    together(refused)
}

/// Removes queues, then exchanges. AMQP's own "only if unused" is not known to quorum queues, so each queue is looked at first; a
/// message that comes in the moment between goes with the queue, and the error says so.
pub(super) async fn remove(line: &Line, removal: &Removal, limit: Duration) -> Result<(), BrokerError> {
    let mut desk = Desk::new(line, limit);
    let removed = remove_at(&mut desk, removal).await;
    desk.close().await;
    removed
}

async fn remove_at(desk: &mut Desk<'_>, removal: &Removal) -> Result<(), BrokerError> {
    let mut there = Vec::new();
    for queue in &removal.queues {
        match desk.look(queue.as_str()).await {
            Ok(seen) if removal.only_unused && (seen.ready > 0 || seen.consumers > 0) => {
                let text = format!(
                    "queue {queue:?} is in use (messages: {}, consumers: {}); nothing was removed",
                    seen.ready, seen.consumers
                );
                return Err(BrokerError::new(BrokerErrorKind::InUse, text));
            }
            Ok(_) => there.push(queue),
            Err(error) if error.kind == BrokerErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    for queue in there {
        let lost = desk.delete_queue(queue.as_str()).await?;
        if removal.only_unused && lost > 0 {
            let text = format!(
                "queue {queue:?} is removed; {lost} messages came at the last moment and went with it: somebody publishes there still"
            );
            return Err(BrokerError::new(BrokerErrorKind::InUse, text));
        }
    }
    for exchange in &removal.exchanges {
        // Deleting what is not there is fine to RabbitMQ.
        desk.delete_exchange(exchange.as_str(), removal.only_unused).await?;
    }
    Ok(())
}

/// One error out of several: the kind of the gravest (one that waiting will not mend), the text of all.
fn together(mut refused: Vec<BrokerError>) -> Result<(), BrokerError> {
    if refused.is_empty() {
        return Ok(());
    }
    let first = refused.iter().position(|error| !error.is_transient()).unwrap_or(0);
    let mut error = refused.swap_remove(first);
    for other in refused {
        error.message.push_str("\nand ");
        error.message.push_str(&other.message);
    }
    Err(error)
}
