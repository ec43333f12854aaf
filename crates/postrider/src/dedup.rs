//! Idempotency: a cache in front of the inbox, and claims on effects outside the database.
//!
//! The store decides, always. An [`Accelerator`] spares it most duplicates: it believes a cache in one case only, when that says
//! `COMPLETED` for the same payload, written by this consumer about this very database. Whatever else a cache says, and whatever
//! it fails to say, the inbox is asked. So a cache may be slow, full, flushed, restarted empty or gone at any moment,
//! without losing or repeating an effect; it only ever costs or spares a trip to the database.
//!
//! A [`Deduplicator`] does the same for effects that no transaction covers, such as a call over HTTP: claim, act, complete.
//!
//! [`Seen`] is the whole decision, pure; `model.rs` plays it against crashes, lost caches and redeliveries.

mod accelerator;
mod cache;
mod deduplicator;
mod keeper;
#[cfg(test)]
mod model;
mod outage;
mod record;
mod room;
mod seen;

pub use accelerator::{Accelerator, AcceleratorConfig, Sighting};
pub use cache::{Cache, CacheError, CacheKey, Entry, Found};
pub use deduplicator::{Claim, Deduplicator, Standing};
pub(crate) use keeper::InboxKeeper;
pub use record::{Record, Stamp, Status};
pub use room::CacheHealth;
pub use seen::{Course, Seen, note};
