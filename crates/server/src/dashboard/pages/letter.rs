//! One dead letter: why it died, what it says, what was done about it; and what can be done.

use axum::extract::{Extension, Path, State};
use maud::{Markup, html};
use postrider::dead_letter::failed_attempts;
use postrider::store::{LetterId, LetterStatus, LogEntry};

use super::super::actions::{Action, button, form};
use super::super::parts::{ago, letter_state, number, short, time};
use super::super::search::Search;
use super::super::visit::Visit;
use super::super::{Dashboard, Page, frame};
use super::overview::headline;
use super::{Here, Who};
use crate::api::Problem;
use crate::desk::letters::{Letter, no_letter};
use crate::desk::payload;

pub(in crate::dashboard) async fn show(
    State(dashboard): Here,
    Extension(visit): Who,
    Path(id): Path<LetterId>,
) -> Page {
    let letter = find(&dashboard, &visit, id).await?;
    let summary = &letter.stored.summary;
    let who = summary.consumer.as_deref().unwrap_or(&summary.queue);
    let what = summary.event_type.as_deref().unwrap_or("a message");
    let title = headline(&letter.stored.letter.reason, who, what);
    let group = format!("/dashboard/failures/{}", summary.fingerprint);
    Ok(frame::page(
        &visit,
        &title,
        html! {
            p class="crumbs" { a href="/dashboard/failures" { "Failures" } " / " a href=(group) { "Same reason" } " / Letter " (id) }
            (frame::top(&title, "", html! { (letter_state(summary.status)) }))
            section class="card" {
                h2 { "Why" }
                pre class="error" { (letter.stored.letter.error) }
                (answered(&letter))
                (attempts(&letter))
                (facts(&letter, &visit))
                (what_now(&letter))
            }
            section class="card" {
                header { h2 { "Payload" } span class="quiet" { (number(summary.body_bytes)) " bytes" } }
                pre { (payload::for_people(&letter.editable)) }
                @if summary.status == LetterStatus::Open { (editor(&letter, &visit)) }
            }
            section class="card" {
                h2 { "Headers" }
                dl class="facts mono" { @for (name, value) in &letter.stored.letter.headers {
                    dt { (name) } dd { (value.to_plain_json()) }
                } }
            }
            (log(&letter.log))
        },
    ))
}

pub(super) async fn find(dashboard: &Dashboard, visit: &Visit, id: LetterId) -> Result<Letter, Problem> {
    let letter = dashboard.front.desk.letter(id).await?;
    let seen = letter.filter(|letter| visit.sees(letter.stored.summary.tenant.as_deref()));
    seen.ok_or_else(|| no_letter(id))
}

/// What the endpoint said, where it was pushed to one: mostly that is the reason.
fn answered(letter: &Letter) -> Markup {
    let last = letter.attempts.iter().find(|attempt| !attempt.answer.is_empty());
    html! {
        @if let Some(last) = last {
            p class="quiet" { "The endpoint answered attempt " (last.attempt) @if let Some(status) = last.status { " with " (status) } ":" }
            pre { (last.answer) }
        }
    }
}

/// The attempts before the last one, as far as the message remembers them.
fn attempts(letter: &Letter) -> Markup {
    let failed = failed_attempts(&letter.stored.letter.headers);
    html! {
        @if !failed.is_empty() {
            details {
                summary { "The attempts before" }
                ul class="story" { @for one in &failed { li {
                    div class="head" { span class="what" { "Attempt " (one.attempt) } @if let Some(class) = &one.class { span class="quiet" { (class) } } (time(one.at)) }
                    p class="quiet" { (one.error) }
                } } }
            }
        }
    }
}

fn facts(letter: &Letter, visit: &Visit) -> Markup {
    let summary = &letter.stored.summary;
    html! {
        dl class="facts" {
            dt { "Event" } dd { @match &summary.event_id {
                Some(event) => { a href=(super::event::address(event)) { code { (event) } } " (its whole story)" }
                None => { "no id: kept at least once" }
            } }
            @if let Some(entity) = &summary.aggregate_id { dt { "Entity" } dd { (entity) } }
            @if let Some(tenant) = &summary.tenant { dt { "Tenant" } dd { (tenant) } }
            dt { "Queue" } dd { code { (summary.queue) } }
            dt { "Reason" } dd { (summary.reason) @if let Some(class) = &summary.error_class { " (" (class) ")" } }
            dt { "Attempts" } dd { (summary.attempts) @if summary.replays > 0 { ", and replayed " (summary.replays) " times before" } }
            dt { "First failed" } dd { (time(summary.first_failed_at)) }
            dt { "Given up" } dd { (time(summary.dead_at)) " (" (ago(summary.dead_at, visit.now)) ")" }
            @if let Some(by) = &summary.replaced_by { dt { "Replaced by" } dd { a href=(super::event::address(by)) { code { (by) } } } }
            @if let Some(error) = &summary.replay_error { dt { "Replay failed" } dd { (error) "; it is open again" } }
            @if let Some(operation) = summary.operation_id { dt { "Resolved by" } dd { a href={ "/dashboard/operations/" (operation) } { "operation " (operation) } } }
        }
    }
}

fn what_now(letter: &Letter) -> Markup {
    let summary = &letter.stored.summary;
    let plan = |kind: &str| {
        Search::default().with("ids", Some(summary.id)).with("kind", Some(kind)).at("/dashboard/plan")
    };
    html! {
        @if summary.status == LetterStatus::Open {
            div class="row" {
                a class="button main" href=(plan("replay_letters")) { "Plan a replay" }
                a class="button danger" href=(plan("discard_letters")) { "Plan to discard" }
            }
        }
    }
}

fn editor(letter: &Letter, visit: &Visit) -> Markup {
    let Ok(text) = std::str::from_utf8(&letter.editable) else {
        return html! { p class="quiet" { "The payload is not text; " code { "postrider dlq edit --data @FILE" } " replaces it." } };
    };
    let to = format!("/dashboard/letters/{}/preview", letter.stored.summary.id);
    html! {
        details {
            summary { "Correct it and send it as a new event" }
            (form(visit, &to, "stack", html! {
                label class="field" { span { "New payload" } textarea name="payload" spellcheck="false" { "\n" (text) } }
                div class="row" { (button(visit, Action::Edit, "main", "Plan the correction")) }
            }))
        }
    }
}

fn log(entries: &[LogEntry]) -> Markup {
    html! {
        @if !entries.is_empty() {
            section class="card" {
                h2 { "What was done about it" }
                ul class="story" { @for entry in entries { li {
                    div class="head" { span class="what" { (entry.action) } span class="quiet" { "by " (entry.actor) } (time(entry.at)) }
                    @if let Some(reason) = &entry.reason { p class="quiet" { (short(reason, 300)) } }
                } } }
            }
        }
    }
}
