//! Redis in front of the inbox, on a running consumer: what it spares, and what happens when it lies, forgets or is away.

use std::sync::Arc;
use std::time::Duration;

use postrider::dedup::{Accelerator, AcceleratorConfig, Record, Status};
use postrider::envelope::{Payload, wire};
use postrider::handler::{BatchLimits, OutsideHandler, batch_handler_fn};
use postrider::redis::{RedisCache, RedisConfig};
use postrider::registry::Registry;
use postrider::runtime::Running;
use postrider::{Envelope, Event, Failure, Incoming, WireFormat};
use postrider_testkit::effects::Effects;
use postrider_testkit::servers::Redis;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::stage::{CONSUMER, Stage};

/// Redis in front of the stage's consumer, under the keys of the FIS document. Looked for again soon when it was away.
pub(super) async fn in_front<S: Effects>(stage: &mut Stage<S>) -> Redis {
    let redis = Redis::start().await.unwrap();
    let cache = RedisCache::new(RedisConfig::new(redis.url()), RedisCache::TTL);
    let config = AcceleratorConfig {
        limit: Duration::from_millis(500),
        pause: Duration::from_millis(50),
        max_pause: Duration::from_millis(50),
        ..AcceleratorConfig::default()
    };
    stage.accelerator = Some(Accelerator::start(Arc::new(cache), stage.clock.clone(), config).await);
    stage.config.key_prefix = Some("fis".to_owned());
    redis
}

pub(super) fn paid<S>(stage: &Stage<S>, id: &str, amount: &str) -> Envelope {
    let event = Event::new("order.placed").unwrap().id(id).unwrap().tenant("acme").unwrap();
    event.json(&json!({ "amount": amount })).unwrap().into_envelope(&stage.clock)
}

pub(super) async fn deliver<S: Effects>(stage: &Stage<S>, envelope: &Envelope) {
    stage.deliver(wire::encode(envelope, WireFormat::Envelope, 0)).await;
}

/// What Redis has of an event.
pub(super) async fn key(redis: &Redis, id: &str) -> Value {
    let text = redis.cli(&["GET", &format!("fis:ik:acme:{id}")]).await.unwrap();
    serde_json::from_str(&text).unwrap_or(Value::Null)
}

pub(super) async fn until_key<S: Effects>(stage: &Stage<S>, redis: &Redis, id: &str, status: &str) {
    stage.until(async || key(redis, id).await["status"] == status).await;
}

async fn until_duplicates<S: Effects>(stage: &Stage<S>, running: &Running<S>, count: u64) {
    stage.until(async || running.consumers()[0].status.duplicates() == count).await;
}

/// Section 7 of the document, branch by branch; that of a database that is down is among the tests on PostgreSQL.
pub(super) async fn the_flow_of_the_fis_seed<S: Effects>(mut stage: Stage<S>) {
    let redis = in_front(&mut stage).await;
    let running = stage
        .start(|event| match event.envelope.payload.parse::<Value>()?["amount"].as_str() {
            Some("") | None => Err(Failure::permanent("the amount is missing").class("validation")),
            Some(_) => Ok(Vec::new()),
        })
        .await;

    // New: applied, then COMPLETED for 72 hours.
    let first = paid(&stage, "evt_987654321", "1.50");
    deliver(&stage, &first).await;
    until_key(&stage, &redis, "evt_987654321", "COMPLETED").await;
    let record = key(&redis, "evt_987654321").await;
    assert_eq!(record["payloadHash"], first.payload.hash().to_string());
    let ttl: u64 = redis.cli(&["TTL", "fis:ik:acme:evt_987654321"]).await.unwrap().parse().unwrap();
    assert!((259_100..=259_200).contains(&ttl), "{ttl}");

    // Duplicate: acked, nobody is called.
    deliver(&stage, &first).await;
    deliver(&stage, &first).await;
    until_duplicates(&stage, &running, 2).await;
    assert_eq!((stage.effects().await, stage.calls().len()), (1, 1));

    // Conflict: a dead letter, and what was applied stays.
    deliver(&stage, &paid(&stage, "evt_987654321", "9.99")).await;
    let letter = stage.dead_letters(1).await.remove(0);
    assert_eq!(letter.reason, "conflict");
    assert_eq!(key(&redis, "evt_987654321").await["payloadHash"], first.payload.hash().to_string());

    // Validation fails: FAILED, a dead letter.
    deliver(&stage, &paid(&stage, "evt_2", "")).await;
    stage.dead_letters(2).await;
    until_key(&stage, &redis, "evt_2", "FAILED").await;
    // FAILED may be tried again with the same id.
    deliver(&stage, &paid(&stage, "evt_2", "2.00")).await;
    until_key(&stage, &redis, "evt_2", "COMPLETED").await;
    assert_eq!(stage.effects().await, 2);

    // So may a replay of it, which is for the store alone; what became of it is noted.
    deliver(&stage, &paid(&stage, "evt_3", "")).await;
    stage.dead_letters(3).await;
    until_key(&stage, &redis, "evt_3", "FAILED").await;
    let mut again = wire::encode(&paid(&stage, "evt_3", "3.00"), WireFormat::Envelope, 0);
    again.headers.insert("x-replay-id".to_owned(), "by hand".into());
    stage.deliver(again).await;
    until_key(&stage, &redis, "evt_3", "COMPLETED").await;
    assert_eq!(stage.effects().await, 3);
}

