//! Health of a running `serve`: every part by its name, on the embedded default and on real servers.

use serde_json::{Value, json};

use super::networked::servers;
use super::process::{Folder, Serving};

fn health(serving: &Serving) -> (u16, Value) {
    let (status, _, body) = serving.http("GET", "/v1/health", &[], "");
    (status, serde_json::from_str(&body).unwrap())
}

fn all_is_well(folder: &Folder) -> Value {
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let (status, body) = health(&serving);
    assert_eq!((status, &body["status"]), (200, &json!("ok")), "{body}");
    for part in ["store", "migrations", "broker"] {
        assert_eq!(body[part], "ok", "{body}");
    }
    assert_eq!(body["relay"]["status"], "running", "{body}");
    assert_eq!(body["clock"]["status"], "ok", "{body}");
    let publisher = &body["outbox_publisher"];
    assert_eq!((&publisher["status"], &publisher["pending"]), (&json!("ok"), &json!(0)), "{body}");
    assert!(publisher["mode"] == "poll" || publisher["mode"] == "cdc", "{body}");
    body
}

#[test]
fn every_part_is_named_on_the_embedded_default() {
    let body = all_is_well(&Folder::new());
    assert_eq!(body.get("redis"), None, "there is none: {body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_part_is_named_on_real_servers() {
    let (folder, _database, _vhost) = servers().await;
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    let body = all_is_well(&folder);
    assert_eq!(body["redis"], "ok", "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_away_degrades_and_no_more() {
    let (folder, _database, _vhost) = servers().await;
    let folder = folder.with("REDIS_URL", "redis://127.0.0.1:1");
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let (status, body) = health(&serving);
    assert_eq!(
        (status, &body["status"], &body["redis"]),
        (200, &json!("degraded"), &json!("degraded")),
        "{body}"
    );
}
