//! What a process runs on each of the two databases, compiled with this library; see `postrider::runtime::compiled`.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use postrider::broker::BrokerError;
use postrider::postgres::Postgres;
use postrider::sqlite::Sqlite;
use tokio_util::sync::CancellationToken;

use crate::intake::Intake;

type Ran = BoxFuture<'static, Result<(), BrokerError>>;

/// The same as [`Intake::run`].
pub fn take_in_on_postgres(intake: Arc<Intake<Postgres>>, stop: CancellationToken) -> Ran {
    intake.run(stop).boxed()
}

/// The same as [`Intake::run`].
pub fn take_in_on_sqlite(intake: Arc<Intake<Sqlite>>, stop: CancellationToken) -> Ran {
    intake.run(stop).boxed()
}
