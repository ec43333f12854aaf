//! The books over HTTP, on an SQLite file and on PostgreSQL.

use postrider_testkit::servers::{TestDatabase, TestVhost};
use serde_json::{Value, json};

use super::networked::servers;
use super::process::{Folder, Serving};

/// A running API over the books of two tenants, and a bearer for each kind of caller.
pub(super) struct Desk {
    pub(super) folder: Folder,
    pub(super) serving: Serving,
    _servers: Option<(TestDatabase, TestVhost)>,
}

impl Desk {
    /// One on each store.
    pub(super) async fn both() -> [Self; 2] {
        let (folder, database, vhost) = servers().await;
        folder.run(&["db", "migrate"]).assert(0, "applied");
        [Self::in_folder(Folder::new(), None), Self::in_folder(folder, Some((database, vhost)))]
    }

    fn in_folder(folder: Folder, servers: Option<(TestDatabase, TestVhost)>) -> Self {
        for tenant in ["acme", "other"] {
            folder
                .run(&["ledger", "--tenant", tenant, "accounts", "init", "--base", "EUR"])
                .assert(0, "opened");
        }
        let serving = folder.serve(&["--roles", "api"]);
        Self { folder, serving, _servers: servers }
    }

    pub(super) fn token(&self, role: &str, tenant: Option<&str>) -> String {
        let tenant = tenant.map_or_else(Vec::new, |tenant| vec!["--tenant", tenant]);
        let args = [&["token", "create", "--role", role], tenant.as_slice()].concat();
        format!("Bearer {}", self.folder.run(&args).assert(0, "prt_").out.trim())
    }

    pub(super) fn call(&self, method: &str, path: &str, bearer: &str, body: &Value) -> (u16, Value) {
        let headers: &[(&str, &str)] = if bearer.is_empty() { &[] } else { &[("authorization", bearer)] };
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (status, _, answer) = self.serving.http(method, &format!("/v1/ledger{path}"), headers, &body);
        (status, serde_json::from_str(&answer).unwrap_or(Value::Null))
    }

    pub(super) fn get(&self, path: &str) -> Value {
        let (status, answer) = self.call("GET", path, "", &Value::Null);
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }
}

