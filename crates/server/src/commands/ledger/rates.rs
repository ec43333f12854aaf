//! `postrider ledger rates`: what foreign amounts are worth in the base currency.

use clap::{Args, Subcommand};
use jiff::civil::Date;
use postrider_ledger::books::Books;
use postrider_ledger::chart::DayRate;
use postrider_ledger::decimal::Decimal;
use postrider_ledger::money::Currency;

use super::Desk;
use crate::exit::{Exit, usage};

/// What to do with rates.
#[derive(Debug, Args)]
pub(crate) struct RatesArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Add the rate of a day, or mend it. Entries that used the old one keep it
    Add {
        /// The foreign currency
        currency: Currency,
        /// What one unit of it is worth in the base currency, such as 0.9213
        rate: String,
        /// The day
        #[arg(long, value_name = "DATE")]
        on: Date,
        /// Whose rate [default: the source that the books go by]
        #[arg(long)]
        source: Option<String>,
        /// Check it, and add nothing
        #[arg(long)]
        dry_run: bool,
    },
}

pub(super) async fn run<B: Books>(args: RatesArgs, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let What::Add { currency, rate, on, source, dry_run } = args.what;
    let tenant = desk.tenant().await?;
    let chart = desk.ledger.books().read_chart(&tenant).await?;
    let Some(chart) = chart else { return Err(usage(format!("{tenant} keeps no books here"))) };
    let number: Decimal = rate.parse().map_err(|error| usage(format!("the rate {rate} {error}")))?;
    let source = source.unwrap_or_else(|| chart.book.rate_source.clone());
    let base = chart.book.base_currency;
    if dry_run {
        desk.context
            .output
            .note(&format!("would add 1 {currency} = {number} {base} on {on}; nothing was added"));
        return Ok(Exit::Ok);
    }
    let rate = DayRate { source, base, quote: currency, day: on, rate: number };
    desk.ledger.set_rates(&tenant, &[rate]).await?;
    desk.context.output.note(&format!("1 {currency} = {number} {base} on {on}"));
    Ok(Exit::Ok)
}
