//! A filter as conditions. Everything that comes from outside is bound, never written.

use jiff_sqlx::ToSqlx as _;
use sqlx::{Encode, Postgres, QueryBuilder, Type};

use crate::store::{Cursor, LetterFilter, LetterStatus, Turn};

/// Writes conditions after a `WHERE`, with an `AND` between them.
pub(super) struct Where<'a> {
    query: &'a mut QueryBuilder<Postgres>,
    first: bool,
}

/// Whether it names the letters, so that there are few and they are looked up.
pub(super) fn is_named(filter: &LetterFilter) -> bool {
    !filter.ids.is_empty() || filter.event_id.is_some()
}

/// Whether the index that is walked finds nothing but what fits.
pub(super) fn is_indexed(filter: &LetterFilter) -> bool {
    let mut walked = LetterFilter {
        status: filter.status.filter(|status| *status == LetterStatus::Open),
        fingerprint: filter.fingerprint.clone(),
        since: filter.since,
        until: filter.until,
        ..LetterFilter::default()
    };
    if walked.status.is_some() && walked.fingerprint.is_none() {
        walked.queue.clone_from(&filter.queue);
    }
    is_named(filter) || *filter == walked
}

impl<'a> Where<'a> {
    pub(super) fn new(query: &'a mut QueryBuilder<Postgres>) -> Self {
        Self { query, first: true }
    }

    fn and(&mut self) -> &mut QueryBuilder<Postgres> {
        if !self.first {
            self.query.push(" AND ");
        }
        self.first = false;
        self.query
    }

    fn bound<T>(&mut self, condition: &str, value: Option<T>) -> &mut Self
    where
        T: for<'t> Encode<'t, Postgres> + Type<Postgres>,
    {
        if let Some(value) = value {
            self.and().push(condition).push_bind(value);
        }
        self
    }

    fn text(&mut self, condition: &str, value: Option<&str>) -> &mut Self {
        // No stored text has a NUL: it shows as U+FFFD.
        self.bound(condition, value.map(|value| value.replace('\0', "\u{fffd}")))
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
        self.bound("dead_at >= ", filter.since.map(jiff_sqlx::ToSqlx::to_sqlx));
        self.bound("dead_at < ", filter.until.map(jiff_sqlx::ToSqlx::to_sqlx));
        self.always()
    }

    /// All conditions.
    pub(super) fn filter(&mut self, filter: &LetterFilter) -> &mut Self {
        if !filter.ids.is_empty() {
            let ids: Vec<i64> = filter.ids.iter().map(|id| id.0).collect();
            self.and().push("id = ANY(").push_bind(ids).push(")");
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
        self.bound("dead_at >= ", filter.since.map(jiff_sqlx::ToSqlx::to_sqlx));
        self.bound("dead_at < ", filter.until.map(jiff_sqlx::ToSqlx::to_sqlx));
        let number = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
        self.bound("attempts >= ", filter.min_attempts.map(number));
        self.bound("attempts <= ", filter.max_attempts.map(number));
        if let Some(most) = filter.max_replays {
            self.bound("replays <= ", Some(number(most)));
            self.and().push("replay_error IS NULL");
        }
        if let Some(text) = &filter.text {
            let shown = text.replace('\0', "\u{fffd}");
            let query = self.and();
            query.push("(strpos(lower(error), lower(").push_bind(shown).push(")) > 0 OR position(");
            query.push_bind(text.as_bytes().to_vec()).push("::bytea IN body) > 0)");
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
        query.push("(dead_at, id) ").push(than).push(" (").push_bind(cursor.dead_at.to_sqlx());
        query.push(", ").push_bind(cursor.id.0).push(")");
    }

    /// So that there is a condition at all.
    fn always(&mut self) -> &mut Self {
        if self.first {
            self.and().push("true");
        }
        self
    }
}
