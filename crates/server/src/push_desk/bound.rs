//! From when events reach a new subscription: whoever publishes at once would otherwise miss it, and nothing would tell.

use std::time::Duration;

use super::PushDesk;
use crate::config::PushForm;
use crate::wiring::WholeStore;

/// A process that pushes looks for new subscriptions every second; a broker that is slow gets twice as long.
const PATIENCE: Duration = Duration::from_secs(3);

impl<S: WholeStore> PushDesk<S> {
    /// Waits until the queue of a new subscription is bound, for at most this long. False if no process has taken it up by then; nothing if
    /// it has no queue of its own.
    pub(crate) async fn bound(&self, form: &PushForm, longest: Duration) -> Option<bool> {
        if form.keys().is_empty() {
            return None;
        }
        let start = self.clock.monotonic();
        loop {
            let bound = self.is_bound(form).await;
            if bound || self.clock.since(start) >= PATIENCE.min(longest) {
                return Some(bound);
            }
            self.clock.sleep(Duration::from_millis(100)).await;
        }
    }

    async fn is_bound(&self, form: &PushForm) -> bool {
        let known = self.store.registrations().await.unwrap_or_default();
        known.iter().filter(|known| known.name == form.name).any(|known| {
            let by = |key: &String| known.service.bindings.iter().any(|one| one.key.as_str() == key);
            form.keys().iter().all(by) && known.is_bound(self.clock.now())
        })
    }
}
