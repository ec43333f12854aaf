//! A simulation: the real relay, consumer, accelerator, collector and runner of operations on servers that live in memory, on one thread, from a seed.
//!
//! Every call to a server is a step, and a seeded hand decides which step is next, whether its request or its reply is lost,
//! and when time moves. At any step the process that called may die, before the call took effect or after it; a process can
//! stand still beyond its leases, servers can go away, the cache can be emptied and a clock can jump. When all faults are
//! over, what is left has to drain, and [`check`](Played::verdict) judges what became of every committed event.
//!
//! The same seed plays the same history. A failing one is played again with fewer faults until none can be left out
//! ([`minimise`]), and printed.
//!
//! [`Flaw`]s are the faults of the designs that Postrider comes from, built into the simulated servers as those designs
//! would have used them. Each has to be found: a checker that stays green on them proves nothing.

mod broker;
mod cache;
mod check;
mod database;
mod fault;
mod flaw;
mod handling;
mod operation;
mod player;
mod process;
mod queues;
pub(crate) mod random;
mod shape;
mod slots;
mod store;
mod world;

pub use check::Verdict;
pub use fault::{Fault, Planned};
pub use flaw::Flaw;
pub use player::{Played, minimise, play, play_plan, replay};
pub(crate) use random::Random;
