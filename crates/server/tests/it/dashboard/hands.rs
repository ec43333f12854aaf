//! What people do with their hands: keys, the pause button, light and dark, local time and UTC; an endpoint that is tried and gets a
//! new secret; a token that is made.

use postrider_testkit::browser::Browser;

use super::super::process::Folder;
use super::Shop;

async fn theme(browser: &Browser) -> String {
    let shown = browser.run("return getComputedStyle(document.documentElement).colorScheme").await.unwrap();
    shown.as_str().unwrap_or_default().to_owned()
}

/// Presses keys as somebody does whose hands are in no field.
async fn keys(browser: &Browser, keys: &str) {
    browser.fill("body", keys).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_lives_until_it_is_paused_and_obeys_the_keyboard() {
    let folder = Folder::new();
    let shop = Shop::open(&folder).await;
    shop.place_orders(1);
    let browser = Browser::open().await.unwrap();
    browser.go(&shop.page("")).await.unwrap();
    browser.wait_for("1 event needs somebody").await.unwrap();

    // Paused, nothing moves, whatever happens; resumed, all of it is there.
    browser.click("#pause").await.unwrap();
    browser.wait_for("Paused").await.unwrap();
    let pressed = "return document.getElementById('pause').getAttribute('aria-pressed')";
    assert_eq!(browser.run(pressed).await.unwrap(), "true");
    let more = serde_json::json!({
        "type": "shop.order.placed", "id": "evt_late", "aggregate_id": "order-late", "data": { "to": "ada@example.com" },
    });
    assert_eq!(shop.serving.post_event(&[], &more.to_string()).0, 202);
    shop.until_tried(2).await;
    assert!(browser.text().await.unwrap().contains("1 event needs somebody"), "it was paused");
    keys(&browser, "p").await;
    browser.wait_for("2 events need somebody").await.unwrap();

    let before = theme(&browser).await;
    keys(&browser, "t").await;
    let after = theme(&browser).await;
    assert!(before != after && ["light", "dark"].contains(&after.as_str()), "{before}, then {after}");
    keys(&browser, "?").await;
    browser.wait_for("go to a page: o overview").await.unwrap();
    browser.press("Close").await.unwrap();
    keys(&browser, "/").await;
    assert_eq!(browser.run("return document.activeElement.id").await.unwrap(), "find");

    // Whoever goes by the tabulator may skip the menu, and the choice of light or dark goes along.
    browser.go(&shop.page("/events/evt_1")).await.unwrap();
    browser.wait_for("What happened").await.unwrap();
    assert_eq!(theme(&browser).await, after);
    let first = "return document.querySelector('a, button, input').getAttribute('href')";
    assert_eq!(browser.run(first).await.unwrap(), "#main");
    let unnamed = "return [...document.querySelectorAll('input:not([type=hidden]), select, textarea')] \
                   .filter((field) => !field.labels?.length && !field.getAttribute('aria-label')).length";
    assert_eq!(browser.run(unnamed).await.unwrap(), 0, "a field without a name");

    // Times are exact either way, and say which they are.
    let time = "return document.querySelector('.story time').textContent";
    let exact = "return document.querySelector('.story time').dateTime";
    let exact = browser.run(exact).await.unwrap().as_str().unwrap().to_owned();
    let local = browser.run(time).await.unwrap().as_str().unwrap().to_owned();
    keys(&browser, "u").await;
    let utc = browser.run(time).await.unwrap().as_str().unwrap().to_owned();
    assert!(!local.ends_with("UTC") && utc.ends_with(" UTC"), "{local}, then {utc}");
    assert_eq!(utc.trim_end_matches(" UTC").replace(' ', "T"), &exact[..19], "{exact}");
    browser.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_is_tried_and_gets_a_new_secret_and_a_token_is_made() {
    let folder = Folder::new();
    let shop = Shop::open(&folder).await;
    let added = serde_json::json!({
        "name": "erp", "url": shop.receiver.url(), "keys": ["never.*"], "reason": "a test",
    });
    let json = [("content-type", "application/json")];
    let (status, _, answer) = shop.serving.http("POST", "/v1/subscriptions", &json, &added.to_string());
    assert_eq!(status, 201, "{answer}");
    let browser = Browser::open().await.unwrap();
    browser.go(&shop.page("/push/erp")).await.unwrap();
    browser.press("Send a test event").await.unwrap();
    browser.wait_for("It did not take the test event").await.unwrap();
    shop.mend();
    browser.press("Send a test event").await.unwrap();
    browser.wait_for("It took the test event: 200").await.unwrap();
    browser.fill("form[action$='/rotate'] input[name=reason]", "it leaked").await.unwrap();
    browser.press("New secret").await.unwrap();
    browser.wait_for("The new secret, shown once").await.unwrap();
    browser.wait_for("whsec_").await.unwrap();

    // From the first token on, the machine's owner has to sign in like everybody else.
    browser.go(&shop.page("/tokens")).await.unwrap();
    browser.fill("input[name=name]", "grafana").await.unwrap();
    browser.fill("input[name=reason]", "for the wall").await.unwrap();
    browser.press("Make").await.unwrap();
    browser.wait_for("The new token, shown once").await.unwrap();
    browser.go(&shop.page("/tokens")).await.unwrap();
    browser.wait_for("Sign in").await.unwrap();
    browser.close().await.unwrap();
    let rows = folder.run(&["token", "ls", "--json"]).json();
    assert_eq!(rows[0]["name"], "grafana", "{rows}");
}
