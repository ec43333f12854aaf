//! Reading the books on SQLite.

use jiff::Timestamp;
use postrider::envelope::TenantId;
use postrider::sqlite::Sqlite;
use postrider::store::StoreError;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Row as _, SqliteConnection};

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

const ENTRY: &str = "number, kind, effective_on, posted_at, source_event, payload_hash, rule, description, \
     metadata, refers_to, hash";
const LINE: &str = "entry, account, side, amount, currency, base_amount, rate, rate_source, line";

const BOOK: &str = "SELECT base_currency, rounding_account, retained_account, rate_source, back_dated, max_entries \
     FROM ledger_book WHERE tenant = ?1";

pub(super) async fn tenants(store: &Sqlite) -> Result<Vec<TenantId>, StoreError> {
    listed(store, "SELECT tenant FROM ledger_book ORDER BY tenant").await
}

/// Whoever has entries has accounts, of which there are few.
pub(super) async fn traces(store: &Sqlite) -> Result<Vec<TenantId>, StoreError> {
    listed(store, "SELECT tenant FROM ledger_book UNION SELECT tenant FROM ledger_account ORDER BY tenant")
        .await
}

async fn listed(store: &Sqlite, select: &'static str) -> Result<Vec<TenantId>, StoreError> {
    let all = sqlx::query_scalar::<_, String>(select);
    let all = all.fetch_all(store.readers()).await.map_err(|cause| store.error(cause))?;
    Ok(all.iter().filter_map(|tenant| TenantId::new(tenant).ok()).collect())
}

pub(super) async fn head(
    store: &Sqlite,
    connection: &mut SqliteConnection,
    tenant: &TenantId,
) -> Result<Option<Head>, StoreError> {
    let select = "SELECT head_number, head_hash, version FROM ledger_book WHERE tenant = ?1";
    let row = sqlx::query(select).bind(tenant.as_str()).fetch_optional(connection).await;
    let row = row.map_err(|cause| store.error(cause))?;
    row.map(|row| read_head(tenant, &row)).transpose()
}

fn read_head(tenant: &TenantId, row: &SqliteRow) -> Result<Head, StoreError> {
    let bad = || unreadable(tenant, "the book", "head");
    Ok(Head {
        number: u64::try_from(row.try_get::<i64, _>(0).map_err(|_| bad())?).map_err(|_| bad())?,
        hash: Hash::from_bytes(row.try_get(1).map_err(|_| bad())?).ok_or_else(bad)?,
        version: u64::try_from(row.try_get::<i64, _>(2).map_err(|_| bad())?).map_err(|_| bad())?,
    })
}

pub(super) async fn book(
    store: &Sqlite,
    connection: &mut SqliteConnection,
    tenant: &TenantId,
) -> Result<Option<Book>, StoreError> {
    let row = sqlx::query(BOOK).bind(tenant.as_str()).fetch_optional(connection).await;
    let row = row.map_err(|cause| store.error(cause))?;
    row.map(|row| read_book(tenant, &row)).transpose()
}

pub(super) async fn account(
    store: &Sqlite,
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    code: &AccountCode,
) -> Result<Option<Account>, StoreError> {
    let select = "SELECT code, name, type, normal_side, currency, active, opens_children FROM ledger_account \
         WHERE tenant = ?1 AND code = ?2";
    let row = sqlx::query(select).bind(tenant.as_str()).bind(code.as_str()).fetch_optional(connection).await;
    let row = row.map_err(|cause| store.error(cause))?;
    row.map(|row| read_account(tenant, &row)).transpose()
}

