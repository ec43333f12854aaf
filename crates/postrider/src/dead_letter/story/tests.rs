//! Dead letters of ours, of foreign consumers and of the broker, read from their deliveries.

use super::*;
use crate::broker::{DELIVERY_COUNT, Headers, Receipt};
use crate::settlement::RetryPolicy;
use crate::topology::{ExchangeName, RoutingKey};

const FRESH: Uuid = Uuid::nil();

fn dead(headers: &[(&str, HeaderValue)], id: Option<&str>) -> DeadLetter {
    let mut message = Message { body: "{}".into(), ..Message::default() };
    message.properties.message_id = id.map(str::to_owned);
    message.headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    died(message)
}

fn died(message: Message) -> DeadLetter {
    let delivery = Delivery {
        message,
        exchange: ExchangeName::default_exchange(),
        routing_key: RoutingKey::new("mail.dlq").unwrap(),
        redelivered: false,
        receipt: Receipt { epoch: 0, tag: 0 },
    };
    let service = ServiceQueue::new("mail", RetryPolicy::default()).unwrap();
    letter(delivery, &service, Timestamp::from_second(1_800_000_000).unwrap(), FRESH).1
}

fn x_death(reason: &str, queue: &str, at: u64) -> (&'static str, HeaderValue) {
    let entry: Headers = [
        ("reason".to_owned(), reason.into()),
        ("queue".to_owned(), queue.into()),
        ("exchange".to_owned(), "shop".into()),
        ("routing-keys".to_owned(), HeaderValue::List(vec!["order.placed".into()])),
        ("count".to_owned(), HeaderValue::Int(3)),
        ("time".to_owned(), HeaderValue::Timestamp(at)),
    ]
    .into();
    ("x-death", HeaderValue::List(vec![HeaderValue::Table(entry)]))
}

#[test]
fn a_death_that_the_broker_made_is_told_by_the_broker() {
    for (word, reason) in [
        ("rejected", "foreign_rejected"),
        ("expired", "expired"),
        ("delivery_limit", "delivery_limit"),
        ("maxlen", "maxlen"),
        ("something new", "foreign"),
    ] {
        let letter = dead(&[x_death(word, "mail", 1_700_000_000)], Some("evt_1"));
        assert_eq!((letter.reason.as_str(), letter.queue.as_str()), (reason, "mail"));
        assert_eq!((letter.exchange.as_str(), letter.routing_key.as_str()), ("shop", "order.placed"));
        assert_eq!(letter.dead_at.as_second(), 1_700_000_000);
        assert!(letter.event_id.is_some());
    }
}

#[test]
fn nothing_is_dead_before_its_time() {
    let ahead = [("x-first-failed-at", "2030-01-01T00:00:00Z"), ("x-last-failed-at", "2030-01-01T00:00:01Z")];
    let ours = dead(&ahead.map(|(name, time)| (name, time.into())), Some("evt_1"));
    let theirs = dead(&[x_death("rejected", "mail", 1_900_000_000)], Some("evt_1"));
    for letter in [ours, theirs] {
        let times = [letter.first_failed_at, letter.dead_at].map(Timestamp::as_second);
        assert_eq!(times, [1_800_000_000; 2]);
    }
}

#[test]
fn a_death_that_the_broker_made_is_the_same_when_it_is_delivered_again() {
    let delivered = |headers: &[(&str, HeaderValue)]| dead(headers, Some("evt_1")).key;
    let death = || x_death("rejected", "mail", 1_700_000_000);
    let first = delivered(&[death()]);
    assert_eq!(delivered(&[death(), (DELIVERY_COUNT, HeaderValue::Int(0))]), first);
    assert_eq!(delivered(&[death(), (DELIVERY_COUNT, HeaderValue::Int(3))]), first);
    assert_eq!(delivered(&[death(), ("x-acquired-count", HeaderValue::Int(1))]), first);
    assert_ne!(delivered(&[x_death("rejected", "mail", 1_700_000_001)]), first);
}

#[test]
fn attempts_of_others_are_told_by_their_history_and_not_by_who_looks_at_the_dead_letter() {
    let looked = || (DELIVERY_COUNT, HeaderValue::Int(0));
    let attempts = |headers: &[(&str, HeaderValue)]| dead(headers, Some("evt_1")).attempts;
    assert_eq!(attempts(&[x_death("rejected", "mail", 1_700_000_000), looked()]), 3);
    let counted = (header::RETRY_COUNT, HeaderValue::Int(7));
    assert_eq!(attempts(&[x_death("rejected", "mail", 1_700_000_000), counted, looked()]), 8);
    // Round and round between a queue and its wait queue: the newest entry is not always that of the queue.
    let (_, HeaderValue::List(mut deaths)) = x_death("expired", "mail.wait", 1) else { panic!() };
    let (_, HeaderValue::List(rejected)) = x_death("rejected", "mail", 1) else { panic!() };
    deaths.extend(rejected);
    assert_eq!(attempts(&[("x-death", HeaderValue::List(deaths))]), 3);
    assert_eq!(attempts(&[looked()]), 1);
}

