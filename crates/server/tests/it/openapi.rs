//! The document and the server say the same: every answer has what its schema says, and nothing else. And lists go on page by page.

use serde_json::{Value, json};

use super::process::{Folder, Serving};

fn letter(number: u32) -> Value {
    let at = format!("2026-11-15T10:00:{number:02}Z");
    json!({
        "key": format!("key-{number}"), "event_id": format!("evt_{number}"), "event_type": "shop.order.placed",
        "tenant": "acme", "aggregate_id": format!("order-{number}"), "ordering_key": null, "consumer": "billing",
        "queue": "billing", "exchange": "postrider.events", "routing_key": "shop.order.placed",
        "reason": "retries_exhausted", "error": "no account", "error_class": null, "attempts": 11,
        "first_failed_at": at, "dead_at": at, "properties": { "message_id": format!("evt_{number}") },
        "headers": {}, "body": "eyJ0b3RhbCI6MX0=",
    })
}

/// A shop with a little of everything.
fn shop() -> (Folder, Serving) {
    let folder = Folder::new();
    let config = "[egress]\nallow = ['127.0.0.1', 'http']\n[migration]\nlegacy_exchange = 'old'\nevents = ['never.#']\n\
        [[exchange]]\nname = 'old'\nkind = 'fanout'\n\
        [[queue]]\nname = 'billing'\nbind = ['shop.order.*']\n[[consumer]]\nname = 'billing'\n\
        [[push]]\nname = 'mail'\nkeys = ['never.*']\nurl = 'http://127.0.0.1:1/'\n";
    folder.write("postrider.toml", config);
    let letters: Vec<String> = (0..3).map(|number| letter(number).to_string()).collect();
    folder.run_with(&["dlq", "import", "-"], &letters.join("\n")).assert(0, "3 dead letters");
    for id in ["evt_a", "evt_b", "evt_c"] {
        folder
            .run(&["publish", "shop.order.placed", "--data", "{}", "--id", id, "--tenant", "acme"])
            .assert(0, id);
    }
    keep_books(&folder);
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    (folder, serving)
}

/// One entry, in a checkpoint.
fn keep_books(folder: &Folder) {
    let books = |args: &[&str]| folder.run(&[&["ledger", "--tenant", "acme"], args].concat());
    books(&["accounts", "init", "--base", "EUR"]).assert(0, "opened");
    books(&["rates", "add", "USD", "0.92", "--on", "2026-01-01"]).assert(0, "0.92");
    folder.write("opening.csv", "account,side,amount,currency\nbank,debit,1,EUR\nsales,credit,1,EUR\n");
    books(&["import", "opening.csv", "--on", "2026-01-01"]).assert(0, "1");
    books(&["periods", "close", "2025"]).assert(0, "sealed");
    books(&["checkpoint"]).assert(0, "root");
}

fn get(serving: &Serving, path: &str) -> Value {
    let (status, _, body) = serving.http("GET", path, &[], "");
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error} in {body}"))
}

fn post(serving: &Serving, path: &str, body: &Value) -> (u16, Value) {
    let (status, _, answer) = serving.http("POST", path, &[], &body.to_string());
    (status, serde_json::from_str(&answer).unwrap_or(Value::Null))
}

/// Where a value is not what a schema says.
fn differs(document: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    if let Some(name) = schema["$ref"].as_str() {
        let found = document.pointer(name.trim_start_matches('#')).unwrap_or_else(|| panic!("no {name}"));
        return differs(document, found, value, at);
    }
    if let Some(choices) = schema["anyOf"].as_array() {
        let fits = choices.iter().any(|choice| differs(document, choice, value, at).is_empty());
        return if fits { Vec::new() } else { vec![format!("{at}: {value} is none of them")] };
    }
    if let Some(words) = schema["enum"].as_array() {
        return if words.contains(value) {
            Vec::new()
        } else {
            vec![format!("{at}: {value} is no such word")]
        };
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let mut allowed: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(many) => many.iter().filter_map(Value::as_str).collect(),
        _ => return Vec::new(),
    };
    if allowed.contains(&"number") {
        allowed.push("integer");
    }
    if !allowed.contains(&kind) {
        return vec![format!("{at}: {value} is {kind}, not {allowed:?}")];
    }
    let mut found = Vec::new();
    if let (Some(items), Some(values)) = (schema.get("items"), value.as_array()) {
        found.extend(values.iter().flat_map(|value| differs(document, items, value, &format!("{at}[]"))));
    }
    if let (Some(properties), Some(members)) = (schema["properties"].as_object(), value.as_object()) {
        for (name, member) in members {
            match properties.get(name) {
                Some(inner) => found.extend(differs(document, inner, member, &format!("{at}.{name}"))),
                None if schema["additionalProperties"] == true => {}
                None => found.push(format!("{at}.{name} is not in the document")),
            }
        }
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        let missing = required.iter().filter_map(Value::as_str).filter(|name| !members.contains_key(*name));
        found.extend(missing.map(|name| format!("{at}.{name} is missing")));
    }
    found
}

