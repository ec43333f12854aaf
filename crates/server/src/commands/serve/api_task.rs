//! The HTTP API as a task of `serve`: bound first, so that a port in use is an error at once.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use metrics_exporter_prometheus::PrometheusHandle;
use postrider::broker::Broker;
use postrider::dedup::{Accelerator, Deduplicator};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::connections;
use super::tls::{self, TlsListener};
use crate::api::migrations::MigrationDesk;
use crate::api::{
    Api, Erased, Once, deliveries, ledger, migrations, progress, refuse_open_doors, subscriptions,
};
use crate::at_work::AtWork;
use crate::commands::Context;
use crate::config::Tls;
use crate::pull_desks::PullDesks;
use crate::push_desk::PushDesk;
use crate::wiring::{self, WholeStore};

/// The running API.
pub(super) struct ApiTask {
    task: JoinHandle<()>,
    /// What health is told of this process.
    pub(super) at_work: Arc<AtWork>,
}

impl ApiTask {
    /// Binds and serves until `stop`.
    pub(super) async fn start<S: WholeStore>(
        store: &S,
        broker: &Arc<dyn Broker>,
        accelerator: Option<&Accelerator>,
        metrics: PrometheusHandle,
        context: &Context,
        stop: CancellationToken,
    ) -> anyhow::Result<Self> {
        let (http, clock) = (context.config.settings.http.clone(), context.clock.clone());
        let backend = Arc::new(Erased { store: store.clone(), broker: broker.clone(), clock: clock.clone() });
        let once = once(store, accelerator, context);
        refuse_open_doors(backend.as_ref(), &http).await?;
        let certified = match http.tls {
            Tls::Own => Some(tls::config(&http.cert_file, &http.key_file)?),
            Tls::Off | Tls::Proxy => None,
        };
        let taken = || format!("cannot listen on {}; choose another http.listen or --listen", http.listen);
        let listener = TcpListener::bind(http.listen).await.with_context(taken)?;
        let listens_at = listener.local_addr()?;
        let (limits, served) = (context.config.settings.limits, http.clone());
        let api = Api::new(backend, once, clock, http, limits, metrics, listens_at);
        let at_work = api.at_work();
        let config = Arc::new(context.config.clone());
        let desk = PushDesk { store: store.clone(), config: config.clone(), clock: context.clock.clone() };
        let mut more = subscriptions::routes(desk);
        let (broker, accelerator, clock) = (broker.clone(), accelerator.cloned(), context.clock.clone());
        let desks =
            PullDesks::new(store.clone(), broker, accelerator, config, clock, at_work.clone(), stop.clone());
        more.extend(deliveries::routes(desks));
        more.extend(ledger::routes(wiring::ledger(store, &context.config, &context.clock)?));
        let completed = context.config.settings.progress.completed.clone();
        more.extend(progress::routes(store.clone(), completed));
        more.extend(migrations::routes(MigrationDesk {
            store: store.clone(),
            clock: context.clock.clone(),
            configured: context.config.migration.clone(),
        }));
        let router = api.router(more);
        let task = if let Some(certified) = certified {
            eprintln!("listening on https://{listens_at}");
            let listener = TlsListener::new(listener, certified)?;
            tokio::spawn(async move { connections::serve(listener, router, &served, stop).await })
        } else {
            eprintln!("listening on http://{listens_at}");
            tokio::spawn(async move { connections::serve(listener, router, &served, stop).await })
        };
        Ok(Self { task, at_work })
    }

    /// Waits for requests in flight, for at most this long. Then they are cut off.
    pub(super) async fn finished(mut self, limit: Duration) {
        if tokio::time::timeout(limit, &mut self.task).await.is_err() {
            tracing::warn!("requests were cut off: they took longer than {limit:?}");
            self.task.abort();
        }
    }
}

/// What was done under an `Idempotency-Key`. A request outlives its time limit by a little.
fn once<S: WholeStore>(store: &S, accelerator: Option<&Accelerator>, context: &Context) -> Arc<dyn Once> {
    let lease = context.config.settings.http.request_timeout() + Duration::from_secs(5);
    let once = Deduplicator::new(store.clone(), context.clock.clone(), "http").lease(lease);
    match accelerator {
        Some(accelerator) => Arc::new(once.accelerated(accelerator)),
        None => Arc::new(once),
    }
}
