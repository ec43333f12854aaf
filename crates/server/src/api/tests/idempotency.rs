//! `Idempotency-Key`: the same request again, another one under its key, and one that is still worked on.

use super::*;

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
    for key in ["", "\"\"", "with space", long.as_str()] {
        let refused = problem(&router, keyed(key), r#"{"type":"a.b","data":{}}"#).await;
        assert_eq!(refused, (400, "invalid_idempotency_key".to_owned()), "{key}");
    }
    let huge = "x".repeat(500_000);
    assert_eq!(problem(&router, keyed("k"), huge).await, (413, "payload_too_large".to_owned()));
}

#[tokio::test]
async fn while_it_is_worked_on_a_repeat_is_told_so() {
    let (once, _folder) = once().await;
    let router = router_with(Memory { hangs: true, ..Memory::default() }, once, "");
    let event = r#"{"type":"a.b","data":{}}"#;
    // The caller's time is over, the work goes on.
    assert_eq!(problem(&router, keyed("k"), event).await, (503, "timed_out".to_owned()));
    assert_eq!(problem(&router, keyed("k"), event).await, (409, "idempotency_in_flight".to_owned()));
    assert_eq!(problem(&router, keyed("k"), "{}").await, (422, "idempotency_mismatch".to_owned()));
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
