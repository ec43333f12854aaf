//! `postrider ledger statement` and `totals`: accounts over time.

use clap::{Args, ValueEnum};
use jiff::civil::Date;
use postrider_ledger::account::AccountCode;
use postrider_ledger::books::{Books, Days};
use postrider_ledger::dated::{AfterDay, DayRow, Held, Later, Span};
use postrider_ledger::statement::{Movement, Place};

use super::Desk;
use super::reports::{HEADER, cells};
use crate::exit::{Exit, usage};
use crate::output::table;

/// Of which account.
#[derive(Debug, Args)]
#[command(
    after_help = "Without a day it begins at the end: the newest movements, in the order of posting. With --from or --to it goes by the days that \
    entries count for, and says what the account held before and after.\n\n\
    Examples:\n  postrider ledger statement bank --limit 20\n  postrider ledger statement bank --from 2026-03-01 --to 2026-03-31"
)]
pub(crate) struct StatementArgs {
    /// Its code
    account: AccountCode,
    /// So many movements at most
    #[arg(long, default_value_t = 100)]
    limit: usize,
    /// Those before a place that an earlier call has named
    #[arg(long, value_name = "PLACE", conflicts_with_all = ["from", "to", "after"])]
    before: Option<Place>,
    /// The first day [default: all]
    #[arg(long, value_name = "DATE")]
    from: Option<Date>,
    /// The last day [default: now]
    #[arg(long, value_name = "DATE")]
    to: Option<Date>,
    /// Those of the days after a place that an earlier call has named
    #[arg(long, value_name = "PLACE")]
    after: Option<Later>,
}

/// By what, and of which accounts and days.
#[derive(Debug, Args)]
#[command(
    after_help = "BALANCE is by how much the day let the account grow. Example:\n  postrider ledger totals --account receivable --from 2026-03-01 --to 2026-03-31\n\n\
    Rows come by day, account and currency, --limit of them; a note on stderr says with which --after to go on."
)]
pub(crate) struct TotalsArgs {
    /// One row for each of these, account and currency
    #[arg(long, value_enum, default_value_t = By::Day)]
    by: By,
    /// This account and those below it [default: all]
    #[arg(long, value_name = "ACCOUNT")]
    account: Option<AccountCode>,
    /// The first day [default: all]
    #[arg(long, value_name = "DATE")]
    from: Option<Date>,
    /// The last day [default: now]
    #[arg(long, value_name = "DATE")]
    to: Option<Date>,
    /// So many rows at most
    #[arg(long, default_value_t = 1000, value_name = "N")]
    limit: usize,
    /// Those after a place that an earlier call has named
    #[arg(long, value_name = "PLACE")]
    after: Option<AfterDay>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum By {
    /// A day
    Day,
}

const MOVEMENTS: [&str; 7] = ["ENTRY", "DAY", "DESCRIPTION", "SIDE", "AMOUNT", "CURRENCY", "BALANCE"];

pub(super) async fn statement<B: Books>(args: StatementArgs, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let (tenant, limit) = (desk.tenant().await?, args.limit.max(1));
    let StatementArgs { account, before, from, to, after, .. } = args;
    if from.is_none() && to.is_none() && after.is_none() {
        let found = desk.ledger.statement(&tenant, &account, before.as_ref(), limit).await?;
        desk.context.output.rows(&MOVEMENTS, &found.movements, told)?;
        if let Some(earlier) = found.earlier {
            desk.context.output.note(&format!("there are earlier ones: --before {earlier}"));
        }
        return Ok(Exit::Ok);
    }
    in_order(from, to)?;
    let span = Span { from, to, after };
    let found = desk.ledger.dated_statement(&tenant, &account, &span, limit).await?;
    let held = |name: &str, all: &[Held]| -> Vec<Vec<String>> {
        let row = |held: &Held| {
            let mut row = vec![String::new(); MOVEMENTS.len()];
            (row[2], row[5], row[6]) = (name.to_owned(), held.currency.to_string(), held.balance.clone());
            row
        };
        all.iter().map(row).collect()
    };
    let rows = held("held before", &found.opening).into_iter();
    let rows = rows.chain(found.movements.iter().map(told)).chain(held("held after", &found.closing));
    desk.context.output.one(&found, &table(&MOVEMENTS, rows))?;
    if let Some(later) = &found.next {
        desk.context.output.note(&format!("there are later ones: --after {later}"));
    }
    Ok(Exit::Ok)
}

/// No day lies between days in the wrong order: whoever asks so has swapped them.
pub(super) fn in_order(from: Option<Date>, to: Option<Date>) -> anyhow::Result<()> {
    match from.zip(to).filter(|(from, to)| from > to) {
        None => Ok(()),
        Some((from, to)) => Err(usage(format!("--from {from} is later than --to {to}"))),
    }
}

fn told(row: &Movement) -> Vec<String> {
    let (day, side) = (row.effective_on.to_string(), row.side.as_str().to_owned());
    vec![
        row.entry.clone(),
        day,
        row.description.clone(),
        side,
        row.amount.clone(),
        row.currency.to_string(),
        row.balance.clone(),
    ]
}

pub(super) async fn totals<B: Books>(args: TotalsArgs, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let TotalsArgs { by: By::Day, account, from, to, limit, after } = args;
    let tenant = desk.tenant().await?;
    in_order(from, to)?;
    let which = Days { account, from, to, after, limit: Some(limit.max(1)) };
    let found = desk.ledger.daily(&tenant, &which).await?;
    let header = [&["DAY"], HEADER.as_slice()].concat();
    let told = |day: &DayRow| [vec![day.day.to_string()], cells(&day.row)].concat();
    desk.context.output.rows(&header, &found.rows, told)?;
    if let Some(later) = &found.next {
        desk.context.output.note(&format!("there are later ones: --after {later}"));
    }
    Ok(Exit::Ok)
}
