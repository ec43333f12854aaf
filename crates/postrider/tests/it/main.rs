//! The integration tests of the library, in one binary. Needs the shared servers: `scripts/test`.

mod conformance;
mod embedded;
mod postgres;
mod sqlite;
