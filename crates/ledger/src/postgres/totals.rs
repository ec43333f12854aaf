//! What lines add up to, as PostgreSQL keeps it: by account, and by account and day.
//!
//! Rows come in the order of the bytes of their names, whatever collation the database has, so that every database lists the same
//! books in the same order.

use jiff::civil::Date;
use postrider::envelope::TenantId;
use postrider::postgres::Postgres;
use postrider::store::StoreError;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use super::asked;
use crate::account::AccountCode;
use crate::books::{Balance, Days, Sums};
use crate::chain;
use crate::money::Currency;
use crate::stored::{count, posting_kinds, unreadable};

pub(super) async fn balances(
    store: &Postgres,
    connection: &mut PgConnection,
    tenant: &TenantId,
) -> Result<Vec<Balance>, StoreError> {
    let select = "SELECT account, currency, debits, credits, base_debits, base_credits, pending_debits, pending_credits \
         FROM postrider.ledger_balance WHERE tenant = $1 ORDER BY account COLLATE \"C\", currency COLLATE \"C\"";
    let rows = sqlx::query(select).bind(tenant.as_str()).fetch_all(connection).await;
    let rows = rows.map_err(|cause| store.error("reading balances", cause))?;
    rows.iter().map(|row| read_balance(tenant, row)).collect()
}

pub(super) async fn movements(
    store: &Postgres,
    connection: &mut PgConnection,
    tenant: &TenantId,
    from: Option<Date>,
    to: Option<Date>,
) -> Result<Vec<Balance>, StoreError> {
    let select = "SELECT account, currency, sum(debits)::bigint, sum(credits)::bigint, sum(base_debits)::bigint, \
         sum(base_credits)::bigint, 0::bigint, 0::bigint FROM postrider.ledger_day WHERE tenant = $1 \
         AND ($2::int IS NULL OR day >= date '1970-01-01' + $2::int) \
         AND ($3::int IS NULL OR day <= date '1970-01-01' + $3::int) \
         GROUP BY account, currency ORDER BY account COLLATE \"C\", currency COLLATE \"C\"";
    let rows = sqlx::query(select).bind(tenant.as_str()).bind(from.map(asked)).bind(to.map(asked));
    let rows = rows.fetch_all(connection).await.map_err(|cause| store.error("reading movements", cause))?;
    rows.iter().map(|row| read_balance(tenant, row)).collect()
}

/// By the index of closings alone: a year has few of them.
pub(super) async fn closings(
    store: &Postgres,
    connection: &mut PgConnection,
    tenant: &TenantId,
    from: Option<Date>,
    to: Option<Date>,
) -> Result<Vec<Balance>, StoreError> {
    let select = "WITH closing AS (SELECT number, effective_on FROM postrider.ledger_entry WHERE tenant = $1 AND kind = 6), \
         undone AS (SELECT entry.number, entry.effective_on FROM closing JOIN postrider.ledger_entry AS entry \
         ON entry.refers_to = closing.number WHERE entry.tenant = $1 AND entry.refers_to IS NOT NULL) \
         SELECT line.account, line.currency, coalesce(sum(line.amount) FILTER (WHERE line.side = 1), 0)::bigint, \
         coalesce(sum(line.amount) FILTER (WHERE line.side = 2), 0)::bigint, \
         coalesce(sum(line.base_amount) FILTER (WHERE line.side = 1), 0)::bigint, \
         coalesce(sum(line.base_amount) FILTER (WHERE line.side = 2), 0)::bigint, 0::bigint, 0::bigint \
         FROM (SELECT * FROM closing UNION ALL SELECT * FROM undone) AS entry \
         JOIN postrider.ledger_line AS line ON line.tenant = $1 AND line.entry = entry.number \
         WHERE ($2::int IS NULL OR entry.effective_on >= date '1970-01-01' + $2::int) \
         AND ($3::int IS NULL OR entry.effective_on <= date '1970-01-01' + $3::int) \
         GROUP BY line.account, line.currency ORDER BY line.account COLLATE \"C\", line.currency COLLATE \"C\"";
    let rows = sqlx::query(select).bind(tenant.as_str()).bind(from.map(asked)).bind(to.map(asked));
    let rows = rows.fetch_all(connection).await.map_err(|cause| store.error("reading closings", cause))?;
    rows.iter().map(|row| read_balance(tenant, row)).collect()
}

