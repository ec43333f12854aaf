//! What the limits of a queue are about: how many messages are ready, and how many bytes their bodies have.

use super::{Content, QueueState};

/// Messages, and the bytes of their bodies. As on RabbitMQ, properties and headers do not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::embedded) struct Load {
    pub(in crate::embedded) messages: u64,
    pub(in crate::embedded) bytes: u64,
}

impl Load {
    /// One more.
    pub(in crate::embedded) fn add(&mut self, content: &Content) {
        self.messages = self.messages.saturating_add(1);
        self.bytes = self.bytes.saturating_add(size(content));
    }

    /// One less.
    pub(in crate::embedded) fn take(&mut self, content: &Content) {
        self.bytes = self.bytes.saturating_sub(size(content));
        self.take_one();
    }

    /// One less, of a size that nobody knows any more.
    pub(in crate::embedded) fn take_one(&mut self) {
        self.messages = self.messages.saturating_sub(1);
        if self.messages == 0 {
            self.bytes = 0;
        }
    }

    /// Both together.
    pub(in crate::embedded) fn with(self, other: Self) -> Self {
        Self {
            messages: self.messages.saturating_add(other.messages),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }
}

impl QueueState {
    /// So much is in the tables after what was read, in the places up to `last`.
    pub(in crate::embedded) fn counted(&mut self, unread: Load, last: i64) {
        self.more |= unread.messages > 0;
        self.unread = unread;
        self.counted_to = last;
    }
}

fn size(content: &Content) -> u64 {
    u64::try_from(content.message.body.len()).unwrap_or(u64::MAX)
}
