//! Posting on PostgreSQL: a handful of statements a batch, however many entries it has.

use jiff_sqlx::ToSqlx as _;
use postrider::EventId;
use postrider::envelope::{PayloadHash, TenantId};
use postrider::postgres::Postgres;
use postrider::store::{StoreError, StoreErrorKind};
use sqlx::{PgConnection, Row as _};

use crate::account::Account;
use crate::books::{Balance, Head, Known, Page, Receipt};
use crate::chain::{Hash, days};
use crate::entry::{Line, Rate, Sealed};
use crate::stored::{signed, unreadable};

const LOCK: &str =
    "SELECT head_number, head_hash, version FROM postrider.ledger_book WHERE tenant = $1 FOR UPDATE";

/// One probe of the unique index an event. OFFSET 0 keeps the tenant out of the probe, because with it PostgreSQL may prefer the index
/// of the numbers, and read all of the tenant's entries.
const KNOWN: &str = "SELECT event.id, entry.payload_hash, entry.number, entry.hash FROM UNNEST($2::text[]) AS event (id) \
     CROSS JOIN LATERAL (SELECT tenant, payload_hash, number, hash FROM postrider.ledger_entry \
     WHERE source_event = event.id OFFSET 0) AS entry WHERE entry.tenant = $1";

/// UNNEST stands among the columns, here and below: as a table PostgreSQL would store each array and read it back, row by row. An array
/// of one is for all rows ([`once`]).
const ENTRIES: &str = "INSERT INTO postrider.ledger_entry (tenant, number, kind, effective_on, posted_at, source_event, \
     payload_hash, rule, description, metadata, refers_to, hash) \
     SELECT $1, number, CASE cardinality($3) WHEN 1 THEN ($3)[1] ELSE kind END, \
     date '1970-01-01' + CASE cardinality($4) WHEN 1 THEN ($4)[1] ELSE day END, \
     CASE cardinality($5) WHEN 1 THEN ($5)[1] ELSE posted_at END, source_event, payload_hash, \
     CASE cardinality($8) WHEN 1 THEN ($8)[1] ELSE rule END, CASE cardinality($9) WHEN 1 THEN ($9)[1] ELSE description END, \
     CASE cardinality($10) WHEN 1 THEN ($10)[1] ELSE metadata END, \
     CASE cardinality($11) WHEN 1 THEN ($11)[1] ELSE refers_to END, hash \
     FROM (SELECT UNNEST($2::bigint[]) AS number, UNNEST($3::smallint[]) AS kind, UNNEST($4::int[]) AS day, \
     UNNEST($5::timestamptz[]) AS posted_at, UNNEST($6::text[]) AS source_event, UNNEST($7::bytea[]) AS payload_hash, \
     UNNEST($8::text[]) AS rule, UNNEST($9::text[]) AS description, UNNEST($10::text[]) AS metadata, \
     UNNEST($11::bigint[]) AS refers_to, UNNEST($12::bytea[]) AS hash) AS entry";

const LINES: &str = "INSERT INTO postrider.ledger_line (tenant, entry, line, account, side, amount, currency, base_amount, \
     rate, rate_source) SELECT $1, entry, line, account, side, amount, \
     CASE cardinality($7) WHEN 1 THEN ($7)[1] ELSE currency END, base_amount, \
     CASE cardinality($9) WHEN 1 THEN ($9)[1] ELSE rate END, CASE cardinality($10) WHEN 1 THEN ($10)[1] ELSE rate_source END \
     FROM (SELECT UNNEST($2::bigint[]) AS entry, UNNEST($3::smallint[]) AS line, UNNEST($4::text[]) AS account, \
     UNNEST($5::smallint[]) AS side, UNNEST($6::bigint[]) AS amount, UNNEST($7::text[]) AS currency, \
     UNNEST($8::bigint[]) AS base_amount, UNNEST($9::text[]) AS rate, UNNEST($10::text[]) AS rate_source) AS line";

/// Rows come in the order of the arrays, which are sorted: locks are always taken in one order.
const BALANCES: &str = "INSERT INTO postrider.ledger_balance AS balance (tenant, account, currency, debits, credits, \
     base_debits, base_credits, pending_debits, pending_credits) \
     SELECT $1, account, CASE cardinality($3) WHEN 1 THEN ($3)[1] ELSE currency END, debits, credits, base_debits, base_credits, \
     CASE cardinality($8) WHEN 1 THEN ($8)[1] ELSE pending_debits END, \
     CASE cardinality($9) WHEN 1 THEN ($9)[1] ELSE pending_credits END \
     FROM (SELECT UNNEST($2::text[]) AS account, UNNEST($3::text[]) AS currency, UNNEST($4::bigint[]) AS debits, \
     UNNEST($5::bigint[]) AS credits, UNNEST($6::bigint[]) AS base_debits, UNNEST($7::bigint[]) AS base_credits, \
     UNNEST($8::bigint[]) AS pending_debits, UNNEST($9::bigint[]) AS pending_credits) AS change \
     ON CONFLICT (tenant, account, currency) DO UPDATE SET debits = balance.debits + EXCLUDED.debits, \
     credits = balance.credits + EXCLUDED.credits, base_debits = balance.base_debits + EXCLUDED.base_debits, \
     base_credits = balance.base_credits + EXCLUDED.base_credits, \
     pending_debits = balance.pending_debits + EXCLUDED.pending_debits, \
     pending_credits = balance.pending_credits + EXCLUDED.pending_credits";

