//! Words about leases of other processes: one process at a time serves a file, so there is nobody to leave word for. A lease that this one
//! did not give was given before a restart, and is over.

use futures_util::FutureExt as _;
use sqlx::SqliteConnection;

use super::Sqlite;
use super::error::from_sqlite;
use crate::pull::{LeaseKey, PullWord};
use crate::store::{PullWords, StoreError, StoreErrorKind, WordNumber};

impl PullWords for Sqlite {
    async fn lease_key(&self, fresh: LeaseKey) -> Result<LeaseKey, StoreError> {
        self.writer().run(|connection| keep_key(connection, fresh).boxed()).await
    }

    async fn leave_words(&self, _words: Vec<PullWord>) -> Result<Vec<WordNumber>, StoreError> {
        Ok(Vec::new())
    }

    async fn words_for(&self, _desks: Vec<String>) -> Result<Vec<(WordNumber, PullWord)>, StoreError> {
        Ok(Vec::new())
    }

    async fn answer_words(&self, _answers: Vec<(WordNumber, bool)>) -> Result<(), StoreError> {
        Ok(())
    }

    async fn word_answers(&self, _words: &[WordNumber]) -> Result<Vec<(String, bool)>, StoreError> {
        Ok(Vec::new())
    }

    async fn remove_words(&self, _words: &[WordNumber]) -> Result<(), StoreError> {
        Ok(())
    }
}

async fn keep_key(connection: &mut SqliteConnection, fresh: LeaseKey) -> Result<LeaseKey, StoreError> {
    let write = sqlx::query("INSERT INTO pull_key (one, key) VALUES (1, ?) ON CONFLICT DO NOTHING");
    let write = write.bind(fresh.as_bytes().as_slice());
    write.execute(&mut *connection).await.map_err(from_sqlite)?;
    let read = sqlx::query_scalar("SELECT key FROM pull_key");
    let kept: Vec<u8> = read.fetch_one(connection).await.map_err(from_sqlite)?;
    LeaseKey::from_bytes(&kept)
        .ok_or_else(|| StoreError::new(StoreErrorKind::Other, "the key of leases has a wrong length"))
}
