//! The routes and what stands around them, on a backend in memory.

mod idempotency;
mod memory;

use std::sync::atomic::Ordering;

use async_trait::async_trait;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use postrider::dedup::{Claim, Standing};
use postrider::envelope::{PayloadHash, TenantId};
use postrider::store::{StoreError, StoreErrorKind, Token, TokenHash, TokenRole};
use serde_json::Value;
use tower::ServiceExt as _;

use self::memory::Memory;
use super::*;
use crate::config::{Config, Environment, Flags, Secret};

/// What was done, remembered as the real one does: on a store in a file.
async fn once() -> (Arc<dyn Once>, tempfile::TempDir) {
    once_by(&Clock::system()).await
}

async fn once_by(clock: &Clock) -> (Arc<dyn Once>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = postrider::sqlite::SqliteConfig::new(folder.path().join("once.db"));
    let store = postrider::sqlite::Sqlite::open(file, clock.clone()).await.unwrap();
    (Arc::new(postrider::Deduplicator::new(store, clock.clone(), "http")), folder)
}

/// For requests without a key.
struct Nobody;

#[async_trait]
impl Once for Nobody {
    async fn claim(&self, _: &str, _: PayloadHash) -> Result<Standing, StoreError> {
        Err(StoreError::new(StoreErrorKind::Unavailable, "nobody"))
    }
    async fn renew(&self, _: &Claim) -> Result<bool, StoreError> {
        Ok(false)
    }
    async fn complete(&self, _: Claim, _: bytes::Bytes) -> Result<bool, StoreError> {
        Ok(false)
    }
    async fn release(&self, _: Claim) -> Result<bool, StoreError> {
        Ok(false)
    }
    fn lease(&self) -> std::time::Duration {
        std::time::Duration::MAX
    }
    async fn cache_health(&self) -> Option<postrider::dedup::CacheHealth> {
        None
    }
}

fn token(secret: &str, role: TokenRole, tenant: Option<&str>) -> Token {
    Token {
        id: Clock::system().new_id(),
        name: String::new(),
        role,
        tenant: tenant.map(|tenant| TenantId::new(tenant).unwrap()),
        hash: TokenHash::of(secret),
        created_at: jiff::Timestamp::UNIX_EPOCH,
        expires_at: None,
        revoked_at: None,
    }
}

fn router(memory: Memory, metrics_token: &str) -> Router {
    router_with(memory, Arc::new(Nobody), metrics_token)
}

fn router_with(memory: Memory, once: Arc<dyn Once>, metrics_token: &str) -> Router {
    let http = |http: &mut Http| http.metrics_token = Secret::new(metrics_token);
    router_of(memory, once, Clock::system(), Router::new(), http)
}

fn router_of(
    memory: Memory,
    once: Arc<dyn Once>,
    clock: Clock,
    more: Router<Api>,
    change: impl FnOnce(&mut Http),
) -> Router {
    let settings = Config::load(&Flags::default(), &Environment::default()).unwrap().settings;
    let mut http = settings.http.clone();
    http.max_body_bytes = 400_000;
    http.request_timeout_ms = 60_000;
    change(&mut http);
    let (at, measured) = ("127.0.0.1:7070".parse().unwrap(), metrics::install().unwrap());
    Api::new(Arc::new(memory), once, clock, http, settings.limits, measured, at)
        .router(Some(more), Router::new())
}

async fn send(router: &Router, request: axum::http::request::Builder, body: impl Into<Body>) -> Response {
    let peer: SocketAddr = "127.0.0.1:50000".parse().unwrap();
    let request = request.extension(ConnectInfo(peer)).body(body.into()).unwrap();
    router.clone().oneshot(request).await.unwrap()
}

fn post_event() -> axum::http::request::Builder {
    Request::post("/v1/events").header("content-type", "application/json")
}

async fn json(response: Response) -> (StatusCode, Value) {
    let status = response.status();
    if !status.is_success() && status != StatusCode::SERVICE_UNAVAILABLE {
        assert_eq!(response.headers()["content-type"], "application/problem+json");
    }
    assert!(response.headers().contains_key("x-request-id"));
    let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap())
}

