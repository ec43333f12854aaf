//! The dashboard: pages over the desk, rendered here, in the binary. No build step, no script or style that a page could smuggle in.
//!
//! Everything that comes from outside is escaped by construction: pages are made of `html!`, which writes no value as markup. What a
//! visitor may not do is shown with the reason, and refused again when it is asked for all the same.

mod actions;
mod assets;
mod chart;
mod frame;
mod live;
mod pages;
mod parts;
mod search;
mod session;
mod trouble;
mod visit;

use std::sync::Arc;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::Redirect;
use axum::routing::{get, post};
use maud::Markup;

use self::live::Live;
use self::session::Sessions;
use crate::api::{Api, Code, Front, Problem};

/// What the pages reach. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Dashboard(Arc<Parts>);

pub(crate) struct Parts {
    front: Front,
    api: Api,
    sessions: Sessions,
    live: Arc<Live>,
    /// What is in use, for people: `SQLite (…)`.
    backend: String,
}

impl std::ops::Deref for Dashboard {
    type Target = Parts;
    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// A page, or the problem that is shown in its place.
type Page = Result<Markup, Oops>;

/// What a form leads to.
type Done = Result<Redirect, Oops>;

/// A problem on its way to a page.
struct Oops(Problem);

impl<E: Into<Problem>> From<E> for Oops {
    fn from(problem: E) -> Self {
        Self(problem.into())
    }
}

impl axum::response::IntoResponse for Oops {
    /// Without a body: whoever knows the visitor puts the page around it.
    fn into_response(self) -> axum::response::Response {
        let mut response = self.0.heading().0.into_response();
        response.extensions_mut().insert(self.0);
        response
    }
}

/// A path of the dashboard that is no page's.
async fn nowhere() -> Oops {
    Oops(Problem::new(Code::NotFound, "the dashboard has no page at this address"))
}

impl Dashboard {
    /// Over this desk.
    pub(crate) fn new(front: Front, api: Api, backend: String) -> Self {
        let live = Live::start(front.pulse.clone());
        let sessions = Sessions::new(api.clock.clone());
        Self(Arc::new(Parts { front, api, sessions, live, backend }))
    }

    /// All pages. Everything but the way in and the looks needs a visitor who is known.
    pub(crate) fn router(self) -> Router<Api> {
        let known = Router::new()
            .route("/dashboard", get(pages::overview::show))
            .route("/dashboard/stream", get(live::stream))
            .route("/dashboard/failures", get(pages::failures::groups))
            .route("/dashboard/failures/{group}", get(pages::failures::group))
            .route("/dashboard/letters", get(pages::failures::letters))
            .route("/dashboard/letters/{id}", get(pages::letter::show))
            .route("/dashboard/letters/{id}/preview", post(pages::correction::preview))
            .route("/dashboard/letters/{id}/edit", post(pages::correction::edit))
            .route("/dashboard/plan", get(pages::plan::show))
            .route("/dashboard/operations", get(pages::operations::list).post(pages::plan::start))
            .route("/dashboard/operations/{id}", get(pages::operations::show))
            .route("/dashboard/operations/{id}/cancel", post(pages::operations::cancel))
            .route("/dashboard/events", get(pages::events::list))
            .route("/dashboard/events/{id}", get(pages::event::show))
            .route("/dashboard/outbox", get(pages::outbox::show))
            .route("/dashboard/outbox/unpark", post(pages::outbox::unpark))
            .route("/dashboard/consumers", get(pages::consumers::list))
            .route("/dashboard/consumers/{name}/pause", post(pages::consumers::pause))
            .route("/dashboard/consumers/{name}/resume", post(pages::consumers::resume))
            .route("/dashboard/consumers/{name}/release", post(pages::consumers::release))
            .route("/dashboard/topology", get(pages::topology::show))
            .route("/dashboard/topology.svg", get(pages::topology::picture))
            .route("/dashboard/push", get(pages::push::list))
            .route("/dashboard/push/{name}", get(pages::push::show))
            .route("/dashboard/push/{name}/test", post(pages::push::test))
            .route("/dashboard/push/{name}/pause", post(pages::push::pause))
            .route("/dashboard/push/{name}/resume", post(pages::push::resume))
            .route("/dashboard/push/{name}/rotate", post(pages::push::rotate))
            .route("/dashboard/jobs", get(pages::jobs::list))
            .route("/dashboard/migration", get(pages::migration::show).post(pages::migration::start))
            .route("/dashboard/migration/{name}/compare", post(pages::migration::compare))
            .route("/dashboard/migration/{name}/cutover", post(pages::migration::cut_over))
            .route("/dashboard/migration/{name}/rollback", post(pages::migration::roll_back))
            .route("/dashboard/migration/{name}/finish", post(pages::migration::finish))
            .route("/dashboard/ledger", get(pages::ledger::tenants))
            .route("/dashboard/ledger/{tenant}", get(pages::ledger::books))
            .route("/dashboard/ledger/{tenant}/verify", post(pages::ledger::verify))
            .route("/dashboard/audit-log", get(pages::audit_log::list))
            .route("/dashboard/tokens", get(pages::tokens::list).post(pages::tokens::make))
            .route("/dashboard/tokens/{id}/revoke", post(pages::tokens::revoke))
            .route("/dashboard/{*nowhere}", get(nowhere))
            .route_layer(from_fn_with_state(self.clone(), session::known));
        let open = Router::new()
            .route("/", get(|| async { Redirect::to("/dashboard") }))
            .route("/dashboard/", get(|| async { Redirect::to("/dashboard") }))
            .route("/dashboard/login", get(session::ask).post(session::enter))
            .route("/dashboard/logout", post(session::leave))
            .route("/dashboard/style.css", get(assets::style))
            .route("/dashboard/script.js", get(assets::script))
            .route("/dashboard/icon.svg", get(assets::icon))
            .route_layer(from_fn(session::guarded));
        known.merge(open).with_state(self)
    }
}
