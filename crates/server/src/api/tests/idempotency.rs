//! `Idempotency-Key`: the same request again, another one under its key, and one that is still worked on.

use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use axum::routing::post;
use postrider::clock::ManualClock;
use postrider::{Event, EventId};
use tokio::sync::Notify;

use super::*;

type Events = Arc<Mutex<Vec<Event>>>;

fn keyed(key: &str) -> axum::http::request::Builder {
    post_event().header("idempotency-key", key)
}

#[tokio::test]
async fn a_repeat_with_a_key_gets_the_first_answer_and_is_not_done_again() {
    let (once, _folder) = once().await;
    let router = router_with(Memory::default(), once, "");
    let event = r#"{"type":"a.b","data":{},"id":"evt_1"}"#;
    let first = send(&router, keyed("k1"), event).await;
    assert!(!first.headers().contains_key("idempotency-replayed"));
    let first = json(first).await;
    assert_eq!(first.0, StatusCode::ACCEPTED);
    let again = send(&router, keyed("\"k1\""), event).await;
    assert_eq!(again.headers()["idempotency-replayed"], "true");
    assert_eq!(again.headers()["content-type"], "application/json");
    assert_eq!(json(again).await, first, "not 409: it is the same request");
    // Under another key it is another request, whose answer is kept as well.
    for _ in 0..2 {
        assert_eq!(problem(&router, keyed("k2"), event).await, (409, "duplicate_event".to_owned()));
    }
    let other = r#"{"type":"a.b","data":{},"id":"evt_2"}"#;
    assert_eq!(problem(&router, keyed("k1"), other).await, (422, "idempotency_mismatch".to_owned()));
}

