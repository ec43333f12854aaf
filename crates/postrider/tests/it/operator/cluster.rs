//! The whole promise at once: a loaded classic queue of a cluster becomes a quorum queue under live traffic, while two of its
//! nodes are killed, one after the other.

use std::sync::Arc;

use postrider_testkit::servers::RabbitCluster;
use tokio::sync::mpsc;

use super::foreign::Pika;
use super::traffic::{Consuming, Publishing, all_seen, ids, publish};
use super::*;

postrider_testkit::on_each_rabbitmq!(a_queue_is_replaced_while_nodes_are_killed);

async fn a_queue_is_replaced_while_nodes_are_killed(version: RabbitVersion) {
    const BEFORE: usize = 20_000;
    let cluster = RabbitCluster::start_version(version).await.unwrap();
    let amqp: Vec<_> = (0..RabbitCluster::NODES).map(|i| cluster.amqp_url(i)).collect();
    let management: Vec<_> = (0..RabbitCluster::NODES).map(|i| cluster.management_url(i)).collect();
    let operator = operator_at(&amqp.join(","), &management.join(","));
    // A classic queue lives on the node it was declared at.
    let home = connect(&amqp[1]).await;
    home.declare(&orders(QueueKind::Classic)).await.unwrap();
    home.close().await;

    let broker = Arc::new(connect(&amqp.join(",")).await);
    publish(&broker, ids("before", BEFORE)).await;
    let publishing = Publishing::start(Arc::clone(&broker), "live");
    let consuming = Consuming::start(Arc::new(connect(&amqp.join(",")).await));
    let pika = Pika::start(&amqp);

    let (told, mut heard) = mpsc::unbounded_channel();
    let replacing = async {
        let plan = operator.plan(&orders(QueueKind::Quorum), false).await.unwrap();
        let tell = move |text: String| {
            eprintln!("{text}");
            let _nobody_listens = told.send(text);
        };
        operator.apply(&plan, Duration::from_mins(2), &tell).await.unwrap();
    };
    let killing = async {
        // The home of the classic queue, while its messages are being moved.
        wait_for(&mut heard, "aside").await;
        kill_and_restart(&cluster, 1).await;
        // Another one, while they are being moved back.
        wait_for(&mut heard, "exchanged").await;
        kill_and_restart(&cluster, 2).await;
    };
    tokio::join!(replacing, killing);
    let (ours, theirs) = (consuming.count(), pika.count());
    let after = publishing.sent();
    while publishing.sent() < after + 1000 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let sent = publishing.stop().await;

    let mut wanted = ids("before", BEFORE);
    wanted.extend(ids("live", sent));
    all_seen(&wanted, &[&consuming.seen, &pika.seen]).await;
    let mut seen = consuming.seen.lock().unwrap().clone();
    seen.extend(pika.seen.lock().unwrap().iter().cloned());
    assert_eq!(seen, wanted, "nothing came that was never published");
    assert!(consuming.count() > ours, "our consumer came back");
    assert!(pika.count() > theirs, "the foreign consumer came back");
    assert_settled(&operator, &orders(QueueKind::Quorum)).await;
}

async fn wait_for(heard: &mut mpsc::UnboundedReceiver<String>, word: &str) {
    while let Some(text) = heard.recv().await {
        if text.contains(word) {
            return;
        }
    }
    panic!("the replacement ended before {word:?}");
}

async fn kill_and_restart(cluster: &RabbitCluster, node: usize) {
    eprintln!("-- killing node {node}");
    cluster.kill(node).unwrap();
    cluster.restart(node).await.unwrap();
    eprintln!("-- node {node} is back");
}
