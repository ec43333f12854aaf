//! Operations: long work, how far it is, and what came of it.

use axum::extract::{Extension, Path, State};
use axum::response::Redirect;
use maud::{Markup, html};
use postrider::operation::LetterPlan;
use postrider::store::{GroupQuery, LetterFilter, Operation, OperationKind, OperationState};
use uuid::Uuid;

use super::super::actions::{Action, button, form, short_reason};
use super::super::parts::{ago, number, pager, short, state, table, time};
use super::super::search::Search;
use super::super::visit::Visit;
use super::super::{Dashboard, Done, Page, frame};
use super::{Here, Who};
use crate::api::{Problem, is_of, page_of};
use crate::desk::operations::no_operation;

const PAGE: usize = 50;
/// For so long after its end an operation is looked at again: what it sent is on its way.
const SETTLES: i64 = 30;

pub(in crate::dashboard) async fn list(
    State(dashboard): Here,
    Extension(visit): Who,
    search: Search,
) -> Page {
    let (desk, before) = (dashboard.front.desk.as_ref(), search.read("before")?);
    let (operations, next) = page_of(desk, &visit.caller, before, PAGE).await?;
    let next = next.map(|next| next.to_string());
    let row = |operation: &Operation| {
        html! { tr {
            td { a href={ "/dashboard/operations/" (operation.id) } { (named(operation.kind)) } }
            td { (state(operation.state.as_str())) }
            td class="n" { (number(operation.done)) " of " (number(operation.total)) }
            td { (operation.created_by) }
            td class="short" { (short(operation.reason.as_deref().unwrap_or_default(), 100)) }
            td { (ago(operation.created_at, visit.now)) }
        } }
    };
    let rows: Vec<Markup> = operations.iter().map(row).collect();
    let header = ["What", "State", "#Done", "By", "Reason", "Begun"];
    Ok(frame::page(
        &visit,
        "Operations",
        html! {
            (frame::top("Operations", "Replays and other long work. What is done stays done, whatever happens.", html! {}))
            section class="card flush" {
                (table(&header, &rows, ("No operation yet", "a replay of dead letters is one")))
                (pager("/dashboard/operations", &search, "before", next))
            }
        },
    ))
}

fn named(kind: OperationKind) -> &'static str {
    match kind {
        OperationKind::ReplayLetters => "Replay dead letters",
        OperationKind::DiscardLetters => "Discard dead letters",
        OperationKind::EditLetters => "Correct dead letters",
        OperationKind::ReplayOutbox => "Send events again",
        OperationKind::CompareBuses => "Compare both buses",
        OperationKind::FinishMigration => "Remove the old bus",
    }
}

pub(in crate::dashboard) async fn show(
    State(dashboard): Here,
    Extension(visit): Who,
    Path(id): Path<Uuid>,
) -> Page {
    let operation = find(&dashboard, &visit, id).await?;
    let over = operation.finished_at.is_some_and(|at| visit.now.duration_since(at).as_secs() > SETTLES);
    let passed = operation.done + operation.skipped;
    let left = left_open(&dashboard, &visit, &operation).await?;
    Ok(frame::page(
        &visit,
        named(operation.kind),
        html! {
            p class="crumbs" { a href="/dashboard/operations" { "Operations" } " / " (id) }
            (frame::top(named(operation.kind), "", html! {}))
            section class="card" id="progress" data-refresh=[(!over).then_some("1000")] {
                header { h2 { (number(passed)) " of " (number(operation.total)) } (state(operation.state.as_str())) }
                progress max=(operation.total.max(1)) value=(passed) aria-label="Progress" {}
                @if operation.skipped > 0 { p class="quiet" { (number(operation.skipped)) " needed nothing any more." } }
                @if let Some(error) = &operation.error { pre class="error" { (error) } }
                @if operation.state == OperationState::Planned { p class="quiet" { "It waits for a process that collects dead letters (role collector)." } }
                (outcome(&operation, left))
            }
            section class="card" {
                h2 { "About it" }
                dl class="facts" {
                    dt { "By" } dd { (operation.created_by) }
                    dt { "Reason" } dd { (operation.reason.as_deref().unwrap_or("(none)")) }
                    dt { "Begun" } dd { (time(operation.created_at)) }
                    @if let Some(at) = operation.finished_at { dt { "Over" } dd { (time(at)) } }
                    @if let Some(rate) = operation.rate { dt { "Rate" } dd { (rate) " a second" } }
                    @if let Some(runner) = &operation.runner { dt { "Run by" } dd { code { (runner) } } }
                }
                details { summary { "The plan, as it was frozen" } pre { (serde_json::to_string_pretty(&operation.plan).unwrap_or_default()) } }
                @if !operation.state.is_over() {
                    (form(&visit, &format!("/dashboard/operations/{id}/cancel"), "row", html! {
                        (short_reason())
                        (button(&visit, Action::Operate, "danger", "Cancel the rest"))
                    }))
                }
            }
        },
    ))
}

/// What is left of what it was about.
fn outcome(operation: &Operation, left: Option<(u64, Search)>) -> Markup {
    html! {
        @if let Some((open, again)) = left {
            @if open == 0 {
                p class="note good" { "Nothing of this kind is open any more." }
            } @else {
                p class="note warn" { (number(open)) " of this kind are still open." }
                @if operation.state.is_over() {
                    div class="row" { a class="button main" href=(again.with("kind", Some(operation.kind.as_str())).at("/dashboard/plan")) { "Plan the rest" } }
                }
            }
        }
    }
}

/// How many dead letters the filter of an operation matches now, and the way to a plan of them.
async fn left_open(
    dashboard: &Dashboard,
    visit: &Visit,
    operation: &Operation,
) -> Result<Option<(u64, Search)>, Problem> {
    let Ok(plan) = serde_json::from_value::<LetterPlan>(operation.plan.clone()) else { return Ok(None) };
    if !matches!(operation.kind, OperationKind::ReplayLetters | OperationKind::DiscardLetters) {
        return Ok(None);
    }
    let filter = LetterFilter { until: None, ..plan.filter };
    let again = Search::of_letters(&filter);
    let query = GroupQuery { filter, after: None, limit: 200, hours: 1, now: visit.now };
    let groups = dashboard.front.desk.groups(&query).await?.groups;
    Ok(Some((groups.iter().map(|group| group.open).sum(), again)))
}

async fn find(dashboard: &Dashboard, visit: &Visit, id: Uuid) -> Result<Operation, Problem> {
    let found = dashboard.front.desk.operation(id).await?;
    found.filter(|operation| is_of(&visit.caller, operation)).ok_or_else(|| no_operation(id))
}

pub(in crate::dashboard) async fn cancel(
    State(dashboard): Here,
    Extension(visit): Who,
    Path(id): Path<Uuid>,
) -> Done {
    visit.may(Action::Operate)?;
    find(&dashboard, &visit, id).await?;
    dashboard.front.desk.cancel(id, &visit.actor(), visit.reason()?).await?;
    Ok(Redirect::to(&format!("/dashboard/operations/{id}")))
}
