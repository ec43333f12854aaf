//! Accounts over time: the statement of one, by its newest movements or by days, and the totals of every day.

use axum::Json;
use axum::extract::State;
use jiff::civil::Date;
use postrider::envelope::TenantId;
use postrider_ledger::LedgerError;
use postrider_ledger::account::AccountCode;
use postrider_ledger::books::{Books, Days};
use postrider_ledger::dated::{DatedStatement, DayRow, Held, Span};
use postrider_ledger::refusal::Refusal;
use postrider_ledger::statement::{Movement, Movements};
use serde::{Deserialize, Serialize};

use super::{Desk, MOST, Whose};
use crate::api::front::{Path, Query};
use crate::api::problem::{Code, Problem};

/// So many of the newest movements, or of those before a place; or, where a day is named, those of the days, or of those after a place.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    before: Option<String>,
    from: Option<Date>,
    to: Option<Date>,
    after: Option<String>,
    limit: Option<usize>,
}

#[derive(Serialize)]
pub(super) struct StatementPage {
    /// What the account held before the first of them; only of days.
    #[serde(skip_serializing_if = "Option::is_none")]
    opening: Option<Vec<Held>>,
    /// The oldest first, or by day.
    movements: Vec<Movement>,
    /// What it held after the last of them; only of days.
    #[serde(skip_serializing_if = "Option::is_none")]
    closing: Option<Vec<Held>>,
    /// The `before` to ask with for earlier ones, or the `after` for later ones of the days; nothing when there are none.
    next: Option<String>,
}

pub(super) async fn statement<B: Books>(
    State(ledger): Desk<B>,
    Path((tenant, account)): Path<(TenantId, AccountCode)>,
    Query(Which { before, from, to, after, limit }): Query<Which>,
) -> Result<Json<StatementPage>, Problem> {
    let limit = limit.unwrap_or(MOST).clamp(1, MOST);
    let unknown = |error: LedgerError| match error {
        // Nobody sent anything that could be mended: there is no such page.
        LedgerError::Refused(Refusal::UnknownAccount(_)) => {
            let told = format!("{tenant} has no account {account}");
            Problem::new(Code::NotFound, told).named("unknown_account")
        }
        error => error.into(),
    };
    let dated = from.is_some() || to.is_some() || after.is_some();
    if dated && before.is_some() {
        let told = "before goes back from the newest; ask by days with from, to and after";
        return Err(Problem::new(Code::InvalidRequest, told));
    }
    if !dated {
        let before = place(before.as_deref(), "before")?;
        let found = ledger.statement(&tenant, &account, before.as_ref(), limit).await;
        let Movements { movements, earlier } = found.map_err(unknown)?;
        let next = earlier.map(|place| place.to_string());
        return Ok(Json(StatementPage { opening: None, movements, closing: None, next }));
    }
    in_order(from, to)?;
    let span = Span { from, to, after: place(after.as_deref(), "after")? };
    let found = ledger.dated_statement(&tenant, &account, &span, limit).await;
    let DatedStatement { opening, movements, closing, next } = found.map_err(unknown)?;
    let next = next.map(|place| place.to_string());
    Ok(Json(StatementPage { opening: Some(opening), movements, closing: Some(closing), next }))
}

/// No day lies between days in the wrong order: whoever asks so has swapped them.
pub(super) fn in_order(from: Option<Date>, to: Option<Date>) -> Result<(), Problem> {
    match from.zip(to).filter(|(from, to)| from > to) {
        None => Ok(()),
        Some((from, to)) => {
            Err(Problem::new(Code::InvalidRequest, format!("from ({from}) is later than to ({to})")))
        }
    }
}

fn place<T: std::str::FromStr<Err: std::fmt::Display>>(
    text: Option<&str>,
    name: &str,
) -> Result<Option<T>, Problem> {
    let wrong = |error| Problem::new(Code::InvalidRequest, format!("{name} is {error}"));
    text.map(str::parse).transpose().map_err(wrong)
}

/// Of which accounts and days, and by what.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Totalled {
    /// Days are all there is.
    #[serde(default, rename = "by")]
    _by: By,
    account: Option<AccountCode>,
    from: Option<Date>,
    to: Option<Date>,
    after: Option<String>,
    limit: Option<usize>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum By {
    #[default]
    Day,
}

#[derive(Serialize)]
pub(super) struct Totals {
    /// By day, account and currency.
    totals: Vec<DayRow>,
    /// The `after` to ask with for later ones; nothing on the last page.
    next: Option<String>,
}

/// What was debited and credited, account by account, day by day.
pub(super) async fn totals<B: Books>(
    State(ledger): Desk<B>,
    Path(tenant): Whose,
    Query(Totalled { account, from, to, after, limit, .. }): Query<Totalled>,
) -> Result<Json<Totals>, Problem> {
    let limit = Some(limit.unwrap_or(MOST).clamp(1, MOST));
    in_order(from, to)?;
    let which = Days { account, from, to, after: place(after.as_deref(), "after")?, limit };
    let found = ledger.daily(&tenant, &which).await?;
    Ok(Json(Totals { totals: found.rows, next: found.next.map(|place| place.to_string()) }))
}
