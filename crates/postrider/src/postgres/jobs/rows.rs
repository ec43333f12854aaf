//! A job's row.

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::envelope::{EventType, TenantId};
use crate::progress::{Counts, Job, JobId, Status};
use crate::store::{StoreError, StoreErrorKind};

/// The columns that [`read`] reads.
macro_rules! job_columns {
    () => {
        "job, group_id, announces, status, total, done, errors, version, created_at, updated_at, finished_at"
    };
}
pub(super) use job_columns;

pub(super) fn read(row: &PgRow) -> Result<Job, StoreError> {
    let id: String = row.try_get("job").map_err(|_| unreadable("?"))?;
    let job = || -> Option<Job> {
        let tenant: Option<String> = row.try_get("group_id").ok()?;
        let moment = |column: &str| row.try_get::<Option<jiff_sqlx::Timestamp>, _>(column).ok();
        let Counts { status, total, done, errors } = counts(row)?;
        Some(Job {
            id: JobId::new(&id).ok()?,
            tenant: tenant.map(TenantId::new).transpose().ok()?,
            status,
            total,
            done,
            errors,
            announces: EventType::new(row.try_get::<&str, _>("announces").ok()?).ok()?,
            version: row.try_get::<i64, _>("version").ok()?.try_into().ok()?,
            created_at: moment("created_at")??.to_jiff(),
            updated_at: moment("updated_at")??.to_jiff(),
            finished_at: moment("finished_at")?.map(jiff_sqlx::Timestamp::to_jiff),
        })
    };
    job().ok_or_else(|| unreadable(&id))
}

pub(super) fn read_counts(row: &PgRow, job: &JobId) -> Result<Counts, StoreError> {
    counts(row).ok_or_else(|| unreadable(job.as_str()))
}

fn counts(row: &PgRow) -> Option<Counts> {
    let number = |column: &str| u64::try_from(row.try_get::<i64, _>(column).ok()?).ok();
    Some(Counts {
        status: Status::from_name(row.try_get("status").ok()?)?,
        total: number("total")?,
        done: number("done")?,
        errors: number("errors")?,
    })
}

fn unreadable(job: &str) -> StoreError {
    let text = format!("the job {job} cannot be read; correct its row in postrider.progress_job");
    StoreError::new(StoreErrorKind::Other, text)
}