pub(super) async fn chart(
    store: &Sqlite,
    connection: &mut SqliteConnection,
    tenant: &TenantId,
) -> Result<Chart, StoreError> {
    let fail = |cause| store.error(cause);
    let all = |select: &'static str| sqlx::query(select).bind(tenant.as_str());
    let book = read_book(tenant, &all(BOOK).fetch_one(&mut *connection).await.map_err(fail)?)?;
    let select = "SELECT code, name, type, normal_side, currency, active, opens_children FROM ledger_account \
         WHERE tenant = ?1 ORDER BY code";
    let accounts = all(select).fetch_all(&mut *connection).await.map_err(fail)?;
    let accounts = accounts.iter().map(|row| read_account(tenant, row)).collect::<Result<_, _>>()?;
    let select = "SELECT version, document FROM ledger_rules WHERE tenant = ?1 ORDER BY version DESC LIMIT 1";
    let rules = all(select).fetch_optional(&mut *connection).await.map_err(fail)?;
    let rules = rules.map_or_else(
        || Ok(Rules::default()),
        |row| {
            let bad = |cause: sqlx::Error| unreadable(tenant, "the rules", cause);
            let version = u32::try_from(row.try_get::<i32, _>(0).map_err(bad)?).unwrap_or(0);
            let document = row.try_get(1).map_err(bad)?;
            Rules::parse(version, document).map_err(|error| unreadable(tenant, "the rules", error))
        },
    )?;
    let select = "SELECT name, starts_on, ends_on, state FROM ledger_period \
         WHERE tenant = ?1 ORDER BY starts_on";
    let periods = all(select).fetch_all(&mut *connection).await.map_err(fail)?;
    let periods = periods.iter().map(|row| read_period(tenant, row)).collect::<Result<_, _>>()?;
    let select = "SELECT source, base, quote, day, rate FROM ledger_rate \
         WHERE tenant = ?1 AND base = ?2 AND source = ?3";
    let rates = all(select).bind(book.base_currency.code()).bind(&book.rate_source);
    let rates = rates.fetch_all(&mut *connection).await.map_err(fail)?;
    let rates = rates.iter().map(|row| read_rate(tenant, row)).collect::<Result<_, _>>()?;
    Ok(Chart::new(book, accounts, rules, periods, rates))
}

fn read_book(tenant: &TenantId, row: &SqliteRow) -> Result<Book, StoreError> {
    let bad = || unreadable(tenant, "the book", "settings");
    let code = |column: usize| {
        let code: Option<&str> = row.try_get(column).map_err(|_| bad())?;
        code.map(AccountCode::new).transpose().map_err(|_| bad())
    };
    let most: Option<i64> = row.try_get(5).map_err(|_| bad())?;
    Ok(Book {
        tenant: tenant.clone(),
        base_currency: Currency::new(row.try_get(0).map_err(|_| bad())?).map_err(|_| bad())?,
        rounding_account: code(1)?,
        retained_account: code(2)?,
        rate_source: row.try_get(3).map_err(|_| bad())?,
        back_dated: BackDated::from_name(row.try_get(4).map_err(|_| bad())?).ok_or_else(bad)?,
        max_entries: most.and_then(|most| u64::try_from(most).ok()),
    })
}

fn read_account(tenant: &TenantId, row: &SqliteRow) -> Result<Account, StoreError> {
    let code = row.try_get::<&str, _>(0).unwrap_or("?");
    let bad = || unreadable(tenant, format!("account {code}"), "its columns");
    let currency = row.try_get::<Option<&str>, _>(4).map_err(|_| bad())?.map(Currency::new).transpose();
    Ok(Account {
        code: AccountCode::new(code).map_err(|_| bad())?,
        name: row.try_get(1).map_err(|_| bad())?,
        kind: AccountType::from_name(row.try_get(2).map_err(|_| bad())?).ok_or_else(bad)?,
        normal_side: row.try_get::<Option<i16>, _>(3).map_err(|_| bad())?.and_then(Side::from_number),
        currency: currency.map_err(|_| bad())?,
        active: row.try_get(5).map_err(|_| bad())?,
        opens_children: row.try_get(6).map_err(|_| bad())?,
    })
}

fn read_period(tenant: &TenantId, row: &SqliteRow) -> Result<Period, StoreError> {
    let name = row.try_get::<&str, _>(0).unwrap_or("?");
    let bad = || unreadable(tenant, format!("period {name}"), "its columns");
    Ok(Period {
        name: name.to_owned(),
        starts_on: chain::day(row.try_get(1).map_err(|_| bad())?).ok_or_else(bad)?,
        ends_on: chain::day(row.try_get(2).map_err(|_| bad())?).ok_or_else(bad)?,
        state: PeriodState::from_name(row.try_get(3).map_err(|_| bad())?).ok_or_else(bad)?,
    })
}

