//! What Postrider's tests stand on: servers of their own, and servers shared by a test run.

pub mod servers;
