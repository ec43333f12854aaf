//! A body of the old bus, made of parts of an event. Pure.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::envelope::Envelope;

/// A JSON value in which some texts stand for parts of the event: `/data/email` is that member of the payload (a JSON pointer; a
/// member that is absent there is left out here), `$id`, `$type`, `$occurred_at`, `$aggregate_id` and `$tenant` are facts of the
/// envelope, `$payload` is the whole payload, and `=text` is the text itself. Everything else is taken as it stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub struct Template(Value);

/// Why a template cannot be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// It begins like a fact of the envelope, and is none.
    #[error(
        "{0:?} in the template of the old bus means nothing: say /member/of/the/payload, $id, $type, $occurred_at, $aggregate_id, \
         $tenant, $payload, or =text for the text itself"
    )]
    Nothing(String),
    /// It looks like a member of the payload whose first slash was forgotten.
    #[error(
        "{0:?} in the template of the old bus would go out as this very text: say \"/{0}\" for that member of the payload, or \
         \"={0}\" if it is the text that you mean"
    )]
    WithoutSlash(String),
}

const FACTS: [&str; 6] = ["$id", "$type", "$occurred_at", "$aggregate_id", "$tenant", "$payload"];

impl Template {
    /// Checks what it stands for, and refuses what was hardly meant.
    pub fn new(template: Value) -> Result<Self, TemplateError> {
        check(&template, &|text| {
            if lacks_slash(text) { Err(TemplateError::WithoutSlash(text.to_owned())) } else { known(text) }
        })?;
        Ok(Self(template))
    }

    /// The body for an event. Nothing if the payload is not JSON: there are no parts to take.
    pub fn fill(&self, envelope: &Envelope) -> Option<Bytes> {
        let payload: Value = envelope.payload.parse().ok()?;
        let filled = fill(&self.0, envelope, &payload).unwrap_or(Value::Null);
        serde_json::to_vec(&filled).ok().map(Bytes::from)
    }
}

impl TryFrom<Value> for Template {
    type Error = TemplateError;

    /// As a store kept it. What a migration was started with stays, whatever is refused today.
    fn try_from(template: Value) -> Result<Self, TemplateError> {
        check(&template, &known)?;
        Ok(Self(template))
    }
}

impl From<Template> for Value {
    fn from(template: Template) -> Self {
        template.0
    }
}

/// Every text of the template.
fn check(template: &Value, text: &dyn Fn(&str) -> Result<(), TemplateError>) -> Result<(), TemplateError> {
    match template {
        Value::String(found) => text(found),
        Value::Array(items) => items.iter().try_for_each(|item| check(item, text)),
        Value::Object(members) => members.values().try_for_each(|member| check(member, text)),
        _ => Ok(()),
    }
}

fn known(text: &str) -> Result<(), TemplateError> {
    if text.starts_with('$') && !FACTS.contains(&text) {
        return Err(TemplateError::Nothing(text.to_owned()));
    }
    Ok(())
}

/// `data/email`: words with slashes between them. A text with spaces, and an address such as `https://…`, are meant as they stand.
fn lacks_slash(text: &str) -> bool {
    let explicit = text.starts_with(['/', '=', '$']);
    !explicit && text.contains('/') && !text.contains("://") && !text.contains(char::is_whitespace)
}

/// The value that a part of the template stands for; nothing where the event has none.
fn fill(template: &Value, envelope: &Envelope, payload: &Value) -> Option<Value> {
    let text = |text: &str| Some(Value::String(text.to_owned()));
    match template {
        Value::String(part) => match part.as_str() {
            "$id" => text(envelope.id.as_str()),
            "$type" => text(envelope.event_type.as_str()),
            "$occurred_at" => text(&envelope.occurred_at.to_string()),
            "$aggregate_id" => text(envelope.aggregate_id.as_ref()?.as_str()),
            "$tenant" => text(envelope.tenant.group.as_ref()?.as_str()),
            "$payload" => Some(payload.clone()),
            part if part.starts_with('/') => payload.pointer(part).cloned(),
            part => text(part.strip_prefix('=').unwrap_or(part)),
        },
        Value::Array(items) => {
            let filled = items.iter().map(|item| fill(item, envelope, payload).unwrap_or(Value::Null));
            Some(Value::Array(filled.collect()))
        }
        Value::Object(members) => {
            let filled: Map<_, _> = members
                .iter()
                .filter_map(|(name, member)| Some((name.clone(), fill(member, envelope, payload)?)))
                .collect();
            Some(Value::Object(filled))
        }
        other => Some(other.clone()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::clock::Clock;
    use crate::envelope::Event;

    fn filled(template: Value, payload: &Value) -> Value {
        let (clock, _) = Clock::manual(jiff::Timestamp::UNIX_EPOCH);
        let event = Event::new("email.verification.requested").unwrap().id("e1").unwrap();
        let envelope = event.json(payload).unwrap().into_envelope(&clock);
        serde_json::from_slice(&Template::new(template).unwrap().fill(&envelope).unwrap()).unwrap()
    }

    #[test]
    fn an_email_message_of_the_old_bus_is_made_of_the_event() {
        let template = json!({
            "to": "/data/email", "cc": "/data/cc", "template": "=verify", "id": "$id", "kind": "$type",
            "vars": { "code": "/data/code" }, "retries": 3, "all": ["/data/code", "/nowhere"],
        });
        let payload = json!({ "data": { "email": "ann@example.com", "code": 1234 } });
        let expected = json!({
            "to": "ann@example.com", "template": "verify", "id": "e1", "kind": "email.verification.requested",
            "vars": { "code": 1234 }, "retries": 3, "all": [1234, null],
        });
        assert_eq!(filled(template, &payload), expected);
    }

    #[test]
    fn one_member_may_be_the_whole_body() {
        assert_eq!(filled(json!("/data"), &json!({ "data": { "a": 1 } })), json!({ "a": 1 }));
        assert_eq!(filled(json!("/data"), &json!({})), Value::Null);
    }

    #[test]
    fn what_means_nothing_is_refused() {
        let error = Template::new(json!({ "to": ["$recipient"] })).unwrap_err();
        assert!(error.to_string().contains("$recipient"), "{error}");
        assert!(serde_json::from_value::<Template>(json!("$nothing")).is_err());
    }

    #[test]
    fn a_forgotten_slash_is_refused_and_the_text_can_still_be_said() {
        for forgotten in ["data/email", "#/data/email", "email/"] {
            let error = Template::new(json!({ "to": [forgotten] })).unwrap_err().to_string();
            assert!(error.contains(&format!("\"/{forgotten}\"")), "{error}");
            assert!(error.contains(&format!("\"={forgotten}\"")), "{error}");
        }
        let payload = json!({});
        for (template, text) in [
            ("=text/plain", "text/plain"),
            ("https://example.com/a", "https://example.com/a"),
            ("24 / 7", "24 / 7"),
            ("verify", "verify"),
        ] {
            assert_eq!(filled(json!(template), &payload), json!(text));
        }
        // One that was started before this was refused goes on.
        assert!(serde_json::from_value::<Template>(json!("text/plain")).is_ok());
    }
}
