//! Bounded text: the newtypes for ids and names all refuse what no server could carry.

/// Why a text cannot be an id or a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidText {
    /// Nothing was given.
    #[error("{what} is empty; give it at least one character")]
    Empty {
        /// What the text was to be.
        what: &'static str,
    },
    /// More bytes than the limit.
    #[error("{what} has {len} bytes, more than the {max} it may have: {start}…")]
    TooLong {
        /// What the text was to be.
        what: &'static str,
        /// Its length in bytes.
        len: usize,
        /// The most it may have.
        max: usize,
        /// How it begins, so that a person can find it.
        start: String,
    },
    /// A NUL byte, which PostgreSQL cannot store as text.
    #[error("{what} contains a NUL byte, which cannot be stored; remove it")]
    Nul {
        /// What the text was to be.
        what: &'static str,
    },
    /// The text breaks a rule of its own kind.
    #[error("{what} {text:?} {rule}")]
    Rule {
        /// What the text was to be.
        what: &'static str,
        /// The text itself.
        text: String,
        /// What it should have been.
        rule: &'static str,
    },
}

pub(crate) fn check(what: &'static str, text: &str, min: usize, max: usize) -> Result<(), InvalidText> {
    if text.len() < min {
        return Err(InvalidText::Empty { what });
    }
    if text.len() > max {
        let start = text.chars().take(32).collect();
        return Err(InvalidText::TooLong { what, len: text.len(), max, start });
    }
    if text.contains('\0') {
        return Err(InvalidText::Nul { what });
    }
    Ok(())
}

/// Defines a newtype over shared text, checked when it is made.
macro_rules! text_newtype {
    ($(#[$doc:meta])* $name:ident, $what:literal, $min:literal..=$max:literal $(, rule $rule:path)?) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            /// Checks the text and takes it.
            pub fn new(text: impl AsRef<str>) -> Result<Self, $crate::text::InvalidText> {
                let text = text.as_ref();
                $crate::text::check($what, text, $min, $max)?;
                $($rule($what, text)?;)?
                Ok(Self(text.into()))
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::text::InvalidText;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = $crate::text::InvalidText;
            fn try_from(text: String) -> Result<Self, Self::Error> {
                Self::new(text)
            }
        }

        impl TryFrom<&str> for $name {
            type Error = $crate::text::InvalidText;
            fn try_from(text: &str) -> Result<Self, Self::Error> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.as_ref().to_owned()
            }
        }
    };
}
pub(crate) use text_newtype;