fn read_rate(tenant: &TenantId, row: &SqliteRow) -> Result<DayRate, StoreError> {
    let bad = || unreadable(tenant, "a rate", "its columns");
    Ok(DayRate {
        source: row.try_get(0).map_err(|_| bad())?,
        base: Currency::new(row.try_get(1).map_err(|_| bad())?).map_err(|_| bad())?,
        quote: Currency::new(row.try_get(2).map_err(|_| bad())?).map_err(|_| bad())?,
        day: chain::day(row.try_get(3).map_err(|_| bad())?).ok_or_else(bad)?,
        rate: row.try_get::<&str, _>(4).map_err(|_| bad())?.parse().map_err(|_| bad())?,
    })
}

pub(super) async fn entries(
    store: &Sqlite,
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    after: u64,
    limit: usize,
) -> Result<Vec<Sealed>, StoreError> {
    let select = format!(
        "SELECT {ENTRY} FROM ledger_entry WHERE tenant = ?1 AND number > ?2 ORDER BY number LIMIT ?3"
    );
    let rows =
        sqlx::query(AssertSqlSafe(select)).bind(tenant.as_str()).bind(signed(after)).bind(count(limit));
    let rows = rows.fetch_all(&mut *connection).await.map_err(|cause| store.error(cause))?;
    with_lines(store, connection, tenant, &rows).await
}

pub(super) async fn hashes(
    store: &Sqlite,
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    first: u64,
    last: u64,
) -> Result<Vec<Hash>, StoreError> {
    let select =
        "SELECT hash FROM ledger_entry WHERE tenant = ?1 AND number BETWEEN ?2 AND ?3 ORDER BY number";
    let rows = sqlx::query(select).bind(tenant.as_str()).bind(signed(first)).bind(signed(last));
    let rows = rows.fetch_all(connection).await.map_err(|cause| store.error(cause))?;
    let bad = || unreadable(tenant, format!("one of the entries {first} to {last}"), "hash");
    let read = |row: &SqliteRow| row.try_get::<&[u8], _>(0).ok().and_then(Hash::from_bytes);
    rows.iter().map(|row| read(row).ok_or_else(bad)).collect()
}

pub(super) async fn referred(
    store: &Sqlite,
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    numbers: &[u64],
) -> Result<Vec<Referred>, StoreError> {
    let fail = |cause| store.error(cause);
    let numbers: Vec<i64> = numbers.iter().copied().map(signed).collect();
    let select = format!(
        "SELECT {ENTRY} FROM ledger_entry WHERE tenant = ?1 AND number IN (SELECT value FROM json_each(?2)) ORDER BY number"
    );
    let rows = sqlx::query(AssertSqlSafe(select)).bind(tenant.as_str()).bind(json(&numbers));
    let rows = rows.fetch_all(&mut *connection).await.map_err(fail)?;
    let entries = with_lines(store, connection, tenant, &rows).await?;
    let select = "SELECT refers_to, number FROM ledger_entry WHERE tenant = ?1 AND refers_to IN (SELECT value FROM json_each(?2))";
    let taken = sqlx::query_as::<_, (i64, i64)>(select).bind(tenant.as_str()).bind(json(&numbers));
    let taken = taken.fetch_all(connection).await.map_err(fail)?;
    let by = |number: u64| {
        taken.iter().find(|(entry, _)| *entry == signed(number)).map(|(_, by)| by.unsigned_abs())
    };
    Ok(entries.into_iter().map(|entry| Referred { by: by(entry.number), entry }).collect())
}

async fn with_lines(
    store: &Sqlite,
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    rows: &[SqliteRow],
) -> Result<Vec<Sealed>, StoreError> {
    let entries = rows.iter().map(|row| read_entry(tenant, row)).collect::<Result<Vec<_>, _>>()?;
    let numbers: Vec<i64> = entries.iter().map(|entry| signed(entry.number)).collect();
    let (Some(first), Some(last)) = (numbers.first(), numbers.last()) else { return Ok(entries) };
    // A run without gaps is one walk along the index.
    let is_run = last - first + 1 == count(numbers.len());
    let which = if is_run { "entry BETWEEN ?2 AND ?3" } else { "entry IN (SELECT value FROM json_each(?4))" };
    let select = format!("SELECT {LINE} FROM ledger_line WHERE tenant = ?1 AND {which} ORDER BY entry, line");
    let lines = sqlx::query(AssertSqlSafe(select)).bind(tenant.as_str()).bind(first).bind(last);
    let lines = if is_run { lines } else { lines.bind(json(&numbers)) };
    let lines = lines.fetch_all(connection).await.map_err(|cause| store.error(cause))?;
    join(tenant, entries, lines.iter().map(|row| read_line(tenant, row)))
}

