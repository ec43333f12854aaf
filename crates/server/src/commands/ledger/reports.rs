//! `postrider ledger balance`, `trial-balance`, `balance-sheet`, `income-statement`.

use clap::Args;
use jiff::civil::Date;
use postrider_ledger::account::AccountCode;
use postrider_ledger::books::Books;
use postrider_ledger::report::{Row, Statement};

use super::Desk;
use crate::exit::Exit;
use crate::output::table;

/// Up to which day.
#[derive(Debug, Args)]
pub(crate) struct AtArgs {
    /// At the end of this day [default: now]
    #[arg(long, value_name = "DATE")]
    at: Option<Date>,
}

/// Of which days.
#[derive(Debug, Args)]
pub(crate) struct FromToArgs {
    /// The first day [default: all]
    #[arg(long, value_name = "DATE")]
    from: Option<Date>,
    /// The last day [default: now]
    #[arg(long, value_name = "DATE")]
    to: Option<Date>,
}

/// Of which accounts.
#[derive(Debug, Args)]
pub(crate) struct BalanceArgs {
    /// This account and those below it [default: all]
    account: Option<AccountCode>,
    /// At the end of this day [default: now]
    #[arg(long, value_name = "DATE")]
    at: Option<Date>,
}

pub(super) const HEADER: [&str; 7] =
    ["ACCOUNT", "TYPE", "CURRENCY", "DEBITS", "CREDITS", "BALANCE", "IN BASE"];

pub(super) fn cells(row: &Row) -> Vec<String> {
    let (account, kind, currency) =
        (row.account.to_string(), row.kind.as_str().to_owned(), row.currency.to_string());
    vec![
        account,
        kind,
        currency,
        row.debits.clone(),
        row.credits.clone(),
        row.balance.clone(),
        row.base_balance.clone(),
    ]
}

pub(super) async fn balance<B: Books>(args: BalanceArgs, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let tenant = desk.tenant().await?;
    let trial = desk.ledger.trial_balance(&tenant, args.at).await?;
    let wanted = |row: &Row| match &args.account {
        None => true,
        Some(account) => {
            let below = row.account.as_str().strip_prefix(account.as_str());
            below.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
        }
    };
    let rows: Vec<Row> = trial.rows.into_iter().filter(wanted).collect();
    let header = [HEADER.as_slice(), &["PENDING DEBITS", "AND CREDITS"]].concat();
    desk.context.output.rows(&header, &rows, |row| {
        let pending = row.pending.as_ref().map(|of| [of.pending_debits.clone(), of.pending_credits.clone()]);
        [cells(row), pending.unwrap_or_default().into()].concat()
    })?;
    Ok(Exit::Ok)
}

pub(super) async fn trial_balance<B: Books>(args: AtArgs, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let tenant = desk.tenant().await?;
    let trial = desk.ledger.trial_balance(&tenant, args.at).await?;
    let totals = trial.totals.iter().map(|total| {
        let currency = total
            .currency
            .map_or_else(|| format!("{} (base)", trial.base_currency), |currency| currency.to_string());
        let equal = if total.balanced { "equal" } else { "DIFFER" };
        vec![
            "total".to_owned(),
            String::new(),
            currency,
            total.debits.clone(),
            total.credits.clone(),
            equal.to_owned(),
            String::new(),
        ]
    });
    let text = table(&HEADER, trial.rows.iter().map(cells).chain(totals));
    desk.context.output.one(&trial, &text)?;
    Ok(if trial.totals.iter().all(|total| total.balanced) { Exit::Ok } else { Exit::Unhealthy })
}

pub(super) async fn balance_sheet<B: Books>(args: AtArgs, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let tenant = desk.tenant().await?;
    let sheet = desk.ledger.balance_sheet(&tenant, args.at).await?;
    desk.context.output.one(&sheet, &for_people(&sheet))?;
    Ok(if sheet.balanced { Exit::Ok } else { Exit::Unhealthy })
}

pub(super) async fn income_statement<B: Books>(args: FromToArgs, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    super::dated::in_order(args.from, args.to)?;
    let tenant = desk.tenant().await?;
    let statement = desk.ledger.income_statement(&tenant, args.from, args.to).await?;
    desk.context.output.one(&statement, &for_people(&statement))?;
    Ok(Exit::Ok)
}

fn for_people(statement: &Statement) -> String {
    let base = statement.base_currency;
    let rows = statement.rows.iter().map(|row| {
        vec![
            row.account.to_string(),
            row.kind.as_str().to_owned(),
            row.currency.to_string(),
            row.balance.clone(),
            row.base_balance.clone(),
        ]
    });
    let sums = statement.sums.iter().map(|(name, sum)| {
        vec![(*name).to_owned(), String::new(), base.to_string(), String::new(), sum.clone()]
    });
    table(&["ACCOUNT", "TYPE", "CURRENCY", "BALANCE", "IN BASE"], rows.chain(sums))
}
