//! Events: found by id, type, entity or tenant.

use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use postrider::EventId;
use postrider::envelope::EventType;
use postrider::store::{OutboxStatus, RowFilter, RowView};

use super::super::parts::{ago, choice, filter, pager, short, state, table};
use super::super::search::Search;
use super::super::visit::Visit;
use super::super::{Dashboard, Oops, frame};
use super::{Here, Who};
use crate::api::Problem;

const PAGE: usize = 50;

pub(in crate::dashboard) async fn list(
    State(dashboard): Here,
    Extension(visit): Who,
    search: Search,
) -> Result<Response, Oops> {
    let outbox = search.get("outbox");
    // Whoever knows an id wants that event; everything else is an entity.
    if let Some(asked) = search.get("q")
        && let Ok(id) = EventId::new(asked)
        && is_known(&dashboard, &visit, outbox, &id).await?
    {
        return Ok(Redirect::to(&super::event::address_in(outbox, asked)).into_response());
    }
    let wanted = wanted(&search, &visit)?;
    let page = dashboard.front.desk.rows(outbox, &wanted, PAGE).await?;
    let next = page.next.map(|place| place.to_string());
    let nothing = match search.get("q") {
        Some(asked) => {
            format!("no event has the id {asked}, and none of the newest is about an entity of that name")
        }
        None => "commit one with `postrider publish`, or wait for a service to".to_owned(),
    };
    let content = html! {
        (frame::top("Events", "What was committed to the outbox, the newest first.", html! {}))
        form method="get" action="/dashboard/events" class="row" role="search" {
            label class="field wide" { span { "Event id, or the entity it happened to" }
                input type="search" name="q" id="find" value=[search.get("q")] autocomplete="off"; }
            (filter(&search, "type", "Type", "shop.order.placed"))
            (filter(&search, "aggregate_type", "Kind of entity", "shop.order"))
            (filter(&search, "tenant", "Tenant", "any"))
            (choice(&search, "status", "State", &[("", "Any"), ("pending", "pending"), ("failed", "failed"), ("dead", "dead"), ("published", "published")]))
            @if let Some(outbox) = outbox { (filter(&search, "outbox", "Outbox", outbox)) }
            button type="submit" class="button" { "Find" }
            @if !search.is_empty() { a class="button" href="/dashboard/events" { "Clear" } }
        }
        section class="card flush" {
            (rows(&page.rows, &visit, outbox, &nothing))
            (pager("/dashboard/events", &search, "before", next))
        }
    };
    Ok(frame::page(&visit, "Events", content).into_response())
}

async fn is_known(
    dashboard: &Dashboard,
    visit: &Visit,
    outbox: Option<&str>,
    id: &EventId,
) -> Result<bool, Problem> {
    let story = dashboard.front.desk.timeline(outbox, id, visit.caller.tenant.as_ref()).await?;
    Ok(story.is_some_and(|story| visit.sees(story.tenant.as_deref())))
}

fn wanted(search: &Search, visit: &Visit) -> Result<RowFilter, Problem> {
    let of_type = search.read::<EventType>("type")?;
    let (aggregate_type, event_type) = of_type
        .as_ref()
        .and_then(|whole| whole.as_str().rsplit_once('.'))
        .map(|(first, last)| (first.to_owned(), last.to_owned()))
        .unzip();
    let own = visit.caller.tenant.clone();
    Ok(RowFilter {
        status: search.get("status").and_then(OutboxStatus::from_name),
        key: search.read("key")?,
        aggregate_type: aggregate_type.or_else(|| search.get("aggregate_type").map(str::to_owned)),
        event_type,
        aggregate_id: search.read("q")?,
        tenant: if own.is_some() { own } else { search.read("tenant")? },
        before: search.read("before")?,
    })
}

/// Events of an outbox as a table.
pub(in crate::dashboard) fn rows(
    found: &[RowView],
    visit: &Visit,
    outbox: Option<&str>,
    nothing: &str,
) -> Markup {
    let row = |row: &RowView| {
        html! { tr {
            td class="id" { a href=(super::event::address_in(outbox, &row.id)) { code { (row.id) } } }
            td { (row.event_type) }
            td { (row.aggregate_id.as_deref().unwrap_or_default()) }
            td { (row.group_id.as_deref().unwrap_or_default()) }
            td { (ago(row.created_at, visit.now)) }
            td { (state(&row.status)) }
            td class="short mono" { (short(row.last_error.as_deref().unwrap_or_default(), 80)) }
        } }
    };
    let rows: Vec<Markup> = found.iter().map(row).collect();
    table(
        &["Event", "Type", "Entity", "Tenant", "Committed", "State", "Error"],
        &rows,
        ("Nothing found", nothing),
    )
}
