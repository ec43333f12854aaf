//! What each finding makes of the whole.

use std::time::Duration;

use postrider::store::Backlog;
use serde_json::{Value, json};

use super::*;

const WELL: Pings = Pings { store: StoreWord::Ok, broker: true, redis: None };

fn figures() -> Figures {
    let backlog = Backlog { due: 3, later: 1, ..Backlog::default() };
    let oldest_pending = Duration::from_millis(1500);
    Figures {
        backlog,
        oldest_pending,
        each: vec![Some(oldest_pending)],
        streamed: false,
        skew: Duration::ZERO,
    }
}

fn told(pings: Pings, figures: &Figures, consumers: Consuming) -> Value {
    let health = Health::of(pings, Some(figures), &Relaying::Elsewhere, consumers, &Feeds::Elsewhere);
    serde_json::to_value(health).unwrap()
}

#[test]
fn each_part_has_a_word_and_the_outbox_publisher_its_figures() {
    let body = told(WELL, &figures(), Consuming { running: 2, paused: 1, ..Consuming::default() });
    assert_eq!(
        body,
        json!({
            "status": "ok", "store": "ok", "migrations": "ok", "broker": "ok",
            "clock": {"status": "ok", "skew_ms": 0},
            "outbox_publisher": {"status": "ok", "mode": "poll", "pending": 3, "scheduled": 1, "dead": 0,
                                 "parked_keys": 0, "oldest_pending_seconds": 1.5},
            "relay": {"status": "elsewhere"},
            "consumers": {"status": "ok", "running": 2, "paused": 1, "tripped": 0, "unsubscribed": 0},
        })
    );
}

#[test]
fn what_can_be_done_without_degrades_and_what_cannot_is_unavailable() {
    let nobody = Consuming::default();
    let late = Figures { oldest_pending: Duration::from_secs(61), ..figures() };
    let skewed = Figures { skew: Duration::from_secs(61), ..figures() };
    let word = |body: Value| body["status"].as_str().unwrap().to_owned();
    for (redis, said, reason) in [
        (CacheHealth::Ok, "ok", Value::Null),
        (CacheHealth::Away, "degraded", Value::Null),
        (CacheHealth::Full, "degraded", json!("full: new keys are refused")),
    ] {
        let body = told(Pings { redis: Some(redis), ..WELL }, &figures(), nobody);
        assert_eq!(
            (&body["redis"], &body["status"], &body["redis_reason"]),
            (&json!(said), &json!(said), &reason)
        );
    }
    assert_eq!(word(told(WELL, &late, nobody)), "degraded");
    assert_eq!(word(told(WELL, &skewed, nobody)), "degraded");
    assert_eq!(word(told(WELL, &figures(), Consuming { tripped: 1, ..nobody })), "degraded");
    assert_eq!(word(told(WELL, &figures(), Consuming { unsubscribed: 1, ..nobody })), "degraded");
    for pings in [
        Pings { broker: false, ..WELL },
        Pings { store: StoreWord::OtherSchema, ..WELL },
        Pings { store: StoreWord::Unavailable, ..WELL },
    ] {
        assert_eq!(word(told(pings, &figures(), nobody)), "unavailable");
    }
}

#[test]
fn of_several_outboxes_it_says_how_many_do_not_keep_up_and_how_many_are_away() {
    let each = vec![Some(Duration::ZERO), Some(Duration::from_secs(61)), None];
    let body = told(WELL, &Figures { each, ..figures() }, Consuming::default());
    let publisher = &body["outbox_publisher"];
    assert_eq!(publisher["outboxes"], json!({"count": 3, "behind": 1, "unavailable": 1}));
    assert_eq!((&publisher["status"], &body["status"]), (&json!("partly unavailable"), &json!("degraded")));
}

#[test]
fn the_ledger_is_a_part_where_it_runs_and_degrades_while_the_broker_gives_it_nothing() {
    let told = |ledger: &Feeds| {
        let health = Health::of(WELL, Some(&figures()), &Relaying::Elsewhere, Consuming::default(), ledger);
        serde_json::to_value(health).unwrap()
    };
    assert_eq!(told(&Feeds::Elsewhere).get("ledger"), None);
    let nothing = json!({"status": "starting", "posted": 0, "duplicates": 0, "refused": 0});
    assert_eq!(
        (&told(&Feeds::Starting)["ledger"], &told(&Feeds::Starting)["status"]),
        (&nothing, &json!("ok"))
    );
    let body = told(&Feeds::Here(std::sync::Arc::default()));
    assert_eq!((&body["ledger"]["status"], &body["status"]), (&json!("disconnected"), &json!("degraded")));
}
