//! The main ways through: from the overview to why a mail was not sent, and on until it is; one event; a pause; the books.

use postrider_testkit::browser::Browser;

use super::super::networked::servers;
use super::super::process::Folder;
use super::{NASTY, Shop};

/// Two clicks from the overview say why; then a plan, a canary, the rest, and nothing is left.
async fn from_the_overview_to_the_reason_and_on(folder: &Folder, further: &str) {
    let shop = Shop::open_with(folder, further).await;
    shop.place_orders(7);
    shop.until_tried(7).await;
    let browser = Browser::open().await.unwrap();
    browser.go(&shop.page("")).await.unwrap();
    // It lives: nobody reloads.
    browser.wait_for("7 events need somebody").await.unwrap();
    browser.wait_for("email could not handle shop.order.placed").await.unwrap();
    browser.click(".failures a").await.unwrap();
    browser.wait_for("the endpoint answered 422").await.unwrap();
    browser.click("tbody a").await.unwrap();
    browser.wait_for("ada@example.com").await.unwrap();
    browser.wait_for("no such recipient for order-").await.unwrap();

    // What is nasty is text, everywhere on the way.
    assert!(browser.text().await.unwrap().contains(NASTY), "the payload is shown as it is");
    assert_ne!(browser.run("return document.title").await.unwrap(), "owned");

    shop.mend();
    browser.press("Same reason").await.unwrap();
    browser.press("Plan a replay").await.unwrap();
    browser.wait_for("Nothing was changed so far").await.unwrap();
    browser.fill("input[name=reason]", "the address book is back").await.unwrap();
    browser.press("Replay a canary of 5").await.unwrap();
    browser.wait_for("5 of 5").await.unwrap();
    browser.wait_for("2 of this kind are still open").await.unwrap();
    browser.press("Plan the rest").await.unwrap();
    browser.fill("input[name=reason]", "the canary sang").await.unwrap();
    browser.press("Replay all 2").await.unwrap();
    browser.wait_for("Nothing of this kind is open any more").await.unwrap();

    // Follow one event to its end.
    browser.go(&shop.page("/events?q=evt_3")).await.unwrap();
    browser.wait_for("What happened").await.unwrap();
    browser.wait_for("applied by email").await.unwrap();
    let story = browser.text().await.unwrap();
    for part in
        ["committed to the outbox", "the broker confirmed it", "attempt 1 at email: 422", "was replayed"]
    {
        assert!(story.contains(part), "{part:?} is not in {story}");
    }
    assert!(shop.sent() >= 14, "each mail was tried twice");
    browser.go(&shop.page("")).await.unwrap();
    browser.wait_for("Everything flows").await.unwrap();
    browser.go(&shop.page("/audit-log")).await.unwrap();
    browser.wait_for("the canary sang").await.unwrap();
    browser.wait_for("local operator").await.unwrap();
    if !further.is_empty() {
        choose_an_outbox(&browser, &shop).await;
    }
    browser.close().await.unwrap();
}

/// The choice is in the address, and goes along to its events.
async fn choose_an_outbox(browser: &Browser, shop: &Shop) {
    browser.go(&shop.page("/outbox")).await.unwrap();
    browser.wait_for("Outboxes").await.unwrap();
    browser.press("fis_outbox").await.unwrap();
    browser.wait_for("outbox fis_outbox").await.unwrap();
    assert_eq!(browser.run("return location.search").await.unwrap(), "?outbox=fis_outbox");
    browser.press("All events").await.unwrap();
    browser.wait_for("the newest first").await.unwrap();
    assert_eq!(browser.run("return location.search").await.unwrap(), "?outbox=fis_outbox");
}

#[tokio::test(flavor = "multi_thread")]
async fn from_the_overview_to_the_reason_and_on_embedded() {
    from_the_overview_to_the_reason_and_on(&Folder::new(), "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn from_the_overview_to_the_reason_and_on_servers() {
    let (folder, _database, _vhost) = servers().await;
    let further = "[[outbox.table]]\nname = 'fis_outbox'\n";
    folder.write("postrider.toml", further);
    folder.run(&["db", "migrate"]).assert(0, "applied");
    from_the_overview_to_the_reason_and_on(&folder, further).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_is_paused_and_resumed_and_the_books_are_verified_embedded() {
    a_consumer_is_paused_and_resumed_and_the_books_are_verified(&Folder::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_is_paused_and_resumed_and_the_books_are_verified_on_servers() {
    let (folder, _database, _vhost) = servers().await;
    folder.run(&["db", "migrate"]).assert(0, "applied");
    a_consumer_is_paused_and_resumed_and_the_books_are_verified(&folder).await;
}

async fn a_consumer_is_paused_and_resumed_and_the_books_are_verified(folder: &Folder) {
    folder.run(&["ledger", "--tenant", "acme", "accounts", "init", "--base", "EUR"]).assert(0, "opened");
    let shop = Shop::open(folder).await;
    let browser = Browser::open().await.unwrap();
    browser.go(&shop.page("/consumers")).await.unwrap();
    browser.fill("form[action$='/billing/pause'] input[name=reason]", "the bank is down").await.unwrap();
    browser.click("form[action$='/billing/pause'] button").await.unwrap();
    browser.wait_for("the bank is down").await.unwrap();
    let state = || {
        let all = folder.run(&["consumers", "ls", "--json"]).json();
        let billing = all.as_array().unwrap().iter().find(|row| row["name"] == "billing").cloned();
        billing.unwrap()["state"].clone()
    };
    assert_eq!(state(), "paused");
    browser.fill("form[action$='/billing/resume'] input[name=reason]", "the bank is back").await.unwrap();
    browser.press("Resume").await.unwrap();
    browser.click("form[action$='/billing/pause'] input[name=reason]").await.unwrap();
    assert_ne!(state(), "paused");

    browser.go(&shop.page("/ledger/acme")).await.unwrap();
    browser.press("Verify the books").await.unwrap();
    browser.wait_for("The books hold").await.unwrap();

    // By keyboard alone: go to the failures.
    browser
        .run("document.dispatchEvent(new KeyboardEvent('keydown', { key: 'g', bubbles: true }))")
        .await
        .ok();
    browser.fill("body", "gf").await.unwrap();
    browser.wait_for("by reason").await.unwrap();
    browser.close().await.unwrap();
}
