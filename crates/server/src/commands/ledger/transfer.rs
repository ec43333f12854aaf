//! `postrider ledger export` and `import`.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use jiff::civil::Date;
use postrider::EventId;
use postrider_ledger::account::{AccountCode, Side};
use postrider_ledger::books::Books;
use postrider_ledger::decimal::Decimal;
use postrider_ledger::entry::{Draft, DraftLine, EntryKind, Metadata};
use postrider_ledger::export::{Exporter, Format};
use postrider_ledger::money::Currency;

use super::Desk;
use crate::exit::{Exit, usage};

/// Entries read at a time.
const PAGE: usize = 1000;

/// In which format.
#[derive(Debug, Args)]
#[command(after_help = "csv and jsonl have every entry; hledger and beancount have what counts in balances.")]
pub(crate) struct ExportArgs {
    /// The program that will read it
    #[arg(long, value_enum, default_value_t = Program::Jsonl)]
    format: Program,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Program {
    Csv,
    Jsonl,
    Hledger,
    Beancount,
}

/// Opening balances.
#[derive(Debug, Args)]
#[command(
    after_help = "The file has the columns account,side,amount,currency, with a header line. All of it is one entry, so debits and\n\
    credits must be equal in each currency; the same file again is the same entry."
)]
pub(crate) struct ImportArgs {
    /// A CSV file
    file: PathBuf,
    /// The day the balances are of
    #[arg(long, value_name = "DATE")]
    on: Date,
    /// Check it, and post nothing
    #[arg(long)]
    dry_run: bool,
}

pub(super) async fn export<B: Books>(args: ExportArgs, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let tenant = desk.tenant().await?;
    let chart = desk.ledger.books().read_chart(&tenant).await?;
    let chart = chart.with_context(|| format!("{tenant} keeps no books here"))?;
    let format = match args.format {
        Program::Csv => Format::Csv,
        Program::Jsonl => Format::Jsonl,
        Program::Hledger => Format::Hledger,
        Program::Beancount => Format::Beancount,
    };
    let exporter = Exporter::new(format, &chart);
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    out.write_all(exporter.head().as_bytes())?;
    let mut after = 0;
    loop {
        let entries = desk.ledger.books().entries(&tenant, after, PAGE).await?;
        let Some(last) = entries.last() else { break };
        after = last.number;
        for entry in &entries {
            out.write_all(exporter.entry(entry, &chart).as_bytes())?;
        }
    }
    out.flush()?;
    Ok(Exit::Ok)
}

pub(super) async fn import<B: Books>(args: ImportArgs, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let tenant = desk.tenant().await?;
    let text = std::fs::read_to_string(&args.file)
        .with_context(|| format!("cannot read {}", args.file.display()))?;
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()).skip(1).filter(|(_, line)| !line.trim().is_empty()) {
        let bad =
            |why: &str| usage(format!("{} line {number}: {why}; nothing was posted", args.file.display()));
        let columns: Vec<&str> = line.split(',').map(|cell| cell.trim().trim_matches('"')).collect();
        let [account, side, amount, currency] = columns.as_slice() else {
            return Err(bad("there should be account,side,amount,currency"));
        };
        let side = match *side {
            "debit" => Side::Debit,
            "credit" => Side::Credit,
            _ => return Err(bad("the side is debit or credit")),
        };
        let currency: Currency = currency.parse().map_err(|error| bad(&format!("{error}")))?;
        let amount: Decimal = amount.parse().map_err(|error| bad(&format!("the amount {amount} {error}")))?;
        lines.push(DraftLine {
            account: AccountCode::new(account).map_err(|error| bad(&error.to_string()))?,
            side,
            amount: currency.minor(amount).map_err(|refusal| bad(&refusal.to_string()))?,
            currency,
            base: None,
        });
    }
    if args.dry_run {
        desk.context.output.note(&format!("would post {} lines; nothing was posted", lines.len()));
        return Ok(Exit::Ok);
    }
    let key = EventId::new(format!("opening:{}", args.on))?;
    let draft = Draft {
        source: desk.ledger.by_hand(Some(key), &text),
        kind: EntryKind::Opening,
        effective_on: args.on,
        description: "Opening balances".to_owned(),
        metadata: Metadata::new(),
        refers_to: None,
        lines,
    };
    let receipt = desk.ledger.post_draft(&tenant, draft).await?;
    desk.context.output.one(&receipt, &receipt.entry.to_string())?;
    Ok(Exit::Ok)
}
