//! One dead letter is corrected on its page: first a plan that changes nothing, then the event.

use serde_json::{Value, json};

use super::super::process::{Folder, Serving};

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

fn proof(page: &str) -> String {
    page.split("name=\"proof\" value=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
}

fn status(serving: &Serving) -> Value {
    let (_, _, body) = serving.http("GET", "/v1/dlq/messages/1", &[], "");
    serde_json::from_str::<Value>(&body).unwrap()["status"].clone()
}

#[test]
fn a_correction_is_planned_before_it_is_sent() {
    let folder = Folder::new();
    let config = "[[queue]]\nname = 'billing'\nbind = ['shop.order.*']\n[[consumer]]\nname = 'billing'\n";
    folder.write("postrider.toml", config);
    let at = "2026-11-15T10:00:00Z";
    let letter = json!({
        "key": "key-1", "event_id": "evt_1", "event_type": "shop.order.placed", "tenant": null, "aggregate_id": "order-1",
        "ordering_key": null, "consumer": "billing", "queue": "billing", "exchange": "postrider.events",
        "routing_key": "shop.order.placed", "reason": "retries_exhausted", "error": "no account", "error_class": null,
        "attempts": 11, "first_failed_at": at, "dead_at": at, "properties": { "message_id": "evt_1" }, "headers": {},
        // {"total":1}
        "body": "eyJ0b3RhbCI6MX0=",
    });
    folder.run_with(&["dlq", "import", "-"], &letter.to_string()).assert(0, "1 dead letter");
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let (answered, _, page) = serving.http("GET", "/dashboard/letters/1", &[], "");
    assert!(answered == 200 && page.contains("/dashboard/letters/1/preview"), "{page}");
    assert!(!page.contains("/dashboard/letters/1/edit"), "nothing is sent from here");
    let proof = proof(&page);
    let post = |path: &str, fields: &str| {
        serving.http(
            "POST",
            &format!("/dashboard/letters/1/{path}"),
            &[FORM],
            &format!("proof={proof}&{fields}"),
        )
    };
    // {"total":2,"note":"<b>"}
    let payload = "payload=%7B%22total%22%3A2%2C%22note%22%3A%22%3Cb%3E%22%7D";
    let (answered, _, page) = post("preview", payload);
    assert_eq!(answered, 200, "{page}");
    for shown in [
        "-   &quot;total&quot;: 1",
        "+   &quot;total&quot;: 2,",
        "&lt;b&gt;",
        "billing",
        "Nothing was changed so far",
        "/letters/1/edit",
    ] {
        assert!(page.contains(shown), "{shown} is not in {page}");
    }
    assert!(!page.contains("<b>\""), "{page}");
    assert_eq!(status(&serving), "open");
    let (_, _, page) = post("preview", "payload=no+json");
    assert!(page.contains("is none any more"), "{page}");
    let (_, _, page) = post("preview", "payload=%7B%22total%22%3A1%7D");
    assert!(page.contains("The payload is as it was"), "{page}");

    assert_eq!(post("edit", payload).0, 422, "without a reason");
    assert_eq!(status(&serving), "open");
    let (answered, head, _) = post("edit", &format!("{payload}&reason=mended"));
    assert!(answered == 303 && head.contains("location: /dashboard/events/"), "{head}");
    assert_ne!(status(&serving), "open");
    let (answered, _, page) = post("preview", payload);
    assert!(answered == 409 && page.contains("already"), "{page}");
}