/// PROCESSING of somebody who died, COMPLETED of another database, garbage, a key of another type: all ask the store.
pub(super) async fn what_redis_says_is_believed_only_of_this_very_inbox<S: Effects>(mut stage: Stage<S>) {
    let redis = in_front(&mut stage).await;
    let lineage = format!("{}/{CONSUMER}", stage.store.lineage().await.unwrap());
    let record = |status, event: &Envelope, lineage: &str| Record {
        status,
        payload_hash: event.payload.hash().to_string(),
        response_body: None,
        created_at: stage.clock.now(),
        owner: "somebody".to_owned(),
        lease_until: None,
        lineage: lineage.to_owned(),
    };
    let text = |record: Record| String::from_utf8(record.to_bytes()).unwrap();
    let events: Vec<_> = (0..5).map(|number| paid(&stage, &format!("evt_{number}"), "1.00")).collect();
    for (event, value) in events.iter().zip([
        text(record(Status::Processing, &events[0], &lineage)),
        text(record(Status::Completed, &events[1], "another/database/mail")),
        text(record(Status::Failed, &events[2], &lineage)),
        "no record at all".to_owned(),
    ]) {
        redis.cli(&["SET", &format!("fis:ik:acme:{}", event.id), &value]).await.unwrap();
    }
    redis.cli(&["LPUSH", "fis:ik:acme:evt_4", "a list"]).await.unwrap();

    let running = stage.start(|_| Ok(Vec::new())).await;
    for event in &events {
        deliver(&stage, event).await;
    }
    stage.until(async || running.consumers()[0].status.applied() == 5).await;
    assert_eq!(stage.effects().await, 5);
    for event in &events[..4] {
        until_key(&stage, &redis, event.id.as_str(), "COMPLETED").await;
    }
    // What it says of this inbox is believed: a record alone makes a duplicate.
    let unseen = paid(&stage, "evt_9", "1.00");
    let value = text(record(Status::Completed, &unseen, &lineage));
    redis.cli(&["SET", "fis:ik:acme:evt_9", &value]).await.unwrap();
    deliver(&stage, &unseen).await;
    until_duplicates(&stage, &running, 1).await;
    assert_eq!(stage.effects().await, 5);
    // And of another payload of it nothing is.
    deliver(&stage, &paid(&stage, "evt_9", "7.00")).await;
    stage.until(async || running.consumers()[0].status.applied() == 6).await;
}

/// Flushed, full, hung, killed, back again and empty: each event is applied once, and what comes twice is known.
pub(super) async fn whatever_happens_to_redis_each_event_is_applied_once<S: Effects>(mut stage: Stage<S>) {
    let redis = in_front(&mut stage).await;
    let accelerator = stage.accelerator.clone().unwrap();
    let running = stage.start(|_| Ok(Vec::new())).await;
    let (mut events, mut duplicates) = (Vec::new(), 0);
    for (number, trouble) in ["none", "flush", "full", "pause", "kill"].into_iter().enumerate() {
        match trouble {
            "flush" => _ = redis.cli(&["FLUSHALL"]).await.unwrap(),
            "full" => _ = redis.cli(&["CONFIG", "SET", "maxmemory", "1"]).await.unwrap(),
            "pause" => redis.pause().unwrap(),
            "kill" => redis.kill().unwrap(),
            _ => {}
        }
        for part in 0..5 {
            events.push(paid(&stage, &format!("evt_{number}_{part}"), "1.00"));
        }
        let applied = events.len();
        // Those from before are duplicates now, whether Redis knows them or not.
        for event in &events {
            deliver(&stage, event).await;
        }
        duplicates += applied as u64 - 5;
        let status = &running.consumers()[0].status;
        stage.until(async || status.applied() == applied as u64 && status.duplicates() == duplicates).await;
        match trouble {
            "full" => _ = redis.cli(&["CONFIG", "SET", "maxmemory", "0"]).await.unwrap(),
            "pause" => {
                stage
                    .until(async || {
                        accelerator.is_degraded() || {
                            deliver(&stage, &events[0]).await;
                            duplicates += 1;
                            false
                        }
                    })
                    .await;
                redis.resume().unwrap();
            }
            "kill" => {
                stage
                    .until(async || {
                        accelerator.is_degraded() || {
                            deliver(&stage, &events[0]).await;
                            duplicates += 1;
                            false
                        }
                    })
                    .await;
                redis.restart().await.unwrap();
            }
            _ => {}
        }
        stage.until(async || !accelerator.is_degraded()).await;
    }
    until_duplicates(&stage, &running, duplicates).await;
    assert_eq!((stage.effects().await, stage.calls().len()), (25, 25));
}