#[test]
fn every_answer_is_what_the_document_says() {
    let (folder, serving) = shop();
    let document = get(&serving, "/v1/openapi.json");
    let generated = folder.run(&["generate", "openapi"]).assert(0, "").json();
    assert_eq!(document, generated, "the command line prints what the server says");

    let filter = json!({ "reason": "retries_exhausted" });
    let (status, planned) =
        post(&serving, "/v1/plans", &json!({ "kind": "discard_letters", "filter": filter, "limit": 1 }));
    assert_eq!((status, &planned["plan"]["total"]), (200, &json!(1)), "{planned}");
    let correct = |edit: &Value| {
        post(&serving, "/v1/plans", &json!({ "kind": "edit_letters", "filter": filter, "edit": edit }))
    };
    let (status, corrected) = correct(&json!({ "merge": { "currency": "EUR" } }));
    let after = corrected["plan"]["trial"]["example"]["after"].as_str().unwrap_or_default();
    assert!(status == 200 && after.contains("\"currency\":\"EUR\""), "{corrected}");
    let asked = &corrected["operation"];
    assert_eq!(differs(&document, &json!({ "$ref": "#/components/schemas/Asked" }), asked, "asked"), [""; 0]);
    assert_eq!(correct(&json!({ "patch": [{ "op": "explode", "path": "/a" }] })).0, 400);
    let without = json!({ "kind": "edit_letters", "filter": filter });
    assert_eq!(post(&serving, "/v1/plans", &without).0, 422, "nothing is corrected");
    let inexact = r#"{"kind":"edit_letters","all":true,"edit":{"merge":{"total":12345678901234567890.12}}}"#;
    assert_eq!(serving.http("POST", "/v1/plans", &[], inexact).0, 422, "a number would be another");
    let mut asked = planned["operation"].clone();
    assert_eq!(post(&serving, "/v1/operations", &asked).0, 400, "an operation needs a reason");
    asked["reason"] = json!("test data");
    let (status, operation) = post(&serving, "/v1/operations", &asked);
    assert_eq!(status, 202, "{operation}");
    let id = operation["id"].as_str().unwrap();
    assert_eq!(post(&serving, "/v1/tokens", &json!({ "role": "boss" })).0, 422);
    let samples = get(&serving, "/v1/dlq/groups")["groups"][0]["samples"].clone();
    let by_attempts = [("min_attempts=11", true), ("min_attempts=12", false), ("max_attempts=10", false)];
    for (asked, found) in by_attempts {
        let listed = get(&serving, &format!("/v1/dlq/messages?status=all&{asked}"));
        assert_eq!(listed["messages"].as_array().is_some_and(|some| !some.is_empty()), found, "{listed}");
    }

    let made = |path: &str, body: &Value| {
        let (status, answer) = post(&serving, path, body);
        assert_eq!(status, 201, "{path}: {answer}");
    };
    made("/v1/migrations", &json!({ "reason": "we move" }));
    made("/v1/progress", &json!({ "id": "job-1" }));
    let line = |account: &str, side: &str| json!({ "account": account, "side": side, "amount": "1.00", "currency": "EUR" });
    let lines = [line("fees", "debit"), line("bank", "credit")];
    made("/v1/ledger/acme/entries", &json!({ "effectiveOn": "2026-03-01", "lines": lines }));

    let mut held = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let schema = &methods["get"]["responses"]["200"]["content"]["application/json"]["schema"];
        if schema["$ref"].is_null() {
            continue;
        }
        let asked = match path.as_str() {
            "/v1/events/{id}" | "/v1/events/{id}/timeline" => path.replace("{id}", "evt_a"),
            "/v1/dlq/messages/{id}" => path.replace("{id}", samples[0].as_str().unwrap()),
            "/v1/operations/{id}" => path.replace("{id}", id),
            "/v1/progress/{job}" => path.replace("{job}", "job-1"),
            "/v1/migrations/{name}" => path.replace("{name}", "old-bus"),
            ledger if ledger.starts_with("/v1/ledger/") => {
                path.replace("{tenant}", "acme").replace("{account}", "bank").replace("{entry}", "1")
            }
            push if push.starts_with("/v1/subscriptions/") => path.replace("{name}", "mail"),
            _ => path.replace("{name}", "billing"),
        };
        let answer = get(&serving, &asked);
        let found = differs(&document, schema, &answer, path);
        assert!(found.is_empty(), "{found:#?}");
        held += 1;
    }
    assert!(held >= 31, "{held}");
    every_answer_has_a_schema(&document);
    for (name, answer) in [("Planned", &planned), ("Operation", &operation)] {
        let schema = json!({ "$ref": format!("#/components/schemas/{name}") });
        assert_eq!(differs(&document, &schema, answer, name), Vec::<String>::new());
    }
    only_open_letters_are_planned_for(&serving);
    let (status, problem) = post(&serving, "/v1/plans", &json!({ "kind": "replay_letters" }));
    let schema = json!({ "$ref": "#/components/schemas/Problem" });
    assert_eq!((status, differs(&document, &schema, &problem, "problem")), (422, Vec::new()));
    for wrong in [
        "/v1/dlq/messages?colour=red",
        "/v1/operations/none",
        "/v1/events?limit=many",
        "/v1/events?limit=0",
        "/v1/dlq/messages?limit=0",
        "/v1/dlq/messages?min_attempts=few",
        "/v1/dlq/groups?limit=0",
        "/v1/operations?limit=0",
        "/v1/audit-log?limit=0",
        "/v1/progress?limit=0",
        "/v1/ledger/acme/entries?limit=0",
        "/v1/ledger/acme/entries/first",
        "/v1/ledger/acme/balances?at=yesterday",
        "/v1/ledger/acme/export?format=pdf",
    ] {
        let (status, headers, _) = serving.http("GET", wrong, &[], "");
        assert!(status == 422 && headers.contains("application/problem+json"), "{wrong}: {headers}");
    }
}

