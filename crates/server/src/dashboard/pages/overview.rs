//! The overview: whether everything flows, how fast, and what needs somebody. From here it is two clicks to why something was not done.

use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use postrider::settlement::DeadReason;
use postrider::store::LetterGroup;

use super::super::parts::{ago, empty, number, pill, rate, short, span, state};
use super::super::{chart, frame};
use super::{Here, Who};
use crate::desk::pulse::{Beat, Moment};

/// Groups that are shown here; the rest is on their own page.
const SHOWN: usize = 6;
/// An event that could have been published for longer than so many seconds means that nobody keeps up; health says the same.
const LATE: i64 = 60;

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

/// How it goes, in one sentence: what stands in the way of events now, before what is left of those that failed.
fn standing(moment: &Moment, now: &Beat) -> (&'static str, String, String) {
    let away = |part: &str| now.health.get(part).is_some_and(|state| *state == "unavailable");
    let in_state =
        |state: &'static str| moment.consumers.iter().filter(move |consumer| consumer.state == state);
    let late = now.oldest_due.map(|at| now.at.duration_since(at).as_secs()).filter(|waited| *waited > LATE);
    if away("store") {
        let more = "Nothing can be committed or applied until it is back; nothing is lost.";
        return ("bad", "The database is away".to_owned(), more.to_owned());
    }
    if away("broker") {
        let more = "Events are committed and wait in the outbox; they go out by themselves.";
        return ("bad", "The broker is away".to_owned(), more.to_owned());
    }
    // Behind a parked key events wait for somebody, not for a relay.
    if let Some(waited) = late.filter(|_| now.parked_keys == 0) {
        let what = format!("Events have waited for {} to be published", span(waited));
        let more = "No relay runs, or it does not keep up; the outbox page says what waits. Nothing is lost.";
        return ("bad", what, more.to_owned());
    }
    let tripped: Vec<&str> = in_state("tripped").map(|consumer| consumer.name.as_str()).collect();
    if let Some(first) = tripped.first() {
        let what = match tripped.len() {
            1 => format!("{first} has stopped taking events"),
            2..=3 => format!("{} have stopped taking events", tripped.join(", ")),
            many => format!("{first} and {} other consumers have stopped taking events", many - 1),
        };
        let more = "Everything they tried failed, or their store was away. One event is tried now and then; the others wait in \
                    their queues, and no attempt is lost.";
        return ("bad", what, more.to_owned());
    }
    if now.open_dead_letters > 0 {
        let (letters, groups) = (now.open_dead_letters, now.failure_groups);
        let what = format!(
            "{} {} somebody",
            plural(letters, "event", "events"),
            if letters == 1 { "needs" } else { "need" }
        );
        let reasons = plural(groups as u64, "reason", "reasons");
        let more = format!("They could not be handled, for {reasons}. Each is kept and can be sent again.");
        return ("warn", what, more);
    }
    if now.parked_keys > 0 {
        let stand = if now.parked_keys == 1 { "stands" } else { "stand" };
        let what = format!("{} {stand} still", plural(now.parked_keys, "ordering key", "ordering keys"));
        let more = "An event at their head cannot be published; the outbox page says why.";
        return ("warn", what, more.to_owned());
    }
    if now.dead_in_outbox > 0 {
        let what = format!("{} not be published", plural(now.dead_in_outbox, "event could", "events could"));
        let more = "The broker refused them as often as they may be tried; the outbox page says why, and lets them go again.";
        return ("warn", what, more.to_owned());
    }
    let paused = in_state("paused").count() as u64;
    if paused > 0 {
        let what = format!("{} paused", plural(paused, "consumer is", "consumers are"));
        return ("warn", what, "Events wait in their queues until somebody resumes them.".to_owned());
    }
    let more = "Every event that was committed is published and handled, or on its way.";
    ("good", "Everything flows".to_owned(), more.to_owned())
}

