//! The headers that tell of a message's deaths, as RabbitMQ writes them.
//!
//! `x-death` lists one table per queue and reason, the latest first, each with a count; `x-first-death-…` never change.

use jiff::Timestamp;

use crate::broker::{HeaderValue, Headers};
use crate::topology::{ExchangeName, QueueName, RoutingKey};

const DEATHS: &str = "x-death";
const FIRST: [&str; 3] = ["x-first-death-queue", "x-first-death-reason", "x-first-death-exchange"];

/// Why a message left a queue without an ack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// A consumer rejected it.
    Rejected,
    /// It waited longer than the queue allows.
    Expired,
    /// It came back from lost consumers more often than the queue allows.
    DeliveryLimit,
    /// Newer ones pushed it out of a queue that was full.
    MaxLength,
}

impl Reason {
    fn as_str(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::DeliveryLimit => "delivery_limit",
            Self::MaxLength => "maxlen",
        }
    }
}

/// One death.
pub(super) struct Death<'a> {
    pub(super) queue: &'a QueueName,
    pub(super) reason: Reason,
    pub(super) time: Timestamp,
    /// Where it had been published to.
    pub(super) exchange: &'a ExchangeName,
    /// With which key.
    pub(super) routing_key: &'a RoutingKey,
}

impl Death<'_> {
    /// The headers that tell of this death and of all before it; they replace those of the same names.
    pub(super) fn told_after(&self, headers: &Headers) -> Headers {
        let mut told = Headers::new();
        let (reason, queue) = (self.reason.as_str(), self.queue.as_str());
        let earlier = if let Some(HeaderValue::List(earlier)) = headers.get(DEATHS) {
            for name in FIRST {
                told.extend(headers.get(name).map(|value| (name.to_owned(), value.clone())));
            }
            earlier.as_slice()
        } else {
            // None yet, or something that a client made up.
            let first = FIRST.into_iter().zip([queue, reason, self.exchange.as_str()]);
            told.extend(first.map(|(name, text)| (name.to_owned(), text.into())));
            &[]
        };
        let same = |death: &&HeaderValue| is(death, "queue", queue) && is(death, "reason", reason);
        let mut deaths = vec![match earlier.iter().find(same) {
            Some(HeaderValue::Table(before)) => {
                let count = before.get("count").and_then(HeaderValue::as_int).unwrap_or(0);
                let mut again = before.clone();
                again.insert("count".to_owned(), HeaderValue::Int(count.saturating_add(1)));
                HeaderValue::Table(again)
            }
            _ => self.table(),
        }];
        deaths.extend(earlier.iter().filter(|death| !same(death)).cloned());
        told.insert(DEATHS.to_owned(), HeaderValue::List(deaths));
        told
    }

    fn table(&self) -> HeaderValue {
        let time = u64::try_from(self.time.as_second()).unwrap_or(0);
        let keys = vec![self.routing_key.as_str().into()];
        HeaderValue::Table(
            [
                ("count", HeaderValue::Int(1)),
                ("reason", self.reason.as_str().into()),
                ("queue", self.queue.as_str().into()),
                ("time", HeaderValue::Timestamp(time)),
                ("exchange", self.exchange.as_str().into()),
                ("routing-keys", HeaderValue::List(keys)),
            ]
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
        )
    }
}

/// Whether a message with these deaths would come back to a queue without anybody having rejected it in between: it would go
/// round for ever.
pub(super) fn is_cycle(told: &Headers, queue: &QueueName) -> bool {
    let Some(HeaderValue::List(deaths)) = told.get(DEATHS) else { return false };
    let Some(before) = deaths.iter().position(|death| is(death, "queue", queue.as_str())) else {
        return false;
    };
    !deaths[..=before].iter().any(|death| is(death, "reason", Reason::Rejected.as_str()))
}

fn is(death: &HeaderValue, name: &str, text: &str) -> bool {
    matches!(death, HeaderValue::Table(death) if death.get(name).and_then(HeaderValue::as_str) == Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn die(headers: &mut Headers, queue: &str, reason: Reason, second: i64) {
        let death = Death {
            queue: &QueueName::new(queue).unwrap(),
            reason,
            time: Timestamp::from_second(second).unwrap(),
            exchange: &ExchangeName::new("shop").unwrap(),
            routing_key: &RoutingKey::new("order.created").unwrap(),
        };
        headers.extend(death.told_after(headers));
    }

    fn counts(headers: &Headers) -> Vec<(String, String, i64)> {
        let HeaderValue::List(deaths) = &headers["x-death"] else { panic!("no list") };
        let read = |death: &HeaderValue| {
            let HeaderValue::Table(death) = death else { panic!("no table") };
            let text = |name: &str| death[name].as_str().unwrap().to_owned();
            (text("queue"), text("reason"), death["count"].as_int().unwrap())
        };
        deaths.iter().map(read).collect()
    }

    #[test]
    fn deaths_are_counted_per_queue_and_reason_the_latest_first() {
        let mut headers = Headers::from([("x-own".to_owned(), HeaderValue::Int(1))]);
        for round in 0..3 {
            die(&mut headers, "main", Reason::Rejected, 10 + round);
            die(&mut headers, "wait", Reason::Expired, 20 + round);
        }
        assert_eq!(
            counts(&headers),
            [("wait".into(), "expired".into(), 3), ("main".into(), "rejected".into(), 3)]
        );
        assert_eq!(headers["x-first-death-queue"].as_str(), Some("main"));
        assert_eq!(headers["x-first-death-reason"].as_str(), Some("rejected"));
        assert_eq!(headers["x-first-death-exchange"].as_str(), Some("shop"));
        assert_eq!(headers["x-own"], HeaderValue::Int(1));
    }

    #[test]
    fn a_made_up_header_is_replaced() {
        let mut headers = Headers::from([("x-death".to_owned(), "often".into())]);
        die(&mut headers, "main", Reason::Rejected, 10);
        assert_eq!(counts(&headers), [("main".into(), "rejected".into(), 1)]);
    }

    #[test]
    fn only_a_round_without_a_rejection_is_a_cycle() {
        let (main, wait) = (QueueName::new("main").unwrap(), QueueName::new("wait").unwrap());
        let mut headers = Headers::new();
        die(&mut headers, "main", Reason::Rejected, 1);
        die(&mut headers, "wait", Reason::Expired, 2);
        assert!(!is_cycle(&headers, &main));
        assert!(is_cycle(&headers, &wait));
        let mut headers = Headers::new();
        die(&mut headers, "main", Reason::Expired, 1);
        die(&mut headers, "wait", Reason::Expired, 2);
        assert!(is_cycle(&headers, &main));
    }
}
