//! The members of an object that have no field of their own, each name once: of two, readers would disagree about which one counts.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::{Map, Value};

/// Members by name.
#[derive(Debug, Default)]
pub(crate) struct Members(pub(crate) Map<String, Value>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Once)
    }
}

struct Once;

impl<'de> Visitor<'de> for Once {
    type Value = Members;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Members, A::Error> {
        let mut read = Map::new();
        while let Some((name, value)) = members.next_entry::<String, Value>()? {
            if read.contains_key(&name) {
                return Err(A::Error::custom(format_args!("duplicate field `{name}`")));
            }
            read.insert(name, value);
        }
        Ok(Members(read))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    struct Read {
        #[serde(default)]
        own: u32,
        #[serde(flatten)]
        others: Members,
    }

    #[test]
    fn a_name_that_stands_twice_is_told() {
        let read: Read = serde_json::from_str(r#"{"a":1,"own":2,"b":[3]}"#).unwrap();
        assert_eq!((read.own, read.others.0.len()), (2, 2));
        let told = serde_json::from_str::<Read>(r#"{"a":1,"own":2,"a":3}"#).unwrap_err().to_string();
        assert!(told.contains("duplicate field `a`"), "{told}");
    }
}
