//! Layers of settings, one over the other, each value with the place it came from.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize as _;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::sections::Settings;

/// A setting that cannot be used: where it stands, which it is, and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {}{problem}", key_prefix(.key))]
pub(crate) struct ConfigError {
    /// The file and line, the variable or the flag.
    pub(crate) origin: String,
    /// The setting, where there is one.
    pub(crate) key: String,
    /// What is wrong and what is allowed. Never a secret.
    pub(crate) problem: String,
}

fn key_prefix(key: &str) -> String {
    if key.is_empty() { String::new() } else { format!("{key}: ") }
}

/// What has been read so far.
pub(super) struct Layers<'a> {
    table: DeTable<'a>,
    origins: BTreeMap<String, String>,
}

impl<'a> Layers<'a> {
    /// The lowest layer, which has every setting.
    pub(super) fn new(defaults: &'a str) -> Result<Self, ConfigError> {
        let origin = "config.default.toml";
        let table = parse(origin, defaults)?;
        Ok(Self { table, origins: BTreeMap::new() })
    }

    /// Lays a file over what is there. Tables are merged, anything else is replaced.
    pub(super) fn file(&mut self, name: &str, text: &'a str) -> Result<Settings, ConfigError> {
        let file = parse(name, text)?;
        record_origins(&file, "", &mut |key, at| {
            self.origins.insert(key, format!("{name}, line {}", line_of(text, at)));
        });
        merge(&mut self.table, file.clone());
        self.read().map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let origin = format!("{name}, line {}", line_of(text, at));
            ConfigError { origin, key: key_at(&file, at), problem: error.message().to_owned() }
        })
    }

    /// Sets one value, given as plain text, of a setting that the defaults have.
    pub(super) fn set(&mut self, origin: &str, key: &str, text: &'a str) -> Result<Settings, ConfigError> {
        let wrong = |problem: String| ConfigError { origin: origin.to_owned(), key: key.to_owned(), problem };
        let Some(slot) = slot(&mut self.table, key) else {
            return Err(wrong("there is no such setting; config.default.toml lists them all".to_owned()));
        };
        let value = match slot.get_ref() {
            DeValue::String(_) => DeValue::String(Cow::Borrowed(text)),
            DeValue::Integer(_) | DeValue::Boolean(_) | DeValue::Float(_) => {
                match DeValue::parse(text.trim()) {
                    Ok(value) if value.get_ref().same_type(slot.get_ref()) => value.into_inner(),
                    _ => return Err(wrong(format!("must be {}, not {text:?}", kind(slot.get_ref())))),
                }
            }
            _ => return Err(wrong("can be set in a file only".to_owned())),
        };
        *slot = Spanned::new(0..0, value);
        self.origins.insert(key.to_owned(), origin.to_owned());
        self.read().map_err(|error| wrong(error.message().to_owned()))
    }

    /// Whether somebody gave a setting a value.
    pub(super) fn is_set(&self, key: &str) -> bool {
        self.origins.contains_key(key)
    }

    /// Where a setting has its value from.
    pub(super) fn origin(&self, key: &str) -> String {
        let exact = self.origins.get(key);
        let below = || self.origins.iter().find(|(other, _)| other.starts_with(&format!("{key}.")));
        exact
            .or_else(|| below().map(|(_, origin)| origin))
            .map_or("the configuration", String::as_str)
            .to_owned()
    }

    /// Every setting as text, to compare two readings. Holds secrets.
    pub(super) fn flat(&self) -> BTreeMap<String, String> {
        let mut flat = BTreeMap::new();
        record(&self.table, "", &mut |key, value| {
            flat.insert(key, plain(value.get_ref()));
        });
        flat
    }

    /// The settings as they are now.
    pub(super) fn read(&self) -> Result<Settings, toml::de::Error> {
        Settings::deserialize(toml::Deserializer::from(Spanned::new(0..0, self.table.clone())))
    }
}

/// A value without the places where it stands: what was only moved has not changed.
fn plain(value: &DeValue<'_>) -> String {
    match value {
        DeValue::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| plain(item.get_ref())).collect();
            format!("[{}]", items.join(", "))
        }
        DeValue::Table(table) => {
            let members =
                table.iter().map(|(key, value)| format!("{:?} = {}", key.get_ref(), plain(value.get_ref())));
            format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
        }
        single => format!("{single:?}"),
    }
}

fn parse<'a>(name: &str, text: &'a str) -> Result<DeTable<'a>, ConfigError> {
    DeTable::parse(text).map(Spanned::into_inner).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let origin = format!("{name}, line {}", line_of(text, at));
        ConfigError { origin, key: String::new(), problem: format!("not TOML: {}", error.message()) }
    })
}

fn merge<'a>(under: &mut DeTable<'a>, over: DeTable<'a>) {
    for (key, value) in over {
        match (under.get_mut(key.get_ref().as_ref()).map(Spanned::get_mut), value.get_ref()) {
            (Some(DeValue::Table(below)), DeValue::Table(_)) => {
                if let DeValue::Table(above) = value.into_inner() {
                    merge(below, above);
                }
            }
            _ => {
                under.insert(key, value);
            }
        }
    }
}

/// The place of `section.name`, or of `section.below.name`, in the table.
fn slot<'t, 'a>(table: &'t mut DeTable<'a>, key: &str) -> Option<&'t mut Spanned<DeValue<'a>>> {
    let (section, name) = key.split_once('.')?;
    let DeValue::Table(section) = table.get_mut(section)?.get_mut() else { return None };
    if name.contains('.') { slot(section, name) } else { section.get_mut(name) }
}

fn record<'t, 'a>(
    table: &'t DeTable<'a>,
    above: &str,
    each: &mut impl FnMut(String, &'t Spanned<DeValue<'a>>),
) {
    for (key, value) in table {
        let path = join(above, key.get_ref());
        match value.get_ref() {
            DeValue::Table(below) => record(below, &path, each),
            _ => each(path, value),
        }
    }
}

fn record_origins(table: &DeTable<'_>, above: &str, each: &mut impl FnMut(String, usize)) {
    record(table, above, &mut |key, value| each(key, value.span().start));
}

/// The innermost setting that stands at a place in the text.
fn key_at(table: &DeTable<'_>, at: usize) -> String {
    for (key, value) in table {
        let name = key.get_ref();
        if key.span().contains(&at) {
            return name.to_string();
        }
        let below = match value.get_ref() {
            DeValue::Table(below) => key_at(below, at),
            DeValue::Array(items) => {
                let items = items.iter().filter_map(|item| item.get_ref().as_table());
                items.map(|item| key_at(item, at)).find(|key| !key.is_empty()).unwrap_or_default()
            }
            _ => String::new(),
        };
        if !below.is_empty() {
            return join(name, &below);
        }
        if value.span().contains(&at) {
            return name.to_string();
        }
    }
    String::new()
}

fn join(above: &str, name: &str) -> String {
    if above.is_empty() { name.to_owned() } else { format!("{above}.{name}") }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::Integer(_) => "a whole number",
        DeValue::Boolean(_) => "true or false",
        _ => "a number",
    }
}

fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count() + 1
}
