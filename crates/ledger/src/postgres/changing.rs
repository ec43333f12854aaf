//! Changing what entries are made by, on PostgreSQL. Every change gives the books a new version, so that whoever posts next
//! reads it.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use postrider::envelope::TenantId;
use postrider::postgres::Postgres;
use postrider::store::StoreError;
use sqlx::PgConnection;

use super::posting::account_columns;
use crate::account::Account;
use crate::books::Change;
use crate::chain::days;
use crate::chart::{Book, DayRate};
use crate::checkpoint::Checkpoint;
use crate::period::Period;
use crate::stored::signed;

/// An account that is opened by its first entry, perhaps by two processes one after the other.
pub(super) const IF_ABSENT: &str = "INSERT INTO postrider.ledger_account (tenant, code, name, type, normal_side, currency, \
     active, opens_children) SELECT $1, * FROM UNNEST($2::text[], $3::text[], $4::text[], $5::smallint[], $6::text[], \
     $7::boolean[], $8::boolean[]) ON CONFLICT DO NOTHING";

const UPSERT: &str = "INSERT INTO postrider.ledger_account (tenant, code, name, type, normal_side, currency, active, \
     opens_children) SELECT $1, * FROM UNNEST($2::text[], $3::text[], $4::text[], $5::smallint[], $6::text[], \
     $7::boolean[], $8::boolean[]) ON CONFLICT (tenant, code) DO UPDATE SET name = EXCLUDED.name, type = EXCLUDED.type, \
     normal_side = EXCLUDED.normal_side, currency = EXCLUDED.currency, active = EXCLUDED.active, \
     opens_children = EXCLUDED.opens_children";

pub(super) async fn open(
    store: &Postgres,
    connection: &mut PgConnection,
    book: &Book,
    at: Timestamp,
) -> Result<bool, StoreError> {
    let opening = async {
        let insert =
            "INSERT INTO postrider.ledger_tenant (tenant, opened_at) VALUES ($1, $2) ON CONFLICT DO NOTHING";
        sqlx::query(insert).bind(book.tenant.as_str()).bind(at.to_sqlx()).execute(&mut *connection).await?;
        let insert = "INSERT INTO postrider.ledger_book (tenant, base_currency) VALUES ($1, $2) ON CONFLICT DO NOTHING";
        let insert = sqlx::query(insert).bind(book.tenant.as_str()).bind(book.base_currency.code());
        let opened = insert.execute(&mut *connection).await?.rows_affected() == 1;
        if opened {
            settings(connection, book).await?;
        }
        Ok(opened)
    };
    opening.await.map_err(|cause| store.error("opening books", cause))
}

pub(super) async fn change(
    store: &Postgres,
    connection: &mut PgConnection,
    tenant: &TenantId,
    change: &Change,
) -> Result<(), StoreError> {
    let changing = async {
        match change {
            Change::Settings(book) => settings(connection, book).await?,
            Change::Accounts(accounts) => insert_accounts(connection, tenant, accounts, UPSERT).await?,
            Change::Rules { version, document, at } => {
                let insert = "INSERT INTO postrider.ledger_rules (tenant, version, document, created_at) VALUES ($1, $2, $3, $4)";
                let insert = sqlx::query(insert)
                    .bind(tenant.as_str())
                    .bind(i32::try_from(*version).unwrap_or(i32::MAX));
                insert.bind(document).bind(at.to_sqlx()).execute(&mut *connection).await?;
            }
            Change::Rates(rates) => put_rates(connection, tenant, rates).await?,
            Change::Period(period) => put_period(connection, tenant, period).await?,
        }
        let next = "UPDATE postrider.ledger_book SET version = version + 1 WHERE tenant = $1";
        sqlx::query(next).bind(tenant.as_str()).execute(&mut *connection).await
    };
    changing.await.map(|_| ()).map_err(|cause| store.error("changing the books", cause))
}

async fn settings(connection: &mut PgConnection, book: &Book) -> Result<(), sqlx::Error> {
    let update = "UPDATE postrider.ledger_book SET rounding_account = $2, retained_account = $3, rate_source = $4, \
         back_dated = $5, max_entries = $6 WHERE tenant = $1";
    sqlx::query(update)
        .bind(book.tenant.as_str())
        .bind(book.rounding_account.as_ref().map(crate::account::AccountCode::as_str))
        .bind(book.retained_account.as_ref().map(crate::account::AccountCode::as_str))
        .bind(&book.rate_source)
        .bind(book.back_dated.as_str())
        .bind(book.max_entries.map(signed))
        .execute(connection)
        .await?;
    Ok(())
}

