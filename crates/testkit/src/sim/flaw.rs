//! The flaws of the designs that Postrider comes from, each as a lie that a server tells the real code.
//!
//! With one of them switched on the relay and the consumer behave as that design would have: what they rely on does not
//! hold. The checkers must notice.

/// A way to lose, double or reorder events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// Deliveries are acked when they arrive, before anything is committed.
    AckBeforeCommit,
    /// A service commits its row and publishes in a second call: a crash between the two loses the event.
    DualWrite,
    /// An event is marked as published when it was sent, without waiting for the confirm.
    MarkBeforeConfirm,
    /// Publishing is not mandatory: what no queue wanted is confirmed (HoldCo).
    NotMandatory,
    /// A key set in Redis at first sight means "duplicate" (FIS): what a crash interrupted is skipped for ever.
    SetIfAbsentOnly,
    /// The inbox is written in a transaction of its own, before the effects (HoldCo).
    InboxApart,
    /// There is no inbox: a redelivery is a second effect.
    NoInbox,
    /// A retry, or a dead letter, is sent without waiting for the confirm, and the original is acked.
    RetryUnconfirmed,
    /// The poller goes on after the last position it saw, and misses what was committed late.
    PollByPosition,
    /// Rows are shared out one by one (SKIP LOCKED), and not key by key (HoldCo).
    RowsNotKeys,
    /// An outage of the broker counts as failed attempts (HoldCo): healthy events die.
    OutageCounts,
    /// A failed event waits in a wait queue while those behind it go on.
    NothingHeld,
    /// Progress is a counter that every attempt increments (SMAP), and not a set of items.
    CountedWithoutItems,
    /// An operation takes items off its list in a transaction of its own, before their work.
    ItemsTakenApart,
}

impl Flaw {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::AckBeforeCommit,
        Self::DualWrite,
        Self::MarkBeforeConfirm,
        Self::NotMandatory,
        Self::SetIfAbsentOnly,
        Self::InboxApart,
        Self::NoInbox,
        Self::RetryUnconfirmed,
        Self::PollByPosition,
        Self::RowsNotKeys,
        Self::OutageCounts,
        Self::NothingHeld,
        Self::CountedWithoutItems,
        Self::ItemsTakenApart,
    ];

    /// Its name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AckBeforeCommit => "ack before commit",
            Self::DualWrite => "dual write",
            Self::MarkBeforeConfirm => "mark before confirm",
            Self::NotMandatory => "not mandatory",
            Self::SetIfAbsentOnly => "set-if-absent only",
            Self::InboxApart => "inbox in its own transaction",
            Self::NoInbox => "no inbox",
            Self::RetryUnconfirmed => "retry without confirm",
            Self::PollByPosition => "poll by position",
            Self::RowsNotKeys => "rows leased, not keys",
            Self::OutageCounts => "outage counts as attempts",
            Self::NothingHeld => "followers not held",
            Self::CountedWithoutItems => "progress without item ids",
            Self::ItemsTakenApart => "items taken before their work",
        }
    }
}
