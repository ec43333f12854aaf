//! Reading whole books, as fast as PostgreSQL can tell them: COPY in binary, a page of entries and then its lines, nothing of it
//! allocated row by row.

use futures_util::TryStreamExt as _;
use postrider::envelope::TenantId;
use postrider::postgres::Postgres;
use postrider::store::StoreError;
use sqlx::PgConnection;

use crate::stored::{EntryRow, LineRow, unreadable};

/// Entries of a page: with their lines a few megabytes.
const PAGE: u64 = 5_000;
/// The signature, the flags, and the length of what follows them.
const HEADER: usize = 19;
/// PostgreSQL counts from 2000-01-01, we from 1970-01-01.
const DAYS: i32 = 10_957;
const MICROSECONDS: i64 = 946_684_800_000_000;

/// Both are walks along an index, whatever the statistics make PostgreSQL think.
const ALONG_THE_INDEX: &str =
    "SELECT set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true)";

/// COPY takes no parameters; the tenant is that of the transaction, and all else are numbers.
fn entries(after: u64, last: u64) -> String {
    format!(
        "COPY (SELECT number, kind, effective_on, posted_at, source_event, payload_hash, rule, description, metadata, refers_to, \
         hash FROM postrider.ledger_entry WHERE tenant = (SELECT current_setting('postrider.tenant')) \
         AND number > {after} AND number <= {last} ORDER BY number) TO STDOUT (FORMAT binary)"
    )
}

fn lines(after: u64, last: u64) -> String {
    format!(
        "COPY (SELECT entry, account, side, amount, currency, base_amount, rate, rate_source FROM postrider.ledger_line \
         WHERE tenant = (SELECT current_setting('postrider.tenant')) AND entry > {after} AND entry <= {last} \
         ORDER BY entry, line) TO STDOUT (FORMAT binary)"
    )
}

/// Shows the entries after one number up to another. The transaction has to have named its tenant.
pub(super) async fn scan(
    store: &Postgres,
    connection: &mut PgConnection,
    tenant: &TenantId,
    after: u64,
    last: u64,
    mut show: impl FnMut(&EntryRow<'_>, &[LineRow<'_>]) + Send,
) -> Result<(), StoreError> {
    let walk = sqlx::query(ALONG_THE_INDEX).execute(&mut *connection).await;
    walk.map_err(|cause| store.error("reading the books", cause))?;
    let (mut told_entries, mut told_lines, mut at) = (Vec::new(), Vec::new(), after);
    while at < last {
        let until = last.min(at.saturating_add(PAGE));
        tell(store, connection, &entries(at, until), &mut told_entries).await?;
        tell(store, connection, &lines(at, until), &mut told_lines).await?;
        let bad = || unreadable(tenant, format!("one of the entries {} to {until}", at + 1), "its columns");
        pair(&told_entries, &told_lines, &mut show, &bad)?;
        at = until;
    }
    Ok(())
}

async fn tell(
    store: &Postgres,
    connection: &mut PgConnection,
    copy: &str,
    told: &mut Vec<u8>,
) -> Result<(), StoreError> {
    let fail = |cause| store.error("reading the books", cause);
    told.clear();
    let mut stream = connection.copy_out_raw(copy).await.map_err(fail)?;
    while let Some(bytes) = stream.try_next().await.map_err(fail)? {
        told.extend_from_slice(&bytes);
    }
    Ok(())
}

/// Shows every entry with its lines. Both come in the order of the numbers; lines without an entry are passed over, because the gap
/// where it was is seen.
fn pair(
    entries: &[u8],
    lines: &[u8],
    show: &mut impl FnMut(&EntryRow<'_>, &[LineRow<'_>]),
    bad: &impl Fn() -> StoreError,
) -> Result<(), StoreError> {
    let (mut entries, mut lines) = (Rows(body(entries)), Rows(body(lines)));
    let mut next = lines.next_line().ok_or_else(bad)?;
    let mut own = Vec::new();
    while let Some(entry) = entries.next_entry().ok_or_else(bad)? {
        own.clear();
        while let Some((number, line)) = next.filter(|(number, _)| *number <= entry.number) {
            if number == entry.number {
                own.push(line);
            }
            next = lines.next_line().ok_or_else(bad)?;
        }
        show(&entry, &own);
    }
    Ok(())
}

fn body(told: &[u8]) -> &[u8] {
    told.get(HEADER..).unwrap_or_default()
}

/// Rows that are left, each as COPY writes it: how many columns, and each with its length before it.
struct Rows<'a>(&'a [u8]);

impl<'a> Rows<'a> {
    /// The next entry; none at the end. Nothing at all where the bytes are no entry.
    fn next_entry(&mut self) -> Option<Option<EntryRow<'a>>> {
        if !self.begin(11)? {
            return Some(None);
        }
        Some(Some(EntryRow {
            number: self.long()?,
            kind: self.short()?,
            effective_on: i32::from_be_bytes(self.fixed()?).saturating_add(DAYS),
            posted_at: self.long()?.saturating_add(MICROSECONDS),
            source_event: self.text()?,
            payload_hash: self.column()??,
            rule: self.text()?,
            description: self.text()?,
            metadata: self.text()?,
            refers_to: match self.column()? {
                Some(number) => Some(i64::from_be_bytes(number.try_into().ok()?)),
                None => None,
            },
            hash: self.column()??,
        }))
    }

    /// The next line and the number of its entry.
    fn next_line(&mut self) -> Option<Option<(i64, LineRow<'a>)>> {
        if !self.begin(8)? {
            return Some(None);
        }
        let entry = self.long()?;
        let line = LineRow {
            account: self.text()?,
            side: self.short()?,
            amount: self.long()?,
            currency: self.text()?,
            base_amount: self.long()?,
            rate: self.maybe_text()?,
            rate_source: self.maybe_text()?,
        };
        Some(Some((entry, line)))
    }

    /// Whether there is another row.
    fn begin(&mut self, columns: i16) -> Option<bool> {
        let count = i16::from_be_bytes(*self.0.split_off(..2)?.first_chunk()?);
        match count {
            -1 => Some(false),
            count if count == columns => Some(true),
            _ => None,
        }
    }

    /// The next column; none for NULL.
    fn column(&mut self) -> Option<Option<&'a [u8]>> {
        let length = i32::from_be_bytes(*self.0.split_off(..4)?.first_chunk()?);
        match usize::try_from(length) {
            Ok(length) => self.0.split_off(..length).map(Some),
            Err(_) => Some(None),
        }
    }

    fn fixed<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.column()??.try_into().ok()
    }

    fn long(&mut self) -> Option<i64> {
        self.fixed().map(i64::from_be_bytes)
    }

    fn short(&mut self) -> Option<i16> {
        self.fixed().map(i16::from_be_bytes)
    }

    fn maybe_text(&mut self) -> Option<Option<&'a str>> {
        match self.column()? {
            Some(bytes) => std::str::from_utf8(bytes).ok().map(Some),
            None => Some(None),
        }
    }

    fn text(&mut self) -> Option<&'a str> {
        self.maybe_text()?
    }
}
