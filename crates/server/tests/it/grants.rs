//! The roles of `postrider db grants`: each does its real work, and can do no more.

use std::process::Command;

use postrider::Clock;
use postrider_testkit::receiver::{Receiver, Reply};
use postrider_testkit::servers::TestDatabase;

use super::networked::servers;
use super::process::Folder;

pub(super) fn psql(url: &str, args: &[&str]) -> (bool, String) {
    let mut psql = Command::new("psql");
    psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", url]).args(args);
    let ran = psql.output().unwrap();
    let said = [ran.stdout, ran.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    (ran.status.success(), said)
}

/// Another user of the same database.
fn as_user(database: &TestDatabase, user: &str) -> String {
    database.url.replace("postgres@", &format!("{user}@"))
}

/// Every table of the schema, but for partitions.
const TABLES: &str = "SELECT relname FROM pg_class WHERE relnamespace = 'postrider'::regnamespace AND relkind IN ('r', 'p') \
                      AND NOT relispartition ORDER BY 1";

#[tokio::test(flavor = "multi_thread")]
async fn each_role_does_its_work_and_no_more() {
    let (folder, database, vhost) = servers().await;
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    // A further outbox in a schema of its own, which the ledger tells of entries through.
    for made in ["CREATE SCHEMA fis", "SELECT postrider.create_outbox('fis', 'fis_outbox')"] {
        let (done, said) = psql(&database.url, &["-c", made]);
        assert!(done, "{said}");
    }
    let prefix = format!("pr_{}", &Clock::system().new_id().simple().to_string()[16..]);
    let sql = folder.run(&["db", "grants", "--prefix", &prefix]).assert(0, "").out;
    folder.write("grants.sql", &sql);
    let file = folder.path().join("grants.sql").display().to_string();
    for time in ["first", "second"] {
        let (done, said) = psql(&database.url, &["-f", &file]);
        assert!(done, "{time}: {said}");
    }
    // The outbox's rows are named by their tables; of the rest somebody says who may use it.
    let (_, tables) = psql(&database.url, &["-c", TABLES]);
    for table in tables.lines().filter(|table| *table != "event_outbox") {
        assert!(sql.contains(&format!("postrider.{table}")), "db grants does not say who may use {table}");
    }
    let role = |part: &str| format!("{prefix}_{part}");
    for part in ["migrator", "producer", "relay", "consumer", "ledger", "dashboard"] {
        let (done, said) =
            psql(&database.url, &["-c", &format!("CREATE ROLE {0}_login LOGIN IN ROLE {0}", role(part))]);
        assert!(done, "{said}");
    }
    let url = |part: &str| as_user(&database, &format!("{}_login", role(part)));
    work(&database, &vhost.amqp_url, &url).await;
    walls(&url);
    let (done, said) = psql(&database.url, &["-c", &format!("DROP OWNED BY {}", role("relay"))]);
    assert!(done, "{said}");
}

async fn work(database: &TestDatabase, amqp: &str, url: &dyn Fn(&str) -> String) {
    let endpoint = Receiver::start(|request, _| match request.header("x-aggregate-id") {
        "bad" => Reply::status(422),
        _ => Reply::status(200),
    })
    .await;
    let config = format!(
        "[egress]\nallow = ['127.0.0.1', 'http']\n[[queue]]\nname = 'billing'\nbind = ['shop.order.*']\n\
         [[push]]\nname = 'erp'\nqueue = 'billing'\nurl = '{}'\n",
        endpoint.url()
    );
    let run_as = |part: &str| {
        let folder = Folder::new().with("DATABASE_URL", &url(part)).with("RABBITMQ_URL", amqp);
        folder.write("postrider.toml", &config);
        folder
    };
    // The migrator finds its work done, and may do more of it.
    run_as("migrator").run(&["db", "migrate"]).assert(0, "the schema is up to date");
    run_as("migrator").run(&["outbox", "archive"]).assert(0, "");
    let elsewhere = run_as("migrator");
    elsewhere.write("postrider.toml", &format!("{config}[[outbox.table]]\nname = 'fis.fis_outbox'\n"));
    elsewhere.run(&["outbox", "archive"]).assert(0, "");
    let (_, made) = psql(
        &database.url,
        &[
            "-c",
            "SELECT to_regclass('fis.fis_outbox_default'), count(*) > 1 FROM pg_inherits WHERE inhparent = 'fis.fis_outbox'::regclass",
        ],
    );
    assert!(made.contains("|t"), "partitions of an outbox beside the schema are made ahead: {made}");
    // A service commits by one function.
    let publish = "SELECT postrider.publish('shop.order.placed', '{}', aggregate_id => 'bad', id => 'evt_1')";
    let (done, said) = psql(&url("producer"), &["-c", publish]);
    assert!(done && said.contains("evt_1"), "{said}");
    let publish = "BEGIN; SELECT postrider.publish('shop.order.placed', '{}', id => 'evt_fis', outbox => 'fis_outbox'); ROLLBACK";
    let (done, said) = psql(&url("producer"), &["-c", publish]);
    assert!(done && said.contains("evt_fis"), "also into an outbox beside the schema: {said}");
    // What unparking a key does, and what the story of an event of another outbox reads.
    for statement in [
        "UPDATE postrider.event_outbox SET status = 'failed', attempts = 1, available_at = now() WHERE false",
        "UPDATE postrider.outbox_slot SET epoch = epoch + 1 WHERE false",
        "SELECT created_at FROM fis.fis_outbox_id",
    ] {
        let (done, said) = psql(&url("dashboard"), &["-c", statement]);
        assert!(done, "{statement}: {said}");
    }

    let (relays, consumers, api) = (run_as("relay"), run_as("consumer"), run_as("dashboard"));
    let mut relay = relays.start(&["serve", "--roles", "relay"]);
    relay.wait_for("serving");
    let mut consumer = consumers.start(&["serve", "--roles", "collector,push,progress"]);
    consumer.wait_for("serving");
    let mut dashboard = api.serve(&["--roles", "api"]);
    dashboard.wait_for("serving");
    let (status, told) = dashboard
        .post_event(&[], r#"{"type":"shop.order.placed","aggregate_id":"good","data":{},"id":"evt_2"}"#);
    assert_eq!(status, 202, "{told}");
    let applied = async {
        loop {
            let (_, said) = psql(
                &database.url,
                &[
                    "-c",
                    "SELECT count(*) FROM postrider.event_inbox UNION ALL SELECT count(*) FROM postrider.dead_letter",
                ],
            );
            if said.split_whitespace().collect::<Vec<_>>() == ["1", "1"] {
                return;
            }
            tokio::time::timeout(std::time::Duration::from_millis(200), std::future::pending::<()>())
                .await
                .unwrap_err();
        }
    };
    let applied = tokio::time::timeout(std::time::Duration::from_mins(2), applied).await;
    assert!(applied.is_ok(), "{:#?} {:#?}", relay.said(), consumer.said());
    assert_eq!(dashboard.http("GET", "/v1/health", &[], "").0, 200);
    for words in [
        &["dlq", "groups"][..],
        &["consumers", "pause", "erp"],
        &["consumers", "resume", "erp"],
        &["audit"],
        &["outbox", "status"],
    ] {
        api.run(words).assert(0, "");
    }
    api.run(&["dlq", "replay", "--all", "--yes"]).assert(0, "");
    api.run(&["token", "create", "--role", "viewer", "--name", "x"]).assert(0, "prt_");
    for serving in [&relay, &consumer, &dashboard] {
        let refused =
            serving.said().iter().find(|line| line.contains("permission denied") && line.contains("WARN"));
        assert!(refused.is_none(), "{refused:?}");
    }

    keep_books(database, &run_as("ledger"), &url("ledger"));
}

fn keep_books(database: &TestDatabase, books: &Folder, url: &str) {
    books.run(&["ledger", "--tenant", "acme", "accounts", "init", "--base", "EUR"]).assert(0, "");
    for (config, id) in [("", "usual"), (FURTHER, "further")] {
        books.write("postrider.toml", config);
        books.write("events.jsonl", &SALARY.replace("{id}", id));
        books.run(&["ledger", "ingest", "events.jsonl"]).assert(0, "1 posted");
    }
    let (_, said) = psql(&database.url, &["-c", "SELECT count(*) FROM fis.fis_outbox"]);
    assert_eq!(said.trim(), "1", "the journal event went through the ledger's own outbox");
    books.run(&["ledger", "verify"]).assert(0, "");
    let (stored, said) = psql(url, &["-c", LETTER]);
    assert!(stored, "what it refuses and no broker can carry is stored: {said}");
}

const FURTHER: &str = "[ledger]\nannounce_exchange = 'fis.domain.exchange'\noutbox = 'fis.fis_outbox'\n\
     [[outbox.table]]\nname = 'fis.fis_outbox'\nexchange = 'fis.domain.exchange'\n";
const LETTER: &str = "INSERT INTO postrider.dead_letter (key, queue, exchange, routing_key, reason, error, fingerprint, attempts, \
     first_failed_at, dead_at, properties, headers, body) VALUES ('evt_1', 'ledger', '', 'ledger', 'rejected', 'no rule', 'f', 1, now(), \
     now(), '{}', '{}', '') ON CONFLICT (key) DO NOTHING";
const SALARY: &str = r#"{"type": "payroll.salary.disbursed", "id": "{id}", "tenant": "acme", "data": {"employeeId": "e", "gross": 10, "currency": "EUR", "paidOn": "2026-03-01"}}"#;

/// What each would like to do if somebody broke in, and may not.
fn walls(url: &dyn Fn(&str) -> String) {
    for (part, statement) in [
        ("producer", "SELECT * FROM postrider.event_outbox"),
        (
            "producer",
            "INSERT INTO postrider.event_outbox (id, aggregate_type, event_type, payload) VALUES ('x', 'a', 'b', '{}')",
        ),
        (
            "relay",
            "INSERT INTO postrider.event_outbox (id, aggregate_type, event_type, payload) VALUES ('x', 'a', 'b', '{}')",
        ),
        ("relay", "DELETE FROM postrider.event_outbox"),
        ("relay", "SELECT * FROM postrider.api_token"),
        ("relay", "SELECT * FROM postrider.push_secret"),
        ("relay", "UPDATE postrider.dead_letter SET body = ''"),
        ("relay", "DELETE FROM postrider.event_inbox"),
        ("relay", "DROP TABLE postrider.event_outbox"),
        ("relay", "SELECT * FROM postrider.ledger_entry"),
        ("consumer", "SELECT * FROM postrider.api_token"),
        ("consumer", "DELETE FROM postrider.audit_log"),
        ("consumer", "UPDATE postrider.event_outbox SET status = 'published'"),
        ("consumer", "SELECT * FROM postrider.ledger_entry"),
        ("consumer", "DELETE FROM postrider.dead_letter"),
        ("ledger", "UPDATE postrider.ledger_entry SET hash = ''"),
        ("ledger", "DELETE FROM postrider.ledger_line"),
        ("ledger", "SELECT * FROM postrider.dead_letter"),
        ("dashboard", "INSERT INTO postrider.ledger_entry DEFAULT VALUES"),
        ("dashboard", "DELETE FROM postrider.event_inbox"),
        ("dashboard", "DELETE FROM postrider.audit_log"),
        ("dashboard", "UPDATE postrider.audit_log SET actor = 'nobody'"),
        ("dashboard", "CREATE TABLE postrider.mine (n int)"),
        ("migrator", "CREATE TABLE public.mine (n int)"),
        ("migrator", "CREATE ROLE another"),
    ] {
        let (done, said) = psql(&url(part), &["-c", statement]);
        assert!(
            !done && said.contains("permission denied") || said.contains("must be owner"),
            "{part}: {statement}: {said}"
        );
    }
}

#[test]
fn a_file_has_no_roles() {
    Folder::new().run(&["db", "grants"]).assert(2, "a SQLite file has no roles");
}
