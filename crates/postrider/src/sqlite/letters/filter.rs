//! A filter as conditions. Everything that comes from outside is bound, never written.

use jiff::Timestamp;
use serde_json::json;
use sqlx::{Encode, QueryBuilder, Sqlite, Type};

use crate::store::{Cursor, LetterFilter, LetterStatus, Turn};

/// Writes conditions after a `WHERE`, with an `AND` between them.
pub(super) struct Where<'a> {
    query: &'a mut QueryBuilder<Sqlite>,
    first: bool,
}

/// Whether the index that is walked finds nothing but what fits.
pub(super) fn is_indexed(filter: &LetterFilter) -> bool {
    if !filter.ids.is_empty() || filter.event_id.is_some() {
        return true;
    }
    let mut walked = LetterFilter {
        status: filter.status.filter(|status| *status == LetterStatus::Open),
        since: filter.since,
        until: filter.until,
        ..LetterFilter::default()
    };
    if walked.status.is_some() && filter.fingerprint.is_none() {
        walked.queue.clone_from(&filter.queue);
    } else if filter.fingerprint.is_some() {
        walked.status = None;
        walked.fingerprint.clone_from(&filter.fingerprint);
    }
    *filter == walked
}

impl<'a> Where<'a> {
    pub(super) fn new(query: &'a mut QueryBuilder<Sqlite>) -> Self {
        Self { query, first: true }
    }

    fn and(&mut self) -> &mut QueryBuilder<Sqlite> {
        if !self.first {
            self.query.push(" AND ");
        }
        self.first = false;
        self.query
    }

    fn bound<T>(&mut self, condition: &str, value: Option<T>) -> &mut Self
    where
        T: for<'t> Encode<'t, Sqlite> + Type<Sqlite>,
    {
        if let Some(value) = value {
            self.and().push(condition).push_bind(value);
        }
        self
    }

    fn text(&mut self, condition: &str, value: Option<&str>) -> &mut Self {
        self.bound(condition, value.map(str::to_owned))
    }

    fn times(&mut self, filter: &LetterFilter) -> &mut Self {
        self.bound("dead_at >= ", filter.since.map(Timestamp::as_microsecond));
        self.bound("dead_at < ", filter.until.map(Timestamp::as_microsecond))
    }

    /// The conditions that an index answers, for walking it.
    pub(super) fn walked(&mut self, filter: &LetterFilter) -> &mut Self {
        if filter.status == Some(LetterStatus::Open) {
            self.and().push("status = 'open'");
        }
        if filter.fingerprint.is_none() && filter.status == Some(LetterStatus::Open) {
            self.text("queue = ", filter.queue.as_ref().map(AsRef::as_ref));
        }
        self.text("fingerprint = ", filter.fingerprint.as_deref());
        self.times(filter).always()
    }

    /// All conditions.
    pub(super) fn filter(&mut self, filter: &LetterFilter) -> &mut Self {
        if !filter.ids.is_empty() {
            let ids: Vec<i64> = filter.ids.iter().map(|id| id.0).collect();
            self.and()
                .push("id IN (SELECT value FROM json_each(")
                .push_bind(json!(ids).to_string())
                .push("))");
        }
        if let Some(status) = filter.status {
            // Written, so that the partial indexes fit.
            self.and().push(format_args!("status = '{}'", status.as_str()));
        }
        self.text("consumer_name = ", filter.consumer.as_ref().map(AsRef::as_ref));
        self.text("queue = ", filter.queue.as_ref().map(AsRef::as_ref));
        self.text("event_type = ", filter.event_type.as_deref());
        self.text("event_id = ", filter.event_id.as_ref().map(AsRef::as_ref));
        self.text("reason = ", filter.reason.as_deref());
        self.text("error_class = ", filter.error_class.as_deref());
        self.text("fingerprint = ", filter.fingerprint.as_deref());
        self.text("group_id = ", filter.tenant.as_ref().map(AsRef::as_ref));
        self.text("aggregate_id = ", filter.aggregate_id.as_ref().map(AsRef::as_ref));
        self.times(filter);
        self.bound("attempts >= ", filter.min_attempts);
        self.bound("attempts <= ", filter.max_attempts);
        if let Some(most) = filter.max_replays {
            self.bound("replays <= ", Some(most));
            self.and().push("replay_error IS NULL");
        }
        if let Some(text) = &filter.text {
            let query = self.and();
            query.push("(instr(lower(error), lower(").push_bind(text.clone()).push(")) > 0 OR instr(body, ");
            query.push_bind(text.as_bytes().to_vec()).push(") > 0)");
        }
        self.always()
    }

    /// Only this side of a place.
    pub(super) fn turn(&mut self, turn: Turn) -> &mut Self {
        match turn {
            Turn::Newest => {}
            Turn::Before(cursor) => self.beyond("<", cursor),
            Turn::After(cursor) => self.beyond(">", cursor),
        }
        self
    }

    /// No further than this place, if there is one.
    pub(super) fn not_beyond(&mut self, turn: Turn, bound: Option<Cursor>) -> &mut Self {
        if let Some(bound) = bound {
            self.beyond(if matches!(turn, Turn::After(_)) { "<=" } else { ">=" }, bound);
        }
        self
    }

    fn beyond(&mut self, than: &str, cursor: Cursor) {
        let query = self.and();
        query.push("(dead_at, id) ").push(than).push(" (").push_bind(cursor.dead_at.as_microsecond());
        query.push(", ").push_bind(cursor.id.0).push(")");
    }

    /// So that there is a condition at all.
    fn always(&mut self) -> &mut Self {
        if self.first {
            self.and().push("1");
        }
        self
    }
}
