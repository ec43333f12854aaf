//! What stands in a schema that the checks beside this cannot see into: fields there might be personal, or gone. Pure.

use serde_json::Value;

/// Words of JSON Schema under which fields can be hidden.
const HIDING: [&str; 16] = [
    "$ref",
    "$dynamicRef",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "dependentSchemas",
    "patternProperties",
    "prefixItems",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
];
const KINDS: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];

/// Everything that has to be written otherwise, each with its place.
pub(crate) fn unreadable(schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk("", schema, &mut found);
    found
}

fn walk(at: &str, schema: &Value, found: &mut Vec<String>) {
    let place = if at.is_empty() { "the payload" } else { at };
    let Some(members) = schema.as_object() else {
        return found.push(format!("{place} has a schema that is no object"));
    };
    for word in HIDING.into_iter().filter(|word| members.contains_key(*word)) {
        found.push(format!(
            "{place} has {word}, which cannot be checked here: write its fields out, with type, properties and items"
        ));
    }
    if members.get("additionalProperties").is_some_and(|further| !further.is_boolean()) {
        found.push(format!("{place} describes further fields by a schema: name them in properties"));
    }
    let kinds = match members.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().collect(),
        Some(kind) => vec![kind],
        None => Vec::new(),
    };
    for kind in kinds {
        if !kind.as_str().is_some_and(|kind| KINDS.contains(&kind)) {
            found.push(format!("{place} has the type {kind}, which JSON Schema does not know"));
        }
    }
    for (name, field) in members.get("properties").and_then(Value::as_object).into_iter().flatten() {
        walk(&format!("{at}/{name}"), field, found);
    }
    if let Some(items) = members.get("items") {
        walk(&format!("{at}/*"), items, found);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_cannot_be_hidden_from_the_checks() {
        let field = |schema: Value| json!({ "properties": { "data": { "items": schema } } });
        for hidden in [
            json!({ "$ref": "#/$defs/user" }),
            json!({ "oneOf": [{ "properties": { "email": {} } }] }),
            json!({ "additionalProperties": { "type": "string" } }),
            json!({ "type": "strng" }),
            json!({ "type": ["string", 7] }),
            json!(true),
        ] {
            let found = unreadable(&field(hidden.clone()));
            assert!(found.len() == 1 && found[0].starts_with("/data/* "), "{hidden}: {found:?}");
        }
        let plain = json!({ "type": ["string", "null"], "format": "email", "minLength": 3, "description": "not hidden" });
        assert!(unreadable(&field(plain)).is_empty());
    }
}
