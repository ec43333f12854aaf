//! Topology as declarations. What exists with other settings is named, and left as it is. Policies are not set here: AMQP
//! has no word for them.

use std::time::Duration;

use super::desk::Desk;
use super::line::Line;
use crate::broker::BrokerError;
use crate::topology::{QueueName, Topology};

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
