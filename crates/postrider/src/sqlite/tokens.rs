//! The API tokens of a file.

use futures_util::FutureExt as _;
use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};
use uuid::Uuid;

use super::Sqlite;
use super::error::from_sqlite;
use super::outbox::time;
use crate::envelope::TenantId;
use crate::store::{StoreError, StoreErrorKind, Token, TokenHash, TokenRole, Tokens};

impl Tokens for Sqlite {
    async fn create_token(&self, token: &Token) -> Result<(), StoreError> {
        let token = token.clone();
        self.writer().run(|connection| insert(connection, token).boxed()).await
    }

    async fn tokens(&self) -> Result<Vec<Token>, StoreError> {
        let select = "SELECT id, name, role, tenant, hash, created_at, expires_at, revoked_at FROM api_token \
                      ORDER BY created_at DESC, id DESC";
        let rows = sqlx::query(select).fetch_all(self.readers()).await.map_err(from_sqlite)?;
        rows.iter().map(read).collect()
    }

    async fn token(&self, hash: &TokenHash) -> Result<Option<Token>, StoreError> {
        let select = "SELECT id, name, role, tenant, hash, created_at, expires_at, revoked_at FROM api_token \
                      WHERE hash = ?";
        let query = sqlx::query(select).bind(hash.as_bytes().to_vec());
        let row = query.fetch_optional(self.readers()).await.map_err(from_sqlite)?;
        row.as_ref().map(read).transpose()
    }

    async fn revoke_token(&self, id: Uuid, at: Timestamp) -> Result<bool, StoreError> {
        self.writer().run(|connection| revoke(connection, id, at).boxed()).await
    }
}

async fn insert(connection: &mut SqliteConnection, token: Token) -> Result<(), StoreError> {
    let insert = "INSERT INTO api_token (id, name, role, tenant, hash, created_at, expires_at, revoked_at) \
                  VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
    let query = sqlx::query(insert)
        .bind(token.id.to_string())
        .bind(token.name)
        .bind(token.role.as_str())
        .bind(token.tenant.map(String::from))
        .bind(token.hash.as_bytes().to_vec())
        .bind(token.created_at.as_microsecond())
        .bind(token.expires_at.map(Timestamp::as_microsecond))
        .bind(token.revoked_at.map(Timestamp::as_microsecond));
    query.execute(connection).await.map(|_| ()).map_err(from_sqlite)
}

async fn revoke(connection: &mut SqliteConnection, id: Uuid, at: Timestamp) -> Result<bool, StoreError> {
    let update = "UPDATE api_token SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL";
    let query = sqlx::query(update).bind(at.as_microsecond()).bind(id.to_string());
    query.execute(connection).await.map(|done| done.rows_affected() > 0).map_err(from_sqlite)
}

fn read(row: &SqliteRow) -> Result<Token, StoreError> {
    let text = |column| row.try_get::<String, _>(column).map_err(from_sqlite);
    let moment = |column| row.try_get::<Option<i64>, _>(column).map_err(from_sqlite);
    let id: String = text("id")?;
    let hash: Vec<u8> = row.try_get("hash").map_err(from_sqlite)?;
    let tenant: Option<String> = row.try_get("tenant").map_err(from_sqlite)?;
    Ok(Token {
        id: Uuid::parse_str(&id).map_err(|_| unreadable(&id))?,
        name: text("name")?,
        role: TokenRole::from_name(&text("role")?).ok_or_else(|| unreadable(&id))?,
        tenant: tenant.map(TenantId::new).transpose().map_err(|_| unreadable(&id))?,
        hash: TokenHash::from_bytes(&hash).ok_or_else(|| unreadable(&id))?,
        created_at: time(row.try_get("created_at").map_err(from_sqlite)?),
        expires_at: moment("expires_at")?.map(time),
        revoked_at: moment("revoked_at")?.map(time),
    })
}

fn unreadable(id: &str) -> StoreError {
    let text = format!("the API token {id} cannot be read; delete its row from api_token and make a new one");
    StoreError::new(StoreErrorKind::Other, text)
}
