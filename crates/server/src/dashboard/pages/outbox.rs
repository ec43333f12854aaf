//! The outbox: what waits, which keys stand still and why, and sending a range of events again.

use axum::extract::{Extension, State};
use axum::response::Redirect;
use maud::{Markup, html};
use postrider::EventId;
use postrider::envelope::OrderingKey;
use postrider::store::{OutboxStatus, ParkedKey, RowFilter, Unpark};

use super::super::actions::{Action, button, form};
use super::super::parts::{ago, number, pill, short, table};
use super::super::visit::Visit;
use super::super::{Done, Page, frame};
use super::{Here, Who, events};
use crate::api::{Code, Problem};

/// Parked keys and waiting events that are shown.
const SHOWN: usize = 50;

pub(in crate::dashboard) async fn show(State(dashboard): Here, Extension(visit): Who) -> Page {
    visit.sees_all()?;
    let desk = &dashboard.front.desk;
    let report = desk.outbox(SHOWN).await?;
    let failing = RowFilter { status: Some(OutboxStatus::Failed), ..RowFilter::default() };
    let dead = RowFilter { status: Some(OutboxStatus::Dead), ..RowFilter::default() };
    let mut stuck = desk.rows(&dead, SHOWN).await?.rows;
    stuck.extend(desk.rows(&failing, SHOWN).await?.rows);
    let oldest = report.oldest_due.map(|at| ago(at, visit.now));
    let figures = [
        ("Due now", report.due),
        ("Later", report.later),
        ("Dead", report.dead),
        ("Parked keys", report.parked_keys),
    ];
    Ok(frame::page(
        &visit,
        "Outbox",
        html! {
            (frame::top("Outbox", "Events are committed here with the change they tell of, and published from here.", html! {
                (pill("", &format!("relay {}", report.mode)))
                @if let Some(lag) = report.stream_lag_bytes { (pill("", &format!("{} bytes behind", number(lag)))) }
            }))
            div class="tiles" { @for (name, count) in figures {
                div class="tile plain" { div class="name" { (name) } div class="figure" { (number(count)) }
                    @if name == "Due now" { @if let Some(oldest) = &oldest { div class="under" { "the oldest from " (oldest) } } } }
            } }
            section class="card flush" {
                header { h2 { "Keys that stand still" } }
                (parked(&report.parked, &visit))
            }
            section class="card flush" {
                header { h2 { "Events that cannot be published" } a class="more" href="/dashboard/events" { "All events" } }
                (events::rows(&stuck, &visit, "everything that was committed is published, or about to be"))
            }
            (again())
        },
    ))
}

fn parked(keys: &[ParkedKey], visit: &Visit) -> Markup {
    let row = |key: &ParkedKey| {
        html! { tr {
            td { code { (key.key) } }
            td class="n" { (number(key.waiting)) }
            td { (ago(key.since, visit.now)) }
            td class="short mono" { (short(key.error.as_deref().unwrap_or_default(), 140)) }
            td { (form(visit, "/dashboard/outbox/unpark", "row", html! {
                input type="hidden" name="key" value=(key.key);
                input type="text" name="reason" required placeholder="what was mended" aria-label="Reason";
                (button(visit, Action::Unpark, "small", "Unpark"))
            })) }
        } }
    };
    let rows: Vec<Markup> = keys.iter().map(row).collect();
    table(
        &["Ordering key", "#Waiting", "Since", "Why", "Let it go on"],
        &rows,
        ("None", "every ordering key flows"),
    )
}

/// A plan for a range of published events.
fn again() -> Markup {
    let field = |name: &str, label: &str, hint: &str, needed: bool| {
        html! { label class="field" { span { (label) }
        input type="text" name=(name) placeholder=(hint) required[needed] autocomplete="off"; } }
    };
    html! {
        section class="card" {
            h2 { "Send published events again" }
            p class="quiet" { "They keep their ids, so consumers skip what they have applied." }
            form method="get" action="/dashboard/plan" class="row" {
                input type="hidden" name="kind" value="replay_outbox";
                (field("aggregate_type", "Kind of entity", "shop.order", true))
                (field("event_type", "Last word of the type", "any", false))
                (field("from", "From", "2d, or a time", true))
                (field("to", "To", "1h, or a time", true))
                (field("to_queue", "To one queue alone", "where each went", false))
                label class="check" { input type="checkbox" name="reapply" value="yes"; "Have them applied once more" }
                button type="submit" class="button main" { "Plan it" }
            }
        }
    }
}

pub(in crate::dashboard) async fn unpark(State(dashboard): Here, Extension(visit): Who) -> Done {
    visit.may(Action::Unpark)?;
    let target = match (visit.field("key"), visit.field("id")) {
        (Some(key), None) => Unpark::Key(OrderingKey::new(key).map_err(invalid)?),
        (None, Some(id)) => Unpark::Event(EventId::new(id).map_err(invalid)?),
        _ => return Err(Problem::new(Code::InvalidRequest, "name a key or an event").into()),
    };
    dashboard.front.desk.unpark(&target, &visit.actor(), Some(visit.reason()?)).await?;
    Ok(Redirect::to("/dashboard/outbox"))
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn invalid(error: postrider::InvalidText) -> Problem {
    Problem::new(Code::InvalidRequest, error.to_string())
}