fn read_entry(tenant: &TenantId, row: &SqliteRow) -> Result<Sealed, StoreError> {
    let bad = |cause: sqlx::Error| unreadable(tenant, "an entry", cause);
    let entry = EntryRow {
        number: row.try_get(0).map_err(bad)?,
        kind: row.try_get(1).map_err(bad)?,
        effective_on: row.try_get(2).map_err(bad)?,
        posted_at: row.try_get(3).map_err(bad)?,
        source_event: row.try_get(4).map_err(bad)?,
        payload_hash: row.try_get(5).map_err(bad)?,
        rule: row.try_get(6).map_err(bad)?,
        description: row.try_get(7).map_err(bad)?,
        metadata: row.try_get(8).map_err(bad)?,
        refers_to: row.try_get(9).map_err(bad)?,
        hash: row.try_get(10).map_err(bad)?,
    };
    entry.read(tenant)
}

fn read_line(tenant: &TenantId, row: &SqliteRow) -> Result<(i64, Line), StoreError> {
    let bad = |cause: sqlx::Error| unreadable(tenant, "a line", cause);
    let entry: i64 = row.try_get(0).map_err(bad)?;
    let line = LineRow {
        line: row.try_get(8).map_err(bad)?,
        account: row.try_get(1).map_err(bad)?,
        side: row.try_get(2).map_err(bad)?,
        amount: row.try_get(3).map_err(bad)?,
        currency: row.try_get(4).map_err(bad)?,
        base_amount: row.try_get(5).map_err(bad)?,
        rate: row.try_get(6).map_err(bad)?,
        rate_source: row.try_get(7).map_err(bad)?,
    };
    Ok((entry, line.read(tenant, entry)?))
}

pub(super) async fn rules_versions(
    store: &Sqlite,
    connection: &mut SqliteConnection,
    tenant: &TenantId,
) -> Result<Vec<RulesVersion>, StoreError> {
    let select = "SELECT version, created_at, document FROM ledger_rules WHERE tenant = ?1 ORDER BY version";
    let rows = sqlx::query(select).bind(tenant.as_str()).fetch_all(connection).await;
    let rows = rows.map_err(|cause| store.error(cause))?;
    let read = |row: &SqliteRow| {
        Ok(RulesVersion {
            version: u32::try_from(row.get::<i64, _>(0)).unwrap_or(0),
            since: time(tenant, row.get(1))?,
            document: row.get(2),
        })
    };
    rows.iter().map(read).collect()
}

pub(super) async fn checkpoints(
    store: &Sqlite,
    connection: &mut SqliteConnection,
    tenant: &TenantId,
) -> Result<Vec<Checkpoint>, StoreError> {
    let select = "SELECT first_number, last_number, root, head_hash, made_at, public_key, signature \
         FROM ledger_checkpoint WHERE tenant = ?1 ORDER BY last_number";
    let rows = sqlx::query(select).bind(tenant.as_str()).fetch_all(connection).await;
    let rows = rows.map_err(|cause| store.error(cause))?;
    let read = |row: &SqliteRow| {
        Some(Checkpoint {
            first: u64::try_from(row.try_get::<i64, _>(0).ok()?).ok()?,
            last: u64::try_from(row.try_get::<i64, _>(1).ok()?).ok()?,
            root: Hash::from_bytes(row.try_get(2).ok()?)?,
            head: Hash::from_bytes(row.try_get(3).ok()?)?,
            made_at: time(tenant, row.try_get(4).ok()?).ok()?,
            public_key: row.try_get::<&[u8], _>(5).ok()?.try_into().ok()?,
            signature: row.try_get::<&[u8], _>(6).ok()?.try_into().ok()?,
        })
    };
    rows.iter()
        .map(|row| read(row).ok_or_else(|| unreadable(tenant, "a checkpoint", "its columns")))
        .collect()
}

/// SQLite has no arrays; a list of numbers travels as JSON.
fn json(numbers: &[i64]) -> String {
    let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    format!("[{}]", numbers.join(","))
}

fn time(tenant: &TenantId, microseconds: i64) -> Result<Timestamp, StoreError> {
    Timestamp::from_microsecond(microseconds).map_err(|error| unreadable(tenant, "a time", error))
}
