//! Postrider on real servers: `scripts/test` starts them.
#![allow(missing_docs)]

mod postgres;
