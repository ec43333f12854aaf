//! Pull: what a worker says of a delivery is settled as if a handler had said it.

use std::time::Duration;

use postrider::Event;
use postrider::pull::{Leased, PullDesk, PullHandler, Verdict};
use postrider::registry::Registry;
use postrider::settlement::RetryPolicy;
use postrider::topology::{ConsumerName, QueueName};
use postrider_testkit::effects::Effects;

use super::stage::{CONSUMER, Stage};

const LONG: Duration = Duration::from_mins(1);

async fn lease(desk: &PullDesk) -> Leased {
    desk.lease(1, LONG, LONG).await.pop().expect("a delivery within a minute")
}

fn applied<S: Effects>(stage: &Stage<S>) -> (S, ConsumerName) {
    (stage.store.clone(), ConsumerName::new(CONSUMER).unwrap())
}

fn order(number: &str) -> Event {
    Event::new("order.placed").unwrap().aggregate_id(number).unwrap()
}

pub(super) async fn a_worker_acks_retries_and_rejects<S: Effects>(stage: Stage<S>) {
    let stage = Stage {
        config: PullDesk::consumer_config(),
        retry: RetryPolicy::fixed(1, Duration::from_millis(50)),
        ..stage
    };
    let desk = PullDesk::new(stage.clock.clone());
    let running = stage
        .start_with(Registry::new().on_outside("#", PullHandler::new(desk.clone(), applied(&stage))))
        .await;
    stage.commit(order("ack")).await;
    let leased = lease(&desk).await;
    desk.settle(&leased.token, Verdict::Ack).unwrap();
    stage.account(&running, |account| account.applied == 1 && account.holds()).await;

    let retried = stage.commit(order("retry")).await;
    for attempt in 1..=2 {
        let leased = lease(&desk).await;
        assert_eq!((&leased.event.envelope.id, leased.event.attempt), (&retried, attempt));
        let verdict = Verdict::Retry { reason: "the printer is out of paper".to_owned(), after: None };
        desk.settle(&leased.token, verdict).unwrap();
    }
    let letter = stage.dead_letters(1).await.remove(0);
    assert_eq!((letter.reason.as_str(), letter.attempts), ("retries_exhausted", 2));
    assert!(letter.error.contains("out of paper"), "{letter:?}");

    let rejected = stage.commit(order("reject")).await;
    let leased = lease(&desk).await;
    desk.settle(&leased.token, Verdict::Reject { reason: "no such customer".to_owned() }).unwrap();
    let letters = stage.dead_letters(2).await;
    let letter = letters.iter().find(|letter| letter.event_id.as_ref() == Some(&rejected)).unwrap();
    assert_eq!((letter.reason.as_str(), letter.error_class.as_deref()), ("rejected", Some("worker")));
}

pub(super) async fn an_expired_lease_gives_the_delivery_back_as_the_same_attempt<S: Effects>(
    stage: Stage<S>,
) {
    let stage = Stage { config: PullDesk::consumer_config(), ..stage };
    let desk = PullDesk::new(stage.clock.clone());
    let running = stage
        .start_with(Registry::new().on_outside("#", PullHandler::new(desk.clone(), applied(&stage))))
        .await;
    let id = stage.commit(order("1")).await;
    let first = desk.lease(1, Duration::from_millis(20), LONG).await.pop().unwrap();
    let again = lease(&desk).await;
    assert_eq!((&again.event.envelope.id, again.event.attempt), (&id, 1));
    assert!(desk.settle(&first.token, Verdict::Ack).is_err(), "the first lease is over");
    desk.settle(&again.token, Verdict::Ack).unwrap();
    stage.account(&running, |account| account.applied == 1 && account.holds()).await;
}

pub(super) async fn what_nobody_settled_goes_back_to_the_queue<S: Effects>(stage: Stage<S>) {
    let stage = Stage { config: PullDesk::consumer_config(), ..stage };
    let desk = PullDesk::new(stage.clock.clone());
    let running = stage
        .start_with(Registry::new().on_outside("#", PullHandler::new(desk.clone(), applied(&stage))))
        .await;
    let id = stage.commit(order("1")).await;
    let left = lease(&desk).await;
    assert!(running.finish(LONG).await);
    assert!(desk.settle(&left.token, Verdict::Ack).is_err());

    let desk = PullDesk::new(stage.clock.clone());
    let running = stage
        .start_with(Registry::new().on_outside("#", PullHandler::new(desk.clone(), applied(&stage))))
        .await;
    let Some(again) = desk.lease(1, LONG, LONG).await.pop() else {
        // None: still with the subscription that ended. One: with nobody.
        let ready = stage.broker.depth(&QueueName::new(CONSUMER).unwrap()).await;
        panic!("it did not come again; {ready:?} are ready in the queue");
    };
    assert_eq!((&again.event.envelope.id, again.event.attempt), (&id, 1));
    desk.settle(&again.token, Verdict::Ack).unwrap();
    stage.account(&running, |account| account.applied == 1 && account.holds()).await;
}
