//! One trace from the commit over relay and broker to handler and endpoint, as a collector sees it.

use std::time::Duration;

use postrider_testkit::receiver::{Receiver, Reply};
use serde_json::{Value, json};

use super::networked::servers;
use super::process::Folder;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

/// Everything that was exported so far.
fn spans(collector: &Receiver) -> Vec<Value> {
    let bodies = collector.requests().into_iter().map(|request| {
        assert_eq!(request.path, "/v1/traces");
        assert_eq!(request.header("x-tenant"), "ops");
        serde_json::from_slice::<Value>(&request.body).unwrap()
    });
    let of = |body: Value| {
        body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().cloned().unwrap_or_default()
    };
    bodies.flat_map(of).collect()
}

fn attribute<'a>(span: &'a Value, key: &str) -> &'a str {
    let all = span["attributes"].as_array().unwrap();
    let found = all.iter().find(|attribute| attribute["key"] == key);
    found.and_then(|attribute| attribute["value"]["stringValue"].as_str()).unwrap_or_default()
}

async fn one_trace(folder: Folder, system: &str) {
    let endpoint = Receiver::start(|_, _| Reply::status(200)).await;
    let collector = Receiver::start(|_, _| Reply::status(200)).await;
    let folder = folder
        .with("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{}", collector.address))
        .with("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=ops");
    let config = format!(
        "[egress]\nallow = ['127.0.0.1', 'http']\n[[queue]]\nname = 'billing'\nbind = ['shop.order.*']\n\
         [[push]]\nname = 'erp'\nqueue = 'billing'\nurl = '{}'\n",
        endpoint.url()
    );
    folder.write("postrider.toml", &config);
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let traceparent = format!("00-{TRACE}-{CALLER}-01");
    let event = json!({"type": "shop.order.placed", "id": "evt_1", "data": {"secret": "canary"}}).to_string();
    assert_eq!(serving.post_event(&[("traceparent", &traceparent)], &event).0, 202);
    let told = async {
        while !["create", "send", "process", "push"]
            .iter()
            .all(|done| spans(&collector).iter().any(|span| span["name"].as_str().unwrap().starts_with(done)))
        {
            tokio::time::timeout(Duration::from_millis(100), std::future::pending::<()>()).await.unwrap_err();
        }
    };
    let in_time = tokio::time::timeout(Duration::from_mins(2), told).await;
    let spans = spans(&collector);
    assert!(in_time.is_ok(), "{spans:#?}");
    let span = |name: &str| {
        spans.iter().find(|span| span["name"] == name).unwrap_or_else(|| panic!("{name}: {spans:#?}"))
    };
    let create = span("create shop.order.placed");
    let (send, process, push) = (span("send postrider.events"), span("process billing"), span("push erp"));

    // The commit is the caller's child; what follows are children of the commit, whose context the event carries.
    assert!(spans.iter().all(|span| span["traceId"] == TRACE), "{spans:#?}");
    assert_eq!(create["parentSpanId"], CALLER);
    for child in [send, process, push] {
        assert_eq!(child["parentSpanId"], create["spanId"], "{child}");
        assert_eq!(attribute(child, "messaging.message.id"), "evt_1");
        assert!(child["endTimeUnixNano"].as_str().unwrap() >= child["startTimeUnixNano"].as_str().unwrap());
    }
    assert_eq!((&send["kind"], &process["kind"], &push["kind"]), (&json!(4), &json!(5), &json!(3)));
    assert_eq!(
        (attribute(send, "messaging.system"), attribute(process, "messaging.destination.name")),
        (system, "billing")
    );
    let called = endpoint.requests().into_iter().find(|call| call.header("webhook-id") == "evt_1").unwrap();
    assert_eq!(called.header("traceparent"), format!("00-{TRACE}-{}-01", push["spanId"].as_str().unwrap()));
    assert!(!spans.iter().any(|span| span.to_string().contains("canary")));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_trace_on_the_embedded_default() {
    one_trace(Folder::new(), "postrider").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_trace_on_real_servers() {
    let (folder, _database, _vhost) = servers().await;
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    one_trace(folder, "rabbitmq").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_collector_the_context_goes_through_as_it_came() {
    let endpoint = Receiver::start(|_, _| Reply::status(200)).await;
    let folder = Folder::new();
    let config = format!(
        "[egress]\nallow = ['127.0.0.1', 'http']\n[[push]]\nname = 'erp'\nkeys = ['shop.order.*']\nurl = '{}'\n",
        endpoint.url()
    );
    folder.write("postrider.toml", &config);
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let traceparent = format!("00-{TRACE}-{CALLER}-01");
    let headers = [("traceparent", traceparent.as_str()), ("tracestate", "congo=t61")];
    assert_eq!(serving.post_event(&headers, r#"{"type":"shop.order.placed","data":{}}"#).0, 202);
    let called = async {
        while endpoint.requests().is_empty() {
            tokio::time::timeout(Duration::from_millis(50), std::future::pending::<()>()).await.unwrap_err();
        }
    };
    tokio::time::timeout(Duration::from_mins(2), called).await.unwrap();
    let call = endpoint.requests().remove(0);
    assert_eq!((call.header("traceparent"), call.header("tracestate")), (traceparent.as_str(), "congo=t61"));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_event_of_a_batch_is_a_child_of_the_request() {
    let collector = Receiver::start(|_, _| Reply::status(200)).await;
    let folder = Folder::new()
        .with("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{}", collector.address))
        .with("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=ops");
    let mut serving = folder.serve(&["--roles", "api"]);
    serving.wait_for("serving");
    let batch = json!([
        {"type": "shop.order.placed", "id": "evt_1", "data": {}},
        {"type": "shop.order.paid", "data": 5, "unknown": true},
        {"type": "shop.order.paid", "id": "evt_2", "data": {}},
    ]);
    let traceparent = format!("00-{TRACE}-{CALLER}-01");
    let headers = [("content-type", "application/json"), ("traceparent", traceparent.as_str())];
    let (status, _, answer) = serving.http("POST", "/v1/events:batch", &headers, &batch.to_string());
    assert_eq!(status, 207, "{answer}");
    let told: Value = serde_json::from_str(&answer).unwrap();
    let told: Vec<_> =
        told["events"].as_array().unwrap().iter().map(|event| event["status"].clone()).collect();
    assert_eq!(told, ["accepted", "refused", "accepted"]);
    let exported = async {
        while spans(&collector).len() < 2 {
            tokio::time::timeout(Duration::from_millis(100), std::future::pending::<()>()).await.unwrap_err();
        }
    };
    tokio::time::timeout(Duration::from_mins(2), exported).await.unwrap();
    let spans = spans(&collector);
    assert!(
        spans.iter().all(|span| span["traceId"] == TRACE && span["parentSpanId"] == CALLER),
        "{spans:#?}"
    );
    let mut ids: Vec<_> = spans.iter().map(|span| attribute(span, "messaging.message.id")).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["evt_1", "evt_2"]);
}