fn sentence(moment: &Moment, now: &Beat) -> Markup {
    let (mood, what, more) = standing(moment, now);
    // Each part in its own colour: dead letters are no fault of a store that is well.
    let of = |state: &str| match state {
        "ok" => "good",
        "unavailable" => "bad",
        _ => "",
    };
    html! {
        div class={ "sentence " (mood) } role="status" {
            div { strong { (what) } p { (more) } }
            div class="pills" {
                @for (part, state) in &now.health { (pill(of(state), &format!("{part} {state}"))) }
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
                span {
                    @if is_unroutable(&group.reason) { "No queue wanted " b { (what) } }
                    @else { b { (who) } " could not handle " b { (what) } }
                }
                span class="error" { (short(&group.error, 160)) }
            }
            span class="when" { (chart::bars(&group.hours, "Deaths by hour, the last day")) (ago(group.last_at, now)) }
        }
    }
}

/// What failed, in a line.
pub(in crate::dashboard) fn headline(reason: &str, who: &str, what: &str) -> String {
    if is_unroutable(reason) {
        format!("No queue wanted {what}")
    } else {
        format!("{who} could not handle {what}")
    }
}

fn is_unroutable(reason: &str) -> bool {
    reason == DeadReason::Unroutable.as_str()
}

fn consumers(moment: &Moment) -> Markup {
    let most = moment.consumers.iter().filter_map(|consumer| consumer.ready).max().unwrap_or(0).max(1);
    // Who does not work comes first, then who has most to do.
    let mut shown: Vec<_> = moment.consumers.iter().collect();
    shown.sort_by_key(|consumer| (consumer.state == "active", std::cmp::Reverse(consumer.ready)));
    html! {
        section class="card flush" {
            header { h2 { "Consumers" } a class="more" href="/dashboard/consumers" { "All" } }
            @if moment.consumers.is_empty() {
                (empty("None has started here", "those that start on this store are listed by themselves"))
            } @else {
                table { tbody { @for consumer in shown.iter().take(8) { tr {
                    td { (consumer.name) @if consumer.state != "active" { " " (state(consumer.state)) } }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desk::consumers::ConsumerRow;

    #[test]
    fn what_nobody_wanted_was_not_handled_badly() {
        assert_eq!(headline("unroutable", "shop.events.unroutable", "a.b"), "No queue wanted a.b");
        assert_eq!(headline("rejected", "mail", "a.b"), "mail could not handle a.b");
    }

    fn beat() -> Beat {
        Beat::still("2026-01-01T00:02:00Z".parse().unwrap(), [("store", "ok"), ("broker", "ok")].into())
    }

    fn consumer(state: &'static str) -> ConsumerRow {
        ConsumerRow {
            name: "email".to_owned(),
            queue: "email".to_owned(),
            state,
            pause: None,
            ordered: false,
            ready: None,
            waiting: None,
            in_flight: None,
            settled_per_second: None,
            held: 0,
            parked_keys: 0,
        }
    }

    #[test]
    fn everything_flows_only_when_nothing_stands_in_the_way() {
        let with = |state: &'static str| Moment { consumers: vec![consumer(state)], ..Moment::default() };
        let told = |moment: &Moment, now: &Beat| standing(moment, now).1;
        assert_eq!(told(&with("active"), &beat()), "Everything flows");
        assert_eq!(told(&with("paused"), &beat()), "1 consumer is paused");
        assert_eq!(told(&with("tripped"), &beat()), "email has stopped taking events");
        let dead = Beat { dead_in_outbox: 2, ..beat() };
        assert_eq!(told(&with("active"), &dead), "2 events could not be published");
        let late = Beat { oldest_due: Some("2026-01-01T00:00:00Z".parse().unwrap()), ..beat() };
        assert_eq!(told(&with("active"), &late), "Events have waited for 2 min to be published");
        let letters = Beat { open_dead_letters: 1, failure_groups: 1, ..beat() };
        assert_eq!(told(&with("active"), &letters), "1 event needs somebody");
        // What stands in the way now goes before what is left of yesterday.
        assert_eq!(told(&with("tripped"), &letters), "email has stopped taking events");
        let parked = Beat { parked_keys: 1, ..late };
        assert_eq!(told(&with("active"), &parked), "1 ordering key stands still");
    }
}
