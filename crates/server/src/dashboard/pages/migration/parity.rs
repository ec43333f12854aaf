//! What a comparison of both buses found, and the one that runs.

use maud::{Markup, html};
use postrider::migration::{Difference, Parity, Side, Standing};
use postrider::store::{Operation, OperationKind, OperationState};

use super::super::super::parts::{ago, empty, number, pill, table};
use super::super::super::visit::Visit;

/// The last comparison, and the one that runs.
pub(super) fn proof(standing: &Standing, errand: Option<&Operation>, visit: &Visit) -> Markup {
    html! {
        section class="card flush" id="parity" {
            header {
                h2 { "Parity" }
                @match &standing.parity {
                    None => (pill("", "never compared")),
                    Some(_) if standing.is_parity_outdated() => (pill("warn", "of an earlier phase")),
                    Some(parity) if parity.holds => (pill("good", "parity holds")),
                    Some(_) => (pill("bad", "parity does not hold")),
                }
            }
            @if let Some(errand) = errand { (under_way(errand)) }
            @match &standing.parity {
                None => (empty("Both buses were never compared", "a comparison taps both and looks at every event that is published meanwhile")),
                Some(parity) => (report(parity, visit)),
            }
        }
    }
}

fn under_way(errand: &Operation) -> Markup {
    let what =
        if errand.kind == OperationKind::CompareBuses { "A comparison" } else { "Removing the old bus" };
    let link = html! { a href={ "/dashboard/operations/" (errand.id) } { "the operation" } };
    html! {
        @match errand.state {
            OperationState::Planned => p class="note inset" role="status" { (what) " waits for a process that relays: " (link) "." },
            OperationState::Running => p class="note warn inset" role="status" { (what) " is under way: " (link) ". Publish something meanwhile: nothing compared is nothing proven." },
            OperationState::Failed => p class="note bad inset" role="alert" { (what) " was refused or failed, and nothing was changed: " (errand.error.as_deref().unwrap_or("its operation says why")) " (" (link) ")" },
            OperationState::Done | OperationState::Cancelled => {},
        }
    }
}

fn report(parity: &Parity, visit: &Visit) -> Markup {
    let count = |count: u64| {
        if count == 0 {
            html! { "0" }
        } else {
            pill("bad", &number(count))
        }
    };
    let rows: Vec<Markup> = parity.differences.iter().map(difference).collect();
    html! {
        dl class="facts inset" {
            dt { "Compared" } dd { (number(parity.compared)) " events, " (ago(parity.at, visit.now)) }
            dt { "Missing" } dd { (count(parity.missing)) }
            dt { "Extra" } dd { (count(parity.extra)) }
            dt { "Different" } dd { (count(parity.different)) }
            dt { "Messages" } dd { (number(parity.new_messages)) " on the new bus, " (number(parity.legacy_messages)) " on the old one" @if parity.repeated > 0 { ", " (number(parity.repeated)) " of them repeats, which at least once allows" } }
        }
        @if let Some(note) = &parity.note { p class="note warn inset" { (note) } }
        @if !rows.is_empty() { (table(&["Event", "What", "Where", "Why"], &rows, ("", ""))) }
    }
}

fn difference(difference: &Difference) -> Markup {
    let bus = |side: &Side| match side {
        Side::New => "new bus",
        Side::Legacy => "old bus",
    };
    let event = |id: &str| html! { a href=(super::super::event::address(id)) { code { (id) } } };
    let (which, what, side, why) = match difference {
        Difference::Missing { side, event_id, error } => (
            event(event_id),
            "missing",
            side,
            html! { (error.as_deref().unwrap_or("it did not arrive in time")) },
        ),
        Difference::Extra { side, event_id } => (
            event_id.as_deref().map_or_else(|| html! { "a message without an id" }, event),
            "extra",
            side,
            html! { "nobody committed it: somebody else publishes there" },
        ),
        Difference::Different { side, event_id, expected, found } => (
            event(event_id),
            "different",
            side,
            html! { "its body is " code { (found) } " and should be " code { (expected) } },
        ),
    };
    html! { tr { td class="id" { (which) } td { (pill("bad", what)) } td { (bus(side)) } td { (why) } } }
}
