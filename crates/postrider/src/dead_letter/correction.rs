//! A correction that fits many payloads: a JSON Merge Patch (RFC 7396) or a JSON Patch (RFC 6902).
//!
//! What a correction does not name stays byte for byte as it was, the order of members and every digit of a number included.
//! A payload that it does not fit is not changed at all.

mod pointer;
mod tree;

pub use pointer::Pointer;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::tree::Tree;
use crate::envelope::{Payload, erased_hash};

/// Copies within one payload may come to so many bytes: more than any broker takes.
const MOST_COPIED: usize = 16 << 20;

/// What is to be changed in a payload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Correction {
    /// Members to be set; `null` removes one. RFC 7396.
    Merge(Value),
    /// Steps, one after the other. One that does not fit undoes them all. RFC 6902.
    Patch(Vec<Step>),
}

/// A step of a JSON Patch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Step {
    /// Sets a member, or inserts into a list.
    Add {
        /// Where.
        path: Pointer,
        /// What.
        value: Value,
    },
    /// Removes what is there.
    Remove {
        /// Where.
        path: Pointer,
    },
    /// Puts another value in the place of what is there.
    Replace {
        /// Where.
        path: Pointer,
        /// What.
        value: Value,
    },
    /// Takes what is in one place to another.
    Move {
        /// From where.
        from: Pointer,
        /// Where to.
        path: Pointer,
    },
    /// Puts what is in one place into another too.
    Copy {
        /// From where.
        from: Pointer,
        /// Where to.
        path: Pointer,
    },
    /// Goes on only if this is there.
    Test {
        /// Where.
        path: Pointer,
        /// What.
        value: Value,
    },
}

/// Why a correction cannot be read, or does not fit a payload. It tells nothing of what the payload says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Misfit(pub String);

impl Correction {
    /// Reads a merge patch: `{"currency": "EUR", "note": null}`.
    pub fn merge(text: &str) -> Result<Self, Misfit> {
        exact(text, "merge patch").map(Self::Merge)
    }

    /// Reads a JSON Patch: `[{"op": "replace", "path": "/currency", "value": "EUR"}]`.
    pub fn patch(text: &str) -> Result<Self, Misfit> {
        let steps: Vec<Step> = exact(text, "JSON Patch")?;
        if steps.is_empty() {
            return Err(Misfit("the JSON Patch has no step".to_owned()));
        }
        Ok(Self::Patch(steps))
    }

    /// The corrected payload. One that would stay the same is a misfit too: sent as a new event it would be a second one.
    pub fn apply(&self, payload: &[u8]) -> Result<Vec<u8>, Misfit> {
        if erased_hash(payload).is_some() {
            return Err(Misfit("its payload was erased".to_owned()));
        }
        let mut tree = Tree::read(payload).ok_or_else(|| Misfit("its payload is not JSON".to_owned()))?;
        match self {
            Self::Merge(patch) => tree.merge(patch),
            Self::Patch(steps) => {
                let mut copied = 0;
                for (index, step) in steps.iter().enumerate() {
                    step.take(&mut tree, &mut copied).map_err(|why| {
                        Misfit(format!("step {} ({} {}): {why}", index + 1, step.op(), step.path()))
                    })?;
                }
            }
        }
        let after = tree.text().into_bytes();
        if is_same(payload, &after) {
            return Err(Misfit("the correction changes nothing in it".to_owned()));
        }
        Ok(after)
    }
}

/// Parses, and refuses a number that would be kept as another one.
fn exact<T: serde::de::DeserializeOwned>(text: &str, what: &str) -> Result<T, Misfit> {
    let unreadable = |error| Misfit(format!("the {what} cannot be read: {error}"));
    let value: Value = serde_json::from_str(text).map_err(unreadable)?;
    if !is_same(text.as_bytes(), value.to_string().as_bytes()) {
        let told = "a number in it has more digits than are kept exactly; write it as text, or with fewer";
        return Err(Misfit(format!("the {what} cannot be used: {told}")));
    }
    serde_json::from_value(value).map_err(unreadable)
}

/// Whether two texts mean the same, whatever their spaces and the order of their members.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let hash = |bytes: &[u8]| Payload::new("application/json", bytes.to_vec()).hash();
    hash(one) == hash(other)
}

impl Step {
    fn take(&self, tree: &mut Tree, copied: &mut usize) -> Result<(), &'static str> {
        const NOTHING: &str = "there is nothing at this place";
        const NO_PLACE: &str = "there is no such place";
        match self {
            Self::Add { path, value } => tree.put(path.names(), Tree::of(value)).ok_or(NO_PLACE),
            Self::Remove { path } => tree.remove(path.names()).map(drop).ok_or(NOTHING),
            Self::Replace { path, value } => {
                *tree.at(path.names()).ok_or(NOTHING)? = Tree::of(value);
                Ok(())
            }
            Self::Move { from, path } if from.is_above(path) => Err("it cannot be moved into itself"),
            Self::Move { from, path } => {
                let moved = tree.remove(from.names()).ok_or("there is nothing to move")?;
                tree.put(path.names(), moved).ok_or(NO_PLACE)
            }
            Self::Copy { from, path } => {
                let text = tree.at(from.names()).ok_or("there is nothing to copy")?.text();
                *copied += text.len();
                if *copied > MOST_COPIED {
                    return Err("its copies are larger than any broker takes");
                }
                tree.put(path.names(), Tree::read(text.as_bytes()).ok_or(NOTHING)?).ok_or(NO_PLACE)
            }
            Self::Test { path, value } => {
                let found = tree.at(path.names()).ok_or(NOTHING)?.text();
                let is_so = is_same(found.as_bytes(), value.to_string().as_bytes());
                is_so.then_some(()).ok_or("something else is there")
            }
        }
    }

    fn op(&self) -> &'static str {
        match self {
            Self::Add { .. } => "add",
            Self::Remove { .. } => "remove",
            Self::Replace { .. } => "replace",
            Self::Move { .. } => "move",
            Self::Copy { .. } => "copy",
            Self::Test { .. } => "test",
        }
    }

    fn path(&self) -> &Pointer {
        match self {
            Self::Add { path, .. }
            | Self::Remove { path }
            | Self::Replace { path, .. }
            | Self::Move { path, .. }
            | Self::Copy { path, .. }
            | Self::Test { path, .. } => path,
        }
    }
}

#[cfg(test)]
mod tests;