/// Somebody who sends an event again on purpose means it: a note in Redis does not decide.
pub(super) async fn a_replayed_event_asks_the_store<S: Effects>(mut stage: Stage<S>) {
    let redis = in_front(&mut stage).await;
    let running = stage.start(|_| Ok(Vec::new())).await;
    let lineage = format!("{}/{CONSUMER}", stage.store.lineage().await.unwrap());
    let event = paid(&stage, "evt_1", "1.00");
    let record = Record {
        status: Status::Completed,
        payload_hash: event.payload.hash().to_string(),
        response_body: None,
        created_at: stage.clock.now(),
        owner: String::new(),
        lease_until: None,
        lineage,
    };
    let value = String::from_utf8(record.to_bytes()).unwrap();
    redis.cli(&["SET", "fis:ik:acme:evt_1", &value]).await.unwrap();
    let mut message = wire::encode(&event, WireFormat::Envelope, 0);
    message.headers.insert("x-replay-id".to_owned(), "op/1".into());
    stage.deliver(message).await;
    stage.until(async || running.consumers()[0].status.applied() == 1).await;
    assert_eq!(stage.effects().await, 1);
}

/// In the inbox with the effects, and in Redis; a duplicate that asks the store brings it back there.
pub(super) async fn a_handlers_answer_is_kept<S: Effects>(mut stage: Stage<S>) {
    let redis = in_front(&mut stage).await;
    let running = stage
        .start(|event| {
            event.answer(r#"{"entry":4711}"#);
            Ok(Vec::new())
        })
        .await;
    let event = paid(&stage, "evt_1", "1.00");
    for round in 0..2 {
        deliver(&stage, &event).await;
        until_key(&stage, &redis, "evt_1", "COMPLETED").await;
        assert_eq!(key(&redis, "evt_1").await["responseBody"], r#"{"entry":4711}"#, "round {round}");
        redis.cli(&["FLUSHALL"]).await.unwrap();
    }
    until_duplicates(&stage, &running, 1).await;
    let mut tx = stage.store.begin().await.unwrap();
    let arrival = postrider::store::Arrival {
        event_id: event.id.clone(),
        tenant: None,
        payload_hash: Payload::json(&json!({ "amount": "1.00" })).unwrap().hash(),
    };
    let consumer = postrider::topology::ConsumerName::new(CONSUMER).unwrap();
    let told = stage.store.admit(&mut tx, &consumer, &[arrival]).await.unwrap();
    let answer = bytes::Bytes::from_static(br#"{"entry":4711}"#);
    assert_eq!(told, [postrider::store::Admission::Duplicate(Some(answer))]);
    stage.store.rollback(tx).await.unwrap();
}

/// The second of two in one batch is noted with what the first was answered.
pub(super) async fn a_repeat_in_a_batch_does_not_take_the_answer_away<S: Effects>(mut stage: Stage<S>) {
    let redis = in_front(&mut stage).await;
    let answering = batch_handler_fn::<S, _>(|_, events| {
        Box::pin(async move {
            for event in events {
                event.answer(r#"{"entry":4711}"#);
            }
            Ok(())
        })
    });
    // Nobody is called before both are there.
    let limits = BatchLimits { max_size: 2, max_wait: Duration::from_mins(1) };
    let running = stage.start_with(Registry::new().on_batch("#", limits, answering)).await;
    let event = paid(&stage, "evt_1", "1.00");
    deliver(&stage, &event).await;
    deliver(&stage, &event).await;
    until_duplicates(&stage, &running, 1).await;
    until_key(&stage, &redis, "evt_1", "COMPLETED").await;
    // Notes are written in their order: when this one is, so are both.
    for id in ["evt_2", "evt_3"] {
        deliver(&stage, &paid(&stage, id, "1.00")).await;
    }
    until_key(&stage, &redis, "evt_3", "COMPLETED").await;
    assert_eq!(key(&redis, "evt_1").await["responseBody"], r#"{"entry":4711}"#);
}

/// Answers every event, outside of the database.
struct Answering;

impl OutsideHandler for Answering {
    async fn handle(&self, event: &Incoming, _: &CancellationToken) -> Option<Result<(), Failure>> {
        event.answer(r#"{"entry":4711}"#);
        Some(Ok(()))
    }
}

/// Of a handler that works outside: in Redis, and in the inbox when Redis has forgotten.
pub(super) async fn what_answers_outside_is_kept_too<S: Effects>(mut stage: Stage<S>) {
    let redis = in_front(&mut stage).await;
    let running = stage.start_with(Registry::new().on_outside("#", Answering)).await;
    let event = paid(&stage, "evt_1", "1.00");
    for round in 0..2 {
        deliver(&stage, &event).await;
        until_key(&stage, &redis, "evt_1", "COMPLETED").await;
        assert_eq!(key(&redis, "evt_1").await["responseBody"], r#"{"entry":4711}"#, "round {round}");
        redis.cli(&["FLUSHALL"]).await.unwrap();
    }
    until_duplicates(&stage, &running, 1).await;
}
