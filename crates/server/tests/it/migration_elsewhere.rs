//! `postrider migration` with an outbox in another database: it follows, is shown, and is named when it cannot be asked.

use postrider_testkit::proxy::{Proxy, Weather};
use postrider_testkit::servers::shared;
use serde_json::{Value, json};

use super::grants::psql;
use super::networked::servers;
use super::process::Folder;

fn standing(folder: &Folder) -> Value {
    folder.run(&["migration", "status", "--json"]).json()[0].clone()
}

/// Publishes for as long as it compares, in both databases.
fn compare(folder: &Folder, eu: &str) {
    std::thread::scope(|scope| {
        let comparing = scope.spawn(|| folder.run(&["migration", "compare", "--for", "3"]));
        while !comparing.is_finished() {
            folder.run(&["publish", "email.sent", "--data", "{}"]).assert(0, "");
            let (done, said) = psql(eu, &["-c", "SELECT postrider.publish('email.sent', '{}')"]);
            assert!(done, "{said}");
        }
        comparing.join().unwrap().assert(0, "holds");
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn another_database_follows_and_is_named_when_it_is_away() {
    let (folder, _database, vhost) = servers().await;
    let eu = shared().unwrap().database().await.unwrap();
    let (proxy, url) = Proxy::in_front_of(&eu.url).await.unwrap();
    folder.write(
        "postrider.toml",
        &format!(
            "[topology]\npreset = 'smap'\n[migration]\nevents = ['email.#']\n\
             [[outbox.table]]\nname = 'postrider.event_outbox'\nlabel = 'eu'\nurl = '{url}'\n"
        ),
    );
    folder.run(&["db", "migrate"]).assert(0, "for eu");
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let started = folder.run(&["migration", "start", "--reason", "we move"]).assert(0, "follows; settled");
    let shown = &standing(&folder)["databases"][0]["database"];
    let shown = shown.as_str().unwrap().to_owned();
    assert!(started.out.contains(&shown), "{started:?}");

    compare(&folder, &eu.url);
    let there = standing(&folder)["databases"][0].clone();
    assert_eq!((&there["settled"], &there["error"]), (&json!(true), &json!(null)), "{there}");
    assert_ne!(there["new"]["confirmed"], 0, "{there}");
    folder.run(&["migration", "cutover", "--dry-run"]).assert(0, "parity is proven");

    proxy.set(Weather::Cut);
    let named = format!("the database {shown} cannot be asked");
    folder.run(&["migration", "cutover"]).assert(3, &named);
    folder.run(&["migration", "compare", "--for", "1"]).assert(1, &named);
    let (status, _, refused) = serving.http("POST", "/v1/migrations/old-bus/cutover", &[], "");
    assert_eq!((status, refused.contains(&shown)), (409, true), "{refused}");
    assert_eq!(standing(&folder)["settled"], false);
    serving.wait_for_metric(&format!("postrider_migration_behind{{database=\"{shown}\"}} 1"));

    proxy.set(Weather::Clear);
    serving.wait_for_metric(&format!("postrider_migration_behind{{database=\"{shown}\"}} 0"));
    folder.run(&["migration", "cutover", "--reason", "parity is proven"]).assert(0, "follows; settled");
    // Steps are taken where it is kept.
    let other = Folder::new().with("DATABASE_URL", &eu.url).with("RABBITMQ_URL", &vhost.amqp_url);
    other.write("postrider.toml", "[topology]\npreset = 'smap'\n");
    other.run(&["migration", "status"]).assert(0, "kept in another database");
    other.run(&["migration", "rollback"]).assert(1, "another database keeps it");
    folder.run(&["migration", "rollback"]).assert(0, "dual since");
}
