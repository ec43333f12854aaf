//! The event that tells that a job is done. Once for ever: its id is derived from the job, so a repeat is a duplicate.

use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::error::ProgressError;
use super::job::{Job, JobId};
use crate::envelope::{AggregateId, Event, EventId, Payload};

/// The event of a job that is done. The same job gives the same event, to the last byte of its payload.
pub(crate) fn completed(job: &Job) -> Result<Event, ProgressError> {
    let payload = json!({
        "job": job.id,
        "status": job.status,
        "total": job.total,
        "done": job.done,
        "errors": job.errors,
        "started_at": job.created_at,
        "finished_at": job.finished_at,
    });
    let unfit = |error: &dyn std::fmt::Display| ProgressError::invalid(format!("job {}: {error}", job.id));
    let mut event = Event::new(&job.announces).map_err(|error| unfit(&error))?;
    event.id = Some(completion_id(&job.id));
    event.aggregate_id = Some(AggregateId::new(&job.id).map_err(|error| unfit(&error))?);
    event.tenant.group.clone_from(&job.tenant);
    event.occurred_at = job.finished_at;
    event.payload = Payload::json(&payload).map_err(|error| unfit(&error))?;
    Ok(event)
}

/// The id of a job's completion event.
pub fn completion_id(job: &JobId) -> EventId {
    let hash = Sha256::new().chain_update("postrider job completed\0").chain_update(job.as_str()).finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash[..16]);
    EventId::from_uuid(uuid::Builder::from_custom_bytes(bytes).into_uuid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_the_same_for_ever() {
        let id = |job| completion_id(&JobId::new(job).unwrap());
        assert_eq!(id("project-7").as_str(), "e8912c7d-bdbf-8062-b831-a7eae8b0d02a");
        assert_ne!(id("project-7"), id("project-8"));
    }
}
