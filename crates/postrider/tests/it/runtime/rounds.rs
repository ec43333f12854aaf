//! Dead letters that the store refuses, and replays that come back.

use std::sync::atomic::Ordering;

use postrider::broker::{Message, Outgoing, Published};
use postrider::operation::LetterPlan;
use postrider::store::LetterFilter;
use postrider::topology::QueueName;
use postrider_testkit::effects::Effects;

use super::stage::Stage;
use super::triage::{failing, letters, placed, replay};

/// Whatever batch it is in.
pub(super) async fn a_letter_that_the_store_refuses_stays_and_its_neighbours_are_collected<S: Effects>(
    stage: Stage<S>,
) {
    stage.store.refuse_a_letter(true).await.unwrap();
    let _running = stage.start(|_| Ok(Vec::new())).await;
    let dead = QueueName::new("mail.dlq").unwrap();
    let ids = (0..40).map(|number| if number == 17 { "refused".to_owned() } else { format!("evt_{number}") });
    let messages = ids.map(|id| {
        let mut message = Message { body: "{}".into(), ..Message::default() };
        message.properties.message_id = Some(id);
        Outgoing::to_queue(&dead, message)
    });
    let answers = stage.broker.publish(messages.collect()).await;
    assert!(answers.iter().all(|answer| *answer == Published::Confirmed), "{answers:?}");
    let collected = letters(&stage, LetterFilter::open(), 39).await;
    assert!(!format!("{collected:?}").contains("refused"), "{collected:?}");
}

/// Sent to the queue that it was collected from, a letter comes back as another one that says so. Each round is somebody's
/// decision; nothing goes round by itself.
pub(super) async fn replays_that_go_round_in_a_circle_end<S: Effects>(stage: Stage<S>) {
    let (_running, mended) = failing(&stage).await;
    stage.commit(placed()).await;
    letters(&stage, LetterFilter::open(), 1).await;
    let circle = LetterPlan { to_queue: Some(QueueName::new("mail.dlq").unwrap()), ..LetterPlan::default() };
    for round in 1..=3 {
        replay(&stage, &circle).await;
        let open = letters(&stage, LetterFilter::open(), 1).await;
        let all = letters(&stage, LetterFilter::default(), round + 1).await;
        assert_eq!(all.iter().filter(|letter| letter.id == open[0].id).count(), 1);
    }
    mended.store(true, Ordering::SeqCst);
    let home = LetterPlan { to_queue: Some(QueueName::new("mail").unwrap()), ..LetterPlan::default() };
    replay(&stage, &home).await;
    stage.until(async || stage.effects().await == 1).await;
    letters(&stage, LetterFilter::open(), 0).await;
}
