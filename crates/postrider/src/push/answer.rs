//! What an endpoint's answer means: the status table, and what a body may add to it. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::handler::Failure;

/// No more of an answer is read; the connection is given up then.
pub(super) const MOST_READ: usize = 64 * 1024;

/// What a success that is longer than that is called, as a failure and in metrics.
const TOO_LONG: &str = "too_long";

/// What came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// What `Retry-After` asks for.
    pub retry_after: Option<Duration>,
    /// The body, or its beginning.
    pub body: Bytes,
    /// Whether the body is all there was; it is not where there was more than is read.
    pub whole: bool,
}

/// Statuses that a metric tells apart. Receivers choose what they answer, so every other counts under its class: they must not be able
/// to make as many series as there are numbers.
const TOLD_APART: [&str; 30] = [
    "200", "201", "202", "204", "301", "302", "303", "307", "308", "400", "401", "402", "403", "404", "405",
    "408", "409", "410", "411", "413", "415", "422", "425", "429", "431", "500", "501", "502", "503", "504",
];

impl Answer {
    /// Whether this would be a success, had it come to an end.
    pub(super) fn is_too_long(&self) -> bool {
        !self.whole && (200..300).contains(&self.status)
    }

    /// The status as the label of a metric.
    pub(super) fn label(&self) -> &'static str {
        if self.is_too_long() {
            return TOO_LONG;
        }
        let text = self.status.to_string();
        match TOLD_APART.iter().find(|known| **known == text) {
            Some(known) => known,
            None => match self.status / 100 {
                1 => "1xx",
                2 => "2xx",
                3 => "3xx",
                4 => "4xx",
                5 => "5xx",
                _ => "other",
            },
        }
    }
}

/// What is done about an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Treatment {
    /// It is done.
    Ack,
    /// It may succeed later, and counts as an attempt.
    Retry,
    /// It is too early: the same attempt comes again.
    Defer,
    /// It will never succeed: straight to the dead letters.
    Reject,
    /// The endpoint is gone: it is paused, and the same attempt comes again when somebody resumes it.
    Pause,
}

/// Which status means what. Rows of one's own go before the usual ones, the narrowest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Rows", into = "Rows")]
pub struct StatusTable {
    rows: Vec<(u16, u16, Treatment)>,
    strict: bool,
}

/// The table as it is written: `"409" = "retry"`, `"4xx" = "reject"`, `"500-503" = "retry"`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Rows {
    #[serde(default)]
    strict: bool,
    #[serde(default, flatten)]
    rows: BTreeMap<String, Treatment>,
}

impl StatusTable {
    /// A table with rows of its own. `strict` is the event-bus seed's: every 4xx is tried again.
    pub fn new(rows: &BTreeMap<String, Treatment>, strict: bool) -> Result<Self, String> {
        let mut read = Vec::new();
        for (text, treatment) in rows {
            let (from, to) = statuses(text).ok_or_else(|| {
                format!("{text:?} is no status; write 409, 4xx or 500-503, from 200 to 599")
            })?;
            read.push((from, to, *treatment));
        }
        read.sort_by_key(|(from, to, _)| (to - from, *from));
        Ok(Self { rows: read, strict })
    }

    /// What this status means.
    pub fn treat(&self, status: u16) -> Treatment {
        let own = self.rows.iter().find(|(from, to, _)| (*from..=*to).contains(&status));
        if let Some((_, _, treatment)) = own {
            return *treatment;
        }
        match status {
            200..=299 => Treatment::Ack,
            425 => Treatment::Defer,
            408 | 409 | 429 => Treatment::Retry,
            410 if !self.strict => Treatment::Pause,
            400..=499 if !self.strict => Treatment::Reject,
            // 5xx; a redirect, which is never followed; and what is no answer says nothing against the event.
            _ => Treatment::Retry,
        }
    }
}

impl TryFrom<Rows> for StatusTable {
    type Error = String;

    fn try_from(rows: Rows) -> Result<Self, String> {
        Self::new(&rows.rows, rows.strict)
    }
}

