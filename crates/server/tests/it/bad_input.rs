//! What people get wrong, and what they are told. Nothing is ever touched by it.

use super::process::Folder;

#[test]
fn a_bad_configuration_is_named_with_its_line() {
    let folder = Folder::new();
    folder.write("postrider.toml", "[relay]\nbatch_sise = 5\n");
    let ran = folder.run(&["audit"]).assert(2, "postrider.toml, line 2: relay.batch_sise: unknown field");
    assert!(ran.err.contains("batch_size"), "{ran:?}");
    folder.write("other.toml", "");
    folder.run(&["audit", "--config", "other.toml"]).assert(0, "using SQLite");
    folder.run(&["audit", "--config", "absent.toml"]).assert(2, "absent.toml: cannot read the configuration");
    let folder = Folder::new().with("POSTRIDER_RELAY__LANES", "none");
    folder.run(&["audit"]).assert(2, "POSTRIDER_RELAY__LANES: relay.lanes: must be a whole number");
}

#[test]
fn a_bad_command_line_is_exit_2() {
    let folder = Folder::new();
    folder.run(&["publsh"]).assert(2, "publish");
    folder.run(&["publish", "order", "--data", "{}"]).assert(2, "two words or more");
    folder
        .run(&["publish", "a.b", "--data", "{\n  \"x\": }"])
        .assert(2, "--data is not JSON: expected value at line 2 column 8");
    folder.run(&["publish", "a.b", "--data", "@absent.json"]).assert(1, "cannot read absent.json");
    folder
        .run(&["publish", "a.b.c", "--data", "{}", "--aggregate", "x/1"])
        .assert(2, "write --aggregate a.b/ID");
    folder.run(&["publish", "a.b", "--data", "{}", "--at", "soon"]).assert(2, "--at");
    folder
        .run(&["token", "create", "--role", "king"])
        .assert(2, "there are metrics, viewer, operator and admin");
    folder.run(&["serve", "--roles", "relay,king"]).assert(2, "king");
    let push = ["push", "add", "erp", "--url", "https://erp.example.com/"];
    folder.run(&push).assert(2, "<--queue <QUEUE>|--keys <KEYS>>");
    folder.run(&[&push[..], &["--keys", "a.b", "--header", "x"]].concat()).assert(2, "is no header such as");
    folder.run(&["outbox", "unpark"]).assert(2, "<KEY|--id <ID>>");
    folder.run(&["audit", "-o", "xml"]).assert(2, "table, json, jsonl");
}

#[test]
fn an_oversized_payload_is_refused_with_a_way_out() {
    let folder = Folder::new();
    let large = format!("\"{}\"", "x".repeat(300_000));
    let refused = folder.run_with(&["publish", "a.b", "--data", "-"], &large);
    refused.assert(2, "more than the 262144 bytes allowed").assert(2, "send a reference to it");
    folder.write("large.json", &large);
    folder.run(&["publish", "a.b", "--data", "@large.json"]).assert(2, "store the body elsewhere");
    let fits = format!("\"{}\"", "x".repeat(262_142));
    folder.run_with(&["publish", "a.b", "--data", "-"], &fits).assert(0, "");
}

#[test]
fn half_a_network_is_refused() {
    let folder = Folder::new().with("DATABASE_URL", "postgres://u:hunter2@db/x");
    let ran =
        folder.run(&["audit"]).assert(2, "DATABASE_URL: store.url: PostgreSQL goes together with RabbitMQ");
    assert!(!ran.err.contains("hunter2"));
    let folder = Folder::new().with("RABBITMQ_HOST", "mq").with("RABBITMQ_USER", "app");
    folder.run(&["audit"]).assert(2, "no password; set RABBITMQ_PASS");
}

#[test]
fn absent_servers_are_told_apart_and_no_password_is_shown() {
    let folder = Folder::new()
        .with("DATABASE_URL", "postgres://u:hunter2@127.0.0.1:1/x")
        .with("RABBITMQ_URL", "amqp://u:hunter2@127.0.0.1:1/")
        .with("REDIS_URL", "redis://:hunter2@127.0.0.1:1/")
        .with("POSTRIDER_BROKER__CONNECT_TIMEOUT_MS", "500");
    let ran = folder
        .run(&["publish", "a.b", "--data", "{}"])
        .assert(1, "cannot connect to PostgreSQL at 127.0.0.1:1/x");
    assert!(ran.err.starts_with(
        "using PostgreSQL at postgres://u@127.0.0.1:1/x with RabbitMQ at amqp://u@127.0.0.1:1/"
    ));
    assert!(!ran.err.contains("hunter2"), "{ran:?}");

    let ran = folder.run(&["doctor", "--json"]).assert(3, "");
    let lines = ran.json();
    let status = |check: &str| {
        let line = lines.as_array().unwrap().iter().find(|line| line["check"] == check);
        line.unwrap_or_else(|| panic!("no {check} in {lines}"))["status"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        (status("store"), status("broker"), status("redis")),
        ("fail".into(), "fail".into(), "warn".into())
    );
    assert!(!ran.out.contains("hunter2") && !ran.err.contains("hunter2"), "{ran:?}");
}
