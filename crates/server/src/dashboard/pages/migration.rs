//! Migration: where it stands, what both buses had, and the next step. What stands against a step is said before it is refused.

mod parity;

use std::time::Duration;

use axum::extract::{Extension, Path, State};
use axum::response::Redirect;
use maud::{Markup, html};
use postrider::migration::{
    Comparing, DatabaseStanding, Definition, DeliveryCounts, MigrationName, Phase, Standing, Taken,
    obstacles_to_cutover, obstacles_to_finish,
};
use postrider::store::{Operation, OperationKind};

use super::super::actions::{Action, button, form, reason_field};
use super::super::parts::{empty, number, pill, segment, span, state, table, time};
use super::super::visit::Visit;
use super::super::{Dashboard, Done, Page, frame};
use super::{Here, Who};
use crate::api::{Code, Problem};

/// Operations among which the last comparison is looked for.
const LOOKED_AT: usize = 50;
/// A comparison listens for so long, if nobody says.
const LISTENS: u64 = 30;
/// And never longer.
const LONGEST: u64 = 600;

pub(in crate::dashboard) async fn show(State(dashboard): Here, Extension(visit): Who) -> Page {
    visit.sees_all()?;
    let standings = dashboard.front.desk.migrations().await?;
    let lead = "From an old bus to a new one: every event goes to both while consumers move, and it is proven that both had the same before the old one is left.";
    let mut rest = standings.iter();
    let running = rest.next().filter(|newest| newest.phase != Phase::Finished);
    let content = match running {
        Some(standing) => of(standing, last_errand(&dashboard).await?.as_ref(), &visit),
        None => none_runs(&dashboard, &standings, &visit),
    };
    let over: Vec<Markup> = rest.chain(standings.first().filter(|_| running.is_none())).map(past).collect();
    Ok(frame::page(
        &visit,
        "Migration",
        html! {
            (frame::top("Migration", lead, html! {}))
            (content)
            @if !over.is_empty() {
                section class="card flush" { header { h2 { "Earlier ones" } }
                    (table(&["Name", "From", "To", "Phase", "Since"], &over, ("", ""))) }
            }
        },
    ))
}

/// The newest errand of a migration, while its outcome is news.
async fn last_errand(dashboard: &Dashboard) -> Result<Option<Operation>, Problem> {
    let operations = dashboard.front.desk.operations(None, LOOKED_AT).await?;
    let of_buses =
        |one: &Operation| matches!(one.kind, OperationKind::CompareBuses | OperationKind::FinishMigration);
    Ok(operations.into_iter().find(of_buses))
}

fn none_runs(dashboard: &Dashboard, standings: &[Standing], visit: &Visit) -> Markup {
    let Some(definition) = dashboard.front.desk.configured() else {
        let how = "set migration.legacy_exchange, and it can be started here; docs/migration.md has the whole story";
        return html! { section class="card" { (empty("No migration, and none is configured", how)) } };
    };
    let begun = standings.iter().any(|one| one.definition.name == definition.name);
    html! {
        section class="card" {
            h2 { "One can be started: " (definition.name) }
            (about(definition))
            @if begun { p class="note" { "It was finished. Give the next one another migration.name." } }
            @else {
                p class="quiet" { "From then on every event goes to both buses. Nothing else changes, for nobody." }
                (form(visit, "/dashboard/migration", "row", html! {
                    (reason_field("why now"))
                    (button(visit, Action::Migrate, "main", "Publish to both buses"))
                }))
            }
        }
    }
}

fn past(standing: &Standing) -> Markup {
    let Definition { name, exchange, legacy, .. } = &standing.definition;
    html! { tr {
        td { (name) } td { code { (legacy.exchange) } } td { code { (exchange) } }
        td { (state(standing.phase.as_str())) } td { (time(standing.phase_at)) }
    } }
}

fn of(standing: &Standing, errand: Option<&Operation>, visit: &Visit) -> Markup {
    // Deliveries are counted each time: not oftener than somebody waits for something.
    let moves = !standing.settled || errand.is_some_and(|errand| !errand.state.is_over());
    html! {
        section class="card" {
            header { h2 { (standing.definition.name) } span class="quiet" { "in this phase for " (span(visit.now.duration_since(standing.phase_at).as_secs())) } }
            (phases(standing.phase))
            (about(&standing.definition))
        }
        div id="standing" class="stack" data-refresh=(if moves { "2000" } else { "10000" }) {
            (both(standing))
            (parity::proof(standing, errand, visit))
            (compare_form(standing, visit))
            (next_step(standing, visit))
        }
    }
}

