//! The overview: whether everything flows, how fast, and what needs somebody. From here it is two clicks to why something was not done.

use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use postrider::store::LetterGroup;

use super::super::parts::{ago, empty, number, pill, rate, short, span, state};
use super::super::{chart, frame};
use super::{Here, Who};
use crate::desk::pulse::{Beat, Moment};

/// Groups that are shown here; the rest is on their own page.
const SHOWN: usize = 6;

pub(in crate::dashboard) async fn show(State(dashboard): Here, Extension(visit): Who) -> Response {
    // Who is for one tenant has nothing to look over.
    if visit.sees_all().is_err() {
        return Redirect::to("/dashboard/failures").into_response();
    }
    let moment = dashboard.front.pulse.fresh().await;
    let tools = html! {
        form method="get" action="/dashboard/events" class="row" role="search" {
            input type="search" name="q" id="find" placeholder="Find an event by id or order number" size="36"
                aria-label="Find an event";
        }
        span class="quiet" id="live-state" role="status" { "Live" }
        button type="button" class="button small" id="pause" aria-pressed="false" { "Pause" }
    };
    let content = html! {
        (frame::top("Overview", "", tools))
        div id="live" class="stack" { (live(&moment)) }
    };
    frame::page(&visit, "Overview", content).into_response()
}

/// The part that lives. It is the same for everybody, and has nothing that could be pressed.
pub(in crate::dashboard) fn live(moment: &Moment) -> Markup {
    let Some(now) = moment.now() else {
        return html! { (empty("Looking …", "the first figures are on their way")) };
    };
    html! {
        (sentence(moment, now))
        div class="tiles" {
            (tile(moment, "Committed", |beat| beat.committed_per_second, "to the outbox"))
            (tile(moment, "Published", |beat| beat.published_per_second, "confirmed by the broker"))
            (tile(moment, "Applied", |beat| beat.applied_per_second, "by consumers of this process"))
            (waiting(moment, now))
        }
        div class="columns" {
            section class="card flush" {
                header {
                    h2 { "Why things failed" }
                    a class="more" href="/dashboard/failures" { "All failures" }
                }
                (failures(&moment.groups, now))
            }
            div class="stack" { (consumers(moment)) (around(moment, now)) }
        }
    }
}

fn sentence(moment: &Moment, now: &Beat) -> Markup {
    let away = |part: &str| now.health.get(part).is_some_and(|state| *state == "unavailable");
    let paused = moment.consumers.iter().filter(|consumer| consumer.pause.is_some()).count();
    let (mood, what, more) = if away("store") {
        (
            "bad",
            "The database is away".to_owned(),
            "Nothing can be committed or applied until it is back; nothing is lost.".to_owned(),
        )
    } else if away("broker") {
        (
            "bad",
            "The broker is away".to_owned(),
            "Events are committed and wait in the outbox; they go out by themselves.".to_owned(),
        )
    } else if now.open_dead_letters > 0 {
        let (letters, groups) = (now.open_dead_letters, now.failure_groups);
        let what = format!(
            "{} {} somebody",
            plural(letters, "event", "events"),
            if letters == 1 { "needs" } else { "need" }
        );
        let reasons = plural(groups as u64, "reason", "reasons");
        (
            "warn",
            what,
            format!("They could not be handled, for {reasons}. Each is kept and can be sent again."),
        )
    } else if now.parked_keys > 0 {
        let what = format!("{} stand still", plural(now.parked_keys, "ordering key", "ordering keys"));
        ("warn", what, "An event at their head cannot be published; the outbox page says why.".to_owned())
    } else if paused > 0 {
        let what = format!("{} paused", plural(paused as u64, "consumer is", "consumers are"));
        ("warn", what, "Events wait in their queues until somebody resumes them.".to_owned())
    } else {
        (
            "good",
            "Everything flows".to_owned(),
            "Every event that was committed is published and handled, or on its way.".to_owned(),
        )
    };
    html! {
        div class={ "sentence " (mood) } role="status" {
            div { strong { (what) } p { (more) } }
            div class="pills" {
                @for (part, state) in &now.health { (pill("", &format!("{part} {state}"))) }
                (pill("", &format!("relay {}", now.relay)))
            }
        }
    }
}

fn plural(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", number(count), if count == 1 { one } else { many })
}

