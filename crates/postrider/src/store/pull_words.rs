//! What workers say of leases to processes that did not give them, on its way to those that did.

use std::future::Future;

use super::{Store, StoreError};
use crate::pull::{LeaseKey, PullWord};

/// Where processes leave word for each other's desks. The desk that gave a lease is its only judge: it does what it is told or says that
/// the lease is over, and who left the word reads the answer and removes it. What nobody comes back for is gone after an hour.
///
/// A crash between the deed and its answer loses the answer alone: the worker is told that the lease is over, and it is.
pub trait PullWords: Store {
    /// What the tokens of leases are signed with, in every process on this store and after a restart: `fresh`, if nobody has put one
    /// there before.
    fn lease_key(&self, fresh: LeaseKey) -> impl Future<Output = Result<LeaseKey, StoreError>> + Send;

    /// Leaves words. Their numbers; none where one process alone has the store, so that nobody else can have given a lease.
    fn leave_words(
        &self,
        words: Vec<PullWord>,
    ) -> impl Future<Output = Result<Vec<WordNumber>, StoreError>> + Send;

    /// Words for these desks that are not answered, the oldest first.
    fn words_for(
        &self,
        desks: Vec<String>,
    ) -> impl Future<Output = Result<Vec<(WordNumber, PullWord)>, StoreError>> + Send;

    /// Answers: whether the lease still ran and did it. A word that was removed meanwhile needs no answer.
    fn answer_words(
        &self,
        answers: Vec<(WordNumber, bool)>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Which leases were answered for, and how.
    fn word_answers(
        &self,
        words: &[WordNumber],
    ) -> impl Future<Output = Result<Vec<(String, bool)>, StoreError>> + Send;

    /// Removes words, answered or not: then nobody acts on them any more.
    fn remove_words(&self, words: &[WordNumber]) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// The number of a word, by which it is answered and removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WordNumber(pub i64);