fn phases(now: Phase) -> Markup {
    let all = [
        (Phase::Dual, "Both buses"),
        (Phase::Suspended, "Copies are off"),
        (Phase::Cutover, "The new bus alone"),
        (Phase::Finished, "The old bus is gone"),
    ];
    html! {
        ol class="phases" {
            @for (phase, named) in all {
                @if phase != Phase::Suspended || now == Phase::Suspended {
                    li aria-current=[(phase == now).then_some("step")] { b { (phase) } span { (named) } }
                }
            }
        }
    }
}

fn about(definition: &Definition) -> Markup {
    let Definition { exchange, legacy, events, latency, .. } = definition;
    html! {
        dl class="facts" {
            dt { "Old bus" } dd { code { (legacy.exchange) } " (deprecated)" @if let Some(queue) = &legacy.queue { ", queue " code { (queue) } } }
            dt { "New bus" } dd { code { (exchange) } }
            dt { "Events" } dd { @for pattern in events { code { (pattern) } " " } }
            dt { "A copy that fails" } dd { @if definition.block_on_legacy { "holds its event up until the old bus has it" } @else { "holds up nothing, and is tried again" } }
            dt { "Too slow" } dd { "a warning above " (latency.warn_ms) " ms for 1 of 100, too much above " (latency.limit_ms) " ms" }
        }
    }
}

/// Both paths side by side.
fn both(standing: &Standing) -> Markup {
    let p99 = standing.slowest();
    let rule = &standing.definition.latency;
    let path = |name: &str, counts: &DeliveryCounts, p99: Option<f64>| {
        let slow = p99.is_some_and(|ms| ms > f64::from(u32::try_from(rule.warn_ms).unwrap_or(u32::MAX)));
        html! {
            section class="tile plain" {
                div class="name" { (name) }
                div class="figure" { (number(counts.confirmed)) @if counts.at_least { "+" } " " small { "confirmed" } }
                div class="under" { (number(counts.pending)) " pending, "
                    @if counts.failed > 0 { (pill("bad", &format!("{} failed", number(counts.failed)))) } @else { "none failed" } }
                div class="under" { @match p99 {
                    Some(ms) => { "99 of 100 publishes within " @if slow { (pill("warn", &format!("{ms:.1} ms"))) } @else { b { (format!("{ms:.1} ms")) } } }
                    None => { "too few publishes to say how long they take" }
                } }
            }
        }
    };
    let obey = standing.obedient();
    html! {
        div class="tiles three" {
            (path("New bus", &standing.new, p99.new))
            (path("Old bus", &standing.legacy, p99.legacy))
            section class="tile plain" {
                div class="name" { "Relays" }
                div class="figure" { (obey) " " small { "of " (standing.relays.len()) " obey" } }
                div class="under" { @if standing.settled { (pill("good", "settled")) } @else { (pill("warn", "not settled yet")) } }
            }
        }
        p class="note" { "Counted " (standing.counted()) "; what arrived is forgotten after a day." }
        @if !standing.databases.is_empty() {
            section class="card flush" { header { h2 { "Databases that follow" } }
                (table(&["Database", "Follows", "New bus", "Old bus"], &standing.databases.iter().map(follower).collect::<Vec<_>>(), ("", ""))) }
        }
        @if let Some(error) = &standing.legacy_error {
            section class="card" { h2 { "Why copies fail" } pre class="error" { (error) } }
        }
    }
}

/// A database that has outboxes, and follows.
fn follower(there: &DatabaseStanding) -> Markup {
    let counts = |counts: &DeliveryCounts| {
        let owed = counts.pending + counts.failed;
        html! { (number(counts.confirmed)) @if counts.at_least { "+" } " confirmed, " (number(owed)) " owed" }
    };
    html! { tr {
        td { code { (there.database) } }
        td { @match &there.error {
            Some(error) => (pill("bad", error)),
            None if there.settled => (pill("good", "settled")),
            None => (pill("warn", "not settled yet")),
        } }
        td { (counts(&there.new)) } td { (counts(&there.legacy)) }
    } }
}

fn compare_form(standing: &Standing, visit: &Visit) -> Markup {
    if standing.phase != Phase::Dual || standing.follows.is_some() {
        return html! {};
    }
    html! {
        section class="card" {
            h2 { "Compare both buses" }
            p class="quiet" { "It listens to both and changes nothing there. Events that are published meanwhile are compared by their id and body." }
            (form(visit, &to(standing, "compare"), "row", html! {
                label class="field" { span { "Listen for, in seconds" }
                    input type="number" name="seconds" min="1" max=(LONGEST) value=(LISTENS); }
                (button(visit, Action::Compare, if standing.parity.is_none() { "main" } else { "" }, "Compare"))
            }))
        }
    }
}

fn to(standing: &Standing, step: &str) -> String {
    format!("/dashboard/migration/{}/{step}", segment(standing.definition.name.as_str()))
}