const DAYS: &str = "INSERT INTO postrider.ledger_day AS total (tenant, account, currency, day, debits, credits, base_debits, \
     base_credits) SELECT $1, account, CASE cardinality($3) WHEN 1 THEN ($3)[1] ELSE currency END, \
     date '1970-01-01' + CASE cardinality($4) WHEN 1 THEN ($4)[1] ELSE day END, debits, credits, base_debits, base_credits \
     FROM (SELECT UNNEST($2::text[]) AS account, UNNEST($3::text[]) AS currency, UNNEST($4::int[]) AS day, \
     UNNEST($5::bigint[]) AS debits, UNNEST($6::bigint[]) AS credits, UNNEST($7::bigint[]) AS base_debits, \
     UNNEST($8::bigint[]) AS base_credits) AS change \
     ON CONFLICT (tenant, account, currency, day) DO UPDATE SET debits = total.debits + EXCLUDED.debits, \
     credits = total.credits + EXCLUDED.credits, base_debits = total.base_debits + EXCLUDED.base_debits, \
     base_credits = total.base_credits + EXCLUDED.base_credits";

/// Only the one who has the lock moves the head, and only by what it wrote.
const HEAD: &str = "UPDATE postrider.ledger_book SET head_number = $2, head_hash = $3 WHERE tenant = $1 AND head_number = $4";

pub(super) async fn lock(
    store: &Postgres,
    connection: &mut PgConnection,
    tenant: &TenantId,
) -> Result<Option<Head>, StoreError> {
    let row = sqlx::query(LOCK).bind(tenant.as_str()).fetch_optional(connection).await;
    let row = row.map_err(|cause| store.error("locking the books", cause))?;
    row.map(|row| super::reading::read_head(tenant, &row)).transpose()
}

pub(super) async fn known(
    store: &Postgres,
    connection: &mut PgConnection,
    tenant: &TenantId,
    events: &[EventId],
) -> Result<Vec<Known>, StoreError> {
    let ids: Vec<&str> = events.iter().map(EventId::as_str).collect();
    let rows = sqlx::query(KNOWN).bind(tenant.as_str()).bind(ids).fetch_all(connection).await;
    let rows = rows.map_err(|cause| store.error("looking for known events", cause))?;
    rows.iter()
        .map(|row| {
            let number: i64 = row.get(2);
            let bad = || unreadable(tenant, format!("entry {number}"), "source or hash");
            Ok(Known {
                event: EventId::new(row.get::<&str, _>(0)).map_err(|_| bad())?,
                payload_hash: PayloadHash::from_bytes(row.get(1)).ok_or_else(bad)?,
                receipt: Receipt {
                    entry: u64::try_from(number).map_err(|_| bad())?,
                    hash: Hash::from_bytes(row.get(3)).ok_or_else(bad)?,
                },
            })
        })
        .collect()
}

pub(super) async fn write(
    store: &Postgres,
    connection: &mut PgConnection,
    tenant: &TenantId,
    page: &Page,
) -> Result<(), StoreError> {
    let (Some(first), Some(last)) = (page.entries.first(), page.entries.last()) else { return Ok(()) };
    let writing = async {
        super::changing::insert_accounts(connection, tenant, &page.opened, super::changing::IF_ABSENT)
            .await?;
        insert_entries(connection, tenant, &page.entries).await?;
        insert_lines(connection, tenant, &page.entries).await?;
        add_balances(connection, tenant, &page.changes).await?;
        add_days(connection, tenant, page).await?;
        let head =
            sqlx::query(HEAD).bind(tenant.as_str()).bind(signed(last.number)).bind(last.hash.0.as_slice());
        head.bind(signed(first.number) - 1).execute(connection).await
    };
    let moved = writing.await.map_err(|cause| store.error("posting", cause))?;
    if moved.rows_affected() == 1 {
        return Ok(());
    }
    let text = "the chain has moved on since it was read; nothing was posted, try again";
    Err(StoreError::new(StoreErrorKind::Contended, text))
}

