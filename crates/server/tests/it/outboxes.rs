//! Several outboxes: another table, and another database.

use postrider_testkit::servers::shared;
use rustix::process::Signal;
use serde_json::{Value, json};
use sqlx::{Connection as _, Executor as _, PgConnection};

use super::networked::servers;
use super::process::{Folder, Serving};

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
    let fis = "SELECT postrider.publish('shop.order.paid', '{}', id => 'fis', outbox => 'fis_outbox')";
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
    folder.run(&["outbox", "ls", "--table", "us"]).assert(1, "event_outbox, fis_outbox, eu");
    folder.run(&["outbox", "archive"]).assert(0, "eu");
    over_http(&serving);

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
    let kept = folder.run(&["outbox", "archive", "--json"]);
    assert!(kept.code != 0 && kept.err.contains("eu was not looked after"), "{kept:?}");
    let kept = kept.json();
    assert!(kept[2]["error"].is_string() && kept[1]["removed"] == 0, "{kept}");
    let serving = folder.serve(&["--roles", "api,dashboard"]);
    let health = get(&serving, "/v1/health", 200)["outbox_publisher"].clone();
    let counts = json!({"count": 3, "behind": 0, "unavailable": 1});
    assert_eq!((&health["outboxes"], &health["status"]), (&counts, &json!("partly unavailable")), "{health}");
    let all = get(&serving, "/v1/outboxes", 200);
    assert_eq!(
        (&of(&all, "eu")["status"], &of(&all, "fis_outbox")["status"]),
        (&json!("unavailable"), &json!("ok"))
    );
    let (status, _, page) = serving.http("GET", "/dashboard/outbox?outbox=eu", &[], "");
    assert!(
        status == 200 && page.contains("The database of eu is away") && page.contains("fis_outbox"),
        "{page}"
    );
}

/// Two tenants may use one id, each in an outbox of its own; the story of one has nothing of the other.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_traced_in_every_outbox_and_without_another_tenants() {
    let (folder, database, _vhost) = servers().await;
    folder.write(
        "postrider.toml",
        "[[queue]]\nname = 'billing'\nbind = ['shop.order.*']\n[[outbox.table]]\nname = 'fis_outbox'\nexchange = 'fis'\n\
         routing_key = '{group_id}.{type}'\n",
    );
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    commit(
        &database.url,
        "SELECT postrider.publish('shop.order.placed', '{}', id => 'twin', group_id => 'acme');
         SELECT postrider.publish('shop.order.hidden', '{}', id => 'twin', group_id => 'zeta', outbox => 'public.fis_outbox');
         SELECT postrider.publish('shop.order.paid', '{}', id => 'there', group_id => 'zeta', outbox => 'public.fis_outbox');
         SELECT postrider.publish('shop.order.paid', '{}', id => 'own', exchange => 'bank', routing_key => 'bank.paid',
             outbox => 'public.fis_outbox');
         SELECT postrider.publish('shop.order.paid', '{}', id => 'alone', target_queue => 'billing', outbox => 'public.fis_outbox')",
    )
    .await;
    let steps = |id: &str| {
        folder.run(&["event", "trace", id, "--json"]).assert(0, "").json()["outbox"]
            .as_array()
            .unwrap()
            .clone()
    };
    let [there] = &steps("there")[..] else { panic!("{:?}", steps("there")) };
    assert_eq!(there["event_type"], "shop.order.paid");
    assert_eq!((&there["exchange"], &there["routing_key"]), (&json!("fis"), &json!("zeta.shop.order.paid")));
    let [own] = &steps("own")[..] else { panic!("{:?}", steps("own")) };
    assert_eq!(
        (&own["exchange"], &own["routing_key"]),
        (&json!("bank"), &json!("bank.paid")),
        "what it names itself"
    );
    assert_eq!(steps("alone")[0]["target_queue"], "billing");
    let [twin] = &steps("twin")[..] else { panic!("{:?}", steps("twin")) };
    assert_eq!(twin["event_type"], "shop.order.placed");
    let mut serving = folder.serve(&["--roles", "api,dashboard"]);
    serving.wait_for("serving");
    let (_, _, page) = serving.http("GET", "/dashboard/events/twin", &[], "");
    assert!(page.contains("shop.order.placed") && !page.contains("hidden"), "{page}");
}

