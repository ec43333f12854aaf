//! Jobs on SQLite: who has the writer is alone, so a mark is counted at once.

mod rows;

use std::time::Duration;

use futures_util::FutureExt as _;
use jiff::Timestamp;
use serde_json::json;
use sqlx::SqliteConnection;

use self::rows::{job_columns, read};
use super::error::from_sqlite;
use super::{Sqlite, SqliteTx};
use crate::progress::{
    Change, Counts, ItemId, Job, JobFilter, JobId, Mark, Marked, NewJob, ProgressError, Status, completed,
};
use crate::store::{Jobs, StoreError};

const GET: &str = concat!("SELECT ", job_columns!(), " FROM progress_job WHERE job = ?");

/// One statement per kind of question, so that each has the index it needs.
macro_rules! list {
    ($status:literal, $tenant:literal) => {
        concat!(
            "SELECT ",
            job_columns!(),
            " FROM progress_job WHERE ",
            $status,
            " AND ",
            $tenant,
            " AND (created_at, job) < (coalesce(?3, 9223372036854775807), coalesce(?4, '')) \
             ORDER BY created_at DESC, job DESC LIMIT ?5"
        )
    };
}

fn list(filter: &JobFilter) -> &'static str {
    match (filter.status, filter.tenant.is_some()) {
        (None, false) => list!("?1 IS NULL", "?2 IS NULL"),
        (None, true) => list!("?1 IS NULL", "group_id = ?2"),
        (Some(Status::Done), false) => list!("status = ?1", "?2 IS NULL"),
        (Some(Status::Done), true) => list!("status = ?1", "group_id = ?2"),
        // Few jobs are not done, and these have an index of their own.
        (Some(_), false) => list!("status = ?1 AND status <> 'DONE'", "?2 IS NULL"),
        (Some(_), true) => list!("status = ?1 AND status <> 'DONE'", "group_id = ?2"),
    }
}

const WRITE: &str = concat!(
    "UPDATE progress_job SET status = ?2, total = ?3, done = ?4, errors = ?5, version = version + 1, unshown = 1, \
     updated_at = ?6, finished_at = CASE WHEN ?2 = 'DONE' THEN ?6 END WHERE job = ?1 RETURNING ",
    job_columns!()
);

const MARK: &str = "INSERT INTO progress_item (job_no, item, failed) \
     SELECT \"no\", json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM progress_job, json_each(?2) \
     WHERE job = ?1 AND kept_items ON CONFLICT DO NOTHING RETURNING failed";

const PAGE: &str = "INSERT INTO progress_page (job_no, page) SELECT \"no\", ?2 FROM progress_job WHERE job = ?1 \
     ON CONFLICT DO NOTHING";

const UNSHOWN: &str =
    concat!("SELECT ", job_columns!(), " FROM progress_job WHERE unshown ORDER BY job LIMIT ?");

const SHOWN: &str = "UPDATE progress_job SET unshown = 0 FROM json_each(?) AS shown \
     WHERE job = json_extract(shown.value, '$[0]') AND version = json_extract(shown.value, '$[1]')";

impl Jobs for Sqlite {
    async fn create_job(&self, tx: &mut SqliteTx, job: &NewJob) -> Result<Job, ProgressError> {
        let now = self.clock().now();
        tx.begin_step().await?;
        let (made, found) = create(tx.connection().await?, job, now).await?;
        tx.end_step(made);
        Ok(found)
    }

    async fn change_job(
        &self,
        tx: &mut SqliteTx,
        job: &JobId,
        change: &Change,
    ) -> Result<Job, ProgressError> {
        let now = self.clock().now();
        tx.begin_step().await?;
        let (changed, after) = self::change(tx.connection().await?, job, change, now).await?;
        if changed && after.status == Status::Done {
            tx.append(vec![completed(&after)?]).await?;
        }
        tx.end_step(changed);
        Ok(after)
    }

    async fn mark_items(
        &self,
        tx: &mut SqliteTx,
        job: &JobId,
        marks: &[Mark],
    ) -> Result<Marked, ProgressError> {
        let now = self.clock().now();
        tx.begin_step().await?;
        let (counted, after) = mark(tx.connection().await?, job, marks, now).await?;
        if counted > 0 && after.status == Status::Done {
            tx.append(vec![completed(&after)?]).await?;
        }
        tx.end_step(counted > 0);
        Ok(Marked { counted, repeated: marks.len() as u64 - counted })
    }

