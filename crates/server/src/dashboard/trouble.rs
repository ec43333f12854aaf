//! What people see where there is no page: what happened, in words for them, and soon.
//!
//! A database that is away takes as long as a connection to it may take, which is longer than anybody looks at a blank page. So a page
//! that is not there after a moment is waited for only while the database answers.

use std::time::Duration;

use axum::extract::Request;
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{Html, IntoResponse as _, Response};
use jiff::Timestamp;
use maud::{Markup, html};
use postrider::store::StoreErrorKind;

use super::parts::time;
use super::visit::Visit;
use super::{Dashboard, frame};
use crate::api::{Api, Code, Problem};

/// After so long the database is asked whether it is there …
const MOMENT: Duration = Duration::from_secs(1);
/// … and has so long to say so.
const PATIENCE: Duration = Duration::from_secs(2);

/// What people want to know first.
const NOTHING_LOST: &str = "No event is lost. What services have committed is in their outbox, and is published when the database \
    is back; what the broker has it keeps, and gives out again until it is handled.";

/// What a request comes to, or why there is no answer in time.
pub(super) async fn answer(api: &Api, request: Request, next: Next) -> Result<Response, Problem> {
    let only_looks = [Method::GET, Method::HEAD].contains(request.method());
    let all = api.http().request_timeout();
    // Whoever ends requests that take too long has nothing to say to people.
    let limit = all * 9 / 10;
    let doing = async { Ok::<_, Problem>(next.run(request).await) };
    let done = if only_looks {
        tokio::time::timeout(limit, unless_away(api, doing)).await
    } else {
        // What would be changed is not given up while it may be on its way.
        tokio::time::timeout(limit, doing).await
    };
    done.unwrap_or_else(|_| Err(too_late(limit)))
}

/// What this comes to, unless the database turns out to be away meanwhile. One that is slow is waited for.
pub(super) async fn unless_away<T>(
    api: &Api,
    doing: impl Future<Output = Result<T, Problem>>,
) -> Result<T, Problem> {
    let away = async {
        api.clock.sleep(MOMENT).await;
        if answers(api).await {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        done = doing => done,
        () = away => Err(Problem::store_away()),
    }
}

/// Whether the database answers, be it with an error.
async fn answers(api: &Api) -> bool {
    match tokio::time::timeout(PATIENCE, api.backend.check_store()).await {
        Ok(Ok(())) => true,
        Ok(Err(error)) => error.kind != StoreErrorKind::Unavailable,
        Err(_late) => false,
    }
}

fn too_late(limit: Duration) -> Problem {
    let told = format!(
        "there was no page within {} s (http.request_timeout_ms); a search may be made narrower, and what a form asked for may have \
         been done: look before you send it again",
        limit.as_secs_f64()
    );
    Problem::new(Code::TimedOut, told)
}

/// The page for a problem: in the frame of who is known, and without one for somebody who is not.
pub(super) fn page(dashboard: &Dashboard, visit: Option<&Visit>, problem: &Problem) -> Response {
    let (status, title) = problem.heading();
    let told = told(dashboard, visit, problem);
    let page = match visit {
        Some(visit) => {
            let back = html! { p { a href="/dashboard" { "To the overview" } } };
            frame::page(visit, title, html! { (frame::top(title, "", html! {})) (told) (back) })
        }
        None => frame::whole(title, html! { div class="login" { h1 { (title) } (told) } }),
    };
    (status, Html(page.into_string())).into_response()
}

fn told(dashboard: &Dashboard, visit: Option<&Visit>, problem: &Problem) -> Markup {
    if problem.is(Code::StoreUnavailable) {
        let sent = visit.is_some_and(|visit| !visit.fields.is_empty());
        return away(problem, sent, last_seen(dashboard));
    }
    html! { p class="note bad" role="alert" { (problem.detail()) } }
}

/// When the database answered last, as far as this process has looked.
fn last_seen(dashboard: &Dashboard) -> Option<Timestamp> {
    let moment = dashboard.front.pulse.last();
    let answered = moment.beats.iter().rev().find(|beat| beat.health.get("store") == Some(&"ok"));
    answered.map(|beat| beat.at)
}

/// A database is away: since when, that nothing is lost, and what to look at.
fn away(problem: &Problem, sent: bool, seen: Option<Timestamp>) -> Markup {
    let more = Some(problem.detail()).filter(|detail| *detail != Problem::store_away().detail());
    html! {
        p class="note bad" role="alert" {
            "The database does not answer, so there is nothing to show. "
            @if let Some(seen) = seen { "It answered last at " (time(seen)) "." }
            @else { "This process has not seen it answer yet." }
        }
        @if let Some(more) = more { p class="quiet" { (more) } }
        @if sent { p { "Whether what you sent was done is not certain. Look before you send it again." } }
        p { (NOTHING_LOST) }
        p { "On the machine of this process, " code { "postrider doctor" } " says what the database answers and what to do, and "
            code { "/v1/health" } " which parts work. The page is back as soon as the database is." }
        p { a href="/dashboard" { "Try again" } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_are_told_what_is_away_since_when_and_what_to_do() {
        let seen = "2026-11-15T12:00:00Z".parse().unwrap();
        let page = away(&Problem::store_away(), false, Some(seen)).into_string();
        for part in ["answered last at", "2026-11-15 12:00:00", "No event is lost", "postrider doctor"] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(!page.contains("same id") && !page.contains("not certain"), "that is for programs: {page}");
        let other = Problem::new(Code::StoreUnavailable, "the database of fis is away");
        let page = away(&other, true, None).into_string();
        for part in ["the database of fis is away", "not seen it answer yet", "not certain"] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }
}
