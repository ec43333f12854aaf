//! JSON that every reader understands the same way: no key twice in an object, no NUL in a text, not nested too deeply.

use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::Refused;

/// Checks a JSON document. Its depth is counted first, on the bytes, so that no depth can exhaust the stack.
pub(super) fn check(json: &str, max_depth: usize) -> Result<(), Refused> {
    let depth = depth(json);
    if depth > max_depth {
        return Err(Refused::TooDeep { depth, max: max_depth });
    }
    let mut found = None;
    let mut reader = serde_json::Deserializer::from_str(json);
    let read = Look { found: &mut found }.deserialize(&mut reader).and_then(|()| reader.end());
    match (found, read) {
        (Some(refused), _) => Err(refused),
        (None, Err(error)) => Err(Refused::NotJson(error.to_string())),
        (None, Ok(())) => Ok(()),
    }
}

/// How deeply JSON is nested.
fn depth(json: &str) -> usize {
    let (mut now, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                now += 1;
                deepest = deepest.max(now);
            }
            b'}' | b']' if !in_string => now = now.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Walks through a value and keeps the first thing that is wrong with it.
struct Look<'f> {
    found: &'f mut Option<Refused>,
}

impl Look<'_> {
    fn text<E: serde::de::Error>(&mut self, text: &str) -> Result<(), E> {
        if !text.contains('\0') {
            return Ok(());
        }
        *self.found = Some(Refused::Nul);
        Err(E::custom("NUL"))
    }
}

impl<'de> DeserializeSeed<'de> for Look<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Look<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: serde::de::Error>(mut self, text: &str) -> Result<(), E> {
        self.text(text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(Look { found: &mut *self.found })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut members: A) -> Result<(), A::Error> {
        let mut names = HashSet::new();
        while let Some(name) = members.next_key::<String>()? {
            self.text(&name)?;
            members.next_value_seed(Look { found: &mut *self.found })?;
            if let Some(twice) = names.replace(name) {
                *self.found = Some(Refused::KeyTwice(twice));
                return Err(serde::de::Error::custom("a key twice"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_readers_would_disagree_about_is_refused() {
        assert!(check(r#"{"a": [1, -2, 3.5, null, true, "x"], "b": {"a": {}}}"#, 64).is_ok());
        assert!(check("123456789012345678901234567890.5", 64).is_ok());
        let said = |json: &str| check(json, 64).unwrap_err().to_string();
        assert!(said(r#"{"a": {"x": 1, "x": 2}}"#).contains("\"x\" twice"));
        assert!(said(r#"{"a": 1, "\u0061": 2}"#).contains("\"a\" twice"));
        assert!(said("[\"a\\u0000b\"]").contains("NUL"));
        assert!(said("{\"a\\u0000\": 1}").contains("NUL"));
        assert!(said("{\"a\": }").contains("not JSON"));
        assert!(said("1 2").contains("not JSON"));
    }

    #[test]
    fn brackets_in_text_do_not_nest() {
        assert_eq!(depth(r#"{"a":"[[[\"[[","b":[1]}"#), 2);
        assert_eq!(depth(&"[".repeat(100_000)), 100_000);
    }
}
