//! `postrider ledger correct` and `entries add`: entries that people write as a file.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use jiff::civil::Date;
use postrider::EventId;
use postrider_ledger::books::{Books, Receipt};
use postrider_ledger::correcting::Remark;
use serde::Serialize;
use serde_json::json;

use super::Desk;
use crate::entry_input::EntryInput;
use crate::exit::{Exit, usage};

/// Which entry was wrong, and what it should have been.
#[derive(Debug, Args)]
#[command(
    after_help = "The wrong entry is reversed and the right one posted, both or neither. The file is what `entries add` takes:\n\
    {\"effectiveOn\": \"2026-03-01\", \"description\": \"rent\", \"lines\": [\n  \
    {\"account\": \"fees\", \"side\": \"debit\", \"amount\": \"12.50\", \"currency\": \"EUR\"},\n  \
    {\"account\": \"bank\", \"side\": \"credit\", \"amount\": \"12.50\", \"currency\": \"EUR\"}]}"
)]
pub(crate) struct CorrectArgs {
    /// The number of the wrong entry
    entry: u64,
    /// A JSON file with the right one; - for stdin
    right: PathBuf,
    /// The day the reversal counts for [default: that of the entry]
    #[arg(long, value_name = "DATE")]
    on: Option<Date>,
    /// Why, for people; the description of the reversal
    #[arg(long)]
    description: Option<String>,
    /// Makes a repeat safe [default: a new one]
    #[arg(long)]
    key: Option<String>,
    /// Check the right entry, and post nothing
    #[arg(long)]
    dry_run: bool,
}

/// An entry by hand.
#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// A JSON file with effectiveOn, lines, and where wanted id, description, metadata, pending; - for stdin
    file: PathBuf,
    /// Check it, and post nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Serialize)]
struct Corrected {
    reversal: Receipt,
    entry: Receipt,
}

pub(super) async fn run<B: Books>(args: CorrectArgs, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let tenant = desk.tenant().await?;
    let key = args.key.map(EventId::new).transpose()?;
    let right = read(&args.right)?.correction(key.as_ref(), &desk.ledger)?;
    let lines = right.lines.len();
    let remark = Remark { key, on: args.on, description: args.description, ..Remark::default() };
    if !args.dry_run {
        desk.changes(&tenant, "entries.corrections", &format!("entries/{}", args.entry)).await?;
    }
    let ledger = desk.rehearsing_if(args.dry_run);
    let (reversal, entry) = ledger.correct(&tenant, args.entry, &remark, right).await?;
    if args.dry_run {
        let text = format!("reverse entry {} of {tenant} and post {lines} lines", args.entry);
        let with =
            json!({"reversal": reversal.entry.to_string(), "entry": entry.entry.to_string(), "lines": lines});
        return desk.would(&text, "nothing was posted", with);
    }
    let text = format!("entry {} reverses it, entry {} is the right one", reversal.entry, entry.entry);
    desk.context.output.one(&Corrected { reversal, entry }, &text)?;
    Ok(Exit::Ok)
}

pub(super) async fn add<B: Books>(args: &AddArgs, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let tenant = desk.tenant().await?;
    let draft = read(&args.file)?.draft(&desk.ledger)?;
    if args.dry_run {
        let lines = draft.lines.len();
        let receipt = desk.rehearsing_if(true).post_draft(&tenant, draft).await?;
        let with = json!({"entry": receipt.entry.to_string(), "lines": lines});
        return desk.would(&format!("post {lines} lines"), "nothing was posted", with);
    }
    desk.changes(&tenant, "entries", "entries").await?;
    let receipt = desk.ledger.post_draft(&tenant, draft).await?;
    desk.context.output.one(&receipt, &receipt.entry.to_string())?;
    Ok(Exit::Ok)
}

fn read(file: &Path) -> anyhow::Result<EntryInput> {
    let text = if file.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(file)
    };
    let text = text.with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_str(&text)
        .map_err(|error| usage(format!("{} is no entry: {error}; nothing was posted", file.display())))
}
