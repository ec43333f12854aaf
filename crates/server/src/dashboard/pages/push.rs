//! Push: endpoints, how the last attempts went; tried, paused, given a new secret.

use axum::extract::{Extension, Path, State};
use axum::response::Redirect;
use maud::{Markup, html};
use postrider::push::Attempt;
use postrider::topology::ConsumerName;

use super::super::actions::{Action, button, form, short_reason};
use super::super::parts::{ago, number, pill, segment, short, state, table};
use super::super::visit::Visit;
use super::super::{Dashboard, Done, Page, chart, frame};
use super::{Here, Who};
use crate::api::{Code, Problem};
use crate::push_desk::Row;

/// Attempts that are shown.
const SHOWN: u32 = 50;

pub(in crate::dashboard) async fn list(State(dashboard): Here, Extension(visit): Who) -> Page {
    visit.sees_all()?;
    let row = |row: &Row| {
        html! { tr {
            td { a href={ "/dashboard/push/" (segment(&row.name)) } { (row.name) } }
            td class="id" title=(row.url) { code { (short(&row.url, 120)) } }
            td class="breaks" { code { (row.queue) } @for key in &row.keys { div class="quiet" { (key) } } }
            td { (state(row.state)) }
            td class="breaks" { (short(row.last.as_deref().unwrap_or("not tried yet"), 60)) }
            td { (row.made_by) }
        } }
    };
    let rows: Vec<Markup> = dashboard.front.desk.endpoints().await?.iter().map(row).collect();
    let header = ["Endpoint", "Address", "Queue", "State", "Last attempt", "Made by"];
    Ok(frame::page(
        &visit,
        "Push",
        html! {
            (frame::top("Push", "Services that are called over HTTP, in any language.", html! {}))
            section class="card flush" { (table(&header, &rows, ("No endpoint", "`postrider push add` or [[push]] makes one"))) }
        },
    ))
}

pub(in crate::dashboard) async fn show(
    State(dashboard): Here,
    Extension(visit): Who,
    Path(name): Path<ConsumerName>,
) -> Page {
    visit.sees_all()?;
    page(&dashboard, &visit, &name, html! {}).await
}

async fn page(dashboard: &Dashboard, visit: &Visit, name: &ConsumerName, news: Markup) -> Page {
    let rows = dashboard.front.desk.endpoints().await?;
    let none = || Problem::new(Code::NotFound, format!("there is no push subscription {name}"));
    let row = rows.into_iter().find(|row| row.name == name.as_str()).ok_or_else(none)?;
    let attempts = dashboard.front.desk.attempts(name, SHOWN).await?;
    Ok(frame::page(
        visit,
        &row.name,
        html! {
            p class="crumbs" { a href="/dashboard/push" { "Push" } " / " (row.name) }
            (frame::top(&row.name, &row.url, html! { (state(row.state)) }))
            (news)
            section class="card" {
                dl class="facts" {
                    dt { "Queue" } dd { code { (row.queue) } }
                    @if !row.keys.is_empty() { dt { "Bound by" } dd { code { (row.keys.join(", ")) } } }
                    dt { "At the same time" } dd { (row.concurrency) }
                    dt { "Time limit" } dd { (number(row.timeout_ms)) " ms" }
                    dt { "Secrets that sign" } dd { (row.secrets) }
                    dt { "Made by" } dd { (row.made_by) }
                    @if let Some(pause) = &row.pause { dt { "Paused" } dd { "by " (pause.by) ": " (pause.reason) } }
                }
                div class="row" { (controls(&row, visit)) }
            }
            section class="card flush" {
                header { h2 { "Last attempts" } (picture(&attempts)) }
                (table_of(&attempts, visit))
            }
        },
    ))
}

fn controls(row: &Row, visit: &Visit) -> Markup {
    let to = |what: &str| format!("/dashboard/push/{}/{what}", segment(&row.name));
    html! {
        (form(visit, &to("test"), "row", html! { (button(visit, Action::TestPush, "main", "Send a test event")) }))
        @if row.pause.is_some() {
            (form(visit, &to("resume"), "row", html! { (short_reason()) (button(visit, Action::Control, "", "Resume")) }))
        } @else {
            (form(visit, &to("pause"), "row", html! {
                (short_reason())
                (button(visit, Action::Control, "", "Pause"))
            }))
        }
        (form(visit, &to("rotate"), "row", html! { (short_reason()) (button(visit, Action::RotateSecret, "danger", "New secret")) }))
    }
}

