//! A place in a JSON text: RFC 6901.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Misfit;

/// Nothing is that deep.
const DEEPEST: usize = 128;

/// `/lines/0/amount`; the empty text is the whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pointer(Vec<String>);

impl Pointer {
    pub(super) fn names(&self) -> &[String] {
        &self.0
    }

    /// Whether the other place is inside this one.
    pub(super) fn is_above(&self, other: &Self) -> bool {
        other.0.len() > self.0.len() && other.0.starts_with(&self.0)
    }
}

impl FromStr for Pointer {
    type Err = Misfit;

    fn from_str(text: &str) -> Result<Self, Misfit> {
        let wrong = |why: &str| Misfit(format!("{text:?} is no JSON pointer: {why}"));
        if text.is_empty() {
            return Ok(Self(Vec::new()));
        }
        let names = text.strip_prefix('/').ok_or_else(|| wrong("it begins with a slash, or is empty"))?;
        let names: Vec<String> = names
            .split('/')
            .map(|name| unescaped(name).ok_or_else(|| wrong("~ stands before 0 or 1 alone")))
            .collect::<Result<_, _>>()?;
        if names.len() > DEEPEST {
            return Err(wrong("it is too deep"));
        }
        Ok(Self(names))
    }
}

fn unescaped(name: &str) -> Option<String> {
    let mut parts = name.split('~');
    let mut plain = parts.next()?.to_owned();
    for part in parts {
        let (code, rest) = part.split_at_checked(1)?;
        plain.push(match code {
            "0" => '~',
            "1" => '/',
            _ => return None,
        });
        plain.push_str(rest);
    }
    Some(plain)
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|name| write!(f, "/{}", name.replace('~', "~0").replace('/', "~1")))
    }
}

impl TryFrom<String> for Pointer {
    type Error = Misfit;

    fn try_from(text: String) -> Result<Self, Misfit> {
        text.parse()
    }
}

impl From<Pointer> for String {
    fn from(pointer: Pointer) -> Self {
        pointer.to_string()
    }
}
