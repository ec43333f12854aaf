//! The posted lines of an account, from the newest back.

use postrider::envelope::TenantId;
use postrider::sqlite::Sqlite;
use postrider::store::StoreError;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Row as _, SqliteConnection};

use crate::account::AccountCode;
use crate::books::AccountLines;
use crate::statement::Earlier;
use crate::stored::{AccountLineRow, count, posting_kinds, signed};

pub(super) async fn lines_of(
    store: &Sqlite,
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    account: &AccountCode,
    before: Option<&Earlier>,
    limit: usize,
) -> Result<AccountLines, StoreError> {
    // One statement: what is held is of the same moment as the lines. CROSS JOIN keeps SQLite from beginning with the entries.
    let select = format!(
        "SELECT line.entry, line.line, entry.effective_on, entry.description, line.side, line.amount, \
         line.currency, (SELECT json_group_object(currency, debits - credits) FROM ledger_balance \
             WHERE tenant = ?1 AND account = ?2) \
         FROM ledger_line AS line \
         CROSS JOIN ledger_entry AS entry ON entry.tenant = ?1 AND entry.number = line.entry \
         WHERE line.tenant = ?1 AND line.account = ?2 AND line.amount > 0 AND entry.kind IN ({}) \
           AND line.entry <= ?3 AND (line.entry < ?3 OR line.line < ?4) \
         ORDER BY line.entry DESC, line.line DESC LIMIT ?5",
        posting_kinds()
    );
    let (entry, line) = before.map_or((i64::MAX, 0), |place| (signed(place.entry), i32::from(place.line)));
    let rows = sqlx::query(AssertSqlSafe(select)).bind(tenant.as_str()).bind(account.as_str());
    let rows = rows.bind(entry).bind(line).bind(count(limit)).fetch_all(connection).await;
    let rows = rows.map_err(|cause| store.error(cause))?;
    let held = rows.first().map(|row| row.get::<&str, _>(7));
    let read = |row: &SqliteRow| {
        let line = AccountLineRow {
            entry: row.get(0),
            line: row.get(1),
            effective_on: row.get(2),
            description: row.get(3),
            side: row.get(4),
            amount: row.get(5),
            currency: row.get(6),
        };
        line.read(tenant)
    };
    AccountLines::read(tenant, held, rows.iter().map(read))
}
