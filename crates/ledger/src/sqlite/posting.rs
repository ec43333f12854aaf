//! Posting on SQLite: many rows a statement, because every statement is a trip to SQLite's thread.

use postrider::EventId;
use postrider::envelope::{PayloadHash, TenantId};
use postrider::sqlite::Sqlite;
use postrider::store::{StoreError, StoreErrorKind};
use sqlx::{QueryBuilder, Row as _, SqliteConnection};

use crate::books::{Balance, Known, Page, Receipt};
use crate::chain::{Hash, days};
use crate::entry::Sealed;
use crate::stored::{signed, unreadable};

/// Rows a statement: SQLite takes 32,766 values at most, and no table has more than twelve columns.
const ROWS: usize = 2000;

pub(super) async fn known(
    store: &Sqlite,
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    events: &[EventId],
) -> Result<Vec<Known>, StoreError> {
    let mut known = Vec::new();
    for events in events.chunks(ROWS) {
        let mut query: QueryBuilder<sqlx::Sqlite> = QueryBuilder::new(
            "SELECT source_event, payload_hash, number, hash FROM ledger_entry WHERE tenant = ",
        );
        query.push_bind(tenant.as_str()).push(" AND source_event IN (");
        let mut list = query.separated(", ");
        for event in events {
            list.push_bind(event.as_str());
        }
        query.push(")");
        let rows = query.build().fetch_all(&mut *connection).await.map_err(|cause| store.error(cause))?;
        for row in rows {
            // Never a number that it does not have: whoever asks would be told of that entry.
            let number = row.try_get::<i64, _>(2);
            let number = number.map_err(|error| unreadable(tenant, "the number of an entry", error))?;
            let bad = || unreadable(tenant, format!("entry {number}"), "source or hash");
            let event = row.try_get::<&str, _>(0).map_err(|_| bad())?;
            let bytes = |column: usize| row.try_get::<&[u8], _>(column).map_err(|_| bad());
            known.push(Known {
                event: EventId::new(event).map_err(|_| bad())?,
                payload_hash: PayloadHash::from_bytes(bytes(1)?).ok_or_else(bad)?,
                receipt: Receipt {
                    entry: u64::try_from(number).map_err(|_| bad())?,
                    hash: Hash::from_bytes(bytes(3)?).ok_or_else(bad)?,
                },
            });
        }
    }
    Ok(known)
}

pub(super) async fn write(
    store: &Sqlite,
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    page: &Page,
) -> Result<(), StoreError> {
    let (Some(first), Some(last)) = (page.entries.first(), page.entries.last()) else { return Ok(()) };
    let writing = async {
        super::changing::insert_accounts(connection, tenant, &page.opened, "DO NOTHING").await?;
        insert_entries(connection, tenant, &page.entries).await?;
        insert_lines(connection, tenant, &page.entries).await?;
        add_balances(connection, tenant, &page.changes).await?;
        add_days(connection, tenant, page).await?;
        let update =
            "UPDATE ledger_book SET head_number = ?, head_hash = ? WHERE tenant = ? AND head_number = ?";
        let update = sqlx::query(update).bind(signed(last.number)).bind(last.hash.0.as_slice());
        update.bind(tenant.as_str()).bind(signed(first.number) - 1).execute(connection).await
    };
    let moved = writing.await.map_err(|cause| store.error(cause))?;
    if moved.rows_affected() == 1 {
        return Ok(());
    }
    let text = "the chain has moved on since it was read; nothing was posted, try again";
    Err(StoreError::new(StoreErrorKind::Contended, text))
}

async fn insert_entries(
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    entries: &[Sealed],
) -> Result<(), sqlx::Error> {
    for entries in entries.chunks(ROWS) {
        let mut insert: QueryBuilder<sqlx::Sqlite> = QueryBuilder::new(
            "INSERT INTO ledger_entry (tenant, number, kind, effective_on, posted_at, source_event, payload_hash, rule, \
             description, metadata, refers_to, hash) ",
        );
        insert.push_values(entries, |mut row, entry| {
            row.push_bind(tenant.as_str())
                .push_bind(signed(entry.number))
                .push_bind(entry.kind.number())
                .push_bind(days(entry.effective_on))
                .push_bind(entry.posted_at.as_microsecond())
                .push_bind(entry.source.event.as_str())
                .push_bind(entry.source.payload_hash.as_bytes().as_slice())
                .push_bind(entry.source.rule.as_str())
                .push_bind(&*entry.description)
                .push_bind(&*entry.metadata)
                .push_bind(entry.refers_to.map(signed))
                .push_bind(entry.hash.0.as_slice());
        });
        insert.build().execute(&mut *connection).await?;
    }
    Ok(())
}

