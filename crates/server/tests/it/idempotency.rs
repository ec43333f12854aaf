//! `Idempotency-Key` through the real binary: two processes on PostgreSQL, RabbitMQ and a Redis of their own.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use postrider_testkit::servers::{Redis, TestDatabase, TestVhost};
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};

use super::networked;
use super::process::{Folder, Serving};

/// Everything that answers, and a token for each who asks.
struct Stage {
    folder: Folder,
    database: TestDatabase,
    _vhost: TestVhost,
    redis: Redis,
    admin: String,
    other: String,
}

/// What of an answer a repeat has to have too.
#[derive(Debug, PartialEq)]
struct Told {
    status: u16,
    kind: String,
    body: String,
}

impl Told {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    fn is(&self, status: u16, code: &str) -> bool {
        self.status == status && self.json()["code"] == code
    }
}

/// What is sent, with another body for the same key, and the rows that tell how often it took effect.
struct Case {
    path: String,
    body: Value,
    other: Value,
    status: u16,
    rows: &'static str,
}

impl Stage {
    async fn new() -> Self {
        let (folder, database, vhost) = networked::servers().await;
        let redis = Redis::start().await.unwrap();
        let folder = folder.with("REDIS_URL", &redis.url());
        // However slow the machine is, Redis is asked and told.
        let folder = folder.with("POSTRIDER_REDIS__IDEMPOTENCY_LIMIT_MS", "10000");
        folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
        folder.run(&["ledger", "--tenant", "acme", "accounts", "init", "--base", "EUR"]).assert(0, "opened");
        let letters = [letter(1), letter(2)].map(|letter| letter.to_string()).join("\n");
        folder.run_with(&["dlq", "import", "-"], &letters).assert(0, "2 dead letters");
        let token = || format!("Bearer {}", folder.run(&["token", "create", "--role", "admin"]).out.trim());
        let (admin, other) = (token(), token());
        Self { folder, database, _vhost: vhost, redis, admin, other }
    }

    async fn count(&self, sql: &'static str) -> i64 {
        let mut connection = PgConnection::connect(&self.database.url).await.unwrap();
        sqlx::query_scalar(sql).fetch_one(&mut connection).await.unwrap()
    }

    /// As a process that died before it could keep its answer leaves it, once the lease is over.
    async fn forget_answers(&self) {
        let mut connection = PgConnection::connect(&self.database.url).await.unwrap();
        let forget = "UPDATE postrider.claim SET response = NULL, lease_until = now() - interval '1 second'";
        sqlx::raw_sql(forget).execute(&mut connection).await.unwrap();
        self.redis.cli(&["FLUSHALL"]).await.unwrap();
    }

    /// A POST under a key; whether the answer was a repeated one.
    fn post(&self, to: &Serving, path: &str, key: &str, body: &Value) -> (Told, bool) {
        post(to, path, key, &self.admin, body)
    }

    fn letter(&self, event: &str) -> String {
        let page = self.folder.run(&["dlq", "ls", "--json"]).assert(0, "").json();
        let letters = page["letters"].as_array().unwrap();
        let found = letters.iter().find(|letter| letter["event_id"] == event).unwrap();
        found["id"].as_str().map_or_else(|| found["id"].to_string(), str::to_owned)
    }
}

fn post(to: &Serving, path: &str, key: &str, bearer: &str, body: &Value) -> (Told, bool) {
    let headers = [("content-type", "application/json"), ("idempotency-key", key), ("authorization", bearer)];
    let (status, head, body) = to.http("POST", path, &headers, &body.to_string());
    let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").to_owned();
    let replayed = header("idempotency-replayed: ") == "true";
    if status == 409 && body.contains("idempotency_in_flight") {
        assert_eq!(header("retry-after: "), "1", "{head}");
    }
    (Told { status, kind: header("content-type: "), body }, replayed)
}

fn letter(number: u32) -> Value {
    let at = "2026-11-15T10:00:00Z";
    json!({
        "key": format!("key-{number}"), "event_id": format!("evt_{number}"), "event_type": "shop.order.placed",
        "tenant": "acme", "aggregate_id": "order-1", "ordering_key": null, "consumer": "billing",
        "queue": "billing", "exchange": "postrider.events", "routing_key": "shop.order.placed",
        "reason": "retries_exhausted", "error": "no account", "error_class": null, "attempts": 11,
        "first_failed_at": at, "dead_at": at, "properties": { "message_id": format!("evt_{number}") },
        "headers": {}, "body": "eyJ0b3RhbCI6MX0=",
    })
}

fn entry(amount: &str) -> Value {
    json!({ "effectiveOn": "2026-03-01", "lines": [
        { "account": "fees", "side": "debit", "amount": amount, "currency": "EUR" },
        { "account": "bank", "side": "credit", "amount": amount, "currency": "EUR" },
    ]})
}

