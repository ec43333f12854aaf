//! `postrider ledger export` and `import`.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use jiff::civil::Date;
use postrider::EventId;
use postrider::envelope::TenantId;
use postrider_ledger::LedgerError;
use postrider_ledger::account::{AccountCode, Side};
use postrider_ledger::books::Books;
use postrider_ledger::decimal::Decimal;
use postrider_ledger::entry::{Draft, DraftLine, EntryKind, Metadata, Source};
use postrider_ledger::export::{Exporter, Format};
use postrider_ledger::import::{self, Imported, Records};
use postrider_ledger::money::Currency;
use postrider_ledger::pipeline::{Answer, Arrival};
use serde_json::json;

use super::Desk;
use super::reading::Reading;
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

/// History, or opening balances.
#[derive(Debug, Args)]
#[command(
    after_help = "History is JSON lines or CSV as `ledger export` writes them. Every entry keeps its source event, so a repeat posts nothing \
    twice; what cannot be posted is named with its line, and the rest is posted: exit code 6. In json: posted, duplicates, \
    seals_left_out, and refused with a row each. docs/ledger.md has the columns.\n\n\
    With --on the file has opening balances: the columns account,side,amount,currency, with a header line. All of it is one \
    entry, so debits and credits must be equal in each currency; the same file again is the same entry, another file of the \
    same day is another one: to correct balances, reverse the entry and import the corrected file."
)]
pub(crate) struct ImportArgs {
    /// A file; - for stdin
    file: PathBuf,
    /// The day that opening balances are of
    #[arg(long, value_name = "DATE")]
    on: Option<Date>,
    /// Read and check it, and post nothing
    #[arg(long)]
    dry_run: bool,
}

pub(super) async fn export<B: Books>(args: ExportArgs, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let tenant = desk.tenant().await?;
    // Before the chart: what is posted meanwhile may be on accounts that it does not have, and is for the next export.
    let newest = desk.ledger.books().head(&tenant).await?.map_or(0, |head| head.number);
    let chart = desk.ledger.books().read_chart(&tenant).await?;
    let chart = chart.with_context(|| format!("{tenant} keeps no books here"))?;
    let format = match args.format {
        Program::Csv => Format::Csv,
        Program::Jsonl => Format::Jsonl,
        Program::Hledger => Format::Hledger,
        Program::Beancount => Format::Beancount,
    };
    let mut exporter = Exporter::new(format, &chart);
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    out.write_all(exporter.head().as_bytes())?;
    let mut after = 0;
    while after < newest {
        let most = usize::try_from(newest - after).unwrap_or(PAGE).min(PAGE);
        let entries = desk.ledger.books().entries(&tenant, after, most).await?;
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
    match args.on {
        Some(on) => opening(&args, on, desk).await,
        None => history(&args, desk).await,
    }
}

async fn history<B: Books>(args: &ImportArgs, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let tenant = desk.tenant().await?;
    let (mut reading, input) = Reading::open(&args.file, desk.context)?;
    let mut import = desk.ledger.import(&tenant).await?;
    if args.dry_run {
        import = import.rehearsed();
    } else {
        desk.changes(&tenant, "import", "entries").await?;
    }
    for (line, entry) in import::entries(input)? {
        import.take(line, entry).await?;
        reading.tell(line, import.so_far.posted);
    }
    let imported = import.finish().await?;
    reading.end();
    let Imported { posted, duplicates, seals_left_out, refused } = &imported;
    if !desk.context.output.is_for_people() {
        desk.context.output.one(&imported, "")?;
    } else if !refused.is_empty() {
        desk.context.output.rows(&["LINE", "EVENT", "REFUSED", "WHY"], refused, |row| {
            vec![row.line.to_string(), row.event.clone(), row.code.to_owned(), row.why.clone()]
        })?;
    }
    let (posted_or_not, end) =
        if args.dry_run { ("would be posted", "; nothing was posted") } else { ("posted", "") };
    let seals = match *seals_left_out {
        0 => String::new(),
        1 => ", 1 seal of a period left out".to_owned(),
        more => format!(", {more} seals of periods left out"),
    };
    let were = if *duplicates == 1 { "was" } else { "were" };
    desk.context.output.note(&format!(
        "{posted} {posted_or_not}, {duplicates} {were} posted before, {} refused{seals}{end}",
        refused.len()
    ));
    Ok(if refused.is_empty() { Exit::Ok } else { Exit::Partly })
}

async fn opening<B: Books>(args: &ImportArgs, on: Date, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let tenant = desk.tenant().await?;
    let (_, mut input) = Reading::open(&args.file, desk.context)?;
    let mut text = String::new();
    input.read_to_string(&mut text).with_context(|| format!("cannot read {}", args.file.display()))?;
    let mut lines = Vec::new();
    for (number, record) in Records::new(text.as_bytes()).skip(1) {
        let bad =
            |why: &str| usage(format!("{} line {number}: {why}; nothing was posted", args.file.display()));
        let record = record.map_err(|why| bad(&why))?;
        let columns: Vec<&str> = record.iter().map(|cell| cell.trim()).collect();
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
            amount: currency.minor_held(amount).map_err(|refusal| bad(&refusal.to_string()))?,
            currency,
            base: None,
        });
    }
    let draft = Draft {
        source: source(&tenant, on, &text, desk).await?,
        kind: EntryKind::Opening,
        effective_on: on,
        description: "Opening balances".to_owned(),
        metadata: Metadata::new(),
        refers_to: None,
        lines,
    };
    if !args.dry_run {
        desk.changes(&tenant, "import", "opening").await?;
    }
    let count = draft.lines.len();
    let arrivals = [Arrival::Draft(Box::new(draft))];
    let receipt = match desk.rehearsing_if(args.dry_run).post(&tenant, &arrivals).await?.pop() {
        Some(Answer::Posted(receipt)) if args.dry_run => {
            let with = json!({"entry": receipt.entry.to_string(), "lines": count});
            return desk.would(&format!("post {count} lines"), "nothing was posted", with);
        }
        Some(Answer::Posted(receipt)) => receipt,
        Some(Answer::Duplicate(receipt)) => {
            let told = match desk.ledger.ended_by(&tenant, receipt.entry).await? {
                None => format!("this file is entry {} already", receipt.entry),
                Some(by) => format!(
                    "this file is entry {} already; entry {} was reversed by {by}. A corrected file is another entry",
                    receipt.entry, receipt.entry
                ),
            };
            desk.context.output.note(&format!("{told}; nothing was posted"));
            receipt
        }
        Some(Answer::Refused(refusal)) => return Err(LedgerError::from(refusal).into()),
        None => anyhow::bail!("nothing was posted"),
    };
    desk.context.output.one(&receipt, &receipt.entry.to_string())?;
    Ok(Exit::Ok)
}

/// The key of opening balances is what they are: the same file of the same day is the same entry, and another one, corrected or of another
/// branch, is another. At first the key was the day alone; a file that was posted under it is still known.
async fn source<B: Books>(
    tenant: &TenantId,
    on: Date,
    text: &str,
    desk: &Desk<'_, B>,
) -> anyhow::Result<Source> {
    let of_day = desk.ledger.by_hand(Some(EventId::new(format!("opening:{on}"))?), text);
    let known = desk.ledger.books().posted(tenant, std::slice::from_ref(&of_day.event)).await?;
    if known.iter().any(|known| known.payload_hash == of_day.payload_hash) {
        return Ok(of_day);
    }
    let event = EventId::new(format!("opening:{on}:{}", of_day.payload_hash))?;
    Ok(Source { event, ..of_day })
}
