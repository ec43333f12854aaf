//! Whether a schema only adds to the one before: whoever reads the old events reads the new ones too. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// Everything in `after` that breaks a reader of `before`.
pub(crate) fn breaks(before: &Value, after: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare("", before, after, &mut found);
    found
}

/// Whether every payload has to say this version.
pub(crate) fn says_version(schema: &Value, version: u32) -> bool {
    let said = schema.pointer("/properties/schema_version/const").and_then(Value::as_u64);
    said == Some(u64::from(version)) && names(schema.get("required")).contains("schema_version")
}

fn compare(at: &str, before: &Value, after: &Value, found: &mut Vec<String>) {
    let place = if at.is_empty() { "the payload" } else { at };
    let kinds = |schema: &Value| match schema.get("type") {
        Some(Value::String(kind)) => BTreeSet::from([kind.clone()]),
        other => names(other).into_iter().map(str::to_owned).collect(),
    };
    let (was, is) = (kinds(before), kinds(after));
    // Whoever reads numbers reads whole ones.
    let known = |kind: &String| was.contains(kind) || (kind == "integer" && was.contains("number"));
    if !was.is_empty() && (is.is_empty() || !is.iter().all(known)) {
        found.push(format!("{place} was {} and is {}", list(&was), list(&is)));
        return;
    }
    let values = |schema: &Value| schema.get("enum").and_then(Value::as_array).cloned();
    let only = after.get("const").map(|only| vec![only.clone()]);
    match (values(before), values(after).or(only)) {
        (Some(was), Some(is)) => {
            for value in is.iter().filter(|value| !was.contains(value)) {
                found.push(format!("{place} may be {value} now, which no reader knows"));
            }
        }
        (Some(_), None) => found.push(format!("{place} may be anything now, and was one of a few")),
        (None, _) => {}
    }
    if before.get("const").is_some() && before.get("const") != after.get("const") {
        found.push(format!("{place} was always the same and is not any more"));
    }
    match (before.get("items"), after.get("items")) {
        (Some(was), Some(is)) => compare(&format!("{at}/*"), was, is, found),
        (Some(_), None) => found.push(format!("{place} may have elements of any kind now, and had one kind")),
        (None, _) => {}
    }
    let (was, is) = (properties(before), properties(after));
    for (name, schema) in &was {
        let at = format!("{at}/{name}");
        match is.get(name) {
            None => found.push(format!("{at} is gone; fields are only added")),
            Some(now) => compare(&at, schema, now, found),
        }
    }
    let (were, are) = (names(before.get("required")), names(after.get("required")));
    for name in were.difference(&are) {
        found.push(format!("{at}/{name} was always there and may be absent now"));
    }
    if open(before) && !open(after) {
        // Publishers that send more than is declared are refused from now on.
        found.push(format!("{place} may not have further fields any more"));
    }
}

fn properties(schema: &Value) -> Map<String, Value> {
    schema.get("properties").and_then(Value::as_object).cloned().unwrap_or_default()
}

fn names(list: Option<&Value>) -> BTreeSet<&str> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

fn open(schema: &Value) -> bool {
    schema.get("additionalProperties") != Some(&Value::Bool(false))
}

fn list(kinds: &BTreeSet<String>) -> String {
    if kinds.is_empty() {
        "anything".to_owned()
    } else {
        kinds.iter().cloned().collect::<Vec<_>>().join(" or ")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn base() -> Value {
        json!({
            "type": "object", "required": ["a"], "additionalProperties": false,
            "properties": { "a": { "type": "string" }, "b": { "type": ["string", "null"], "enum": ["x", "y", null] },
                "list": { "type": "array", "items": { "type": "object", "properties": { "n": { "type": "integer" } } } } },
        })
    }

    fn with(change: impl Fn(&mut Value)) -> Vec<String> {
        let mut after = base();
        change(&mut after);
        breaks(&base(), &after)
    }

    #[test]
    fn less_than_before_is_no_surprise_to_a_reader() {
        let before =
            json!({ "properties": { "n": { "type": ["number", "null"] }, "e": { "enum": ["x", "y"] } } });
        let after = json!({ "properties": { "n": { "type": "integer" }, "e": { "const": "x" } } });
        assert_eq!(breaks(&before, &after), Vec::<String>::new());
        assert_eq!(breaks(&after, &before).len(), 2, "the way back is one");
        let other = json!({ "properties": { "n": { "type": "integer" }, "e": { "const": "z" } } });
        assert!(breaks(&before, &other)[0].contains("may be \"z\" now"));
    }

    #[test]
    fn a_new_field_is_fine_even_a_required_one() {
        let added = with(|schema| {
            schema["properties"]["c"] = json!({ "type": "number" });
            schema["required"] = json!(["a", "c"]);
            schema["properties"]["list"]["items"]["properties"]["m"] = json!({ "type": "string" });
        });
        assert_eq!(added, Vec::<String>::new());
    }

    #[test]
    fn what_a_reader_relies_on_stays() {
        for (change, told) in [
            (
                Box::new(|s: &mut Value| _ = s["properties"].as_object_mut().unwrap().remove("a"))
                    as Box<dyn Fn(&mut Value)>,
                "/a is gone",
            ),
            (
                Box::new(|s: &mut Value| s["properties"]["a"] = json!({ "type": "integer" })),
                "/a was string and is integer",
            ),
            (Box::new(|s: &mut Value| s["required"] = json!([])), "/a was always there"),
            (Box::new(|s: &mut Value| s["properties"]["b"]["enum"] = json!(["x", "z"])), "may be \"z\" now"),
            (
                Box::new(|s: &mut Value| {
                    s["properties"]["list"]["items"]["properties"]["n"] = json!({ "type": "string" });
                }),
                "/list/*/n was integer",
            ),
            (
                Box::new(|s: &mut Value| {
                    _ = s["properties"]["list"].as_object_mut().unwrap().remove("items");
                }),
                "/list may have elements of any kind",
            ),
        ] {
            let found = with(change);
            assert!(found.iter().any(|fault| fault.contains(told)), "{told}: {found:?}");
        }
    }

    #[test]
    fn a_new_version_has_to_be_said_in_the_payload() {
        let mut schema = base();
        assert!(!says_version(&schema, 2));
        schema["properties"]["schema_version"] = json!({ "const": 2 });
        schema["required"] = json!(["a", "schema_version"]);
        assert!(says_version(&schema, 2) && !says_version(&schema, 3));
    }
}