async fn insert_lines(
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    entries: &[Sealed],
) -> Result<(), sqlx::Error> {
    let numbered = |entry: &Sealed| std::iter::repeat_n(signed(entry.number), entry.lines.len());
    let lines = entries.iter().flat_map(|entry| numbered(entry).zip(1_i64..).zip(&entry.lines));
    let lines: Vec<_> = lines.collect();
    for lines in lines.chunks(ROWS) {
        let mut insert: QueryBuilder<sqlx::Sqlite> = QueryBuilder::new(
            "INSERT INTO ledger_line (tenant, entry, line, account, side, amount, currency, base_amount, rate, rate_source) ",
        );
        insert.push_values(lines, |mut row, ((entry, place), line)| {
            row.push_bind(tenant.as_str())
                .push_bind(*entry)
                .push_bind(*place)
                .push_bind(line.account.as_str())
                .push_bind(line.side.number())
                .push_bind(line.amount)
                .push_bind(line.currency.code())
                .push_bind(line.base_amount)
                .push_bind(line.rate.as_ref().map(|rate| rate.rate.as_str()))
                .push_bind(line.rate.as_ref().map(|rate| rate.source.as_str()));
        });
        insert.build().execute(&mut *connection).await?;
    }
    Ok(())
}

async fn add_balances(
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    changes: &[Balance],
) -> Result<(), sqlx::Error> {
    for changes in changes.chunks(ROWS) {
        let mut upsert: QueryBuilder<sqlx::Sqlite> = QueryBuilder::new(
            "INSERT INTO ledger_balance (tenant, account, currency, debits, credits, base_debits, base_credits, \
             pending_debits, pending_credits) ",
        );
        upsert.push_values(changes, |mut row, change| {
            row.push_bind(tenant.as_str())
                .push_bind(change.account.as_str())
                .push_bind(change.currency.code())
                .push_bind(change.sums.debits)
                .push_bind(change.sums.credits)
                .push_bind(change.sums.base_debits)
                .push_bind(change.sums.base_credits)
                .push_bind(change.sums.pending_debits)
                .push_bind(change.sums.pending_credits);
        });
        upsert.push(
            " ON CONFLICT DO UPDATE SET debits = debits + excluded.debits, credits = credits + excluded.credits, \
             base_debits = base_debits + excluded.base_debits, base_credits = base_credits + excluded.base_credits, \
             pending_debits = pending_debits + excluded.pending_debits, \
             pending_credits = pending_credits + excluded.pending_credits",
        );
        upsert.build().execute(&mut *connection).await?;
    }
    Ok(())
}

async fn add_days(
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    page: &Page,
) -> Result<(), sqlx::Error> {
    for changes in page.days.chunks(ROWS) {
        let mut upsert: QueryBuilder<sqlx::Sqlite> = QueryBuilder::new(
            "INSERT INTO ledger_day (tenant, account, currency, day, debits, credits, base_debits, base_credits) ",
        );
        upsert.push_values(changes, |mut row, (day, change)| {
            row.push_bind(tenant.as_str())
                .push_bind(change.account.as_str())
                .push_bind(change.currency.code())
                .push_bind(days(*day))
                .push_bind(change.sums.debits)
                .push_bind(change.sums.credits)
                .push_bind(change.sums.base_debits)
                .push_bind(change.sums.base_credits);
        });
        upsert.push(
            " ON CONFLICT DO UPDATE SET debits = debits + excluded.debits, credits = credits + excluded.credits, \
             base_debits = base_debits + excluded.base_debits, base_credits = base_credits + excluded.base_credits",
        );
        upsert.build().execute(&mut *connection).await?;
    }
    Ok(())
}
