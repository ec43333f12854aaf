//! Queues and consumers: what waits for each, how fast it goes; paused and resumed, and the keys it holds.

use axum::extract::{Extension, Path, State};
use axum::response::Redirect;
use jiff::Timestamp;
use maud::{Markup, html};
use postrider::store::HeldKey;
use postrider::topology::ConsumerName;

use super::super::actions::{Action, button, form, short_reason};
use super::super::parts::{ago, number, rate, segment, short, span, state, table};
use super::super::visit::Visit;
use super::super::{Done, Page, chart, frame};
use super::{Here, Who};
use crate::desk::consumers::{ConsumerRow, is_parked};

pub(in crate::dashboard) async fn list(State(dashboard): Here, Extension(visit): Who) -> Page {
    visit.sees_all()?;
    let desk = &dashboard.front.desk;
    let (consumers, held) = (desk.consumers_closely().await?, desk.held(None).await?);
    let moment = dashboard.front.pulse.fresh().await;
    let most = consumers.iter().filter_map(|consumer| consumer.ready).max().unwrap_or(0).max(1);
    let speed = |name: &str| moment.rates.get(name).copied();
    let rows: Vec<Markup> =
        consumers.iter().map(|consumer| row(consumer, most, speed(&consumer.name), &visit)).collect();
    let header =
        ["Consumer", "Queue", "State", "#Waiting", "#In flight", "#In retry", "#Held", "#Rate", "Control"];
    let nothing = ("No consumer has started here", "those that start on this store are listed by themselves");
    Ok(frame::page(
        &visit,
        "Queues and consumers",
        html! {
            (frame::top("Queues and consumers", "A pause is obeyed wherever the consumer runs, within a second or so. What is in hand is finished; the rest waits.", html! {}))
            section class="card flush" id="consumers" data-refresh="5000" { (table(&header, &rows, nothing)) }
            section class="card flush" {
                header { h2 { "Keys that are held" } }
                (keys(&held, &visit))
            }
        },
    ))
}

fn row(consumer: &ConsumerRow, most: u64, speed: Option<f64>, visit: &Visit) -> Markup {
    let count = |count: Option<u64>| count.map_or_else(|| "?".to_owned(), number);
    html! { tr {
        td { b { (consumer.name) } @if consumer.ordered { div class="quiet" { "in order" } } }
        td { code { (consumer.queue) } }
        td { (state(consumer.state)) @if let Some(pause) = &consumer.pause {
            div class="quiet" { "by " (pause.by) ", " (ago(pause.since, visit.now)) @if !pause.reason.is_empty() { ": " (pause.reason) } }
        } }
        td class="n" { (count(consumer.ready)) (chart::meter(consumer.ready.unwrap_or(0), most, false)) }
        td class="n" { @match consumer.in_flight {
            Some(in_flight) => (number(in_flight)),
            None => span class="quiet" title="it runs in other processes, and RabbitMQ's management API does not say" { "–" },
        } }
        td class="n" { (count(consumer.waiting)) }
        td class="n" { (number(consumer.held)) }
        td class="n" { @match (speed, consumer.settled_per_second) {
            (Some(speed), _) => { span title="applied here" { (rate(speed)) "/s" } }
            (None, Some(speed)) => { span title="settled, wherever it runs, by RabbitMQ's statistics" { (rate(speed)) "/s" } }
            (None, None) => { span class="quiet" title="by consumers of other processes, if at all" { "–" } }
        } }
        td { (control(consumer, visit)) }
    } }
}

fn control(consumer: &ConsumerRow, visit: &Visit) -> Markup {
    let to = |what: &str| format!("/dashboard/consumers/{}/{what}", segment(&consumer.name));
    html! {
        @if consumer.pause.is_some() {
            (form(visit, &to("resume"), "row", html! { (short_reason()) (button(visit, Action::Control, "small main", "Resume")) }))
        } @else {
            (form(visit, &to("pause"), "row", html! {
                (short_reason())
                (button(visit, Action::Control, "small", "Pause"))
            }))
        }
    }
}

fn keys(held: &[HeldKey], visit: &Visit) -> Markup {
    let row = |key: &HeldKey| {
        html! { tr {
            td { (key.consumer) }
            td { code { (key.key) } }
            td { (state(key.state.as_str())) }
            td class="n" { (number(key.events)) }
            td { a href=(super::event::address(key.head.as_str())) { code { (key.head) } } }
            td class="short mono" { (short(&key.error, 120)) }
            td { @if is_parked(key) {
                (form(visit, &format!("/dashboard/consumers/{}/release", segment(key.consumer.as_str())), "row", html! {
                    input type="hidden" name="key" value=(key.key);
                    (short_reason())
                    (button(visit, Action::Control, "small", "Go on without it"))
                }))
            } @else { span class="quiet" { (due(key, visit.now)) } } }
        } }
    };
    let rows: Vec<Markup> = held.iter().map(row).collect();
    let header = ["Consumer", "Ordering key", "State", "#Events", "Head", "Why", ""];
    table(&header, &rows, ("None", "no event waits for an earlier one of its key"))
}

/// When the head of a key is tried again. Of one that is late nobody has taken care yet: nothing that runs its consumer is there, or free.
fn due(key: &HeldKey, now: Timestamp) -> String {
    match key.due_at.duration_since(now).as_secs() {
        left @ 1.. => format!("tried again in {}", span(left)),
        late => format!("to be tried again since {}", span(-late)),
    }
}

pub(in crate::dashboard) async fn pause(
    State(dashboard): Here,
    Extension(visit): Who,
    Path(name): Path<ConsumerName>,
) -> Done {
    visit.may(Action::Control)?;
    dashboard.front.desk.pause(&name, &visit.actor(), visit.reason()?).await?;
    Ok(Redirect::to("/dashboard/consumers"))
}

pub(in crate::dashboard) async fn resume(
    State(dashboard): Here,
    Extension(visit): Who,
    Path(name): Path<ConsumerName>,
) -> Done {
    visit.may(Action::Control)?;
    dashboard.front.desk.resume(&name, &visit.actor(), visit.reason()?).await?;
    Ok(Redirect::to("/dashboard/consumers"))
}

pub(in crate::dashboard) async fn release(
    State(dashboard): Here,
    Extension(visit): Who,
    Path(name): Path<ConsumerName>,
) -> Done {
    visit.may(Action::Control)?;
    let key = visit.needs("key")?;
    dashboard.front.desk.release(&name, &key, &visit.actor(), visit.reason()?).await?;
    Ok(Redirect::to("/dashboard/consumers"))
}
