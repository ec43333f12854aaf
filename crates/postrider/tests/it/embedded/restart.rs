//! Dying in the middle: what was unsettled comes again, what was settled does not.

use std::collections::BTreeSet;

use super::*;

#[tokio::test]
async fn after_a_restart_all_that_was_unsettled_comes_again_in_order() {
    let post = Post::with(&Topology::default().queue(queue("q"))).await;
    post.fill("q", (0..2000).map(|n| n.to_string())).await;
    let mut subscription = post.subscribe("q", 1000).await;
    let came = take(&mut subscription, 1000).await;
    let mut settled = BTreeSet::new();
    let mut verdicts = Vec::new();
    for (n, delivery) in came.into_iter().enumerate() {
        if n % 3 == 0 {
            settled.insert(n);
            verdicts.push((delivery.receipt, Verdict::Ack));
        }
    }
    subscription.settler().settle(verdicts).await.unwrap();
    drop(subscription);
    let post = post.reopened().await;
    let left: Vec<_> = (0..2000).filter(|n| !settled.contains(n)).map(|n| n.to_string()).collect();
    assert_eq!(post.depth("q").await, left.len() as u64);
    let mut subscription = post.subscribe("q", 0).await;
    let again = take(&mut subscription, left.len()).await;
    assert_eq!(bodies(&again), left);
    assert!(again.iter().all(|delivery| delivery.redelivered));
    nothing(&mut subscription).await;
    post.fill("q", ["new"]).await;
    assert!(!take(&mut subscription, 1).await[0].redelivered);
}

#[tokio::test]
async fn a_caller_who_gives_up_leaves_no_disagreement() {
    let post = Post::with(&Topology::default().queue(queue("q"))).await;
    let mut subscription = post.subscribe("q", 0).await;
    // Each publish is given up after another number of polls.
    for polls in 0..50 {
        let batch = vec![Outgoing::to_queue(&name("q"), message(&polls.to_string()))];
        let mut publish = std::pin::pin!(post.broker.publish(batch));
        for _ in 0..polls {
            if futures_util::poll!(&mut publish).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    post.fill("q", ["last"]).await;
    let mut came = Vec::new();
    loop {
        let next = take(&mut subscription, 1).await;
        let done = bodies(&next) == ["last"];
        came.extend(next);
        if done {
            break;
        }
    }
    let distinct: BTreeSet<_> = bodies(&came).into_iter().map(str::to_owned).collect();
    assert_eq!(distinct.len(), came.len());
    subscription.settler().settle(all(came, Verdict::Ack)).await.unwrap();
    assert_eq!((post.depth("q").await, post.rows("broker_message").await), (0, 0));
}

#[tokio::test]
async fn messages_are_delivered_from_the_file_when_memory_is_behind() {
    let post = Post::with(&Topology::default().queue(queue("q"))).await;
    let mut subscription = post.subscribe("q", 10).await;
    // Far more than the window holds, half of it before anything is fetched.
    let many = 6000;
    for chunk in (0..many / 2).collect::<Vec<_>>().chunks(500) {
        post.fill("q", chunk.iter().map(ToString::to_string)).await;
    }
    let mut seen = 0;
    while seen < many {
        if seen == many / 4 {
            post.fill("q", (many / 2..many).map(|n| n.to_string())).await;
        }
        let came = take(&mut subscription, 10).await;
        let expected: Vec<_> = (seen..seen + 10).map(|n| n.to_string()).collect();
        assert_eq!(bodies(&came), expected);
        seen += came.len();
        subscription.settler().settle(all(came, Verdict::Ack)).await.unwrap();
    }
    nothing(&mut subscription).await;
    assert_eq!(post.depth("q").await, 0);
}
