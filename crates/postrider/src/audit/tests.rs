//! Counting queues between which messages move.

use std::collections::HashMap;
use std::sync::Mutex;

use super::*;
use crate::broker::{Outgoing, Published, Subscription};
use crate::settlement::RetryPolicy;
use crate::topology::Topology;

/// Queues with a message that goes to the next place of its way whenever one of them was looked at.
struct Moving {
    depths: Mutex<HashMap<String, u64>>,
    way: Mutex<Vec<(&'static str, &'static str)>>,
}

#[async_trait]
impl Broker for Moving {
    async fn declare(&self, _: &Topology) -> Result<(), BrokerError> {
        Ok(())
    }
    async fn publish(&self, _: Vec<Outgoing>) -> Vec<Published> {
        Vec::new()
    }
    async fn subscribe(&self, _: &QueueName, _: u16) -> Result<Box<dyn Subscription>, BrokerError> {
        Err(BrokerError::new(BrokerErrorKind::NotFound, "nobody subscribes here"))
    }
    async fn depth(&self, queue: &QueueName) -> Result<u64, BrokerError> {
        let mut depths = self.depths.lock().unwrap();
        let depth = depths.get(queue.as_str()).copied();
        if let Some((from, to)) = self.way.lock().unwrap().pop() {
            *depths.get_mut(from).unwrap() -= 1;
            *depths.get_mut(to).unwrap() += 1;
        }
        depth.ok_or_else(|| BrokerError::new(BrokerErrorKind::NotFound, "no such queue"))
    }
    async fn ping(&self) -> Result<(), BrokerError> {
        Ok(())
    }
    async fn close(&self) {}
}

const MAIN: &str = "raw";
const WAIT: &str = "raw.wait.5s";

async fn counted(depths: &[(&str, u64)], way: &[(&'static str, &'static str)]) -> u64 {
    let depths = depths.iter().map(|(queue, depth)| ((*queue).to_owned(), *depth)).collect();
    let way = way.iter().rev().copied().collect();
    let broker: Arc<dyn Broker> = Arc::new(Moving { depths: Mutex::new(depths), way: Mutex::new(way) });
    let service = ServiceQueue::new(MAIN, RetryPolicy::default()).unwrap();
    assert_eq!(service.wait_queues[0].name.as_str(), WAIT);
    in_queues(&broker, &service).await.unwrap()
}

#[tokio::test]
async fn what_moves_between_queues_is_seen_at_least_once() {
    let queues = |main: u64, waiting: u64| [(MAIN, main), (WAIT, waiting)];
    assert_eq!(counted(&queues(1, 1), &[]).await, 2, "where nothing moves, each counts once");
    assert_eq!(counted(&queues(0, 1), &[(WAIT, MAIN)]).await, 1, "before its wait queue was looked at");
    assert!(counted(&queues(1, 0), &[(MAIN, WAIT)]).await >= 1, "behind the one who looks");
    assert!(counted(&queues(1, 1), &[(MAIN, WAIT), (WAIT, MAIN)]).await >= 2, "both at once");
    assert_eq!(counted(&[(MAIN, 3)], &[]).await, 3, "a wait queue that is not there holds nothing");
}
