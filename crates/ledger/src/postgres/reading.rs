//! Reading the books on PostgreSQL.

use jiff::Timestamp;
use postrider::envelope::TenantId;
use postrider::postgres::Postgres;
use postrider::store::StoreError;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use crate::account::{Account, AccountCode, AccountType, Side};
use crate::books::{Head, Referred, RulesVersion};
use crate::chain::{self, Hash};
use crate::chart::{Book, Chart, DayRate};
use crate::checkpoint::Checkpoint;
use crate::entry::{Line, Sealed};
use crate::money::Currency;
use crate::period::{BackDated, Period, PeriodState};
use crate::rules::Rules;
use crate::stored::{EntryRow, LineRow, count, join, signed, unreadable};

const ENTRY: &str = "number, kind, effective_on - date '1970-01-01', posted_at, source_event, payload_hash, rule, description, \
     metadata, refers_to, hash";
const LINE: &str = "entry, account, side, amount, currency, base_amount, rate, rate_source, line";

const BOOK: &str = "SELECT base_currency, rounding_account, retained_account, rate_source, back_dated, max_entries \
     FROM postrider.ledger_book WHERE tenant = $1";

pub(super) async fn tenants(store: &Postgres) -> Result<Vec<TenantId>, StoreError> {
    listed(store, "SELECT tenant FROM postrider.ledger_tenant ORDER BY tenant").await
}

/// Row-level security shows no books to who names no tenant, unless the role may bypass it.
pub(super) async fn traces(store: &Postgres) -> Result<Vec<TenantId>, StoreError> {
    let select = "SELECT tenant FROM postrider.ledger_tenant UNION SELECT tenant FROM postrider.ledger_book ORDER BY tenant";
    listed(store, select).await
}

async fn listed(store: &Postgres, select: &'static str) -> Result<Vec<TenantId>, StoreError> {
    let all = sqlx::query_scalar::<_, String>(select);
    let all = all.fetch_all(store.pool()).await.map_err(|cause| store.error("listing tenants", cause))?;
    Ok(all.iter().filter_map(|tenant| TenantId::new(tenant).ok()).collect())
}

pub(super) async fn head(
    store: &Postgres,
    connection: &mut PgConnection,
    tenant: &TenantId,
) -> Result<Option<Head>, StoreError> {
    let select = "SELECT head_number, head_hash, version FROM postrider.ledger_book WHERE tenant = $1";
    let row = sqlx::query(select).bind(tenant.as_str()).fetch_optional(connection).await;
    let row = row.map_err(|cause| store.error("reading the head of the chain", cause))?;
    row.map(|row| read_head(tenant, &row)).transpose()
}

pub(super) fn read_head(tenant: &TenantId, row: &PgRow) -> Result<Head, StoreError> {
    let bad = || unreadable(tenant, "the book", "head");
    Ok(Head {
        number: u64::try_from(row.get::<i64, _>(0)).map_err(|_| bad())?,
        hash: Hash::from_bytes(row.get(1)).ok_or_else(bad)?,
        version: u64::try_from(row.get::<i64, _>(2)).map_err(|_| bad())?,
    })
}

pub(super) async fn book(
    store: &Postgres,
    connection: &mut PgConnection,
    tenant: &TenantId,
) -> Result<Option<Book>, StoreError> {
    let row = sqlx::query(BOOK).bind(tenant.as_str()).fetch_optional(connection).await;
    let row = row.map_err(|cause| store.error("reading the settings of the books", cause))?;
    row.map(|row| read_book(tenant, &row)).transpose()
}

pub(super) async fn account(
    store: &Postgres,
    connection: &mut PgConnection,
    tenant: &TenantId,
    code: &AccountCode,
) -> Result<Option<Account>, StoreError> {
    let select = "SELECT code, name, type, normal_side, currency, active, opens_children FROM postrider.ledger_account \
         WHERE tenant = $1 AND code = $2";
    let row = sqlx::query(select).bind(tenant.as_str()).bind(code.as_str()).fetch_optional(connection).await;
    let row = row.map_err(|cause| store.error("reading an account", cause))?;
    row.map(|row| read_account(tenant, &row)).transpose()
}

