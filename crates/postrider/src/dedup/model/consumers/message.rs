//! A delivery of the consumers' model.

/// A delivery: which payload it has, and of which tenant it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) payload: usize,
    pub(super) tenant: usize,
}

/// Those that are named, and none.
pub(super) const TENANTS: [Option<&str>; 3] = [Some("acme"), Some("globex"), None];

pub(super) const fn of(payload: usize, tenant: usize) -> Message {
    Message { payload, tenant }
}

impl Message {
    /// Whether the inbox has to take them for two events.
    pub(super) fn is_another_than(self, other: Self) -> bool {
        let named = TENANTS[self.tenant].is_some() && TENANTS[other.tenant].is_some();
        self.payload != other.payload || (named && self.tenant != other.tenant)
    }
}
