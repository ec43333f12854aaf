//! What an address asks for: filters live in it, so that a page can be sent to somebody.

use std::collections::BTreeMap;
use std::str::FromStr;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use jiff::Timestamp;
use postrider::store::{LetterFilter, LetterId, LetterStatus};
use url::form_urlencoded::{Serializer, parse};

use super::visit::Visit;
use crate::api::{Code, Problem, time_asked};

/// The query of an address. What is empty is as if it were not there.
#[derive(Debug, Clone, Default)]
pub(super) struct Search(BTreeMap<String, String>);

impl<S: Sync> FromRequestParts<S> for Search {
    type Rejection = std::convert::Infallible;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let query = parts.uri.query().unwrap_or_default();
        Ok(Self(parse(query.as_bytes()).into_owned().filter(|(_, value)| !value.trim().is_empty()).collect()))
    }
}

impl Search {
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.trim())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Read as what it is.
    pub(super) fn read<T: FromStr>(&self, name: &str) -> Result<Option<T>, Problem>
    where
        T::Err: std::fmt::Display,
    {
        let read = |text: &str| {
            text.parse().map_err(|error| Problem::new(Code::InvalidRequest, format!("{name}: {error}")))
        };
        self.get(name).map(read).transpose()
    }

    /// The same with one thing different; `None` takes it out.
    #[must_use]
    pub(super) fn with(mut self, name: &str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.0.insert(name.to_owned(), value.to_string()),
            None => self.0.remove(name),
        };
        self
    }

    /// An address that asks for this.
    pub(super) fn at(&self, path: &str) -> String {
        if self.0.is_empty() {
            return path.to_owned();
        }
        let query = Serializer::new(String::new()).extend_pairs(&self.0).finish();
        format!("{path}?{query}")
    }

    /// Which dead letters.
    pub(super) fn letters(&self, visit: &Visit) -> Result<LetterFilter, Problem> {
        let time = |name: &str| self.get(name).map(|text| time_asked(text, visit.now)).transpose();
        let ids = self.get("ids").unwrap_or_default().split(',').filter(|id| !id.is_empty());
        let ids: Result<Vec<LetterId>, _> = ids.map(str::parse).collect();
        let no_id = |_| Problem::new(Code::InvalidRequest, "ids are numbers of dead letters");
        // A word that is no state means all of them.
        let status = match self.get("status") {
            None => Some(LetterStatus::Open),
            Some(name) => LetterStatus::from_name(name),
        };
        let own = visit.caller.tenant.clone();
        Ok(LetterFilter {
            ids: ids.map_err(no_id)?,
            consumer: self.read("consumer")?,
            queue: self.read("queue")?,
            event_type: self.get("type").map(str::to_owned),
            event_id: self.read("event")?,
            reason: self.get("reason").map(str::to_owned),
            error_class: self.get("class").map(str::to_owned),
            fingerprint: self.get("group").map(str::to_owned),
            tenant: if own.is_some() { own } else { self.read("tenant")? },
            aggregate_id: self.read("aggregate")?,
            text: self.get("text").map(str::to_owned),
            since: time("since")?,
            until: time("until")?,
            status,
            ..LetterFilter::default()
        })
    }

    /// The other way round. What a plan froze is left out, so that it asks for what is there now.
    pub(super) fn of_letters(filter: &LetterFilter) -> Self {
        let text = |value: Option<&dyn ToString>| value.map(ToString::to_string);
        let ids: Vec<String> = filter.ids.iter().map(ToString::to_string).collect();
        let pairs = [
            ("ids", (!ids.is_empty()).then(|| ids.join(","))),
            ("consumer", text(filter.consumer.as_ref().map(|value| value as &dyn ToString))),
            ("queue", text(filter.queue.as_ref().map(|value| value as &dyn ToString))),
            ("type", filter.event_type.clone()),
            ("event", text(filter.event_id.as_ref().map(|value| value as &dyn ToString))),
            ("reason", filter.reason.clone()),
            ("class", filter.error_class.clone()),
            ("group", filter.fingerprint.clone()),
            ("tenant", text(filter.tenant.as_ref().map(|value| value as &dyn ToString))),
            ("aggregate", text(filter.aggregate_id.as_ref().map(|value| value as &dyn ToString))),
            ("text", filter.text.clone()),
            ("since", filter.since.map(|at: Timestamp| at.to_string())),
        ];
        Self(pairs.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_keeps_what_it_is_given() {
        let filter = LetterFilter { fingerprint: Some("a&b".to_owned()), ..LetterFilter::open() };
        let search = Search::of_letters(&filter);
        assert_eq!(search.at("/x"), "/x?group=a%26b");
        assert_eq!(search.with("group", None::<&str>).at("/x"), "/x");
    }
}
