//! Text that looks like markup, in every field that anybody can fill: every page shows it as text.

use postrider_testkit::browser::Browser;
use postrider_testkit::receiver::{Receiver, Reply};
use serde_json::{Value, json};

use super::super::networked::servers;
use super::super::process::{Folder, Serving};
use super::pictures::folder_of_pictures;

/// Leaves an attribute and an element, if it is let; without spaces and wildcards, so that it may be a name too.
const PLANTED: &str = r#""><img/src=x/onerror=alert(1)>"#;
/// The same for who allows no quotes.
const UNQUOTED: &str = "<img/src=x/onerror=alert(1)>";
/// What a page says if it shows it.
const SHOWN: &str = "onerror=alert(1)";

struct Planted {
    serving: Serving,
    token: String,
    _receiver: Receiver,
}

impl Planted {
    fn call(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let bearer = format!("Bearer {}", self.token);
        let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
        let (status, _, answer) = self.serving.http(method, path, &headers, &body.to_string());
        (status, serde_json::from_str(&answer).unwrap_or(Value::Null))
    }

    fn post(&self, path: &str, body: &Value) {
        let (status, answer) = self.call("POST", path, body);
        assert!((200..300).contains(&status), "{path}: {status} {answer}");
    }
}

/// A dead letter whose every field is nasty.
fn letter() -> Value {
    let at = "2026-11-15T10:00:00Z";
    json!({
        "key": PLANTED, "event_id": PLANTED, "event_type": format!("shop.{PLANTED}"), "tenant": PLANTED,
        "aggregate_id": PLANTED, "ordering_key": PLANTED, "consumer": PLANTED, "queue": PLANTED, "exchange": PLANTED,
        "routing_key": PLANTED, "reason": PLANTED, "error": PLANTED, "error_class": PLANTED, "attempts": 11,
        "first_failed_at": at, "dead_at": at,
        "properties": { "message_id": PLANTED, "content_type": PLANTED }, "headers": { PLANTED: { "text": PLANTED } },
        "body": "IjxpbWcvc3JjPXgvb25lcnJvcj1hbGVydCgxKT4i",
    })
}

/// Everything that people and programs can say, said badly.
async fn plant(folder: &Folder) -> Planted {
    let receiver =
        Receiver::start(|_, _| Reply::Status(422, "", format!("no such recipient: {PLANTED}"))).await;
    let url = format!("{}/{UNQUOTED}", receiver.url());
    folder.write(
        "postrider.toml",
        &format!(
            "[egress]\nallow = ['127.0.0.1', 'http']\n\
             [migration]\nname = 'm{PLANTED}'\nlegacy_exchange = 'x{PLANTED}'\nlegacy_queue = 'q{PLANTED}'\n\
             [[exchange]]\nname = 'x{PLANTED}'\nkind = 'fanout'\n\
             [[queue]]\nname = 'q{PLANTED}'\nbind = ['x{PLANTED}:']\n\
             [[queue]]\nname = 'b{PLANTED}'\nbind = ['shop.order.*']\n[[consumer]]\nname = 'b{PLANTED}'\n\
             [[push]]\nname = 'p{PLANTED}'\nkeys = ['shop.order.*']\nurl = '{url}'\n"
        ),
    );
    folder.run_with(&["dlq", "import", "-"], &letter().to_string()).assert(0, "1 dead letter");
    folder.run(&["ledger", "--tenant", PLANTED, "accounts", "init", "--base", "EUR"]).assert(0, "opened");
    for side in ["a", "b"] {
        let code = format!("{side}{UNQUOTED}");
        folder
            .run(&[
                "ledger", "--tenant", PLANTED, "accounts", "add", &code, "--type", "asset", "--name", PLANTED,
            ])
            .assert(0, "");
    }
    let made = folder.run(&["token", "create", "--role", "admin", "--name", PLANTED]);
    let token = made.assert(0, "prt_").out.trim().to_owned();
    let mut serving = folder.serve(&[]);
    serving.wait_for("dashboard at");
    let planted = Planted { serving, token, _receiver: receiver };

    planted.post(
        "/v1/events",
        &json!({ "type": format!("shop.order.{UNQUOTED}"), "id": PLANTED, "aggregate_id": PLANTED, "tenant": PLANTED,
                 "data": { PLANTED: PLANTED } }),
    );
    let line = |side: &str, code: &str| json!({ "account": format!("{code}{UNQUOTED}"), "side": side, "amount": "1.00", "currency": "EUR" });
    let tenant = "%22%3E%3Cimg%2Fsrc=x%2Fonerror=alert(1)%3E";
    let entry = json!({ "id": PLANTED, "effectiveOn": "2026-03-01", "description": PLANTED,
        "metadata": { PLANTED: PLANTED }, "lines": [line("debit", "a"), line("credit", "b")] });
    planted.post(&format!("/v1/ledger/{tenant}/entries"), &entry);
    planted.post("/v1/progress", &json!({ "id": PLANTED, "tenant": PLANTED }));
    planted.post("/v1/migrations", &json!({ "reason": PLANTED }));
    planted.post(&format!("/v1/consumers/b{tenant}/pause"), &json!({ "reason": PLANTED }));
    let (_, plan) = planted.call(
        "POST",
        "/v1/plans",
        &json!({ "kind": "replay_letters", "filter": { "event_id": PLANTED, "queue": PLANTED } }),
    );
    assert_eq!(plan["plan"]["total"], 1, "{plan}");
    let discarding = json!({ "kind": "discard_letters", "filter": { "tenant": PLANTED, "text": "nobody" },
        "reason": PLANTED, "expects": 0 });
    assert_eq!(planted.call("POST", "/v1/operations", &discarding).0, 409, "nothing matches that");
    planted
}

