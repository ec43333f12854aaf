//! A JSON Schema of `postrider.toml`, read out of the default file: every setting, its type, its default and its sentence.
//!
//! Editors complete and check by it. What a type cannot say (ranges, words, lists of queues) the binary itself checks.

use anyhow::Context as _;
use serde_json::{Map, Value, json};

use crate::config::DEFAULTS;

/// The schema.
pub(super) fn schema() -> anyhow::Result<Value> {
    let defaults: toml::Table = DEFAULTS.parse().context("the default configuration cannot be read")?;
    let mut schema = table(&defaults, "");
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("postrider.toml");
    Ok(schema)
}

/// A section. Unknown settings are refused, as the binary does; the parameters of a preset are the preset's.
fn table(section: &toml::Table, path: &str) -> Value {
    let properties: Map<_, _> = section
        .iter()
        .map(|(name, value)| {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            (name.clone(), setting(value, &path))
        })
        .collect();
    json!({"type": "object", "properties": properties, "additionalProperties": section.is_empty()})
}

fn setting(value: &toml::Value, path: &str) -> Value {
    let (kind, default) = match value {
        toml::Value::Table(section) => return table(section, path),
        toml::Value::String(text) => ("string", json!(text)),
        toml::Value::Integer(number) => ("integer", json!(number)),
        toml::Value::Float(number) => ("number", json!(number)),
        toml::Value::Boolean(word) => ("boolean", json!(word)),
        toml::Value::Array(_) => ("array", json!([])),
        toml::Value::Datetime(_) => ("string", Value::Null),
    };
    let mut setting = json!({"type": kind, "default": default});
    if let Some(sentence) = sentence(path) {
        setting["description"] = json!(sentence);
    }
    setting
}

/// The comment above a setting.
fn sentence(path: &str) -> Option<String> {
    let (section, name) = path.rsplit_once('.').unwrap_or(("", path));
    let (mut inside, mut above) = (section.is_empty(), Vec::new());
    for line in DEFAULTS.lines() {
        if let Some(header) = line.strip_prefix('[') {
            inside = header.strip_suffix(']') == Some(section);
        }
        match line.strip_prefix("# ") {
            Some(text) => above.push(text),
            None if inside && line.split(" = ").next() == Some(name) => return Some(above.join(" ")),
            None => above.clear(),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_its_type_its_default_and_its_sentence() {
        let schema = schema().unwrap();
        let batch = &schema["properties"]["relay"]["properties"]["batch_size"];
        assert_eq!((&batch["type"], &batch["default"]), (&json!("integer"), &json!(500)));
        assert_eq!(batch["description"], "How many events are published together, at most.");
        assert_eq!(schema["properties"]["relay"]["additionalProperties"], false);
        assert_eq!(schema["properties"]["topology"]["properties"]["set"]["additionalProperties"], true);
        assert_all_described(&schema, "");
    }

    fn assert_all_described(schema: &Value, path: &str) {
        for (name, setting) in schema["properties"].as_object().unwrap() {
            let path = format!("{path}.{name}");
            if setting["type"] == "object" {
                assert_all_described(setting, &path);
            } else {
                assert!(setting["description"].is_string(), "{path} has no sentence");
            }
        }
    }
}