#[test]
fn marks_of_an_earlier_death_do_not_hide_a_later_one() {
    let marks = |failed: &str| {
        [
            (mark::LAST_FAILED_AT, failed.into()),
            (mark::DEAD_REASON, "retries_exhausted".into()),
            (mark::DEAD_LETTER_ID, "first".into()),
            x_death("delivery_limit", "mail", 1_700_000_100),
        ]
    };
    let brought_back = dead(&marks("2023-11-14T22:13:20Z"), Some("evt_1"));
    assert_eq!(brought_back.reason, "delivery_limit");
    assert_ne!(brought_back.key, "first");
    let ours = dead(&marks("2023-11-14T22:30:00Z"), Some("evt_1"));
    assert_eq!((ours.reason.as_str(), ours.key.as_str()), ("retries_exhausted", "first"));
}

#[test]
fn our_own_ladder_is_no_death_of_its_own() {
    let marks = [
        (mark::LAST_FAILED_AT, "2023-11-14T22:13:20Z".into()),
        (mark::DEAD_REASON, "rejected".into()),
        x_death("expired", "mail.wait.5s", 1_700_000_100),
    ];
    assert_eq!(dead(&marks, Some("evt_1")).reason, "rejected");
}

#[test]
fn what_others_gave_up_after_their_retries_died_in_its_queue_and_not_in_its_wait_queue() {
    let history = |reasons: &[(&str, &str)]| {
        let entry = |(word, queue): &(&str, &str)| match x_death(word, queue, 1_700_000_000).1 {
            HeaderValue::List(deaths) => deaths,
            _ => Vec::new(),
        };
        ("x-death", HeaderValue::List(reasons.iter().flat_map(entry).collect()))
    };
    let (waited, rejected) = (("expired", "mail.wait.5s"), ("rejected", "mail"));
    let facts = |letter: &DeadLetter| {
        let DeadLetter { queue, reason, exchange, routing_key, attempts, .. } = letter;
        (
            [queue.as_str(), reason.as_str(), exchange.as_str(), routing_key.as_str()].map(str::to_owned),
            *attempts,
        )
    };
    let told = |queue: &str, reason: &str, exchange: &str, key: &str, attempts: u32| {
        ([queue, reason, exchange, key].map(str::to_owned), attempts)
    };
    let counted = || (header::RETRY_COUNT, HeaderValue::Int(3));
    // It rejected the message into the loop, and published it here in the end.
    let published = dead(&[history(&[waited, rejected]), counted()], Some("evt_1"));
    assert_eq!(facts(&published), told("mail", "foreign_rejected", "shop", "order.placed", 4));
    // The same, with the marks of the event-bus.
    let gave_up = (mark::FINAL_RETRY_COUNT, HeaderValue::Int(10));
    let came_from = (mark::ORIGINAL_QUEUE, "mail".into());
    let marked = dead(&[history(&[waited, rejected]), gave_up, came_from], Some("evt_1"));
    assert_eq!(facts(&marked), told("mail", "retries_exhausted", "shop", "order.placed", 11));
    // It published the message into the loop, too, so that nothing tells where it was first.
    let only_waited = dead(&[history(&[waited]), counted()], Some("evt_1"));
    assert_eq!(facts(&only_waited), told("mail", "foreign", "", "mail.dlq", 4));
}

#[test]
fn twins_without_an_id_are_both_kept() {
    let id = (mark::DEAD_LETTER_ID, "same".into());
    let reason = (mark::DEAD_REASON, "malformed".into());
    let letter = dead(&[id, reason], None);
    assert_eq!((letter.key, letter.event_id), (format!("unidentified/{FRESH}"), None));
}

#[test]
fn a_key_of_any_length_fits_an_index() {
    let marks = [
        (mark::DEAD_LETTER_ID, HeaderValue::Text("x".repeat(100_000))),
        (mark::DEAD_REASON, "rejected".into()),
    ];
    assert!(dead(&marks, Some("evt_1")).key.len() < LONGEST_KEY);
}

#[test]
fn what_is_no_event_keeps_the_half_of_its_identity_that_it_has() {
    let unreadable = || (header::WIRE_FORMAT, HeaderValue::from("morse"));
    let by_property = dead(&[unreadable()], Some("nt-0"));
    assert_eq!(by_property.event_id.as_ref().map(EventId::as_str), Some("nt-0"));
    let by_header = dead(&[unreadable(), (header::EVENT_ID, "nt-1".into())], None);
    assert_eq!(by_header.event_id.as_ref().map(EventId::as_str), Some("nt-1"));
    assert!(by_header.key.starts_with("unidentified/"), "its key is what it ever was");

    // The death of a message with an id has the key that it had before its id was told.
    let marks = |id: &'static str| {
        [unreadable(), (mark::DEAD_REASON, "malformed".into()), (mark::DEAD_LETTER_ID, id.into())]
    };
    assert_eq!(dead(&marks("death"), Some("nt-0")).key, "death/nt-0");

    let mut typed = Message { body: "{\"truncated".into(), ..Message::default() };
    typed.properties.kind = Some("t.coll.x".to_owned());
    let letter = died(typed);
    assert_eq!((letter.event_id, letter.event_type.as_deref()), (None, Some("t.coll.x")));
    let nothing = died(Message::default());
    assert_eq!((nothing.event_id, nothing.event_type.as_deref()), (None, Some("mail.dlq")));
    let long = dead(&[unreadable()], Some(&"x".repeat(10_000)));
    assert_eq!(long.event_id, None, "what is no id is none");
}
