//! Messages whose own headers leave no room for ours, on every backend: none is lost, and none is tried for ever.

use std::time::Duration;

use postrider::Failure;
use postrider::broker::{Message, Outgoing, Published};
use postrider::settlement::RetryPolicy;
use postrider::topology::QueueName;
use postrider_testkit::effects::Effects;

use super::stage::{CONSUMER, Stage};

/// What every broker agrees to.
const FRAME: usize = 128 << 10;

/// Puts a message into the queue with headers that leave so much of a frame free; how long its filling is.
async fn deliver<S: Effects>(stage: &Stage<S>, id: &str, free: usize) -> usize {
    let mut message = Message { body: "{}".into(), ..Message::default() };
    message.properties.message_id = Some(id.to_owned());
    message.properties.kind = Some("order.placed".to_owned());
    // A queue that is not there tells what fits and takes nothing.
    let nowhere = QueueName::new("nowhere").unwrap();
    for length in (0..FRAME).rev() {
        message.headers.insert("filling".to_owned(), "x".repeat(length).into());
        let probe = Outgoing::to_queue(&nowhere, message.clone());
        if matches!(&stage.broker.publish(vec![probe]).await[..], [Published::Unfit(_)]) {
            continue;
        }
        let filling = length - free;
        message.headers.insert("filling".to_owned(), "x".repeat(filling).into());
        stage.deliver(message).await;
        return filling;
    }
    panic!("no message is small enough");
}

pub(super) async fn what_leaves_no_room_is_a_dead_letter_with_all_of_its_headers<S: Effects>(
    mut stage: Stage<S>,
) {
    stage.retry = RetryPolicy::fixed(10, Duration::from_millis(50));
    let running = stage.start(|_| Err(Failure::transient("smtp is down"))).await;
    let filling = deliver(&stage, "evt_full", 0).await;
    let letter = stage.dead_letters(1).await.remove(0);
    assert_eq!(letter.event_id.as_ref().unwrap().as_str(), "evt_full");
    assert_eq!((letter.reason.as_str(), letter.attempts), ("unfit", 1));
    assert!(letter.error.starts_with("smtp is down; it cannot wait for another attempt"), "{}", letter.error);
    let kept = letter.headers.get("filling").and_then(|value| value.as_str()).map(str::len);
    assert_eq!(kept, Some(filling), "nothing of what it came with is missing");
    assert_eq!(letter.queue.as_str(), CONSUMER);
    assert_eq!(stage.broker.depth(&QueueName::new(CONSUMER).unwrap()).await.unwrap(), 0, "it is acked");
    assert_eq!(running.consumers()[0].status.dead(), 1);
}

pub(super) async fn what_leaves_little_room_is_tried_as_often_as_any_other<S: Effects>(mut stage: Stage<S>) {
    stage.retry = RetryPolicy::fixed(10, Duration::from_millis(50));
    let _running = stage.start(|_| Err(Failure::transient("smtp is down, and has been for a while"))).await;
    // Enough for the count and for what a broker adds itself, too little for the history of ten attempts.
    let filling = deliver(&stage, "evt_tight", 1400).await;
    let letter = stage.dead_letters(1).await.remove(0);
    assert_eq!((letter.reason.as_str(), letter.attempts), ("retries_exhausted", 11));
    assert_eq!(stage.calls().len(), 11);
    let kept = letter.headers.get("filling").and_then(|value| value.as_str()).map(str::len);
    assert_eq!(kept, Some(filling));
}
