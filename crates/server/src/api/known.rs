//! Callers that the store vouched for a moment ago: a busy client costs it a look now and then, not one a request.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postrider::store::TokenHash;

use super::access::Caller;

/// What others change about tokens counts this much later at most.
const MOMENT: Duration = Duration::from_millis(20);
/// Beyond so many, those that are older than a moment go.
const MANY: usize = 1000;

/// Who came with which token, and when the store said so.
#[derive(Default)]
pub(super) struct Known {
    tokens: Mutex<HashMap<[u8; 32], (Duration, Caller)>>,
    /// When there was no valid token at all.
    none: Mutex<Option<Duration>>,
    /// Who could read metrics when the store was last asked: by a token, or as the owner of the machine.
    readers: Mutex<HashSet<Option<[u8; 32]>>>,
}

impl Known {
    /// Who has this token, if that was asked a moment ago.
    pub(super) fn caller(&self, hash: &TokenHash, now: Duration) -> Option<Caller> {
        let known = lock(&self.tokens);
        let (since, caller) = known.get(hash.as_bytes())?;
        (now.saturating_sub(*since) < MOMENT).then(|| caller.clone())
    }

    /// Remembers who has a valid token.
    pub(super) fn remember(&self, hash: &TokenHash, caller: &Caller, now: Duration) {
        let mut known = lock(&self.tokens);
        if known.len() >= MANY {
            known.retain(|_, (since, _)| now.saturating_sub(*since) < MOMENT);
        }
        known.insert(*hash.as_bytes(), (now, caller.clone()));
    }

    /// Something about tokens was changed by this process: that counts at once.
    pub(super) fn forget(&self) {
        lock(&self.tokens).clear();
        *lock(&self.none) = None;
        lock(&self.readers).clear();
    }

    /// Remembers whether somebody could read metrics, for as long as the store cannot be asked again.
    pub(super) fn note_reader(&self, token: Option<&TokenHash>, may: bool) {
        let (mut readers, who) = (lock(&self.readers), token.map(|hash| *hash.as_bytes()));
        if !may {
            readers.remove(&who);
        } else if readers.len() < MANY {
            readers.insert(who);
        }
    }

    /// Whether somebody could read metrics when the store was last asked.
    pub(super) fn could_read(&self, token: Option<&TokenHash>) -> bool {
        lock(&self.readers).contains(&token.map(|hash| *hash.as_bytes()))
    }

    /// Whether there was no valid token a moment ago.
    pub(super) fn none(&self, now: Duration) -> bool {
        lock(&self.none).is_some_and(|since| now.saturating_sub(since) < MOMENT)
    }

    /// Remembers that there is none.
    pub(super) fn remember_none(&self, now: Duration) {
        *lock(&self.none) = Some(now);
    }
}

/// What is behind it is whole even if somebody panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider::store::TokenRole;

    #[test]
    fn a_token_is_known_for_a_moment_and_no_longer() {
        let (known, hash) = (Known::default(), TokenHash::of("prt_1"));
        let caller = Caller { role: TokenRole::Viewer, tenant: None, token: None };
        let start = Duration::from_secs(7);
        assert!(known.caller(&hash, start).is_none());
        known.remember(&hash, &caller, start);
        assert_eq!(known.caller(&hash, start + MOMENT / 2).unwrap().role, TokenRole::Viewer);
        assert!(known.caller(&TokenHash::of("prt_2"), start).is_none());
        assert!(known.caller(&hash, start + MOMENT).is_none());
        assert!(!known.none(start));
        known.remember_none(start);
        assert!(known.none(start + MOMENT / 2) && !known.none(start + MOMENT));
    }
}
