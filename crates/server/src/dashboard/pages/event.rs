//! One event: where it is for every consumer, and its story across outbox, exchange, attempts, dead letters and replays.

use axum::extract::{Extension, Path, State};
use maud::{Markup, html};
use postrider::EventId;

use super::super::parts::{empty, number, segment, state, time};
use super::super::search::Search;
use super::super::{Page, frame};
use super::{Here, Who};
use crate::api::no_event;
use crate::desk::events::{AtConsumer, Happened, Timeline};
use crate::desk::payload;

/// Where an event is shown.
pub(in crate::dashboard) fn address(id: &str) -> String {
    format!("/dashboard/events/{}", segment(id))
}

/// Where an event of an outbox is shown; of the default one, where none is named.
pub(in crate::dashboard) fn address_in(outbox: Option<&str>, id: &str) -> String {
    Search::default().with("outbox", outbox).at(&address(id))
}

pub(in crate::dashboard) async fn show(
    State(dashboard): Here,
    Extension(visit): Who,
    Path(id): Path<EventId>,
    search: Search,
) -> Page {
    let (desk, outbox) = (&dashboard.front.desk, search.get("outbox"));
    let story = desk.timeline(outbox, &id, visit.caller.tenant.as_ref()).await?;
    let story = story.filter(|story| visit.sees(story.tenant.as_deref())).ok_or_else(|| no_event(&id))?;
    let row = desk.row(outbox, &id).await?.filter(|row| visit.sees(row.group_id.as_deref()));
    let title = row.as_ref().map_or("An event", |row| row.event_type.as_str());
    let settled = story.consumers.iter().all(|at| matches!(at.state, "applied" | "dead" | "discarded"));
    Ok(frame::page(
        &visit,
        title,
        html! {
            p class="crumbs" { a href="/dashboard/events" { "Events" } " / " code { (id) } }
            (frame::top(title, "", html! {}))
            div id="story" class="columns" data-refresh=[(!settled).then_some("2000")] {
                (happened(&story))
                div class="stack" {
                    (by_consumer(&story.consumers))
                    @if let Some(row) = &row {
                        section class="card" {
                            h2 { "The event" }
                            dl class="facts" {
                                dt { "Id" } dd { code { (row.id) } }
                                @if let Some(entity) = &row.aggregate_id { dt { "Entity" } dd { (entity) } }
                                @if let Some(tenant) = &row.group_id { dt { "Tenant" } dd { (tenant) } }
                                @if let Some(key) = &row.key { dt { "Ordering key" } dd { code { (key) } } }
                                dt { "Position" } dd { (row.position) }
                                dt { "In the outbox" } dd { (state(&row.status)) }
                            }
                        }
                    }
                }
            }
            @if let Some(text) = row.as_ref().and_then(|row| row.payload.as_ref()) {
                section class="card" { h2 { "Payload" } pre { (payload::for_people(text.as_bytes())) } }
            }
        },
    ))
}

fn happened(story: &Timeline) -> Markup {
    html! {
        section class="card" {
            h2 { "What happened" }
            ol class="story" { @for step in &story.steps { li class=(step.mood) { (one(step)) } } }
        }
    }
}

fn one(step: &Happened) -> Markup {
    html! {
        div class="head" {
            span class="what" { (step.what) }
            @if let Some(letter) = &step.letter { a href={ "/dashboard/letters/" (letter) } { "dead letter " (letter) } }
        }
        div class="place" { (step.place.replace('_', " ")) " · " (time(step.at)) }
        @if let Some(detail) = &step.detail { pre class=[(step.mood == "failed").then_some("error")] { (detail) } }
    }
}

fn by_consumer(consumers: &[AtConsumer]) -> Markup {
    html! {
        section class="card flush" {
            header { h2 { "For each consumer" } }
            @if consumers.is_empty() {
                (empty("No consumer wants it", "none that is known here, at least"))
            } @else {
                table { tbody { @for at in consumers { tr {
                    td { (at.consumer) }
                    td { (state(at.state)) @if let Some(count) = at.waiting_there { div class="quiet" { "waiting there: " (number(count)) } }
                        @if let Some(there) = &at.may_lie_in { div class="quiet" { "it may lie in " (there.queue)
                            @if let Some(count) = there.messages { " (messages there: " (number(count)) ")" } } }
                        @if let Some(head) = &at.behind { div class="quiet" { "behind " (head) } } }
                } } } }
            }
        }
    }
}
