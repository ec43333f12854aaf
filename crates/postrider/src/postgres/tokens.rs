//! The API tokens of a database.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::Postgres;
use crate::envelope::TenantId;
use crate::store::{StoreError, StoreErrorKind, Token, TokenHash, TokenRole, Tokens};

const INSERT: &str = "INSERT INTO postrider.api_token (id, name, role, tenant, hash, created_at, expires_at, revoked_at) \
     VALUES ($1::uuid, $2, $3, $4, $5, $6, $7, $8)";

const ALL: &str = "SELECT id::text, name, role, tenant, hash, created_at, expires_at, revoked_at FROM postrider.api_token \
     ORDER BY created_at DESC, id DESC";

const BY_HASH: &str = "SELECT id::text, name, role, tenant, hash, created_at, expires_at, revoked_at \
     FROM postrider.api_token WHERE hash = $1";

const REVOKE: &str =
    "UPDATE postrider.api_token SET revoked_at = $2 WHERE id = $1::uuid AND revoked_at IS NULL";

impl Tokens for Postgres {
    async fn create_token(&self, token: &Token) -> Result<(), StoreError> {
        let insert = sqlx::query(INSERT)
            .bind(token.id.to_string())
            .bind(&token.name)
            .bind(token.role.as_str())
            .bind(token.tenant.as_ref().map(TenantId::as_str))
            .bind(token.hash.as_bytes().as_slice())
            .bind(token.created_at.to_sqlx())
            .bind(token.expires_at.map(jiff_sqlx::ToSqlx::to_sqlx))
            .bind(token.revoked_at.map(jiff_sqlx::ToSqlx::to_sqlx));
        self.limited("storing a token", insert.execute(self.pool())).await?;
        Ok(())
    }

    async fn tokens(&self) -> Result<Vec<Token>, StoreError> {
        let rows = self.limited("reading the tokens", sqlx::query(ALL).fetch_all(self.pool())).await?;
        rows.iter().map(read).collect()
    }

    async fn token(&self, hash: &TokenHash) -> Result<Option<Token>, StoreError> {
        let select = sqlx::query(BY_HASH).bind(hash.as_bytes().as_slice()).fetch_optional(self.pool());
        let row = self.limited("reading a token", select).await?;
        row.as_ref().map(read).transpose()
    }

    async fn revoke_token(&self, id: Uuid, at: Timestamp) -> Result<bool, StoreError> {
        let update = sqlx::query(REVOKE).bind(id.to_string()).bind(at.to_sqlx()).execute(self.pool());
        Ok(self.limited("revoking a token", update).await?.rows_affected() > 0)
    }
}

fn read(row: &PgRow) -> Result<Token, StoreError> {
    let id: String = row.try_get(0).map_err(|_| unreadable("?"))?;
    let token = || -> Option<Token> {
        let moment = |column: usize| row.try_get::<Option<jiff_sqlx::Timestamp>, _>(column).ok();
        let tenant: Option<String> = row.try_get(3).ok()?;
        Some(Token {
            id: Uuid::parse_str(&id).ok()?,
            name: row.try_get(1).ok()?,
            role: TokenRole::from_name(row.try_get(2).ok()?)?,
            tenant: tenant.map(TenantId::new).transpose().ok()?,
            hash: TokenHash::from_bytes(row.try_get(4).ok()?)?,
            created_at: row.try_get::<jiff_sqlx::Timestamp, _>(5).ok()?.to_jiff(),
            expires_at: moment(6)?.map(jiff_sqlx::Timestamp::to_jiff),
            revoked_at: moment(7)?.map(jiff_sqlx::Timestamp::to_jiff),
        })
    };
    token().ok_or_else(|| unreadable(&id))
}

fn unreadable(id: &str) -> StoreError {
    let text = format!(
        "the API token {id} cannot be read; delete its row from postrider.api_token and make a new one"
    );
    StoreError::new(StoreErrorKind::Other, text)
}
