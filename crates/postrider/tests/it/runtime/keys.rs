//! The value of an idempotency key, as any other client of Redis reads it: from inside the handler, and after it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use postrider::Failure;
use postrider::dedup::AcceleratorConfig;
use postrider::handler::handler_fn;
use postrider::registry::Registry;
use postrider_testkit::effects::Effects;
use postrider_testkit::servers::Redis;
use serde_json::Value;

use super::idempotency::{deliver, in_front, key, paid, until_key};
use super::stage::Stage;

/// What is left of a time to live that was set anew just now.
const THREE_DAYS: std::ops::RangeInclusive<u64> = 259_100..=259_200;

async fn ttl(redis: &Redis, id: &str) -> u64 {
    redis.cli(&["TTL", &format!("fis:ik:acme:{id}")]).await.unwrap().parse().unwrap()
}

fn time(value: &Value) -> Timestamp {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{value} is no time"))
}

fn members(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

pub(super) async fn what_a_plain_client_reads_at_every_step<S: Effects>(mut stage: Stage<S>) {
    let redis = Arc::new(in_front(&mut stage).await);
    let seen = Arc::new(Mutex::new(BTreeMap::new()));
    let (client, noted) = (redis.clone(), seen.clone());
    let handler = handler_fn::<S, _>(move |_, event| {
        let (client, noted) = (client.clone(), noted.clone());
        Box::pin(async move {
            let id = event.envelope.id.as_str();
            let (value, left) = (key(&client, id).await, ttl(&client, id).await);
            noted
                .lock()
                .unwrap()
                .insert((id.to_owned(), event.envelope.payload.hash().to_string()), (value, left));
            let name = format!("fis:ik:acme:{id}");
            // So that a time to live that is set anew shows, and a key that is made anew.
            let words = if id == "evt_gone" { vec!["DEL", &name] } else { vec!["EXPIRE", &name, "100"] };
            client.cli(&words).await.map_err(Failure::transient)?;
            if event.envelope.payload.parse::<Value>()?["amount"] == "" {
                return Err(Failure::permanent("the amount is missing").class("validation"));
            }
            event.answer(r#"{"entry":4711}"#);
            Ok(())
        })
    });
    let began = stage.clock.now();
    let running = stage.start_with(Registry::new().on("order.placed", handler)).await;
    let in_hand = |event: &postrider::Envelope| {
        let seen = seen.lock().unwrap();
        seen.get(&(event.id.to_string(), event.payload.hash().to_string()))
            .cloned()
            .expect("it was not handled")
    };

    // PROCESSING, with who has it and until when.
    let first = paid(&stage, "evt_1", "1.50");
    deliver(&stage, &first).await;
    until_key(&stage, &redis, "evt_1", "COMPLETED").await;
    let (value, left) = in_hand(&first);
    assert_eq!(members(&value), ["createdAt", "leaseUntil", "lineage", "owner", "payloadHash", "status"]);
    assert_eq!(
        (&value["status"], &value["payloadHash"]),
        (&"PROCESSING".into(), &first.payload.hash().to_string().into())
    );
    assert!(value["payloadHash"].as_str().unwrap().starts_with("sha256:"));
    assert!(value["owner"].as_str().unwrap().ends_with(&format!("/{}", std::process::id())), "{value}");
    let created = time(&value["createdAt"]);
    assert!((began..=stage.clock.now()).contains(&created), "{value}");
    let lease = AcceleratorConfig::default().lease;
    assert_eq!(
        Duration::try_from(time(&value["leaseUntil"]).duration_since(created)).unwrap(),
        lease,
        "{value}"
    );
    assert!(THREE_DAYS.contains(&left), "{left}");
    // COMPLETED, with the answer, for three days from then on.
    let value = key(&redis, "evt_1").await;
    let names = ["createdAt", "leaseUntil", "lineage", "owner", "payloadHash", "responseBody", "status"];
    assert_eq!(members(&value), names);
    assert_eq!((&value["responseBody"], &value["leaseUntil"]), (&r#"{"entry":4711}"#.into(), &Value::Null));
    assert_eq!(value["payloadHash"], first.payload.hash().to_string());
    assert!(THREE_DAYS.contains(&ttl(&redis, "evt_1").await));

    // FAILED, without an answer, for three days too; and the same id may come again.
    let bad = paid(&stage, "evt_2", "");
    deliver(&stage, &bad).await;
    until_key(&stage, &redis, "evt_2", "FAILED").await;
    let value = key(&redis, "evt_2").await;
    assert_eq!(members(&value), ["createdAt", "leaseUntil", "lineage", "owner", "payloadHash", "status"]);
    assert!(THREE_DAYS.contains(&ttl(&redis, "evt_2").await));
    let letter = stage.dead_letters(1).await.remove(0);
    assert_eq!(letter.error_class.as_deref(), Some("validation"));
    let good = paid(&stage, "evt_2", "2.00");
    deliver(&stage, &good).await;
    until_key(&stage, &redis, "evt_2", "COMPLETED").await;
    assert_eq!(in_hand(&good).0["status"], "FAILED", "who tries again finds what was noted");
    let value = key(&redis, "evt_2").await;
    assert_eq!(value["payloadHash"], good.payload.hash().to_string());
    assert!(THREE_DAYS.contains(&ttl(&redis, "evt_2").await));

    // A key that vanished meanwhile is not made by a note. Notes are written in their order.
    for (id, applied) in [("evt_gone", 3), ("evt_3", 4)] {
        deliver(&stage, &paid(&stage, id, "1.00")).await;
        stage.until(async || running.consumers()[0].status.applied() == applied).await;
    }
    until_key(&stage, &redis, "evt_3", "COMPLETED").await;
    assert_eq!(key(&redis, "evt_gone").await, Value::Null);
}
