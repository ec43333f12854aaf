//! The end of a migration between buses: the old one is removed, and nobody misses it or brings it back.

use serde_json::json;

use super::migration::{CONFIG, carried_out, post, standing, until};
use super::networked::servers;
use super::process::Folder;

/// The old exchange and queue go, by a request.
fn is_removed_over_http(folder: &Folder) {
    folder.write("postrider.toml", CONFIG);
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    assert_eq!(post(&serving, "/v1/migrations", &json!({})).0, 201);
    let forced = json!({ "force": true, "reason": "nobody ever used it" });
    assert_eq!(post(&serving, "/v1/migrations/old-bus/cutover", &json!({ "force": true })).0, 422);
    assert_eq!(post(&serving, "/v1/migrations/old-bus/cutover", &forced).0, 200);
    until(folder, "settling", |standing| standing["settled"] == true);
    let done = carried_out(
        &serving,
        post(&serving, "/v1/migrations/old-bus/finish", &json!({ "reason": "week 4" })),
        || {},
    );
    assert_eq!((&done["state"], &done["reason"]), (&json!("done"), &json!("week 4")), "{done}");
    assert_eq!(standing(folder)["phase"], "finished");
    assert_eq!(post(&serving, "/v1/migrations/old-bus/rollback", &json!({})).0, 409);
    // Nobody misses it, though the preset still has it: an apply would bring it back.
    let (_, _, drift) = serving.http("GET", "/v1/topology/drift", &[], "");
    assert!(drift.contains("\"drifted\":false"), "{drift}");
    let doctor = folder.run(&["doctor"]).assert(0, "topology");
    assert!(!doctor.out.contains("are not there"), "{}", doctor.out);
}

#[test]
fn an_old_bus_that_nobody_uses_is_removed_over_http() {
    is_removed_over_http(&Folder::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_bus_that_nobody_uses_is_removed_over_http_on_servers() {
    let (folder, _database, vhost) = servers().await;
    let folder = folder.with("RABBITMQ_MANAGEMENT_URL", &vhost.management_url);
    folder.run(&["db", "migrate"]).assert(0, "applied");
    is_removed_over_http(&folder);
    folder.run(&["topology", "drift"]).assert(0, "has what it should have");
    folder.run(&["topology", "plan"]).assert(0, "nothing to do");
    folder.run(&["topology", "apply", "--yes"]).assert(0, "nothing to do");
}
