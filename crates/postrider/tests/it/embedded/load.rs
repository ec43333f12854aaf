//! Many messages through competing consumers, and how fast.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
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

/// Run by hand, in release: `cargo test --release -p postrider --test it embedded::load::speed -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, not a test"]
async fn speed() {
    for (size, batch, many) in
        [(256, 100, 200_000), (1024, 100, 200_000), (1024, 500, 200_000), (1024, 1, 10_000)]
    {
        let post = Post::with(&Topology::default().queue(queue("q"))).await;
        let clock = Clock::system();
        let mut tasks = Vec::new();
        for _ in 0..4 {
            tasks.push(tokio::spawn(publish(post.broker.clone(), size, batch, many / 4)));
        }
        let (left, done) = (Arc::new(AtomicU32::new(many)), Arc::new(Notify::new()));
        for _ in 0..2 {
            tokio::spawn(consume(post.subscribe("q", 1000).await, left.clone(), done.clone()));
        }
        for task in tasks {
            task.await.unwrap();
        }
        let published = clock.monotonic().as_secs_f64();
        done.notified().await;
        let both = clock.monotonic().as_secs_f64();
        let rate = |seconds: f64| f64::from(many) / seconds;
        println!(
            "{size} bytes, batches of {batch}: published {:.0}/s, published and consumed {:.0}/s",
            rate(published),
            rate(both)
        );
    }
}

async fn publish(broker: EmbeddedBroker, size: usize, batch: u32, many: u32) {
    for _ in 0..many / batch {
        let message = Message { body: vec![b'x'; size].into(), ..message("id") };
        let outgoing = (0..batch).map(|_| Outgoing::to_queue(&name("q"), message.clone()));
        assert!(
            broker.publish(outgoing.collect()).await.iter().all(|answer| *answer == Published::Confirmed)
        );
    }
}

async fn consume(mut subscription: Box<dyn Subscription>, left: Arc<AtomicU32>, done: Arc<Notify>) {
    let settler = subscription.settler();
    loop {
        let came = subscription.next(500).await.unwrap();
        let count = u32::try_from(came.len()).unwrap();
        settler.settle(all(came, Verdict::Ack)).await.unwrap();
        if left.fetch_sub(count, Ordering::SeqCst) == count {
            done.notify_one();
        }
    }
}
