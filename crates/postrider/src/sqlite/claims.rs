//! Claims on SQLite: who has the writer is alone, so looking and claiming need no lock between them.

use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use jiff::Timestamp;
use sqlx::SqliteConnection;
use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;

use super::Sqlite;
use super::error::from_sqlite;
use super::outbox::time;
use crate::envelope::PayloadHash;
use crate::store::{ClaimKey, ClaimRow, Claimed, Claims, FencingToken, StoreError};

impl Claims for Sqlite {
    async fn claim_key(
        &self,
        key: &ClaimKey,
        hash: PayloadHash,
        owner: &str,
        lease: Duration,
    ) -> Result<Claimed, StoreError> {
        let now = self.clock().now();
        let until = now.saturating_add(lease).unwrap_or(Timestamp::MAX);
        let (key, owner) = (key.clone(), owner.to_owned());
        let times = (now.as_microsecond(), until.as_microsecond());
        self.writer().run(move |connection| claim(connection, key, hash, owner, times).boxed()).await
    }

    async fn renew_claim(
        &self,
        key: &ClaimKey,
        token: FencingToken,
        lease: Duration,
    ) -> Result<bool, StoreError> {
        let until = self.clock().now().saturating_add(lease).unwrap_or(Timestamp::MAX).as_microsecond();
        let update = "UPDATE claim SET lease_until = ? \
                      WHERE scope = ? AND \"key\" = ? AND token = ? AND response IS NULL AND lease_until IS NOT NULL";
        let key = key.clone();
        let renew = sqlx::query(update).bind(until).bind(key.scope).bind(key.key).bind(token.0);
        Ok(self.writer().run(move |connection| execute(connection, renew).boxed()).await? > 0)
    }

    async fn complete_claim(
        &self,
        key: &ClaimKey,
        token: FencingToken,
        response: &Bytes,
    ) -> Result<bool, StoreError> {
        // A repeat by the same claimant finds his own answer and changes nothing.
        let update = "UPDATE claim SET response = COALESCE(response, ?), touched_at = ? \
                      WHERE scope = ? AND \"key\" = ? AND token = ?";
        self.end(update, key, token, Some(response.to_vec())).await
    }

    async fn release_claim(&self, key: &ClaimKey, token: FencingToken) -> Result<bool, StoreError> {
        let update = "UPDATE claim SET lease_until = ?, touched_at = ? \
                      WHERE scope = ? AND \"key\" = ? AND token = ? AND response IS NULL";
        self.end(update, key, token, None).await
    }

    async fn forget_claims(&self, older_than: Duration, most: u32) -> Result<u64, StoreError> {
        let now = self.clock().now();
        let before = now.checked_sub(older_than).unwrap_or(Timestamp::MIN).as_microsecond();
        let now = now.as_microsecond();
        let delete = "DELETE FROM claim WHERE (scope, \"key\") IN (SELECT scope, \"key\" FROM claim \
                      WHERE touched_at < ? AND (lease_until IS NULL OR lease_until < ?) ORDER BY touched_at LIMIT ?)";
        let forget = sqlx::query(delete).bind(before).bind(now).bind(most);
        self.writer().run(move |connection| execute(connection, forget).boxed()).await
    }
}

impl Sqlite {
    async fn end(
        &self,
        update: &'static str,
        key: &ClaimKey,
        token: FencingToken,
        value: Option<Vec<u8>>,
    ) -> Result<bool, StoreError> {
        let (now, key) = (self.clock().now().as_microsecond(), key.clone());
        let end = sqlx::query(update).bind(value).bind(now).bind(key.scope).bind(key.key).bind(token.0);
        let changed = self.writer().run(move |connection| execute(connection, end).boxed()).await?;
        Ok(changed > 0)
    }
}

/// Hash, end of the lease, answer.
type Row = (Vec<u8>, Option<i64>, Option<Vec<u8>>);

/// Says how many rows were changed.
async fn execute(
    connection: &mut SqliteConnection,
    statement: Query<'static, sqlx::Sqlite, SqliteArguments>,
) -> Result<u64, StoreError> {
    statement.execute(connection).await.map(|done| done.rows_affected()).map_err(from_sqlite)
}

/// New, released, or left behind by a claimant of the same payload.
async fn claim(
    connection: &mut SqliteConnection,
    key: ClaimKey,
    hash: PayloadHash,
    owner: String,
    (now, until): (i64, i64),
) -> Result<Claimed, StoreError> {
    let look = "SELECT payload_hash, lease_until, response FROM claim WHERE scope = ? AND \"key\" = ?";
    let look = sqlx::query_as(look).bind(&key.scope).bind(&key.key);
    let row: Option<Row> = look.fetch_optional(&mut *connection).await.map_err(from_sqlite)?;
    if let Some((before, lease, response)) = row {
        let before = PayloadHash::from_bytes(&before);
        let free = lease.is_none_or(|lease| lease < now && before == Some(hash));
        if response.is_some() || !free {
            let (lease_until, response) = (time(lease.unwrap_or(now)), response.map(Bytes::from));
            return Ok(ClaimRow { hash: before, lease_until, response }.judge(hash));
        }
    }
    let next = sqlx::query_scalar("UPDATE claim_token SET last = last + 1 RETURNING last");
    let token: i64 = next.fetch_one(&mut *connection).await.map_err(from_sqlite)?;
    let write = "INSERT INTO claim (scope, \"key\", payload_hash, token, owner, lease_until, touched_at) \
                 VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET payload_hash = excluded.payload_hash, \
                 token = excluded.token, owner = excluded.owner, lease_until = excluded.lease_until, \
                 touched_at = excluded.touched_at";
    let write = sqlx::query(write)
        .bind(&key.scope)
        .bind(&key.key)
        .bind(hash.as_bytes().as_slice())
        .bind(token)
        .bind(owner)
        .bind(until)
        .bind(now);
    write.execute(connection).await.map_err(from_sqlite)?;
    Ok(Claimed::Yours(FencingToken(token)))
}
