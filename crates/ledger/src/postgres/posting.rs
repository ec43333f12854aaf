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

const ENTRIES: &str = "INSERT INTO postrider.ledger_entry (tenant, number, kind, effective_on, posted_at, source_event, \
     payload_hash, rule, description, metadata, refers_to, hash) \
     SELECT $1, number, kind, date '1970-01-01' + day, posted_at, source_event, payload_hash, rule, description, metadata, \
     refers_to, hash FROM UNNEST($2::bigint[], $3::smallint[], $4::int[], $5::timestamptz[], $6::text[], $7::bytea[], \
     $8::text[], $9::text[], $10::text[], $11::bigint[], $12::bytea[]) AS entry (number, kind, day, posted_at, source_event, \
     payload_hash, rule, description, metadata, refers_to, hash)";

const LINES: &str = "INSERT INTO postrider.ledger_line (tenant, entry, line, account, side, amount, currency, base_amount, \
     rate, rate_source) SELECT $1, entry, line, account, side, amount, currency, base_amount, rate, rate_source \
     FROM UNNEST($2::bigint[], $3::smallint[], $4::text[], $5::smallint[], $6::bigint[], $7::text[], $8::bigint[], \
     $9::text[], $10::text[]) AS line (entry, line, account, side, amount, currency, base_amount, rate, rate_source)";

/// Rows of UNNEST come in the order of the arrays, which are sorted: locks are always taken in one order.
const BALANCES: &str = "INSERT INTO postrider.ledger_balance AS balance (tenant, account, currency, debits, credits, \
     base_debits, base_credits, pending_debits, pending_credits) SELECT $1, * FROM UNNEST($2::text[], $3::text[], \
     $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[]) \
     ON CONFLICT (tenant, account, currency) DO UPDATE SET debits = balance.debits + EXCLUDED.debits, \
     credits = balance.credits + EXCLUDED.credits, base_debits = balance.base_debits + EXCLUDED.base_debits, \
     base_credits = balance.base_credits + EXCLUDED.base_credits, \
     pending_debits = balance.pending_debits + EXCLUDED.pending_debits, \
     pending_credits = balance.pending_credits + EXCLUDED.pending_credits";

const DAYS: &str = "INSERT INTO postrider.ledger_day AS total (tenant, account, currency, day, debits, credits, base_debits, \
     base_credits) SELECT $1, account, currency, date '1970-01-01' + day, debits, credits, base_debits, base_credits \
     FROM UNNEST($2::text[], $3::text[], $4::int[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[]) \
     AS change (account, currency, day, debits, credits, base_debits, base_credits) \
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
    let text = |of: fn(&Sealed) -> &str| entries.iter().map(of).collect::<Vec<_>>();
    sqlx::query(ENTRIES)
        .bind(tenant.as_str())
        .bind(entries.iter().map(|entry| signed(entry.number)).collect::<Vec<_>>())
        .bind(entries.iter().map(|entry| i16::from(entry.kind.number())).collect::<Vec<_>>())
        .bind(entries.iter().map(|entry| days(entry.effective_on)).collect::<Vec<_>>())
        .bind(entries.iter().map(|entry| entry.posted_at.to_sqlx()).collect::<Vec<_>>())
        .bind(text(|entry| entry.source.event.as_str()))
        .bind(entries.iter().map(|entry| entry.source.payload_hash.as_bytes().as_slice()).collect::<Vec<_>>())
        .bind(text(|entry| &entry.source.rule))
        .bind(text(|entry| &entry.description))
        .bind(text(|entry| &entry.metadata))
        .bind(entries.iter().map(|entry| entry.refers_to.map(signed)).collect::<Vec<_>>())
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
    let rates =
        |of: fn(&Rate) -> &str| lines.iter().map(|line| line.rate.as_ref().map(of)).collect::<Vec<_>>();
    sqlx::query(LINES)
        .bind(tenant.as_str())
        .bind(entries.iter().flat_map(numbered).collect::<Vec<_>>())
        .bind(places.collect::<Vec<_>>())
        .bind(lines.iter().map(|line| line.account.as_str()).collect::<Vec<_>>())
        .bind(lines.iter().map(|line| i16::from(line.side.number())).collect::<Vec<_>>())
        .bind(lines.iter().map(|line| line.amount).collect::<Vec<_>>())
        .bind(lines.iter().map(|line| line.currency.code()).collect::<Vec<_>>())
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
        .bind(changes.iter().map(|change| change.currency.code()).collect::<Vec<_>>())
        .bind(sums(|change| change.sums.debits))
        .bind(sums(|change| change.sums.credits))
        .bind(sums(|change| change.sums.base_debits))
        .bind(sums(|change| change.sums.base_credits))
        .bind(sums(|change| change.sums.pending_debits))
        .bind(sums(|change| change.sums.pending_credits))
        .execute(connection)
        .await?;
    Ok(())
}

async fn add_days(connection: &mut PgConnection, tenant: &TenantId, page: &Page) -> Result<(), sqlx::Error> {
    let sums = |of: fn(&Balance) -> i64| page.days.iter().map(|(_, change)| of(change)).collect::<Vec<_>>();
    sqlx::query(DAYS)
        .bind(tenant.as_str())
        .bind(page.days.iter().map(|(_, change)| change.account.as_str()).collect::<Vec<_>>())
        .bind(page.days.iter().map(|(_, change)| change.currency.code()).collect::<Vec<_>>())
        .bind(page.days.iter().map(|(day, _)| days(*day)).collect::<Vec<_>>())
        .bind(sums(|change| change.sums.debits))
        .bind(sums(|change| change.sums.credits))
        .bind(sums(|change| change.sums.base_debits))
        .bind(sums(|change| change.sums.base_credits))
        .execute(connection)
        .await?;
    Ok(())
}

/// Accounts are few; they are written as they come.
pub(super) fn account_columns(account: &Account) -> (Option<i16>, Option<&str>) {
    (
        account.normal_side.map(|side| i16::from(side.number())),
        account.currency.as_ref().map(crate::money::Currency::code),
    )
}