impl From<StatusTable> for Rows {
    fn from(table: StatusTable) -> Self {
        let row = |(from, to, treatment): (u16, u16, Treatment)| (format!("{from}-{to}"), treatment);
        Self { strict: table.strict, rows: table.rows.into_iter().map(row).collect() }
    }
}

/// `409`, `4xx` or `500-503`.
fn statuses(text: &str) -> Option<(u16, u16)> {
    let range = if let Some(hundred) = text.strip_suffix("xx") {
        let hundred: u16 = hundred.parse().ok()?;
        (hundred.checked_mul(100)?, hundred.checked_mul(100)?.checked_add(99)?)
    } else if let Some((from, to)) = text.split_once('-') {
        (from.trim().parse().ok()?, to.trim().parse().ok()?)
    } else {
        let status = text.parse().ok()?;
        (status, status)
    };
    (200 <= range.0 && range.0 <= range.1 && range.1 <= 599).then_some(range)
}

/// What an answer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// The endpoint has done it.
    Done,
    /// It has not.
    Failed(Failure),
    /// It does not want to be called any more.
    Gone(Failure),
}

/// Judges an answer: by the table, and by the word in its body, if it has one of ours.
///
/// A body can turn a success into a retry or a rejection, and a failure into another one; it cannot make a failure a success. One that is
/// longer than is read makes a success a failure that is tried again; of a failure the status counts.
pub fn judge(answer: &Answer, table: &StatusTable, now: Timestamp) -> Said {
    let status = answer.status;
    let treatment = match (table.treat(status), word(&answer.body)) {
        (Treatment::Pause, _) => Treatment::Pause,
        (_, Some(Word::Retry)) => Treatment::Retry,
        (_, Some(Word::Reject)) => Treatment::Reject,
        (treatment, Some(Word::Success) | None) => treatment,
    };
    if treatment == Treatment::Ack && !answer.whole {
        return Said::Failed(too_long(answer));
    }
    let told = match (treatment, status) {
        (Treatment::Ack, _) => return Said::Done,
        (Treatment::Pause, _) => format!("the endpoint answered {status}: it is gone"),
        (Treatment::Retry, 200..=299) => format!("the endpoint answered {status} and RETRY in its body"),
        (Treatment::Reject, 200..=299) => format!("the endpoint answered {status} and REJECT in its body"),
        (_, 300..=399) => format!("the endpoint answered {status}; a redirect is never followed"),
        _ => format!("the endpoint answered {status}"),
    };
    let later = now.saturating_add(answer.retry_after.unwrap_or_default()).unwrap_or(now);
    let failure = match treatment {
        Treatment::Defer | Treatment::Pause => Failure { message: told, ..Failure::deferred(later) },
        Treatment::Reject => Failure::permanent(told),
        Treatment::Retry | Treatment::Ack => Failure::transient(told),
    };
    let failure = Failure { retry_after: answer.retry_after, ..failure.status(status) };
    match treatment {
        Treatment::Pause => Said::Gone(failure.class("gone")),
        _ if (300..400).contains(&status) => Said::Failed(failure.class("redirect")),
        _ => Said::Failed(failure.class(code(&answer.body).unwrap_or_else(|| format!("http_{status}")))),
    }
}

/// The endpoint's own word for what went wrong, by which failures are grouped: `code`, or `error` where that is a word. What it says to
/// people may repeat the payload, so it stays with the attempts.
fn code(body: &[u8]) -> Option<String> {
    let named: Named = serde_json::from_slice(body).ok()?;
    [named.code, named.error].into_iter().flatten().find(|word| is_word(word))
}

#[derive(Deserialize)]
struct Named {
    #[serde(default, deserialize_with = "if_text")]
    code: Option<String>,
    #[serde(default, deserialize_with = "if_text")]
    error: Option<String>,
}

/// Text, or nothing where something else stands.
fn if_text<'de, D: serde::Deserializer<'de>>(value: D) -> Result<Option<String>, D::Error> {
    Ok(serde_json::Value::deserialize(value)?.as_str().map(str::to_owned))
}

