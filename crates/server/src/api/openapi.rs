//! The OpenAPI 3.1 document, made of the table of routes: what the router does and what it says cannot differ.

use axum::Json;
use serde_json::{Map, Value, json};

use super::table::{Route, Tenants, routes};

/// What bodies and answers look like. A test holds it against what a running server answers.
const SCHEMAS: &str = include_str!("openapi.schemas.json");

/// Bodies that may be left out.
const MAY_BE_EMPTY: [&str; 6] = ["Why", "Step", "Compare", "Lease", "Rotate", "AboutEntry"];

/// `GET /v1/openapi.json`
pub(super) async fn show() -> Json<Value> {
    Json(document())
}

/// The whole document.
pub(crate) fn document() -> Value {
    let mut paths = Map::new();
    for route in routes() {
        let path = paths.entry(format!("/v1{}", route.path)).or_insert_with(|| json!({}));
        path[route.method.to_lowercase()] = operation(route);
    }
    let schemas: Value = serde_json::from_str(SCHEMAS).unwrap_or_default();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Postrider",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            "description": "Every event a service commits reaches every service that wants it, and takes effect once. \
                Errors are application/problem+json (RFC 9457) with a stable code. Lists have an opaque cursor: send `next` \
                back as `cursor`. An Idempotency-Key on a POST makes a repeat get the first answer. What is no HTTP request (400), and a \
                request whose line and headers are too long (431; 64 KiB always fit; 414 where its line alone is), is answered below \
                all of this: with the status alone, no body, and the end of the connection.",
        },
        "servers": [{ "url": "/" }],
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "token": {
                "type": "http",
                "scheme": "bearer",
                "description": "`postrider token create --role operator` makes one. Without any token, callers on the machine itself need none.",
            } },
            "parameters": { "IdempotencyKey": {
                "name": "Idempotency-Key",
                "in": "header",
                "description": "1 to 255 visible ASCII characters, such as a UUID. The same request under the same key is done once: a \
                    repeat gets the first answer, with `idempotency-replayed: true`. A secret is in the first answer alone.",
                "schema": { "type": "string", "minLength": 1, "maxLength": 255 },
            } },
            "responses": {
                "Problem": problem("What went wrong, by a stable code, and what to do"),
                "Unreadable": problem("The request cannot be read, or its key not be used (`invalid_idempotency_key`)"),
                "InTheWay": in_the_way(),
                "Refused": problem("The request breaks a rule, or its key was used for another one (`idempotency_mismatch`)"),
            },
            "schemas": schemas,
        },
    })
}

fn problem(description: &str) -> Value {
    let content = json!({ "application/problem+json": { "schema": reference("Problem") } });
    json!({ "description": description, "content": content })
}

fn in_the_way() -> Value {
    let mut told = problem(
        "It stands against what is there; or a request with its key is being worked on (`idempotency_in_flight`: send it again after \
         Retry-After), or was answered at such length that the answer is not kept (`answer_not_kept`)",
    );
    let seconds = json!({ "type": "integer" });
    told["headers"] = json!({ "Retry-After": { "description": "Seconds", "schema": seconds } });
    told
}

fn operation(route: &Route) -> Value {
    let named = route.path.split('/').filter_map(|part| part.strip_prefix('{')?.split('}').next());
    let in_path = named.map(|name| parameter(name, "path"));
    let in_query = route.query.iter().map(|name| parameter(name, "query"));
    let why = route.logged().map(|_| parameter("reason", "query"));
    let of_posts =
        (route.method == "POST").then(|| json!({ "$ref": "#/components/parameters/IdempotencyKey" }));
    let parameters: Vec<Value> = in_path.chain(in_query).chain(why).chain(of_posts).collect();
    let mut operation = json!({
        "operationId": operation_id(route),
        "summary": route.summary,
        "tags": [route.path.split(['/', ':']).nth(1).unwrap_or_default()],
        "responses": { status(route): answer(route), "default": { "$ref": "#/components/responses/Problem" } },
    });
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if ["/events:batch", "/ledger/{tenant}/import"].contains(&route.path) {
        operation["responses"]["207"] = answer(route);
        operation["responses"]["207"]["description"] =
            "Some were refused, or all of them; the others are committed".into();
    }
    if done_before(route) {
        operation["responses"]["200"] = answer(route);
        operation["responses"]["200"]["description"] = "It was so before; nothing was changed".into();
    }
    if route.path == "/health" || route.path == "/health/ready" {
        operation["responses"]["503"] = answer(route);
        operation["responses"]["503"]["description"] = "Something essential does not work".into();
    }
    if (route.method, route.path) == ("POST", "/events") {
        let told = "Of a batch of CloudEvents some were refused, or all of them; the others are committed";
        let content = json!({ "application/json": { "schema": reference("BatchAnswer") } });
        operation["responses"]["207"] = json!({ "description": told, "content": content });
    }
    match route.role {
        None => operation["security"] = json!([]),
        Some(role) => {
            let whose = match route.tenants {
                Tenants::Own => "A token for one tenant gets what is its own.",
                Tenants::All => "Not for a token that is for one tenant.",
            };
            operation["description"] = format!("Needs the role {}. {whose}", role.as_str()).into();
        }
    }
    if route.method == "POST" {
        let schema = route.body.map_or_else(|| json!({ "type": ["object", "array"] }), reference);
        let mut content = json!({ "application/json": { "schema": schema } });
        for (kind, what) in cloud_events(route.path) {
            content[*kind] = json!({ "schema": { "description": what } });
        }
        let needed = route.body.is_some_and(|name| !MAY_BE_EMPTY.contains(&name));
        for (status, name) in [("400", "Unreadable"), ("409", "InTheWay"), ("422", "Refused")] {
            operation["responses"][status] = json!({ "$ref": format!("#/components/responses/{name}") });
        }
        operation["requestBody"] = json!({ "required": needed, "content": content });
    }
    operation
}

