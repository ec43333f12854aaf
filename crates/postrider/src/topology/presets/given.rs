//! The parameters of a preset, as somebody gave them.

use std::time::Duration;

use super::{Preset, STRICT};
use crate::text::InvalidText;
use crate::topology::QueueKind;

/// Something a preset can be told.
#[derive(Debug, Clone, Copy)]
pub struct Parameter {
    /// `--set NAME=…`
    pub name: &'static str,
    /// What it is when nothing is said; empty if it must be said.
    pub default: &'static str,
    /// Whether it may be given more than once.
    pub repeatable: bool,
    /// What it means.
    pub what: &'static str,
}

/// Why there is no such layout. Nothing was declared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PresetError {
    /// No preset of this name.
    #[error("there is no preset {name:?}; there are {known}")]
    Unknown {
        /// The name that was given.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A parameter that the preset does not have.
    #[error("preset {preset} has no parameter {name:?}; it has {known}")]
    NoParameter {
        /// The preset.
        preset: &'static str,
        /// The parameter that was given.
        name: String,
        /// Those it has.
        known: String,
    },
    /// A parameter that must be given.
    #[error("preset {preset} needs {name}: {what}")]
    Missing {
        /// The preset.
        preset: &'static str,
        /// The parameter.
        name: &'static str,
        /// What it means.
        what: &'static str,
    },
    /// A value that cannot be used.
    #[error("{name}={value}: {problem}")]
    Malformed {
        /// The parameter.
        name: &'static str,
        /// The value that was given.
        value: String,
        /// What is wrong and what is allowed.
        problem: String,
    },
    /// A name made of the parameters is none.
    #[error(transparent)]
    Name(#[from] InvalidText),
}

/// The parameters of one preset, known to exist and to be given no more often than they may.
pub(super) struct Given<'a> {
    preset: &'a Preset,
    set: &'a [(String, String)],
    strict: bool,
}

impl<'a> Given<'a> {
    pub(super) fn new(preset: &'a Preset, set: &'a [(String, String)]) -> Result<Self, PresetError> {
        let mut given = Self { preset, set, strict: false };
        for (at, (name, value)) in set.iter().enumerate() {
            let Some(parameter) = given.parameters().find(|parameter| parameter.name == name) else {
                let known: Vec<_> = given.parameters().map(|parameter| parameter.name).collect();
                return Err(PresetError::NoParameter {
                    preset: preset.name,
                    name: name.clone(),
                    known: known.join(", "),
                });
            };
            if !parameter.repeatable && set[..at].iter().any(|(other, _)| other == name) {
                return Err(given.malformed(parameter.name, value, "it is given twice; give it once"));
            }
            if value.is_empty() {
                return Err(given.malformed(
                    parameter.name,
                    value,
                    "it is empty; give a value, or leave it out",
                ));
            }
        }
        given.strict = match given.text(STRICT.name)? {
            "true" => true,
            "false" => false,
            other => return Err(given.malformed(STRICT.name, other, "true or false")),
        };
        Ok(given)
    }

    fn parameters(&self) -> impl Iterator<Item = &'static Parameter> + use<> {
        self.preset.parameters.iter().chain(std::iter::once(&STRICT))
    }

    /// Whether only the document counts.
    pub(super) fn strict(&self) -> bool {
        self.strict
    }

    /// The value, or its default; what has no default must be given.
    pub(super) fn text(&self, name: &str) -> Result<&'a str, PresetError> {
        match self.all(name)?.as_slice() {
            [first, ..] => Ok(first),
            [] => Ok(""),
        }
    }

    /// Whether somebody set it.
    pub(super) fn is_set(&self, name: &str) -> bool {
        self.set.iter().any(|(other, _)| other == name)
    }

    /// Every value of a parameter that may be given more than once.
    pub(super) fn all(&self, name: &str) -> Result<Vec<&'a str>, PresetError> {
        let given: Vec<_> =
            self.set.iter().filter(|(other, _)| other == name).map(|(_, value)| value.as_str()).collect();
        if !given.is_empty() {
            return Ok(given);
        }
        match self.parameters().find(|parameter| parameter.name == name) {
            Some(parameter) if parameter.default.is_empty() => Err(PresetError::Missing {
                preset: self.preset.name,
                name: parameter.name,
                what: parameter.what,
            }),
            Some(parameter) => Ok(vec![parameter.default]),
            None => Ok(Vec::new()),
        }
    }

    /// The parts of a value that commas separate, without blanks around them.
    pub(super) fn list(&self, name: &'static str) -> Result<Vec<&'a str>, PresetError> {
        let value = self.text(name)?;
        let parts: Vec<_> = value.split(',').map(str::trim).collect();
        if parts.contains(&"") {
            return Err(self.malformed(name, value, "an entry is empty; separate entries by one comma"));
        }
        Ok(parts)
    }

    pub(super) fn millis(&self, name: &'static str) -> Result<Duration, PresetError> {
        let value = self.text(name)?;
        // What RabbitMQ takes for a TTL: an unsigned 32-bit number of milliseconds.
        match value.parse::<u32>() {
            Ok(millis) if millis > 0 => Ok(Duration::from_millis(millis.into())),
            _ => Err(self.malformed(name, value, "a whole number of milliseconds from 1 to 4294967295")),
        }
    }

    /// The kind of queues that was asked for, else the one that goes with the preset.
    pub(super) fn queue_kind(
        &self,
        name: &'static str,
        default: QueueKind,
    ) -> Result<QueueKind, PresetError> {
        if !self.is_set(name) {
            return Ok(default);
        }
        match self.text(name)? {
            "quorum" => Ok(QueueKind::Quorum),
            "classic" => Ok(QueueKind::Classic),
            "unsaid" => Ok(QueueKind::Unsaid),
            other => Err(self.malformed(name, other, "quorum, classic or unsaid (declared without a type)")),
        }
    }

    #[allow(clippy::unused_self, reason = "reads as a sentence where it is used")]
    pub(super) fn malformed(&self, name: &'static str, value: &str, problem: &str) -> PresetError {
        PresetError::Malformed { name, value: value.to_owned(), problem: problem.to_owned() }
    }
}
