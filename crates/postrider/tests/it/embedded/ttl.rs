//! Expiring: wait queues and the way back, with time in hand.

use super::dead_letter::deaths;
use super::*;

const DELAY: Duration = Duration::from_secs(5);
const ALMOST: Duration = Duration::from_micros(4_999_999);

/// Rejected messages wait and come back.
fn retrying() -> Topology {
    let (mut main, mut wait) = (queue("main"), queue("wait"));
    main.dead_letter = Some(target("wait"));
    wait.dead_letter = Some(target("main"));
    wait.message_ttl = Some(DELAY);
    Topology::default().queue(main).queue(wait)
}

#[tokio::test]
async fn a_message_waits_its_time_and_comes_back_with_its_deaths_counted() {
    let post = Post::with(&retrying()).await;
    post.fill("main", ["x"]).await;
    let mut main = post.subscribe("main", 1).await;
    for round in 1..=4 {
        let came = take(&mut main, 1).await;
        main.settler().settle(all(came, Verdict::Reject)).await.unwrap();
        assert_eq!(post.depth("wait").await, 1);
        post.hands.advance(ALMOST);
        nothing(&mut main).await;
        post.hands.advance(Duration::from_micros(1));
        let came = take(&mut main, 1).await;
        assert!(!came[0].redelivered);
        assert_eq!(
            deaths(&came[0]),
            [("wait".into(), "expired".into(), round), ("main".into(), "rejected".into(), round)]
        );
        assert_eq!(came[0].message.header("x-first-death-reason"), Some("rejected"));
        let settler = main.settler();
        settler.settle(all(came, Verdict::Requeue)).await.unwrap();
    }
    assert_eq!((post.rows("broker_message").await, post.rows("broker_entry").await), (1, 1));
}

#[tokio::test]
async fn expired_messages_keep_their_order_and_leave_the_young_ones() {
    let post = Post::with(&retrying()).await;
    post.fill("wait", (0..1500).map(|n| n.to_string())).await;
    post.hands.advance(DELAY / 2);
    post.fill("wait", (1500..3000).map(|n| n.to_string())).await;
    post.hands.advance(DELAY / 2);
    let mut main = post.subscribe("main", 0).await;
    let expected: Vec<_> = (0..1500).map(|n| n.to_string()).collect();
    assert_eq!(bodies(&take(&mut main, 1500).await), expected);
    assert_eq!(post.depth("wait").await, 1500);
    post.hands.advance(DELAY / 2);
    let expected: Vec<_> = (1500..3000).map(|n| n.to_string()).collect();
    assert_eq!(bodies(&take(&mut main, 1500).await), expected);
}

#[tokio::test]
async fn what_is_held_does_not_expire_until_it_is_given_back() {
    let post = Post::with(&retrying()).await;
    post.fill("wait", ["held", "left"]).await;
    let mut wait = post.subscribe("wait", 1).await;
    let held = take(&mut wait, 1).await;
    post.hands.advance(DELAY * 2);
    post.reaches_depth("main", 1).await;
    wait.settler().settle(all(held, Verdict::Requeue)).await.unwrap();
    nothing(&mut wait).await;
    post.reaches_depth("main", 2).await;
    assert_eq!(bodies(&take(&mut post.subscribe("main", 2).await, 2).await), ["left", "held"]);
}

#[tokio::test]
async fn time_goes_on_while_nobody_serves() {
    let post = Post::with(&retrying()).await;
    post.fill("wait", ["1", "2"]).await;
    let post = post.reopened().await;
    assert_eq!((post.depth("wait").await, post.depth("main").await), (2, 0));
    post.hands.advance(DELAY);
    post.reaches_depth("main", 2).await;
    let post = post.reopened().await;
    assert_eq!((post.depth("wait").await, post.depth("main").await), (0, 2));
}

#[tokio::test]
async fn without_a_target_expired_messages_are_gone() {
    let mut short = queue("short");
    short.message_ttl = Some(DELAY);
    let post = Post::with(&Topology::default().queue(short)).await;
    post.fill("short", ["1", "2"]).await;
    post.hands.advance(DELAY);
    post.reaches_depth("short", 0).await;
    assert_eq!(post.rows("broker_message").await, 0);
}

#[tokio::test]
async fn a_ring_of_wait_queues_keeps_the_message_and_ends() {
    let (mut one, mut two) = (queue("one"), queue("two"));
    (one.message_ttl, one.dead_letter) = (Some(DELAY), Some(target("two")));
    (two.message_ttl, two.dead_letter) = (Some(DELAY), Some(target("one")));
    let post = Post::with(&Topology::default().queue(one).queue(two)).await;
    post.fill("one", ["x"]).await;
    post.hands.advance(DELAY);
    post.reaches_depth("two", 1).await;
    post.hands.advance(DELAY * 3);
    nothing(&mut post.subscribe("one", 1).await).await;
    assert_eq!((post.depth("one").await, post.depth("two").await), (0, 1));
}

#[tokio::test]
async fn the_machines_clock_wakes_expiry_too() {
    let folder = tempfile::tempdir().unwrap();
    let broker = open(folder.path().join("post.db"), &Clock::system()).await;
    let mut topology = retrying();
    topology.queues[1].message_ttl = Some(Duration::from_millis(100));
    broker.declare(&topology).await.unwrap();
    let mut main = broker.subscribe(&name("main"), 1).await.unwrap();
    broker.publish(vec![Outgoing::to_queue(&name("wait"), message("x"))]).await;
    assert_eq!(bodies(&take(&mut main, 1).await), ["x"]);
}

#[tokio::test]
async fn nobody_waits_longer_because_the_clock_was_set() {
    const LOOK: Duration = Duration::from_secs(1);
    let post = Post::with(&retrying()).await;
    let mut main = post.subscribe("main", 0).await;
    // An hour back: the wait begins anew. And then right again: it is over.
    for (body, shift, looks) in [("before", -3600, 1 + DELAY.as_secs()), ("meanwhile", 0, 1)] {
        post.fill("wait", [body]).await;
        for look in 0..looks {
            while post.hands.next_wake() != Some(LOOK) {
                tokio::task::yield_now().await;
            }
            if look == 0 {
                post.hands.shift(jiff::SignedDuration::from_secs(shift));
            } else {
                assert_eq!(post.depth("wait").await, 1, "nobody leaves before his time");
            }
            post.hands.advance(LOOK);
        }
        assert_eq!(bodies(&take(&mut main, 1).await), [body]);
    }
}