/// Every body and every answer has a schema of its own.
fn every_answer_has_a_schema(document: &Value) {
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let said = operation["responses"].as_object().unwrap().values().next().unwrap();
            let schema = &said["content"]["application/json"]["schema"];
            let plain = said["content"].is_null() || !said["content"]["application/json"].is_object();
            let open = operation["security"] == json!([]);
            assert!(plain || open || !schema["$ref"].is_null(), "{method} {path} has no schema");
        }
    }
}

/// Those that are over cannot be sent again, and the open ones are not meant.
fn only_open_letters_are_planned_for(serving: &Serving) {
    for path in ["/v1/plans", "/v1/operations"] {
        let over = json!({ "kind": "replay_letters", "filter": { "status": "discarded" }, "reason": "oops" });
        let over = if path == "/v1/plans" {
            json!({ "kind": over["kind"], "filter": over["filter"] })
        } else {
            over
        };
        let (status, problem) = post(serving, path, &over);
        assert!(status == 422 && problem.to_string().contains("only open dead letters"), "{problem}");
    }
    let empty = json!({ "kind": "replay_letters", "filter": { "text": "" } });
    assert_eq!(post(serving, "/v1/plans", &empty).0, 422, "an empty text is in everything");
}

#[test]
fn corrections_of_headers_are_planned_as_the_document_says() {
    let (_folder, serving) = shop();
    let document = get(&serving, "/v1/openapi.json");
    let filter = json!({ "reason": "retries_exhausted" });
    let of_headers = |headers: Value| {
        post(&serving, "/v1/plans", &json!({ "kind": "edit_letters", "filter": filter, "headers": headers }))
    };
    let (status, corrected) = of_headers(json!({ "set": { "region": "eu" }, "remove": ["debug"] }));
    let changed = &corrected["plan"]["trial"]["example"]["headers"];
    assert_eq!(
        (status, &changed[0]["name"], &changed[0]["after"]),
        (200, &json!("region"), &json!("eu")),
        "{corrected}"
    );
    let asked = &corrected["operation"];
    assert_eq!(differs(&document, &json!({ "$ref": "#/components/schemas/Asked" }), asked, "asked"), [""; 0]);
    let (status, refused) = of_headers(json!({ "set": { "x-event-id": "evt_other" } }));
    assert!(
        status == 400 && refused.to_string().contains("x-event-id cannot be edited"),
        "{status} {refused}"
    );
}