const EVENTS: &str = "SELECT count(*) FROM postrider.event_outbox";
const ENTRIES: &str = "SELECT count(*) FROM postrider.ledger_entry";
const OPERATIONS: &str = "SELECT count(*) FROM postrider.operation";
const TOKENS: &str = "SELECT count(*) FROM postrider.api_token";

#[tokio::test(flavor = "multi_thread")]
async fn a_post_with_a_key_happens_once_whichever_process_is_asked() {
    let stage = Stage::new().await;
    let (first, second) = (stage.folder.serve(&["--roles", "api"]), stage.folder.serve(&["--roles", "api"]));
    bad_keys_are_refused_everywhere(&stage, &first);

    let discard =
        |event: &str| json!({ "kind": "discard_letters", "filter": { "event_id": event }, "reason": "test" });
    let edit = |total: u32| json!({ "payload": format!("{{\"total\":{total}}}"), "reason": "typo" });
    let event = |n: u32| json!({ "type": "shop.order.placed", "data": { "n": n } });
    let case = |path: &str, body: Value, other: Value, status: u16, rows: &'static str| Case {
        path: path.to_owned(),
        body,
        other,
        status,
        rows,
    };
    let edited = format!("/v1/dlq/messages/{}/edit", stage.letter("evt_1"));
    // Those that are done once also after a crash that left no answer.
    let sure = [
        case("/v1/events", event(1), event(2), 202, EVENTS),
        case("/v1/events:batch", json!([event(1), event(1)]), json!([event(1)]), 202, EVENTS),
        case("/v1/ledger/acme/entries", entry("1.00"), entry("2.00"), 201, ENTRIES),
        case("/v1/ledger/acme/entries/1/reversals", json!({}), json!({ "on": "2026-03-02" }), 201, ENTRIES),
        case("/v1/operations", discard("evt_2"), discard("evt_1"), 202, OPERATIONS),
    ];
    let others = [case(&edited, edit(2), edit(3), 202, EVENTS)];
    for (number, case) in sure.iter().chain(&others).enumerate() {
        let (Case { path, body, rows, .. }, key) = (case, &format!("key-{number}"));
        let before = stage.count(rows).await;
        let (answer, replayed) = stage.post(&first, path, key, body);
        assert_eq!((answer.status, replayed), (case.status, false), "{path}: {answer:?}");
        let effects = stage.count(rows).await;
        assert!(effects > before, "{path}: {answer:?}");
        assert_eq!(stage.post(&second, path, key, body), (answer, true), "{path}");
        let (refused, _) = stage.post(&second, path, key, &case.other);
        assert!(refused.is(422, "idempotency_mismatch"), "{path}: {refused:?}");
        assert_eq!(stage.count(rows).await, effects, "{path}");
    }
    // The same key of another caller is another request.
    let before = stage.count(EVENTS).await;
    let (apart, replayed) = post(&first, "/v1/events", "key-0", &stage.other, &event(1));
    assert_eq!((apart.status, replayed, stage.count(EVENTS).await), (202, false, before + 1));

    // PostgreSQL remembers what Redis has lost.
    stage.redis.cli(&["FLUSHALL"]).await.unwrap();
    let mut answers = Vec::new();
    for (number, case) in sure.iter().chain(&others).enumerate() {
        let (answer, replayed) = stage.post(&first, &case.path, &format!("key-{number}"), &case.body);
        assert!(replayed, "{}: {answer:?}", case.path);
        answers.push(answer);
    }
    stage.forget_answers().await;
    let rows =
        async || [stage.count(EVENTS).await, stage.count(ENTRIES).await, stage.count(OPERATIONS).await];
    let before = rows().await;
    for (number, (case, answer)) in sure.iter().zip(answers).enumerate() {
        let again = stage.post(&second, &case.path, &format!("key-{number}"), &case.body);
        assert_eq!(again, (answer, false), "{}: done again, to the same end", case.path);
    }
    assert_eq!(rows().await, before);

    in_flight_a_repeat_waits(&stage, &first, &second).await;
    secrets_are_shown_once(&stage, &first).await;
    a_token_is_made_once_also_if_nobody_kept_the_answer(&stage, &second).await;
}

/// Whatever route it is, before anything else is looked at.
fn bad_keys_are_refused_everywhere(stage: &Stage, serving: &Serving) {
    let document: Value = serde_json::from_str(&serving.http("GET", "/v1/openapi.json", &[], "").2).unwrap();
    let mut posts = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        if methods["post"].is_null() {
            continue;
        }
        let path = path.replace("{tenant}", "acme").replace(['{', '}'], "");
        let (refused, _) = stage.post(serving, &path, "with a space", &json!({}));
        assert!(refused.is(400, "invalid_idempotency_key"), "{path}: {refused:?}");
        posts += 1;
    }
    assert!(posts > 30, "{posts}");
}

