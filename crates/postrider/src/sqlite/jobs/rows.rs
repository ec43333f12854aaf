//! A job's row.

use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use crate::envelope::{EventType, TenantId};
use crate::progress::{Job, JobId, Status};
use crate::sqlite::outbox::time;
use crate::store::{StoreError, StoreErrorKind};

/// The columns that [`read`] reads.
macro_rules! job_columns {
    () => {
        "job, group_id, announces, status, total, done, errors, version, created_at, updated_at, finished_at"
    };
}
pub(super) use job_columns;

pub(super) fn read(row: &SqliteRow) -> Result<Job, StoreError> {
    let id: String = row.try_get("job").map_err(|_| unreadable("?"))?;
    let job = || -> Option<Job> {
        let number = |column: &str| u64::try_from(row.try_get::<i64, _>(column).ok()?).ok();
        let tenant: Option<String> = row.try_get("group_id").ok()?;
        Some(Job {
            id: JobId::new(&id).ok()?,
            tenant: tenant.map(TenantId::new).transpose().ok()?,
            status: Status::from_name(row.try_get("status").ok()?)?,
            total: number("total")?,
            done: number("done")?,
            errors: number("errors")?,
            announces: EventType::new(row.try_get::<&str, _>("announces").ok()?).ok()?,
            version: number("version")?,
            created_at: time(row.try_get("created_at").ok()?),
            updated_at: time(row.try_get("updated_at").ok()?),
            finished_at: row.try_get::<Option<i64>, _>("finished_at").ok()?.map(time),
        })
    };
    job().ok_or_else(|| unreadable(&id))
}

fn unreadable(job: &str) -> StoreError {
    let text = format!("the job {job} cannot be read; correct its row in progress_job");
    StoreError::new(StoreErrorKind::Other, text)
}
