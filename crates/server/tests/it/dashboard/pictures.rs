//! A picture of every page, light and dark, on a desk and on a phone, in `target/screenshots`: to be looked at.

use std::path::PathBuf;

use postrider_testkit::browser::{Browser, Look};

use super::super::process::Folder;
use super::Shop;

pub(super) fn folder_of_pictures() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_postrider")).ancestors().nth(2).unwrap().join("screenshots")
}

/// How far the first table reaches beyond its place.
const BEYOND: &str =
    "const place = document.querySelector('.scroll'); return place.scrollWidth - place.clientWidth";

/// An endpoint with a long address, to which nothing is sent.
fn far_away() -> String {
    let path = "a-rather-long-part-of-the-path/".repeat(6);
    format!(
        "[[push]]\nname = 'warehouse'\nkeys = ['shop.parcel.*']\nurl = 'https://warehouse.example.com/{path}'\n"
    )
}

/// No page may scroll sideways, and none may try what the policy forbids.
#[tokio::test(flavor = "multi_thread")]
async fn every_page_is_drawn_light_and_dark_and_fits_a_phone() {
    let folder = Folder::new();
    folder.run(&["ledger", "--tenant", "acme", "accounts", "init", "--base", "EUR"]).assert(0, "opened");
    let shop = Shop::open_for(&folder, &far_away(), "please ring twice").await;
    for (id, amount) in [("rent", "1200.00"), ("fees", "12.50")] {
        let entry = serde_json::json!({ "id": id, "effectiveOn": "2026-03-01", "description": id, "lines": [
            { "account": "fees", "side": "debit", "amount": amount, "currency": "EUR" },
            { "account": "bank", "side": "credit", "amount": amount, "currency": "EUR" },
        ]});
        let json = [("content-type", "application/json")];
        assert_eq!(shop.serving.http("POST", "/v1/ledger/acme/entries", &json, &entry.to_string()).0, 201);
    }
    shop.place_orders(9);
    let browser = Browser::open().await.unwrap();
    browser.go(&shop.page("")).await.unwrap();
    browser.wait_for("9 events need somebody").await.unwrap();
    let groups: serde_json::Value =
        serde_json::from_str(&shop.serving.http("GET", "/v1/dlq/groups", &[], "").2).unwrap();
    let group = groups["groups"][0]["fingerprint"].as_str().unwrap().to_owned();
    let letter = groups["groups"][0]["samples"][0].as_str().unwrap().to_owned();
    let pages = [
        ("overview", String::new()),
        ("failures", "/failures".to_owned()),
        ("group", format!("/failures/{group}")),
        ("letter", format!("/letters/{letter}")),
        ("plan", format!("/plan?kind=replay_letters&group={group}")),
        ("events", "/events".to_owned()),
        ("event", "/events/evt_1".to_owned()),
        ("outbox", "/outbox".to_owned()),
        ("consumers", "/consumers".to_owned()),
        ("topology", "/topology".to_owned()),
        ("push", "/push".to_owned()),
        ("endpoint", "/push/email".to_owned()),
        ("jobs", "/jobs".to_owned()),
        ("migration", "/migration".to_owned()),
        ("ledger", "/ledger/acme".to_owned()),
        ("operations", "/operations".to_owned()),
        ("audit-log", "/audit-log".to_owned()),
        ("tokens", "/tokens".to_owned()),
    ];
    let looks = [
        ("light", Look::Light, 1360, 900),
        ("dark", Look::Dark, 1360, 900),
        ("phone", Look::Light, 390, 844),
    ];
    for (shown, look, width, height) in looks {
        browser.look(look, width, height).await.unwrap();
        for (name, path) in &pages {
            browser.go(&shop.page(path)).await.unwrap();
            let wide = browser.run("return document.documentElement.scrollWidth").await.unwrap();
            assert!(wide.as_u64().unwrap() <= u64::from(width), "{name} is {wide} wide on {shown}");
            if *name == "push" && width > 1000 {
                let beyond = browser.run(BEYOND).await.unwrap();
                assert!(beyond.as_i64().unwrap() <= 1, "the table is {beyond} too wide on {shown}");
            }
            browser.screenshot(&folder_of_pictures().join(format!("{name}-{shown}.png"))).await.unwrap();
        }
    }
    browser.close().await.unwrap();
}
