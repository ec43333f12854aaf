//! The HTTP API as a task of `serve`: bound first, so that a port in use is an error at once.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use metrics_exporter_prometheus::PrometheusHandle;
use postrider::broker::Broker;
use postrider::dedup::{Accelerator, Deduplicator};
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::connections;
use super::tls::{self, TlsListener};
use crate::api::{
    Api, ApiBackend, Erased, Front, Once, deliveries, front_routes, ledger, progress, refuse_open_doors,
    subscriptions,
};
use crate::at_work::AtWork;
use crate::commands::Context;
use crate::config::{Config, Http, Live, Tls};
use crate::dashboard::Dashboard;
use crate::desk::StoreDesk;
use crate::desk::pulse::Pulse;
use crate::outboxes;
use crate::pull_desks::PullDesks;
use crate::push_desk::PushDesk;
use crate::wiring::{self, WholeStore};

/// How long a repeat is told to wait after a crash. A request that takes longer renews its claim.
const CLAIMED_FOR: Duration = Duration::from_secs(15);

/// The running API.
pub(crate) struct ApiTask {
    task: JoinHandle<()>,
    api: Api,
    /// The certificate, where we have one.
    certified: Option<watch::Sender<Arc<ServerConfig>>>,
    /// Where the dashboard is, if there is one.
    pub(crate) dashboard: Option<String>,
    /// What health is told of this process.
    pub(crate) at_work: Arc<AtWork>,
}

/// What is served at the address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Faces {
    /// The API under `/v1`; health and metrics are there in any case.
    pub(crate) api: bool,
    /// The dashboard.
    pub(crate) dashboard: bool,
}

/// What it is served from.
pub(crate) struct Behind<'a, S> {
    pub(crate) store: &'a S,
    pub(crate) broker: &'a Arc<dyn Broker>,
    pub(crate) accelerator: Option<&'a Accelerator>,
    pub(crate) metrics: PrometheusHandle,
    pub(crate) config: Config,
    /// The same, with what a reload changes.
    pub(crate) live: Live,
    pub(crate) context: &'a Context,
}

impl ApiTask {
    /// Binds and serves until `stop`.
    pub(crate) async fn start<S: WholeStore>(
        behind: Behind<'_, S>,
        faces: Faces,
        stop: CancellationToken,
    ) -> anyhow::Result<Self> {
        let Behind { store, broker, accelerator, metrics, config, live, context } = behind;
        let config = Arc::new(config);
        let (http, clock) = (config.settings.http.clone(), context.clock.clone());
        let outboxes = outboxes::open(store, &config, &clock)?;
        let further = outboxes.iter().skip(1).map(|outbox| outbox.store.clone());
        let backend: Arc<dyn ApiBackend> = Arc::new(Erased {
            store: store.clone(),
            further: further.collect(),
            broker: broker.clone(),
            clock: clock.clone(),
        });
        let once = once(store, accelerator, context);
        refuse_open_doors(backend.as_ref(), &http).await?;
        let certified = match http.tls {
            Tls::Own => Some(watch::Sender::new(tls::config(&http.cert_file, &http.key_file)?)),
            Tls::Off | Tls::Proxy => None,
        };
        let taken = || format!("cannot listen on {}; choose another http.listen or --listen", http.listen);
        let listener = TcpListener::bind(http.listen).await.with_context(taken)?;
        let listens_at = listener.local_addr()?;
        let (limits, served) = (config.settings.limits, http.clone());
        let measured = metrics.clone();
        let api = Api::new(backend.clone(), once.clone(), clock, http, limits, metrics, listens_at);
        let at_work = api.at_work();
        let desk = Arc::new(StoreDesk {
            store: store.clone(),
            outboxes,
            broker: broker.clone(),
            config: config.clone(),
            live: live.clone(),
            clock: context.clock.clone(),
            ledger: wiring::ledger(store, &config, &context.clock)?,
            operator: wiring::operator(context, config.own.layout.vhost.as_ref())?,
            at_work: at_work.clone(),
        });
        let pulse = Pulse::start(desk.clone(), backend, once, measured, context.clock.clone(), stop.clone());
        let front = Front { desk, pulse, clock: context.clock.clone() };
        let more = if faces.api {
            let desk = PushDesk { store: store.clone(), config: live.clone(), clock: context.clock.clone() };
            let (broker, accelerator, clock) = (broker.clone(), accelerator.cloned(), context.clock.clone());
            let (noted, ended) = (at_work.clone(), stop.clone());
            let desks =
                PullDesks::new(store.clone(), broker, accelerator, config.clone(), clock, noted, ended);
            let books = ledger::routes(wiring::ledger(store, &config, &context.clock)?);
            let own = front_routes(front.clone()).merge(subscriptions::routes(desk));
            let completed = config.settings.progress.completed.clone();
            let jobs = progress::routes(store.clone(), completed, wiring::job_view(&config)?);
            Some(own.merge(deliveries::routes(desks)).merge(books).merge(jobs))
        } else {
            None
        };
        let pages = if faces.dashboard {
            Dashboard::new(front, api.clone(), config.backends.to_string()).router()
        } else {
            Router::new()
        };
        let router = api.clone().router(more, pages);
        let scheme = if certified.is_some() { "https" } else { "http" };
        let dashboard = faces.dashboard.then(|| format!("{scheme}://{listens_at}/dashboard"));
        let task = if let Some(certified) = &certified {
            let listener = TlsListener::new(listener, certified.subscribe())?;
            tokio::spawn(async move { connections::serve(listener, router, &served, stop).await })
        } else {
            tokio::spawn(async move { connections::serve(listener, router, &served, stop).await })
        };
        eprintln!("listening on {scheme}://{listens_at}");
        Ok(Self { task, api, certified, dashboard, at_work })
    }

    /// Takes up what may change while it serves. A certificate is read again, from the same files or from others.
    pub(super) fn reload(&self, http: &Http) -> anyhow::Result<()> {
        if let Some(certified) = &self.certified {
            certified.send_replace(tls::config(&http.cert_file, &http.key_file)?);
        }
        self.api.reload(http);
        Ok(())
    }

    /// Waits for requests in flight, for at most this long. Then they are cut off.
    pub(crate) async fn finished(mut self, limit: Duration) {
        if tokio::time::timeout(limit, &mut self.task).await.is_err() {
            tracing::warn!("requests were cut off: they took longer than {limit:?}");
            self.task.abort();
        }
    }
}

/// What was done under an `Idempotency-Key`.
fn once<S: WholeStore>(store: &S, accelerator: Option<&Accelerator>, context: &Context) -> Arc<dyn Once> {
    let once = Deduplicator::new(store.clone(), context.clock.clone(), "http").lease(CLAIMED_FOR);
    match accelerator {
        Some(accelerator) => Arc::new(once.accelerated(accelerator)),
        None => Arc::new(once),
    }
}
