//! Words about leases of other processes: one process at a time serves a file, so there is nobody to leave word for. A lease that this one
//! did not give was given before a restart, and is over.

use super::Sqlite;
use crate::pull::PullWord;
use crate::store::{PullWords, StoreError, WordNumber};

impl PullWords for Sqlite {
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
