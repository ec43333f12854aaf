//! Jobs on PostgreSQL.
//!
//! Marking an item is an INSERT whose key decides whether it is new; workers on one job do not wait for each other. The
//! job's own row is the only thing they share, and is updated at the commit (see `tally`), so it is locked for one
//! statement and the commit, not for as long as a handler takes.

mod rows;
mod tally;

pub(super) use tally::Tallies;

use std::time::Duration;

use jiff_sqlx::ToSqlx as _;
use sqlx::Row as _;

use self::rows::{job_columns, read, read_counts};
use super::{Postgres, PostgresTx};
use crate::progress::{
    Change, Counts, ItemId, Job, JobFilter, JobId, Mark, Marked, NewJob, ProgressError, Status, completed,
};
use crate::store::{Jobs, StoreError};

const CREATE: &str = "INSERT INTO postrider.progress_job (job, group_id, announces) VALUES ($1, $2, $3) \
     ON CONFLICT (job) DO NOTHING";

const GET: &str = concat!("SELECT ", job_columns!(), " FROM postrider.progress_job WHERE job = $1");

const LOCK: &str =
    concat!("SELECT ", job_columns!(), " FROM postrider.progress_job WHERE job = $1 FOR NO KEY UPDATE");

/// One statement per kind of question, so that each has the index it needs and no plan that is made for all of them.
macro_rules! list {
    ($status:literal, $tenant:literal) => {
        concat!(
            "SELECT ",
            job_columns!(),
            " FROM postrider.progress_job WHERE ",
            $status,
            " AND ",
            $tenant,
            " AND (created_at, job) < (coalesce($3::timestamptz, 'infinity'), coalesce($4, '')) \
             ORDER BY created_at DESC, job DESC LIMIT $5"
        )
    };
}

fn list(filter: &JobFilter) -> &'static str {
    match (filter.status, filter.tenant.is_some()) {
        (None, false) => list!("$1::text IS NULL", "$2::text IS NULL"),
        (None, true) => list!("$1::text IS NULL", "group_id = $2"),
        (Some(Status::Done), false) => list!("status = $1", "$2::text IS NULL"),
        (Some(Status::Done), true) => list!("status = $1", "group_id = $2"),
        // Few jobs are not done, and these have an index of their own.
        (Some(_), false) => list!("status = $1 AND status <> 'DONE'", "$2::text IS NULL"),
        (Some(_), true) => list!("status = $1 AND status <> 'DONE'", "group_id = $2"),
    }
}

const WRITE: &str = concat!(
    "UPDATE postrider.progress_job SET status = $2, total = $3, done = $4, errors = $5, version = version + 1, \
     unshown = true, updated_at = statement_timestamp(), \
     finished_at = CASE WHEN $2 = 'DONE' THEN statement_timestamp() END WHERE job = $1 RETURNING ",
    job_columns!()
);

/// Waits for any other transaction that marks one of these items; if that one rolls back, the item is ours.
const MARK: &str = "WITH job AS (SELECT no, status, total, done, errors, kept_items FROM postrider.progress_job WHERE job = $1), \
     new AS (INSERT INTO postrider.progress_item (job_no, item, failed) \
     SELECT job.no, mark.item, mark.failed FROM job, UNNEST($2::text[], $3::boolean[]) AS mark (item, failed) \
     WHERE job.kept_items ON CONFLICT (job_no, item) DO NOTHING RETURNING failed) \
     SELECT status, total, done, errors, (SELECT count(*) FROM new), (SELECT count(*) FROM new WHERE failed) FROM job";

const PAGE: &str = "INSERT INTO postrider.progress_page (job_no, page) \
     SELECT no, $2 FROM postrider.progress_job WHERE job = $1 ON CONFLICT (job_no, page) DO NOTHING";

const UNSHOWN: &str =
    concat!("SELECT ", job_columns!(), " FROM postrider.progress_job WHERE unshown ORDER BY job LIMIT $1");

