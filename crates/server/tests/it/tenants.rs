//! A token for one tenant: whatever it asks for, nothing of another tenant is in the answer.

use serde_json::{Value, json};

use super::process::{Folder, Serving};

/// The tenant that asks, and the one of whom it must not hear. What is the other's has this word in it.
const OWN: &str = "acme";
const OTHER: &str = "shadow";
const WORD: &str = "umbra";

/// A dead letter of a tenant.
fn letter(tenant: &str, word: &str, which: &str) -> Value {
    let at = "2026-11-15T10:00:00Z";
    json!({
        "key": format!("{which}-key-{tenant}"), "event_id": format!("{which}-{tenant}"),
        "event_type": format!("shop.{word}.placed"), "tenant": tenant, "aggregate_id": format!("{word}-1"),
        "ordering_key": null, "consumer": "billing", "queue": "billing", "exchange": "postrider.events",
        "routing_key": format!("shop.{word}.placed"), "reason": "retries_exhausted",
        "error": format!("no account {word}"), "error_class": word, "attempts": 11,
        "first_failed_at": at, "dead_at": at, "properties": { "message_id": format!("{which}-{tenant}") },
        "headers": {}, "body": "eyJ0b3RhbCI6MX0=",
    })
}

/// Everything a tenant can have: an event, a dead letter, books, and, once it is served, a job and an operation.
fn settle(folder: &Folder, tenant: &str, word: &str) {
    let data = json!({ "who": word }).to_string();
    let (id, kind) = (format!("event-{tenant}"), format!("shop.{word}.placed"));
    folder.run(&["publish", &kind, "--data", &data, "--id", &id, "--tenant", tenant]).assert(0, &id);
    for which in ["letter", "unwanted"] {
        let letter = letter(tenant, word, which).to_string();
        folder.run_with(&["dlq", "import", "-"], &letter).assert(0, "1 dead letter");
    }
    // One that died of the same as the other tenant's: what differs is no part of the reason.
    let mut shared = letter(tenant, word, "shared");
    shared["event_type"] = json!("shop.order.placed");
    shared["error_class"] = Value::Null;
    shared["error"] = json!(format!("no mail to {word}@{tenant}.example"));
    folder.run_with(&["dlq", "import", "-"], &shared.to_string()).assert(0, "1 dead letter");
    if tenant == OTHER {
        // One that came under the id of somebody else's event.
        let mut same_id = letter(tenant, word, "same-id");
        same_id["event_id"] = json!(format!("event-{OWN}"));
        folder.run_with(&["dlq", "import", "-"], &same_id.to_string()).assert(0, "1 dead letter");
    }
    let books = |args: &[&str]| folder.run(&[&["ledger", "--tenant", tenant], args].concat());
    books(&["accounts", "init", "--base", "EUR"]).assert(0, "opened");
    books(&["rates", "add", "USD", "0.92", "--on", "2026-01-01"]).assert(0, "0.92");
    folder.write("opening.csv", "account,side,amount,currency\nbank,debit,1,EUR\nsales,credit,1,EUR\n");
    books(&["import", "opening.csv", "--on", "2026-01-01"]).assert(0, "1");
    books(&["checkpoint"]).assert(0, "root");
}

struct Two {
    folder: Folder,
    serving: Serving,
    own: String,
    admin: String,
}

impl Two {
    fn open() -> Self {
        let folder = Folder::new();
        let config =
            "[[queue]]\nname = 'billing'\nbind = ['shop.*.placed']\n[[consumer]]\nname = 'billing'\n";
        folder.write("postrider.toml", config);
        settle(&folder, OWN, "daylight");
        settle(&folder, OTHER, WORD);
        let bearer = |args: &[&str]| {
            let made = folder.run(&[&["token", "create", "--role", "operator"], args].concat());
            format!("Bearer {}", made.assert(0, "prt_").out.trim())
        };
        let (own, other, admin) = (bearer(&["--tenant", OWN]), bearer(&["--tenant", OTHER]), bearer(&[]));
        let mut serving = folder.serve(&[]);
        serving.wait_for("serving");
        for (bearer, tenant, word) in [(&own, OWN, "daylight"), (&other, OTHER, WORD)] {
            let post = |path: &str, body: Value| {
                let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
                let (status, _, answer) = serving.http("POST", path, &headers, &body.to_string());
                assert!((200..300).contains(&status), "{path}: {status} {answer}");
            };
            post(
                "/v1/progress",
                json!({ "id": format!("job-{tenant}"), "tenant": tenant, "announces": format!("{word}.done") }),
            );
            let discard = json!({ "kind": "discard_letters", "filter": { "tenant": tenant, "event_id": format!("unwanted-{tenant}") }, "reason": word });
            post("/v1/operations", discard);
        }
        Self { folder, serving, own, admin }
    }

