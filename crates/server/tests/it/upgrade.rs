//! Old and new binaries side by side: the schema of the next version, and this binary still at work on it.

use rustix::process::Signal;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

use super::networked::servers;

/// What a next version might add: a column to every table that is written by many, a table, an index, a function.
const NEXT: &str = "ALTER TABLE postrider.event_outbox ADD COLUMN next_version text DEFAULT 'x'; \
     ALTER TABLE postrider.event_inbox ADD COLUMN next_version text; \
     ALTER TABLE postrider.dead_letter ADD COLUMN next_version text; \
     ALTER TABLE postrider.outbox_slot ADD COLUMN next_version text; \
     ALTER TABLE postrider.outbox ADD COLUMN next_version text; \
     ALTER TABLE postrider.consumer ADD COLUMN next_version text; \
     ALTER TABLE postrider.held_event ADD COLUMN next_version text; \
     ALTER TABLE postrider.operation ADD COLUMN next_version text; \
     CREATE TABLE postrider.next_version (id bigint PRIMARY KEY); \
     CREATE INDEX next_version_index ON postrider.event_inbox (next_version)";

async fn execute(url: &str, sql: String) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    connection.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap();
}

fn migration(works_with: &str) -> String {
    format!(
        "INSERT INTO postrider.schema_version (version, name, checksum, works_with) \
         SELECT max(version) + 1, 'next', 'x', {works_with} FROM postrider.schema_version"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_binary_goes_on_while_the_next_version_migrates() {
    let (folder, database, _vhost) = servers().await;
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let publish = |id: &str| {
        let event = format!(r#"{{"type":"shop.order.placed","data":{{}},"id":"{id}"}}"#);
        let (status, told) = serving.post_event(&[], &event);
        assert_eq!(status, 202, "{told}");
    };
    publish("evt_1");
    serving.wait_for_metric("postrider_relay_published_total 1");

    execute(&database.url, format!("{NEXT}; {}", migration("max(version)"))).await;
    publish("evt_2");
    serving.wait_for_metric("postrider_relay_published_total 2");
    let (status, _, health) = serving.http("GET", "/v1/health", &[], "");
    assert_eq!(status, 200, "{health}");
    // One that is started now, too, and every command beside it.
    let mut beside = folder.serve(&[]);
    beside.wait_for("serving");
    let rows = folder.run(&["db", "status", "--json"]);
    assert!(rows.out.contains("unknown"), "{rows:?}");
    folder.run(&["publish", "shop.order.placed", "--data", "{}", "--id", "evt_3"]).assert(0, "evt_3");
    let audit = folder.run(&["audit", "--json"]).assert(0, "").json();
    assert_eq!(audit["consumers"][0]["committed"], 3);
    folder.run(&["dlq", "groups"]).assert(0, "");
    folder.run(&["doctor"]).assert(0, "");
    beside.signal(Signal::TERM);
    assert_eq!(beside.ended().0, 0);
    assert_eq!(folder.run(&["event", "trace", "evt_2"]).code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_breaks_with_this_one_is_refused() {
    let (folder, database, _vhost) = servers().await;
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    execute(&database.url, migration("max(version) + 1")).await;
    folder.run(&["serve"]).assert(1, "upgrade the binary");
    folder.run(&["db", "migrate"]).assert(1, "upgrade the binary");
    folder.run(&["publish", "shop.order.placed", "--data", "{}"]).assert(1, "upgrade the binary");
    execute(&database.url, "UPDATE postrider.schema_version SET works_with = NULL".to_owned()).await;
    folder.run(&["serve"]).assert(1, "upgrade the binary");
}
