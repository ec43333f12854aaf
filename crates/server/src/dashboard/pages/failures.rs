//! Failures: what failed for the same reason, and the dead letters behind each reason.

use axum::extract::{Extension, Path, State};
use maud::{Markup, html};
use postrider::store::{
    Cursor, GroupQuery, LetterFilter, LetterGroup, LetterQuery, LetterStatus, LetterSummary, Turn,
};

use super::super::parts::{ago, choice, empty, filter, letter_state, number, pager, short, table, time};
use super::super::search::Search;
use super::super::visit::Visit;
use super::super::{Page, chart, frame};
use super::overview::{failure, headline};
use super::{Here, Who};
use crate::api::{Code, Problem};
use crate::desk::letters::{read_place, write_place};

const PAGE: usize = 50;

pub(in crate::dashboard) async fn groups(
    State(dashboard): Here,
    Extension(visit): Who,
    search: Search,
) -> Page {
    let wanted = search.letters(&visit)?;
    let query = GroupQuery {
        filter: wanted,
        after: search.get("after").and_then(read_place),
        limit: PAGE,
        hours: 24,
        now: visit.now,
    };
    let page = dashboard.front.desk.groups(&query).await?;
    let next = page.next.as_ref().map(write_place);
    let letters = search.clone().with("after", None::<&str>).with("status", None::<&str>);
    Ok(frame::page(
        &visit,
        "Failures",
        html! {
            (frame::top("Failures", "Events that could not be handled, by reason. None of them is lost.",
                html! { a class="button" href=(letters.at("/dashboard/letters")) { "As single letters" } }))
            (filters("/dashboard/failures", &search, &[("", "Open"), ("all", "All there ever were")]))
            section class="card flush" {
                @if page.groups.is_empty() {
                    (empty("Nothing matches", "everything that was committed is handled, or on its way"))
                } @else {
                    ul class="failures" { @for group in &page.groups { li { (failure(group, visit.now)) } } }
                }
                (stopped(page.stopped_at))
                (pager("/dashboard/failures", &search, "after", next))
            }
        },
    ))
}

fn filters(path: &str, search: &Search, states: &[(&str, &str)]) -> Markup {
    html! {
        form method="get" action=(path) class="row" aria-label="Filter" {
            (filter(search, "consumer", "Consumer", "any"))
            (filter(search, "type", "Type", "shop.order.placed"))
            (filter(search, "aggregate", "Entity", "order-42"))
            (filter(search, "tenant", "Tenant", "any"))
            (filter(search, "text", "Text in error or body", ""))
            (filter(search, "since", "Since", "2d, or a time"))
            (choice(search, "status", "State", states))
            @if let Some(group) = search.get("group") { input type="hidden" name="group" value=(group); }
            button type="submit" class="button" { "Filter" }
            @if !search.is_empty() { a class="button" href=(path) { "Clear" } }
        }
    }
}

fn stopped(at: Option<jiff::Timestamp>) -> Markup {
    html! { @if let Some(at) = at {
        p class="note" { "The search stopped at " (time(at)) ", after 20 000 letters; there may be more beyond." }
    } }
}

/// One reason, with everything that died of it.
pub(in crate::dashboard) async fn group(
    State(dashboard): Here,
    Extension(visit): Who,
    Path(fingerprint): Path<String>,
    search: Search,
) -> Page {
    let desk = &dashboard.front.desk;
    let path = format!("/dashboard/failures/{fingerprint}");
    let of_group = Search::default().with("group", Some(&fingerprint));
    let mut wanted = of_group.letters(&visit)?;
    let query = GroupQuery {
        filter: LetterFilter { status: None, ..wanted.clone() },
        after: None,
        limit: 1,
        hours: 48,
        now: visit.now,
    };
    let found = desk.groups(&query).await?.groups.into_iter().next();
    let Some(group) = found else {
        return Err(Problem::new(Code::NotFound, "there is no such group of failures").into());
    };
    if search.get("status") == Some("all") {
        wanted.status = None;
    }
    let turn = search.read::<Cursor>("before")?.map_or(Turn::Newest, Turn::Before);
    let page = desk.letters(&LetterQuery { filter: wanted, turn, limit: PAGE }).await?;
    let who = group.consumer.as_deref().unwrap_or(&group.queue);
    let what = group.event_type.as_deref().unwrap_or("messages");
    let title = headline(&group.reason, who, what);
    Ok(frame::page(
        &visit,
        &title,
        html! {
            p class="crumbs" { a href="/dashboard/failures" { "Failures" } " / " (short(&title, 80)) }
            (frame::top(&title, &format!("{} open, {} in all", number(group.open), number(group.total)), html! {}))
            section class="card" {
                h2 { "Why" }
                pre class="error" { (group.error) }
                div class="columns" {
                    dl class="facts" {
                        dt { "Reason" } dd { (group.reason) }
                        @if let Some(class) = &group.error_class { dt { "Kind of error" } dd { (class) } }
                        dt { "Queue" } dd { code { (group.queue) } }
                        dt { "First" } dd { (time(group.first_at)) }
                        dt { "Last" } dd { (time(group.last_at)) " (" (ago(group.last_at, visit.now)) ")" }
                    }
                    div { p class="quiet" { "Deaths by hour, two days" } (chart::bars(&group.hours, "Deaths by hour, two days")) }
                }
                (what_now(&group, &of_group))
            }
            section class="card flush" {
                header {
                    h2 { "Events" }
                    @if search.get("status") == Some("all") { a class="more" href=(path) { "Open ones" } }
                    @else { a class="more" href={ (path) "?status=all" } { "All there ever were" } }
                }
                (letter_table(&page.letters, &visit))
                (stopped(page.stopped_at))
                (pager(&path, &search, "before", page.next.map(|place| place.to_string())))
            }
        },
    ))
}

