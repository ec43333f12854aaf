//! `postrider ledger entries`, and what people do about single entries.

use anyhow::Context as _;
use clap::{Args, Subcommand};
use jiff::civil::Date;
use postrider::EventId;
use postrider_ledger::books::Books;
use postrider_ledger::correcting::Remark;
use postrider_ledger::journal_event;
use serde_json::{Value, json};

use super::Desk;
use crate::exit::Exit;

/// Which entries.
#[derive(Debug, Args)]
pub(crate) struct EntriesArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List entries in their order
    Ls {
        /// Only those after this number
        #[arg(long, default_value_t = 0)]
        after: u64,
        /// So many at most
        #[arg(long, default_value_t = 50)]
        limit: usize,
    },
    /// Post an entry by hand
    Add(super::correct::AddArgs),
    /// Show one entry whole
    Show {
        /// Its number
        entry: u64,
    },
}

/// An entry, and what to say about it.
#[derive(Debug, Args)]
#[command(
    after_help = "Nothing is changed: a new entry is posted that refers to this one. The same --key again is the same entry."
)]
pub(crate) struct AboutArgs {
    /// Its number
    entry: u64,
    /// The day it counts for [default: that of the entry]
    #[arg(long, value_name = "DATE")]
    on: Option<Date>,
    /// Why, for people
    #[arg(long)]
    description: Option<String>,
    /// Makes a repeat safe [default: a new one]
    #[arg(long)]
    key: Option<String>,
    /// Say what would be posted, and post nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum About {
    Reverse,
    Settle,
    Void,
}

pub(super) async fn run<B: Books>(args: EntriesArgs, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let (after, limit) = match &args.what {
        What::Add(add) => return super::correct::add(add, desk).await,
        What::Ls { after, limit } => (*after, *limit),
        What::Show { entry } => (entry.saturating_sub(1), 1),
    };
    let tenant = desk.tenant().await?;
    let book = desk.ledger.books().book(&tenant).await?;
    let base = book.with_context(|| format!("{tenant} keeps no books here"))?.base_currency;
    let entries = desk.ledger.books().entries(&tenant, after, limit).await?;
    let shown: Vec<Value> = entries.iter().map(|entry| journal_event::payload(entry, base)).collect();
    if let What::Show { entry } = args.what {
        let number = entry.to_string();
        let found = shown.into_iter().find(|shown| shown["entry"] == number);
        let found = found.with_context(|| format!("{tenant} has no entry {entry}"))?;
        desk.context.output.one(&found, &serde_json::to_string_pretty(&found)?)?;
        return Ok(Exit::Ok);
    }
    desk.context.output.rows(&["ENTRY", "DAY", "KIND", "DESCRIPTION", "LINES"], &shown, |entry| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let lines = entry["lines"].as_array().into_iter().flatten().map(|line| {
            format!(
                "{} {} {} {}",
                text(&line["side"]),
                text(&line["account"]),
                text(&line["amount"]),
                text(&line["currency"])
            )
        });
        let lines = lines.collect::<Vec<_>>().join("; ");
        vec![
            text(&entry["entry"]),
            text(&entry["effectiveOn"]),
            text(&entry["kind"]),
            text(&entry["description"]),
            lines,
        ]
    })?;
    Ok(Exit::Ok)
}

pub(super) async fn about<B: Books>(
    args: AboutArgs,
    what: About,
    desk: &Desk<'_, B>,
) -> anyhow::Result<Exit> {
    let tenant = desk.tenant().await?;
    let remark = Remark {
        key: args.key.map(EventId::new).transpose()?,
        on: args.on,
        description: args.description,
        ..Remark::default()
    };
    let kind = match what {
        About::Reverse => "reversals",
        About::Settle => "settlements",
        About::Void => "voids",
    };
    if !args.dry_run {
        desk.changes(&tenant, &format!("entries.{kind}"), &format!("entries/{}", args.entry)).await?;
    }
    let ledger = desk.rehearsing_if(args.dry_run);
    let receipt = match what {
        About::Reverse => ledger.reverse(&tenant, args.entry, &remark).await?,
        About::Settle => ledger.settle(&tenant, args.entry, &remark).await?,
        About::Void => ledger.void(&tenant, args.entry, &remark).await?,
    };
    if args.dry_run {
        let text = format!("post a new entry that refers to entry {} of {tenant}", args.entry);
        let with = json!({"entry": receipt.entry.to_string(), "refers_to": args.entry.to_string()});
        return desk.would(&text, "nothing was posted", with);
    }
    desk.context.output.one(&receipt, &receipt.entry.to_string())?;
    Ok(Exit::Ok)
}
