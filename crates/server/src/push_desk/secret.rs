//! What signs a subscription's requests, and how it is shown on the one occasion that it is.

use jiff::Timestamp;
use postrider::Clock;
use postrider::push::SigningSecret;
use postrider::topology::ConsumerName;
use serde::{Deserialize, Serialize};

/// What signs a subscription's requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Signing {
    /// A shared secret (HMAC-SHA256)
    #[default]
    Hmac,
    /// A key pair, of which receivers get the public half
    Ed25519,
    /// Nothing
    None,
}

impl Signing {
    /// What a secret signs with.
    pub(super) fn of(secret: &SigningSecret) -> Self {
        if secret.is_key_pair() { Self::Ed25519 } else { Self::Hmac }
    }

    /// A new one.
    pub(super) fn fresh(self, clock: &Clock) -> Option<SigningSecret> {
        match self {
            Self::Hmac => Some(SigningSecret::shared(clock.secret())),
            Self::Ed25519 => Some(SigningSecret::key_pair(clock.secret())),
            Self::None => None,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Hmac => "hmac",
            Self::Ed25519 => "ed25519",
            Self::None => "none",
        }
    }
}

/// A secret, on the one occasion that it is shown.
#[derive(Debug, Serialize)]
pub(crate) struct Shown {
    pub(crate) name: String,
    /// What receivers verify with, unless it has a public half.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) secret: Option<String>,
    /// What receivers verify with, if they need no secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) public_key: Option<String>,
    /// Until when the secret before it signs too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) old_until: Option<Timestamp>,
    /// What the secret before it signs with, where the new one does it in another way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) changed_from: Option<Signing>,
    /// Who paused a consumer of this name before it was made: it waits until somebody resumes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) paused_by: Option<String>,
    /// Whether its own queue is bound: what is published from now on reaches it. If not, no process has taken it up yet, and what is
    /// published before that does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bound: Option<bool>,
}

impl Shown {
    pub(super) fn of(name: &ConsumerName, secret: Option<&SigningSecret>) -> Self {
        let public_key = secret.and_then(SigningSecret::public_key);
        let own = secret.filter(|secret| !secret.is_key_pair()).map(|secret| secret.reveal().to_owned());
        Self {
            name: name.to_string(),
            secret: own,
            public_key,
            old_until: None,
            changed_from: None,
            paused_by: None,
            bound: None,
        }
    }

    /// What people have to know beside it.
    pub(crate) fn notes(&self) -> Vec<String> {
        let once =
            self.secret.as_ref().map(|_| "this secret is shown once; receivers verify with it".to_owned());
        let until = self.old_until.map(|until| format!("the secret before it signs too until {until}"));
        let changed = self.changed_from.map(|before| {
            let now = if self.public_key.is_some() { Signing::Ed25519 } else { Signing::Hmac };
            let (before, now) = (before.as_str(), now.as_str());
            format!("requests were signed with {before} and are with {now} from now on: receivers that know {before} alone refuse them once the old secret ends")
        });
        let paused = self.paused_by.as_ref().map(|by| {
            let name = &self.name;
            format!(
                "{name} was paused by {by} before, and still is: `postrider push resume {name}` lets it go on"
            )
        });
        [once, until, changed, paused].into_iter().flatten().collect()
    }
}