/// What can be done about a group: a plan first, which changes nothing.
fn what_now(group: &LetterGroup, of_group: &Search) -> Markup {
    let plan = |kind: &str| of_group.clone().with("kind", Some(kind)).at("/dashboard/plan");
    html! {
        @if group.open > 0 {
            div class="row" {
                a class="button main" href=(plan("replay_letters")) { "Plan a replay" }
                a class="button danger" href=(plan("discard_letters")) { "Plan to discard" }
                span class="quiet" { "A plan shows what would happen and changes nothing." }
            }
            details {
                summary { "Correct all of them" }
                form class="stack" method="get" action="/dashboard/plan" {
                    input type="hidden" name="kind" value="edit_letters";
                    input type="hidden" name="group" value=(group.fingerprint);
                    label class="field wide" { span { "A JSON Merge Patch (an object) or a JSON Patch (a list of steps)" }
                        textarea name="correction" rows="4" required placeholder="{\"currency\": \"EUR\"}" {} }
                    div class="row" { button class="button" { "Plan a correction" } }
                }
            }
        } @else {
            p class="note good" { "All of them are resolved." }
        }
    }
}

/// Dead letters one by one.
pub(in crate::dashboard) async fn letters(
    State(dashboard): Here,
    Extension(visit): Who,
    search: Search,
) -> Page {
    let wanted = search.letters(&visit)?;
    let turn = search.read::<Cursor>("before")?.map_or(Turn::Newest, Turn::Before);
    let query = LetterQuery { filter: wanted.clone(), turn, limit: PAGE };
    let page = dashboard.front.desk.letters(&query).await?;
    let states: Vec<(&str, &str)> = [("", "Open")]
        .into_iter()
        .chain(LetterStatus::ALL.map(|status| (status.as_str(), status.as_str())).into_iter().skip(1))
        .chain([("all", "All")])
        .collect();
    let plan = Search::of_letters(&wanted).with("kind", Some("replay_letters")).at("/dashboard/plan");
    // A plan is about open ones, whatever is listed here.
    let may_plan = !search.is_empty() && wanted.status.is_none_or(|status| status == LetterStatus::Open);
    Ok(frame::page(
        &visit,
        "Dead letters",
        html! {
            p class="crumbs" { a href="/dashboard/failures" { "Failures" } " / Letters" }
            (frame::top("Dead letters", "One by one, the newest first.", html! {
                @if may_plan { a class="button main" href=(plan) { "Plan a replay of these" } }
            }))
            (filters("/dashboard/letters", &search, &states))
            section class="card flush" {
                (letter_table(&page.letters, &visit))
                (stopped(page.stopped_at))
                (pager("/dashboard/letters", &search, "before", page.next.map(|place| place.to_string())))
            }
        },
    ))
}

fn letter_table(letters: &[LetterSummary], visit: &Visit) -> Markup {
    let row = |letter: &LetterSummary| {
        html! { tr {
            td class="id" { a href={ "/dashboard/letters/" (letter.id) } { (letter.aggregate_id.as_deref().or(letter.event_id.as_deref()).unwrap_or("(no id)")) } }
            td { (letter.event_type.as_deref().unwrap_or("(no type)")) }
            td class="short mono" { (short(&letter.error, 120)) }
            td class="n" { (letter.attempts) @if letter.replays > 0 { " + " (letter.replays) " replays" } }
            td { (letter.tenant.as_deref().unwrap_or_default()) }
            td { (ago(letter.dead_at, visit.now)) }
            td { (letter_state(letter.status)) }
        } }
    };
    let rows: Vec<Markup> = letters.iter().map(row).collect();
    let header = ["Entity or event", "Type", "Error", "#Attempts", "Tenant", "Died", "State"];
    table(&header, &rows, ("No dead letter matches", "those that were resolved are under another state"))
}
