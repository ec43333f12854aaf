//! The posted lines of an account: from the newest back, or day by day.

use std::collections::BTreeMap;

use jiff::civil::Date;
use postrider::envelope::TenantId;
use postrider::postgres::Postgres;
use postrider::store::StoreError;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use super::asked;
use crate::account::AccountCode;
use crate::books::{AccountLine, AccountLines};
use crate::dated::Span;
use crate::money::Currency;
use crate::statement::Place;
use crate::stored::{AccountLineRow, count, posting_kinds, signed, unreadable};

pub(super) async fn lines_of(
    store: &Postgres,
    connection: &mut PgConnection,
    tenant: &TenantId,
    account: &AccountCode,
    before: Option<&Place>,
    limit: usize,
) -> Result<AccountLines, StoreError> {
    // One statement: what is held is of the same moment as the lines. Each entry is looked up by itself, so that no plan walks the
    // entries of all accounts.
    let select = format!(
        "SELECT line.entry, line.line, entry.effective_on - date '1970-01-01', entry.description, line.side, line.amount, \
         line.currency, (SELECT json_object_agg(currency, debits - credits)::text FROM postrider.ledger_balance \
             WHERE tenant = $1 AND account = $2) \
         FROM postrider.ledger_line AS line \
         CROSS JOIN LATERAL (SELECT effective_on, description FROM postrider.ledger_entry \
             WHERE tenant = $1 AND number = line.entry AND kind IN ({}) LIMIT 1) AS entry \
         WHERE line.tenant = $1 AND line.account = $2 AND line.amount > 0 \
           AND line.entry <= $3 AND (line.entry < $3 OR line.line < $4) \
         ORDER BY line.entry DESC, line.line DESC LIMIT $5",
        posting_kinds()
    );
    let (entry, line) = before.map_or((i64::MAX, 0), |place| (signed(place.entry), i32::from(place.line)));
    let rows = sqlx::query(AssertSqlSafe(select)).bind(tenant.as_str()).bind(account.as_str());
    let rows = rows.bind(entry).bind(line).bind(count(limit)).fetch_all(connection).await;
    let rows = rows.map_err(|cause| store.error("reading a statement", cause))?;
    let held = rows.first().map(|row| row.get::<&str, _>(7));
    AccountLines::read(tenant, held, rows.iter().map(|row| read(tenant, row)))
}

pub(super) async fn lines_on(
    store: &Postgres,
    connection: &mut PgConnection,
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
        "SELECT line.entry, line.line, entry.effective_on - date '1970-01-01', entry.description, line.side, line.amount, \
         line.currency FROM postrider.ledger_line AS line \
         CROSS JOIN LATERAL (SELECT effective_on, description FROM postrider.ledger_entry \
             WHERE tenant = $1 AND number = line.entry AND kind IN ({}) LIMIT 1) AS entry \
         WHERE line.tenant = $1 AND line.account = $2 AND line.amount > 0 \
           AND ($3::int IS NULL OR entry.effective_on >= date '1970-01-01' + $3::int) \
           AND ($4::int IS NULL OR entry.effective_on <= date '1970-01-01' + $4::int) \
           AND ($5::int IS NULL OR (entry.effective_on, line.entry, line.line::int) > (date '1970-01-01' + $5::int, $6::bigint, $7::int)) \
         ORDER BY entry.effective_on, line.entry, line.line LIMIT $8",
        posting_kinds()
    );
    let after = of.after.as_ref();
    let rows = sqlx::query(AssertSqlSafe(select))
        .bind(tenant.as_str())
        .bind(account.as_str())
        .bind(of.from.map(asked))
        .bind(of.to.map(asked))
        .bind(after.map(|place| asked(place.day)))
        .bind(after.map_or(0, |later| signed(later.at.entry)))
        .bind(after.map_or(0, |later| i32::from(later.at.line)))
        .bind(count(limit))
        .fetch_all(connection)
        .await;
    let rows = rows.map_err(|cause| store.error("reading a statement", cause))?;
    let lines = rows.iter().map(|row| read(tenant, row)).collect::<Result<_, _>>()?;
    Ok(AccountLines { lines, held })
}

/// Debits less credits of an account at the end of the day before, from the totals by day.
async fn held_before(
    store: &Postgres,
    connection: &mut PgConnection,
    tenant: &TenantId,
    account: &AccountCode,
    day: Date,
) -> Result<BTreeMap<Currency, i64>, StoreError> {
    let select = "SELECT currency, sum(debits - credits)::bigint FROM postrider.ledger_day \
         WHERE tenant = $1 AND account = $2 AND day < date '1970-01-01' + $3::int GROUP BY currency";
    let held = sqlx::query_as::<_, (String, i64)>(select).bind(tenant.as_str()).bind(account.as_str());
    let held = held.bind(asked(day)).fetch_all(connection).await;
    let held = held.map_err(|cause| store.error("reading a statement", cause))?;
    let bad = |error| unreadable(tenant, format!("the totals of {account}"), error);
    held.into_iter().map(|(currency, held)| Ok((Currency::new(&currency).map_err(bad)?, held))).collect()
}

fn read(tenant: &TenantId, row: &PgRow) -> Result<AccountLine, StoreError> {
    let line = AccountLineRow {
        entry: row.get(0),
        line: row.get(1),
        effective_on: row.get(2),
        description: row.get(3),
        side: row.get(4),
        amount: row.get(5),
        currency: row.get(6),
    };
    line.read(tenant)
}
