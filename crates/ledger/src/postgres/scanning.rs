//! Reading whole books, as fast as PostgreSQL can tell them: COPY in binary, a page of entries and then its lines, nothing of it
//! allocated row by row.

use futures_util::TryStreamExt as _;
use postrider::envelope::TenantId;
use postrider::postgres::Postgres;
use postrider::store::StoreError;
use sqlx::PgConnection;

use crate::books::Bounds;
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
        "COPY (SELECT entry, line, account, side, amount, currency, base_amount, rate, rate_source FROM postrider.ledger_line \
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

/// One statement, so that nobody posts between the head and the rest; each number is the end of an index.
const BOUNDS: &str = "SELECT head_number, \
     (SELECT number FROM postrider.ledger_entry WHERE tenant = $1 ORDER BY number LIMIT 1), \
     (SELECT number FROM postrider.ledger_entry WHERE tenant = $1 ORDER BY number DESC LIMIT 1), \
     (SELECT entry FROM postrider.ledger_line WHERE tenant = $1 ORDER BY entry LIMIT 1), \
     (SELECT entry FROM postrider.ledger_line WHERE tenant = $1 ORDER BY entry DESC LIMIT 1) \
     FROM postrider.ledger_book WHERE tenant = $1";

pub(super) async fn bounds(
    store: &Postgres,
    connection: &mut PgConnection,
    tenant: &TenantId,
) -> Result<Option<Bounds>, StoreError> {
    let fail = |cause| store.error("reading the bounds of the books", cause);
    sqlx::query(ALONG_THE_INDEX).execute(&mut *connection).await.map_err(fail)?;
    let row = sqlx::query_as::<_, BoundsRow>(BOUNDS).bind(tenant.as_str());
    let row = row.fetch_optional(connection).await.map_err(fail)?;
    Ok(row.map(|(head, first, last, first_line, last_line)| Bounds {
        head,
        entries: first.zip(last),
        lines: first_line.zip(last_line),
    }))
}

type BoundsRow = (i64, Option<i64>, Option<i64>, Option<i64>, Option<i64>);

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
    let mut next = lines.next_line().map_err(|Broken| bad())?;
    let mut own = Vec::new();
    while let Some(entry) = entries.next_entry().map_err(|Broken| bad())? {
        own.clear();
        while let Some((number, line)) = next.filter(|(number, _)| *number <= entry.number) {
            if number == entry.number {
                own.push(line);
            }
            next = lines.next_line().map_err(|Broken| bad())?;
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

/// The bytes are not what COPY writes of these columns.
struct Broken;

impl<'a> Rows<'a> {
    /// The next entry; none at the end.
    fn next_entry(&mut self) -> Result<Option<EntryRow<'a>>, Broken> {
        if !self.begin(11)? {
            return Ok(None);
        }
        Ok(Some(EntryRow {
            number: self.long()?,
            kind: self.short()?,
            effective_on: i32::from_be_bytes(self.fixed()?).saturating_add(DAYS),
            posted_at: self.long()?.saturating_add(MICROSECONDS),
            source_event: self.text()?,
            payload_hash: self.column()?.ok_or(Broken)?,
            rule: self.text()?,
            description: self.text()?,
            metadata: self.text()?,
            refers_to: match self.column()? {
                Some(number) => Some(i64::from_be_bytes(number.try_into().map_err(|_| Broken)?)),
                None => None,
            },
            hash: self.column()?.ok_or(Broken)?,
        }))
    }

    /// The next line and the number of its entry; none at the end.
    fn next_line(&mut self) -> Result<Option<(i64, LineRow<'a>)>, Broken> {
        if !self.begin(9)? {
            return Ok(None);
        }
        let entry = self.long()?;
        let line = LineRow {
            line: self.short()?.into(),
            account: self.text()?,
            side: self.short()?,
            amount: self.long()?,
            currency: self.text()?,
            base_amount: self.long()?,
            rate: self.maybe_text()?,
            rate_source: self.maybe_text()?,
        };
        Ok(Some((entry, line)))
    }

    /// Whether there is another row.
    fn begin(&mut self, columns: i16) -> Result<bool, Broken> {
        match i16::from_be_bytes(self.take()?) {
            -1 => Ok(false),
            count if count == columns => Ok(true),
            _ => Err(Broken),
        }
    }

    /// The next column; none for NULL.
    fn column(&mut self) -> Result<Option<&'a [u8]>, Broken> {
        match usize::try_from(i32::from_be_bytes(self.take()?)) {
            Ok(length) => self.0.split_off(..length).map(Some).ok_or(Broken),
            Err(_) => Ok(None),
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Broken> {
        let taken = self.0.split_off(..N).ok_or(Broken)?;
        taken.try_into().map_err(|_| Broken)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Broken> {
        self.column()?.ok_or(Broken)?.try_into().map_err(|_| Broken)
    }

    fn long(&mut self) -> Result<i64, Broken> {
        self.fixed().map(i64::from_be_bytes)
    }

    fn short(&mut self) -> Result<i16, Broken> {
        self.fixed().map(i16::from_be_bytes)
    }

    fn maybe_text(&mut self) -> Result<Option<&'a str>, Broken> {
        self.column()?.map(|bytes| std::str::from_utf8(bytes).map_err(|_| Broken)).transpose()
    }

    fn text(&mut self) -> Result<&'a str, Broken> {
        self.maybe_text()?.ok_or(Broken)
    }
}
