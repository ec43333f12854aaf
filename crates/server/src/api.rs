//! The HTTP API under `/v1`: a table says who may call which route, limits stand around them, problems are answers.
//!
//! A later part adds its routes with its state, and a line for each to the table.

mod access;
mod audit_log;
mod backend;
mod consumers;
pub(crate) mod deliveries;
mod events;
mod front;
mod guard;
mod health;
mod idempotency;
mod known;
pub(crate) mod lasting;
pub(crate) mod ledger;
mod letters;
pub(crate) mod metrics;
mod migrations;
pub(crate) mod openapi;
mod operations;
mod outbox;
mod pace;
mod peer;
mod problem;
pub(crate) mod progress;
mod stream;
pub(crate) mod subscriptions;
mod table;
mod tokens;
mod topology;
mod trail;

pub(crate) use access::{Caller, owner, read_only, refuse_open_doors, refuse_plain, with_token};
pub(crate) use backend::{ApiBackend, Backlogs, Erased, append};
pub(crate) use front::{Front, routes as front_routes, time_asked};
pub(crate) use guard::plain_refusal;
pub(crate) use idempotency::{Names, Once};
#[cfg(any(test, fuzzing))]
pub(crate) use letters::asked;
pub(crate) use operations::{is_of, page_of};
pub(crate) use outbox::no_event;
pub(crate) use peer::Peer;
pub(crate) use problem::{Code, Problem};
pub(crate) use table::Tenants;
pub(crate) use topology::picture as draw;

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};
use metrics_exporter_prometheus::PrometheusHandle;
use postrider::Clock;
use tokio::sync::Semaphore;
use tower_http::catch_panic::CatchPanicLayer;

use crate::at_work::AtWork;
use crate::config::{Http, Limits};
use pace::Pace;

/// What every route can reach. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Api(Arc<Parts>);

pub(crate) struct Parts {
    pub(crate) backend: Arc<dyn ApiBackend>,
    pub(crate) once: Arc<dyn Once>,
    pub(crate) clock: Clock,
    http: RwLock<Arc<Http>>,
    pub(crate) limits: Limits,
    pub(crate) metrics: PrometheusHandle,
    pub(crate) slots: Arc<Semaphore>,
    pace: Pace,
    known: known::Known,
    /// Looks at the servers for health, seldom.
    checkup: health::Checkup,
    /// What runs in this process.
    at_work: Arc<AtWork>,
    /// Where the API really listens; tells whether callers can come from elsewhere.
    pub(crate) listens_at: SocketAddr,
}

impl std::ops::Deref for Api {
    type Target = Parts;
    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl Api {
    /// Puts the parts together.
    pub(crate) fn new(
        backend: Arc<dyn ApiBackend>,
        once: Arc<dyn Once>,
        clock: Clock,
        http: Http,
        limits: Limits,
        metrics: PrometheusHandle,
        listens_at: SocketAddr,
    ) -> Self {
        let slots = Arc::new(Semaphore::new(http.max_concurrent_requests));
        let (checkup, at_work) =
            (health::Checkup::new(backend.clone(), once.clone(), clock.clone()), Arc::default());
        Self(Arc::new(Parts {
            backend,
            once,
            clock,
            http: RwLock::new(Arc::new(http)),
            limits,
            metrics,
            slots,
            pace: Pace::default(),
            known: known::Known::default(),
            checkup,
            at_work,
            listens_at,
        }))
    }

    /// How the API is served, as it is now.
    pub(crate) fn http(&self) -> Arc<Http> {
        self.http.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes up what may change while it is served: whether it is read-only, the rate limit, the metrics token.
    pub(crate) fn reload(&self, new: &Http) {
        let mut http = self.http.write().unwrap_or_else(PoisonError::into_inner);
        let (read_only, requests_per_second) = (new.read_only, new.requests_per_second);
        let metrics_token = new.metrics_token.clone();
        *http = Arc::new(Http { metrics_token, requests_per_second, read_only, ..Http::clone(&http) });
    }

    /// Where `serve` notes what runs in this process.
    pub(crate) fn at_work(&self) -> Arc<AtWork> {
        self.at_work.clone()
    }

    /// All routes with everything around them. `more` are those of parts with a state of their own, or nothing where only health
    /// and metrics are wanted; `pages` are beside the API, and look after themselves.
    pub(crate) fn router(self, more: Option<Router<Self>>, pages: Router<Self>) -> Router {
        let largest = self.http().max_body_bytes;
        let metrics = Router::new().route("/metrics", get(metrics::scrape));
        let metrics = metrics.route_layer(from_fn_with_state(self.clone(), access::require_metrics));
        let guarded = |more: Router<Self>| {
            more.route("/events", post(events::publish))
                .route("/events:batch", post(events::publish_batch))
                .route_layer(from_fn_with_state(self.clone(), idempotency::once))
                .route_layer(from_fn_with_state(self.clone(), access::require))
        };
        let limited = more
            .map_or_else(Router::new, guarded)
            .merge(metrics)
            .route_layer(from_fn_with_state(self.clone(), guard::slots));

        // Health stands outside the limits: a busy process is a healthy one.
        let v1 = Router::new()
            .route("/health", get(health::health))
            .route("/health/live", get(health::live))
            .route("/health/ready", get(health::ready))
            .route("/openapi.json", get(openapi::show))
            .merge(limited)
            .layer(from_fn(guard::as_problems));
        Router::new()
            .nest("/v1", v1)
            .merge(pages)
            .fallback(|| async { Problem::not_found() })
            .method_not_allowed_fallback(|| async { Problem::method_not_allowed() })
            .layer(DefaultBodyLimit::max(largest))
            .layer(from_fn_with_state(self.clone(), guard::time_limit))
            .layer(from_fn(guard::declared_length(largest)))
            .layer(CatchPanicLayer::custom(guard::panicked))
            .layer(from_fn_with_state(self.clone(), guard::observe))
            .with_state(self)
    }
}

#[cfg(test)]
mod tests;
