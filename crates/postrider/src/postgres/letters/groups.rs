//! Groups of dead letters: read from what was counted as they were collected.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use jiff_sqlx::ToSqlx as _;
use sqlx::postgres::PgRow;
use sqlx::{QueryBuilder, Row as _};

use super::filter::Where;
use super::{Postgres, unreadable};
use crate::store::{
    Cursor, GroupPage, GroupQuery, LetterFilter, LetterGroup, LetterId, LetterStatus, StoreError, Turn,
};

const HOURS: &str = "SELECT fingerprint, hour, letters FROM postrider.dead_letter_hour WHERE fingerprint = ANY($1) AND hour >= $2";

const SAMPLES: &str = "SELECT f.fingerprint, d.id FROM UNNEST($1::text[]) AS f (fingerprint) CROSS JOIN LATERAL ( \
         SELECT id FROM postrider.dead_letter d WHERE d.fingerprint = f.fingerprint \
         ORDER BY dead_at DESC, id DESC LIMIT 3 \
     ) d";

macro_rules! columns {
    () => {
        "g.fingerprint, g.consumer_name, g.queue, g.event_type, g.reason, g.error_class"
    };
}

impl Postgres {
    pub(super) async fn group_page(&self, query: &GroupQuery) -> Result<GroupPage, StoreError> {
        let (groups, stopped_at) = if query.filter.is_about_groups() {
            (self.counted_groups(query).await?, None)
        } else {
            self.scanned_groups(query).await?
        };
        let full = query.filter.is_about_groups() && groups.len() >= query.limit;
        let next = groups.last().filter(|_| full).map(|last| (last.last_at, last.fingerprint.clone()));
        Ok(GroupPage { groups, next, stopped_at })
    }

    async fn counted_groups(&self, query: &GroupQuery) -> Result<Vec<LetterGroup>, StoreError> {
        let mut select = QueryBuilder::new(concat!(
            "SELECT ",
            columns!(),
            ", g.error, g.open, g.total, g.first_at, g.last_at FROM postrider.dead_letter_group g WHERE "
        ));
        select.push(if query.filter.status == Some(LetterStatus::Open) { "open > 0" } else { "true" });
        for (column, value) in named(&query.filter) {
            select.push(format_args!(" AND {column} = ")).push_bind(value.replace('\0', "\u{fffd}"));
        }
        if let Some((last_at, fingerprint)) = &query.after {
            select.push(" AND (last_at, fingerprint) < (").push_bind(last_at.to_sqlx());
            select.push(", ").push_bind(fingerprint).push(")");
        }
        select.push(" ORDER BY last_at DESC, fingerprint DESC LIMIT ");
        select.push_bind(i64::try_from(query.limit).unwrap_or(i64::MAX));
        let rows =
            self.limited("listing groups of dead letters", select.build().fetch_all(self.pool())).await?;
        let groups = rows.iter().map(read).collect::<Result<Vec<_>, _>>();
        let mut groups = groups.map_err(|cause| unreadable(cause.into()))?;
        let hours = sqlx::query(HOURS).bind(fingerprints(&groups)).bind(begin(query).to_sqlx());
        let hours = self.limited("counting dead letters by hour", hours.fetch_all(self.pool())).await?;
        add_hours(&mut groups, &hours, query);
        self.add_samples(&mut groups).await?;
        Ok(groups)
    }

    /// What groups do not know is counted among the newest letters. All that is told of a group is of those that the filter matches: the
    /// others in it may be of another tenant, and so may the error that the group itself has.
    async fn scanned_groups(
        &self,
        query: &GroupQuery,
    ) -> Result<(Vec<LetterGroup>, Option<Timestamp>), StoreError> {
        let mut tx = self.reading(&query.filter).await?;
        let bound = self.scan_bound(&mut tx, &query.filter, Turn::Newest).await?;
        // What follows sorts the few groups it finds.
        drop(tx);
        let mut select = QueryBuilder::new(concat!(
            "SELECT ",
            columns!(),
            ", '' AS error, m.open, m.letters AS total, m.first_at, m.last_at FROM ( \
             SELECT fingerprint, count(*) FILTER (WHERE status = 'open') AS open, count(*) AS letters, \
             min(dead_at) AS first_at, max(dead_at) AS last_at FROM postrider.dead_letter WHERE "
        ));
        Where::new(&mut select).filter(&query.filter).not_beyond(Turn::Newest, bound);
        select.push(
            " GROUP BY fingerprint) m JOIN postrider.dead_letter_group g USING (fingerprint) \
             ORDER BY m.last_at DESC, g.fingerprint DESC LIMIT ",
        );
        select.push_bind(i64::try_from(query.limit).unwrap_or(i64::MAX));
        let rows = self.limited("grouping dead letters", select.build().fetch_all(self.pool())).await?;
        let groups = rows.iter().map(read).collect::<Result<Vec<_>, _>>();
        let mut groups = groups.map_err(|cause| unreadable(cause.into()))?;
        let mut select = QueryBuilder::new(
            "SELECT fingerprint, date_trunc('hour', dead_at, 'UTC'), count(*) FROM postrider.dead_letter WHERE ",
        );
        Where::new(&mut select).filter(&query.filter).not_beyond(Turn::Newest, bound);
        select.push(" AND dead_at >= ").push_bind(begin(query).to_sqlx()).push(" GROUP BY 1, 2");
        let hours = select.build().fetch_all(self.pool());
        let hours = self.limited("counting dead letters by hour", hours).await?;
        add_hours(&mut groups, &hours, query);
        self.add_matching(&mut groups, query, bound).await?;
        Ok((groups, bound.map(|bound| bound.dead_at)))
    }