    fn get(&self, bearer: &str, path: &str) -> (u16, String) {
        let (status, _, body) = self.serving.http("GET", path, &[("authorization", bearer)], "");
        (status, body)
    }

    /// A path of the document with a tenant's own things in it.
    fn filled(&self, path: &str, tenant: &str) -> String {
        let find = |list: &str, name: &str, belongs: &dyn Fn(&Value) -> bool| {
            let page: Value = serde_json::from_str(&self.get(&self.admin, list).1).unwrap();
            let rows = page[name].as_array().unwrap_or_else(|| panic!("{page}")).clone();
            let row = rows.iter().find(|row| belongs(row)).unwrap_or_else(|| panic!("{page}"));
            row["id"].to_string().trim_matches('"').to_owned()
        };
        let id = if path.starts_with("/v1/dlq/messages/{id}") {
            find("/v1/dlq/messages", "messages", &|row| row["event_id"] == format!("letter-{tenant}"))
        } else if path.starts_with("/v1/operations/{id}") {
            find("/v1/operations", "operations", &|row| row.to_string().contains(tenant))
        } else {
            format!("event-{tenant}")
        };
        let path = path.replace("{id}", &id).replace("{tenant}", tenant).replace("{entry}", "1");
        let path = path.replace("{job}", &format!("job-{tenant}")).replace("{account}", "bank");
        assert!(!path.contains('{'), "say what {path} is to be asked for");
        path
    }
}

#[test]
fn a_tenants_token_sees_nothing_of_another_tenant_on_any_route() {
    let two = Two::open();
    let document: Value = serde_json::from_str(&two.get(&two.admin, "/v1/openapi.json").1).unwrap();
    // Figures are of all tenants together.
    assert_eq!((two.get(&two.own, "/v1/metrics").0, two.get(&two.admin, "/v1/metrics").0), (403, 200));
    let (mut lists, mut single) = (0, 0);
    for (path, methods) in document["paths"].as_object().unwrap() {
        let described = methods["get"]["description"].as_str().unwrap_or_default();
        if !described.contains("gets what is its own") {
            continue;
        }
        let silent = |asked: &str, answer: &str| {
            assert!(!answer.contains(WORD), "{asked} tells of another tenant: {answer}");
        };
        if path.contains('{') {
            let (mine, theirs) = (two.filled(path, OWN), two.filled(path, OTHER));
            let (status, answer) = two.get(&two.own, &mine);
            assert!(status == 200, "{mine}: {status} {answer}");
            assert!(!answer.contains(OTHER), "{mine}: {answer}");
            silent(&mine, &answer);
            let (status, answer) = two.get(&two.own, &theirs);
            assert!([403, 404].contains(&status), "{theirs}: {status} {answer}");
            silent(&theirs, &answer);
            assert_eq!(two.get(&two.admin, &theirs).0, 200, "{theirs} is there");
            single += 1;
            continue;
        }
        let (status, all) = two.get(&two.admin, path);
        assert!(status == 200 && (all.contains(WORD) || all.contains(OTHER)), "{path} has both: {all}");
        let asks = |name: &str| {
            let asked = methods["get"]["parameters"].as_array();
            asked.is_some_and(|asked| asked.iter().any(|one| one["name"] == name))
        };
        let mut asked = vec![path.clone()];
        asked.extend(asks("tenant").then(|| format!("{path}?tenant={OTHER}")));
        asked.extend(asks("type").then(|| format!("{path}?type=shop.{WORD}.placed")));
        asked.extend(asks("limit").then(|| format!("{path}?limit=1")));
        for asked in asked {
            let (status, answer) = two.get(&two.own, &asked);
            assert!([200, 403].contains(&status), "{asked}: {status} {answer}");
            if !asked.contains("tenant=") {
                assert!(!answer.contains(OTHER), "{asked}: {answer}");
            }
            if asked.contains("type=") {
                let answer: Value = serde_json::from_str(&answer).unwrap();
                let rows = answer.as_object().unwrap().values().filter_map(Value::as_array);
                assert_eq!(rows.map(Vec::len).sum::<usize>(), 0, "{asked}: {answer}");
            } else {
                silent(&asked, &answer);
            }
        }
        // A cursor of somebody who sees all leads no further either.
        let page: Value = serde_json::from_str(&two.get(&two.admin, &format!("{path}?limit=1")).1).unwrap();
        if let Some(next) = page["next"].as_str() {
            let asked = format!("{path}?cursor={next}");
            let (_, answer) = two.get(&two.own, &asked);
            assert!(!answer.contains(WORD) && !answer.contains(OTHER), "{asked}: {answer}");
        }
        lists += 1;
    }
    assert!(lists >= 6 && single >= 15, "{lists} lists, {single} others");
}

