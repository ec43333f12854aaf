//! What could not be handled: how it is marked, and how it is collected where it can be found again.

mod collector;
mod correction;
mod header_edit;
mod history;
pub mod in_queue;
mod marks;
pub mod replay;
mod story;

pub use collector::Collector;
pub use correction::{Correction, Misfit, Pointer, Step};
pub use header_edit::{HeaderChange, HeaderEdit};
pub use history::{FailedAttempt, failed_attempts};
pub(crate) use history::{forget_attempts, remember_attempt};
pub use marks::names as header;
pub use marks::{Death, outgoing, revive};
pub(crate) use marks::{MAX_ERROR_BYTES, cut, remember_first_failure, remember_origin};
pub(crate) use story::recall_origin;
pub use story::{BrokerDeath, uncarried};
