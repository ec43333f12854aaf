//! The one error of progress.

use super::job::JobId;
use super::state::Refusal;
use crate::handler::{Failure, error_chain};
use crate::store::StoreError;

/// An error of progress. Whatever it is, nothing of the step was counted.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ProgressError {
    /// What kind it is.
    pub kind: ProgressErrorKind,
    /// What happened and what to do, for people.
    pub message: String,
    /// What the server below said.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The kinds of errors that are handled differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressErrorKind {
    /// Nobody made this job, or its key in Redis expired.
    UnknownJob,
    /// The job is past the point where this could be done.
    IllegalMove,
    /// More items would be done than there are.
    TooMany,
    /// The job is DONE, and this would change it.
    AfterDone,
    /// A number or a text that cannot be.
    Invalid,
    /// The key in Redis holds something else, or only a part of a job.
    WrongType,
    /// The server below cannot be reached, or somebody was in the way. Try again.
    Unavailable,
    /// The server below failed for another reason.
    Other,
}

impl ProgressError {
    /// An error without another behind it.
    pub fn new(kind: ProgressErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// Keeps what the server below said.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Whether trying again can help.
    pub fn is_transient(&self) -> bool {
        self.kind == ProgressErrorKind::Unavailable
    }

    /// As a handler's failure: what cannot succeed goes straight to the dead letters.
    pub fn into_failure(self) -> Failure {
        let text = error_chain(&self);
        match self.kind {
            ProgressErrorKind::Unavailable | ProgressErrorKind::Other => Failure::transient(text),
            // Its init may only be late.
            ProgressErrorKind::UnknownJob => Failure::transient(text).class("unknown_job"),
            _ => Failure::permanent(text).class("progress"),
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ProgressErrorKind::Invalid, message)
    }

    pub(crate) fn unknown(job: &JobId) -> Self {
        let text = format!("there is no job {job}; nothing was counted. Init it first, and try again");
        Self::new(ProgressErrorKind::UnknownJob, text)
    }

    pub(crate) fn refused(job: &JobId, (kind, text): Refusal) -> Self {
        Self::new(kind, format!("job {job} {text}"))
    }
}

impl From<StoreError> for ProgressError {
    fn from(error: StoreError) -> Self {
        let kind =
            if error.is_transient() { ProgressErrorKind::Unavailable } else { ProgressErrorKind::Other };
        Self::new(kind, error.message.clone()).because(error)
    }
}