/// The first request is held before its commit. Meanwhile the other process tells a repeat so, and afterwards it has the answer.
async fn in_flight_a_repeat_waits(stage: &Stage, first: &Serving, second: &Serving) {
    let mut holder = PgConnection::connect(&stage.database.url).await.unwrap();
    let lock = "BEGIN; LOCK TABLE postrider.event_outbox IN EXCLUSIVE MODE";
    sqlx::raw_sql(lock).execute(&mut holder).await.unwrap();
    let event = json!({ "type": "shop.order.placed", "data": { "held": true } });
    let mut waits = TcpStream::connect(&first.address).unwrap();
    let (body, bearer) = (event.to_string(), &stage.admin);
    let head =
        "POST /v1/events HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json";
    let length = body.len();
    write!(
        waits,
        "{head}\r\nauthorization: {bearer}\r\nidempotency-key: held\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let claimed = "SELECT count(*) FROM postrider.claim WHERE key LIKE '%/held' AND response IS NULL";
    while stage.count(claimed).await == 0 {
        tokio::task::yield_now().await;
    }
    let (waiting, _) = stage.post(second, "/v1/events", "held", &event);
    assert!(waiting.is(409, "idempotency_in_flight"), "{waiting:?}");
    holder.close().await.unwrap();
    let mut answer = String::new();
    waits.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
    let (again, replayed) = stage.post(second, "/v1/events", "held", &event);
    assert!(replayed && answer.ends_with(&again.body), "{answer} {again:?}");
}

/// In the first answer, and neither in PostgreSQL nor in Redis after it.
async fn secrets_are_shown_once(stage: &Stage, serving: &Serving) {
    let push = json!({ "name": "erp", "url": "https://example.com/hook", "keys": ["shop.order.*"] });
    for (number, (path, body, member)) in [
        ("/v1/tokens", json!({ "role": "viewer" }), "token"),
        ("/v1/subscriptions", push, "secret"),
        ("/v1/subscriptions/erp/rotate-secret", json!({}), "secret"),
    ]
    .into_iter()
    .enumerate()
    {
        let key = format!("secret-{number}");
        let (answer, _) = stage.post(serving, path, &key, &body);
        let shown = answer.json();
        let secret = shown[member].as_str().unwrap_or_else(|| panic!("{path}: {answer:?}"));
        let (again, replayed) = stage.post(serving, path, &key, &body);
        let repeated = again.json();
        assert_eq!(
            (again.status, replayed, &repeated[member]),
            (answer.status, true, &Value::Null),
            "{path}"
        );
        assert!(repeated["secret_shown"].is_string(), "{again:?}");
        for name in ["id", "name", "role"] {
            assert_eq!(repeated[name], shown[name]);
        }
        let mut connection = PgConnection::connect(&stage.database.url).await.unwrap();
        let look =
            "SELECT count(*) FROM postrider.claim WHERE position(convert_to($1, 'UTF8') IN response) > 0";
        let found: i64 = sqlx::query_scalar(look).bind(secret).fetch_one(&mut connection).await.unwrap();
        let words = "return table.concat(redis.call('MGET', unpack(redis.call('KEYS', 'http:*'))), '\\n')";
        let noted = async || stage.redis.cli(&["EVAL", words, "0"]).await.unwrap();
        while noted().await.matches("secret_shown").count() <= number {
            tokio::task::yield_now().await;
        }
        assert_eq!((found, noted().await.contains(secret)), (0, false), "{path}");
    }
}

/// Its secret is not known any more: what is there is told of without it.
async fn a_token_is_made_once_also_if_nobody_kept_the_answer(stage: &Stage, serving: &Serving) {
    let body = json!({ "role": "viewer", "name": "once" });
    let (first, _) = stage.post(serving, "/v1/tokens", "token-once", &body);
    assert!(first.status == 201 && first.json()["token"].is_string(), "{first:?}");
    let before = stage.count(TOKENS).await;
    for _ in 0..2 {
        stage.forget_answers().await;
        let (again, replayed) = stage.post(serving, "/v1/tokens", "token-once", &body);
        assert_eq!((again.status, replayed, &again.json()["id"]), (201, false, &first.json()["id"]));
        assert!(again.json()["token"].is_null() && again.json()["secret_shown"].is_string(), "{again:?}");
        assert_eq!(stage.count(TOKENS).await, before);
    }
    // The first secret is good still.
    let bearer = format!("Bearer {}", first.json()["token"].as_str().unwrap());
    assert_eq!(serving.http("GET", "/v1/events", &[("authorization", &bearer)], "").0, 200);
}
