//! Groups of dead letters: read from what was counted as they were collected.

use std::collections::HashMap;

use jiff::Timestamp;
use serde_json::json;
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row as _};

use super::filter::Where;
use super::{Sqlite, from_sqlite, time};
use crate::store::{
    Cursor, GroupPage, GroupQuery, LetterFilter, LetterGroup, LetterId, LetterStatus, StoreError, Turn,
};

const HOUR: i64 = 3_600_000_000;

/// The newest three of each group; the index has their order.
const SAMPLES: &str = "
    SELECT f.value, d.id FROM json_each(?1) AS f JOIN dead_letter AS d ON d.id IN (
        SELECT id FROM dead_letter WHERE fingerprint = f.value ORDER BY dead_at DESC, id DESC LIMIT 3)
    ORDER BY d.dead_at DESC, d.id DESC";

macro_rules! columns {
    () => {
        "g.fingerprint, g.consumer_name, g.queue, g.event_type, g.reason, g.error_class"
    };
}

impl Sqlite {
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
            ", g.error, g.open, g.total, g.first_at, g.last_at FROM dead_letter_group g WHERE "
        ));
        select.push(if query.filter.status == Some(LetterStatus::Open) { "open > 0" } else { "1" });
        for (column, value) in named(&query.filter) {
            select.push(format_args!(" AND {column} = ")).push_bind(value.to_owned());
        }
        if let Some((last_at, fingerprint)) = &query.after {
            select.push(" AND (last_at, fingerprint) < (").push_bind(last_at.as_microsecond());
            select.push(", ").push_bind(fingerprint.clone()).push(")");
        }
        select.push(" ORDER BY last_at DESC, fingerprint DESC LIMIT ");
        select.push_bind(i64::try_from(query.limit).unwrap_or(i64::MAX));
        let rows = select.build().fetch_all(self.readers()).await.map_err(from_sqlite)?;
        let groups = rows.iter().map(|row| read(row).map_err(from_sqlite));
        let mut groups = groups.collect::<Result<Vec<_>, _>>()?;
        let select = "SELECT fingerprint, hour, letters FROM dead_letter_hour \
                      WHERE fingerprint IN (SELECT value FROM json_each(?)) AND hour >= ?";
        let hours = sqlx::query_as(select).bind(fingerprints(&groups)).bind(begin(query));
        let hours: Vec<Hour> = hours.fetch_all(self.readers()).await.map_err(from_sqlite)?;
        add_hours(&mut groups, hours, query);
        self.add_samples(&mut groups).await?;
        Ok(groups)
    }

    /// What groups do not know is counted among the newest letters. All that is told of a group is of those that the filter matches: the
    /// others in it may be of another tenant, and so may the error that the group itself has.
    async fn scanned_groups(
        &self,
        query: &GroupQuery,
    ) -> Result<(Vec<LetterGroup>, Option<Timestamp>), StoreError> {
        let bound = self.scan_bound(&query.filter, Turn::Newest).await?;
        let mut select = QueryBuilder::new(concat!(
            "SELECT ",
            columns!(),
            ", '' AS error, m.open AS open, m.letters AS total, m.first_at AS first_at, m.last_at AS last_at FROM ( \
             SELECT fingerprint, count(*) FILTER (WHERE status = 'open') AS open, count(*) AS letters, \
             min(dead_at) AS first_at, max(dead_at) AS last_at FROM dead_letter WHERE "
        ));
        Where::new(&mut select).filter(&query.filter).not_beyond(Turn::Newest, bound);
        select.push(
            " GROUP BY fingerprint) m JOIN dead_letter_group g USING (fingerprint) \
             ORDER BY m.last_at DESC, g.fingerprint DESC LIMIT ",
        );
        select.push_bind(i64::try_from(query.limit).unwrap_or(i64::MAX));
        let rows = select.build().fetch_all(self.readers()).await.map_err(from_sqlite)?;
        let groups = rows.iter().map(|row| read(row).map_err(from_sqlite));
        let mut groups = groups.collect::<Result<Vec<_>, _>>()?;
        let mut select = QueryBuilder::new(
            "SELECT fingerprint, dead_at - dead_at % 3600000000, count(*) FROM dead_letter WHERE ",
        );
        Where::new(&mut select).filter(&query.filter).not_beyond(Turn::Newest, bound);
        select.push(" AND dead_at >= ").push_bind(begin(query)).push(" GROUP BY 1, 2");
        let hours = select.build_query_as().fetch_all(self.readers()).await;
        let hours: Vec<Hour> = hours.map_err(from_sqlite)?;
        add_hours(&mut groups, hours, query);
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
        let mut select = QueryBuilder::new("SELECT f.value, d.id, substr(d.error, 1, 500) FROM json_each(");
        select.push_bind(fingerprints(groups));
        select.push(") AS f JOIN dead_letter AS d ON d.id IN (SELECT id FROM dead_letter WHERE ");
        Where::new(&mut select).filter(&query.filter).not_beyond(Turn::Newest, bound);
        select.push(
            " AND fingerprint = f.value ORDER BY dead_at DESC, id DESC LIMIT 3) \
             ORDER BY d.dead_at DESC, d.id DESC",
        );
        let rows = select.build_query_as().fetch_all(self.readers()).await;
        let rows: Vec<(String, i64, String)> = rows.map_err(from_sqlite)?;
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
        let rows = sqlx::query_as(SAMPLES).bind(fingerprints(groups)).fetch_all(self.readers()).await;
        let rows: Vec<(String, i64)> = rows.map_err(from_sqlite)?;
        for group in groups {
            let own = rows.iter().filter(|(fingerprint, _)| *fingerprint == group.fingerprint);
            group.samples = own.map(|(_, id)| LetterId(*id)).collect();
        }
        Ok(())
    }
}

/// A fingerprint, when an hour began, and how many died in it.
type Hour = (String, i64, i64);

/// Where the hours that are shown begin.
fn begin(query: &GroupQuery) -> i64 {
    first_hour(query).saturating_mul(HOUR)
}

fn first_hour(query: &GroupQuery) -> i64 {
    query.now.as_microsecond().div_euclid(HOUR) - i64::from(query.hours) + 1
}

fn add_hours(groups: &mut [LetterGroup], rows: Vec<Hour>, query: &GroupQuery) {
    let from = first_hour(query);
    let mut counts: HashMap<String, Vec<u64>> = HashMap::new();
    for (fingerprint, hour, letters) in rows {
        let hours = counts.entry(fingerprint).or_insert_with(|| vec![0; usize::from(query.hours)]);
        let slot = usize::try_from(hour.div_euclid(HOUR) - from).ok();
        if let Some(count) = slot.and_then(|slot| hours.get_mut(slot)) {
            *count = letters.unsigned_abs();
        }
    }
    for group in groups {
        let none = || vec![0; usize::from(query.hours)];
        group.hours = counts.remove(&group.fingerprint).unwrap_or_else(none);
    }
}

fn fingerprints(groups: &[LetterGroup]) -> String {
    json!(groups.iter().map(|group| &group.fingerprint).collect::<Vec<_>>()).to_string()
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

fn read(row: &SqliteRow) -> Result<LetterGroup, sqlx::Error> {
    let count = |column: &str| row.try_get::<i64, _>(column).map(i64::unsigned_abs);
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
        first_at: time(row.try_get("first_at")?),
        last_at: time(row.try_get("last_at")?),
        hours: Vec::new(),
        samples: Vec::new(),
    })
}
