//! What every outbox must do: keep what was appended, hand it out in order, and remember what became of it.

mod again;
mod appending;
mod carrying;
mod claiming;
mod keeping;
mod settling;

pub use again::*;
pub use appending::*;
pub use carrying::*;
pub use claiming::*;
pub use keeping::*;
pub use settling::*;