pub(super) async fn chart(
    store: &Postgres,
    connection: &mut PgConnection,
    tenant: &TenantId,
) -> Result<Chart, StoreError> {
    let fail = |cause| store.error("reading the chart of accounts", cause);
    let all = |select: &'static str| sqlx::query(select).bind(tenant.as_str());
    let book = read_book(tenant, &all(BOOK).fetch_one(&mut *connection).await.map_err(fail)?)?;
    let select = "SELECT code, name, type, normal_side, currency, active, opens_children FROM postrider.ledger_account \
         WHERE tenant = $1 ORDER BY code";
    let accounts = all(select).fetch_all(&mut *connection).await.map_err(fail)?;
    let accounts = accounts.iter().map(|row| read_account(tenant, row)).collect::<Result<_, _>>()?;
    let select = "SELECT version, document FROM postrider.ledger_rules WHERE tenant = $1 ORDER BY version DESC LIMIT 1";
    let rules = all(select).fetch_optional(&mut *connection).await.map_err(fail)?;
    let rules = rules.map_or_else(
        || Ok(Rules::default()),
        |row| {
            let version = u32::try_from(row.get::<i32, _>(0)).unwrap_or(0);
            Rules::parse(version, row.get(1)).map_err(|error| unreadable(tenant, "the rules", error))
        },
    )?;
    let select = "SELECT name, starts_on - date '1970-01-01', ends_on - date '1970-01-01', state FROM postrider.ledger_period \
         WHERE tenant = $1 ORDER BY starts_on";
    let periods = all(select).fetch_all(&mut *connection).await.map_err(fail)?;
    let periods = periods.iter().map(|row| read_period(tenant, row)).collect::<Result<_, _>>()?;
    let select = "SELECT source, base, quote, day - date '1970-01-01', rate FROM postrider.ledger_rate \
         WHERE tenant = $1 AND base = $2 AND source = $3";
    let rates = all(select).bind(book.base_currency.code()).bind(&book.rate_source);
    let rates = rates.fetch_all(&mut *connection).await.map_err(fail)?;
    let rates = rates.iter().map(|row| read_rate(tenant, row)).collect::<Result<_, _>>()?;
    Ok(Chart::new(book, accounts, rules, periods, rates))
}

fn read_book(tenant: &TenantId, row: &PgRow) -> Result<Book, StoreError> {
    let bad = || unreadable(tenant, "the book", "settings");
    let code =
        |column| row.get::<Option<&str>, _>(column).map(AccountCode::new).transpose().map_err(|_| bad());
    Ok(Book {
        tenant: tenant.clone(),
        base_currency: Currency::new(row.get(0)).map_err(|_| bad())?,
        rounding_account: code(1)?,
        retained_account: code(2)?,
        rate_source: row.get(3),
        back_dated: BackDated::from_name(row.get(4)).ok_or_else(bad)?,
        max_entries: row.get::<Option<i64>, _>(5).and_then(|most| u64::try_from(most).ok()),
    })
}

fn read_account(tenant: &TenantId, row: &PgRow) -> Result<Account, StoreError> {
    let bad = || unreadable(tenant, format!("account {}", row.get::<&str, _>(0)), "its columns");
    let currency = row.get::<Option<&str>, _>(4).map(Currency::new).transpose();
    Ok(Account {
        code: AccountCode::new(row.get(0)).map_err(|_| bad())?,
        name: row.get(1),
        kind: AccountType::from_name(row.get(2)).ok_or_else(bad)?,
        normal_side: row.get::<Option<i16>, _>(3).and_then(Side::from_number),
        currency: currency.map_err(|_| bad())?,
        active: row.get(5),
        opens_children: row.get(6),
    })
}

fn read_period(tenant: &TenantId, row: &PgRow) -> Result<Period, StoreError> {
    let bad = || unreadable(tenant, format!("period {}", row.get::<&str, _>(0)), "its columns");
    Ok(Period {
        name: row.get(0),
        starts_on: chain::day(row.get(1)).ok_or_else(bad)?,
        ends_on: chain::day(row.get(2)).ok_or_else(bad)?,
        state: PeriodState::from_name(row.get(3)).ok_or_else(bad)?,
    })
}

