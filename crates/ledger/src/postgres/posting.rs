//! Posting on PostgreSQL: a handful of statements a batch, however many entries it has.

use jiff_sqlx::ToSqlx as _;
use postrider::EventId;
use postrider::envelope::{PayloadHash, TenantId};
use postrider::postgres::Postgres;
use postrider::store::{StoreError, StoreErrorKind};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{Arguments as _, PgConnection, Row as _};

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

/// All of a batch, in one round trip. The head is the statement proper, so that its count says whether the chain was where we read it: only
/// the one who has the lock moves it, and only by what it wrote. The rest runs to its end whatever the count is; who sees another than one
/// takes everything back.
///
/// UNNEST stands among the columns: as a table PostgreSQL would store each array and read it back, row by row. An array of one is for all
/// rows ([`once`]). Rows come in the order of the arrays, and those of balances and days are sorted: locks are always taken in one order.
const WRITE: &str = "WITH entries AS (INSERT INTO postrider.ledger_entry (tenant, number, kind, effective_on, posted_at, source_event, \
     payload_hash, rule, description, metadata, refers_to, hash) \
     SELECT $1, number, CASE cardinality($6) WHEN 1 THEN ($6)[1] ELSE kind END, \
     date '1970-01-01' + CASE cardinality($7) WHEN 1 THEN ($7)[1] ELSE day END, \
     CASE cardinality($8) WHEN 1 THEN ($8)[1] ELSE posted_at END, source_event, payload_hash, \
     CASE cardinality($11) WHEN 1 THEN ($11)[1] ELSE rule END, CASE cardinality($12) WHEN 1 THEN ($12)[1] ELSE description END, \
     CASE cardinality($13) WHEN 1 THEN ($13)[1] ELSE metadata END, \
     CASE cardinality($14) WHEN 1 THEN ($14)[1] ELSE refers_to END, hash \
     FROM (SELECT UNNEST($5::bigint[]) AS number, UNNEST($6::smallint[]) AS kind, UNNEST($7::int[]) AS day, \
     UNNEST($8::timestamptz[]) AS posted_at, UNNEST($9::text[]) AS source_event, UNNEST($10::bytea[]) AS payload_hash, \
     UNNEST($11::text[]) AS rule, UNNEST($12::text[]) AS description, UNNEST($13::text[]) AS metadata, \
     UNNEST($14::bigint[]) AS refers_to, UNNEST($15::bytea[]) AS hash) AS entry \
     ), lines AS (INSERT INTO postrider.ledger_line (tenant, entry, line, account, side, amount, currency, base_amount, \
     rate, rate_source) SELECT $1, entry, line, account, side, amount, \
     CASE cardinality($21) WHEN 1 THEN ($21)[1] ELSE currency END, base_amount, \
     CASE cardinality($23) WHEN 1 THEN ($23)[1] ELSE rate END, CASE cardinality($24) WHEN 1 THEN ($24)[1] ELSE rate_source END \
     FROM (SELECT UNNEST($16::bigint[]) AS entry, UNNEST($17::smallint[]) AS line, UNNEST($18::text[]) AS account, \
     UNNEST($19::smallint[]) AS side, UNNEST($20::bigint[]) AS amount, UNNEST($21::text[]) AS currency, \
     UNNEST($22::bigint[]) AS base_amount, UNNEST($23::text[]) AS rate, UNNEST($24::text[]) AS rate_source) AS line \
     ), balances AS (INSERT INTO postrider.ledger_balance AS balance (tenant, account, currency, debits, credits, \
     base_debits, base_credits, pending_debits, pending_credits) \
     SELECT $1, account, CASE cardinality($26) WHEN 1 THEN ($26)[1] ELSE currency END, debits, credits, base_debits, base_credits, \
     CASE cardinality($31) WHEN 1 THEN ($31)[1] ELSE pending_debits END, \
     CASE cardinality($32) WHEN 1 THEN ($32)[1] ELSE pending_credits END \
     FROM (SELECT UNNEST($25::text[]) AS account, UNNEST($26::text[]) AS currency, UNNEST($27::bigint[]) AS debits, \
     UNNEST($28::bigint[]) AS credits, UNNEST($29::bigint[]) AS base_debits, UNNEST($30::bigint[]) AS base_credits, \
     UNNEST($31::bigint[]) AS pending_debits, UNNEST($32::bigint[]) AS pending_credits) AS change \
     ON CONFLICT (tenant, account, currency) DO UPDATE SET debits = balance.debits + EXCLUDED.debits, \
     credits = balance.credits + EXCLUDED.credits, base_debits = balance.base_debits + EXCLUDED.base_debits, \
     base_credits = balance.base_credits + EXCLUDED.base_credits, \
     pending_debits = balance.pending_debits + EXCLUDED.pending_debits, \
     pending_credits = balance.pending_credits + EXCLUDED.pending_credits \
     ), days AS (INSERT INTO postrider.ledger_day AS total (tenant, account, currency, day, debits, credits, base_debits, \
     base_credits) SELECT $1, account, CASE cardinality($34) WHEN 1 THEN ($34)[1] ELSE currency END, \
     date '1970-01-01' + CASE cardinality($35) WHEN 1 THEN ($35)[1] ELSE day END, debits, credits, base_debits, base_credits \
     FROM (SELECT UNNEST($33::text[]) AS account, UNNEST($34::text[]) AS currency, UNNEST($35::int[]) AS day, \
     UNNEST($36::bigint[]) AS debits, UNNEST($37::bigint[]) AS credits, UNNEST($38::bigint[]) AS base_debits, \
     UNNEST($39::bigint[]) AS base_credits) AS change \
     ON CONFLICT (tenant, account, currency, day) DO UPDATE SET debits = total.debits + EXCLUDED.debits, \
     credits = total.credits + EXCLUDED.credits, base_debits = total.base_debits + EXCLUDED.base_debits, \
     base_credits = total.base_credits + EXCLUDED.base_credits \
     ) UPDATE postrider.ledger_book SET head_number = $2, head_hash = $3 WHERE tenant = $1 AND head_number = $4";

