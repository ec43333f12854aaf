//! A plan: what a replay, a correction or a discard would do. It changes nothing; the button below it does.

use axum::extract::{Extension, State};
use axum::response::Redirect;
use maud::{Markup, html};
use postrider::dead_letter::Correction;
use postrider::operation::{Plan, Trial};
use postrider::store::EventFilter;

use super::super::actions::{Action, button, form, named_button};
use super::super::parts::{number, span};
use super::super::search::Search;
use super::super::visit::Visit;
use super::super::{Done, Page, frame};
use super::{Here, Who};
use crate::api::{Code, Problem, time_asked};
use crate::desk::operations::{Asked, AskedKind, Drawn, Planned, told_of_events};

/// As many go first, to see whether it helps.
const CANARY: u64 = 5;

pub(in crate::dashboard) async fn show(
    State(dashboard): Here,
    Extension(visit): Who,
    search: Search,
) -> Page {
    let asked = asked(&search, &visit)?;
    let planned = dashboard.front.desk.plan(&asked).await?;
    let (title, lead) = match asked.kind {
        AskedKind::ReplayLetters => (
            "Plan: replay",
            "Each goes back through the outbox to the queue it came from, with a fresh budget of attempts.",
        ),
        AskedKind::DiscardLetters => {
            ("Plan: discard", "They are marked as not wanted. They stay in the table, and nothing is sent.")
        }
        AskedKind::EditLetters => (
            "Plan: correct",
            "Each that the correction fits is sent as a new event, which names the one it replaces. The others stay open.",
        ),
        AskedKind::ReplayOutbox => {
            ("Plan: send events again", "Published events, from the outbox and its archive.")
        }
    };
    Ok(frame::page(
        &visit,
        title,
        html! {
            (frame::top(title, lead, html! {}))
            section class="card" {
                h2 { "What would happen" }
                @match &planned.plan {
                    Drawn::Letters(plan) => (letters(plan, asked.kind)),
                    Drawn::Events(survey) => {
                        @for line in told_of_events(survey, asked.to_queue.as_ref(), asked.reapply).lines() { p { (line) } }
                    },
                }
                p class="quiet" { "Nothing was changed so far." }
            }
            (go(&planned, &visit))
        },
    ))
}

pub(super) fn letters(plan: &Plan, kind: AskedKind) -> Markup {
    let survey = &plan.survey;
    html! {
        div class="tiles" {
            div class="tile plain" { div class="name" { "Open events" } div class="figure" { (number(survey.letters)) } }
            div class="tile plain" { div class="name" { "Aggregates" } div class="figure" { (number(survey.aggregates)) } }
            @if kind == AskedKind::ReplayLetters {
                div class="tile plain" { div class="name" { "Applied before" } div class="figure" { (number(survey.applied)) }
                    div class="under" { "a replay of these does nothing" } }
                div class="tile plain" { div class="name" { "Replayed before" } div class="figure" { (number(survey.replayed_before)) }
                    div class="under" { "and died again" } }
            }
        }
        @if kind != AskedKind::DiscardLetters {
            dl class="facts" { @for (queue, count) in &survey.queues { dt { "To " code { (queue) } } dd { (number(*count)) } }
                @if survey.unroutable > 0 { dt { "To their exchange once more" } dd { (number(survey.unroutable)) } } }
        }
        @if kind == AskedKind::ReplayLetters {
            @if survey.unidentified > 0 { p class="note warn" { (number(survey.unidentified)) " have no event id: a repeat of them is not known." } }
            @if survey.forgotten > 0 { p class="note warn" { (number(survey.forgotten)) " first failed before all that the inbox remembers: were they applied before that, nothing would know it." } }
        }
        @for queue in &plan.missing_queues { p class="note bad" { "There is no queue " (queue) ": declare it first." } }
        @if kind == AskedKind::EditLetters && survey.applied > 0 {
            p class="note warn" { (number(survey.applied)) " of them were applied before: corrected they are new events, and are applied again." }
        }
        @if let Some(trial) = &plan.trial { (trial_of(trial)) }
        @if let Some(takes) = plan.takes { p class="quiet" { "At this rate it takes " (span(i64::try_from(takes.as_secs()).unwrap_or(i64::MAX))) "." } }
    }
}

/// How a correction fares with some of them.
fn trial_of(trial: &Trial) -> Markup {
    let unfit = trial.unfit.len();
    html! {
        p { "Tried on the first " (trial.tried) ": it fits " (trial.tried - unfit) "." }
        @for unfit in trial.unfit.iter().take(3) {
            p class="note warn" { "Dead letter " (unfit.letter) " would stay open: " (unfit.why) "." }
        }
        @if let Some(example) = &trial.example {
            h3 { "Dead letter " (example.letter) ", before and after" }
            pre { (example.before) }
            pre { (example.after) }
        }
    }
}

