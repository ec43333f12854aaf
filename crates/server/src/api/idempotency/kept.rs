//! An answer as it is kept for its key: without a secret that it showed, and without a body that is too long.

use axum::body::Bytes;
use axum::http::{HeaderName, HeaderValue, StatusCode, header, response::Parts};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::api::problem::{Code, Problem};

/// Says that an answer is a repeated one.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// A longer answer is not kept; that there was one is.
const LONGEST: usize = 1 << 20;
/// What stands in a repeated answer in the place of its secret.
const SHOWN: &str = "secret_shown";

/// An answer as it is kept.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    status: u16,
    content_type: Option<String>,
    /// None where it was too long.
    body: Option<String>,
}

impl Kept {
    /// What is kept of an answer, of which this member is a secret.
    pub(super) fn of(head: &Parts, body: &Bytes, secret: Option<&str>) -> Self {
        let body = match secret {
            Some(secret) => without(secret, body),
            None => String::from_utf8_lossy(body).into_owned(),
        };
        let kind = head.headers.get(header::CONTENT_TYPE);
        Self {
            status: head.status.as_u16(),
            content_type: kind.and_then(|kind| Some(kind.to_str().ok()?.to_owned())),
            body: Some(body).filter(|body| body.len() <= LONGEST),
        }
    }

    /// As it goes to the store.
    pub(super) fn written(&self) -> Option<Bytes> {
        serde_json::to_vec(self).ok().map(Bytes::from)
    }
}

/// The same answer without its secret. One that cannot be read is not kept at all.
fn without(secret: &str, body: &[u8]) -> String {
    let mut told: Map<String, Value> = serde_json::from_slice(body).unwrap_or_default();
    if told.remove(secret).is_some() {
        let words = "with the first answer alone, and it is not kept; if it is lost, make another";
        told.insert(SHOWN.to_owned(), words.into());
    }
    Value::Object(told).to_string()
}

/// The first answer again.
pub(super) fn repeated(answer: &[u8]) -> Result<Response, Problem> {
    let unreadable = |_| Problem::new(Code::Internal, "the first answer cannot be read; it was done before");
    let kept: Kept = serde_json::from_slice(answer).map_err(unreadable)?;
    let Some(body) = kept.body else {
        let detail = format!(
            "it was done before and answered with {}; the answer had more than {LONGEST} bytes and is not kept. Nothing was done now",
            kept.status
        );
        return Err(Problem::new(Code::AnswerNotKept, detail));
    };
    let status = StatusCode::from_u16(kept.status).unwrap_or(StatusCode::OK);
    let mut response = (status, body).into_response();
    let headers = response.headers_mut();
    headers.remove(header::CONTENT_TYPE);
    if let Some(kind) = kept.content_type.and_then(|kind| HeaderValue::from_str(&kind).ok()) {
        headers.insert(header::CONTENT_TYPE, kind);
    }
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Parts {
        Response::builder()
            .status(201)
            .header("content-type", "application/json")
            .body(())
            .unwrap()
            .into_parts()
            .0
    }

    #[test]
    fn a_secret_is_not_kept_and_all_beside_it_is() {
        let body = Bytes::from_static(br#"{"id":"7","token":"prt_hidden","role":"viewer"}"#);
        let kept = Kept::of(&head(), &body, Some("token")).written().unwrap();
        assert!(!String::from_utf8_lossy(&kept).contains("prt_hidden"));
        let kept: Kept = serde_json::from_slice(&kept).unwrap();
        let told: Value = serde_json::from_str(&kept.body.unwrap()).unwrap();
        assert_eq!((&told["id"], &told["role"], kept.status), (&"7".into(), &"viewer".into(), 201));
        assert!(told["secret_shown"].is_string());
        // What showed none is as it was, and what is no object is not kept.
        for (body, left) in
            [(&br#"{"code":"conflict"}"#[..], r#"{"code":"conflict"}"#), (b"prt_hidden", "{}")]
        {
            assert_eq!(Kept::of(&head(), &Bytes::from_static(body), Some("token")).body.unwrap(), left);
        }
    }

    #[test]
    fn a_long_answer_is_told_of_and_not_kept() {
        let long = Bytes::from(vec![b'x'; LONGEST + 1]);
        let kept = Kept::of(&head(), &long, None).written().unwrap();
        assert!(kept.len() < 200);
        let told = repeated(&kept).unwrap_err();
        assert!(told.is(Code::AnswerNotKept) && told.detail().contains("201"), "{told:?}");
        let just = Kept::of(&head(), &long.slice(1..), None).written().unwrap();
        assert_eq!(repeated(&just).unwrap().status(), StatusCode::CREATED);
    }
}
