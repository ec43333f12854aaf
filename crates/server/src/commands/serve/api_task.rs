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
    refuse_plain, subscriptions,
};
use crate::at_work::AtWork;
use crate::commands::Context;
use crate::config::{Config, Http, Live, Tls};
use crate::dashboard::Dashboard;
use crate::desk::StoreDesk;
use crate::desk::pulse::Pulse;
use crate::logging::say;
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

impl Faces {
    /// Whether there is anything beside health and metrics.
    pub(crate) fn any(self) -> bool {
        self.api || self.dashboard
    }
}

impl ApiTask {
    /// Binds and serves until `stop`.
    pub(crate) async fn start<S: WholeStore>(
        behind: Behind<'_, S>,
        faces: Faces,
        stop: CancellationToken,
    ) -> anyhow::Result<Self> {
        let config = Arc::new(behind.config.clone());
        let (http, clock) = (config.settings.http.clone(), behind.context.clock.clone());
        let outboxes = outboxes::open(behind.store, &config, &clock)?;
        let further = outboxes.iter().skip(1).map(|outbox| outbox.store.clone());
        let backend: Arc<dyn ApiBackend> = Arc::new(Erased {
            store: behind.store.clone(),
            further: further.collect(),
            broker: behind.broker.clone(),
        });
        let once = once(behind.store, behind.accelerator, behind.context);
        if faces.any() {
            refuse_open_doors(backend.as_ref(), &http).await?;
        } else {
            refuse_plain(&http)?;
        }
        let certified = match http.tls {
            Tls::Own => Some(watch::Sender::new(tls::config(&http.cert_file, &http.key_file)?)),
            Tls::Off | Tls::Proxy => None,
        };
        let setting = if faces.any() { "http.listen" } else { "http.health_listen" };
        let taken = || format!("cannot listen on {}; choose another {setting} or --listen", http.listen);
        let listener = TcpListener::bind(http.listen).await.with_context(taken)?;
        let listens_at = listener.local_addr()?;
        let (limits, served) = (config.settings.limits, http.clone());
        let measured = behind.metrics.clone();
        let api = Api::new(backend.clone(), once.clone(), clock.clone(), http, limits, measured, listens_at);
        let at_work = api.at_work();
        let (mut more, mut pages) = (None, Router::new());
        if faces.any() {
            let desk = Arc::new(StoreDesk {
                store: behind.store.clone(),
                outboxes,
                broker: behind.broker.clone(),
                config: config.clone(),
                live: behind.live.clone(),
                clock: clock.clone(),
                ledger: wiring::ledger(behind.store, &config, &clock)?,
                operator: wiring::operator(behind.context, config.own.layout.vhost.as_ref())?,
                at_work: at_work.clone(),
            });
            let measured = behind.metrics.clone();
            let pulse = Pulse::start(desk.clone(), backend, once, measured, clock.clone(), stop.clone());
            let front = Front { desk, pulse, clock: clock.clone() };
            if faces.api {
                more = Some(routes(&behind, front.clone(), &at_work, &stop)?);
            }
            if faces.dashboard {
                pages = Dashboard::new(front, api.clone(), config.backends.to_string()).router();
            }
        }
        let router = api.clone().router(more, pages);
        let scheme = if certified.is_some() { "https" } else { "http" };
        let dashboard = faces.dashboard.then(|| format!("{scheme}://{listens_at}/dashboard"));
        let task = if let Some(certified) = &certified {
            let listener = TlsListener::new(listener, certified.subscribe())?;
            tokio::spawn(async move { connections::serve(listener, router, &served, clock, stop).await })
        } else {
            tokio::spawn(async move { connections::serve(listener, router, &served, clock, stop).await })
        };
        say(&format!("listening on {scheme}://{listens_at}"));
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

/// Everything under `/v1` but health and metrics.
fn routes<S: WholeStore>(
    behind: &Behind<'_, S>,
    front: Front,
    at_work: &Arc<AtWork>,
    stop: &CancellationToken,
) -> anyhow::Result<Router<Api>> {
    let Behind { store, broker, accelerator, config, live, context, .. } = behind;
    let (store, clock) = (S::clone(store), context.clock.clone());
    let push = PushDesk {
        store: store.clone(),
        config: live.clone(),
        clock: clock.clone(),
        at_work: at_work.clone(),
    };
    let completed = config.settings.progress.completed.clone();
    let jobs = progress::routes(store.clone(), completed, wiring::job_view(config)?);
    let means = ledger::Means {
        limits: config.settings.limits,
        signing_key_file: config.settings.ledger.signing_key_file.clone(),
        clock: clock.clone(),
    };
    let books = ledger::routes(wiring::ledger(&store, config, &clock)?, means);
    let (broker, accelerator) = (Arc::clone(broker), accelerator.cloned());
    let (noted, ended) = (at_work.clone(), stop.clone());
    let desks = PullDesks::new(store, broker, accelerator, live.clone(), clock, noted, ended);
    let own = front_routes(front).merge(subscriptions::routes(push));
    Ok(own.merge(deliveries::routes(desks)).merge(books).merge(jobs))
}

/// What was done under an `Idempotency-Key`.
fn once<S: WholeStore>(store: &S, accelerator: Option<&Accelerator>, context: &Context) -> Arc<dyn Once> {
    let once = Deduplicator::new(store.clone(), context.clock.clone(), "http").lease(CLAIMED_FOR);
    match accelerator {
        Some(accelerator) => Arc::new(once.accelerated(accelerator)),
        None => Arc::new(once),
    }
}