pub(super) async fn insert_accounts(
    connection: &mut PgConnection,
    tenant: &TenantId,
    accounts: &[Account],
    statement: &'static str,
) -> Result<(), sqlx::Error> {
    if accounts.is_empty() {
        return Ok(());
    }
    let text = |of: fn(&Account) -> &str| accounts.iter().map(of).collect::<Vec<_>>();
    let flag = |of: fn(&Account) -> bool| accounts.iter().map(of).collect::<Vec<_>>();
    sqlx::query(statement)
        .bind(tenant.as_str())
        .bind(text(|account| account.code.as_str()))
        .bind(text(|account| &account.name))
        .bind(text(|account| account.kind.as_str()))
        .bind(accounts.iter().map(|account| account_columns(account).0).collect::<Vec<_>>())
        .bind(accounts.iter().map(|account| account_columns(account).1).collect::<Vec<_>>())
        .bind(flag(|account| account.active))
        .bind(flag(|account| account.opens_children))
        .execute(connection)
        .await?;
    Ok(())
}

async fn put_rates(
    connection: &mut PgConnection,
    tenant: &TenantId,
    rates: &[DayRate],
) -> Result<(), sqlx::Error> {
    let insert = "INSERT INTO postrider.ledger_rate (tenant, source, base, quote, day, rate) SELECT $1, source, base, quote, \
         date '1970-01-01' + day, rate FROM UNNEST($2::text[], $3::text[], $4::text[], $5::int[], $6::text[]) \
         AS rate (source, base, quote, day, rate) ON CONFLICT (tenant, source, base, quote, day) \
         DO UPDATE SET rate = EXCLUDED.rate";
    sqlx::query(insert)
        .bind(tenant.as_str())
        .bind(rates.iter().map(|rate| rate.source.as_str()).collect::<Vec<_>>())
        .bind(rates.iter().map(|rate| rate.base.code()).collect::<Vec<_>>())
        .bind(rates.iter().map(|rate| rate.quote.code()).collect::<Vec<_>>())
        .bind(rates.iter().map(|rate| days(rate.day)).collect::<Vec<_>>())
        .bind(rates.iter().map(|rate| rate.rate.to_string()).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

async fn put_period(
    connection: &mut PgConnection,
    tenant: &TenantId,
    period: &Period,
) -> Result<(), sqlx::Error> {
    let upsert = "INSERT INTO postrider.ledger_period (tenant, name, starts_on, ends_on, state) \
         VALUES ($1, $2, date '1970-01-01' + $3::int, date '1970-01-01' + $4::int, $5) \
         ON CONFLICT (tenant, name) DO UPDATE SET state = EXCLUDED.state";
    sqlx::query(upsert)
        .bind(tenant.as_str())
        .bind(&period.name)
        .bind(days(period.starts_on))
        .bind(days(period.ends_on))
        .bind(period.state.as_str())
        .execute(connection)
        .await?;
    Ok(())
}

pub(super) async fn keep_checkpoint(
    store: &Postgres,
    connection: &mut PgConnection,
    tenant: &TenantId,
    checkpoint: &Checkpoint,
) -> Result<bool, StoreError> {
    let insert = "INSERT INTO postrider.ledger_checkpoint (tenant, first_number, last_number, root, head_hash, made_at, \
         public_key, signature) SELECT $1::text, $2::bigint, $3::bigint, $4::bytea, $5::bytea, $6::timestamptz, $7::bytea, \
         $8::bytea WHERE NOT EXISTS (SELECT 1 FROM postrider.ledger_checkpoint WHERE tenant = $1 AND last_number >= $2)";
    let kept = sqlx::query(insert)
        .bind(tenant.as_str())
        .bind(signed(checkpoint.first))
        .bind(signed(checkpoint.last))
        .bind(checkpoint.root.0.as_slice())
        .bind(checkpoint.head.0.as_slice())
        .bind(checkpoint.made_at.to_sqlx())
        .bind(checkpoint.public_key.as_slice())
        .bind(checkpoint.signature.as_slice())
        .execute(connection)
        .await;
    kept.map(|kept| kept.rows_affected() == 1).map_err(|cause| store.error("keeping a checkpoint", cause))
}