fn tile(moment: &Moment, name: &str, of: impl Fn(&Beat) -> f64, under: &str) -> Markup {
    let values: Vec<f64> = moment.beats.iter().map(&of).collect();
    let now = values.last().copied().unwrap_or(0.0);
    html! {
        section class="tile" {
            div class="name" { (name) }
            div class="figure" { (rate(now)) small { "a second" } }
            div class="under" { (under) }
            (chart::area(&values, &format!("{name} a second, lately")))
        }
    }
}

fn waiting(moment: &Moment, now: &Beat) -> Markup {
    #[expect(clippy::cast_precision_loss, reason = "a picture")]
    let values: Vec<f64> = moment.beats.iter().map(|beat| beat.due as f64).collect();
    let oldest = now.oldest_due.map(|at| now.at.duration_since(at).as_secs());
    html! {
        section class="tile" {
            div class="name" { "Waiting in the outbox" }
            div class="figure" { (number(now.due)) @if now.later > 0 { small { "+ " (number(now.later)) " later" } } }
            div class="under" {
                @match oldest { Some(seconds) => { "the oldest for " (span(seconds)) } None => { "nothing is late" } }
            }
            (chart::area(&values, "Waiting, lately"))
        }
    }
}

fn failures(groups: &[LetterGroup], now: &Beat) -> Markup {
    html! {
        @if groups.is_empty() {
            (empty("Nothing failed", "what cannot be handled shows here with its reason"))
        } @else {
            ul class="failures" { @for group in groups.iter().take(SHOWN) { li { (failure(group, now.at)) } } }
        }
    }
}

/// A group as a line that leads to it.
pub(in crate::dashboard) fn failure(group: &LetterGroup, now: jiff::Timestamp) -> Markup {
    let who = group.consumer.as_deref().unwrap_or(&group.queue);
    let what = group.event_type.as_deref().unwrap_or("a message that is no event");
    html! {
        a href={ "/dashboard/failures/" (group.fingerprint) } {
            span class="count" { (number(group.open)) small { "open" } }
            span class="what" {
                span { b { (who) } " could not handle " b { (what) } }
                span class="error" { (short(&group.error, 160)) }
            }
            span class="when" { (chart::bars(&group.hours, "Deaths by hour, the last day")) (ago(group.last_at, now)) }
        }
    }
}

fn consumers(moment: &Moment) -> Markup {
    let most = moment.consumers.iter().filter_map(|consumer| consumer.ready).max().unwrap_or(0).max(1);
    html! {
        section class="card flush" {
            header { h2 { "Consumers" } a class="more" href="/dashboard/consumers" { "All" } }
            @if moment.consumers.is_empty() {
                (empty("None has started here", "those that start on this store are listed by themselves"))
            } @else {
                table { tbody { @for consumer in moment.consumers.iter().take(8) { tr {
                    td { (consumer.name) @if consumer.pause.is_some() { " " (state("paused")) } }
                    td class="n quiet" { @if let Some(speed) = moment.rates.get(&consumer.name) { (rate(*speed)) "/s" } }
                    td class="n" { @match consumer.ready {
                        Some(0) => { span class="quiet" { "nothing waits" } }
                        Some(ready) => { (number(ready)) " waiting" (chart::meter(ready, most, false)) }
                        None => { span class="quiet" { "not known" } }
                    } }
                } } } }
            }
        }
    }
}

fn around(moment: &Moment, now: &Beat) -> Markup {
    html! {
        section class="card" {
            h2 { "Around it" }
            dl class="facts" {
                dt { "Topology" } dd { @match &moment.drift {
                    None => { "as it is configured" }
                    Some(Ok(0)) => { (pill("good", "no drift")) }
                    Some(Ok(count)) => { a href="/dashboard/topology" { (pill("warn", &plural(*count as u64, "difference", "differences"))) } }
                    Some(Err(why)) => { span class="quiet" { (short(why, 120)) } }
                } }
                dt { "Parked keys" } dd { @if now.parked_keys == 0 { "none" } @else {
                    a href="/dashboard/outbox" { (pill("warn", &number(now.parked_keys))) } } }
                dt { "Operations" } dd { @if now.running_operations == 0 { "none is running" } @else {
                    a href="/dashboard/operations" { (number(now.running_operations as u64)) " running" } } }
                dt { "Retries" } dd { (rate(now.retried_per_second)) " a second" }
            }
        }
    }
}
