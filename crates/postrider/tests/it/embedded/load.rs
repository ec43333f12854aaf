//! Many messages through competing consumers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use super::*;

const MANY: usize = 10_000;

/// Each message is acked exactly once, however often it was requeued before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_messages_are_each_settled_once() {
    let post = Post::with(&Topology::default().queue(queue("q"))).await;
    let acked: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
    let done = Arc::new(Notify::new());
    let mut consumers = Vec::new();
    for number in 0..4 {
        let mut subscription = post.subscribe("q", 50).await;
        let (acked, done, clock) = (acked.clone(), done.clone(), post.clock.clone());
        consumers.push(tokio::spawn(async move {
            let settler = subscription.settler();
            loop {
                let mut verdicts = Vec::new();
                let mut bodies = Vec::new();
                for delivery in subscription.next(20 + number).await.unwrap() {
                    if clock.random() < 0.2 {
                        verdicts.push((delivery.receipt, Verdict::Requeue));
                    } else {
                        bodies.push(String::from_utf8(delivery.message.body.to_vec()).unwrap());
                        verdicts.push((delivery.receipt, Verdict::Ack));
                    }
                }
                settler.settle(verdicts).await.unwrap();
                let mut acked = acked.lock().unwrap();
                for body in bodies {
                    *acked.entry(body).or_default() += 1;
                }
                if acked.len() == MANY {
                    done.notify_one();
                }
            }
        }));
    }
    let publishers = (0..4).map(|p| {
        let broker = post.broker.clone();
        tokio::spawn(async move {
            for start in (0..MANY / 4).step_by(50) {
                let batch =
                    (start..start + 50).map(|n| Outgoing::to_queue(&name("q"), message(&format!("{p}-{n}"))));
                assert!(
                    broker
                        .publish(batch.collect())
                        .await
                        .iter()
                        .all(|answer| *answer == Published::Confirmed)
                );
            }
        })
    });
    for publisher in publishers.collect::<Vec<_>>() {
        publisher.await.unwrap();
    }
    tokio::time::timeout(Duration::from_mins(1), done.notified()).await.expect("some never came");
    for consumer in consumers {
        consumer.abort();
    }
    assert!(acked.lock().unwrap().values().all(|times| *times == 1));
    post.reaches_depth("q", 0).await;
    assert_eq!(post.rows("broker_message").await, 0);
}
