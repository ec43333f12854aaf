//! Every message of a batch gets its own answer, and only a confirm means that a queue has it.

use futures_util::future::join_all;
use postrider::broker::{Broker, HeaderValue, Headers, Message, Outgoing, Published};
use postrider::topology::ExchangeKind;

use super::super::until;
use super::{
    BrokerFixture, Listener, confirm, empty, exchange, message, names, pattern, queue, queues, said,
    to_exchange, to_queue,
};

/// Nothing asked, nothing answered.
pub async fn an_empty_batch_is_answered_with_nothing(fixture: &impl BrokerFixture) {
    assert!(fixture.broker().await.publish(Vec::new()).await.is_empty());
}

async fn with_a_shop(fixture: &impl BrokerFixture) -> std::sync::Arc<dyn Broker> {
    let broker = fixture.broker().await;
    let topology = queues(["orders"]).exchange(exchange("shop"), ExchangeKind::Topic).bind(
        exchange("shop"),
        queue("orders"),
        pattern("order.*"),
    );
    broker.declare(&topology).await.unwrap();
    broker
}

/// Every third message has no queue; the answers say which.
pub async fn unroutable_messages_are_returned_in_their_places(fixture: &impl BrokerFixture) {
    every_third_is_returned(fixture, message).await;
}

/// Foreign messages have no id, and still each answer is for its own message.
pub async fn unroutable_messages_without_an_id_are_returned_too(fixture: &impl BrokerFixture) {
    every_third_is_returned(fixture, |name| {
        let mut anonymous = message(name);
        anonymous.properties.message_id = None;
        anonymous
    })
    .await;
}

async fn every_third_is_returned(fixture: &impl BrokerFixture, message: impl Fn(&str) -> Message) {
    let broker = with_a_shop(fixture).await;
    let names = names(300);
    let routable = |n: usize| n % 3 != 1;
    let outgoing = |(n, name): (usize, &String)| {
        to_exchange("shop", if routable(n) { "order.placed" } else { "nobody.cares" }, message(name))
    };
    let answers = broker.publish(names.iter().enumerate().map(outgoing).collect()).await;
    assert_eq!(answers.len(), names.len());
    for (n, answer) in answers.iter().enumerate() {
        let fits = if routable(n) {
            *answer == Published::Confirmed
        } else {
            matches!(answer, Published::Returned(_))
        };
        assert!(fits, "message {n} was answered {answer:?}");
    }
    let arrived: Vec<_> =
        names.iter().enumerate().filter(|(n, _)| routable(*n)).map(|(_, name)| name).collect();
    assert_eq!(empty(&*broker, "orders").await.iter().collect::<Vec<_>>(), arrived);
}

/// The default exchange has nobody for it.
pub async fn a_missing_queue_returns_the_message(fixture: &impl BrokerFixture) {
    let broker = with_a_shop(fixture).await;
    let answers = broker
        .publish(vec![to_queue("nowhere", message("lost")), to_queue("orders", message("found"))])
        .await;
    assert!(matches!(&answers[..], [Published::Returned(_), Published::Confirmed]), "{answers:?}");
}

/// The fault is that message's alone. Its neighbours may have to be published again, as after a lost connection.
pub async fn a_missing_exchange_is_refused_and_its_neighbours_are_not(fixture: &impl BrokerFixture) {
    let broker = with_a_shop(fixture).await;
    let astray = |n: usize| n % 10 == 4;
    let outgoing = |n| {
        let exchange = if astray(n) { "no.such.exchange" } else { "shop" };
        to_exchange(exchange, "order.placed", message(&format!("message-{n}")))
    };
    for (n, answer) in answer_all(&*broker, (0..30).map(outgoing).collect()).await.into_iter().enumerate() {
        match answer {
            Published::Refused(why) => {
                assert!(astray(n), "message {n} was refused: {why}");
                assert!(why.contains("no.such.exchange"), "the exchange is not named in: {why}");
            }
            answer => assert!(!astray(n) && answer == Published::Confirmed, "message {n}: {answer:?}"),
        }
    }
}

/// Publishes until every message has an answer that is final.
async fn answer_all(broker: &dyn Broker, batch: Vec<Outgoing>) -> Vec<Published> {
    let mut answers = vec![None; batch.len()];
    until("an answer for every message", async || {
        let open: Vec<usize> = (0..batch.len()).filter(|n| answers[*n].is_none()).collect();
        let given = broker.publish(open.iter().map(|n| batch[*n].clone()).collect()).await;
        assert_eq!(given.len(), open.len());
        for (n, answer) in open.into_iter().zip(given) {
            if !matches!(answer, Published::Declined(_) | Published::Unknown(_)) {
                answers[n] = Some(answer);
            }
        }
        answers.iter().all(Option::is_some).then_some(())
    })
    .await;
    answers.into_iter().flatten().collect()
}

