//! Text that is never shown: passwords, tokens, and urls that may carry a password.

use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Deserializer, de::Error as _};

/// A secret setting. Empty means that it is not set. Prints as `[REDACTED]`, also in errors about it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Secret(SecretString);

impl Secret {
    /// A secret made of parts.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(SecretString::from(text.into()))
    }

    /// The text, if it is set. Hand it to a driver, never to a person.
    pub(crate) fn get(&self) -> Option<&str> {
        Some(self.0.expose_secret()).filter(|text| !text.is_empty())
    }

    /// For a port that takes secrets as `secrecy` has them.
    pub(crate) fn to_secret_string(&self) -> SecretString {
        self.0.clone()
    }
}

impl<'de> Deserialize<'de> for Secret {
    /// Says nothing of the value when it is not text: a password without quotes is a password still.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match toml::Value::deserialize(deserializer) {
            Ok(toml::Value::String(text)) => Ok(Self::new(text)),
            _ => Err(D::Error::custom("must be text in quotes")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Login {
        password: Secret,
    }

    #[test]
    fn a_secret_is_never_shown() {
        let login: Login = toml::from_str("password = 'hunter2'").unwrap();
        assert_eq!(login.password.get(), Some("hunter2"));
        assert!(!format!("{login:?}").contains("hunter2"));
        let wrong = toml::from_str::<Login>("password = 4711").unwrap_err();
        assert!(!wrong.message().contains("4711"), "{}", wrong.message());
    }
}
