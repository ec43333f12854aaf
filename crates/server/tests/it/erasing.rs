//! A person's payloads leave everything that is kept, and the account still holds.

use postrider_testkit::receiver::{Receiver, Reply};
use serde_json::json;

use super::grants::psql;
use super::networked::servers;
use super::process::Folder;

const PERSON: &str = "jane@example.com";

async fn erased(folder: &Folder) {
    // Everything is refused, by an answer that repeats what it was sent.
    let endpoint = Receiver::start(|request, _| {
        Reply::Status(422, "", String::from_utf8_lossy(&request.body).into_owned())
    })
    .await;
    let config = format!(
        "[egress]\nallow = ['127.0.0.1', 'http']\n[[queue]]\nname = 'mail'\nbind = ['shop.customer.*']\n\
         [[push]]\nname = 'mail'\nqueue = 'mail'\nurl = '{}'\n",
        endpoint.url()
    );
    folder.write("postrider.toml", &config);
    let publish = |id: &str, aggregate: &str| {
        let data = json!({"email": PERSON}).to_string();
        let aggregate = format!("shop.customer/{aggregate}");
        let args = ["publish", "shop.customer.moved", "--data", &data, "--aggregate", &aggregate, "--id", id];
        folder.run(&args)
    };
    publish("evt_1", "42").assert(0, "evt_1");
    publish("evt_2", "42").assert(0, "evt_2");
    publish("evt_3", "7").assert(0, "evt_3");
    let erase = |more: &[&str]| {
        folder.run(&[&["event", "erase", "--reason", "request 4711", "--yes", "--json"], more].concat())
    };

    // What is not published yet is left, and named.
    let early = erase(&["evt_1"]).assert(6, "").json();
    assert_eq!((&early["unpublished"], &early["rows"]), (&json!(["evt_1"]), &json!(0)), "{early}");
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    serving.wait_for_metric("postrider_dead_letters_collected_total 3");
    serving.signal(rustix::process::Signal::TERM);
    assert_eq!(serving.ended().0, 0);

    let forecast = folder.run(&["event", "erase", "--aggregate", "shop.customer/42", "--dry-run", "--json"]);
    let mut forecast = forecast.assert(0, "").json();
    folder.run(&["outbox", "show", "evt_1", "--json"]).assert(0, PERSON);
    assert_eq!(std::mem::replace(&mut forecast["dry_run"], json!(false)), json!(true));
    let report = erase(&["--aggregate", "shop.customer/42"]).assert(0, "").json();
    assert_eq!(report, forecast, "what was said before is what was done");
    assert_eq!((&report["events"], &report["rows"]), (&json!(["evt_1", "evt_2"]), &json!(2)), "{report}");
    assert_eq!((&report["dead_letters"], &report["answers"]), (&json!(2), &json!(2)), "{report}");
    for id in ["evt_1", "evt_2"] {
        let shown = folder.run(&["outbox", "show", id, "--json"]).assert(0, "postrider_erased");
        assert!(!shown.out.contains(PERSON) && shown.out.contains("sha256:"), "{shown:?}");
        let attempts = folder.run(&["push", "attempts", "mail", "--event", id, "--json"]).assert(0, "422");
        assert!(!attempts.out.contains(PERSON), "{attempts:?}");
    }
    folder.run(&["outbox", "show", "evt_3", "--json"]).assert(0, PERSON);
    let letters = folder.run(&["dlq", "ls", "--status", "all", "--json"]).assert(0, "").json();
    for letter in letters["letters"].as_array().unwrap() {
        let number = letter["id"].as_str().unwrap();
        let shown = folder.run(&["dlq", "show", number, "--json"]).assert(0, "");
        let erased = letter["event_id"] != "evt_3";
        assert_eq!(letter["status"], if erased { "discarded" } else { "open" }, "{letter}");
        assert_eq!(shown.out.contains(PERSON), !erased, "{shown:?}");
    }
    // Doing it again changes nothing; a repeat of the event is still known as one, and the account holds.
    assert_eq!(erase(&["evt_1"]).assert(0, "").json()["rows"], 1);
    publish("evt_1", "42").assert(1, "committed before");
    let account = folder.run(&["audit", "--json"]).assert(0, "").json();
    let of_mail = &account["consumers"][0];
    assert_eq!((&of_mail["committed"], &of_mail["dead"]), (&json!(3), &json!(3)), "{account}");
    folder.run(&["event", "erase", "evt_nobody", "--reason", "x", "--yes"]).assert(0, "erased 0 events");
    folder.run(&["event", "erase", "evt_3", "--reason", "x"]).assert(2, "--yes");

    // What has left the outbox for its archive is erased there.
    folder.write("postrider.toml", &format!("{config}[outbox]\nretention_days = 0\narchive = 'table'\n"));
    let forecast =
        folder.run(&["outbox", "archive", "--dry-run", "--json"]).assert(0, "nothing was changed").json();
    folder.run(&["outbox", "show", "evt_3"]).assert(0, "evt_3");
    let kept = folder.run(&["outbox", "archive", "--json"]).assert(0, "").json();
    for figure in ["archived", "removed"] {
        assert_eq!((&forecast[0][figure], &kept[0][figure]), (&json!(3), &json!(3)), "{forecast} {kept}");
    }
    folder.run(&["outbox", "show", "evt_3"]).assert(1, "evt_3");
    let report = erase(&["evt_3"]).assert(0, "").json();
    assert_eq!((&report["events"], &report["rows"]), (&json!(["evt_3"]), &json!(1)), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_are_erased_on_the_embedded_default() {
    erased(&Folder::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_are_erased_on_real_servers() {
    let (folder, _database, _vhost) = servers().await;
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    erased(&folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_a_file_alone_or_in_another_outbox_is_erased_too() {
    let (folder, database, _vhost) = servers().await;
    let config = "[outbox]\narchive = 'files'\narchive_dir = 'old'\n[[outbox.table]]\nname = 'fis_outbox'\n";
    folder.write("postrider.toml", config);
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    for (table, id, age) in [("postrider.event_outbox", "evt_old", 90), ("public.fis_outbox", "evt_fis", 0)] {
        let insert = format!(
            "INSERT INTO {table} (id, aggregate_type, aggregate_id, event_type, payload, status, created_at) VALUES \
             ('{id}', 'shop.customer', '42', 'moved', '{{\"email\": \"{PERSON}\"}}', 'published', now() - interval '{age} days')"
        );
        let (done, said) = psql(&database.url, &["-c", &insert]);
        assert!(done, "{said}");
    }
    folder.run(&["outbox", "archive", "--table", "event_outbox"]).assert(0, "");
    let erase = |id: &str| {
        folder
            .run(&["event", "erase", id, "--reason", "request 4711", "--yes", "--json"])
            .assert(0, "")
            .json()
    };
    let report = erase("evt_old");
    assert_eq!((&report["archived_lines"], &report["rows"]), (&json!(1), &json!(0)), "{report}");
    assert_eq!(erase("evt_old")["archived_lines"], 0, "it is done once");
    let report = erase("evt_fis");
    assert_eq!((&report["events"], &report["rows"]), (&json!(["evt_fis"]), &json!(1)), "{report}");
    let (_, left) = psql(&database.url, &["-c", "SELECT payload FROM public.fis_outbox"]);
    assert!(!left.contains(PERSON) && left.contains("postrider_erased"), "{left}");
    let logged = "SELECT string_agg(subject, ' ' ORDER BY subject) FROM postrider.audit_log WHERE action = 'event.erase'";
    let (_, logged) = psql(&database.url, &["-c", logged]);
    assert_eq!(logged.trim(), "evt_fis evt_old");
}