/// Properties and names of headers have 255 bytes at most, all headers together what one frame holds, and RabbitMQ
/// falls over numbers that are none. What does not fit is told, never cut and never sent.
pub async fn what_no_frame_can_carry_is_refused_and_its_neighbours_are_not(fixture: &impl BrokerFixture) {
    let broker = with_a_shop(fixture).await;
    let long = "x".repeat(256);
    let mut batch = Vec::new();
    let mut add = |name: &str, change: &dyn Fn(&mut Message)| {
        let mut message = message(name);
        change(&mut message);
        batch.push(to_queue("orders", message));
    };
    add("one", &|_| {});
    add("content type", &|message| message.properties.content_type = Some(long.clone()));
    add("two", &|message| message.properties.content_type = Some("x".repeat(255)));
    add("id", &|message| message.properties.message_id = Some(long.clone()));
    add("three", &|message| drop(message.headers.insert("x".repeat(255), long.as_str().into())));
    add("header", &|message| drop(message.headers.insert(long.clone(), 1_i64.into())));
    add("four", &|_| {});
    add("frame", &|message| drop(message.headers.insert("large".to_owned(), "x".repeat(200_000).into())));
    add("five", &|message| drop(message.headers.insert("large".to_owned(), "x".repeat(100_000).into())));
    let deep = Headers::from([(long.clone(), HeaderValue::Null)]);
    let nested = HeaderValue::List(vec![HeaderValue::Table(deep)]);
    add("nested", &|message| drop(message.headers.insert("nested".to_owned(), nested.clone())));
    add("six", &|_| {});
    let endless = HeaderValue::List(vec![HeaderValue::Float(f64::INFINITY)]);
    add("no number", &|message| drop(message.headers.insert("endless".to_owned(), endless.clone())));
    add("seven", &|_| {});
    let answers = answer_all(&*broker, batch).await;
    for (n, answer) in answers.iter().enumerate() {
        let fits = if n % 2 == 0 {
            *answer == Published::Confirmed
        } else {
            matches!(answer, Published::Refused(_) | Published::Unfit(_))
        };
        assert!(fits, "message {n}: {answer:?}");
    }
    assert_eq!(empty(&*broker, "orders").await, ["one", "two", "three", "four", "five", "six", "seven"]);
}

/// One call, one answer each, one order.
pub async fn a_batch_of_5000_keeps_its_order(fixture: &impl BrokerFixture) {
    let broker = with_a_shop(fixture).await;
    let names = names(5_000);
    confirm(&*broker, names.iter().map(|name| to_exchange("shop", "order.placed", message(name))).collect())
        .await;
    let mut listener = Listener::on(&*broker, "orders", 5_000).await;
    let taken = listener.take(names.len()).await;
    assert_eq!(said(&taken), names);
    listener.ack(taken).await;
}

/// Eight publishers at once, each with its own unroutable messages.
pub async fn publishers_side_by_side_get_their_own_answers(fixture: &impl BrokerFixture) {
    let broker = with_a_shop(fixture).await;
    let publishers = (0..8).map(|publisher: usize| {
        let broker = broker.clone();
        tokio::spawn(async move {
            for round in 0..10 {
                let names: Vec<String> = (0..40).map(|n| format!("{publisher}-{round}-{n}")).collect();
                let lost = |n: usize| (n + publisher).is_multiple_of(5);
                let outgoing = |(n, name): (usize, &String)| {
                    to_exchange("shop", if lost(n) { "nobody.cares" } else { "order.placed" }, message(name))
                };
                let answers = broker.publish(names.iter().enumerate().map(outgoing).collect()).await;
                for (n, answer) in answers.iter().enumerate() {
                    let returned = matches!(answer, Published::Returned(_));
                    assert!(
                        returned == lost(n) && (returned || *answer == Published::Confirmed),
                        "{answer:?}"
                    );
                }
            }
        })
    });
    join_all(publishers).await.into_iter().for_each(|ended| ended.unwrap());

    let arrived = empty(&*broker, "orders").await;
    assert_eq!(arrived.len(), 8 * 10 * 32);
    for publisher in 0..8 {
        let own: Vec<_> = arrived.iter().filter(|name| name.starts_with(&format!("{publisher}-"))).collect();
        let number = |name: &str| {
            let numbers: Vec<u32> = name.split('-').map(|n| n.parse().unwrap()).collect();
            numbers[1] * 40 + numbers[2]
        };
        assert!(
            own.windows(2).all(|pair| number(pair[0]) < number(pair[1])),
            "publisher {publisher} lost its order"
        );
    }
}
