//! The outboxes: what waits, which keys stand still and why, and sending a range of events again.

use axum::extract::{Extension, State};
use axum::response::Redirect;
use maud::{Markup, html};
use postrider::EventId;
use postrider::envelope::OrderingKey;
use postrider::store::{OutboxStatus, ParkedKey, RowFilter, Unpark};

use super::super::actions::{Action, button, form};
use super::super::parts::{ago, number, pill, short, state, table};
use super::super::search::Search;
use super::super::visit::Visit;
use super::super::{Done, Page, chart, frame};
use super::{Here, Who, events};
use crate::api::{Code, Problem};
use crate::desk::outbox::{OutboxReport, Standing};

const SUBTITLE: &str = "Events are committed here with the change they tell of, and published from here.";
/// Parked keys and waiting events that are shown.
const SHOWN: usize = 50;

pub(in crate::dashboard) async fn show(
    State(dashboard): Here,
    Extension(visit): Who,
    search: Search,
) -> Page {
    visit.sees_all()?;
    let (desk, outbox) = (&dashboard.front.desk, search.get("outbox"));
    let all = desk.outboxes().await?;
    let away = |standing: &Standing| Some(standing.outbox.as_str()) == outbox && standing.report.is_none();
    if let Some(standing) = all.iter().find(|standing| away(standing)) {
        return Ok(unavailable(&all, standing, &visit));
    }
    let report = desk.outbox(outbox, SHOWN).await?;
    let failing = RowFilter { status: Some(OutboxStatus::Failed), ..RowFilter::default() };
    let dead = RowFilter { status: Some(OutboxStatus::Dead), ..RowFilter::default() };
    let mut stuck = desk.rows(outbox, &dead, SHOWN).await?.rows;
    stuck.extend(desk.rows(outbox, &failing, SHOWN).await?.rows);
    let oldest = report.oldest_due.map(|at| ago(at, visit.now));
    // What was seen lately is of the first outbox.
    let moment = dashboard.front.pulse.fresh().await;
    #[expect(clippy::cast_precision_loss, reason = "a picture")]
    let lately: Vec<f64> = moment.beats.iter().map(|beat| beat.due as f64).collect();
    let lately = outbox.is_none().then(|| chart::area(&lately, "Due, lately"));
    let figures = [("Later", report.later), ("Dead", report.dead), ("Parked keys", report.parked_keys)];
    Ok(frame::page(
        &visit,
        "Outbox",
        html! {
            (frame::top("Outbox", SUBTITLE, html! {
                @if let Some(outbox) = outbox { (pill("", &format!("outbox {outbox}"))) }
                (pill("", &format!("relay {}", report.mode)))
                @if let Some(lag) = report.stream_lag_bytes { (pill("", &format!("{} bytes of log kept", number(lag)))) }
            }))
            (choice(&all, outbox, &visit))
            div class="tiles" {
                div class=(if lately.is_some() { "tile" } else { "tile plain" }) {
                    div class="name" { "Due now" } div class="figure" { (number(report.due)) }
                    div class="under" { @if let Some(oldest) = &oldest { "the oldest from " (oldest) } }
                    @if let Some(lately) = &lately { (lately) }
                }
                @for (name, count) in figures {
                    div class="tile plain" { div class="name" { (name) } div class="figure" { (number(count)) } }
                }
            }
            section class="card flush" {
                header { h2 { "Keys that stand still" } }
                (parked(&report.parked, &visit, outbox))
            }
            section class="card flush" {
                header { h2 { "Events that cannot be published" } a class="more" href=(Search::default().with("outbox", outbox).at("/dashboard/events")) { "All events" } }
                (events::rows(&stuck, &visit, outbox, "everything that was committed is published, or about to be"))
            }
            (again(outbox))
        },
    ))
}

/// The page of one whose database is away: the others can be chosen.
fn unavailable(all: &[Standing], standing: &Standing, visit: &Visit) -> Markup {
    let outbox = standing.outbox.as_str();
    frame::page(
        visit,
        "Outbox",
        html! {
            (frame::top("Outbox", SUBTITLE, html! { (pill("", &format!("outbox {outbox}"))) }))
            (choice(all, Some(outbox), visit))
            p class="note bad" { "The database of " (outbox) " is away; its events are published when it is back. "
                (standing.error.as_deref().unwrap_or_default()) }
        },
    )
}

/// All outboxes with their figures, each a way to its own page. Nothing where there is one alone.
fn choice(all: &[Standing], chosen: Option<&str>, visit: &Visit) -> Markup {
    let first = all.first().map_or("", |standing| standing.outbox.as_str());
    let row = |standing: &Standing| {
        let (label, report) = (standing.outbox.as_str(), standing.report.as_ref());
        let figure = |count: fn(&OutboxReport) -> u64| report.map(|report| number(count(report)));
        let figures = [
            figure(|report| report.due),
            figure(|report| report.later),
            figure(|report| report.dead),
            figure(|report| report.parked_keys),
        ];
        let oldest = report.and_then(|report| report.oldest_due);
        let named = (label != first).then_some(label);
        html! { tr {
            td { a href=(address(named)) aria-current=[(chosen.unwrap_or(first) == label).then_some("page")] { (label) } }
            @for figure in figures { td class="n" { (figure.unwrap_or_default()) } }
            td { @if let Some(oldest) = oldest { (ago(oldest, visit.now)) } }
            td { (state(standing.status(visit.now))) }
        } }
    };
    let rows: Vec<Markup> = all.iter().map(row).collect();
    let header = ["Outbox", "#Due now", "#Later", "#Dead", "#Parked keys", "Oldest", "State"];
    html! { @if all.len() > 1 {
        section class="card flush" { header { h2 { "Outboxes" } } (table(&header, &rows, ("", ""))) }
    } }
}

/// Where an outbox is shown; the default one, where none is named.
fn address(outbox: Option<&str>) -> String {
    Search::default().with("outbox", outbox).at("/dashboard/outbox")
}

fn parked(keys: &[ParkedKey], visit: &Visit, outbox: Option<&str>) -> Markup {
    let row = |key: &ParkedKey| {
        html! { tr {
            td { code { (key.key) } }
            td class="n" { (number(key.waiting)) }
            td { (ago(key.since, visit.now)) }
            td class="short mono" { (short(key.error.as_deref().unwrap_or_default(), 140)) }
            td { (form(visit, "/dashboard/outbox/unpark", "row", html! {
                input type="hidden" name="key" value=(key.key);
                @if let Some(outbox) = outbox { input type="hidden" name="outbox" value=(outbox); }
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
fn again(outbox: Option<&str>) -> Markup {
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
                @if let Some(outbox) = outbox { input type="hidden" name="outbox" value=(outbox); }
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
    let outbox = visit.field("outbox");
    dashboard.front.desk.unpark(outbox, &target, &visit.actor(), Some(visit.reason()?)).await?;
    Ok(Redirect::to(&address(outbox)))
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn invalid(error: postrider::InvalidText) -> Problem {
    Problem::new(Code::InvalidRequest, error.to_string())
}
