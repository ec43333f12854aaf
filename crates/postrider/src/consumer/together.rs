//! Calls of many tasks made as one: what comes while a call is under way waits, and goes together in the next.
//!
//! Nobody works in the background. Whoever finds nobody calling takes all that wait along. If that task is dropped half way,
//! the others are told to ask again.

use std::future::Future;
use std::sync::Mutex;

use tokio::sync::oneshot;

use super::lock;
use crate::store::{StoreError, StoreErrorKind};

/// A call takes at most so many along.
const MOST: usize = 500;

type Answer<R> = Result<R, StoreError>;

/// Where calls come together: items in, an answer each.
pub(super) struct Together<T, R> {
    waiting: Mutex<Vec<(T, oneshot::Sender<Answer<R>>)>>,
    turn: tokio::sync::Mutex<()>,
}

impl<T, R> Default for Together<T, R> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), turn: tokio::sync::Mutex::default() }
    }
}

impl<T, R> Together<T, R> {
    /// The answer to one item. `all` is called with every item that waits, and answers them in their order.
    pub(super) async fn call<F>(&self, item: T, all: impl Fn(Vec<T>) -> F) -> Answer<R>
    where
        F: Future<Output = Result<Vec<R>, StoreError>>,
    {
        let (sender, mut answer) = oneshot::channel();
        lock(&self.waiting).push((item, sender));
        loop {
            let turn = tokio::select! {
                biased;
                answered = &mut answer => return answered.unwrap_or_else(|_| Err(interrupted())),
                turn = self.turn.lock() => turn,
            };
            let taken: Vec<_> = {
                let mut waiting = lock(&self.waiting);
                let most = waiting.len().min(MOST);
                waiting.drain(..most).collect()
            };
            let (items, senders): (Vec<_>, Vec<_>) = taken.into_iter().unzip();
            if !items.is_empty() {
                // In a box: every caller would have room for the call that one of them makes.
                tell(senders, Box::pin(all(items)).await);
            }
            drop(turn);
        }
    }
}

fn tell<R>(senders: Vec<oneshot::Sender<Answer<R>>>, answers: Result<Vec<R>, StoreError>) {
    match answers {
        Ok(answers) => {
            for (sender, answer) in senders.into_iter().zip(answers) {
                // Who does not wait any more needs no answer.
                let _gone = sender.send(Ok(answer));
            }
        }
        Err(error) => {
            for sender in senders {
                let _gone = sender.send(Err(StoreError::new(error.kind, error.message.clone())));
            }
        }
    }
}

fn interrupted() -> StoreError {
    StoreError::new(StoreErrorKind::Contended, "the call was interrupted; it is made again")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn many_calls_are_a_few_and_each_has_its_own_answer() {
        let (together, calls) = (Arc::new(Together::<u32, u32>::default()), Arc::new(AtomicUsize::new(0)));
        let tasks: Vec<_> = (0..1000)
            .map(|number| {
                let (together, calls) = (together.clone(), calls.clone());
                tokio::spawn(async move {
                    let all = |items: Vec<u32>| {
                        calls.fetch_add(1, Ordering::Relaxed);
                        async move {
                            tokio::task::yield_now().await;
                            Ok(items.into_iter().map(|item| item * 2).collect())
                        }
                    };
                    assert_eq!(together.call(number, all).await.unwrap(), number * 2);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert!(calls.load(Ordering::Relaxed) < 1000);
    }

    #[tokio::test]
    async fn a_dropped_caller_leaves_nobody_waiting() {
        let together = Arc::new(Together::<u32, u32>::default());
        let first = tokio::spawn({
            let together = together.clone();
            async move { together.call(1, |_| std::future::pending()).await }
        });
        while together.turn.try_lock().is_ok() {
            tokio::task::yield_now().await;
        }
        first.abort();
        assert!(first.await.is_err());
        assert_eq!(together.call(2, async |items| Ok(items)).await.unwrap(), 2);
    }

    #[tokio::test]
    async fn a_failure_is_everybodys() {
        let together = Together::<u32, u32>::default();
        let failing = |_| async { Err(StoreError::new(StoreErrorKind::Unavailable, "away")) };
        assert_eq!(together.call(1, failing).await.unwrap_err().kind, StoreErrorKind::Unavailable);
    }
}