/// What can be done from here. What stands against it is listed, and has to be overruled with a reason.
fn next_step(standing: &Standing, visit: &Visit) -> Markup {
    if standing.follows.is_some() {
        return html! { section class="card" { p class="note" { "Another database keeps this migration, and this one follows it. Take its steps there." } } };
    }
    html! {
        @if standing.phase.may_become(Phase::Cutover) {
            (step(standing, visit, &Step {
                title: "Cut over",
                says: "Events go to the new bus alone. The old one stays, and a rollback copies to it what it missed.",
                path: "cutover",
                button: "Cut over",
                hint: "parity is proven",
                obstacles: obstacles_to_cutover(standing, visit.now),
            }))
        }
        @if standing.phase.may_become(Phase::Finished) {
            (step(standing, visit, &Step {
                title: "Finish",
                says: "Removes the old exchange and its queue. Refused while messages or consumers remain there. There is no way back.",
                path: "finish",
                button: "Remove the old bus",
                hint: "nobody listens any more",
                obstacles: obstacles_to_finish(standing),
            }))
        }
        @if standing.phase.may_become(Phase::Dual) {
            (step(standing, visit, &Step {
                title: "Roll back",
                says: "Events go to both buses again, and what went to the new one alone is copied to the old one.",
                path: "rollback",
                button: "Publish to both again",
                hint: "what is wrong with the new consumer",
                obstacles: Vec::new(),
            }))
        }
    }
}

struct Step<'a> {
    title: &'a str,
    says: &'a str,
    path: &'a str,
    button: &'a str,
    hint: &'a str,
    obstacles: Vec<String>,
}

fn step(standing: &Standing, visit: &Visit, step: &Step<'_>) -> Markup {
    let at = to(standing, step.path);
    let class = if step.path == "finish" { "danger" } else { "main" };
    html! {
        section class="card" {
            h2 { (step.title) }
            p class="quiet" { (step.says) }
            @if step.obstacles.is_empty() {
                (form(visit, &at, "row", html! {
                    (reason_field(step.hint))
                    (button(visit, Action::Migrate, class, step.button))
                }))
            } @else {
                ul class="obstacles" { @for obstacle in &step.obstacles { li { (obstacle) } } }
                div class="row" {
                    button type="button" class="button" disabled { (step.button) }
                    span class="why-not" { "Refused while this stands against it." }
                }
                details {
                    summary { "Do it all the same" }
                    (form(visit, &at, "row", html! {
                        input type="hidden" name="force" value="yes";
                        (reason_field("why it cannot wait; the audit log keeps it with what stood against it"))
                        (button(visit, Action::Migrate, "danger", &format!("{} all the same", step.button)))
                    }))
                }
            }
        }
    }
}

/// Who takes a step, and why.
fn taken(visit: &Visit) -> Result<Taken, Problem> {
    visit.may(Action::Migrate)?;
    let forced = visit.field("force").is_some();
    Ok(Taken { by: visit.actor(), reason: visit.reason()?.to_owned(), forced })
}

fn back() -> Redirect {
    Redirect::to("/dashboard/migration")
}

pub(in crate::dashboard) async fn start(State(dashboard): Here, Extension(visit): Who) -> Done {
    dashboard.front.desk.start_migration(&taken(&visit)?).await?;
    Ok(back())
}

pub(in crate::dashboard) async fn compare(
    State(dashboard): Here,
    Extension(visit): Who,
    Path(name): Path<MigrationName>,
) -> Done {
    visit.may(Action::Compare)?;
    let seconds: u64 = visit.needs("seconds")?;
    if !(1..=LONGEST).contains(&seconds) {
        let told = format!("a comparison listens for 1 to {LONGEST} seconds; nothing was changed");
        return Err(Problem::new(Code::InvalidRequest, told).into());
    }
    let how = Comparing { listen: Duration::from_secs(seconds), ..Comparing::default() };
    let step = Taken { by: visit.actor(), reason: String::new(), forced: false };
    dashboard.front.desk.compare_buses(&name, &how, &step).await?;
    Ok(back())
}

pub(in crate::dashboard) async fn cut_over(
    State(dashboard): Here,
    Extension(visit): Who,
    Path(name): Path<MigrationName>,
) -> Done {
    dashboard.front.desk.cut_over(&name, &taken(&visit)?).await?;
    Ok(back())
}

pub(in crate::dashboard) async fn roll_back(
    State(dashboard): Here,
    Extension(visit): Who,
    Path(name): Path<MigrationName>,
) -> Done {
    dashboard.front.desk.roll_back(&name, &taken(&visit)?).await?;
    Ok(back())
}

pub(in crate::dashboard) async fn finish(
    State(dashboard): Here,
    Extension(visit): Who,
    Path(name): Path<MigrationName>,
) -> Done {
    dashboard.front.desk.finish_migration(&name, &taken(&visit)?).await?;
    Ok(back())
}
