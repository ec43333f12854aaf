//! What can be done on pages, and who may do it. The same answer disables a button and refuses its form.

use maud::{Markup, html};
use postrider::store::TokenRole;

use super::visit::Visit;
use crate::api::Tenants;

/// Something that changes something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Dead letters or events are sent again, discarded, or their operation is cancelled.
    Operate,
    /// A dead letter is corrected.
    Edit,
    /// A key of the outbox goes on.
    Unpark,
    /// A consumer is paused, resumed, or lets a key go.
    Control,
    /// An endpoint is tried.
    TestPush,
    /// An endpoint gets a new secret.
    RotateSecret,
    /// Both buses of a migration are compared.
    Compare,
    /// A migration takes a step.
    Migrate,
    /// Tokens are made and taken back.
    ManageTokens,
}

impl Action {
    /// The least role, and whether a token for one tenant will do.
    pub(super) fn needs(self) -> (TokenRole, Tenants) {
        match self {
            Self::Operate | Self::Edit => (TokenRole::Operator, Tenants::Own),
            Self::Unpark | Self::Control | Self::TestPush | Self::Compare => {
                (TokenRole::Operator, Tenants::All)
            }
            Self::RotateSecret | Self::Migrate | Self::ManageTokens => (TokenRole::Admin, Tenants::All),
        }
    }
}

/// A form that proves where it comes from.
#[expect(clippy::needless_pass_by_value, reason = "it is made on the spot")]
pub(super) fn form(visit: &Visit, to: &str, class: &str, inside: Markup) -> Markup {
    html! {
        form method="post" action=(to) class=(class) {
            input type="hidden" name="proof" value=(visit.proof);
            (inside)
        }
    }
}

/// A button for an action, with the reason beside it where it may not be pressed.
pub(super) fn button(visit: &Visit, action: Action, class: &str, label: &str) -> Markup {
    named_button(visit, action, class, label, None)
}

/// The same, which says which of several it is.
pub(super) fn named_button(
    visit: &Visit,
    action: Action,
    class: &str,
    label: &str,
    named: Option<(&str, &str)>,
) -> Markup {
    let refused = visit.may(action).err();
    html! {
        button type="submit" class={ "button " (class) } disabled[refused.is_some()]
            name=[named.map(|(name, _)| name)] value=[named.map(|(_, value)| value)] { (label) }
        @if let Some(problem) = refused {
            span class="why-not" { "Not allowed: " (problem.detail()) }
        }
    }
}

/// Where one says why.
pub(super) fn reason_field(hint: &str) -> Markup {
    html! {
        label class="field" {
            span { "Reason" }
            input type="text" name="reason" required maxlength="500" placeholder=(hint) autocomplete="off";
        }
    }
}

/// The same in the row of a table.
pub(super) fn short_reason() -> Markup {
    html! { input type="text" name="reason" required maxlength="500" placeholder="why" aria-label="Reason" autocomplete="off"; }
}
