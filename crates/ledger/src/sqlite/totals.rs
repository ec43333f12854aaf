//! What lines add up to, as SQLite keeps it: by account, and by account and day. Names are ordered by their bytes.

use jiff::civil::Date;
use postrider::envelope::TenantId;
use postrider::sqlite::Sqlite;
use postrider::store::StoreError;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Row as _, SqliteConnection};

use crate::account::AccountCode;
use crate::books::{Balance, Days, Sums};
use crate::chain::{self, days};
use crate::money::Currency;
use crate::stored::{count, posting_kinds, unreadable};

pub(super) async fn balances(
    store: &Sqlite,
    connection: &mut SqliteConnection,
    tenant: &TenantId,
) -> Result<Vec<Balance>, StoreError> {
    let select = "SELECT account, currency, debits, credits, base_debits, base_credits, pending_debits, pending_credits \
         FROM ledger_balance WHERE tenant = ?1 ORDER BY account, currency";
    let rows = sqlx::query(select).bind(tenant.as_str()).fetch_all(connection).await;
    let rows = rows.map_err(|cause| store.error(cause))?;
    rows.iter().map(|row| read_balance(tenant, row)).collect()
}

pub(super) async fn movements(
    store: &Sqlite,
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    from: Option<Date>,
    to: Option<Date>,
) -> Result<Vec<Balance>, StoreError> {
    let select = "SELECT account, currency, sum(debits), sum(credits), sum(base_debits), \
         sum(base_credits), 0, 0 FROM ledger_day WHERE tenant = ?1 \
         AND (?2 IS NULL OR day >= ?2) \
         AND (?3 IS NULL OR day <= ?3) \
         GROUP BY account, currency ORDER BY account, currency";
    let rows = sqlx::query(select).bind(tenant.as_str()).bind(from.map(days)).bind(to.map(days));
    let rows = rows.fetch_all(connection).await.map_err(|cause| store.error(cause))?;
    rows.iter().map(|row| read_balance(tenant, row)).collect()
}

/// By the index of closings alone: a year has few of them.
pub(super) async fn closings(
    store: &Sqlite,
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    from: Option<Date>,
    to: Option<Date>,
) -> Result<Vec<Balance>, StoreError> {
    let select = "WITH closing AS (SELECT number, effective_on FROM ledger_entry WHERE tenant = ?1 AND kind = 6), \
         undone AS (SELECT entry.number, entry.effective_on FROM closing JOIN ledger_entry AS entry \
         ON entry.tenant = ?1 AND entry.refers_to = closing.number WHERE entry.refers_to IS NOT NULL) \
         SELECT line.account, line.currency, sum(CASE line.side WHEN 1 THEN line.amount ELSE 0 END), \
         sum(CASE line.side WHEN 2 THEN line.amount ELSE 0 END), \
         sum(CASE line.side WHEN 1 THEN line.base_amount ELSE 0 END), \
         sum(CASE line.side WHEN 2 THEN line.base_amount ELSE 0 END), 0, 0 \
         FROM (SELECT * FROM closing UNION ALL SELECT * FROM undone) AS entry \
         JOIN ledger_line AS line ON line.tenant = ?1 AND line.entry = entry.number \
         WHERE (?2 IS NULL OR entry.effective_on >= ?2) AND (?3 IS NULL OR entry.effective_on <= ?3) \
         GROUP BY line.account, line.currency ORDER BY line.account, line.currency";
    let rows = sqlx::query(select).bind(tenant.as_str()).bind(from.map(days)).bind(to.map(days));
    let rows = rows.fetch_all(connection).await.map_err(|cause| store.error(cause))?;
    rows.iter().map(|row| read_balance(tenant, row)).collect()
}

