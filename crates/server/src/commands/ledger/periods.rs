//! `postrider ledger periods` and `close`.

use clap::{Args, Subcommand};
use jiff::civil::date;
use postrider_ledger::books::Books;
use postrider_ledger::period::{Period, PeriodState, YEARS};
use serde_json::json;

use super::Desk;
use crate::exit::{Exit, usage};

/// What to do with periods.
#[derive(Debug, Args)]
#[command(
    after_help = "A name is a month (2026-03), a quarter (2026-Q1) or a year (2026). Days that no period covers are open. \
    Every change of a period is recorded in the chain, so that `ledger verify` names a period that is something else."
)]
pub(crate) struct PeriodsArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the periods
    Ls,
    /// Take every entry
    Open(Which),
    /// Take what people post, and no events
    Closing(Which),
    /// Take nothing, and seal the trial balance into the chain
    Close(Which),
    /// Take nothing, for ever
    Lock(Which),
}

#[derive(Debug, Args)]
struct Which {
    /// Its name, such as 2026-03
    name: String,
    /// Say what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Which year.
#[derive(Debug, Args)]
pub(crate) struct CloseArgs {
    /// The year whose last day is 31 December
    year: i16,
    /// Say what would be posted, and post nothing
    #[arg(long)]
    dry_run: bool,
}

pub(super) async fn run<B: Books>(args: PeriodsArgs, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let tenant = desk.tenant().await?;
    let (which, state) = match args.what {
        What::Ls => {
            let chart = desk.ledger.books().read_chart(&tenant).await?;
            let periods = chart.map(|chart| chart.periods).unwrap_or_default();
            desk.context.output.rows(&["PERIOD", "FROM", "TO", "STATE"], &periods, |period| {
                let (from, to) = (period.starts_on.to_string(), period.ends_on.to_string());
                vec![period.name.clone(), from, to, period.state.as_str().to_owned()]
            })?;
            return Ok(Exit::Ok);
        }
        What::Open(which) => (which, PeriodState::Open),
        What::Closing(which) => (which, PeriodState::Closing),
        What::Close(which) => (which, PeriodState::Closed),
        What::Lock(which) => (which, PeriodState::Locked),
    };
    let period = Period::named(&which.name, state).ok_or_else(|| {
        let (first, last) = (YEARS.start(), YEARS.end());
        usage(format!(
            "{}: write a month (2026-03), a quarter (2026-Q1) or a year (2026), from {first} to {last}",
            which.name
        ))
    })?;
    if which.dry_run {
        let sealed = desk.rehearsing_if(true).set_period(&tenant, &period).await?;
        let text = format!("make {} of {tenant} {}", period.name, state.as_str());
        let with = json!({"period": period.name, "state": state.as_str(), "changes": sealed.is_some()});
        return desk.would(&text, "nothing was changed", with);
    }
    if state == PeriodState::Locked {
        desk.context.output.confirm(&format!("lock {} of {tenant} for ever?", period.name))?;
    }
    desk.changes(&tenant, "periods", &format!("periods/{}/{}", period.name, state.as_str())).await?;
    let sealed = desk.ledger.set_period(&tenant, &period).await?;
    desk.context.output.note(&format!("{} of {tenant} is {}", period.name, state.as_str()));
    if let Some(receipt) = sealed {
        let done = if state == PeriodState::Closed { "sealed" } else { "recorded" };
        desk.context.output.one(&receipt, &format!("{done} by entry {}", receipt.entry))?;
    }
    Ok(Exit::Ok)
}

pub(super) async fn close<B: Books>(args: &CloseArgs, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let tenant = desk.tenant().await?;
    if !(1900..=2999).contains(&args.year) {
        return Err(usage(format!("{} is not a year that books have", args.year)));
    }
    let last_day = date(args.year, 12, 31);
    if args.dry_run {
        // What was carried before is in retained earnings already.
        let sheet = desk.ledger.balance_sheet(&tenant, Some(last_day)).await?;
        let entries = desk.rehearsing_if(true).close_year(&tenant, last_day).await?.len();
        let (result, currency) = (&sheet.sums["result"], sheet.base_currency);
        let text = format!("carry {result} {currency} to retained earnings");
        let with = json!({"year": args.year, "result": result, "currency": currency, "entries": entries});
        return desk.would(&text, "nothing was posted", with);
    }
    desk.context
        .output
        .confirm(&format!("carry the result of {} of {tenant} to retained earnings?", args.year))?;
    desk.changes(&tenant, "years.close", &format!("years/{}", args.year)).await?;
    let receipts = desk.ledger.close_year(&tenant, last_day).await?;
    if receipts.is_empty() {
        desk.context.output.note("income and expenses are zero already; nothing was posted");
    }
    desk.context.output.rows(&["ENTRY", "HASH"], &receipts, |receipt| {
        vec![receipt.entry.to_string(), receipt.hash.to_string()]
    })?;
    Ok(Exit::Ok)
}
