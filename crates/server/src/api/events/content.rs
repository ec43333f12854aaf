//! What a body is, by its headers: told before a byte of it is read.

use axum::http::{HeaderMap, HeaderValue, header};

use crate::api::problem::{Code, Problem};
use crate::event_input::cloud_event;

/// What UTF-8 is called, and a part of it.
const UTF_8: [&str; 3] = ["utf-8", "utf8", "us-ascii"];

/// The forms in which events come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// Our own plain JSON: one event, or an array of them.
    Json,
    /// A whole CloudEvent as JSON.
    CloudEvent,
    /// An array of whole CloudEvents.
    CloudEvents,
    /// A payload of any type, beside a CloudEvent's attributes in the headers.
    Attributes,
}

impl Content {
    /// A form in a browser can post anything but these without asking first. What is packed, or JSON of another charset, would be taken for
    /// broken JSON, so it is refused by the header that says so.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, Problem> {
        refuse_packed(headers)?;
        let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
        let essence = given.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
        let content = match essence.as_str() {
            "application/cloudevents+json" => Self::CloudEvent,
            "application/cloudevents-batch+json" => Self::CloudEvents,
            _ if cloud_event::is_binary(headers) => Self::Attributes,
            "application/json" => Self::Json,
            _ => {
                return Err(refused(
                    "send Content-Type: application/json, application/cloudevents+json or \
                     application/cloudevents-batch+json, or a payload of any type with the ce- headers of a CloudEvent",
                ));
            }
        };
        // The payload of a CloudEvent goes on as it is, unless it is JSON.
        if content != Self::Attributes || essence == "application/json" || essence.ends_with("+json") {
            refuse_other_charset(given)?;
        }
        Ok(content)
    }
}

fn refused(told: impl Into<String>) -> Problem {
    Problem::new(Code::UnsupportedMediaType, told)
}

/// Nothing is unpacked here: a small body could become a large one.
fn refuse_packed(headers: &HeaderMap) -> Result<(), Problem> {
    match headers.get_all(header::CONTENT_ENCODING).iter().find(|value| !is_plain(value)) {
        None => Ok(()),
        Some(value) => {
            let named = String::from_utf8_lossy(value.as_bytes()).into_owned();
            Err(refused(format!(
                "Content-Encoding: {named} is not understood; send the body as it is, without this header"
            )))
        }
    }
}

fn is_plain(encoding: &HeaderValue) -> bool {
    encoding.as_bytes().eq_ignore_ascii_case(b"identity")
}

/// JSON is UTF-8, of which ASCII is a part.
fn refuse_other_charset(content_type: &str) -> Result<(), Problem> {
    let charset = content_type.split(';').skip(1).find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("charset").then(|| value.trim().trim_matches('"'))
    });
    let is_utf_8 = |given: &str| UTF_8.iter().any(|known| given.eq_ignore_ascii_case(known));
    match charset {
        Some(other) if !is_utf_8(other) => Err(refused(format!(
            "Content-Type: charset={other} is not understood; send JSON as UTF-8, with charset=utf-8 or without a charset"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(all: &[(&'static str, &str)]) -> Result<Content, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in all {
            headers.insert(*name, value.parse().unwrap());
        }
        Content::of(&headers).map_err(|problem| problem.detail().to_owned())
    }

    #[test]
    fn json_is_utf_8_and_everything_comes_unpacked() {
        for fine in ["", "; charset=UTF-8", ";a=b; Charset=\"utf8\""] {
            let kind = format!("application/json{fine}");
            let read = of(&[("content-type", &kind), ("content-encoding", "Identity")]);
            assert_eq!(read, Ok(Content::Json), "{fine}");
        }
        let packed = of(&[("content-type", "application/json"), ("content-encoding", "gzip")]).unwrap_err();
        assert!(packed.contains("Content-Encoding: gzip") && packed.contains("as it is"), "{packed}");
        for other in ["application/json; charset=iso-8859-1", "application/cloudevents+json;charset=utf-16"] {
            let told = of(&[("content-type", other)]).unwrap_err();
            assert!(told.contains("charset=") && told.contains("UTF-8"), "{told}");
        }
    }

    #[test]
    fn a_payload_beside_ce_headers_has_any_charset_unless_it_is_json() {
        let binary = |kind| of(&[("ce-specversion", "1.0"), ("content-type", kind)]);
        assert_eq!(binary("text/plain; charset=iso-8859-1"), Ok(Content::Attributes));
        assert_eq!(binary("application/json"), Ok(Content::Attributes));
        assert!(binary("application/json; charset=iso-8859-1").is_err());
        assert!(binary("application/vnd.shop+json; charset=utf-16").is_err());
        let packed = [("ce-specversion", "1.0"), ("content-encoding", "br"), ("content-type", "text/plain")];
        assert!(of(&packed).is_err());
    }
}