/// The closing by the index of closings, and what came after it by numbers: both are few.
pub(super) async fn posted_since_closing(
    store: &Postgres,
    connection: &mut PgConnection,
    tenant: &TenantId,
    day: Date,
) -> Result<Option<(u64, Vec<Balance>)>, StoreError> {
    let fail = |cause| store.error("looking for closings of later years", cause);
    let select = "SELECT max(closing.number) FROM postrider.ledger_entry AS closing WHERE closing.tenant = $1 AND closing.kind = 6 \
         AND closing.effective_on > date '1970-01-01' + $2::int AND NOT EXISTS (SELECT 1 FROM postrider.ledger_entry AS undone \
         WHERE undone.tenant = $1 AND undone.refers_to = closing.number)";
    let closing = sqlx::query_scalar::<_, Option<i64>>(select).bind(tenant.as_str()).bind(asked(day));
    let Some(closing) = closing.fetch_one(&mut *connection).await.map_err(fail)? else { return Ok(None) };
    let select = format!(
        "SELECT line.account, line.currency, coalesce(sum(line.amount) FILTER (WHERE line.side = 1), 0)::bigint, \
         coalesce(sum(line.amount) FILTER (WHERE line.side = 2), 0)::bigint, \
         coalesce(sum(line.base_amount) FILTER (WHERE line.side = 1), 0)::bigint, \
         coalesce(sum(line.base_amount) FILTER (WHERE line.side = 2), 0)::bigint, 0::bigint, 0::bigint \
         FROM postrider.ledger_entry AS entry JOIN postrider.ledger_line AS line ON line.tenant = $1 AND line.entry = entry.number \
         WHERE entry.tenant = $1 AND entry.number > $2 AND entry.effective_on <= date '1970-01-01' + $3::int \
         AND entry.kind IN ({}) GROUP BY line.account, line.currency",
        posting_kinds()
    );
    let rows = sqlx::query(AssertSqlSafe(select)).bind(tenant.as_str()).bind(closing).bind(asked(day));
    let rows = rows.fetch_all(connection).await.map_err(fail)?;
    let posted = rows.iter().map(|row| read_balance(tenant, row)).collect::<Result<_, _>>()?;
    Ok(Some((closing.unsigned_abs(), posted)))
}

pub(super) async fn by_day(
    store: &Postgres,
    connection: &mut PgConnection,
    tenant: &TenantId,
    which: &Days,
) -> Result<Vec<(Date, Balance)>, StoreError> {
    let select = "SELECT account, currency, debits, credits, base_debits, base_credits, 0::bigint, 0::bigint, \
         day - date '1970-01-01' FROM postrider.ledger_day WHERE tenant = $1 \
         AND ($2::text IS NULL OR account = $2 OR starts_with(account, $2 || ':')) \
         AND ($3::int IS NULL OR day >= date '1970-01-01' + $3::int) \
         AND ($4::int IS NULL OR day <= date '1970-01-01' + $4::int) \
         AND ($5::int IS NULL OR (day, account COLLATE \"C\", currency COLLATE \"C\") > (date '1970-01-01' + $5::int, $6::text, $7::text)) \
         ORDER BY day, account COLLATE \"C\", currency COLLATE \"C\" LIMIT $8";
    let after = which.after.as_ref();
    let rows =
        sqlx::query(select).bind(tenant.as_str()).bind(which.account.as_ref().map(AccountCode::as_str));
    let rows = rows.bind(which.from.map(asked)).bind(which.to.map(asked));
    let rows = rows.bind(after.map(|place| asked(place.day))).bind(after.map(|place| place.account.as_str()));
    let rows = rows.bind(after.map(|place| place.currency.to_string()));
    let rows = rows.bind(count(which.limit.unwrap_or(usize::MAX))).fetch_all(connection).await;
    let rows = rows.map_err(|cause| store.error("reading totals by day", cause))?;
    let bad = || unreadable(tenant, "a total by day", "its day");
    rows.iter().map(|row| Ok((chain::day(row.get(8)).ok_or_else(bad)?, read_balance(tenant, row)?))).collect()
}

fn read_balance(tenant: &TenantId, row: &PgRow) -> Result<Balance, StoreError> {
    let bad = || unreadable(tenant, format!("the balance of {}", row.get::<&str, _>(0)), "its columns");
    Ok(Balance {
        account: AccountCode::new(row.get(0)).map_err(|_| bad())?,
        currency: Currency::new(row.get(1)).map_err(|_| bad())?,
        sums: Sums {
            debits: row.get(2),
            credits: row.get(3),
            base_debits: row.get(4),
            base_credits: row.get(5),
            pending_debits: row.get(6),
            pending_credits: row.get(7),
        },
    })
}
