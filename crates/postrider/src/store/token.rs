//! Who may call the HTTP API.

use std::future::Future;

use jiff::Timestamp;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{Store, StoreError};
use crate::envelope::TenantId;

/// The table of API tokens. Only hashes are stored: what was shown once cannot be shown again.
pub trait Tokens: Store {
    /// Stores a new token.
    fn create_token(&self, token: &Token) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// All tokens, the newest first, revoked and expired ones too.
    fn tokens(&self) -> impl Future<Output = Result<Vec<Token>, StoreError>> + Send;

    /// The token with this hash, also if it is no longer valid.
    fn token(&self, hash: &TokenHash) -> impl Future<Output = Result<Option<Token>, StoreError>> + Send;

    /// Makes a token invalid from this time on. False if there is none with this id, or it is revoked already.
    fn revoke_token(&self, id: Uuid, at: Timestamp) -> impl Future<Output = Result<bool, StoreError>> + Send;
}

/// A token, without the secret itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// How people speak of it.
    pub id: Uuid,
    /// What it is for.
    pub name: String,
    /// What it may do.
    pub role: TokenRole,
    /// The one tenant it is for; all of them when absent.
    pub tenant: Option<TenantId>,
    /// What is stored of the secret.
    pub hash: TokenHash,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it ends by itself.
    pub expires_at: Option<Timestamp>,
    /// When it was taken back.
    pub revoked_at: Option<Timestamp>,
}

impl Token {
    /// Whether it opens anything at this time.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| now < end)
    }
}

/// SHA-256 of a token. Tokens are random and long, so a plain hash tells nothing of them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    /// The hash of a token.
    pub fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }

    /// The 32 bytes, as stores keep them.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// From the 32 bytes a store kept.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl std::fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenHash(…)")
    }
}

/// What a token may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenRole {
    /// Reads the metrics, nothing else.
    Metrics,
    /// Reads everything.
    Viewer,
    /// Publishes, replays, pauses.
    Operator,
    /// Everything.
    Admin,
}

impl TokenRole {
    /// All of them, the weakest first.
    pub const ALL: [Self; 4] = [Self::Metrics, Self::Viewer, Self::Operator, Self::Admin];

    /// The word for it, in tables and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }

    /// The role with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == name)
    }

    /// Whether it may do what `needed` may: every role can do what the weaker ones can.
    pub fn allows(self, needed: Self) -> bool {
        self as u8 >= needed as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stronger_role_can_do_what_a_weaker_one_can() {
        assert!(TokenRole::Admin.allows(TokenRole::Operator));
        assert!(TokenRole::Viewer.allows(TokenRole::Metrics));
        assert!(!TokenRole::Metrics.allows(TokenRole::Viewer));
        assert_eq!(TokenRole::from_name("operator"), Some(TokenRole::Operator));
    }
}
