//! No migration runs in a simulated database: every event goes to one bus.

use std::time::Duration;

use jiff::Timestamp;
use postrider::migration::{
    Course, Definition, DeliveryResult, Halves, MigrationName, P99, Parity, Standing,
};
use postrider::store::{CopyResult, DualPublishing, OutboxRow, PhaseTurn, RelayId, StoreError};

use super::SimStore;

impl DualPublishing for SimStore {
    async fn course(&self) -> Result<Option<Course>, StoreError> {
        Ok(None)
    }

    async fn obeys(&self, _relay: &RelayId, _version: i64, _latency: P99) -> Result<(), StoreError> {
        Ok(())
    }

    async fn settle_course(&self) -> Result<bool, StoreError> {
        Ok(true)
    }

    async fn claim_copies(&self, _limit: usize, _lease: Duration) -> Result<Vec<OutboxRow>, StoreError> {
        Ok(Vec::new())
    }

    async fn settle_copies(&self, _results: Vec<(i64, CopyResult)>) -> Result<(), StoreError> {
        Ok(())
    }

    async fn confirmed_halves(&self, _positions: Vec<i64>) -> Result<Vec<(i64, Halves)>, StoreError> {
        Ok(Vec::new())
    }

    async fn copied_rows(
        &self,
        _after: i64,
        _up_to: i64,
        _limit: usize,
    ) -> Result<Vec<(OutboxRow, DeliveryResult)>, StoreError> {
        Ok(Vec::new())
    }

    async fn start_migration(&self, _new: &Definition, _by: &str, _why: &str) -> Result<(), StoreError> {
        Ok(())
    }

    async fn turn_migration(&self, _turn: &PhaseTurn) -> Result<bool, StoreError> {
        Ok(false)
    }

    async fn keep_parity(&self, _name: &MigrationName, _parity: &Parity) -> Result<(), StoreError> {
        Ok(())
    }

    async fn migrations_of_buses(&self) -> Result<Vec<Standing>, StoreError> {
        Ok(Vec::new())
    }

    async fn forget_deliveries(&self, _before: Timestamp, _limit: u32) -> Result<u64, StoreError> {
        Ok(0)
    }
}