/// The other forms in which events may come.
fn cloud_events(path: &str) -> &'static [(&'static str, &'static str)] {
    const ONE: (&str, &str) = ("application/cloudevents+json", "A CloudEvent 1.0 as JSON");
    const MANY: (&str, &str) = ("application/cloudevents-batch+json", "An array of CloudEvents");
    const BINARY: (&str, &str) = ("*/*", "With ce- headers: the payload of a CloudEvent");
    match path {
        "/events" => &[ONE, MANY, BINARY],
        "/events:batch" => &[MANY],
        _ => &[],
    }
}

fn parameter(name: &str, place: &str) -> Value {
    let schema = match name {
        "limit" => json!({ "type": "integer", "minimum": 1, "maximum": 200 }),
        "min_attempts" | "max_attempts" => json!({ "type": "integer", "minimum": 0 }),
        _ => json!({ "type": "string" }),
    };
    json!({ "name": name, "in": place, "required": place == "path", "schema": schema })
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn status(route: &Route) -> &'static str {
    match (route.method, route.path) {
        (
            "POST",
            "/events"
            | "/events:batch"
            | "/operations"
            | "/dlq/messages/{id}/edit"
            | "/migrations/{name}/compare"
            | "/migrations/{name}/finish",
        ) => "202",
        ("POST", "/tokens" | "/subscriptions" | "/progress" | "/migrations") => "201",
        ("POST", path) if path.starts_with("/ledger/") => "201",
        ("DELETE", _) | ("POST", "/consumers/{name}/release") => "204",
        _ => "200",
    }
}

/// What is asked for may be there already, which is another answer than that it was made.
fn done_before(route: &Route) -> bool {
    const THESE: [&str; 4] = [
        "/ledger/{tenant}/open",
        "/ledger/{tenant}/entries",
        "/ledger/{tenant}/rules",
        "/ledger/{tenant}/checkpoints",
    ];
    route.method == "POST" && THESE.contains(&route.path)
}

fn answer(route: &Route) -> Value {
    if route.path == "/ledger/{tenant}/export" {
        let text = json!({ "schema": { "type": "string" } });
        let content = json!({ "application/jsonl": text, "text/csv": text, "text/plain": text });
        return json!({ "description": route.summary, "content": content });
    }
    let kind = match route.path {
        "/stream" => "text/event-stream",
        "/metrics" => "text/plain",
        "/topology/diagram.svg" => "image/svg+xml",
        _ => "application/json",
    };
    if status(route) == "204" {
        return json!({ "description": "Done" });
    }
    let schema = match (route.answer, kind) {
        (Some(name), _) => reference(name),
        (None, "application/json") => json!({ "type": "object" }),
        (None, _) => json!({ "type": "string" }),
    };
    json!({ "description": route.summary, "content": { kind: { "schema": schema } } })
}

/// `getEventsByIdTimeline`
fn operation_id(route: &Route) -> String {
    let capital = |word: &str| {
        let mut letters = word.chars();
        letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
    };
    let words = route.path.split(['/', ':', '-', '.', '_']).filter(|word| !word.is_empty());
    let words = words.map(|word| match word.strip_prefix('{') {
        Some(name) => format!("By{}", capital(name.trim_end_matches('}'))),
        None => capital(word),
    });
    route.method.to_lowercase() + &words.collect::<String>()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_document_holds_together() {
        let document = document();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        assert!(schemas.len() > 20, "the schemas can be read");
        let mut ids = HashSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                let id = operation["operationId"].as_str().unwrap();
                assert!(ids.insert(id.to_owned()), "{id} is there twice");
                assert!(!operation["summary"].as_str().unwrap().is_empty());
                let named = path.matches('{').count();
                let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
                let given = parameters.iter().filter(|one| one["in"] == "path").count();
                assert_eq!(named, given, "{method} {path}");
                let key = json!({ "$ref": "#/components/parameters/IdempotencyKey" });
                assert_eq!(parameters.contains(&key), method == "post", "{method} {path}");
            }
        }
        assert_eq!(ids.len(), routes().count());
        // A batch of CloudEvents may come to either path, and is answered as one.
        let published = &document["paths"]["/v1/events"]["post"]["responses"];
        assert_eq!(published["202"]["content"]["application/json"]["schema"], reference("Taken"));
        assert_eq!(published["207"]["content"]["application/json"]["schema"], reference("BatchAnswer"));
        // Every reference leads somewhere.
        let text = document.to_string();
        for part in text.split("\"#/").skip(1) {
            let place = part.split('"').next().unwrap();
            assert!(document.pointer(&format!("/{place}")).is_some(), "there is no {place}");
        }
    }
}
