//! Reading whole books on SQLite, as the columns are: a page of entries and then its lines.

use postrider::envelope::TenantId;
use postrider::sqlite::Sqlite;
use postrider::store::StoreError;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

use crate::books::Bounds;
use crate::stored::{EntryRow, LineRow, signed, unreadable};

/// Entries of a page.
const PAGE: u64 = 2_000;

const ENTRIES: &str = "SELECT number, kind, effective_on, posted_at, source_event, payload_hash, rule, description, metadata, \
     refers_to, hash FROM ledger_entry WHERE tenant = ?1 AND number > ?2 AND number <= ?3 ORDER BY number";
const LINES: &str = "SELECT entry, line, account, side, amount, currency, base_amount, rate, rate_source FROM ledger_line \
     WHERE tenant = ?1 AND entry > ?2 AND entry <= ?3 ORDER BY entry, line";
/// One statement, so that nobody posts between the head and the rest; each number is the end of an index.
const BOUNDS: &str = "SELECT head_number, \
     (SELECT number FROM ledger_entry WHERE tenant = ?1 ORDER BY number LIMIT 1), \
     (SELECT number FROM ledger_entry WHERE tenant = ?1 ORDER BY number DESC LIMIT 1), \
     (SELECT entry FROM ledger_line WHERE tenant = ?1 ORDER BY entry LIMIT 1), \
     (SELECT entry FROM ledger_line WHERE tenant = ?1 ORDER BY entry DESC LIMIT 1) \
     FROM ledger_book WHERE tenant = ?1";

type BoundsRow = (i64, Option<i64>, Option<i64>, Option<i64>, Option<i64>);

pub(super) async fn bounds(
    store: &Sqlite,
    connection: &mut SqliteConnection,
    tenant: &TenantId,
) -> Result<Option<Bounds>, StoreError> {
    let row = sqlx::query_as::<_, BoundsRow>(BOUNDS).bind(tenant.as_str());
    let row = row.fetch_optional(connection).await.map_err(|cause| store.error(cause))?;
    Ok(row.map(|(head, first, last, first_line, last_line)| Bounds {
        head,
        entries: first.zip(last),
        lines: first_line.zip(last_line),
    }))
}

/// Shows the entries after one number up to another. Lines without an entry are passed over, because the gap where it was is seen.
pub(super) async fn scan(
    store: &Sqlite,
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    after: u64,
    last: u64,
    mut show: impl FnMut(&EntryRow<'_>, &[LineRow<'_>]) + Send,
) -> Result<(), StoreError> {
    let fail = |cause| store.error(cause);
    let mut at = after;
    while at < last {
        let until = last.min(at.saturating_add(PAGE));
        let page = |select: &'static str| {
            sqlx::query(select).bind(tenant.as_str()).bind(signed(at)).bind(signed(until))
        };
        let entries = page(ENTRIES).fetch_all(&mut *connection).await.map_err(fail)?;
        let lines = page(LINES).fetch_all(&mut *connection).await.map_err(fail)?;
        let bad = |Unread { place, cause }| {
            let place = place.unwrap_or_else(|| format!("one of the entries {} to {until}", at + 1));
            unreadable(tenant, place, cause)
        };
        pair(&entries, &lines, &mut show).map_err(bad)?;
        at = until;
    }
    Ok(())
}

fn pair(
    entries: &[SqliteRow],
    lines: &[SqliteRow],
    show: &mut impl FnMut(&EntryRow<'_>, &[LineRow<'_>]),
) -> Result<(), Unread> {
    let mut lines = lines.iter().map(line);
    let mut next = lines.next().transpose()?;
    let mut own = Vec::new();
    for row in entries {
        let entry = entry(row)?;
        own.clear();
        while let Some((number, line)) = next.filter(|(number, _)| *number <= entry.number) {
            if number == entry.number {
                own.push(line);
            }
            next = lines.next().transpose()?;
        }
        show(&entry, &own);
    }
    Ok(())
}

/// A row with a value that no ledger wrote, as columns take any; and which, if that can be told.
struct Unread {
    place: Option<String>,
    cause: sqlx::Error,
}

impl Unread {
    /// Both tables have the number of the entry first.
    fn new(row: &SqliteRow, what: &str, cause: sqlx::Error) -> Self {
        let number = row.try_get::<i64, _>(0);
        Self { place: number.ok().map(|number| format!("{what} {number}")), cause }
    }
}

fn entry(row: &SqliteRow) -> Result<EntryRow<'_>, Unread> {
    read_entry(row).map_err(|cause| Unread::new(row, "entry", cause))
}

/// A line, and the number of its entry.
fn line(row: &SqliteRow) -> Result<(i64, LineRow<'_>), Unread> {
    read_line(row).map_err(|cause| Unread::new(row, "a line of entry", cause))
}

fn read_entry(row: &SqliteRow) -> Result<EntryRow<'_>, sqlx::Error> {
    Ok(EntryRow {
        number: row.try_get(0)?,
        kind: row.try_get(1)?,
        effective_on: row.try_get(2)?,
        posted_at: row.try_get(3)?,
        source_event: row.try_get(4)?,
        payload_hash: row.try_get(5)?,
        rule: row.try_get(6)?,
        description: row.try_get(7)?,
        metadata: row.try_get(8)?,
        refers_to: row.try_get(9)?,
        hash: row.try_get(10)?,
    })
}

fn read_line(row: &SqliteRow) -> Result<(i64, LineRow<'_>), sqlx::Error> {
    let line = LineRow {
        line: row.try_get(1)?,
        account: row.try_get(2)?,
        side: row.try_get(3)?,
        amount: row.try_get(4)?,
        currency: row.try_get(5)?,
        base_amount: row.try_get(6)?,
        rate: row.try_get(7)?,
        rate_source: row.try_get(8)?,
    };
    Ok((row.try_get(0)?, line))
}
