//! Spans as OTLP has them in JSON, by the messaging conventions.

use serde_json::{Value, json};

use super::Told;

/// Who tells.
pub(super) struct Resource {
    pub(super) service: String,
    pub(super) instance: String,
    /// `messaging.system`
    pub(super) system: &'static str,
}

/// The body of a request with these spans.
pub(super) fn request(spans: &[Told], resource: &Resource) -> Value {
    let version = env!("CARGO_PKG_VERSION");
    let about = [
        text("service.name", &resource.service),
        text("service.version", version),
        text("service.instance.id", &resource.instance),
    ];
    let spans: Vec<_> = spans.iter().filter_map(|told| span(told, resource.system)).collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": about},
        "scopeSpans": [{"scope": {"name": "postrider", "version": version}, "spans": spans}],
    }]})
}

/// One span. Nothing if its context is none.
fn span(told: &Told, system: &str) -> Option<Value> {
    let (trace, own) = postrider::spans::sampled(&told.own)?;
    let parent = postrider::spans::sampled(&told.parent).map_or("", |(_, parent)| parent);
    let pushed = told.operation == "push";
    let mut attributes = vec![text("messaging.message.id", &told.message_id)];
    if pushed {
        attributes.push(text("postrider.endpoint", &told.destination));
        attributes.push(text("http.request.method", "POST"));
    } else {
        attributes.push(text("messaging.system", system));
        attributes.push(text("messaging.destination.name", &told.destination));
        attributes.push(text("messaging.operation.name", &told.operation));
        attributes.push(text("messaging.operation.type", &told.operation));
    }
    let status = match &told.error {
        Some(error) => {
            attributes.push(text("error.type", error));
            json!({"code": 2})
        }
        None => json!({}),
    };
    Some(json!({
        "traceId": trace,
        "spanId": own,
        "parentSpanId": parent,
        "name": format!("{} {}", told.operation, told.destination),
        "kind": kind(&told.operation),
        "startTimeUnixNano": nanos(told.began),
        "endTimeUnixNano": nanos(told.ended),
        "attributes": attributes,
        "status": status,
    }))
}

/// Producer, consumer or client, by OTLP's numbers.
fn kind(operation: &str) -> u8 {
    match operation {
        "process" => 5,
        "push" => 3,
        _ => 4,
    }
}

/// 64-bit numbers are text in JSON.
fn nanos(micros: i64) -> String {
    (i128::from(micros) * 1000).to_string()
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_says_what_was_done_to_which_message_where() {
        let told = Told {
            operation: "process".to_owned(),
            destination: "billing".to_owned(),
            message_id: "evt_1".to_owned(),
            parent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned(),
            own: "00-4bf92f3577b34da6a3ce929d0e0e4736-1111111111111111-01".to_owned(),
            began: 1,
            ended: 3,
            error: Some("timeout".to_owned()),
        };
        let resource =
            Resource { service: "postrider".to_owned(), instance: "i".to_owned(), system: "rabbitmq" };
        let body = request(&[told, Told::default()], &resource);
        let spans = &body["resourceSpans"][0]["scopeSpans"][0]["spans"];
        assert_eq!(spans.as_array().map(Vec::len), Some(1), "what has no context is no span");
        let span = &spans[0];
        assert_eq!(
            (span["name"].as_str(), span["kind"].as_u64(), span["parentSpanId"].as_str()),
            (Some("process billing"), Some(5), Some("00f067aa0ba902b7"))
        );
        assert_eq!((&span["startTimeUnixNano"], &span["endTimeUnixNano"]), (&json!("1000"), &json!("3000")));
        assert!(span["attributes"].as_array().unwrap().contains(&text("messaging.system", "rabbitmq")));
        assert!(span["attributes"].as_array().unwrap().contains(&text("error.type", "timeout")));
        assert_eq!(span["status"]["code"], 2);
    }
}
