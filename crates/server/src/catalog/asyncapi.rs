//! The catalogue as an AsyncAPI 3 document, for generators and portals.

use postrider::topology::Layout;
use serde_json::{Map, Value, json};

use super::Catalog;

/// One channel per type of event, each a routing key of the exchange.
pub(crate) fn document(catalog: &Catalog, layout: &Layout) -> Value {
    let (mut channels, mut operations, mut messages) = (Map::new(), Map::new(), Map::new());
    for (name, entry) in &catalog.entries {
        let reference = |kind: &str| json!({ "$ref": format!("#/{kind}/{name}") });
        channels.insert(
            name.clone(),
            json!({
                "address": name,
                "description": entry.description,
                "messages": { name: reference("components/messages") },
                "bindings": { "amqp": {
                    "is": "routingKey",
                    "exchange": { "name": layout.exchange.as_str(), "type": "topic", "durable": true, "autoDelete": false },
                } },
            }),
        );
        operations.insert(
            format!("publish.{name}"),
            json!({ "action": "send", "channel": reference("channels"), "summary": entry.description }),
        );
        let mut message = json!({
            "name": name,
            "title": entry.description,
            "contentType": "application/json",
            "payload": envelope(layout, &entry.schema),
        });
        if let Some(example) = &entry.example {
            message["examples"] = json!([{ "payload": { "event_id": "evt_0197", "timestamp": "2026-01-01T00:00:00Z", "payload": example } }]);
        }
        messages.insert(name.clone(), message);
    }
    json!({
        "asyncapi": "3.0.0",
        "info": { "title": "Events", "version": env!("CARGO_PKG_VERSION"), "description": "Made by `postrider generate asyncapi`." },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": { "messages": messages },
    })
}

/// The body of a message: the payload within its envelope, as the exchange has it.
fn envelope(layout: &Layout, payload: &Value) -> Value {
    use postrider::WireFormat;
    let (required, time) = match layout.format(&layout.exchange) {
        WireFormat::Bare | WireFormat::CloudEvents => return payload.clone(),
        WireFormat::Smap => (json!(["event_id", "timestamp", "payload"]), "timestamp"),
        WireFormat::Envelope => {
            (json!(["event_id", "occurred_at", "aggregate_type", "event_type", "payload"]), "occurred_at")
        }
    };
    json!({
        "type": "object",
        "required": required,
        "properties": {
            "event_id": { "type": "string" },
            time: { "type": "string", "format": "date-time" },
            "payload": payload,
        },
    })
}
