//! The one integration binary of this crate: every test on real servers.

mod rabbitmq;
