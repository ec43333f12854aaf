//! The audit log: who did what, to what, and why.

use axum::extract::{Extension, State};
use maud::{Markup, html};
use postrider::store::{LogEntry, LogQuery};

use super::super::parts::{filter, pager, short, table, time};
use super::super::search::Search;
use super::super::{Page, frame};
use super::{Here, Who};

const PAGE: usize = 50;

pub(in crate::dashboard) async fn list(
    State(dashboard): Here,
    Extension(visit): Who,
    search: Search,
) -> Page {
    visit.sees_all()?;
    let own = |name: &str| search.get(name).map(str::to_owned);
    let query = LogQuery {
        actor: own("actor"),
        action: own("action"),
        subject: own("subject"),
        before: search.read("before")?,
        limit: PAGE,
    };
    let page = dashboard.front.desk.log(&query).await?;
    let row = |entry: &LogEntry| {
        html! { tr {
            td { (time(entry.at)) }
            td { (entry.actor) }
            td { (entry.action) }
            td { (subject(&entry.subject)) }
            td { (short(entry.reason.as_deref().unwrap_or_default(), 200)) }
        } }
    };
    let rows: Vec<Markup> = page.entries.iter().map(row).collect();
    Ok(frame::page(
        &visit,
        "Audit log",
        html! {
            (frame::top("Audit log", "Every change that anybody made, the newest first.", html! {}))
            form method="get" action="/dashboard/audit-log" class="row" {
                (filter(&search, "actor", "By", "cli:ada"))
                (filter(&search, "action", "What", "dead_letter.replayed"))
                (filter(&search, "subject", "To what", "dead_letter/42"))
                button type="submit" class="button" { "Filter" }
                @if !search.is_empty() { a class="button" href="/dashboard/audit-log" { "Clear" } }
            }
            section class="card flush" {
                (table(&["When", "By", "What", "To what", "Why"], &rows, ("Nothing was done yet", "")))
                (pager("/dashboard/audit-log", &search, "before", page.next.map(|place| place.to_string())))
            }
        },
    ))
}

/// A subject, with the way to it where there is one.
fn subject(subject: &str) -> Markup {
    let page = match subject.split_once('/') {
        Some(("dead_letter", id)) => Some(format!("/dashboard/letters/{id}")),
        Some(("operation", id)) => Some(format!("/dashboard/operations/{id}")),
        Some(("event", id)) => Some(super::event::address(id)),
        _ => None,
    };
    html! { @match page { Some(to) => { a href=(to) { (subject) } } None => { (subject) } } }
}
