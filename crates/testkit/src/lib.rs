//! What Postrider's tests stand on: servers of their own, one suite per port, and checkers of what became of events.

pub mod browser;
pub mod checkers;
pub mod conformance;
pub mod effects;
pub mod receiver;
pub mod servers;
pub mod worker;
