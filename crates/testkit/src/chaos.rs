//! Chaos: real processes on real servers, struck by faults from a seeded schedule, judged by who knows what was committed.
//!
//! Three RabbitMQ nodes, PostgreSQL and Redis, all private, each behind a [`Proxy`](crate::proxy::Proxy). Two relays, a push
//! sender and a ledger are processes of the real binary (`postrider serve`); two more processes run consumers whose effects go
//! into a table without a unique key, so that a double shows. A client commits events past all proxies and writes down what
//! was answered. Faults strike processes, servers and the network, and each says how it is known to have landed. Then
//! everything heals, what is left has to drain, and `judge` compares the client's log with what came of it.

mod faults;
mod judge;
mod load;
mod report;
mod runner;
mod stage;
mod striker;
pub mod worker;

pub use judge::Judgement;
pub use report::Report;
pub use runner::{Floor, Options, run};
