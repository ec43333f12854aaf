//! Changing what entries are made by, on SQLite.

use jiff::Timestamp;
use postrider::envelope::TenantId;
use postrider::sqlite::Sqlite;
use postrider::store::StoreError;
use sqlx::{QueryBuilder, SqliteConnection};

use crate::account::{Account, AccountCode};
use crate::books::Change;
use crate::chain::days;
use crate::chart::{Book, DayRate};
use crate::checkpoint::Checkpoint;
use crate::period::Period;
use crate::stored::signed;

/// Rows a statement.
const ROWS: usize = 2000;

pub(super) async fn open(
    store: &Sqlite,
    connection: &mut SqliteConnection,
    book: &Book,
    at: Timestamp,
) -> Result<bool, StoreError> {
    let opening = async {
        let insert = "INSERT INTO ledger_book (tenant, opened_at, base_currency) VALUES (?, ?, ?) ON CONFLICT DO NOTHING";
        let insert = sqlx::query(insert).bind(book.tenant.as_str()).bind(at.as_microsecond());
        let insert = insert.bind(book.base_currency.code());
        let opened = insert.execute(&mut *connection).await?.rows_affected() == 1;
        if opened {
            settings(connection, book).await?;
        }
        Ok(opened)
    };
    opening.await.map_err(|cause| store.error(cause))
}

pub(super) async fn change(
    store: &Sqlite,
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    change: &Change,
) -> Result<(), StoreError> {
    let changing = async {
        match change {
            Change::Settings(book) => settings(connection, book).await?,
            Change::Accounts(accounts) => {
                let replace = "DO UPDATE SET name = excluded.name, type = excluded.type, normal_side = excluded.normal_side, \
                     currency = excluded.currency, active = excluded.active, opens_children = excluded.opens_children";
                insert_accounts(connection, tenant, accounts, replace).await?;
            }
            Change::Rules { version, document, at } => {
                let insert =
                    "INSERT INTO ledger_rules (tenant, version, document, created_at) VALUES (?, ?, ?, ?)";
                let insert = sqlx::query(insert).bind(tenant.as_str()).bind(*version).bind(document);
                insert.bind(at.as_microsecond()).execute(&mut *connection).await?;
            }
            Change::Rates(rates) => put_rates(connection, tenant, rates).await?,
            Change::Period(period) => put_period(connection, tenant, period).await?,
        }
        let next = "UPDATE ledger_book SET version = version + 1 WHERE tenant = ?";
        sqlx::query(next).bind(tenant.as_str()).execute(&mut *connection).await
    };
    changing.await.map(|_| ()).map_err(|cause| store.error(cause))
}

async fn settings(connection: &mut SqliteConnection, book: &Book) -> Result<(), sqlx::Error> {
    let update = "UPDATE ledger_book SET rounding_account = ?, retained_account = ?, rate_source = ?, back_dated = ?, \
         max_entries = ? WHERE tenant = ?";
    sqlx::query(update)
        .bind(book.rounding_account.as_ref().map(AccountCode::as_str))
        .bind(book.retained_account.as_ref().map(AccountCode::as_str))
        .bind(&book.rate_source)
        .bind(book.back_dated.as_str())
        .bind(book.max_entries.map(signed))
        .bind(book.tenant.as_str())
        .execute(connection)
        .await?;
    Ok(())
}

/// Inserts accounts; `otherwise` says what to do with those that are there.
pub(super) async fn insert_accounts(
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    accounts: &[Account],
    otherwise: &'static str,
) -> Result<(), sqlx::Error> {
    for accounts in accounts.chunks(ROWS) {
        let mut insert: QueryBuilder<sqlx::Sqlite> = QueryBuilder::new(
            "INSERT INTO ledger_account (tenant, code, name, type, normal_side, currency, active, opens_children) ",
        );
        insert.push_values(accounts, |mut row, account| {
            row.push_bind(tenant.as_str())
                .push_bind(account.code.as_str())
                .push_bind(account.name.as_str())
                .push_bind(account.kind.as_str())
                .push_bind(account.normal_side.map(super::super::account::Side::number))
                .push_bind(account.currency.as_ref().map(|currency| currency.code().to_owned()))
                .push_bind(account.active)
                .push_bind(account.opens_children);
        });
        insert.push(" ON CONFLICT (tenant, code) ").push(otherwise);
        insert.build().execute(&mut *connection).await?;
    }
    Ok(())
}

async fn put_rates(
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    rates: &[DayRate],
) -> Result<(), sqlx::Error> {
    for rates in rates.chunks(ROWS) {
        let mut insert: QueryBuilder<sqlx::Sqlite> =
            QueryBuilder::new("INSERT INTO ledger_rate (tenant, source, base, quote, day, rate) ");
        insert.push_values(rates, |mut row, rate| {
            row.push_bind(tenant.as_str())
                .push_bind(rate.source.as_str())
                .push_bind(rate.base.code())
                .push_bind(rate.quote.code())
                .push_bind(days(rate.day))
                .push_bind(rate.rate.to_string());
        });
        insert.push(" ON CONFLICT DO UPDATE SET rate = excluded.rate");
        insert.build().execute(&mut *connection).await?;
    }
    Ok(())
}

async fn put_period(
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    period: &Period,
) -> Result<(), sqlx::Error> {
    let upsert = "INSERT INTO ledger_period (tenant, name, starts_on, ends_on, state) VALUES (?, ?, ?, ?, ?) \
         ON CONFLICT DO UPDATE SET state = excluded.state";
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
    store: &Sqlite,
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    checkpoint: &Checkpoint,
) -> Result<bool, StoreError> {
    let insert = "INSERT INTO ledger_checkpoint (tenant, first_number, last_number, root, head_hash, made_at, public_key, \
         signature) SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8 \
         WHERE NOT EXISTS (SELECT 1 FROM ledger_checkpoint WHERE tenant = ?1 AND last_number >= ?2)";
    let kept = sqlx::query(insert)
        .bind(tenant.as_str())
        .bind(signed(checkpoint.first))
        .bind(signed(checkpoint.last))
        .bind(checkpoint.root.0.as_slice())
        .bind(checkpoint.head.0.as_slice())
        .bind(checkpoint.made_at.as_microsecond())
        .bind(checkpoint.public_key.as_slice())
        .bind(checkpoint.signature.as_slice())
        .execute(connection)
        .await;
    kept.map(|kept| kept.rows_affected() == 1).map_err(|cause| store.error(cause))
}
