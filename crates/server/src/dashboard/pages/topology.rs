//! The topology: a picture of it, and where the broker differs.

use axum::extract::{Extension, State};
use axum::response::Response;
use maud::{Markup, html};
use postrider::topology::plan::{Plan, Step};

use super::super::parts::pill;
use super::super::{Oops, Page, frame};
use super::{Here, Who};
use crate::api::draw;

pub(in crate::dashboard) async fn show(State(dashboard): Here, Extension(visit): Who) -> Page {
    visit.sees_all()?;
    let drift = dashboard.front.desk.drift().await;
    Ok(frame::page(
        &visit,
        "Topology",
        html! {
            (frame::top("Topology", "Exchanges, queues and bindings as they are configured, and the queues of push subscriptions.", html! {
                a class="button" href="/dashboard/topology.svg" { "The picture alone" }
            }))
            section class="card" {
                h2 { "Drift" }
                @match &drift {
                    Ok(None) => { p { "The embedded broker always has what the configuration says." } }
                    Ok(Some(plan)) => (differences(plan)),
                    Err(problem) => { p class="note warn" { (problem.detail()) } }
                }
            }
            section class="card flush" { header { h2 { "Picture" } }
                div class="diagram" tabindex="0" { img src="/dashboard/topology.svg" alt="Exchanges, queues and bindings"; } }
        },
    ))
}

fn differences(plan: &Plan) -> Markup {
    html! {
        @if plan.drift() == 0 {
            p { (pill("good", "no drift")) " Virtual host " code { (plan.vhost) } " has what it should have." }
        }
        @for blocked in &plan.blocked { p class="note bad" { (blocked) } }
        @if !plan.steps.is_empty() { p { "What an apply would do:" } (steps(&plan.steps)) }
        @if !plan.extra.is_empty() { p { "On the broker beyond this, left alone:" } (steps(&plan.extra)) }
        @for note in &plan.notes { p class="quiet" { (note) } }
        @if !plan.is_empty() { p class="quiet" { code { "postrider topology apply" } " carries it out." } }
    }
}

fn steps(steps: &[Step]) -> Markup {
    html! {
        pre { @for step in steps {
            (format!("{:>3} {}\n", step.sign().as_str(), step.subject()))
            @for detail in step.details() { (format!("      {detail}\n")) }
        } }
    }
}

pub(in crate::dashboard) async fn picture(
    State(dashboard): Here,
    Extension(visit): Who,
) -> Result<Response, Oops> {
    visit.sees_all()?;
    Ok(draw(&dashboard.front.desk.layout().await?))
}