/// The other tenant's is newer, and a page has one.
#[test]
fn a_tenants_operations_are_found_behind_those_of_others() {
    let two = Two::open();
    let page = |bearer: &str| -> Value {
        serde_json::from_str(&two.get(bearer, "/v1/operations?limit=1").1).unwrap()
    };
    let (own, all) = (page(&two.own), page(&two.admin));
    assert_eq!(all["operations"][0]["plan"]["filter"]["tenant"], OTHER, "{all}");
    assert_eq!(own["operations"][0]["plan"]["filter"]["tenant"], OWN, "{own}");
    assert_eq!(own["operations"].as_array().map(Vec::len), Some(1), "{own}");
}

/// An entry that only the books have, under one id in both: whoever asks finds the own one, and not the first there is.
#[test]
fn a_tenant_finds_its_own_entry_also_where_another_has_one_of_its_id() {
    let two = Two::open();
    let entry = json!({ "id": "same", "effectiveOn": "2026-01-02", "lines": [
        { "account": "bank", "side": "debit", "amount": "1", "currency": "EUR" },
        { "account": "sales", "side": "credit", "amount": "1", "currency": "EUR" },
    ]});
    let make = ["token", "create", "--role", "viewer", "--tenant", OTHER];
    let other = format!("Bearer {}", two.folder.run(&make).assert(0, "prt_").out.trim());
    for (bearer, tenant) in [(&two.own, OWN), (&other, OTHER)] {
        let headers = [("authorization", two.admin.as_str()), ("content-type", "application/json")];
        let path = format!("/v1/ledger/{tenant}/entries");
        let (status, _, answer) = two.serving.http("POST", &path, &headers, &entry.to_string());
        assert_eq!(status, 201, "{answer}");
        let (status, answer) = two.get(bearer, "/v1/events/same/timeline");
        assert!(status == 200 && answer.contains(tenant), "{tenant}: {status} {answer}");
    }
}

/// Health is for everybody, and says of nobody's events.
#[test]
fn health_says_the_same_to_a_tenant_as_to_all() {
    let two = Two::open();
    for path in ["/v1/health", "/v1/health/ready", "/v1/health/live"] {
        let (status, answer) = two.get(&two.own, path);
        assert!(status == 200 && !answer.contains(WORD) && !answer.contains(OTHER), "{path}: {answer}");
    }
}

/// The pages, too: what a tenant may see has nothing of the other's, and what shows all is refused.
#[test]
fn a_tenants_pages_show_nothing_of_another_tenant() {
    let two = Two::open();
    let (status, cookie) = two.serving.sign_in(two.own.strip_prefix("Bearer ").unwrap());
    assert_eq!(status, 303, "{cookie}");
    let cookie = cookie.split(';').next().unwrap();
    let mut shown = 0;
    for page in [
        "",
        "/failures",
        "/letters",
        "/events",
        "/outbox",
        "/consumers",
        "/topology",
        "/push",
        "/jobs",
        "/migration",
        "/ledger",
        "/operations",
        "/audit-log",
        "/tokens",
        "/events/event-shadow",
        "/ledger/shadow",
        "/failures?tenant=shadow",
        "/letters?tenant=shadow",
        "/events?tenant=shadow",
        "/jobs?tenant=shadow",
    ] {
        let (status, _, answer) =
            two.serving.http("GET", &format!("/dashboard{page}"), &[("cookie", cookie)], "");
        // The overview is everybody's; a tenant is shown to its failures.
        assert!([200, 403, 404].contains(&status) || page.is_empty(), "{page}: {status}");
        assert!(!answer.contains(WORD), "{page} tells of another tenant: {answer}");
        assert!(page.contains(OTHER) || !answer.contains(OTHER), "{page} names another tenant: {answer}");
        shown += usize::from(status == 200);
    }
    assert!(shown >= 6, "{shown} pages were shown");
    two.folder.run(&["audit"]);
}