#[tokio::test]
async fn a_key_that_is_none_is_refused() {
    let (once, _folder) = once().await;
    let router = router_with(Memory::default(), once, "");
    let long = "x".repeat(256);
    let twice = keyed("k").header("idempotency-key", "l");
    let refused = problem(&router, twice, r#"{"type":"a.b","data":{}}"#).await;
    assert_eq!(refused, (400, "invalid_idempotency_key".to_owned()));
    for key in ["", "\"\"", "with space", long.as_str()] {
        let refused = problem(&router, keyed(key), r#"{"type":"a.b","data":{}}"#).await;
        assert_eq!(refused, (400, "invalid_idempotency_key".to_owned()), "{key}");
    }
    let huge = "x".repeat(500_000);
    assert_eq!(problem(&router, keyed("k"), huge).await, (413, "payload_too_large".to_owned()));
    let broken = [Err::<axum::body::Bytes, _>(std::io::Error::other("it broke off"))];
    let broken = Body::from_stream(futures_util::stream::iter(broken));
    assert_eq!(problem(&router, keyed("k"), broken).await, (400, "invalid_json".to_owned()));
}

#[tokio::test]
async fn while_it_is_worked_on_a_repeat_is_told_so() {
    let slow = Slow::begun(|_| ()).await;
    assert_eq!(problem(&slow.router, keyed("k"), EVENT).await, (409, "idempotency_in_flight".to_owned()));
    assert_eq!(send(&slow.router, keyed("k"), EVENT).await.headers()["retry-after"], "1");
    assert_eq!(problem(&slow.router, keyed("k"), "{}").await, (422, "idempotency_mismatch".to_owned()));
}

#[tokio::test]
async fn what_failed_may_be_tried_again_under_its_key() {
    let (once, _folder) = once().await;
    let down = router_with(Memory { store_is_down: true, ..Memory::default() }, once.clone(), "");
    let event = r#"{"type":"a.b","data":{}}"#;
    assert_eq!(problem(&down, keyed("k"), event).await, (503, "store_unavailable".to_owned()));
    let works = router_with(Memory::default(), once, "");
    assert_eq!(send(&works, keyed("k"), event).await.status(), StatusCode::ACCEPTED);
}

#[tokio::test]
async fn nobody_gets_the_answer_of_another() {
    let (once, _folder) = once().await;
    let tokens = vec![token("ann", TokenRole::Operator, None), token("bob", TokenRole::Operator, None)];
    let router = router_with(Memory { tokens, ..Memory::default() }, once, "");
    for (who, event) in
        [("ann", r#"{"type":"a.b","data":{"n":1}}"#), ("bob", r#"{"type":"a.b","data":{"n":2}}"#)]
    {
        let request = keyed("k").header("authorization", format!("Bearer {who}"));
        let answer = send(&router, request, event).await;
        assert_eq!(answer.status(), StatusCode::ACCEPTED, "{who}");
        assert!(!answer.headers().contains_key("idempotency-replayed"));
    }
}

#[tokio::test]
async fn a_token_is_the_same_however_it_is_written() {
    let (once, _folder) = once().await;
    let tokens = vec![token("ann", TokenRole::Operator, None)];
    let router = router_with(Memory { tokens, ..Memory::default() }, once, "");
    let event = r#"{"type":"a.b","data":{}}"#;
    for (bearer, replayed) in [("Bearer ann", false), ("bearer  ann", true)] {
        let answer = send(&router, keyed("k").header("authorization", bearer), event).await;
        assert_eq!(answer.headers().contains_key("idempotency-replayed"), replayed, "{bearer}");
    }
}

#[tokio::test]
async fn two_cloud_events_under_one_key_are_two_requests() {
    let (once, _folder) = once().await;
    let router = router_with(Memory::default(), once, "");
    let event = |id: &str| {
        let request = Request::post("/v1/events").header("idempotency-key", "k").header("ce-id", id);
        let request = request.header("ce-specversion", "1.0").header("ce-source", "/s");
        request.header("ce-type", "a.b").header("content-type", "text/plain")
    };
    assert_eq!(send(&router, event("evt_1"), "hello").await.status(), StatusCode::ACCEPTED);
    assert_eq!(problem(&router, event("evt_2"), "hello").await, (422, "idempotency_mismatch".to_owned()));
    let again = send(&router, event("evt_1"), "hello").await;
    assert_eq!(again.headers()["idempotency-replayed"], "true");
}

/// Nobody knows whether the first commit happened. It did, and the repeat finds it under the id that the key gave it.
#[tokio::test]
async fn what_was_committed_unknown_to_all_is_not_committed_again() {
    for (path, body, count) in [
        ("/v1/events", r#"{"type":"a.b","data":{}}"#, 1),
        (
            "/v1/events:batch",
            r#"[{"type":"a.b","data":{}},{"type":"a.b","data":{}},{"type":"a.b","data":{},"id":"own"}]"#,
            3,
        ),
    ] {
        let (once, _folder) = once().await;
        let (events, doubts) = (Events::default(), AtomicUsize::new(1));
        let router = router_with(Memory { events: events.clone(), doubts, ..Memory::default() }, once, "");
        let request = |key: &str| {
            Request::post(path).header("content-type", "application/json").header("idempotency-key", key)
        };
        assert_eq!(problem(&router, request("k"), body).await, (503, "store_unavailable".to_owned()));
        let (status, told) = json(send(&router, request("k"), body).await).await;
        assert_eq!((status, events.lock().unwrap().len()), (StatusCode::ACCEPTED, count), "{told}");
        let shown = told["events"].as_array().cloned().unwrap_or_else(|| vec![told.clone()]);
        for (event, told) in events.lock().unwrap().iter().zip(&shown) {
            assert_eq!(event.id.as_ref().map(EventId::as_str), told["id"].as_str());
        }
        assert_eq!(told["accepted"].as_u64().unwrap_or(2), 2, "{told}");
        // Another key is another request.
        assert_eq!(send(&router, request("l"), body).await.status(), StatusCode::ACCEPTED);
        assert!(events.lock().unwrap().len() > count);
    }
}

const LEASE: Duration = Duration::from_mins(1);
const EVENT: &str = r#"{"type":"a.b","data":{}}"#;

/// A request whose caller has hung up, and which waits to be told to go on; under a clock that stands still.
struct Slow {
    router: Router,
    hands: ManualClock,
    events: Events,
    go_on: Arc<Notify>,
    _folder: tempfile::TempDir,
}

impl Slow {
    async fn begun(change: impl FnOnce(&mut Http)) -> Self {
        let (clock, hands) = Clock::manual(jiff::Timestamp::UNIX_EPOCH);
        let (once, folder) = once_by(&clock).await;
        assert_eq!(once.lease(), LEASE);
        let (events, go_on) = (Events::default(), Arc::new(Notify::new()));
        let memory =
            Memory { events: events.clone(), hangs: true.into(), go_on: go_on.clone(), ..Memory::default() };
        let router = router_of(memory, once, clock, Router::new(), change);
        let slow = Self { router: router.clone(), hands, events, go_on, _folder: folder };
        let calling = tokio::spawn(async move { send(&router, keyed("k"), EVENT).await });
        slow.until_renewed().await;
        calling.abort();
        assert!(calling.await.unwrap_err().is_cancelled());
        slow
    }

    /// The claim is new, or renewed, and holds for a third of its lease without another look.
    async fn until_renewed(&self) {
        while self.hands.next_wake() != Some(LEASE / 3) {
            tokio::task::yield_now().await;
        }
    }

    /// What a repeat is told, once it is told something else than this.
    async fn no_longer(&self, code: &str) -> (StatusCode, Value) {
        loop {
            let told = json(send(&self.router, keyed("k"), EVENT).await).await;
            if told.1["code"] != code {
                return told;
            }
            tokio::task::yield_now().await;
        }
    }

    fn is_committed_once_as(&self, told: &Value) -> bool {
        let events = self.events.lock().unwrap();
        events.len() == 1 && events[0].id.as_ref().map(EventId::as_str) == told["id"].as_str()
    }
}

#[tokio::test]
async fn a_claim_is_renewed_for_as_long_as_the_work_goes_on() {
    let slow = Slow::begun(|_| ()).await;
    for _ in 0..7 {
        slow.hands.advance(LEASE / 3);
        slow.until_renewed().await;
    }
    let repeated = problem(&slow.router, keyed("k"), EVENT).await;
    assert_eq!(repeated, (409, "idempotency_in_flight".to_owned()));
    slow.go_on.notify_one();
    let (status, told) = slow.no_longer("idempotency_in_flight").await;
    assert!(status == StatusCode::ACCEPTED && slow.is_committed_once_as(&told), "{told}");
}

#[tokio::test]
async fn work_whose_claim_ran_out_is_ended_before_a_repeat_does_it() {
    let slow = Slow::begun(|http| http.max_concurrent_requests = 1).await;
    slow.hands.advance(LEASE * 2);
    // There is room for one alone: who gets in comes after the first has ended, which was never told to go on.
    let (status, told) = slow.no_longer("overloaded").await;
    assert!(status == StatusCode::ACCEPTED && slow.is_committed_once_as(&told), "{told}");
}

#[tokio::test]
async fn work_that_outlives_its_request_keeps_its_place() {
    let slow = Slow::begun(|http| http.max_concurrent_requests = 1).await;
    assert_eq!(problem(&slow.router, keyed("other"), EVENT).await, (503, "overloaded".to_owned()));
    slow.go_on.notify_one();
    let (status, told) = slow.no_longer("overloaded").await;
    assert!(status == StatusCode::ACCEPTED && slow.is_committed_once_as(&told), "{told}");
}

#[tokio::test]
async fn a_panic_gives_the_claim_up() {
    let (once, _folder) = once().await;
    let router = router_with(Memory::default(), once, "");
    for _ in 0..2 {
        let panicked = problem(&router, keyed("k"), r#"{"type":"test.panic","data":{}}"#).await;
        assert_eq!(panicked, (500, "internal".to_owned()));
    }
}

#[tokio::test]
async fn a_secret_and_a_long_answer_are_in_the_first_answer_alone() {
    let (once, _folder) = once().await;
    let made =
        || async { (StatusCode::CREATED, axum::Json(serde_json::json!({"id": "1", "token": "prt_1"}))) };
    let leased = || async { axum::Json(vec!["x".repeat(1 << 21)]) };
    let more = Router::new().route("/tokens", post(made)).route("/queues/{queue}/deliveries", post(leased));
    let router = router_of(Memory::default(), once, Clock::system(), more, |_| ());
    let token = || Request::post("/v1/tokens").header("idempotency-key", "k");
    assert_eq!(json(send(&router, token(), "").await).await.1["token"], "prt_1");
    let (status, again) = json(send(&router, token(), "").await).await;
    assert_eq!((status, &again["id"], &again["token"]), (StatusCode::CREATED, &"1".into(), &Value::Null));
    assert!(again["secret_shown"].is_string(), "{again}");
    let lease = || Request::post("/v1/queues/q/deliveries").header("idempotency-key", "k2");
    let first = send(&router, lease(), "").await;
    let body = axum::body::to_bytes(first.into_body(), usize::MAX).await.unwrap();
    assert!(body.len() > 1 << 21);
    assert_eq!(problem(&router, lease(), "").await, (409, "answer_not_kept".to_owned()));
}