/// How long they took and which failed, the newest on the right.
fn picture(attempts: &[Attempt]) -> Markup {
    let took: Vec<(u64, bool)> =
        attempts.iter().rev().map(|attempt| (attempt.took_ms, attempt.error.is_some())).collect();
    let taken = took.iter().filter(|(_, failed)| !failed).count();
    let longest = took.iter().map(|(ms, _)| *ms).max().unwrap_or(0);
    let told = format!("{taken} of {} taken, the slowest in {} ms", took.len(), number(longest));
    html! { @if !took.is_empty() { span class="quiet" { (told) } (chart::attempts(&took, &told)) } }
}

fn table_of(attempts: &[Attempt], visit: &Visit) -> Markup {
    let row = |attempt: &Attempt| {
        html! { tr {
            td { (ago(attempt.at, visit.now)) }
            td class="id" { a href=(super::event::address(attempt.event_id.as_str())) { code { (attempt.event_id) } } }
            td class="n" { (attempt.attempt) }
            td { @match (attempt.status, &attempt.error) {
                (Some(status), None) => (pill("good", &status.to_string())),
                (Some(status), Some(_)) => (pill("bad", &status.to_string())),
                (None, _) => (pill("bad", "no answer")),
            } }
            td class="n" { (number(attempt.took_ms)) " ms" }
            td class="short mono" { (short(attempt.error.as_deref().unwrap_or(&attempt.answer), 120)) }
        } }
    };
    let rows: Vec<Markup> = attempts.iter().map(row).collect();
    table(&["When", "Event", "#Attempt", "Status", "#Took", "Answer"], &rows, ("No attempt yet", ""))
}

pub(in crate::dashboard) async fn test(
    State(dashboard): Here,
    Extension(visit): Who,
    Path(name): Path<ConsumerName>,
) -> Page {
    visit.may(Action::TestPush)?;
    let tested = dashboard.front.desk.try_endpoint(&name, &visit.actor()).await?;
    let news = html! {
        @if tested.taken { p class="note good" role="status" { "It took the test event: " (tested.status.unwrap_or(200)) " in " (number(tested.took_ms)) " ms." } }
        @else { p class="note bad" role="alert" { "It did not take the test event: " (tested.error.as_deref().unwrap_or_default()) } }
        @if !tested.answer.is_empty() { pre { (tested.answer) } }
    };
    page(&dashboard, &visit, &name, news).await
}

pub(in crate::dashboard) async fn rotate(
    State(dashboard): Here,
    Extension(visit): Who,
    Path(name): Path<ConsumerName>,
) -> Page {
    visit.may(Action::RotateSecret)?;
    let shown = dashboard.front.desk.rotate(&name, &visit.actor(), visit.reason()?).await?;
    let secret = shown.secret.or(shown.public_key).unwrap_or_default();
    let news = html! {
        div class="card" role="status" {
            h2 { "The new secret, shown once" }
            div class="secret" { (secret) }
            p class="quiet" { "The one before signs beside it for a while, so receivers have time to change." }
        }
    };
    page(&dashboard, &visit, &name, news).await
}

pub(in crate::dashboard) async fn pause(
    State(dashboard): Here,
    Extension(visit): Who,
    Path(name): Path<ConsumerName>,
) -> Done {
    visit.may(Action::Control)?;
    dashboard.front.desk.pause(&name, &visit.actor(), visit.reason()?).await?;
    Ok(Redirect::to(&format!("/dashboard/push/{}", segment(name.as_str()))))
}

pub(in crate::dashboard) async fn resume(
    State(dashboard): Here,
    Extension(visit): Who,
    Path(name): Path<ConsumerName>,
) -> Done {
    visit.may(Action::Control)?;
    dashboard.front.desk.resume(&name, &visit.actor(), visit.reason()?).await?;
    Ok(Redirect::to(&format!("/dashboard/push/{}", segment(name.as_str()))))
}