    /// Samples of those that the filter matches, and the error of the newest of them.
    async fn add_matching(
        &self,
        groups: &mut [LetterGroup],
        query: &GroupQuery,
        bound: Option<Cursor>,
    ) -> Result<(), StoreError> {
        let mut select = QueryBuilder::new("SELECT f.fingerprint, d.id, d.error FROM UNNEST(");
        select.push_bind(fingerprints(groups));
        select.push(
            "::text[]) AS f (fingerprint) CROSS JOIN LATERAL ( \
             SELECT id, left(error, 500) AS error FROM postrider.dead_letter WHERE ",
        );
        Where::new(&mut select).filter(&query.filter).not_beyond(Turn::Newest, bound);
        select.push(" AND fingerprint = f.fingerprint ORDER BY dead_at DESC, id DESC LIMIT 3) d");
        let mut tx = self.reading(&query.filter).await?;
        let rows = select.build_query_as().fetch_all(&mut *tx);
        let rows: Vec<(String, i64, String)> = self.limited("reading samples of dead letters", rows).await?;
        for group in groups {
            let own = rows.iter().filter(|(fingerprint, _, _)| *fingerprint == group.fingerprint);
            let (ids, errors): (Vec<LetterId>, Vec<&String>) =
                own.map(|(_, id, error)| (LetterId(*id), error)).unzip();
            group.samples = ids;
            group.error = errors.first().copied().cloned().unwrap_or_default();
        }
        Ok(())
    }

    async fn add_samples(&self, groups: &mut [LetterGroup]) -> Result<(), StoreError> {
        let select = sqlx::query_as(SAMPLES).bind(fingerprints(groups)).fetch_all(self.pool());
        let rows: Vec<(String, i64)> = self.limited("reading samples of dead letters", select).await?;
        for group in groups {
            let own = rows.iter().filter(|(fingerprint, _)| *fingerprint == group.fingerprint);
            group.samples = own.map(|(_, id)| LetterId(*id)).collect();
        }
        Ok(())
    }
}

fn fingerprints(groups: &[LetterGroup]) -> Vec<String> {
    groups.iter().map(|group| group.fingerprint.clone()).collect()
}

/// Where the hours that are shown begin.
fn begin(query: &GroupQuery) -> Timestamp {
    let since = query.now.saturating_sub(SignedDuration::from_hours(i64::from(query.hours)));
    since.unwrap_or(Timestamp::MIN)
}

/// Rows of a fingerprint, an hour, and how many died in it.
fn add_hours(groups: &mut [LetterGroup], rows: &[PgRow], query: &GroupQuery) {
    let hour = |at: Timestamp| at.as_second().div_euclid(3600);
    let from = hour(query.now) - i64::from(query.hours) + 1;
    let mut counts: HashMap<String, Vec<u64>> = HashMap::new();
    for row in rows {
        let at = row.try_get::<jiff_sqlx::Timestamp, _>(1).map(|at| hour(at.to_jiff()) - from);
        let Some(slot) = at.ok().and_then(|slot| usize::try_from(slot).ok()) else { continue };
        let fingerprint = row.try_get(0).unwrap_or_default();
        let hours = counts.entry(fingerprint).or_insert_with(|| vec![0; usize::from(query.hours)]);
        if let Some(count) = hours.get_mut(slot) {
            *count = row.try_get::<i64, _>(2).map_or(0, i64::unsigned_abs);
        }
    }
    for group in groups {
        let none = || vec![0; usize::from(query.hours)];
        group.hours = counts.remove(&group.fingerprint).unwrap_or_else(none);
    }
}

/// The conditions on a group's own columns.
fn named(filter: &LetterFilter) -> Vec<(&'static str, &str)> {
    let columns = [
        ("g.consumer_name", filter.consumer.as_ref().map(AsRef::as_ref)),
        ("g.queue", filter.queue.as_ref().map(AsRef::as_ref)),
        ("g.event_type", filter.event_type.as_deref()),
        ("g.reason", filter.reason.as_deref()),
        ("g.error_class", filter.error_class.as_deref()),
        ("g.fingerprint", filter.fingerprint.as_deref()),
    ];
    columns.into_iter().filter_map(|(column, value)| Some((column, value?))).collect()
}

fn read(row: &PgRow) -> Result<LetterGroup, sqlx::Error> {
    let count = |column: &str| row.try_get::<i64, _>(column).map(i64::unsigned_abs);
    let time =
        |column: &str| row.try_get::<jiff_sqlx::Timestamp, _>(column).map(jiff_sqlx::Timestamp::to_jiff);
    Ok(LetterGroup {
        fingerprint: row.try_get("fingerprint")?,
        consumer: row.try_get("consumer_name")?,
        queue: row.try_get("queue")?,
        event_type: row.try_get("event_type")?,
        reason: row.try_get("reason")?,
        error_class: row.try_get("error_class")?,
        error: row.try_get("error")?,
        open: count("open")?,
        total: count("total")?,
        first_at: time("first_at")?,
        last_at: time("last_at")?,
        hours: Vec::new(),
        samples: Vec::new(),
    })
}
