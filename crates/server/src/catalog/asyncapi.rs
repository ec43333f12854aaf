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
            message["examples"] = json!([{ "payload": body(name, layout, example) }]);
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

/// A body that fits [`envelope`].
fn body(name: &str, layout: &Layout, payload: &Value) -> Value {
    use postrider::WireFormat;
    let at = "2026-01-01T00:00:00Z";
    match layout.format(&layout.exchange) {
        WireFormat::Bare | WireFormat::CloudEvents => payload.clone(),
        WireFormat::Smap => json!({ "event_id": "evt_0197", "timestamp": at, "payload": payload }),
        WireFormat::Envelope => {
            let (aggregate, event) = name.rsplit_once('.').unwrap_or(("", name));
            json!({ "event_id": "0197", "occurred_at": at, "aggregate_type": aggregate, "event_type": event, "payload": payload })
        }
    }
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::catalog::payload;
    use crate::config::{Config, Environment, Flags};

    fn documents() -> Vec<Value> {
        let catalog = Catalog::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../catalog")).unwrap();
        let layout =
            |environment: &Environment| Config::load(&Flags::default(), environment).unwrap().own.layout;
        let smap = layout(&Environment::from([("POSTRIDER_TOPOLOGY__PRESET", "smap")]));
        [smap, layout(&Environment::default())].map(|layout| document(&catalog, &layout)).into()
    }

    /// Every `$ref` in a document.
    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(members) => {
                found.extend(members.get("$ref").and_then(Value::as_str));
                members.values().for_each(|member| references(member, found));
            }
            Value::Array(elements) => elements.iter().for_each(|element| references(element, found)),
            _ => {}
        }
    }

    #[test]
    fn every_event_is_a_channel_that_is_published_to_and_nothing_leads_nowhere() {
        for document in documents() {
            assert_eq!(document["asyncapi"], "3.0.0");
            let channels = document["channels"].as_object().unwrap();
            assert!(channels.len() >= 4);
            for (name, channel) in channels {
                assert_eq!(channel["address"], **name);
                assert_eq!(channel["bindings"]["amqp"]["is"], "routingKey");
                let operation = &document["operations"][format!("publish.{name}")];
                assert_eq!(operation["action"], "send");
                assert_eq!(operation["channel"]["$ref"], format!("#/channels/{name}"));
                assert!(document["components"]["messages"][name]["payload"].is_object());
            }
            let mut found = Vec::new();
            references(&document, &mut found);
            assert!(found.len() >= 2 * channels.len());
            for reference in found {
                let pointer = reference.strip_prefix('#').unwrap();
                assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
            }
        }
    }

    #[test]
    fn every_example_is_a_message_as_its_schema_has_it() {
        for document in documents() {
            for (name, message) in document["components"]["messages"].as_object().unwrap() {
                let example = &message["examples"][0]["payload"];
                assert_eq!(
                    payload::problems(&message["payload"], example),
                    Vec::<String>::new(),
                    "{name}: {example}"
                );
            }
        }
    }
}
