//! Who may call: tokens, made and taken back. A secret is shown once; only its hash is stored.

use std::fmt::Write as _;

use async_trait::async_trait;
use jiff::{Span, Timestamp, tz::TimeZone};
use postrider::Clock;
use postrider::envelope::TenantId;
use postrider::store::{Token, TokenHash, TokenRole};
use serde::Serialize;
use uuid::Uuid;

use super::{Answer, StoreDesk};
use crate::api::{Code, Problem};
use crate::wiring::WholeStore;

/// A secret is known to whoever got the first answer, and to nobody else. Another one would end a token that may be in use.
const SHOWN_BEFORE: &str = "with the first answer alone; if that did not arrive, revoke this token and make another under another key";
/// Programs and people recognise a leaked token by its beginning.
const PREFIX: &str = "prt_";

/// A token as it is shown.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct TokenRow {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) role: &'static str,
    pub(crate) tenant: Option<String>,
    pub(crate) state: &'static str,
    pub(crate) created_at: Timestamp,
    pub(crate) expires_at: Option<Timestamp>,
    /// The secret itself, when it has just been made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<String>,
    /// In its place, where the same token was made before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) secret_shown: Option<&'static str>,
}

/// A token to be made.
#[derive(Debug, Clone)]
pub(crate) struct NewToken {
    /// Given where the same request may come again: it is the same token then.
    pub(crate) id: Option<Uuid>,
    pub(crate) name: String,
    pub(crate) role: TokenRole,
    pub(crate) tenant: Option<TenantId>,
    pub(crate) expires_at: Option<Timestamp>,
}

impl NewToken {
    /// The token, and its secret.
    pub(crate) fn make(self, clock: &Clock) -> (Token, String) {
        let secret = fresh_secret(clock.secret());
        let token = Token {
            id: self.id.unwrap_or_else(|| clock.new_id()),
            name: self.name,
            role: self.role,
            tenant: self.tenant,
            hash: TokenHash::of(&secret),
            created_at: clock.now(),
            expires_at: self.expires_at,
            revoked_at: None,
        };
        (token, secret)
    }
}

impl TokenRow {
    /// A token as it stands now.
    pub(crate) fn of(token: &Token, now: Timestamp) -> Self {
        let state = match (token.revoked_at, token.is_valid(now)) {
            (Some(_), _) => "revoked",
            (None, true) => "valid",
            (None, false) => "expired",
        };
        Self {
            id: token.id.to_string(),
            name: token.name.clone(),
            role: token.role.as_str(),
            tenant: token.tenant.as_ref().map(ToString::to_string),
            state,
            created_at: token.created_at,
            expires_at: token.expires_at,
            token: None,
            secret_shown: None,
        }
    }
}

#[async_trait]
pub(crate) trait TokenList {
    /// All of them, the newest first.
    async fn tokens(&self) -> Answer<Vec<TokenRow>>;
    /// Makes one. Its secret is in the answer and nowhere else: one that is there under its id is told of without it.
    async fn make_token(&self, new: NewToken, by: &str, reason: Option<&str>) -> Answer<TokenRow>;
    /// Takes one back.
    async fn revoke_token(&self, id: Uuid, by: &str, reason: Option<&str>) -> Answer<()>;
}

#[async_trait]
impl<S: WholeStore> TokenList for StoreDesk<S> {
    async fn tokens(&self) -> Answer<Vec<TokenRow>> {
        let now = self.clock.now();
        Ok(self.store.tokens().await?.iter().map(|token| TokenRow::of(token, now)).collect())
    }

    async fn make_token(&self, new: NewToken, by: &str, reason: Option<&str>) -> Answer<TokenRow> {
        if let Some(id) = new.id
            && let Some(before) = self.store.tokens().await?.iter().find(|token| token.id == id)
        {
            let row = TokenRow::of(before, self.clock.now());
            return Ok(TokenRow { secret_shown: Some(SHOWN_BEFORE), ..row });
        }
        let (token, secret) = new.make(&self.clock);
        self.record(by, "token.created", format!("token/{}", token.id), reason).await?;
        self.store.create_token(&token).await?;
        Ok(TokenRow { token: Some(secret), ..TokenRow::of(&token, self.clock.now()) })
    }

    async fn revoke_token(&self, id: Uuid, by: &str, reason: Option<&str>) -> Answer<()> {
        let tokens = self.store.tokens().await?;
        if !tokens.iter().any(|token| token.id == id && token.revoked_at.is_none()) {
            return Err(Problem::new(Code::NotFound, format!("there is no token {id} to revoke")));
        }
        self.record(by, "token.revoked", format!("token/{id}"), reason).await?;
        self.store.revoke_token(id, self.clock.now()).await?;
        Ok(())
    }
}

fn fresh_secret(random: [u8; 32]) -> String {
    random.iter().fold(PREFIX.to_owned(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A time, or a span from now on. It has to be in the future.
pub(crate) fn expiry(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    let wrong = || format!("{text}: write a time such as 2027-01-01T00:00:00Z, or a span such as 90d");
    let end = if let Ok(end) = text.parse::<Timestamp>() {
        end
    } else {
        let span: Span = text.parse().map_err(|_| wrong())?;
        now.to_zoned(TimeZone::UTC).checked_add(span).map_err(|_| wrong())?.timestamp()
    };
    if end <= now { Err(format!("{text}: that has passed")) } else { Ok(end) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_ends_at_a_time_or_after_a_span() {
        let now: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        assert_eq!(expiry("2027-01-01T00:00:00Z", now).unwrap().to_string(), "2027-01-01T00:00:00Z");
        assert_eq!(expiry("90d", now).unwrap().to_string(), "2027-02-13T12:00:00Z");
        assert!(expiry("2020-01-01T00:00:00Z", now).unwrap_err().contains("has passed"));
        assert!(expiry("soon", now).unwrap_err().contains("such as 90d"));
    }

    #[test]
    fn a_secret_has_256_bits_and_a_beginning_to_know_it_by() {
        let secret = fresh_secret([0xab; 32]);
        assert_eq!(secret, format!("prt_{}", "ab".repeat(32)));
    }
}
