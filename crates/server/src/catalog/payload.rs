//! Whether a payload fits its schema. Pure.

use serde_json::Value;

use super::privacy::looks_personal;

/// Everything in which it does not, each with its place.
pub(crate) fn problems(schema: &Value, payload: &Value) -> Vec<String> {
    let mut found = Vec::new();
    check("", schema, payload, &mut found);
    found
}

fn check(at: &str, schema: &Value, value: &Value, found: &mut Vec<String>) {
    let place = if at.is_empty() { "the payload" } else { at };
    let kinds: Vec<&str> = match schema.get("type") {
        Some(Value::String(kind)) => vec![kind],
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if !kinds.is_empty() && !kinds.iter().any(|kind| is(kind, value)) {
        found.push(format!("{place} is {}, and should be {}", kind_of(value), kinds.join(" or ")));
        return;
    }
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array)
        && !allowed.contains(value)
    {
        found.push(format!("{place} is {value}, which is none of those it may be"));
    }
    if let Some(only) = schema.get("const")
        && only != value
    {
        found.push(format!("{place} is {value}, and should be {only}"));
    }
    if let (Some(items), Some(values)) = (schema.get("items"), value.as_array()) {
        for (index, value) in values.iter().enumerate() {
            check(&format!("{at}/{index}"), items, value, found);
        }
    }
    let Some(members) = value.as_object() else { return };
    let none = serde_json::Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    for name in required.filter_map(Value::as_str).filter(|name| !members.contains_key(*name)) {
        found.push(format!("{at}/{name} is missing"));
    }
    for (name, value) in members {
        match properties.get(name) {
            Some(schema) => check(&format!("{at}/{name}"), schema, value, found),
            None if schema.get("additionalProperties") == Some(&Value::Bool(false)) => {
                found.push(format!("{at}/{name} is not declared"));
            }
            None if looks_personal(name) => {
                found.push(format!("{at}/{name} is not declared, and looks personal"));
            }
            None => {}
        }
    }
}

fn is(kind: &str, value: &Value) -> bool {
    match kind {
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        other => other == kind_of(value),
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn everything_that_does_not_fit_is_named_with_its_place() {
        let schema = json!({
            "type": "object", "required": ["id", "n"], "additionalProperties": false,
            "properties": { "id": { "type": "string" }, "n": { "type": "integer" }, "kind": { "enum": ["a", "b"] },
                "list": { "type": "array", "items": { "type": "number" } }, "maybe": { "type": ["string", "null"] } },
        });
        assert_eq!(
            problems(&schema, &json!({ "id": "x", "n": 2.0, "list": [1, 2.5], "maybe": null })),
            Vec::<String>::new()
        );
        let found = problems(&schema, &json!({ "id": 7, "kind": "c", "list": [1, "2"], "email": "a@b" }));
        for told in [
            "/id is number",
            "/n is missing",
            "/kind is \"c\"",
            "/list/1 is string",
            "/email is not declared",
        ] {
            assert!(found.iter().any(|problem| problem.contains(told)), "{told}: {found:?}");
        }
        // More may be sent where a schema says so, but not about a person.
        let open = json!({ "type": "object", "properties": {} });
        assert_eq!(
            problems(&open, &json!({ "coupon": "c", "email": "a@b" })),
            ["/email is not declared, and looks personal"]
        );
    }
}