/// The form that carries it out. What the plan froze travels with it, and is checked again.
fn go(planned: &Planned, visit: &Visit) -> Markup {
    let frozen = serde_json::to_string(&planned.operation).unwrap_or_default();
    let (total, kind) = (planned.plan.total(), planned.operation.kind);
    let (verb, class) = match kind {
        AskedKind::ReplayLetters => ("Replay", "main"),
        AskedKind::DiscardLetters => ("Discard", "danger"),
        AskedKind::EditLetters => ("Correct", "main"),
        AskedKind::ReplayOutbox => ("Send", "main"),
    };
    if total == 0 {
        return html! { p class="note good" { "Nothing matches any more, so there is nothing to do." } };
    }
    html! {
        section class="card" {
            h2 { "Do it" }
            (form(visit, "/dashboard/operations", "stack", html! {
                input type="hidden" name="asked" value=(frozen);
                div class="row" {
                    label class="field wide" { span { "Reason" }
                        input type="text" name="reason" required maxlength="500" placeholder="what was mended" autocomplete="off"; }
                    label class="field" { span { "At most a second" }
                        input type="number" name="rate" min="1" placeholder="no limit" value=[planned.operation.rate]; }
                }
                div class="row" {
                    @if kind != AskedKind::DiscardLetters && total > CANARY {
                        (named_button(visit, Action::Operate, "main", &format!("{verb} a canary of {CANARY}"), Some(("limit", &CANARY.to_string()))))
                    }
                    (button(visit, Action::Operate, if total > CANARY && kind != AskedKind::DiscardLetters { "" } else { class },
                        &format!("{verb} {}", if total == 1 { "it".to_owned() } else { format!("all {}", number(total)) })))
                }
                @if kind != AskedKind::DiscardLetters && total > CANARY {
                    p class="quiet" { "A canary sends the oldest " (CANARY) " first, so that you see whether it helps." }
                }
            }))
        }
    }
}

fn asked(search: &Search, visit: &Visit) -> Result<Asked, Problem> {
    let kind = match search.get("kind") {
        Some("replay_letters") => AskedKind::ReplayLetters,
        Some("discard_letters") => AskedKind::DiscardLetters,
        Some("edit_letters") => AskedKind::EditLetters,
        Some("replay_outbox") => AskedKind::ReplayOutbox,
        _ => return Err(Problem::new(Code::InvalidRequest, "there is no such kind of plan")),
    };
    let mut asked = Asked::of_letters(kind, search.letters(visit)?);
    if kind == AskedKind::ReplayOutbox {
        let at = |name: &str| {
            let none = || Problem::new(Code::InvalidRequest, format!("say {name} when: a time, or 2d"));
            time_asked(search.get(name).ok_or_else(none)?, visit.now)
        };
        asked.filter = postrider::store::LetterFilter::default();
        asked.events = Some(EventFilter {
            aggregate_type: search.get("aggregate_type").map(str::to_owned),
            event_type: search.get("event_type").map(str::to_owned),
            tenant: search.read("tenant")?,
            from: at("from")?,
            to: at("to")?,
        });
        asked.to_queue = search.read("to_queue")?;
        asked.table = search.get("outbox").map(str::to_owned);
        asked.reapply = search.get("reapply").is_some();
    }
    if kind == AskedKind::EditLetters {
        let text = search.get("correction").unwrap_or_default().trim();
        // A patch is a list of steps; a merge patch of an event is an object.
        let read = if text.starts_with('[') { Correction::patch(text) } else { Correction::merge(text) };
        let wrong = |misfit| Problem::new(Code::InvalidRequest, format!("{misfit}; nothing was changed"));
        asked.edit = Some(read.map_err(wrong)?);
    }
    asked.rate = search.read("rate")?;
    asked.keep_to(visit.caller.tenant.as_ref())?;
    Ok(asked)
}

/// Carries out a plan.
pub(in crate::dashboard) async fn start(State(dashboard): Here, Extension(visit): Who) -> Done {
    visit.may(Action::Operate)?;
    let unreadable = |_| Problem::new(Code::InvalidRequest, "the plan cannot be read; plan again");
    let frozen = visit.fields.get("asked").map_or("", String::as_str);
    let mut asked: Asked = serde_json::from_str(frozen).map_err(unreadable)?;
    asked.keep_to(visit.caller.tenant.as_ref())?;
    if let Some(limit) = visit.field("limit") {
        asked.limit =
            Some(limit.parse().map_err(|_| Problem::new(Code::InvalidRequest, "the canary is a number"))?);
    }
    if let Some(rate) = visit.field("rate") {
        asked.rate =
            Some(rate.parse().map_err(|_| Problem::new(Code::InvalidRequest, "the rate is a number"))?);
    }
    let operation = dashboard.front.desk.start(&asked, None, &visit.actor(), visit.reason()?).await?;
    Ok(Redirect::to(&format!("/dashboard/operations/{}", operation.id)))
}