/// What is between backticks.
fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_body_has_the_members_that_the_document_says() {
    let (_folder, serving) = shop();
    let document = get(&serving, "/v1/openapi.json");
    let mut held = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let schema = &methods["post"]["requestBody"]["content"]["application/json"]["schema"];
        let Some(name) = schema["$ref"].as_str() else { continue };
        let schema = document.pointer(name.trim_start_matches('#')).unwrap();
        let schema = schema["items"]["$ref"]
            .as_str()
            .map_or(schema, |of| document.pointer(of.trim_start_matches('#')).unwrap());
        // A member that nobody knows is refused with the names of those that are known.
        let mut body = json!({ "no_such_member": 1 });
        for required in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let word = &schema["properties"][required]["enum"][0];
            body[required] = if word.is_null() { json!("shop.order.placed") } else { word.clone() };
        }
        // Each of their events or lines is judged for itself.
        if path.ends_with(":batch") || path.ends_with("/import") {
            continue;
        }
        let path = path.replace("{tenant}", "acme").replace("{entry}", "1").replace("{queue}", "billing");
        let path = path.replace("{name}", "mail").replace("{job}", "job-1").replace("{id}", "1");
        let (_, headers, answer) =
            serving.http("POST", &path, &[("content-type", "application/json")], &body.to_string());
        let detail = serde_json::from_str::<Value>(&answer).unwrap_or_default();
        let detail = detail["detail"].as_str().unwrap_or_default();
        let Some((_, known)) = detail.split_once("unknown field `no_such_member`, ") else {
            assert!(headers.starts_with("http/1.1 4"), "{path} took it: {headers}");
            continue;
        };
        let mut known = quoted(known);
        // What is read before the rest, or by one of several forms alone.
        match name.rsplit('/').next().unwrap() {
            "NewSubscription" => known.extend(["signing", "reason"].map(str::to_owned)),
            "Asked" => known.push("reason".to_owned()),
            "JobStep" => known.extend(["step", "page", "found"].map(str::to_owned)),
            _ => {}
        }
        known.sort();
        let mut said: Vec<_> = schema["properties"].as_object().unwrap().keys().cloned().collect();
        said.sort();
        assert_eq!(said, known, "{path}");
        held += 1;
    }
    assert!(held >= 20, "{held}");
}

#[test]
fn lists_go_on_page_by_page_and_keep_to_the_tenant() {
    let (folder, serving) = shop();
    for (path, list) in [("/v1/events", "events"), ("/v1/dlq/messages", "messages")] {
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = get(&serving, &format!("{path}?limit=1{cursor}"));
            let rows = page[list].as_array().unwrap();
            seen.extend(rows.iter().map(|row| row["id"].clone()));
            let Some(next) = page["next"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        let mut once = seen.clone();
        once.dedup();
        assert_eq!((seen.len(), once.len()), (3, 3), "{path}: {seen:?}");
    }
    let timeline = get(&serving, "/v1/events/evt_a/timeline");
    assert_eq!(timeline["steps"][0]["place"], "outbox", "{timeline}");

    let bearer = |tenant: &str| {
        let made = folder.run(&["token", "create", "--role", "operator", "--tenant", tenant]);
        format!("Bearer {}", made.assert(0, "prt_").out.trim())
    };
    let (own, other) = (bearer("acme"), bearer("other"));
    let ask = |bearer: &str, path: &str| {
        let (status, _, body) = serving.http("GET", path, &[("authorization", bearer)], "");
        (status, serde_json::from_str::<Value>(&body).unwrap())
    };
    for (path, list, count) in
        [("/v1/events", "events", 3), ("/v1/dlq/messages", "messages", 3), ("/v1/dlq/groups", "groups", 1)]
    {
        assert_eq!(ask(&own, path).1[list].as_array().map(Vec::len), Some(count), "{path}");
        assert_eq!(ask(&other, path).1[list].as_array().map(Vec::len), Some(0), "{path}");
    }
    for path in ["/v1/events/evt_a", "/v1/events/evt_a/timeline", "/v1/dlq/messages/1"] {
        assert_eq!((ask(&own, path).0, ask(&other, path).0), (200, 404), "{path}");
    }
    let wanted =
        json!({ "kind": "discard_letters", "filter": { "tenant": "acme" }, "all": true, "reason": "x" });
    let (status, _, body) =
        serving.http("POST", "/v1/operations", &[("authorization", &other)], &wanted.to_string());
    assert_eq!(status, 403, "{body}");
}
