//! JSON that is opened only where somebody looks: everything else stays the text it was.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

/// A value, opened or not. As deep as somebody looked, and no deeper, so that no text makes it overflow a stack.
#[derive(Debug)]
pub(super) enum Tree {
    Closed(Box<RawValue>),
    Object(Vec<(String, Tree)>),
    List(Vec<Tree>),
}

impl Tree {
    /// Nothing if it is not JSON.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok().map(Self::Closed)
    }

    pub(super) fn of(value: &Value) -> Self {
        serde_json::value::to_raw_value(value).map_or_else(|_| Self::Object(Vec::new()), Self::Closed)
    }

    /// As it was, but for what was changed.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Closed(raw) => out.push_str(raw.get()),
            Self::Object(members) => {
                out.push('{');
                for (index, (name, value)) in members.iter().enumerate() {
                    out.push_str(if index == 0 { "" } else { "," });
                    out.push_str(&Value::from(name.as_str()).to_string());
                    out.push(':');
                    value.write(out);
                }
                out.push('}');
            }
            Self::List(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    out.push_str(if index == 0 { "" } else { "," });
                    item.write(out);
                }
                out.push(']');
            }
        }
    }

    /// Opens it, if there is anything inside.
    fn open(&mut self) {
        let Self::Closed(raw) = self else { return };
        let opened = match raw.get().as_bytes().first() {
            Some(b'{') => serde_json::from_str(raw.get()).ok().map(|Members(members)| Self::Object(members)),
            Some(b'[') => {
                let items = serde_json::from_str::<Vec<Box<RawValue>>>(raw.get()).ok();
                items.map(|items| Self::List(items.into_iter().map(Self::Closed).collect()))
            }
            _ => None,
        };
        if let Some(opened) = opened {
            *self = opened;
        }
    }

    /// What is in a place.
    pub(super) fn at(&mut self, names: &[String]) -> Option<&mut Self> {
        let Some((name, rest)) = names.split_first() else { return Some(self) };
        self.open();
        let inner = match self {
            Self::Closed(_) => None,
            Self::Object(members) => member(members, name),
            Self::List(items) => items.get_mut(number(name)?),
        };
        inner?.at(rest)
    }

    /// Sets a member, inserts into a list (`-` is its end), or takes the place of the whole. Nothing if there is no such place.
    pub(super) fn put(&mut self, names: &[String], value: Self) -> Option<()> {
        let Some((name, above)) = names.split_last() else {
            *self = value;
            return Some(());
        };
        let parent = self.at(above)?;
        parent.open();
        match parent {
            Self::Closed(_) => return None,
            Self::Object(members) => match member(members, name) {
                Some(there) => *there = value,
                None => members.push((name.clone(), value)),
            },
            Self::List(items) => {
                let index = if name == "-" { items.len() } else { number(name)? };
                if index > items.len() {
                    return None;
                }
                items.insert(index, value);
            }
        }
        Some(())
    }

    /// Takes out what is in a place. The whole cannot be taken out.
    pub(super) fn remove(&mut self, names: &[String]) -> Option<Self> {
        let (name, above) = names.split_last()?;
        let parent = self.at(above)?;
        parent.open();
        match parent {
            Self::Closed(_) => None,
            Self::Object(members) => {
                let last = members.iter().rposition(|(known, _)| known == name)?;
                let (_, removed) = members.remove(last);
                // A name that stands there twice is gone for good.
                members.retain(|(known, _)| known != name);
                Some(removed)
            }
            Self::List(items) => {
                let index = number(name).filter(|index| *index < items.len())?;
                Some(items.remove(index))
            }
        }
    }

    /// RFC 7396.
    pub(super) fn merge(&mut self, patch: &Value) {
        let Value::Object(changes) = patch else {
            *self = Self::of(patch);
            return;
        };
        self.open();
        if !matches!(self, Self::Object(_)) {
            *self = Self::Object(Vec::new());
        }
        for (name, change) in changes {
            let place = std::slice::from_ref(name);
            if change.is_null() {
                self.remove(place);
            } else if let Some(there) = self.at(place) {
                there.merge(change);
            } else {
                let mut new = Self::Object(Vec::new());
                new.merge(change);
                self.put(place, new);
            }
        }
    }
}

/// The last of this name, as every reader takes it.
fn member<'a>(members: &'a mut [(String, Tree)], name: &str) -> Option<&'a mut Tree> {
    members.iter_mut().rev().find(|(known, _)| known == name).map(|(_, value)| value)
}

/// An index: digits, and no zero before others.
fn number(name: &str) -> Option<usize> {
    let digits = name.bytes().all(|byte| byte.is_ascii_digit()) && (name == "0" || !name.starts_with('0'));
    if digits { name.parse().ok() } else { None }
}

/// The members of an object, in their order.
struct Members(Vec<(String, Tree)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some((name, raw)) = map.next_entry::<String, Box<RawValue>>()? {
                    members.push((name, Tree::Closed(raw)));
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}
