//! The one error of the database seam.

/// An error of a store.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct StoreError {
    /// What kind it is.
    pub kind: StoreErrorKind,
    /// What happened and what to do, for people. No credentials.
    pub message: String,
    /// What the driver said.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The kinds of errors that are handled differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreErrorKind {
    /// Not reachable, restarting, out of connections, or it did not answer in time. Try again.
    Unavailable,
    /// Another transaction was in the way (serialization failure, deadlock, busy). Try again.
    Contended,
    /// All connections that this process may have are in use: nothing was tried, and the database may well be there. Try again.
    Busy,
    /// Wrong credentials, or a right is missing.
    Denied,
    /// The schema is missing, too old or too new.
    Schema,
    /// An event with this id was committed before.
    Duplicate,
    /// The input breaks a rule of the table.
    Invalid,
    /// A number, or a sum, is more than its column can hold.
    OutOfRange,
    /// A bug, here or there.
    Other,
}

impl StoreError {
    /// An error without a driver's error behind it.
    pub fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// Keeps what the driver said.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Whether trying again can help.
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, StoreErrorKind::Unavailable | StoreErrorKind::Contended | StoreErrorKind::Busy)
    }
}
