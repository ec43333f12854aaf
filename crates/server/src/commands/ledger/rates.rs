//! `postrider ledger rates`: what foreign amounts are worth in the base currency.

use clap::{Args, Subcommand};
use jiff::civil::Date;
use postrider_ledger::books::Books;
use postrider_ledger::chart::{Chart, DayRate};
use postrider_ledger::decimal::Decimal;
use postrider_ledger::money::Currency;
use serde_json::json;

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
    /// List the rates that count: those of the source that the books go by
    Ls {
        /// Only this currency
        currency: Option<Currency>,
    },
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
    let tenant = desk.tenant().await?;
    let chart = desk.ledger.books().read_chart(&tenant).await?;
    let Some(chart) = chart else { return Err(usage(format!("{tenant} keeps no books here"))) };
    let (currency, rate, on, source, dry_run) = match args.what {
        What::Ls { currency } => return list(&chart, currency, desk),
        What::Add { currency, rate, on, source, dry_run } => (currency, rate, on, source, dry_run),
    };
    let number: Decimal = rate.parse().map_err(|error| usage(format!("the rate {rate} {error}")))?;
    let source = source.unwrap_or_else(|| chart.book.rate_source.clone());
    let base = chart.book.base_currency;
    let rate = DayRate { source, base, quote: currency, day: on, rate: number };
    if dry_run {
        let with = json!({"currency": currency, "rate": number.to_string(), "base": base, "on": on, "source": rate.source});
        desk.rehearsing_if(true).set_rates(&tenant, &[rate]).await?;
        return desk.would(&format!("add 1 {currency} = {number} {base} on {on}"), "nothing was added", with);
    }
    desk.changes(&tenant, "rates", &format!("rates/{currency}/{on}")).await?;
    desk.ledger.set_rates(&tenant, &[rate]).await?;
    desk.context.output.note(&format!("1 {currency} = {number} {base} on {on}"));
    Ok(Exit::Ok)
}

fn list<B: Books>(chart: &Chart, of: Option<Currency>, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let base = chart.book.base_currency;
    let rates = chart.rates().into_iter().filter(|rate| of.is_none_or(|of| rate.quote == of));
    let rows: Vec<_> = rates
        .map(|rate| {
            json!({"currency": rate.quote, "rate": rate.rate.to_string(), "base": base, "on": rate.day, "source": rate.source})
        })
        .collect();
    desk.context.output.rows(&["CURRENCY", "RATE", "BASE", "DAY", "SOURCE"], &rows, |row| {
        let cell = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
        ["currency", "rate", "base", "on", "source"].map(cell).into()
    })?;
    Ok(Exit::Ok)
}