/// The closing by the index of closings, and what came after it by numbers: both are few.
pub(super) async fn posted_since_closing(
    store: &Sqlite,
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    day: Date,
) -> Result<Option<(u64, Vec<Balance>)>, StoreError> {
    let fail = |cause| store.error(cause);
    let select = "SELECT max(closing.number) FROM ledger_entry AS closing WHERE closing.tenant = ?1 AND closing.kind = 6 \
         AND closing.effective_on > ?2 AND NOT EXISTS (SELECT 1 FROM ledger_entry AS undone \
         WHERE undone.tenant = ?1 AND undone.refers_to = closing.number AND undone.refers_to IS NOT NULL)";
    let closing = sqlx::query_scalar::<_, Option<i64>>(select).bind(tenant.as_str()).bind(days(day));
    let Some(closing) = closing.fetch_one(&mut *connection).await.map_err(fail)? else { return Ok(None) };
    let select = format!(
        "SELECT line.account, line.currency, sum(CASE line.side WHEN 1 THEN line.amount ELSE 0 END), \
         sum(CASE line.side WHEN 2 THEN line.amount ELSE 0 END), \
         sum(CASE line.side WHEN 1 THEN line.base_amount ELSE 0 END), \
         sum(CASE line.side WHEN 2 THEN line.base_amount ELSE 0 END), 0, 0 \
         FROM ledger_entry AS entry JOIN ledger_line AS line ON line.tenant = ?1 AND line.entry = entry.number \
         WHERE entry.tenant = ?1 AND entry.number > ?2 AND entry.effective_on <= ?3 AND entry.kind IN ({}) \
         GROUP BY line.account, line.currency",
        posting_kinds()
    );
    let rows = sqlx::query(AssertSqlSafe(select)).bind(tenant.as_str()).bind(closing).bind(days(day));
    let rows = rows.fetch_all(connection).await.map_err(fail)?;
    let posted = rows.iter().map(|row| read_balance(tenant, row)).collect::<Result<_, _>>()?;
    Ok(Some((closing.unsigned_abs(), posted)))
}

pub(super) async fn by_day(
    store: &Sqlite,
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    which: &Days,
) -> Result<Vec<(Date, Balance)>, StoreError> {
    let select = "SELECT account, currency, debits, credits, base_debits, base_credits, 0, 0, day FROM ledger_day \
         WHERE tenant = ?1 AND (?2 IS NULL OR account = ?2 OR substr(account, 1, length(?2) + 1) = ?2 || ':') \
         AND (?3 IS NULL OR day >= ?3) AND (?4 IS NULL OR day <= ?4) \
         AND (?5 IS NULL OR (day, account, currency) > (?5, ?6, ?7)) ORDER BY day, account, currency LIMIT ?8";
    let after = which.after.as_ref();
    let rows =
        sqlx::query(select).bind(tenant.as_str()).bind(which.account.as_ref().map(AccountCode::as_str));
    let rows = rows.bind(which.from.map(days)).bind(which.to.map(days));
    let rows = rows.bind(after.map(|place| days(place.day))).bind(after.map(|place| place.account.as_str()));
    let rows = rows.bind(after.map(|place| place.currency.to_string()));
    let rows = rows.bind(count(which.limit.unwrap_or(usize::MAX))).fetch_all(connection).await;
    let rows = rows.map_err(|cause| store.error(cause))?;
    let bad = || unreadable(tenant, "a total by day", "its day");
    let day = |row: &SqliteRow| row.try_get(8).ok().and_then(chain::day).ok_or_else(bad);
    rows.iter().map(|row| Ok((day(row)?, read_balance(tenant, row)?))).collect()
}

/// What lines add up to is a float where one of them was given another type.
fn read_balance(tenant: &TenantId, row: &SqliteRow) -> Result<Balance, StoreError> {
    let account = row.try_get::<&str, _>(0);
    let account = account.map_err(|error| unreadable(tenant, "the account of a balance", error))?;
    let bad = || unreadable(tenant, format!("the balance of {account}"), "its columns");
    let sum = |column: usize| row.try_get::<i64, _>(column).map_err(|_| bad());
    Ok(Balance {
        account: AccountCode::new(account).map_err(|_| bad())?,
        currency: Currency::new(row.try_get(1).map_err(|_| bad())?).map_err(|_| bad())?,
        sums: Sums {
            debits: sum(2)?,
            credits: sum(3)?,
            base_debits: sum(4)?,
            base_credits: sum(5)?,
            pending_debits: sum(6)?,
            pending_credits: sum(7)?,
        },
    })
}
