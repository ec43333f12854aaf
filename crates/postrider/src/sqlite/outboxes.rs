//! A file has one outbox.

use super::Sqlite;
use crate::store::{Outboxes, StoreError, StoreErrorKind};

impl Outboxes for Sqlite {
    fn outbox(&self, name: &str) -> Result<Self, StoreError> {
        if name == "event_outbox" { Ok(self.clone()) } else { Err(only_one(name)) }
    }

    async fn create_outbox(&self, name: &str) -> Result<bool, StoreError> {
        Err(only_one(name))
    }

    async fn adopt_outbox(&self, name: &str) -> Result<u64, StoreError> {
        Err(only_one(name))
    }

    async fn would_adopt_outbox(&self, name: &str) -> Result<u64, StoreError> {
        Err(only_one(name))
    }
}

fn only_one(name: &str) -> StoreError {
    let message =
        format!("the embedded default has one outbox and cannot have {name}; use PostgreSQL for more");
    StoreError::new(StoreErrorKind::Invalid, message)
}