/// About as many bytes as an entry takes, with two lines and what they change.
const ENTRY_BYTES: usize = 512;

type Write<'q> = Query<'q, sqlx::Postgres, PgArguments>;

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
        // Once, instead of growing to it by doubling.
        let mut arguments = PgArguments::default();
        arguments.reserve(39, page.entries.len() * ENTRY_BYTES);
        let write = sqlx::query_with(WRITE, arguments)
            .bind(tenant.as_str())
            .bind(signed(last.number))
            .bind(last.hash.0.as_slice())
            .bind(signed(first.number) - 1);
        let write = with_lines(with_entries(write, &page.entries), &page.entries);
        with_days(with_balances(write, &page.changes), page).execute(connection).await
    };
    let moved = writing.await.map_err(|cause| store.error("posting", cause))?;
    if moved.rows_affected() == 1 {
        return Ok(());
    }
    let text = "the chain has moved on since it was read; nothing was posted, try again";
    Err(StoreError::new(StoreErrorKind::Contended, text))
}

fn with_entries<'q>(write: Write<'q>, entries: &'q [Sealed]) -> Write<'q> {
    let text = |of: fn(&Sealed) -> &str| entries.iter().map(of);
    write
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
}

fn with_lines<'q>(write: Write<'q>, entries: &'q [Sealed]) -> Write<'q> {
    let numbered = |entry: &Sealed| std::iter::repeat_n(signed(entry.number), entry.lines.len());
    let lines: Vec<&Line> = entries.iter().flat_map(|entry| &entry.lines).collect();
    let places = entries.iter().flat_map(|entry| (1_i16..).take(entry.lines.len()));
    let rates = |of: fn(&Rate) -> &str| once(lines.iter().map(|line| line.rate.as_ref().map(of)));
    write
        .bind(entries.iter().flat_map(numbered).collect::<Vec<_>>())
        .bind(places.collect::<Vec<_>>())
        .bind(lines.iter().map(|line| line.account.as_str()).collect::<Vec<_>>())
        .bind(lines.iter().map(|line| i16::from(line.side.number())).collect::<Vec<_>>())
        .bind(lines.iter().map(|line| line.amount).collect::<Vec<_>>())
        .bind(once(lines.iter().map(|line| line.currency.code())))
        .bind(lines.iter().map(|line| line.base_amount).collect::<Vec<_>>())
        .bind(rates(|rate| &rate.rate))
        .bind(rates(|rate| &rate.source))
}

fn with_balances<'q>(write: Write<'q>, changes: &'q [Balance]) -> Write<'q> {
    let sums = |of: fn(&Balance) -> i64| changes.iter().map(of).collect::<Vec<_>>();
    write
        .bind(changes.iter().map(|change| change.account.as_str()).collect::<Vec<_>>())
        .bind(once(changes.iter().map(|change| change.currency.code())))
        .bind(sums(|change| change.sums.debits))
        .bind(sums(|change| change.sums.credits))
        .bind(sums(|change| change.sums.base_debits))
        .bind(sums(|change| change.sums.base_credits))
        .bind(once(changes.iter().map(|change| change.sums.pending_debits)))
        .bind(once(changes.iter().map(|change| change.sums.pending_credits)))
}

fn with_days<'q>(write: Write<'q>, page: &'q Page) -> Write<'q> {
    let sums = |of: fn(&Balance) -> i64| page.days.iter().map(|(_, change)| of(change)).collect::<Vec<_>>();
    write
        .bind(page.days.iter().map(|(_, change)| change.account.as_str()).collect::<Vec<_>>())
        .bind(once(page.days.iter().map(|(_, change)| change.currency.code())))
        .bind(once(page.days.iter().map(|(day, _)| days(*day))))
        .bind(sums(|change| change.sums.debits))
        .bind(sums(|change| change.sums.credits))
        .bind(sums(|change| change.sums.base_debits))
        .bind(sums(|change| change.sums.base_credits))
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
