//! A migration in a browser: started, compared, cut over; what stands against a step is said, and refused by the server too.

use postrider_testkit::browser::{Browser, Look};
use postrider_testkit::servers::shared;

use super::super::networked::servers;
use super::super::process::{Folder, Serving};
use super::pictures::folder_of_pictures;

const SMAP: &str = "[topology]\npreset = 'smap'\n";

fn publish(serving: &Serving) {
    let email = serde_json::json!({
        "type": "email.verification.requested", "data": { "data": { "email": "ann@example.com" }, "idempotency_key": "k1" },
    });
    assert_eq!(serving.post_event(&[], &email.to_string()).0, 202);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_is_compared_and_cut_over_and_refused_with_the_reason_embedded() {
    let folder = Folder::new();
    folder.write("postrider.toml", SMAP);
    a_migration_is_compared_and_cut_over_and_refused_with_the_reason(&folder, false).await;
}

/// And an outbox in another database follows.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_is_compared_and_cut_over_and_refused_with_the_reason_on_servers() {
    let (folder, _database, _vhost) = servers().await;
    let eu = shared().unwrap().database().await.unwrap();
    let elsewhere =
        format!("[[outbox.table]]\nname = 'postrider.event_outbox'\nlabel = 'eu'\nurl = '{}'\n", eu.url);
    folder.write("postrider.toml", &format!("{SMAP}{elsewhere}"));
    folder.run(&["db", "migrate"]).assert(0, "for eu");
    a_migration_is_compared_and_cut_over_and_refused_with_the_reason(&folder, true).await;
}

async fn a_migration_is_compared_and_cut_over_and_refused_with_the_reason(folder: &Folder, followed: bool) {
    let mut serving = folder.serve(&[]);
    serving.wait_for("dashboard at");
    let page = format!("http://{}/dashboard/migration", serving.address);
    let browser = Browser::open().await.unwrap();
    browser.go(&page).await.unwrap();
    browser.wait_for("One can be started: old-bus").await.unwrap();
    browser.fill("input[name=reason]", "the mail service moves").await.unwrap();
    browser.press("Publish to both buses").await.unwrap();
    let relays = if followed { "2 of 2 obey" } else { "1 of 1 obey" };
    browser.wait_for(relays).await.unwrap();
    if followed {
        browser.wait_for("Databases that follow").await.unwrap();
        browser.wait_for("0 owed").await.unwrap();
    }
    browser.wait_for("Both buses were never compared").await.unwrap();
    browser.wait_for("Refused while this stands against it").await.unwrap();

    // Something is published for as long as it listens; the page lives by itself.
    browser.run("document.querySelector('input[name=seconds]').value = 2").await.unwrap();
    browser.press("Compare").await.unwrap();
    let mut tries = 0;
    while !browser.text().await.unwrap().contains("parity holds") {
        publish(&serving);
        tries += 1;
        assert!(tries < 2000, "it was never compared");
    }
    for (shown, look) in [("light", Look::Light), ("dark", Look::Dark)] {
        browser.look(look, 1360, 900).await.unwrap();
        browser.screenshot(&folder_of_pictures().join(format!("migrating-{shown}.png"))).await.unwrap();
    }
    browser.fill("form[action$='/cutover'] input[name=reason]", "parity is proven").await.unwrap();
    browser.click("form[action$='/cutover'] button").await.unwrap();
    browser.wait_for("Removes the old exchange and its queue").await.unwrap();

    // Copies that nobody has consumed are in the way.
    browser.fill("form[action$='/finish'] input[name=reason]", "too early").await.unwrap();
    browser.click("form[action$='/finish'] button").await.unwrap();
    browser.wait_for("was refused or failed, and nothing was changed").await.unwrap();
    browser.wait_for("messages").await.unwrap();
    browser.fill("form[action$='/rollback'] input[name=reason]", "the new one drops mails").await.unwrap();
    browser.click("form[action$='/rollback'] button").await.unwrap();
    browser.wait_for("the last comparison is of an earlier phase").await.unwrap();

    // Whoever insists says why; the audit log has all of it.
    browser.go(&page).await.unwrap();
    browser
        .run("document.querySelectorAll('main details').forEach((one) => { one.open = true; })")
        .await
        .unwrap();
    browser.fill("main details input[name=reason]", "no time").await.unwrap();
    browser.press("Cut over all the same").await.unwrap();
    browser.wait_for("Removes the old exchange and its queue").await.unwrap();
    browser.go(&format!("http://{}/dashboard/audit-log", serving.address)).await.unwrap();
    for told in
        ["migration.start", "the mail service moves", "migration.dual", "migration.cutover", "no time"]
    {
        browser.wait_for(told).await.unwrap();
    }
    browser.close().await.unwrap();
}
