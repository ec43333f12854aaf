//! The HTTP API under `/v1`: routes by the role they need, limits around them, problems as answers.
//!
//! A later part adds its routes to the group whose role they need, and nothing else.

mod access;
mod backend;
pub(crate) mod deliveries;
mod events;
mod guard;
mod health;
mod idempotency;
pub(crate) mod ledger;
pub(crate) mod metrics;
pub(crate) mod migrations;
mod problem;
pub(crate) mod progress;
pub(crate) mod subscriptions;

pub(crate) use access::refuse_open_doors;
pub(crate) use backend::{ApiBackend, Erased, append};
pub(crate) use idempotency::Once;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};
use metrics_exporter_prometheus::PrometheusHandle;
use postrider::Clock;
use postrider::store::TokenRole;
use tokio::sync::Semaphore;
use tower_http::catch_panic::CatchPanicLayer;

use crate::at_work::AtWork;
use crate::config::{Http, Limits};
use problem::Problem;

/// What every route can reach. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Api(Arc<Parts>);

pub(crate) struct Parts {
    pub(crate) backend: Arc<dyn ApiBackend>,
    pub(crate) once: Arc<dyn Once>,
    pub(crate) clock: Clock,
    pub(crate) http: Http,
    pub(crate) limits: Limits,
    pub(crate) metrics: PrometheusHandle,
    pub(crate) slots: Semaphore,
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
        let slots = Semaphore::new(http.max_concurrent_requests);
        let (checkup, at_work) = (health::Checkup::new(backend.clone(), clock.clone()), Arc::default());
        Self(Arc::new(Parts {
            backend,
            once,
            clock,
            http,
            limits,
            metrics,
            slots,
            checkup,
            at_work,
            listens_at,
        }))
    }

    /// Where `serve` notes what runs in this process.
    pub(crate) fn at_work(&self) -> Arc<AtWork> {
        self.at_work.clone()
    }

    /// All routes with everything around them. `more` are the routes of parts with a state of their own, by the role they
    /// need.
    pub(crate) fn router(self, more: Vec<(TokenRole, Router<Self>)>) -> Router {
        let needs = |role: TokenRole, routes: Router<Self>| {
            routes
                .route_layer(from_fn_with_state(self.clone(), idempotency::once))
                .route_layer(from_fn_with_state((self.clone(), role), access::require))
        };
        let operator = Router::new()
            .route("/events", post(events::publish))
            .route("/events:batch", post(events::publish_batch));
        let metrics = Router::new().route("/metrics", get(metrics::scrape));
        let more = more.into_iter().map(|(role, routes)| needs(role, routes));
        let limited = more
            .fold(needs(TokenRole::Operator, operator), Router::merge)
            .merge(metrics.route_layer(from_fn_with_state(self.clone(), access::require_metrics)))
            .route_layer(from_fn_with_state(self.clone(), guard::slots));

        // Health stands outside the limits: a busy process is a healthy one.
        let v1 = Router::new()
            .route("/health", get(health::health))
            .route("/health/live", get(health::live))
            .route("/health/ready", get(health::ready))
            .merge(limited);
        Router::new()
            .nest("/v1", v1)
            .fallback(|| async { Problem::not_found() })
            .method_not_allowed_fallback(|| async { Problem::method_not_allowed() })
            .layer(DefaultBodyLimit::max(self.http.max_body_bytes))
            .layer(from_fn_with_state(self.clone(), guard::time_limit))
            .layer(from_fn(guard::declared_length(self.http.max_body_bytes)))
            .layer(CatchPanicLayer::custom(guard::panicked))
            .layer(from_fn_with_state(self.clone(), guard::observe))
            .with_state(self)
    }
}

#[cfg(test)]
mod tests;