pub(super) fn entry(id: &str, amount: &str) -> Value {
    json!({ "id": id, "effectiveOn": "2026-03-01", "description": "rent", "lines": [
        { "account": "fees", "side": "debit", "amount": amount, "currency": "EUR" },
        { "account": "bank", "side": "credit", "amount": amount, "currency": "EUR" },
    ]})
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_are_posted_reversed_and_read() {
    for desk in Desk::both().await {
        entries_go_round(&desk);
    }
}

fn entries_go_round(desk: &Desk) {
    let none = Value::Null;
    let (status, first) = desk.call("POST", "/acme/entries", "", &entry("e-1", "12.50"));
    assert_eq!((status, &first["entry"]), (201, &json!("1")), "{first}");
    let (status, again) = desk.call("POST", "/acme/entries", "", &entry("e-1", "12.50"));
    assert_eq!((status, &again), (200, &first));
    for (body, status, code) in [
        (entry("e-1", "13"), 409, "conflict"),
        (entry("e-2", "1.005"), 422, "too_many_digits"),
        (entry("e-2", "-1"), 422, "amount_not_positive"),
        (entry("e-2", "much"), 422, "invalid_request"),
        (json!({ "lines": [] }), 400, "invalid_json"),
    ] {
        let (answered, problem) = desk.call("POST", "/acme/entries", "", &body);
        assert_eq!((answered, problem["code"].as_str()), (status, Some(code)), "{problem}");
    }
    let (status, reversal) = desk.call("POST", "/acme/entries/1/reversals", "", &json!({ "id": "r-1" }));
    assert_eq!((status, &reversal["entry"]), (201, &json!("2")), "{reversal}");
    let (status, problem) = desk.call("POST", "/acme/entries/1/reversals", "", &none);
    assert_eq!((status, problem["code"].as_str()), (409, Some("already_reversed")), "{problem}");
    let (status, problem) = desk.call("POST", "/acme/entries/9/voids", "", &none);
    assert_eq!((status, problem["code"].as_str()), (404, Some("unknown_entry")), "{problem}");

    assert_eq!(desk.get("")["tenants"], json!(["acme", "other"]));
    assert_eq!(desk.get("/acme/accounts")["accounts"][0]["code"], "bank");
    let page = desk.get("/acme/entries?limit=1");
    assert_eq!((&page["entries"][0]["entry"], &page["next"]), (&json!("1"), &json!("1")));
    let page = desk.get("/acme/entries?limit=2&after=1");
    assert_eq!((&page["entries"][0]["kind"], &page["next"]), (&json!("reversal"), &json!(null)));
    assert_eq!(desk.get("/acme/entries/2")["refersTo"], "1");
    assert_eq!(desk.get("/acme/balances?at=2026-02-28")["balances"], json!([]));
    assert_eq!(desk.get("/acme/balances")["balances"][0]["balance"], "0.00");
    assert_eq!(desk.get("/acme/trial-balance")["totals"][0]["balanced"], true);
    assert_eq!(desk.get("/acme/balance-sheet")["balanced"], true);
    assert_eq!(desk.get("/acme/income-statement?from=2026-01-01")["sums"]["expenses"], "0.00");
    assert_eq!(desk.get("/acme/accounts/bank/statement")["movements"][0]["balance"], "-12.50");
    let verified = desk.get("/acme/verify");
    assert_eq!((&verified["holds"], &verified["entries"]), (&json!(true), &json!("2")));
    let (status, problem) = desk.call("GET", "/nobody/trial-balance", "", &none);
    assert_eq!((status, problem["code"].as_str()), (404, Some("unknown_tenant")), "{problem}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_reads_and_writes_what_its_role_and_tenant_allow() {
    for desk in Desk::both().await {
        tokens_are_kept_apart(&desk);
    }
}

fn tokens_are_kept_apart(desk: &Desk) {
    let (viewer, operator) = (desk.token("viewer", None), desk.token("operator", Some("acme")));
    let none = Value::Null;
    assert_eq!(desk.call("GET", "/acme/entries", "", &none).0, 401);
    assert_eq!(desk.call("GET", "/other/entries", &viewer, &none).0, 200);
    assert_eq!(desk.call("POST", "/acme/entries", &viewer, &entry("e-1", "1")).0, 403);
    assert_eq!(desk.call("POST", "/acme/entries", &operator, &entry("e-1", "1")).0, 201);
    assert_eq!(desk.call("GET", "", &operator, &none).1["tenants"], json!(["acme"]));
    for (method, path) in [
        ("GET", "/other/accounts"),
        ("GET", "/other/entries/1"),
        ("GET", "/other/verify"),
        ("GET", "/%6fther/balances"),
        ("POST", "/other/entries"),
        ("POST", "/other/entries/1/reversals"),
    ] {
        let (status, problem) = desk.call(method, path, &operator, &none);
        assert_eq!((status, problem["code"].as_str()), (403, Some("forbidden")), "{path}: {problem}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_rates_periods_and_a_year_are_kept_and_the_journal_leaves() {
    for desk in Desk::both().await {
        books_are_kept(&desk);
    }
}

fn books_are_kept(desk: &Desk) {
    let none = Value::Null;
    let post = |path: &str, body: &Value| desk.call("POST", path, "", body);
    assert_eq!(desk.get("/acme")["base_currency"], "EUR");
    let rules = desk.get("/acme/rules");
    assert_eq!(
        (&rules["version"], post("/acme/rules", &json!({ "document": rules["document"] })).0),
        (&json!(1), 200)
    );
    let (status, problem) = post("/acme/rules", &json!({ "document": "[[rule]]\nname = 'x'" }));
    assert_eq!((status, problem["code"].as_str()), (422, Some("invalid_request")), "{problem}");
    let changed = json!({ "document": format!("{}\n# changed\n", rules["document"].as_str().unwrap()) });
    let (status, second) = post("/acme/rules", &changed);
    assert_eq!((status, &second["version"]), (201, &json!(2)), "{second}");

    let rate = |rate: &str| json!({ "rates": [{ "currency": "USD", "rate": rate, "on": "2026-03-01" }] });
    assert_eq!(post("/acme/rates", &rate("0.92")).0, 201);
    assert_eq!(post("/acme/rates", &rate("-1")).0, 422);
    assert_eq!(desk.get("/acme/rates")["rates"][0]["rate"], "0.92");
    let till = json!({ "accounts": [{ "code": "till", "type": "asset" }] });
    assert_eq!(post("/acme/accounts", &till).0, 201);

    assert_eq!(post("/acme/entries", &entry("e-1", "12.50")).0, 201);
    let (status, closed) = post("/acme/years/2026/close", &none);
    assert_eq!((status, &closed["entries"][0]["entry"]), (201, &json!("2")), "{closed}");
    let (status, sealed) = post("/acme/periods", &json!({ "name": "2026-Q1", "state": "closed" }));
    assert_eq!((status, &sealed["sealed"]["entry"]), (201, &json!("3")), "{sealed}");
    let (status, problem) = post("/acme/entries", &entry("e-2", "1"));
    assert_eq!((status, problem["code"].as_str()), (422, Some("period_closed")), "{problem}");
    assert_eq!(post("/acme/periods", &json!({ "name": "spring", "state": "open" })).0, 422);
    assert_eq!(desk.get("/acme/periods")["periods"][0]["state"], "closed");

    let (status, headers, journal) = desk.serving.http("GET", "/v1/ledger/acme/export", &[], "");
    assert!(status == 200 && headers.contains("application/jsonl"), "{headers}");
    assert!(journal.contains(r#""sourceEvent":"e-1""#), "{journal}");
    let (status, problem) = desk.call("GET", "/acme/entries/1/proof", "", &none);
    assert_eq!((status, problem["code"].as_str()), (404, Some("not_in_a_checkpoint")), "{problem}");

    let (operator, admin) = (desk.token("operator", Some("acme")), desk.token("admin", Some("acme")));
    let body = json!({ "name": "2026-Q1", "state": "open" });
    assert_eq!(desk.call("POST", "/acme/periods", &operator, &body).0, 403, "that is for an admin");
    assert_eq!(desk.call("POST", "/other/periods", &admin, &body).0, 403, "of this tenant alone");
    assert_eq!(desk.call("POST", "/acme/periods", &admin, &body).0, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_are_changed_entries_corrected_and_history_taken() {
    for desk in Desk::both().await {
        settings_and_history(&desk);
    }
}

fn settings_and_history(desk: &Desk) {
    let post = |path: &str, body: &Value| desk.call("POST", path, "", body);
    let (status, book) =
        post("/acme", &json!({ "back_dated": "next_open", "max_entries": 9, "rounding_account": null }));
    assert_eq!(
        (status, &book["back_dated"], &book["rounding_account"]),
        (201, &json!("next_open"), &json!(null)),
        "{book}"
    );
    assert_eq!(desk.get("/acme"), book);
    assert_eq!(post("/acme", &book).0, 201, "what was read can be sent back");
    for (body, status, code) in [
        (json!({ "base_currency": "USD" }), 422, "invalid_request"),
        (json!({ "tenant": "other" }), 422, "invalid_request"),
        (json!({ "rounding_account": "nowhere" }), 422, "unknown_account"),
        (json!({ "colour": "red" }), 400, "invalid_json"),
    ] {
        let (answered, problem) = post("/acme", &body);
        assert_eq!((answered, problem["code"].as_str()), (status, Some(code)), "{problem}");
    }

    assert_eq!(post("/acme/entries", &entry("e-1", "12.50")).0, 201);
    let mut right = entry("e-1", "21.50");
    right.as_object_mut().unwrap().remove("id");
    let correction = json!({ "id": "c-1", "description": "a typing error", "entry": right });
    let (status, corrected) = post("/acme/entries/1/corrections", &correction);
    assert_eq!(
        (status, &corrected["reversal"]["entry"], &corrected["entry"]["entry"]),
        (201, &json!("2"), &json!("3"))
    );
    assert_eq!(
        post("/acme/entries/1/corrections", &correction).1,
        corrected,
        "the same id is the same correction"
    );
    let (status, problem) = post("/acme/entries/1/corrections", &json!({ "entry": right }));
    assert_eq!((status, problem["code"].as_str()), (409, Some("already_reversed")), "{problem}");

    let versions = desk.get("/acme/rules/versions");
    assert_eq!((&versions["versions"][0]["version"], &versions["versions"][1]), (&json!(1), &json!(null)));
    assert_eq!(desk.get("/acme/rules?version=1")["document"], versions["versions"][0]["document"]);
    assert_eq!(desk.call("GET", "/acme/rules?version=7", "", &Value::Null).0, 404);

    for format in ["jsonl", "csv"] {
        let (_, _, journal) =
            desk.serving.http("GET", &format!("/v1/ledger/acme/export?format={format}"), &[], "");
        let (status, _, answer) = desk.serving.http("POST", "/v1/ledger/other/import", &[], &whole(&journal));
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let counts = if format == "jsonl" { (3, 0) } else { (0, 3) };
        assert_eq!(
            (status, &answer["posted"], &answer["duplicates"]),
            (201, &json!(counts.0), &json!(counts.1)),
            "{answer}"
        );
    }
    let rows = |tenant: &str| desk.get(&format!("/{tenant}/trial-balance"))["rows"].clone();
    assert_eq!(rows("other"), rows("acme"));
    let (status, _, answer) =
        desk.serving.http("POST", "/v1/ledger/other/import", &[], "{\"sourceEvent\": 1}\n");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(
        (status, &answer["refused"][0]["line"], &answer["refused"][0]["code"]),
        (207, &json!(1), &json!("malformed"))
    );
    let operator = desk.token("operator", Some("acme"));
    assert_eq!(
        desk.call("POST", "/acme", &operator, &json!({ "max_entries": 1 })).0,
        403,
        "that is for an admin"
    );
    assert_eq!(desk.call("POST", "/other/import", &operator, &Value::Null).0, 403, "of this tenant alone");
}

/// A body that came in chunks, put together.
fn whole(body: &str) -> String {
    let (mut rest, mut text) = (body, String::new());
    while let Some((length, more)) = rest.split_once("\r\n") {
        let Ok(length) = usize::from_str_radix(length, 16) else { return body.to_owned() };
        let Some((chunk, more)) = more.split_at_checked(length) else { return body.to_owned() };
        text.push_str(chunk);
        rest = more.trim_start_matches("\r\n");
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn books_are_opened_once_and_a_tenant_opens_its_own() {
    for desk in Desk::both().await {
        let admin = desk.token("admin", None);
        let euros = json!({ "base_currency": "EUR" });
        let (status, book) = desk.call("POST", "/shop/open", &admin, &euros);
        assert_eq!((status, &book["base_currency"]), (201, &json!("EUR")), "{book}");
        assert_eq!(
            (&book["rounding_account"], &book["rate_source"]),
            (&json!("rounding"), &json!("manual")),
            "{book}"
        );
        for (path, code) in
            [("/shop/accounts/none/statement", "unknown_account"), ("/shop/entries/9/proof", "unknown_entry")]
        {
            let (status, refused) = desk.call("GET", path, &admin, &Value::Null);
            assert_eq!((status, &refused["code"]), (404, &json!(code)), "{refused}");
        }
        // The same again finds them; another currency would be other books.
        assert_eq!(desk.call("POST", "/shop/open", &admin, &euros), (200, book));
        let (status, refused) = desk.call("POST", "/shop/open", &admin, &json!({ "base_currency": "USD" }));
        assert_eq!((status, &refused["code"]), (409, &json!("conflict")), "{refused}");

        let accounts = json!([
            { "code": "cash", "name": "Cash", "type": "asset" }, { "code": "rent", "name": "Rent", "type": "expense" },
        ]);
        let own = json!({ "base_currency": "USD", "accounts": accounts, "rules": "" });
        let shop = desk.token("admin", Some("kiosk"));
        assert_eq!(desk.call("POST", "/acme/open", &shop, &own).0, 403);
        let (status, book) = desk.call("POST", "/kiosk/open", &shop, &own);
        assert_eq!((status, &book["rounding_account"]), (201, &json!(null)), "{book}");
        let (_, kept) = desk.call("GET", "/kiosk/accounts", &shop, &Value::Null);
        assert_eq!(kept["accounts"].as_array().unwrap().len(), 2, "{kept}");
        assert_eq!(desk.call("POST", "/none/open", &desk.token("operator", None), &euros).0, 403);
        let bad = [
            (json!({}), 400),
            (json!({ "base_currency": "XXQ" }), 400),
            (json!({ "base_currency": "EUR", "rules": "[" }), 422),
            (json!({ "base_currency": "EUR", "accounts": [accounts[0], accounts[0]] }), 422),
        ];
        for (bad, expected) in bad {
            let (status, refused) = desk.call("POST", "/none/open", &admin, &bad);
            assert_eq!(status, expected, "{bad}: {refused}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_is_read_page_by_page_from_its_end() {
    for desk in Desk::both().await {
        for number in 1..=5 {
            let posted = desk.call("POST", "/acme/entries", "", &entry(&format!("e-{number}"), "10.00"));
            assert_eq!(posted.0, 201, "{posted:?}");
        }
        let page = |before: &str| desk.get(&format!("/acme/accounts/bank/statement?limit=2{before}"));
        let balances = |page: &Value| {
            let movements = page["movements"].as_array().unwrap().iter();
            movements.map(|one| one["balance"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let (mut shown, mut pages) = (Vec::new(), 0);
        let mut next = String::new();
        loop {
            let page = page(&next);
            shown.splice(0..0, balances(&page));
            pages += 1;
            let Some(place) = page["next"].as_str() else { break };
            next = format!("&before={place}");
        }
        assert_eq!(
            (pages, shown),
            (3, ["-10.00", "-20.00", "-30.00", "-40.00", "-50.00"].map(str::to_owned).into())
        );
        let (status, refused) =
            desk.call("GET", "/acme/accounts/bank/statement?before=yesterday", "", &Value::Null);
        assert_eq!((status, &refused["code"]), (422, &json!("invalid_request")), "{refused}");
        let told = desk.folder.run(&["ledger", "--tenant", "acme", "statement", "bank", "--limit", "2"]);
        let told = told.assert(0, "there are earlier ones: --before ");
        let place = told.err.split("--before ").nth(1).unwrap().trim().to_owned();
        let earlier = ["ledger", "--tenant", "acme", "statement", "bank", "--limit", "1", "--before", &place];
        desk.folder.run(&earlier).assert(0, "-30.00");
    }
}
