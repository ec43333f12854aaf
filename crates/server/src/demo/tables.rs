//! The shop's tables on each database. Effects have no unique key: an effect that happened twice would show.

use postrider::postgres::Postgres;
use postrider::sqlite::Sqlite;
use postrider::store::{Store as _, StoreError, StoreErrorKind};

use super::shop::{Order, ShopStore};

fn failed(error: sqlx::Error) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, format!("the shop's tables: {error}")).because(error)
}

impl ShopStore for Sqlite {
    async fn create_tables(&self) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        for table in [
            "CREATE TABLE IF NOT EXISTS demo_order (id TEXT PRIMARY KEY, customer TEXT, quantity INTEGER, total_cents INTEGER)",
            "CREATE TABLE IF NOT EXISTS demo_effect (service TEXT NOT NULL, event_id TEXT NOT NULL)",
        ] {
            sqlx::query(table).execute(tx.connection().await?).await.map_err(failed)?;
        }
        self.commit(tx).await
    }

    async fn insert_order(&self, tx: &mut Self::Tx, order: &Order) -> Result<(), StoreError> {
        sqlx::query("INSERT INTO demo_order VALUES (?, ?, ?, ?)")
            .bind(&order.id)
            .bind(&order.customer)
            .bind(order.quantity)
            .bind(order.total_cents.cast_signed())
            .execute(tx.connection().await?)
            .await
            .map_err(failed)?;
        Ok(())
    }

    async fn insert_effect(
        &self,
        tx: &mut Self::Tx,
        service: &str,
        event_id: &str,
    ) -> Result<(), StoreError> {
        sqlx::query("INSERT INTO demo_effect VALUES (?, ?)")
            .bind(service)
            .bind(event_id)
            .execute(tx.connection().await?)
            .await
            .map_err(failed)?;
        Ok(())
    }

    async fn doubled_effects(&self) -> Result<u64, StoreError> {
        let mut tx = self.begin().await?;
        let doubled: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM (SELECT 1 FROM demo_effect GROUP BY service, event_id HAVING count(*) > 1)",
        )
        .fetch_one(tx.connection().await?)
        .await
        .map_err(failed)?;
        self.rollback(tx).await?;
        Ok(doubled.unsigned_abs())
    }
}

impl ShopStore for Postgres {
    async fn create_tables(&self) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        for table in [
            "CREATE SCHEMA IF NOT EXISTS postrider_demo",
            "CREATE TABLE IF NOT EXISTS postrider_demo.shop_order
                 (id text PRIMARY KEY, customer text, quantity bigint, total_cents bigint)",
            "CREATE TABLE IF NOT EXISTS postrider_demo.effect (service text NOT NULL, event_id text NOT NULL)",
        ] {
            sqlx::query(table).execute(tx.connection()).await.map_err(failed)?;
        }
        self.commit(tx).await
    }

    async fn insert_order(&self, tx: &mut Self::Tx, order: &Order) -> Result<(), StoreError> {
        sqlx::query("INSERT INTO postrider_demo.shop_order VALUES ($1, $2, $3, $4)")
            .bind(&order.id)
            .bind(&order.customer)
            .bind(order.quantity)
            .bind(order.total_cents.cast_signed())
            .execute(tx.connection())
            .await
            .map_err(failed)?;
        Ok(())
    }

    async fn insert_effect(
        &self,
        tx: &mut Self::Tx,
        service: &str,
        event_id: &str,
    ) -> Result<(), StoreError> {
        sqlx::query("INSERT INTO postrider_demo.effect VALUES ($1, $2)")
            .bind(service)
            .bind(event_id)
            .execute(tx.connection())
            .await
            .map_err(failed)?;
        Ok(())
    }

    async fn doubled_effects(&self) -> Result<u64, StoreError> {
        let mut tx = self.begin().await?;
        let doubled: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM (SELECT 1 FROM postrider_demo.effect GROUP BY service, event_id HAVING count(*) > 1) d",
        )
        .fetch_one(tx.connection())
        .await
        .map_err(failed)?;
        self.rollback(tx).await?;
        Ok(doubled.unsigned_abs())
    }
}
