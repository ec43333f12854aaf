//! The posted lines of an account: from the newest back, or day by day.

use std::collections::BTreeMap;

use jiff::civil::Date;
use postrider::envelope::TenantId;
use postrider::sqlite::Sqlite;
use postrider::store::StoreError;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Row as _, SqliteConnection};

use crate::account::AccountCode;
use crate::books::{AccountLine, AccountLines};
use crate::chain::days;
use crate::dated::Span;
use crate::money::Currency;
use crate::statement::Place;
use crate::stored::{AccountLineRow, count, posting_kinds, signed, unreadable};

pub(super) async fn lines_of(
    store: &Sqlite,
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    account: &AccountCode,
    before: Option<&Place>,
    limit: usize,
) -> Result<AccountLines, StoreError> {
    // One statement: what is held is of the same moment as the lines. CROSS JOIN keeps SQLite from beginning with the entries.
    let select = format!(
        "SELECT line.entry, line.line, entry.effective_on, entry.description, line.side, line.amount, \
         line.currency, (SELECT json_group_object(currency, debits - credits) FROM ledger_balance \
             WHERE tenant = ?1 AND account = ?2) \
         FROM ledger_line AS line \
         CROSS JOIN ledger_entry AS entry ON entry.tenant = ?1 AND entry.number = line.entry \
         WHERE line.tenant = ?1 AND line.account = ?2 AND line.amount > 0 AND entry.kind IN ({}) \
           AND line.entry <= ?3 AND (line.entry < ?3 OR line.line < ?4) \
         ORDER BY line.entry DESC, line.line DESC LIMIT ?5",
        posting_kinds()
    );
    let (entry, line) = before.map_or((i64::MAX, 0), |place| (signed(place.entry), i32::from(place.line)));
    let rows = sqlx::query(AssertSqlSafe(select)).bind(tenant.as_str()).bind(account.as_str());
    let rows = rows.bind(entry).bind(line).bind(count(limit)).fetch_all(connection).await;
    let rows = rows.map_err(|cause| store.error(cause))?;
    let held = rows.first().map(|row| row.get::<&str, _>(7));
    AccountLines::read(tenant, held, rows.iter().map(|row| read(tenant, row)))
}

pub(super) async fn lines_on(
    store: &Sqlite,
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    account: &AccountCode,
    of: &Span,
    limit: usize,
) -> Result<AccountLines, StoreError> {
    let held = match (of.from, &of.after) {
        (Some(from), None) => held_before(store, &mut *connection, tenant, account, from).await?,
        _ => BTreeMap::new(),
    };
    // All lines of the account are looked at: entries are found by number, and days do not follow it.
    let select = format!(
        "SELECT line.entry, line.line, entry.effective_on, entry.description, line.side, line.amount, line.currency \
         FROM ledger_line AS line CROSS JOIN ledger_entry AS entry ON entry.tenant = ?1 AND entry.number = line.entry \
         WHERE line.tenant = ?1 AND line.account = ?2 AND line.amount > 0 AND entry.kind IN ({}) \
           AND (?3 IS NULL OR entry.effective_on >= ?3) AND (?4 IS NULL OR entry.effective_on <= ?4) \
           AND (?5 IS NULL OR (entry.effective_on, line.entry, line.line) > (?5, ?6, ?7)) \
         ORDER BY entry.effective_on, line.entry, line.line LIMIT ?8",
        posting_kinds()
    );
    let after = of.after.as_ref();
    let rows = sqlx::query(AssertSqlSafe(select))
        .bind(tenant.as_str())
        .bind(account.as_str())
        .bind(of.from.map(days))
        .bind(of.to.map(days))
        .bind(after.map(|place| days(place.day)))
        .bind(after.map_or(0, |later| signed(later.at.entry)))
        .bind(after.map_or(0, |later| i32::from(later.at.line)))
        .bind(count(limit))
        .fetch_all(connection)
        .await;
    let rows = rows.map_err(|cause| store.error(cause))?;
    let lines = rows.iter().map(|row| read(tenant, row)).collect::<Result<_, _>>()?;
    Ok(AccountLines { lines, held })
}

/// Debits less credits of an account at the end of the day before, from the totals by day.
async fn held_before(
    store: &Sqlite,
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    account: &AccountCode,
    day: Date,
) -> Result<BTreeMap<Currency, i64>, StoreError> {
    let select = "SELECT currency, sum(debits - credits) FROM ledger_day \
         WHERE tenant = ?1 AND account = ?2 AND day < ?3 GROUP BY currency";
    let held = sqlx::query_as::<_, (String, i64)>(select).bind(tenant.as_str()).bind(account.as_str());
    let held = held.bind(days(day)).fetch_all(connection).await.map_err(|cause| store.error(cause))?;
    let bad = |error| unreadable(tenant, format!("the totals of {account}"), error);
    held.into_iter().map(|(currency, held)| Ok((Currency::new(&currency).map_err(bad)?, held))).collect()
}

fn read(tenant: &TenantId, row: &SqliteRow) -> Result<AccountLine, StoreError> {
    columns(row).map_err(|error| unreadable(tenant, "a line of a statement", error))?.read(tenant)
}

fn columns(row: &SqliteRow) -> Result<AccountLineRow<'_>, sqlx::Error> {
    Ok(AccountLineRow {
        entry: row.try_get(0)?,
        line: row.try_get(1)?,
        effective_on: row.try_get(2)?,
        description: row.try_get(3)?,
        side: row.try_get(4)?,
        amount: row.try_get(5)?,
        currency: row.try_get(6)?,
    })
}