fn read_rate(tenant: &TenantId, row: &PgRow) -> Result<DayRate, StoreError> {
    let bad = || unreadable(tenant, "a rate", "its columns");
    Ok(DayRate {
        source: row.get(0),
        base: Currency::new(row.get(1)).map_err(|_| bad())?,
        quote: Currency::new(row.get(2)).map_err(|_| bad())?,
        day: chain::day(row.get(3)).ok_or_else(bad)?,
        rate: row.get::<&str, _>(4).parse().map_err(|_| bad())?,
    })
}

pub(super) async fn entries(
    store: &Postgres,
    connection: &mut PgConnection,
    tenant: &TenantId,
    after: u64,
    limit: usize,
) -> Result<Vec<Sealed>, StoreError> {
    let select = format!(
        "SELECT {ENTRY} FROM postrider.ledger_entry WHERE tenant = $1 AND number > $2 ORDER BY number LIMIT $3"
    );
    let rows =
        sqlx::query(AssertSqlSafe(select)).bind(tenant.as_str()).bind(signed(after)).bind(count(limit));
    let rows =
        rows.fetch_all(&mut *connection).await.map_err(|cause| store.error("reading entries", cause))?;
    with_lines(store, connection, tenant, &rows).await
}

pub(super) async fn hashes(
    store: &Postgres,
    connection: &mut PgConnection,
    tenant: &TenantId,
    first: u64,
    last: u64,
) -> Result<Vec<Hash>, StoreError> {
    let select = "SELECT hash FROM postrider.ledger_entry WHERE tenant = $1 AND number BETWEEN $2 AND $3 ORDER BY number";
    let rows = sqlx::query(select).bind(tenant.as_str()).bind(signed(first)).bind(signed(last));
    let rows = rows.fetch_all(connection).await.map_err(|cause| store.error("reading hashes", cause))?;
    let bad = || unreadable(tenant, format!("one of the entries {first} to {last}"), "hash");
    rows.iter().map(|row| Hash::from_bytes(row.get(0)).ok_or_else(bad)).collect()
}

pub(super) async fn referred(
    store: &Postgres,
    connection: &mut PgConnection,
    tenant: &TenantId,
    numbers: &[u64],
) -> Result<Vec<Referred>, StoreError> {
    let fail = |cause| store.error("reading entries", cause);
    let numbers: Vec<i64> = numbers.iter().copied().map(signed).collect();
    let select = format!(
        "SELECT {ENTRY} FROM postrider.ledger_entry WHERE tenant = $1 AND number = ANY ($2) ORDER BY number"
    );
    let rows = sqlx::query(AssertSqlSafe(select)).bind(tenant.as_str()).bind(&numbers);
    let rows = rows.fetch_all(&mut *connection).await.map_err(fail)?;
    let entries = with_lines(store, connection, tenant, &rows).await?;
    let select =
        "SELECT refers_to, number FROM postrider.ledger_entry WHERE tenant = $1 AND refers_to = ANY ($2)";
    let taken = sqlx::query_as::<_, (i64, i64)>(select).bind(tenant.as_str()).bind(&numbers);
    let taken = taken.fetch_all(connection).await.map_err(fail)?;
    let by = |number: u64| {
        taken.iter().find(|(entry, _)| *entry == signed(number)).map(|(_, by)| by.unsigned_abs())
    };
    Ok(entries.into_iter().map(|entry| Referred { by: by(entry.number), entry }).collect())
}

async fn with_lines(
    store: &Postgres,
    connection: &mut PgConnection,
    tenant: &TenantId,
    rows: &[PgRow],
) -> Result<Vec<Sealed>, StoreError> {
    let entries = rows.iter().map(|row| read_entry(tenant, row)).collect::<Result<Vec<_>, _>>()?;
    let numbers: Vec<i64> = entries.iter().map(|entry| signed(entry.number)).collect();
    let (Some(first), Some(last)) = (numbers.first(), numbers.last()) else { return Ok(entries) };
    // A run without gaps is one walk along the index.
    let is_run = last - first + 1 == count(numbers.len());
    let which = if is_run { "entry BETWEEN $2 AND $3" } else { "entry = ANY ($4)" };
    let select = format!(
        "SELECT {LINE} FROM postrider.ledger_line WHERE tenant = $1 AND {which} ORDER BY entry, line"
    );
    let lines = sqlx::query(AssertSqlSafe(select)).bind(tenant.as_str()).bind(first).bind(last);
    let lines = if is_run { lines } else { lines.bind(&numbers) };
    let lines = lines.fetch_all(connection).await.map_err(|cause| store.error("reading lines", cause))?;
    join(tenant, entries, lines.iter().map(|row| read_line(tenant, row)))
}

