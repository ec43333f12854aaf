//! Claims on PostgreSQL: one statement, whose key decides who has one. Leases are told by the server's clock.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use sqlx::Row as _;

use super::Postgres;
use crate::envelope::PayloadHash;
use crate::store::{ClaimKey, ClaimRow, Claimed, Claims, FencingToken, StoreError, StoreErrorKind};

/// New, released, or left behind by a claimant of the same payload.
const CLAIM: &str = "INSERT INTO postrider.claim AS c (scope, key, payload_hash, token, owner, lease_until) \
     VALUES ($1, $2, $3, nextval('postrider.claim_token'), $4, now() + $5) \
     ON CONFLICT (scope, key) DO UPDATE SET payload_hash = EXCLUDED.payload_hash, token = EXCLUDED.token, \
         owner = EXCLUDED.owner, lease_until = EXCLUDED.lease_until, touched_at = now() \
     WHERE c.response IS NULL AND (c.lease_until IS NULL \
         OR (c.lease_until < now() AND c.payload_hash = EXCLUDED.payload_hash)) \
     RETURNING token";

const LOOK: &str =
    "SELECT payload_hash, lease_until, response FROM postrider.claim WHERE scope = $1 AND key = $2";

/// What is in hand is not forgotten whenever it was touched, so that no index is written for it.
const RENEW: &str = "UPDATE postrider.claim SET lease_until = now() + $4 \
     WHERE scope = $1 AND key = $2 AND token = $3 AND response IS NULL AND lease_until IS NOT NULL";

/// A repeat by the same claimant finds his own answer and changes nothing.
const COMPLETE: &str = "UPDATE postrider.claim SET response = COALESCE(response, $4), touched_at = now() \
     WHERE scope = $1 AND key = $2 AND token = $3";

const RELEASE: &str = "UPDATE postrider.claim SET lease_until = NULL, touched_at = now() \
     WHERE scope = $1 AND key = $2 AND token = $3 AND response IS NULL";

const FORGET: &str = "DELETE FROM postrider.claim WHERE ctid = ANY(ARRAY( \
     SELECT ctid FROM postrider.claim WHERE touched_at < now() - $1 AND (lease_until IS NULL OR lease_until < now()) \
     ORDER BY touched_at LIMIT $2))";

impl Claims for Postgres {
    async fn claim_key(
        &self,
        key: &ClaimKey,
        hash: PayloadHash,
        owner: &str,
        lease: Duration,
    ) -> Result<Claimed, StoreError> {
        let claim = sqlx::query_scalar(CLAIM)
            .bind(&key.scope)
            .bind(&key.key)
            .bind(hash.as_bytes().as_slice())
            .bind(owner)
            .bind(lease);
        let token = self.limited("claiming", claim.fetch_optional(self.pool())).await?;
        if let Some(token) = token {
            return Ok(Claimed::Yours(FencingToken(token)));
        }
        let look = sqlx::query(LOOK).bind(&key.scope).bind(&key.key);
        let row = self.limited("looking at a claim", look.fetch_optional(self.pool())).await?;
        let gone = || {
            let text = "a claim was released or forgotten while it was asked for; try again";
            StoreError::new(StoreErrorKind::Contended, text)
        };
        let row = row.ok_or_else(gone)?;
        let lease_until = row.get::<Option<jiff_sqlx::Timestamp>, _>(1).map(jiff_sqlx::Timestamp::to_jiff);
        let response = row.get::<Option<Vec<u8>>, _>(2).map(Bytes::from);
        // Released between the two statements.
        let lease_until = lease_until.or(response.as_ref().map(|_| Timestamp::MIN)).ok_or_else(gone)?;
        Ok(ClaimRow { hash: PayloadHash::from_bytes(row.get(0)), lease_until, response }.judge(hash))
    }

    async fn renew_claim(
        &self,
        key: &ClaimKey,
        token: FencingToken,
        lease: Duration,
    ) -> Result<bool, StoreError> {
        let update = sqlx::query(RENEW).bind(&key.scope).bind(&key.key).bind(token.0).bind(lease);
        let done = self.limited("renewing a claim", update.execute(self.pool())).await?;
        Ok(done.rows_affected() > 0)
    }

    async fn complete_claim(
        &self,
        key: &ClaimKey,
        token: FencingToken,
        response: &Bytes,
    ) -> Result<bool, StoreError> {
        let update =
            sqlx::query(COMPLETE).bind(&key.scope).bind(&key.key).bind(token.0).bind(response.as_ref());
        let done = self.limited("completing a claim", update.execute(self.pool())).await?;
        Ok(done.rows_affected() > 0)
    }

    async fn release_claim(&self, key: &ClaimKey, token: FencingToken) -> Result<bool, StoreError> {
        let update = sqlx::query(RELEASE).bind(&key.scope).bind(&key.key).bind(token.0);
        let done = self.limited("releasing a claim", update.execute(self.pool())).await?;
        Ok(done.rows_affected() > 0)
    }

    async fn forget_claims(&self, older_than: Duration, most: u32) -> Result<u64, StoreError> {
        let delete = sqlx::query(FORGET).bind(older_than).bind(i64::from(most));
        Ok(self.limited("forgetting claims", delete.execute(self.pool())).await?.rows_affected())
    }
}
