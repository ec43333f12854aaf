//! Canonical JSON: one text for all the texts that mean the same.
//!
//! Members are sorted by the bytes of their names, strings have the fewest escapes, no space stands between tokens, and
//! numbers are exact decimals without leading or trailing zeros: `1.50`, `1.5` and `15e-1` are one number. Numbers never
//! go through a float, so two large amounts that differ in the last digit stay different.

use std::borrow::Cow;
use std::fmt::{Formatter, Write as _};

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Deeper nesting than this is treated as bytes, not as JSON.
const MAX_DEPTH: usize = 128;

/// The canonical form, or nothing if the bytes are not JSON.
pub(super) fn json(bytes: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(bytes).ok()?;
    // An object or a list is checked as it is taken apart.
    if !matches!(text.trim_ascii_start().as_bytes().first()?, b'{' | b'[') {
        serde_json::from_str::<&RawValue>(text).ok()?;
    }
    let mut out = String::with_capacity(bytes.len());
    write_value(text, &mut out, 0)?;
    Some(out.into_bytes())
}

fn write_value(text: &str, out: &mut String, depth: usize) -> Option<()> {
    if depth > MAX_DEPTH {
        return None;
    }
    match text.trim_ascii_start().as_bytes().first()? {
        b'{' => write_object(text, out, depth),
        b'[' => write_array(text, out, depth),
        // Without an escape in it, it is as short as it can be.
        b'"' if !text.contains('\\') => {
            out.push_str(text.trim_ascii());
            Some(())
        }
        b'"' => {
            let string: String = serde_json::from_str(text).ok()?;
            write_string(&string, out)
        }
        b't' | b'f' | b'n' => {
            out.push_str(text.trim_ascii());
            Some(())
        }
        _ => {
            write_number(text.trim_ascii(), out);
            Some(())
        }
    }
}

fn write_object(text: &str, out: &mut String, depth: usize) -> Option<()> {
    let Members(mut members) = serde_json::from_str(text).ok()?;
    // Of those with the same name the last one counts, and a stable sort keeps it last.
    members.sort_by(|(name, _), (other, _)| name.0.cmp(&other.0));
    out.push('{');
    let mut first = true;
    for (index, (name, value)) in members.iter().enumerate() {
        if members.get(index + 1).is_some_and(|(next, _)| next.0 == name.0) {
            continue;
        }
        if !first {
            out.push(',');
        }
        first = false;
        write_string(&name.0, out)?;
        out.push(':');
        write_value(value.get(), out, depth + 1)?;
    }
    out.push('}');
    Some(())
}

/// A name that stays in the text, unless it has escapes in it.
#[derive(serde::Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// The members of an object as they stand there, repeated ones included.
struct Members<'a>(Vec<(Name<'a>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AsTheyCome;

        impl<'de> Visitor<'de> for AsTheyCome {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::with_capacity(8);
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(AsTheyCome)
    }
}

fn write_array(text: &str, out: &mut String, depth: usize) -> Option<()> {
    let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
    out.push('[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write_value(item.get(), out, depth + 1)?;
    }
    out.push(']');
    Some(())
}

fn write_string(string: &str, out: &mut String) -> Option<()> {
    if !string.bytes().any(|byte| byte < 0x20 || byte == b'"' || byte == b'\\') {
        out.push('"');
        out.push_str(string);
        out.push('"');
        return Some(());
    }
    out.push_str(&serde_json::to_string(string).ok()?);
    Some(())
}

/// Writes `digits` or `digits` + `e` + exponent, digits without leading or trailing zeros.
fn write_number(text: &str, out: &mut String) {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |rest| ("-", rest));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits: Cow<'_, str> =
        if fraction.is_empty() { whole.into() } else { format!("{whole}{fraction}").into() };
    let significant = digits.trim_end_matches('0');
    let Ok(exponent) = exponent.parse::<i64>() else {
        // An exponent beyond 64 bits: keep the text, it is only compared with itself.
        out.push_str(text);
        return;
    };
    let dropped = digits.len() - significant.len();
    let significant = significant.trim_start_matches('0');
    if significant.is_empty() {
        out.push('0');
        return;
    }
    let exponent = i128::from(exponent) - fraction.len() as i128 + dropped as i128;
    out.push_str(sign);
    out.push_str(significant);
    if exponent != 0 {
        // Writing to a String cannot fail.
        let _ = write!(out, "e{exponent}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        String::from_utf8(json(text.as_bytes()).expect("is JSON")).unwrap()
    }

    #[test]
    fn order_space_and_escapes_do_not_matter() {
        assert_eq!(
            canonical(r#" {"b" : [1, true ,null], "a":"\u0041\/"} "#),
            r#"{"a":"A/","b":[1,true,null]}"#
        );
    }

    #[test]
    fn a_string_has_the_escapes_that_it_needs_and_no_other() {
        assert_eq!(canonical(r#"{"\u0061\"":"plain Grüße\u007f"}"#), "{\"a\\\"\":\"plain Grüße\u{7f}\"}");
        assert_eq!(canonical(r#" "a\nb\\" "#), r#""a\nb\\""#);
        assert_eq!(canonical(" \"x\" "), "\"x\"");
    }

    #[test]
    fn numbers_are_exact_decimals() {
        for same in ["150", "1.5e2", "150.00", "15E+1", "0.150e3"] {
            assert_eq!(canonical(same), "15e1", "{same}");
        }
        assert_eq!(canonical("-0.0"), "0");
        assert_ne!(canonical("9007199254740993"), canonical("9007199254740992"));
    }

    #[test]
    fn of_members_with_the_same_name_the_last_counts() {
        assert_eq!(canonical(r#"{"b":1,"a":2,"b":3,"\u0062":4}"#), r#"{"a":2,"b":4}"#);
        assert_eq!(canonical("{}"), "{}");
    }

    #[test]
    fn what_is_not_json_is_left_alone() {
        assert_eq!(json(b"not json"), None);
        for broken in ["{\"a\":1} x", "{\"a\":[1,}", "[1", "{1:2}", " ", "01", "\u{feff}{}"] {
            assert_eq!(json(broken.as_bytes()), None, "{broken}");
        }
        assert_eq!(json(b"{\"a\":\"\xff\"}"), None);
        assert_eq!(json("[".repeat(5000).as_bytes()), None);
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        assert_eq!(json(deep.as_bytes()), None);
    }
}
