//! What Postrider's tests stand on: servers of their own, one suite per port, and checkers of what became of events; a bad
//! network, a simulation, and chaos on real processes.

pub mod browser;
pub mod chaos;
pub mod checkers;
pub mod conformance;
pub mod effects;
pub mod hostile;
pub mod proxy;
pub mod receiver;
pub mod servers;
pub mod sim;
pub mod worker;
