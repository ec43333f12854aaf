//! Jobs of many items, each with how far it is.

use axum::extract::{Extension, State};
use maud::{Markup, html};
use postrider::progress::{Job, JobFilter, JobId, Status};

use super::super::parts::{ago, choice, filter, number, pager, state, table};
use super::super::search::Search;
use super::super::{Page, chart, frame};
use super::{Here, Who};
use crate::api::{Code, Problem};

const PAGE: u32 = 50;

pub(in crate::dashboard) async fn list(
    State(dashboard): Here,
    Extension(visit): Who,
    search: Search,
) -> Page {
    let own = visit.caller.tenant.clone();
    let wanted = JobFilter {
        status: search.get("status").and_then(Status::from_name),
        tenant: if own.is_some() { own } else { search.read("tenant")? },
        after: search.get("after").map(place).transpose()?,
        limit: PAGE,
    };
    let jobs = dashboard.front.desk.jobs(&wanted).await?;
    let full = jobs.len() == PAGE as usize;
    let next =
        jobs.last().filter(|_| full).map(|job| format!("{}.{}", job.created_at.as_microsecond(), job.id));
    let row = |job: &Job| {
        html! { tr {
            td { b { (job.id) } @if let Some(tenant) = &job.tenant { div class="quiet" { (tenant) } } }
            td { (state(job.status.as_str())) }
            td { (chart::meter(job.done, job.total, job.errors > 0)) }
            td class="n" { (number(job.done)) " of " (number(job.total)) }
            td class="n" { (number(job.errors)) }
            td { (ago(job.updated_at, visit.now)) }
        } }
    };
    let rows: Vec<Markup> = jobs.iter().map(row).collect();
    let states: Vec<(&str, &str)> = [("", "Any")]
        .into_iter()
        .chain(Status::ALL.map(|status| (status.as_str(), status.as_str())))
        .collect();
    let running = jobs.iter().any(|job| job.status != Status::Done);
    Ok(frame::page(
        &visit,
        "Jobs",
        html! {
            (frame::top("Jobs", "Work of many items, with a finish line that is crossed once.", html! {}))
            form method="get" action="/dashboard/jobs" class="row" {
                (filter(&search, "tenant", "Tenant", "any"))
                (choice(&search, "status", "State", &states))
                button type="submit" class="button" { "Filter" }
            }
            section class="card flush" id="jobs" data-refresh=[running.then_some("2000")] {
                (table(&["Job", "State", "Progress", "#Done", "#Errors", "Changed"], &rows, ("No job yet", "a job shows here when a service begins one")))
                (pager("/dashboard/jobs", &search, "after", next))
            }
        },
    ))
}

fn place(text: &str) -> Result<(jiff::Timestamp, JobId), Problem> {
    let read = || {
        let (micros, job) = text.split_once('.')?;
        Some((jiff::Timestamp::from_microsecond(micros.parse().ok()?).ok()?, JobId::new(job).ok()?))
    };
    read().ok_or_else(|| Problem::new(Code::InvalidRequest, "that is no place in the list of jobs"))
}