async fn problem(
    router: &Router,
    request: axum::http::request::Builder,
    body: impl Into<Body>,
) -> (u16, String) {
    let (status, body) = json(send(router, request, body).await).await;
    assert_eq!(body["status"], status.as_u16());
    assert_eq!(body["type"], format!("urn:postrider:problem:{}", body["code"].as_str().unwrap()));
    (status.as_u16(), body["code"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn an_event_is_committed_and_a_repeat_is_refused() {
    let router = router(Memory::default(), "");
    let event = r#"{"type":"shop.order.placed","data":{"total":"1.50"},"id":"evt_1"}"#;
    let (status, body) = json(send(&router, post_event(), event).await).await;
    assert_eq!((status, body["id"].as_str()), (StatusCode::ACCEPTED, Some("evt_1")));
    assert_eq!(problem(&router, post_event(), event).await, (409, "duplicate_event".to_owned()));
    let (_, told) = json(send(&router, post_event(), event).await).await;
    assert_eq!(told["id"], "evt_1");
    let same = r#"{"type":"shop.order.placed","data":{ "total" : "1.50" },"id":"evt_1"}"#;
    assert_eq!(problem(&router, post_event(), same).await, (409, "duplicate_event".to_owned()));
    for other in [event.replace("1.50", "1.51"), event.replace("placed", "paid")] {
        assert_eq!(problem(&router, post_event(), other).await, (409, "event_conflict".to_owned()));
    }
    // Another tenant's event under a known id is not done, and neither is another entity's.
    let of = |who: &str| format!(r#"{{"type":"shop.order.placed","data":{{}},"id":"evt_2",{who}}}"#);
    let (status, _) = json(send(&router, post_event(), of(r#""tenant":"a","aggregate_id":"1""#)).await).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    for (who, code) in [
        (r#""tenant":"b""#, "event_conflict"),
        (r#""tenant":"a","aggregate_id":"2""#, "event_conflict"),
        (r#""tenant":"a""#, "duplicate_event"),
    ] {
        assert_eq!(problem(&router, post_event(), of(who)).await, (409, code.to_owned()), "{who}");
    }
}

#[tokio::test]
async fn every_mistake_has_its_problem() {
    let router = router(Memory::default(), "");
    let large = format!(r#"{{"type":"a.b","data":"{}"}}"#, "x".repeat(300_000));
    let huge = "x".repeat(500_000);
    let plain = || Request::post("/v1/events").header("content-type", "text/plain");
    for (request, body, status, code) in [
        (post_event(), "{\"type\":".to_owned(), 400, "invalid_json"),
        (post_event(), r#"{"type":"order","data":{}}"#.to_owned(), 422, "invalid_event"),
        (post_event(), large, 413, "payload_too_large"),
        (post_event().header("content-length", "500000"), huge.clone(), 413, "payload_too_large"),
        (post_event(), huge, 413, "payload_too_large"),
        (post_event(), r#"{"type":"a.b","data":{"x":1,"x":2}}"#.to_owned(), 400, "duplicate_key"),
        (post_event(), r#"{"type":"a.b","data":{},"type":"a.c"}"#.to_owned(), 400, "invalid_json"),
        (post_event(), r#"{"type":"a.b","data":"\u0000"}"#.to_owned(), 422, "invalid_event"),
        (
            post_event(),
            format!(r#"{{"type":"a.b","data":{}{}}}"#, "[".repeat(65), "]".repeat(65)),
            422,
            "too_deep",
        ),
        (plain(), "{}".to_owned(), 415, "unsupported_media_type"),
        (post_event().header("content-encoding", "gzip"), "{}".to_owned(), 415, "unsupported_media_type"),
        (post_event(), r#"{"type":"test.panic","data":{}}"#.to_owned(), 500, "internal"),
        (Request::get("/v1/nothing"), String::new(), 404, "not_found"),
        (Request::get("/"), String::new(), 404, "not_found"),
        (Request::get("/v1/events"), String::new(), 405, "method_not_allowed"),
    ] {
        let shown = format!("{request:?}");
        assert_eq!(problem(&router, request, body).await, (status, code.to_owned()), "{shown}");
    }
}

#[tokio::test]
async fn a_request_ends_within_its_time() {
    let memory = Memory { hangs: true.into(), ..Memory::default() };
    let soon = |http: &mut Http| http.request_timeout_ms = 200;
    let router = router_of(memory, Arc::new(Nobody), Clock::system(), Router::new(), soon);
    let slow = problem(&router, post_event(), r#"{"type":"a.b","data":{}}"#).await;
    assert_eq!(slow, (503, "timed_out".to_owned()));
}

#[tokio::test]
async fn without_tokens_only_this_machine_gets_in() {
    let router = router(Memory::default(), "");
    let event = r#"{"type":"a.b","data":{}}"#;
    assert_eq!(send(&router, post_event(), event).await.status(), StatusCode::ACCEPTED);
    for (name, value) in
        [("host", "evil.example"), ("origin", "https://evil.example"), ("x-forwarded-for", "10.0.0.1")]
    {
        let refused = problem(&router, post_event().header(name, value), event).await;
        assert_eq!(refused, (401, "unauthenticated".to_owned()), "{name}");
    }
    let elsewhere: SocketAddr = "10.0.0.1:50000".parse().unwrap();
    let request = post_event().extension(ConnectInfo(elsewhere)).body(Body::from(event)).unwrap();
    assert_eq!(router.oneshot(request).await.unwrap().status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn once_there_are_tokens_they_decide() {
    let mut revoked = token("old", TokenRole::Admin, None);
    revoked.revoked_at = Some(jiff::Timestamp::UNIX_EPOCH);
    let mut expired = token("stale", TokenRole::Admin, None);
    expired.expires_at = Some(jiff::Timestamp::UNIX_EPOCH);
    let tokens = vec![
        token("see", TokenRole::Viewer, None),
        token("do", TokenRole::Operator, Some("acme")),
        revoked,
        expired,
    ];
    let router = router(Memory { tokens, ..Memory::default() }, "");
    let bearer = |secret: &str| post_event().header("authorization", format!("Bearer {secret}"));
    let event = r#"{"type":"a.b","data":{}}"#;
    assert_eq!(problem(&router, post_event(), event).await.0, 401);
    for unknown in ["wrong", "old", "stale"] {
        assert_eq!(problem(&router, bearer(unknown), event).await.0, 401, "{unknown}");
    }
    assert_eq!(problem(&router, bearer("see"), event).await, (403, "forbidden".to_owned()));
    assert_eq!(send(&router, bearer("do"), event).await.status(), StatusCode::ACCEPTED);
    let foreign = r#"{"type":"a.b","data":{},"tenant":"other"}"#;
    assert_eq!(problem(&router, bearer("do"), foreign).await, (403, "forbidden".to_owned()));
}

#[tokio::test]
async fn the_metrics_token_guards_the_metrics() {
    let router = router(Memory::default(), "scrape");
    let get = || Request::get("/v1/metrics");
    assert_eq!(problem(&router, get(), "").await.0, 401);
    assert_eq!(problem(&router, get().header("x-metrics-token", "wrong"), "").await.0, 401);
    assert_eq!(problem(&router, get().header("authorization", "Bearer wrong"), "").await.0, 401);
    assert_eq!(
        send(&router, get().header("authorization", "Bearer scrape"), "").await.status(),
        StatusCode::OK
    );
    let answer = send(&router, get().header("x-metrics-token", "scrape"), "").await;
    let text = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    assert!(String::from_utf8_lossy(&text).contains("postrider_http_requests_total"));
}

#[tokio::test]
async fn who_could_read_metrics_reads_there_that_the_store_is_away() {
    let tokens = ["one", "other"].map(|secret| token(secret, TokenRole::Metrics, None)).to_vec();
    let memory = Memory { tokens, ..Memory::default() };
    let (away, (clock, hands)) = (memory.away.clone(), Clock::manual(jiff::Timestamp::UNIX_EPOCH));
    let router = router_of(memory, Arc::new(Nobody), clock, Router::new(), |_| {});
    let scrape = async |secret: &str| {
        let asked = Request::get("/v1/metrics").header("authorization", format!("Bearer {secret}"));
        send(&router, asked, "").await.status().as_u16()
    };
    assert_eq!((scrape("one").await, scrape("neither").await), (200, 401));
    away.store(true, Ordering::SeqCst);
    hands.advance(std::time::Duration::from_mins(1));
    assert_eq!((scrape("one").await, scrape("other").await), (200, 503), "nobody vouched for the other");
}

#[tokio::test]
async fn who_comes_through_a_proxy_says_nothing_about_the_owner() {
    let memory = Memory::default();
    let (away, (clock, hands)) = (memory.away.clone(), Clock::manual(jiff::Timestamp::UNIX_EPOCH));
    let router = router_of(memory, Arc::new(Nobody), clock, Router::new(), |_| {});
    let scrape = async || send(&router, Request::get("/v1/metrics"), "").await.status().as_u16();
    let through = Request::get("/v1/metrics").header("x-forwarded-for", "10.0.0.9");
    assert_eq!((scrape().await, send(&router, through, "").await.status().as_u16()), (200, 401));
    away.store(true, Ordering::SeqCst);
    hands.advance(std::time::Duration::from_mins(1));
    assert_eq!(scrape().await, 200);
}

#[tokio::test]
async fn health_tells_what_is_missing_and_nothing_more() {
    let works = router(Memory::default(), "");
    assert_eq!(send(&works, Request::get("/v1/health/live"), "").await.status(), StatusCode::OK);
    // Events can be committed while the broker is away.
    assert_eq!(send(&works, Request::get("/v1/health/ready"), "").await.status(), StatusCode::OK);
    let (status, body) = json(send(&works, Request::get("/v1/health"), "").await).await;
    assert_eq!(
        (status.as_u16(), &body["store"], &body["broker"]),
        (503, &"ok".into(), &"unavailable".into())
    );

    let down = router(Memory { store_is_down: true, ..Memory::default() }, "");
    assert_eq!(send(&down, Request::get("/v1/health/live"), "").await.status(), StatusCode::OK);
    assert_eq!(
        send(&down, Request::get("/v1/health/ready"), "").await.status(),
        StatusCode::SERVICE_UNAVAILABLE
    );
    let (_, body) = json(send(&down, Request::get("/v1/health"), "").await).await;
    assert!(!body.to_string().contains("hunter2"));
    let event = problem(&down, post_event(), r#"{"type":"a.b","data":{}}"#).await;
    assert_eq!(event, (503, "store_unavailable".to_owned()));
}

#[tokio::test]
async fn a_request_id_is_kept_if_it_is_a_sane_one() {
    let router = router(Memory::default(), "");
    let answer = send(&router, Request::get("/v1/health/live").header("x-request-id", "abc-1"), "").await;
    assert_eq!(answer.headers()["x-request-id"], "abc-1");
    let long = "x".repeat(500);
    let answer = send(&router, Request::get("/v1/health/live").header("x-request-id", &long), "").await;
    assert_ne!(answer.headers()["x-request-id"], long.as_str());
}

#[tokio::test]
async fn what_is_not_utf8_is_told() {
    let router = router(Memory::default(), "");
    let refused = problem(&router, post_event(), b"{\"type\":\"a.\xff\",\"data\":{}}".to_vec()).await;
    assert_eq!(refused, (400, "invalid_utf8".to_owned()));
}

#[tokio::test]
async fn a_cloud_event_is_taken_in_all_its_forms() {
    let router = router(Memory::default(), "");
    let event =
        |id: &str| format!(r#"{{"specversion":"1.0","id":"{id}","source":"/s","type":"a.b","data":{{}}}}"#);
    let whole =
        Request::post("/v1/events").header("content-type", "application/cloudevents+json; charset=utf-8");
    let (status, body) = json(send(&router, whole, event("evt_1")).await).await;
    assert_eq!((status.as_u16(), body["id"].as_str()), (202, Some("evt_1")));
    let parts = Request::post("/v1/events")
        .header("content-type", "text/plain")
        .header("ce-specversion", "1.0")
        .header("ce-id", "evt_2")
        .header("ce-source", "/s")
        .header("ce-type", "a.b");
    let (status, body) = json(send(&router, parts, "hello").await).await;
    assert_eq!((status.as_u16(), body["id"].as_str()), (202, Some("evt_2")));
    for path in ["/v1/events", "/v1/events:batch"] {
        let batch = Request::post(path).header("content-type", "application/cloudevents-batch+json");
        let (status, body) = json(send(&router, batch, format!("[{}]", event("evt_3"))).await).await;
        assert_eq!((status.as_u16(), body["events"][0]["id"].as_str()), (202, Some("evt_3")), "{body}");
    }
}

#[tokio::test]
async fn each_event_of_a_batch_has_its_answer() {
    let router = router(Memory::default(), "");
    let batch = || Request::post("/v1/events:batch").header("content-type", "application/json");
    let events = r#"[{"type":"a.b","data":{},"id":"1"},{"type":"b","data":{}},{"type":"a.b","data":{},"id":"1"},{"type":"a.c","data":{}},{"type":"a.b","data":[],"id":"1"}]"#;
    let (status, body) = json(send(&router, batch(), events).await).await;
    assert_eq!(status, StatusCode::MULTI_STATUS);
    let told = |index: usize| body["events"][index]["status"].as_str().unwrap().to_owned();
    assert_eq!([0, 1, 2, 3].map(told), ["accepted", "refused", "duplicate", "accepted"]);
    assert_eq!(
        (&body["events"][1]["code"], &body["events"][4]["code"]),
        (&"invalid_event".into(), &"event_conflict".into())
    );
    assert_eq!([&body["accepted"], &body["duplicates"], &body["refused"]], [2, 1, 2]);

    let many = format!("[{}]", vec![r#"{"type":"a.b","data":1}"#; 1001].join(","));
    assert_eq!(problem(&router, batch(), many).await, (413, "too_many_events".to_owned()));
    assert_eq!(problem(&router, batch(), "{}").await, (400, "invalid_json".to_owned()));
    let wrong = Request::post("/v1/events:batch").header("content-type", "application/cloudevents+json");
    assert_eq!(problem(&router, wrong, "[]").await, (415, "unsupported_media_type".to_owned()));
}

/// Whoever did not get his answer sends everything again, and shall not wait for each of them.
#[tokio::test]
async fn a_batch_that_is_sent_again_is_told_apart_at_once() {
    let memory = Memory::default();
    let (events, asked) = (memory.events.clone(), memory.asked.clone());
    let router = router(memory, "");
    for (ids, accepted, duplicates) in [(0..200, 200, 0), (0..200, 0, 200), (100..300, 100, 100)] {
        let all: Vec<_> = ids.map(|id| format!(r#"{{"type":"a.b","data":{id},"id":"{id}"}}"#)).collect();
        let batch = Request::post("/v1/events:batch").header("content-type", "application/json");
        asked.store(0, Ordering::SeqCst);
        let (status, body) = json(send(&router, batch, format!("[{}]", all.join(","))).await).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{body}");
        assert_eq!([&body["accepted"], &body["duplicates"]], [accepted, duplicates], "{body}");
        assert!(asked.load(Ordering::SeqCst) <= 3, "the store was asked {asked:?} times");
    }
    let kept: Vec<_> = events.lock().unwrap().iter().filter_map(|event| event.id.clone()).collect();
    let wanted: Vec<_> = (0..300).map(|id| id.to_string()).collect();
    assert_eq!(kept.iter().map(AsRef::<str>::as_ref).collect::<Vec<_>>(), wanted);
}
