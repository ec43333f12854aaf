//! The correction of one dead letter: what would change and where it would go, before anything is sent.

use axum::extract::{Extension, Path, State};
use axum::response::Redirect;
use maud::{Markup, html};
use postrider::store::{LetterFilter, LetterId, LetterStatus};

use super::super::actions::{Action, button, form, reason_field};
use super::super::visit::Visit;
use super::super::{Done, Page, frame};
use super::letter::find;
use super::plan::letters;
use super::{Here, Who};
use crate::api::{Code, Problem};
use crate::desk::operations::{Asked, AskedKind, Drawn};
use crate::desk::payload;

/// A plan, as for the correction of many. It changes nothing; the button below it does.
pub(in crate::dashboard) async fn preview(
    State(dashboard): Here,
    Extension(visit): Who,
    Path(id): Path<LetterId>,
) -> Page {
    visit.may(Action::Edit)?;
    let letter = find(&dashboard, &visit, id).await?;
    let summary = &letter.stored.summary;
    if summary.status != LetterStatus::Open {
        let told = format!("dead letter {id} is {} already; nothing was changed", summary.status.as_str());
        return Err(Problem::new(Code::Conflict, told).into());
    }
    let new = typed(&visit);
    let filter = LetterFilter { ids: vec![id], ..LetterFilter::open() };
    // Where it goes and whether it was applied is what a replay of it would find.
    let planned = dashboard.front.desk.plan(&Asked::of_letters(AskedKind::ReplayLetters, filter)).await?;
    let (before, after) = (payload::for_people(&letter.editable), payload::for_people(new.as_bytes()));
    let is_json = |text: &str| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
    let no_json = std::str::from_utf8(&letter.editable).is_ok_and(is_json) && !is_json(&new);
    let title = "Plan: correct";
    Ok(frame::page(
        &visit,
        title,
        html! {
            p class="crumbs" { a href={ "/dashboard/letters/" (id) } { "Letter " (id) } " / Correction" }
            (frame::top(title, "It is sent as a new event, which names the one it replaces.", html! {}))
            section class="card" {
                h2 { "What would happen" }
                @if let Drawn::Letters(plan) = &planned.plan { (letters(plan, AskedKind::EditLetters)) }
                @if before == after { p class="note warn" { "The payload is as it was. To send it as it is, plan a replay: it keeps its id." } }
                @if no_json { p class="note bad" { "The payload was JSON, and is none any more." } }
                h3 { "What changes" }
                pre { @for line in changes(&before, &after) { (line) "\n" } }
                p class="quiet" { "Nothing was changed so far." }
            }
            (go(&visit, id, &new))
        },
    ))
}

fn go(visit: &Visit, id: LetterId, new: &str) -> Markup {
    html! {
        section class="card" {
            h2 { "Do it" }
            (form(visit, &format!("/dashboard/letters/{id}/edit"), "stack", html! {
                input type="hidden" name="payload" value=(new);
                (reason_field("what was wrong with it"))
                div class="row" { (button(visit, Action::Edit, "main", "Send the corrected event")) }
            }))
        }
    }
}

/// Sends a corrected event in its place.
pub(in crate::dashboard) async fn edit(
    State(dashboard): Here,
    Extension(visit): Who,
    Path(id): Path<LetterId>,
) -> Done {
    visit.may(Action::Edit)?;
    find(&dashboard, &visit, id).await?;
    let reason = visit.reason()?;
    let new = dashboard.front.desk.edit(id, typed(&visit).into(), &visit.actor(), Some(reason)).await?;
    Ok(Redirect::to(&super::event::address(new.as_str())))
}

/// What was typed. A browser sends every line end as two characters.
fn typed(visit: &Visit) -> String {
    visit.fields.get("payload").cloned().unwrap_or_default().replace("\r\n", "\n")
}

/// The lines of both, with a sign before each that is in one alone. What is equal at the beginning and at the end stands once.
fn changes(before: &str, after: &str) -> Vec<String> {
    let (old, new): (Vec<_>, Vec<_>) = (before.lines().collect(), after.lines().collect());
    let head = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let (old_rest, new_rest) = (&old[head..], &new[head..]);
    let tail = old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(|(old, new)| old == new).count();
    let marked = |sign: char, lines: &[&str]| -> Vec<String> {
        lines.iter().map(|line| format!("{sign} {line}")).collect()
    };
    let mut lines = marked(' ', &old[..head]);
    lines.extend(marked('-', &old_rest[..old_rest.len() - tail]));
    lines.extend(marked('+', &new_rest[..new_rest.len() - tail]));
    lines.extend(marked(' ', &old[old.len() - tail..]));
    lines
}

#[cfg(test)]
mod tests {
    use super::changes;

    #[test]
    fn what_changes_is_marked_and_the_rest_stands_once() {
        assert_eq!(
            changes("{\n a\n b\n}", "{\n a\n c\n d\n}"),
            ["  {", "   a", "-  b", "+  c", "+  d", "  }"]
        );
        assert_eq!(changes("a\na", "a"), ["  a", "- a"]);
        assert_eq!(changes("", "a"), ["+ a"]);
        assert_eq!(changes("a", "a"), ["  a"]);
    }
}