    async fn job(&self, job: &JobId) -> Result<Option<Job>, StoreError> {
        let row = sqlx::query(GET).bind(job.as_str()).fetch_optional(self.readers()).await;
        row.map_err(from_sqlite)?.as_ref().map(read).transpose()
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<Job>, StoreError> {
        let (after, after_job) = filter.after.clone().unzip();
        let select = sqlx::query(list(filter))
            .bind(filter.status.map(Status::as_str))
            .bind(filter.tenant.as_ref().map(AsRef::<str>::as_ref))
            .bind(after.map(Timestamp::as_microsecond))
            .bind(after_job.as_ref().map(JobId::as_str))
            .bind(i64::from(filter.limit));
        select.fetch_all(self.readers()).await.map_err(from_sqlite)?.iter().map(read).collect()
    }

    async fn unshown_jobs(&self, limit: usize) -> Result<Vec<Job>, StoreError> {
        let select = sqlx::query(UNSHOWN).bind(i64::try_from(limit).unwrap_or(i64::MAX));
        select.fetch_all(self.readers()).await.map_err(from_sqlite)?.iter().map(read).collect()
    }

    async fn mark_shown(&self, jobs: &[Job]) -> Result<(), StoreError> {
        let shown: Vec<_> = jobs.iter().map(|job| (job.id.as_str(), job.version)).collect();
        let shown = json!(shown).to_string();
        self.writer().run(|connection| note_shown(connection, shown).boxed()).await
    }

    async fn archive_jobs(&self, jobs: &[Job]) -> Result<u64, StoreError> {
        let jobs = jobs.to_vec();
        self.writer().run(|connection| archive(connection, jobs).boxed()).await
    }

    async fn forget_items(&self, done_for: Duration, limit: u32) -> Result<u64, StoreError> {
        let done_before = self.clock().now().checked_sub(done_for).unwrap_or(Timestamp::MIN);
        self.writer().run(move |connection| forget(connection, done_before, limit).boxed()).await
    }

    async fn wait_for_jobs(&self, at_most: Duration) {
        tokio::select! {
            () = self.shared.jobs_changed.notified() => {}
            () = self.clock().sleep(at_most) => {}
        }
    }
}

async fn create(
    connection: &mut SqliteConnection,
    job: &NewJob,
    now: Timestamp,
) -> Result<(bool, Job), ProgressError> {
    let insert = "INSERT INTO progress_job (job, group_id, announces, created_at, updated_at) \
                  VALUES (?1, ?2, ?3, ?4, ?4) ON CONFLICT DO NOTHING";
    let insert = sqlx::query(insert)
        .bind(job.id.as_str())
        .bind(job.tenant.as_ref().map(AsRef::<str>::as_ref))
        .bind(job.announces.as_str())
        .bind(now.as_microsecond());
    let made = insert.execute(&mut *connection).await.map_err(from_sqlite)?.rows_affected() > 0;
    Ok((made, find(connection, &job.id).await?))
}

/// Whether it changed, and as it stands then.
async fn change(
    connection: &mut SqliteConnection,
    job: &JobId,
    change: &Change,
    now: Timestamp,
) -> Result<(bool, Job), ProgressError> {
    let before = find(connection, job).await?;
    if let Change::AddTotal { page, .. } = change
        && !is_new_page(connection, job, page).await?
    {
        return Ok((false, before));
    }
    let counts = before.counts().after(change).map_err(|why| ProgressError::refused(job, why))?;
    if counts == before.counts() {
        return Ok((false, before));
    }
    Ok((true, write(connection, job, counts, now).await?))
}

/// How many items are new, and the job as it stands then.
async fn mark(
    connection: &mut SqliteConnection,
    job: &JobId,
    marks: &[Mark],
    now: Timestamp,
) -> Result<(u64, Job), ProgressError> {
    let before = find(connection, job).await?;
    let firsts: Vec<_> =
        Mark::first_of_each(marks).into_iter().map(|mark| (mark.item.as_str(), mark.failed)).collect();
    let insert = sqlx::query_scalar(MARK).bind(job.as_str()).bind(json!(firsts).to_string());
    let new: Vec<bool> = insert.fetch_all(&mut *connection).await.map_err(from_sqlite)?;
    if new.is_empty() {
        return Ok((0, before));
    }
    let (counted, errors) = (new.len() as u64, new.iter().filter(|failed| **failed).count() as u64);
    let counts =
        before.counts().after_marks(counted, errors).map_err(|why| ProgressError::refused(job, why))?;
    Ok((counted, write(connection, job, counts, now).await?))
}

async fn find(connection: &mut SqliteConnection, job: &JobId) -> Result<Job, ProgressError> {
    let row = sqlx::query(GET).bind(job.as_str()).fetch_optional(connection).await.map_err(from_sqlite)?;
    Ok(read(&row.ok_or_else(|| ProgressError::unknown(job))?)?)
}

async fn write(
    connection: &mut SqliteConnection,
    job: &JobId,
    counts: Counts,
    now: Timestamp,
) -> Result<Job, StoreError> {
    let update = sqlx::query(WRITE)
        .bind(job.as_str())
        .bind(counts.status.as_str())
        .bind(counts.total.cast_signed())
        .bind(counts.done.cast_signed())
        .bind(counts.errors.cast_signed())
        .bind(now.as_microsecond());
    read(&update.fetch_one(connection).await.map_err(from_sqlite)?)
}

async fn is_new_page(
    connection: &mut SqliteConnection,
    job: &JobId,
    page: &ItemId,
) -> Result<bool, StoreError> {
    let insert = sqlx::query(PAGE).bind(job.as_str()).bind(page.as_str()).execute(connection).await;
    insert.map(|done| done.rows_affected() > 0).map_err(from_sqlite)
}

async fn note_shown(connection: &mut SqliteConnection, shown: String) -> Result<(), StoreError> {
    sqlx::query(SHOWN).bind(shown).execute(connection).await.map(|_| ()).map_err(from_sqlite)
}

async fn archive(connection: &mut SqliteConnection, jobs: Vec<Job>) -> Result<u64, StoreError> {
    let insert = "INSERT INTO progress_job (job, group_id, announces, status, total, done, errors, version, unshown, \
                  kept_items, created_at, updated_at, finished_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, 0, ?, ?, ?) \
                  ON CONFLICT DO NOTHING";
    let mut new = 0;
    for job in jobs {
        let insert = sqlx::query(insert)
            .bind(String::from(job.id))
            .bind(job.tenant.map(String::from))
            .bind(String::from(job.announces))
            .bind(job.status.as_str())
            .bind(job.total.cast_signed())
            .bind(job.done.cast_signed())
            .bind(job.errors.cast_signed())
            .bind(job.version.cast_signed())
            .bind(job.created_at.as_microsecond())
            .bind(job.updated_at.as_microsecond())
            .bind(job.finished_at.map(Timestamp::as_microsecond));
        new += insert.execute(&mut *connection).await.map_err(from_sqlite)?.rows_affected();
    }
    Ok(new)
}

/// Of these jobs nothing can change any more, so the items are needed only to tell a repeat from a mistake.
async fn forget(
    connection: &mut SqliteConnection,
    done_before: Timestamp,
    limit: u32,
) -> Result<u64, StoreError> {
    let old = "UPDATE progress_job SET kept_items = 0 WHERE \"no\" IN (SELECT \"no\" FROM progress_job \
               WHERE kept_items AND finished_at IS NOT NULL AND finished_at < ? ORDER BY finished_at LIMIT ?) RETURNING \"no\"";
    let old = sqlx::query_scalar(old).bind(done_before.as_microsecond()).bind(i64::from(limit));
    let old: Vec<i64> = old.fetch_all(&mut *connection).await.map_err(from_sqlite)?;
    let old = json!(old).to_string();
    let items = "DELETE FROM progress_item WHERE job_no IN (SELECT value FROM json_each(?))";
    let pages = "DELETE FROM progress_page WHERE job_no IN (SELECT value FROM json_each(?))";
    let gone = sqlx::query(items).bind(&old).execute(&mut *connection).await.map_err(from_sqlite)?;
    sqlx::query(pages).bind(&old).execute(connection).await.map_err(from_sqlite)?;
    Ok(gone.rows_affected())
}