/// A name such as `unknown_customer` or `billing.no-account`, and no sentence, number or id.
fn is_word(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphabetic() || matches!(c, '_' | '-' | '.');
    (1..=64).contains(&text.len()) && text.chars().all(is_part)
}

/// Who sends without an end is not well, and what the rest would have said nobody knows.
fn too_long(answer: &Answer) -> Failure {
    let status = answer.status;
    let told = format!("the endpoint answered {status}, but the answer is longer than {MOST_READ} bytes");
    let failure = Failure::transient(told).class(TOO_LONG).status(status);
    Failure { retry_after: answer.retry_after, ..failure }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Word {
    Success,
    Retry,
    Reject,
}

#[derive(Deserialize)]
struct Body {
    status: Word,
}

/// `{"status": "SUCCESS" | "RETRY" | "REJECT"}`. Anything else is the endpoint's own business.
fn word(body: &[u8]) -> Option<Word> {
    serde_json::from_slice::<Body>(body).ok().map(|body| body.status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::FailureKind;

    fn answer(status: u16, body: &str) -> Answer {
        let body = Bytes::copy_from_slice(body.as_bytes());
        Answer { status, retry_after: None, body, whole: true }
    }

    fn said(status: u16, body: &str, table: &StatusTable) -> Said {
        judge(&answer(status, body), table, Timestamp::UNIX_EPOCH)
    }

    fn kind(said: Said) -> Option<FailureKind> {
        match said {
            Said::Done => None,
            Said::Failed(failure) | Said::Gone(failure) => Some(failure.kind),
        }
    }

    #[test]
    fn a_receiver_cannot_make_more_labels_than_are_known() {
        let label = |status| answer(status, "").label();
        let told: Vec<_> = [200, 206, 429, 418, 599, 503, 999, 100].map(label).to_vec();
        assert_eq!(told, ["200", "2xx", "429", "4xx", "5xx", "503", "other", "1xx"]);
        let labels: std::collections::BTreeSet<_> = (100..=999).map(label).collect();
        assert_eq!(labels.len(), TOLD_APART.len() + 6);
    }

    #[test]
    fn every_row_of_the_table() {
        let now = Timestamp::UNIX_EPOCH;
        let (usual, strict) = (StatusTable::default(), StatusTable::new(&BTreeMap::new(), true).unwrap());
        let rows = [
            (200, None, None),
            (204, None, None),
            (301, Some(FailureKind::Transient), Some(FailureKind::Transient)),
            (400, Some(FailureKind::Permanent), Some(FailureKind::Transient)),
            (404, Some(FailureKind::Permanent), Some(FailureKind::Transient)),
            (408, Some(FailureKind::Transient), Some(FailureKind::Transient)),
            (409, Some(FailureKind::Transient), Some(FailureKind::Transient)),
            (410, Some(FailureKind::Deferred { until: now }), Some(FailureKind::Transient)),
            (425, Some(FailureKind::Deferred { until: now }), Some(FailureKind::Deferred { until: now })),
            (429, Some(FailureKind::Transient), Some(FailureKind::Transient)),
            (500, Some(FailureKind::Transient), Some(FailureKind::Transient)),
            (503, Some(FailureKind::Transient), Some(FailureKind::Transient)),
        ];
        for (status, usually, strictly) in rows {
            assert_eq!(kind(said(status, "", &usual)), usually, "{status}");
            assert_eq!(kind(said(status, "", &strict)), strictly, "{status} strict");
        }
        assert!(matches!(said(410, "", &usual), Said::Gone(_)));
    }

    #[test]
    fn every_row_can_be_changed_and_the_narrowest_counts() {
        let rows = [("4xx", Treatment::Retry), ("404", Treatment::Ack), ("400-405", Treatment::Reject)];
        let rows = rows.map(|(text, treatment)| (text.to_owned(), treatment)).into();
        let table = StatusTable::new(&rows, false).unwrap();
        let treated = [404, 401, 410, 500].map(|status| table.treat(status));
        assert_eq!(treated, [Treatment::Ack, Treatment::Reject, Treatment::Retry, Treatment::Retry]);
        for wrong in ["teapot", "99", "600", "503-500", "6xx", ""] {
            assert!(
                StatusTable::new(&[(wrong.to_owned(), Treatment::Ack)].into(), false).is_err(),
                "{wrong}"
            );
        }
        let json = serde_json::to_string(&table).unwrap();
        assert_eq!(serde_json::from_str::<StatusTable>(&json).unwrap(), table);
    }

    #[test]
    fn a_body_can_say_retry_and_reject_but_makes_no_failure_a_success() {
        let table = StatusTable::default();
        let said = |status, body| kind(said(status, body, &table));
        assert_eq!(said(200, r#"{"status":"RETRY"}"#), Some(FailureKind::Transient));
        assert_eq!(said(200, r#"{"status":"REJECT","why":1}"#), Some(FailureKind::Permanent));
        assert_eq!(said(500, r#"{"status":"REJECT"}"#), Some(FailureKind::Permanent));
        assert_eq!(said(500, r#"{"status":"SUCCESS"}"#), Some(FailureKind::Transient));
        for own in [r#"{"status":"SUCCESS"}"#, r#"{"status":"retry"}"#, r#"{"status":404}"#, "garbage", ""] {
            assert_eq!(said(200, own), None, "{own}");
        }
    }

    #[test]
    fn failures_are_grouped_by_the_endpoints_own_word_or_by_status() {
        let class = |status, body| match said(status, body, &StatusTable::default()) {
            Said::Done => None,
            Said::Failed(failure) | Said::Gone(failure) => failure.class,
        };
        assert_eq!(
            class(422, r#"{"code":"unknown_customer","detail":"no 17"}"#).unwrap(),
            "unknown_customer"
        );
        assert_eq!(class(500, r#"{"error":"smtp.down"}"#).unwrap(), "smtp.down");
        assert_eq!(class(200, r#"{"status":"RETRY","code":"busy"}"#).unwrap(), "busy");
        for own in
            ["", "no such customer", r#"{"code":17}"#, r#"{"code":"card 4111"}"#, r#"{"error":{"a":1}}"#]
        {
            assert_eq!(class(503, own).unwrap(), "http_503", "{own}");
        }
        assert_eq!(class(302, r#"{"code":"moved"}"#).unwrap(), "redirect");
    }

    #[test]
    fn a_success_longer_than_is_read_is_a_failure_and_a_failure_stays_what_it_is() {
        let table = StatusTable::new(&[("404".to_owned(), Treatment::Ack)].into(), false).unwrap();
        let cut = |status| Answer { whole: false, ..answer(status, "xxxx") };
        let said = |status| judge(&cut(status), &table, Timestamp::UNIX_EPOCH);
        for status in [200, 204, 404] {
            let Said::Failed(failure) = said(status) else { panic!("{status} counts as done") };
            assert_eq!((failure.kind, failure.status), (FailureKind::Transient, Some(status)));
            assert_eq!(failure.class.as_deref(), Some(TOO_LONG));
            assert!(failure.message.contains("longer than 65536 bytes"), "{}", failure.message);
        }
        assert_eq!(kind(said(400)), Some(FailureKind::Permanent));
        assert!(matches!(said(410), Said::Gone(_)));
        assert_eq!([200, 503].map(|status| cut(status).label()), [TOO_LONG, "503"]);
    }

    #[test]
    fn retry_after_is_kept() {
        let hour = Some(Duration::from_hours(1));
        let answer = Answer { retry_after: hour, ..answer(425, "") };
        let Said::Failed(failure) = judge(&answer, &StatusTable::default(), Timestamp::UNIX_EPOCH) else {
            panic!("it is too early")
        };
        assert_eq!(failure.kind, FailureKind::Deferred { until: "1970-01-01T01:00:00Z".parse().unwrap() });
        assert_eq!((failure.retry_after, failure.status), (hour, Some(425)));
    }
}