/// PostgreSQL keeps times that are none, such as infinity.
fn time(tenant: &TenantId, row: &PgRow, column: usize, of: &str) -> Result<Timestamp, StoreError> {
    let time = row.try_get::<jiff_sqlx::Timestamp, _>(column);
    time.map(jiff_sqlx::Timestamp::to_jiff).map_err(|error| unreadable(tenant, of, error))
}

fn read_entry(tenant: &TenantId, row: &PgRow) -> Result<Sealed, StoreError> {
    let number: i64 = row.get(0);
    let entry = EntryRow {
        number,
        kind: row.get(1),
        effective_on: row.get(2),
        posted_at: time(tenant, row, 3, &format!("entry {number}"))?.as_microsecond(),
        source_event: row.get(4),
        payload_hash: row.get(5),
        rule: row.get(6),
        description: row.get(7),
        metadata: row.get(8),
        refers_to: row.get(9),
        hash: row.get(10),
    };
    entry.read(tenant)
}

fn read_line(tenant: &TenantId, row: &PgRow) -> Result<(i64, Line), StoreError> {
    let entry: i64 = row.get(0);
    let line = LineRow {
        line: row.get::<i16, _>(8).into(),
        account: row.get(1),
        side: row.get(2),
        amount: row.get(3),
        currency: row.get(4),
        base_amount: row.get(5),
        rate: row.get(6),
        rate_source: row.get(7),
    };
    Ok((entry, line.read(tenant, entry)?))
}

pub(super) async fn rules_versions(
    store: &Postgres,
    connection: &mut PgConnection,
    tenant: &TenantId,
) -> Result<Vec<RulesVersion>, StoreError> {
    let select =
        "SELECT version, created_at, document FROM postrider.ledger_rules WHERE tenant = $1 ORDER BY version";
    let rows = sqlx::query(select).bind(tenant.as_str()).fetch_all(connection).await;
    let rows = rows.map_err(|cause| store.error("reading the rules", cause))?;
    let read = |row: &PgRow| {
        Ok(RulesVersion {
            version: u32::try_from(row.get::<i32, _>(0)).unwrap_or(0),
            since: time(tenant, row, 1, "a version of the rules")?,
            document: row.get(2),
        })
    };
    rows.iter().map(read).collect()
}

pub(super) async fn checkpoints(
    store: &Postgres,
    connection: &mut PgConnection,
    tenant: &TenantId,
) -> Result<Vec<Checkpoint>, StoreError> {
    let select = "SELECT first_number, last_number, root, head_hash, made_at, public_key, signature \
         FROM postrider.ledger_checkpoint WHERE tenant = $1 ORDER BY last_number";
    let rows = sqlx::query(select).bind(tenant.as_str()).fetch_all(connection).await;
    let rows = rows.map_err(|cause| store.error("reading checkpoints", cause))?;
    let read = |row: &PgRow| {
        Some(Checkpoint {
            first: u64::try_from(row.get::<i64, _>(0)).ok()?,
            last: u64::try_from(row.get::<i64, _>(1)).ok()?,
            root: Hash::from_bytes(row.get(2))?,
            head: Hash::from_bytes(row.get(3))?,
            made_at: time(tenant, row, 4, "a checkpoint").ok()?,
            public_key: row.get::<&[u8], _>(5).try_into().ok()?,
            signature: row.get::<&[u8], _>(6).try_into().ok()?,
        })
    };
    rows.iter()
        .map(|row| read(row).ok_or_else(|| unreadable(tenant, "a checkpoint", "its columns")))
        .collect()
}
