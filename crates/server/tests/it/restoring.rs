//! A rehearsal of docs/runbooks/restore-database.md: a dump of a database at work, restored beside it, where everything is accounted for.

use std::process::Command;

use postrider::Clock;
use postrider_testkit::receiver::{Receiver, Reply};
use serde_json::{Value, json};

use super::grants::psql;
use super::networked::servers;
use super::process::Folder;
use super::push::{ask, until};

fn tool(program: &str, args: &[&str]) {
    let ran = Command::new(program).args(args).output().unwrap();
    assert!(ran.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_that_is_restored_accounts_for_every_event() {
    let endpoint = Receiver::start(|request, _| match request.header("x-aggregate-id") {
        "bad" => Reply::status(422),
        _ => Reply::status(200),
    })
    .await;
    let (folder, database, vhost) = servers().await;
    let config = format!(
        "[egress]\nallow = ['127.0.0.1', 'http']\n[[queue]]\nname = 'billing'\nbind = ['shop.order.*']\n\
         [[push]]\nname = 'billing'\nqueue = 'billing'\nurl = '{}'\n",
        endpoint.url()
    );
    folder.write("postrider.toml", &config);
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let publish = |serving: &_, id: &str, aggregate: &str| {
        let event = json!({"type": "shop.order.placed", "data": {}, "id": id, "aggregate_id": aggregate});
        assert_eq!(ask(serving, "POST", "/v1/events", &event).0, 202);
    };
    for number in 0..20 {
        publish(&serving, &format!("evt_{number}"), if number % 5 == 0 { "bad" } else { "good" });
    }
    let account = |folder: &Folder| -> [Value; 4] {
        let report = folder.run(&["audit", "--json"]).json();
        ["committed", "applied", "waiting", "dead"].map(|term| report["consumers"][0][term].clone())
    };
    until(|| account(&folder) == [json!(20), json!(16), json!(0), json!(4)]).await;
    let books =
        |folder: &Folder, args: &[&str]| folder.run(&[&["ledger", "--tenant", "acme"], args].concat());
    books(&folder, &["accounts", "init", "--base", "EUR"]).assert(0, "opened");
    folder.write("opening.csv", "account,side,amount,currency\nbank,debit,1,EUR\nsales,credit,1,EUR\n");
    books(&folder, &["import", "opening.csv", "--on", "2026-01-01"]).assert(0, "1");
    // Dumped at work, as backups are.
    let dump = folder.path().join("backup.dump").display().to_string();
    tool("pg_dump", &["-Fc", "-f", &dump, &database.url]);
    publish(&serving, "evt_after", "good");
    until(|| account(&folder)[1] == 17).await;
    drop(serving);

    // The disaster: another database, and the broker as it is.
    let name = format!("restored_{}", &Clock::system().new_id().simple().to_string()[16..]);
    let (done, said) = psql(&database.url, &["-c", &format!("CREATE DATABASE {name}")]);
    assert!(done, "{said}");
    let url = format!("{}/{name}", database.url.rsplit_once('/').unwrap().0);
    tool("pg_restore", &["--exit-on-error", "-d", &url, &dump]);
    let restored = Folder::new().with("DATABASE_URL", &url).with("RABBITMQ_URL", &vhost.amqp_url);
    restored.write("postrider.toml", &config);
    restored.run(&["db", "status"]).assert(0, "applied");
    restored.run(&["doctor"]).assert(0, "up to date");
    restored.run(&["audit"]).assert(0, "holds");
    assert_eq!(account(&restored), [json!(20), json!(16), json!(0), json!(4)]);
    books(&restored, &["verify"]).assert(0, "");
    // It goes on where the dump stands: repeats are absorbed, new events take effect, dead letters can be replayed.
    let mut serving = restored.serve(&[]);
    serving.wait_for("serving");
    let called = endpoint.requests().len();
    restored
        .run(&["outbox", "replay", "--aggregate-type", "shop.order", "--from", "2d", "--to", "0s", "--yes"])
        .assert(0, "");
    publish(&serving, "evt_new", "good");
    until(|| endpoint.requests().iter().any(|one| one.header("webhook-id") == "evt_new")).await;
    until(|| account(&restored)[0] == 21 && account(&restored)[1] == 17).await;
    restored.run(&["audit"]).assert(0, "holds");
    let again = endpoint.requests().into_iter().skip(called);
    let again: Vec<_> = again.filter(|one| one.header("x-aggregate-id") == "good").collect();
    assert_eq!(again.len(), 1, "what is applied in the dump is not sent again: {again:?}");
    drop(serving);
    // A stream of the process that was killed may end a moment later.
    until(|| psql(&database.url, &["-c", &format!("DROP DATABASE {name} WITH (FORCE)")]).0).await;
}