/// Nothing of it has become an element, and nothing has run.
async fn is_text(browser: &Browser, page: &str) {
    let found = "return document.querySelectorAll('[onerror], img[src=\"x\"], script:not([src])').length";
    assert_eq!(browser.run(found).await.unwrap(), 0, "something became an element on {page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_looks_like_markup_is_text_on_every_page_embedded() {
    what_looks_like_markup_is_text_on_every_page(&Folder::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_looks_like_markup_is_text_on_every_page_on_servers() {
    let (folder, _database, _vhost) = servers().await;
    folder.run(&["db", "migrate"]).assert(0, "applied");
    what_looks_like_markup_is_text_on_every_page(&folder).await;
}

async fn what_looks_like_markup_is_text_on_every_page(folder: &Folder) {
    let planted = plant(folder).await;
    let at = |path: &str| format!("http://{}/dashboard{path}", planted.serving.address);
    let browser = Browser::open().await.unwrap();
    browser.go(&at("")).await.unwrap();
    browser.fill("input[name=token]", &planted.token).await.unwrap();
    browser.press("Sign in").await.unwrap();
    // It lives: what is drawn later is text too.
    browser.wait_for("2 events need somebody").await.unwrap();
    browser.wait_for(SHOWN).await.unwrap();
    is_text(&browser, "the overview").await;

    // Every list, and from each the first thing in it.
    let places = [
        ("/failures", ".failures a"),
        ("/letters?status=any", "tbody a"),
        ("/events", "tbody a"),
        ("/outbox", ""),
        ("/consumers", ""),
        ("/push", "tbody a"),
        ("/jobs", ""),
        ("/migration", ""),
        ("/ledger", "tbody a"),
        ("/operations", ""),
        ("/audit-log", ""),
        ("/tokens", ""),
        ("/topology", ""),
    ];
    for (path, first) in places {
        browser.go(&at(path)).await.unwrap();
        is_text(&browser, path).await;
        if !["/outbox", "/operations", "/topology"].contains(&path) {
            browser.wait_for(SHOWN).await.unwrap();
        }
        if !first.is_empty() {
            browser.click(first).await.unwrap();
            browser.wait_for(SHOWN).await.unwrap();
            is_text(&browser, &format!("what {path} leads to")).await;
        }
        let picture = path.trim_start_matches('/').split('?').next().unwrap().to_owned();
        browser.screenshot(&folder_of_pictures().join(format!("nasty-{picture}.png"))).await.unwrap();
    }
    // What is asked for comes back in fields and messages.
    let nasty = "%22%3E%3Cimg/src=x/onerror=alert(1)%3E";
    for path in [
        format!("/events?q={nasty}&type={nasty}&tenant={nasty}&aggregate_id={nasty}"),
        format!("/letters?consumer={nasty}&text={nasty}&since={nasty}"),
        format!("/plan?kind={nasty}"),
        format!("/plan?kind=replay_letters&group={nasty}"),
        format!("/plan?kind=edit_letters&status=any&correction={nasty}"),
        format!("/audit-log?actor={nasty}&subject={nasty}"),
        format!("/events/{nasty}x"),
        format!("/push/{nasty}"),
        format!("/ledger/nobody{nasty}"),
        format!("/login?to={nasty}"),
    ] {
        browser.go(&at(&path)).await.unwrap();
        is_text(&browser, &path).await;
    }
    // A picture that is opened by itself is a document of its own.
    let bearer = format!("Bearer {}", planted.token);
    let headers = [("authorization", bearer.as_str())];
    let (status, _, drawn) = planted.serving.http("GET", "/v1/topology/diagram.svg", &headers, "");
    assert!(status == 200 && drawn.contains("&lt;img") && !drawn.contains("<img"), "{drawn}");
    browser.close().await.unwrap();
}