const SHOWN: &str = "UPDATE postrider.progress_job AS job SET unshown = false \
     FROM UNNEST($1::text[], $2::bigint[]) AS shown (job, version) \
     WHERE job.job = shown.job AND job.version = shown.version";

const ARCHIVE: &str = "INSERT INTO postrider.progress_job (job, group_id, announces, status, total, done, errors, version, \
     unshown, kept_items, created_at, updated_at, finished_at) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, false, false, $9, $10, $11) ON CONFLICT (job) DO NOTHING";

/// Of these jobs nothing can change any more, so the items are needed only to tell a repeat from a mistake.
const FORGET: &str = "WITH old AS (UPDATE postrider.progress_job SET kept_items = false WHERE no IN (SELECT no \
     FROM postrider.progress_job WHERE kept_items AND finished_at < now() - $1 ORDER BY finished_at LIMIT $2 \
     FOR UPDATE SKIP LOCKED) RETURNING no), \
     pages AS (DELETE FROM postrider.progress_page USING old WHERE job_no = old.no) \
     DELETE FROM postrider.progress_item USING old WHERE job_no = old.no";

impl Jobs for Postgres {
    async fn create_job(&self, tx: &mut PostgresTx, job: &NewJob) -> Result<Job, ProgressError> {
        let insert = sqlx::query(CREATE)
            .bind(job.id.as_str())
            .bind(job.tenant.as_ref().map(AsRef::<str>::as_ref))
            .bind(job.announces.as_str());
        let made = self.limited("making a job", insert.execute(tx.ours())).await?;
        if made.rows_affected() > 0 {
            tx.tallies().changed();
        }
        let found = sqlx::query(GET).bind(job.id.as_str()).fetch_one(tx.ours());
        Ok(read(&self.limited("reading a job", found).await?)?)
    }

    async fn change_job(
        &self,
        tx: &mut PostgresTx,
        job: &JobId,
        change: &Change,
    ) -> Result<Job, ProgressError> {
        self.add_up_job(tx, job).await?;
        tx.tallies().begin_step();
        let locked = sqlx::query(LOCK).bind(job.as_str()).fetch_optional(tx.ours());
        let row = self.limited("locking a job", locked).await?.ok_or_else(|| ProgressError::unknown(job))?;
        let before = read(&row)?;
        if let Change::AddTotal { page, .. } = change
            && !self.is_new_page(tx, job, page).await?
        {
            tx.tallies().end_step();
            return Ok(before);
        }
        let counts = before.counts().after(change).map_err(|why| ProgressError::refused(job, why))?;
        let after = if counts == before.counts() { before } else { self.write_job(tx, job, counts).await? };
        tx.tallies().end_step();
        Ok(after)
    }

    async fn mark_items(
        &self,
        tx: &mut PostgresTx,
        job: &JobId,
        marks: &[Mark],
    ) -> Result<Marked, ProgressError> {
        let firsts = Mark::first_of_each(marks);
        let items: Vec<&str> = firsts.iter().map(|mark| mark.item.as_str()).collect();
        let failed: Vec<bool> = firsts.iter().map(|mark| mark.failed).collect();
        tx.tallies().begin_step();
        let insert = sqlx::query(MARK).bind(job.as_str()).bind(items).bind(failed).fetch_optional(tx.ours());
        let row = self.limited("marking items", insert).await?.ok_or_else(|| ProgressError::unknown(job))?;
        let number = |column| row.try_get::<i64, _>(column).map_or(0, i64::unsigned_abs);
        let (counted, errors) = (number(4), number(5));
        // A first look, so that the handler itself is told; the commit looks again, with the row locked.
        let pending = tx.tallies().of(job);
        read_counts(&row, job)?
            .after_marks(pending.done + counted, pending.errors + errors)
            .map_err(|why| ProgressError::refused(job, why))?;
        tx.tallies().add(job, counted, errors);
        tx.tallies().end_step();
        Ok(Marked { counted, repeated: marks.len() as u64 - counted })
    }

