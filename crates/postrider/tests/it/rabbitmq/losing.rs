//! Losing the server: kill -9, restart, blocked connections.

use super::*;
use postrider_testkit::servers::RabbitCluster;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Mutex;

postrider_testkit::on_each_rabbitmq!(
    a_killed_node_loses_nothing_that_was_confirmed,
    with_several_nodes_the_next_one_takes_over,
    a_server_that_hangs_is_left_and_found_again,
    closed_connections_are_made_again,
);

/// Publishes `total` events in batches on several lanes until each is confirmed, as a relay does.
async fn publish_all(broker: &RabbitMq, total: usize, published: &AtomicUsize) {
    let next = AtomicUsize::new(0);
    let lanes = (0..4).map(|_| async {
        loop {
            let from = next.fetch_add(100, Ordering::SeqCst);
            if from >= total {
                break;
            }
            let mut left: Vec<Outgoing> =
                (from..from + 100).map(|i| event(&format!("{i}"), "events", "order.created")).collect();
            while !left.is_empty() {
                let answers = broker.publish(left.clone()).await;
                let done = confirmed(&answers);
                published.fetch_add(done, Ordering::SeqCst);
                let open = |a: &Published| matches!(a, Published::Declined(_) | Published::Unknown(_));
                assert!(
                    answers.iter().all(|a| *a == Published::Confirmed || open(a)),
                    "an outage is no fault of a message: {answers:?}"
                );
                left = left
                    .into_iter()
                    .zip(answers)
                    .filter(|(_, a)| *a != Published::Confirmed)
                    .map(|(o, _)| o)
                    .collect();
                if done == 0 {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    });
    futures_util::future::join_all(lanes).await;
}

/// Receives and acks until all of `total` were seen.
async fn consume_all(broker: &RabbitMq, total: usize, seen: &Mutex<HashSet<String>>) {
    let mut subscription = broker.subscribe(&queue_name("orders"), 200).await.unwrap();
    let settler = subscription.settler();
    while seen.lock().await.len() < total {
        let deliveries = tokio::time::timeout(Duration::from_mins(1), subscription.next(50)).await;
        let deliveries = deliveries.expect("not wedged").unwrap();
        seen.lock().await.extend(deliveries.iter().map(|d| id_of(&d.message)));
        ack(&*settler, deliveries).await;
    }
}

async fn a_killed_node_loses_nothing_that_was_confirmed(version: RabbitVersion) {
    const TOTAL: usize = 10_000;
    let server = Server::start_version(version).await.unwrap();
    let broker = Arc::new(RabbitMq::connect(quick(&server.amqp_url(), 5), Clock::system()).await.unwrap());
    broker.declare(&orders()).await.unwrap();
    server.wait_registered("orders").await.unwrap();
    let (published, seen) = (AtomicUsize::new(0), Mutex::new(HashSet::new()));
    let crash = async {
        for at in [TOTAL / 4, TOTAL / 2] {
            while published.load(Ordering::SeqCst) < at {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            server.kill().unwrap();
            server.restart().await.unwrap();
        }
    };
    let work = async {
        tokio::join!(publish_all(&broker, TOTAL, &published), consume_all(&broker, TOTAL, &seen), crash)
    };
    tokio::time::timeout(Duration::from_mins(2), work).await.expect("not wedged");
    assert_eq!(seen.lock().await.len(), TOTAL);
    assert_eq!(published.load(Ordering::SeqCst), TOTAL);
}

async fn with_several_nodes_the_next_one_takes_over(version: RabbitVersion) {
    const TOTAL: usize = 4_000;
    let cluster = RabbitCluster::start_version(version).await.unwrap();
    let urls = (0..3).map(|i| cluster.amqp_url(i)).collect::<Vec<_>>().join(",");
    let broker = RabbitMq::connect(quick(&urls, 10), Clock::system()).await.unwrap();
    broker.declare(&orders()).await.unwrap();
    cluster.wait_registered("orders").await.unwrap();
    let (published, seen) = (AtomicUsize::new(0), Mutex::new(HashSet::new()));
    let crash = async {
        while published.load(Ordering::SeqCst) < TOTAL / 4 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        cluster.kill(0).unwrap();
    };
    let work = async {
        tokio::join!(publish_all(&broker, TOTAL, &published), consume_all(&broker, TOTAL, &seen), crash)
    };
    tokio::time::timeout(Duration::from_mins(2), work).await.expect("not wedged");
    assert_eq!(seen.lock().await.len(), TOTAL);
}

async fn a_server_that_hangs_is_left_and_found_again(version: RabbitVersion) {
    let server = Server::start_version(version).await.unwrap();
    let mut config = quick(&server.amqp_url(), 2);
    config.heartbeat = Duration::from_secs(1);
    let broker = RabbitMq::connect(config, Clock::system()).await.unwrap();
    broker.declare(&orders()).await.unwrap();
    assert_eq!(confirmed(&broker.publish(vec![event("1", "events", "order.a")]).await), 1);
    server.pause().unwrap();
    let threads = threads();
    for _ in 0..4 {
        let answers = broker.publish(vec![event("2", "events", "order.a")]).await;
        assert!(matches!(answers[0], Published::Unknown(_)), "{answers:?}");
    }
    assert!(broker.ping().await.unwrap_err().is_transient());
    assert!(threads_now() <= threads + 4, "every attempt left a thread: {threads} to {}", threads_now());
    server.resume().unwrap();
    tokio::time::timeout(Duration::from_secs(30), async {
        while confirmed(&broker.publish(vec![event("3", "events", "order.a")]).await) == 0 {}
    })
    .await
    .expect("comes back");
    let ids = drain(&broker, "orders").await;
    assert!(ids.contains("1") && ids.contains("3"), "{ids:?}");
}

fn threads() -> usize {
    threads_now()
}

fn threads_now() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

async fn closed_connections_are_made_again(version: RabbitVersion) {
    let server = Server::start_version(version).await.unwrap();
    let broker = connect(&server.amqp_url()).await;
    broker.declare(&orders()).await.unwrap();
    let mut subscription = broker.subscribe(&queue_name("orders"), 10).await.unwrap();
    let settler = subscription.settler();
    assert_eq!(confirmed(&broker.publish(vec![event("1", "events", "order.a")]).await), 1);
    let before = soon(&mut *subscription, 1).await;
    server.ctl(&["close_all_connections", "--vhost", "/", "an operator"]).await.unwrap();
    // The receipt from before is void, and the message comes again.
    let again = soon(&mut *subscription, 1).await;
    assert!(again[0].redelivered);
    ack(&*settler, before).await;
    ack(&*settler, again).await;
    assert_eq!(confirmed(&broker.publish(vec![event("2", "events", "order.a")]).await), 1);
    let second = soon(&mut *subscription, 1).await;
    assert_eq!(id_of(&second[0].message), "2");
    ack(&*settler, second).await;
    drop(subscription);
    assert!(drain(&broker, "orders").await.is_empty());
}