fn get(serving: &Serving, path: &str, status: u16) -> Value {
    let (told, _, body) = serving.http("GET", path, &[], "");
    assert_eq!(told, status, "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

/// Routes and pages take an outbox by its label or its table, and say which there are.
fn over_http(serving: &Serving) {
    let all = get(serving, "/v1/outboxes", 200);
    let labels: Vec<_> = all["outboxes"].as_array().unwrap().iter().map(|one| &one["outbox"]).collect();
    assert_eq!(labels, ["event_outbox", "fis_outbox", "eu"]);
    assert_eq!((&of(&all, "eu")["status"], &of(&all, "eu")["due"]), (&json!("ok"), &json!(0)));
    for (query, event) in [("", "here"), ("?outbox=fis_outbox", "fis"), ("?outbox=eu", "there")] {
        assert_eq!(get(serving, &format!("/v1/outbox{query}"), 200)["due"], 0);
        let page = get(serving, &format!("/v1/events{query}"), 200);
        assert_eq!(
            (&page["events"][0]["id"], page["events"].as_array().map(Vec::len)),
            (&json!(event), Some(1))
        );
        assert_eq!(get(serving, &format!("/v1/events/{event}{query}"), 200)["status"], "published");
        let story = get(serving, &format!("/v1/events/{event}/timeline{query}"), 200);
        assert_eq!(story["steps"][0]["place"], "outbox", "{story}");
    }
    for path in ["/v1/outbox?outbox=us", "/v1/events?outbox=us", "/v1/events/here?outbox=us"] {
        let problem = get(serving, path, 404);
        assert_eq!(problem["code"], "not_found", "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("event_outbox, fis_outbox, eu"), "{problem}");
    }
    let unpark = |outbox: &str| {
        let body = json!({"key": "shop.order/1", "outbox": outbox, "reason": "mended"}).to_string();
        serving.http("POST", "/v1/outbox/unpark", &[("content-type", "application/json")], &body)
    };
    let (nothing_dead, no_outbox) = (unpark("eu"), unpark("us"));
    assert_eq!((nothing_dead.0, no_outbox.0), (404, 404));
    assert!(nothing_dead.2.contains("no event of the key shop.order/1 is dead"), "{}", nothing_dead.2);
    assert!(no_outbox.2.contains("event_outbox, fis_outbox, eu"), "{}", no_outbox.2);
}

/// A table that an application made is not taken for one of ours, and whoever meets it says what to do.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_was_not_adopted_says_so_everywhere() {
    const THEIRS: &str = "CREATE TABLE public.event_outbox (id uuid PRIMARY KEY, group_id uuid, subsidiary_id uuid, \
         aggregate_type text NOT NULL, aggregate_id uuid, event_type text NOT NULL, payload jsonb NOT NULL, \
         status text NOT NULL DEFAULT 'pending', available_at timestamptz NOT NULL DEFAULT now(), \
         attempts integer NOT NULL DEFAULT 0, created_at timestamptz NOT NULL DEFAULT now())";
    let (folder, database, _vhost) = servers().await;
    commit(&database.url, THEIRS).await;
    folder.write("postrider.toml", "[[outbox.table]]\nname = 'public.event_outbox'\nlabel = 'theirs'\n");
    let told = "`postrider db adopt public.event_outbox` takes it over";
    folder.run(&["db", "migrate"]).assert(1, told);
    let examined = folder.run(&["doctor"]).assert(3, told);
    assert!(!examined.out.contains("takes it over; run `postrider db migrate`"), "{examined:?}");
    let mut serving = folder.serve(&[]);
    assert!(serving.wait_for("an outbox cannot be read").contains("db adopt public.event_outbox"));
    folder.run(&["db", "adopt", "public.event_outbox"]).assert(0, "");
    folder.run(&["db", "migrate"]).assert(0, "");
    folder.run(&["outbox", "status", "--table", "theirs"]).assert(0, "");
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