    async fn job(&self, job: &JobId) -> Result<Option<Job>, StoreError> {
        let select = sqlx::query(GET).bind(job.as_str()).fetch_optional(self.pool());
        self.limited("reading a job", select).await?.as_ref().map(read).transpose()
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<Job>, StoreError> {
        let (after, after_job) = filter.after.clone().unzip();
        let select = sqlx::query(list(filter))
            .bind(filter.status.map(Status::as_str))
            .bind(filter.tenant.as_ref().map(AsRef::<str>::as_ref))
            .bind(after.map(jiff_sqlx::ToSqlx::to_sqlx))
            .bind(after_job.as_ref().map(JobId::as_str))
            .bind(i64::from(filter.limit));
        let rows = self.limited("listing jobs", select.fetch_all(self.pool())).await?;
        rows.iter().map(read).collect()
    }

    async fn unshown_jobs(&self, limit: usize) -> Result<Vec<Job>, StoreError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let select = sqlx::query(UNSHOWN).bind(limit).fetch_all(self.pool());
        self.limited("reading changed jobs", select).await?.iter().map(read).collect()
    }

    async fn mark_shown(&self, jobs: &[Job]) -> Result<(), StoreError> {
        let ids: Vec<&str> = jobs.iter().map(|job| job.id.as_str()).collect();
        let versions: Vec<i64> = jobs.iter().map(|job| job.version.cast_signed()).collect();
        let update = sqlx::query(SHOWN).bind(ids).bind(versions).execute(self.pool());
        self.limited("noting shown jobs", update).await.map(|_| ())
    }

    async fn archive_jobs(&self, jobs: &[Job]) -> Result<u64, StoreError> {
        let mut new = 0;
        for job in jobs {
            let insert = sqlx::query(ARCHIVE)
                .bind(job.id.as_str())
                .bind(job.tenant.as_ref().map(AsRef::<str>::as_ref))
                .bind(job.announces.as_str())
                .bind(job.status.as_str())
                .bind(job.total.cast_signed())
                .bind(job.done.cast_signed())
                .bind(job.errors.cast_signed())
                .bind(job.version.cast_signed())
                .bind(job.created_at.to_sqlx())
                .bind(job.updated_at.to_sqlx())
                .bind(job.finished_at.map(jiff_sqlx::ToSqlx::to_sqlx));
            new += self.limited("archiving a job", insert.execute(self.pool())).await?.rows_affected();
        }
        Ok(new)
    }

    async fn forget_items(&self, done_for: Duration, limit: u32) -> Result<u64, StoreError> {
        let delete = sqlx::query(FORGET).bind(done_for).bind(i64::from(limit));
        Ok(self.limited("forgetting items", delete.execute(self.pool())).await?.rows_affected())
    }

    async fn wait_for_jobs(&self, at_most: Duration) {
        tokio::select! {
            () = self.inner.jobs_changed.notified() => {}
            () = self.clock().sleep(at_most) => {}
        }
    }
}

impl Postgres {
    /// Writes what a step made of a job whose row is locked, and announces it when that crossed the finish line.
    async fn write_job(
        &self,
        tx: &mut PostgresTx,
        job: &JobId,
        counts: Counts,
    ) -> Result<Job, ProgressError> {
        let update = sqlx::query(WRITE)
            .bind(job.as_str())
            .bind(counts.status.as_str())
            .bind(counts.total.cast_signed())
            .bind(counts.done.cast_signed())
            .bind(counts.errors.cast_signed())
            .fetch_one(tx.ours());
        let after = read(&self.limited("writing a job", update).await?)?;
        tx.tallies().changed();
        if after.status == Status::Done {
            tx.append(vec![completed(&after)?]).await?;
        }
        Ok(after)
    }

    async fn is_new_page(&self, tx: &mut PostgresTx, job: &JobId, page: &ItemId) -> Result<bool, StoreError> {
        let insert = sqlx::query(PAGE).bind(job.as_str()).bind(page.as_str()).execute(tx.ours());
        Ok(self.limited("noting a page of discovery", insert).await?.rows_affected() > 0)
    }
}
