//! The ledger: entries, the trial balance, periods, and whether the books are as they were written. Per tenant.

use axum::extract::{Extension, Path, State};
use maud::{Markup, html};
use postrider::envelope::TenantId;
use postrider_ledger::chart::Chart;
use postrider_ledger::entry::Sealed;
use postrider_ledger::report::TrialBalance;
use postrider_ledger::verify::Verification;

use super::super::actions::form;
use super::super::parts::{empty, number, pill, segment, short, table, time};
use super::super::search::Search;
use super::super::visit::Visit;
use super::super::{Dashboard, Page, frame};
use super::{Here, Who};
use crate::api::{Code, Problem};

const PAGE: u64 = 25;

pub(in crate::dashboard) async fn tenants(State(dashboard): Here, Extension(visit): Who) -> Page {
    let mut tenants = dashboard.front.desk.book_keepers().await?;
    tenants.retain(|tenant| visit.sees(Some(tenant.as_str())));
    let row = |tenant: &TenantId| html! { tr { td { a href={ "/dashboard/ledger/" (segment(tenant.as_str())) } { (tenant) } } } };
    let rows: Vec<Markup> = tenants.iter().map(row).collect();
    Ok(frame::page(
        &visit,
        "Ledger",
        html! {
            (frame::top("Ledger", "Events in, balanced journal entries out.", html! {}))
            section class="card flush" { (table(&["Books of"], &rows, ("Nobody keeps books here", "`postrider ledger accounts init` opens some"))) }
        },
    ))
}

pub(in crate::dashboard) async fn books(
    State(dashboard): Here,
    Extension(visit): Who,
    Path(tenant): Path<TenantId>,
    search: Search,
) -> Page {
    page(&dashboard, &visit, &tenant, &search, None).await
}

/// Reads all of it and changes nothing; a form all the same, because it may take a while.
pub(in crate::dashboard) async fn verify(
    State(dashboard): Here,
    Extension(visit): Who,
    Path(tenant): Path<TenantId>,
) -> Page {
    own(&visit, &tenant)?;
    let found = dashboard.front.desk.verify(&tenant).await?;
    page(&dashboard, &visit, &tenant, &Search::default(), Some(&found)).await
}

fn own(visit: &Visit, tenant: &TenantId) -> Result<(), Problem> {
    if visit.sees(Some(tenant.as_str())) {
        return Ok(());
    }
    Err(Problem::new(Code::Forbidden, "the token is for the books of another tenant"))
}

async fn page(
    dashboard: &Dashboard,
    visit: &Visit,
    tenant: &TenantId,
    search: &Search,
    verified: Option<&Verification>,
) -> Page {
    own(visit, tenant)?;
    let desk = &dashboard.front.desk;
    let chart = desk.chart(tenant).await?;
    let balance = desk.trial_balance(tenant).await?;
    let (_, last) = desk.entries(tenant, 0, 1).await?;
    let from = search.read::<u64>("before")?.unwrap_or(last + 1).min(last + 1);
    let after = from.saturating_sub(PAGE + 1);
    let (mut entries, _) =
        desk.entries(tenant, after, usize::try_from(from - 1 - after).unwrap_or(0)).await?;
    entries.reverse();
    let path = format!("/dashboard/ledger/{}", segment(tenant.as_str()));
    let title = format!("Books of {tenant}");
    Ok(frame::page(
        visit,
        &title,
        html! {
            p class="crumbs" { a href="/dashboard/ledger" { "Ledger" } " / " (tenant) }
            (frame::top(&title, &format!("{} entries, kept in {}", number(last), chart.book.base_currency), html! {
                (form(visit, &format!("{path}/verify"), "row", html! { button type="submit" class="button main" { "Verify the books" } }))
            }))
            @if let Some(found) = verified { (verdict(found)) }
            div class="columns" {
                section class="card flush" { header { h2 { "Trial balance" } } (trial(&balance)) }
                section class="card flush" { header { h2 { "Periods" } } (periods(&chart)) }
            }
            section class="card flush" {
                header { h2 { "Entries" } }
                (journal(&entries))
                @if from <= last || after > 0 {
                    div class="pager" {
                        @if from <= last { a href=(path) { "← To the newest" } } @else { span {} }
                        @if after > 0 { a rel="next" href={ (path) "?before=" (after + 1) } { "Older →" } }
                    }
                }
            }
        },
    ))
}

fn verdict(found: &Verification) -> Markup {
    html! {
        @if found.holds() {
            p class="note good" role="status" { "The books hold: " (number(found.entries)) " entries and " (found.checkpoints) " checkpoints are as they were written"
                @if found.balances_compared { ", and the balances are what they add up to" } "."
                @if found.checkpoints > 0 && !found.key_pinned { " The key that signed them is not pinned: set ledger.trusted_keys." } }
        } @else {
            div class="card" role="alert" {
                h2 { (pill("bad", "The books do not hold")) }
                ul { @for problem in &found.problems { li { (problem.code) @if let Some(entry) = problem.entry { " in entry " (entry) } ": " (problem.text) } } }
            }
        }
    }
}

fn trial(balance: &TrialBalance) -> Markup {
    let row = |row: &postrider_ledger::report::Row| {
        html! { tr {
            td class="id" { code { (row.account) } }
            td class="n" { (row.debits) }
            td class="n" { (row.credits) }
            td class="n" { b { (row.balance) } " " (row.currency) }
        } }
    };
    let mut rows: Vec<Markup> = balance.rows.iter().map(row).collect();
    for total in &balance.totals {
        let of = total
            .currency
            .map_or_else(|| format!("all, in {}", balance.base_currency), |one| one.to_string());
        rows.push(html! { tr {
            td { b { "Sum of " (of) } }
            td class="n" { b { (total.debits) } }
            td class="n" { b { (total.credits) } }
            td class="n" { @if total.balanced { (pill("good", "balanced")) } @else { (pill("bad", "not balanced")) } }
        } });
    }
    table(&["Account", "#Debits", "#Credits", "#Balance"], &rows, ("Nothing is posted yet", ""))
}

fn periods(chart: &Chart) -> Markup {
    html! {
        @if chart.periods.is_empty() { (empty("No period is set", "every day is open")) } @else {
            table { tbody { @for period in &chart.periods { tr {
                td { b { (period.name) } div class="quiet" { (period.starts_on) " to " (period.ends_on) } }
                td { (pill(if period.state.as_str() == "open" { "good" } else { "" }, period.state.as_str())) }
            } } } }
        }
    }
}

fn journal(entries: &[Sealed]) -> Markup {
    let row = |entry: &Sealed| {
        html! { tr {
            td class="n" { (entry.number) }
            td class="day" { (entry.effective_on) }
            td { (entry.kind.as_str()) }
            td class="id" { (short(&entry.description, 80)) div class="quiet mono" { (entry.source.event) } }
            td { @for line in &entry.lines { div class="quiet" {
                code { (line.account) } " " (format!("{:?}", line.side).to_lowercase()) " " (line.currency.show(line.amount.into())) " " (line.currency)
            } } }
            td { (time(entry.posted_at)) }
        } }
    };
    let rows: Vec<Markup> = entries.iter().map(row).collect();
    table(&["#No.", "For", "Kind", "What", "Lines", "Posted"], &rows, ("No entry yet", ""))
}