async fn insert_entries(
    connection: &mut PgConnection,
    tenant: &TenantId,
    entries: &[Sealed],
) -> Result<(), sqlx::Error> {
    let text = |of: fn(&Sealed) -> &str| entries.iter().map(of);
    sqlx::query(ENTRIES)
        .bind(tenant.as_str())
        .bind(entries.iter().map(|entry| signed(entry.number)).collect::<Vec<_>>())
        .bind(once(entries.iter().map(|entry| i16::from(entry.kind.number()))))
        .bind(once(entries.iter().map(|entry| days(entry.effective_on))))
        .bind(once(entries.iter().map(|entry| entry.posted_at.to_sqlx())))
        .bind(text(|entry| entry.source.event.as_str()).collect::<Vec<_>>())
        .bind(entries.iter().map(|entry| entry.source.payload_hash.as_bytes().as_slice()).collect::<Vec<_>>())
        .bind(once(text(|entry| &entry.source.rule)))
        .bind(once(text(|entry| &entry.description)))
        .bind(once(text(|entry| &entry.metadata)))
        .bind(once(entries.iter().map(|entry| entry.refers_to.map(signed))))
        .bind(entries.iter().map(|entry| entry.hash.0.as_slice()).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

async fn insert_lines(
    connection: &mut PgConnection,
    tenant: &TenantId,
    entries: &[Sealed],
) -> Result<(), sqlx::Error> {
    let numbered = |entry: &Sealed| std::iter::repeat_n(signed(entry.number), entry.lines.len());
    let lines: Vec<&Line> = entries.iter().flat_map(|entry| &entry.lines).collect();
    let places = entries.iter().flat_map(|entry| (1_i16..).take(entry.lines.len()));
    let rates = |of: fn(&Rate) -> &str| once(lines.iter().map(|line| line.rate.as_ref().map(of)));
    sqlx::query(LINES)
        .bind(tenant.as_str())
        .bind(entries.iter().flat_map(numbered).collect::<Vec<_>>())
        .bind(places.collect::<Vec<_>>())
        .bind(lines.iter().map(|line| line.account.as_str()).collect::<Vec<_>>())
        .bind(lines.iter().map(|line| i16::from(line.side.number())).collect::<Vec<_>>())
        .bind(lines.iter().map(|line| line.amount).collect::<Vec<_>>())
        .bind(once(lines.iter().map(|line| line.currency.code())))
        .bind(lines.iter().map(|line| line.base_amount).collect::<Vec<_>>())
        .bind(rates(|rate| &rate.rate))
        .bind(rates(|rate| &rate.source))
        .execute(connection)
        .await?;
    Ok(())
}

async fn add_balances(
    connection: &mut PgConnection,
    tenant: &TenantId,
    changes: &[Balance],
) -> Result<(), sqlx::Error> {
    let sums = |of: fn(&Balance) -> i64| changes.iter().map(of).collect::<Vec<_>>();
    sqlx::query(BALANCES)
        .bind(tenant.as_str())
        .bind(changes.iter().map(|change| change.account.as_str()).collect::<Vec<_>>())
        .bind(once(changes.iter().map(|change| change.currency.code())))
        .bind(sums(|change| change.sums.debits))
        .bind(sums(|change| change.sums.credits))
        .bind(sums(|change| change.sums.base_debits))
        .bind(sums(|change| change.sums.base_credits))
        .bind(once(changes.iter().map(|change| change.sums.pending_debits)))
        .bind(once(changes.iter().map(|change| change.sums.pending_credits)))
        .execute(connection)
        .await?;
    Ok(())
}

async fn add_days(connection: &mut PgConnection, tenant: &TenantId, page: &Page) -> Result<(), sqlx::Error> {
    let sums = |of: fn(&Balance) -> i64| page.days.iter().map(|(_, change)| of(change)).collect::<Vec<_>>();
    sqlx::query(DAYS)
        .bind(tenant.as_str())
        .bind(page.days.iter().map(|(_, change)| change.account.as_str()).collect::<Vec<_>>())
        .bind(once(page.days.iter().map(|(_, change)| change.currency.code())))
        .bind(once(page.days.iter().map(|(day, _)| days(*day))))
        .bind(sums(|change| change.sums.debits))
        .bind(sums(|change| change.sums.credits))
        .bind(sums(|change| change.sums.base_debits))
        .bind(sums(|change| change.sums.base_credits))
        .execute(connection)
        .await?;
    Ok(())
}

/// A column, as an array of one where all rows have the same: what PostgreSQL spends on the elements of arrays is a good part of a
/// batch, and many columns say the same in every row.
fn once<T: PartialEq>(rows: impl Iterator<Item = T>) -> Vec<T> {
    let mut column: Vec<T> = rows.collect();
    if column.iter().skip(1).all(|row| Some(row) == column.first()) {
        column.truncate(1);
    }
    column
}

/// Accounts are few; they are written as they come.
pub(super) fn account_columns(account: &Account) -> (Option<i16>, Option<&str>) {
    (
        account.normal_side.map(|side| i16::from(side.number())),
        account.currency.as_ref().map(crate::money::Currency::code),
    )
}
