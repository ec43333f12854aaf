//! Several outboxes: another table, and another database.

use postrider_testkit::servers::shared;
use rustix::process::Signal;
use serde_json::{Value, json};
use sqlx::{Connection as _, Executor as _, PgConnection};

use super::networked::servers;
use super::process::Folder;

async fn commit(url: &str, sql: &'static str) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    connection.execute(sqlx::raw_sql(sql)).await.unwrap();
}

fn of<'a>(status: &'a Value, outbox: &str) -> &'a Value {
    let outboxes = status["outboxes"].as_array().unwrap();
    outboxes.iter().find(|found| found["outbox"] == outbox).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_two_databases_are_relayed_accounted_for_and_sent_again() {
    let (folder, database, _vhost) = servers().await;
    let eu = shared().unwrap().database().await.unwrap();
    let config = format!(
        "[[exchange]]\nname = 'eu.events'\n\
         [[queue]]\nname = 'billing'\nbind = ['shop.order.*', 'eu.events:eu.shop.#']\n[[consumer]]\nname = 'billing'\n\
         [[outbox.table]]\nname = 'fis_outbox'\n\
         [[outbox.table]]\nname = 'postrider.event_outbox'\nlabel = 'eu'\nurl = '{}'\nexchange = 'eu.events'\n\
         routing_key = 'eu.{{type}}'\nformat = 'bare'\n",
        eu.url
    );
    folder.write("postrider.toml", &config);
    let migrated = folder.run(&["db", "migrate"]).assert(0, "made the outbox fis_outbox");
    assert!(migrated.err.contains("for eu"), "{migrated:?}");

    folder.run(&["publish", "shop.order.placed", "--data", "{}", "--id", "here"]).assert(0, "");
    let fis = "SELECT postrider.publish('shop.order.paid', '{}', id => 'fis', outbox => 'public.fis_outbox')";
    commit(&database.url, fis).await;
    commit(&eu.url, "SELECT postrider.publish('shop.order.sent', '{}', id => 'there')").await;
    let status = folder.run(&["outbox", "status", "--json"]).assert(0, "").json();
    for outbox in ["event_outbox", "fis_outbox", "eu"] {
        assert_eq!(of(&status, outbox)["due"], 1, "{status}");
    }
    assert_eq!(status["due"], 1, "the first is told as it always was");
    let account = |code| folder.run(&["audit", "--json"]).assert(code, "").json()["consumers"][0].clone();
    let counts =
        |found: &Value| (found["committed"].clone(), found["waiting"].clone(), found["dead"].clone());
    assert_eq!(counts(&account(0)), (json!(3), json!(3), json!(0)), "nothing is published yet");

    let mut serving = folder.serve(&[]);
    serving.wait_for_metric("postrider_relay_published_total 3");
    assert_eq!(counts(&account(0)), (json!(3), json!(3), json!(0)), "all wait in the queue");
    serving.wait_for_metric("postrider_outbox_due{outbox=\"eu\"} 0");
    let shown = folder.run(&["outbox", "show", "there", "--table", "eu", "--json"]).assert(0, "").json();
    assert_eq!(shown["status"], "published");
    folder.run(&["outbox", "ls", "--table", "fis_outbox"]).assert(0, "shop.order.paid");
    folder.run(&["outbox", "ls", "--table", "us"]).assert(2, "event_outbox, fis_outbox, eu");
    folder.run(&["outbox", "archive"]).assert(0, "eu");

    let again = ["--aggregate-type", "shop.order", "--from", "1h", "--to", "2999-01-01T00:00:00Z", "--yes"];
    let replay = |table: &str, more: &[&str]| {
        folder.run(&[&["outbox", "replay", "--table", table][..], &again, more].concat())
    };
    replay("eu", &["--reapply"]).assert(2, "another database");
    replay("eu", &[]).assert(0, "1 done");
    replay("fis_outbox", &["--to-queue", "billing"]).assert(0, "1 done");
    serving.wait_for_metric("postrider_relay_published_total 5");
    let operations = folder.run(&["ops", "ls", "--json"]).assert(0, "").json();
    assert_eq!(operations.as_array().unwrap().len(), 2, "of both databases");
    folder.run(&["ops", "get", operations[1]["id"].as_str().unwrap()]).assert(0, "done");

    // A shard that is gone keeps nobody from seeing the others.
    serving.signal(Signal::TERM);
    serving.wait_for("stopped");
    eu.close().await.unwrap();
    let status = folder.run(&["outbox", "status", "--json"]).assert(3, "").json();
    assert!(of(&status, "eu")["error"].is_string() && of(&status, "fis_outbox")["due"] == 0, "{status}");
}

#[test]
fn outboxes_that_cannot_be_are_refused_before_anything_is_touched() {
    let folder = Folder::new();
    for (table, said) in [
        ("name = 'a b'", "no name for an outbox table"),
        ("name = 'x'\n[[outbox.table]]\nname = 'x'", "give this one a label of its own"),
        ("name = 'x'\n[[outbox.table]]\nname = 'public.x'", "name it once"),
        ("name = 'x'\nlabel = 'a b'", "is no label"),
        ("name = 'x'\nurl = 'mysql://x'", "expected postgres://"),
        ("name = 'x'\nrouting_key = 'eu.{id}'", "no template for routing keys"),
        ("name = 'x'\nformat = 'xml'", "xml"),
    ] {
        folder.write("postrider.toml", &format!("[[outbox.table]]\n{table}\n"));
        folder.run(&["outbox", "status"]).assert(2, said);
    }
    folder.write("postrider.toml", "[[outbox.table]]\nname = 'x'\n");
    folder.run(&["outbox", "status"]).assert(1, "the embedded default has one outbox");
}
