//! The event catalogue: a file for each type of event, with the JSON Schema of its payload; and what was released of it.
//!
//! Schemas are checked by our own reading of a part of JSON Schema (type, properties, required, additionalProperties, items, enum, const):
//! enough for payloads, small enough to say of two schemas whether one only adds to the other. Words that could hide fields from it are
//! refused; limits on values (minLength, pattern, …) are kept for people and other tools.

pub(crate) mod additive;
pub(crate) mod asyncapi;
pub(crate) mod docs;
pub(crate) mod payload;
pub(crate) mod privacy;
pub(crate) mod reading;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use postrider::EventType;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::exit::usage;

/// What was released, beside the files of the events.
pub(crate) const RELEASED: &str = "released.json";

/// One type of event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    /// Its type, which is its routing key.
    #[serde(rename = "type")]
    pub(crate) event_type: EventType,
    /// What happened, in a sentence.
    pub(crate) description: String,
    /// Who publishes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<String>,
    /// Raised when a change breaks readers; the payload says it then, as `schema_version`.
    #[serde(default = "first", skip_serializing_if = "is_first")]
    pub(crate) schema_version: u32,
    /// What its payload looks like.
    pub(crate) schema: Value,
    /// A payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) example: Option<Value>,
}

fn first() -> u32 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_first(version: &u32) -> bool {
    *version == first()
}

/// All types, by name, and those that were released.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Catalog {
    pub(crate) entries: BTreeMap<String, Entry>,
    pub(crate) released: BTreeMap<String, Entry>,
}

impl Catalog {
    /// Reads a folder: every `.json` file is an event, but for what was released.
    pub(crate) fn read(folder: &Path) -> anyhow::Result<Self> {
        let files = std::fs::read_dir(folder).map_err(|error| {
            usage(format!(
                "cannot read the folder {} of the event catalogue: {error}; name it by catalog.path or --path",
                folder.display()
            ))
        })?;
        let mut catalog = Self::default();
        for file in files {
            let path = file?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let unreadable = |error: serde_json::Error| usage(format!("{}: {error}", path.display()));
            if path.file_name().is_some_and(|name| name == RELEASED) {
                catalog.released = serde_json::from_str(&text).map_err(unreadable)?;
                continue;
            }
            let entry: Entry = serde_json::from_str(&text).map_err(unreadable)?;
            if let Some(twice) = catalog.entries.insert(entry.event_type.to_string(), entry) {
                return Err(usage(format!(
                    "{} is in the catalogue twice, also as {}",
                    twice.event_type,
                    path.display()
                )));
            }
        }
        Ok(catalog)
    }

    /// Everything that stands against releasing it: type, and what is wrong.
    pub(crate) fn faults(&self) -> Vec<(String, String)> {
        let mut faults = Vec::new();
        for (name, entry) in &self.entries {
            let mut fault = |what: String| faults.push((name.clone(), what));
            reading::unreadable(&entry.schema).into_iter().for_each(&mut fault);
            privacy::undeclared(&entry.schema).into_iter().for_each(&mut fault);
            if let Some(example) = &entry.example {
                for problem in payload::problems(&entry.schema, example) {
                    fault(format!("its example: {problem}"));
                }
            }
            let Some(before) = self.released.get(name) else { continue };
            if entry.schema_version > before.schema_version {
                if !additive::says_version(&entry.schema, entry.schema_version) {
                    fault(format!(
                        "schema_version is {}, but the payload does not have to say so: require a schema_version of that const",
                        entry.schema_version
                    ));
                }
                continue;
            }
            if entry.schema_version < before.schema_version {
                fault(format!(
                    "schema_version was {} and is {}; it only grows",
                    before.schema_version, entry.schema_version
                ));
            }
            additive::breaks(&before.schema, &entry.schema).into_iter().for_each(&mut fault);
        }
        for name in self.released.keys().filter(|name| !self.entries.contains_key(*name)) {
            faults.push((name.clone(), "was released and is gone; somebody may still read it".to_owned()));
        }
        faults
    }
}
