//! How the process ends. Scripts rely on these numbers.

use postrider::broker::{BrokerError, BrokerErrorKind};
use postrider::rabbitmq::ApplyError;
use postrider::rabbitmq::management::{ManagementError, ManagementErrorKind};
use postrider::store::{StoreError, StoreErrorKind};
use postrider_ledger::LedgerError;

use crate::config::ConfigError;

/// The exit codes, each with one meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done.
    Ok = 0,
    /// Something went wrong.
    Error = 1,
    /// The command line, the input or the configuration cannot be understood.
    Usage = 2,
    /// Changes, drift, unhealthy, or a verification that does not hold.
    Unhealthy = 3,
    /// Not allowed.
    Denied = 4,
    /// Somebody said no at the prompt.
    Declined = 5,
    /// Some of it is done, some is not.
    Partly = 6,
    /// Ctrl-C.
    Interrupted = 130,
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// What the person at the keyboard got wrong, and what to write instead.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// Shorthand: an error of the person at the keyboard.
pub(crate) fn usage(text: impl Into<String>) -> anyhow::Error {
    UsageError(text.into()).into()
}

/// Shorthand: what was named is not here. An error and no mistake of usage, in every command: a script asks for what may be gone.
pub(crate) fn absent(text: impl Into<String>) -> anyhow::Error {
    anyhow::Error::msg(text.into())
}

/// An answer of no, at a prompt or for want of one.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Declined(pub(crate) String);

/// The exit code an error stands for, by the first of its causes that has one.
pub(crate) fn of(error: &anyhow::Error) -> Exit {
    error.chain().find_map(of_one).unwrap_or(Exit::Error)
}

fn of_one(cause: &(dyn std::error::Error + 'static)) -> Option<Exit> {
    if cause.is::<UsageError>() || cause.is::<ConfigError>() || cause.is::<postrider::InvalidText>() {
        return Some(Exit::Usage);
    }
    if cause.is::<Declined>() {
        return Some(Exit::Declined);
    }
    if let Some(error) = cause.downcast_ref::<ApplyError>() {
        return (error.done > 0).then_some(Exit::Partly);
    }
    let management = cause.downcast_ref::<ManagementError>().map(|error| {
        matches!(error.kind, ManagementErrorKind::WrongPassword | ManagementErrorKind::MissingRight)
    });
    match cause.downcast_ref::<LedgerError>() {
        Some(LedgerError::Invalid(_)) => return Some(Exit::Usage),
        Some(LedgerError::Store(error)) => return of_one(error),
        _ => {}
    }
    let store = cause.downcast_ref::<StoreError>().map(|error| error.kind == StoreErrorKind::Denied);
    let broker = cause.downcast_ref::<BrokerError>().map(|error| error.kind == BrokerErrorKind::Denied);
    management.or(store).or(broker).map(|denied| if denied { Exit::Denied } else { Exit::Error })
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn the_cause_decides_however_deep_it_is() {
        let denied = StoreError::new(StoreErrorKind::Denied, "no such user");
        let wrapped =
            Err::<(), _>(denied).context("cannot open the store").context("cannot publish").unwrap_err();
        assert_eq!(of(&wrapped), Exit::Denied);
        assert_eq!(of(&usage("what?")), Exit::Usage);
        assert_eq!(of(&anyhow::anyhow!("broken")), Exit::Error);
    }
}
