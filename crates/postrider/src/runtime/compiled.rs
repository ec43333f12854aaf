//! What a process runs on each of the two databases, compiled with this library.
//!
//! A generic function is compiled in the crate that first names its types, which would be every program, each time it is built, and as little
//! optimised as that program is. These two name them here. Below opt-level 2 the compiler takes what a library has compiled already
//! instead of compiling it again; above, this costs the library's own build a little.

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::{Running, Runtime, StartError};

/// The same as [`Runtime::start`].
#[cfg(feature = "postgres")]
pub fn start_on_postgres(
    runtime: Runtime<crate::postgres::Postgres>,
) -> BoxFuture<'static, Result<Running<crate::postgres::Postgres>, StartError>> {
    runtime.start().boxed()
}

/// The same as [`Runtime::start`].
#[cfg(feature = "sqlite")]
pub fn start_on_sqlite(
    runtime: Runtime<crate::sqlite::Sqlite>,
) -> BoxFuture<'static, Result<Running<crate::sqlite::Sqlite>, StartError>> {
    runtime.start().boxed()
}
