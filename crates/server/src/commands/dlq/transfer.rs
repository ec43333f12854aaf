//! Dead letters to JSON lines and back, byte for byte.

use std::io::{BufRead as _, Write as _};

use anyhow::Context as _;
use clap::Args;
use postrider::store::{DeadLetter, LetterQuery, LetterStatus, Triage, Turn};
use serde::{Deserialize, Serialize};

use super::Context;
use super::filter::{FilterArgs, StatusWord, status};
use crate::exit::{Exit, usage};

/// Letters read or written at a time.
const PAGE: usize = 200;

#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// What became of them: open, replayed, discarded or all
    #[arg(long, value_parser = status, default_value = "open")]
    status: StatusWord,
    /// Where to write them [default: stdout]
    #[arg(long, value_name = "FILE")]
    to: Option<std::path::PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    /// What `postrider dlq export` wrote; - for stdin
    file: String,
    /// Read and check it, and store nothing
    #[arg(long)]
    dry_run: bool,
}

/// A line: the letter, and what became of it. Of an open one that is not said.
#[derive(Serialize)]
struct Exported<'a> {
    #[serde(flatten)]
    letter: &'a DeadLetter,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'static str>,
}

/// What a line says of what became of the letter.
#[derive(Deserialize)]
struct Became {
    status: Option<String>,
}

impl Became {
    fn is_open(&self) -> bool {
        self.status.as_deref().is_none_or(|status| status == LetterStatus::Open.as_str())
    }
}

#[derive(Serialize)]
struct Imported {
    read: u64,
    /// Those that were resolved where they were exported.
    left_out: u64,
}

pub(super) async fn export<S: Triage>(
    args: ExportArgs,
    store: &S,
    context: &Context,
) -> anyhow::Result<Exit> {
    let filter = args.filter.into_filter(args.status.0, context.clock.now())?;
    let mut out: Box<dyn std::io::Write> = match &args.to {
        Some(path) => {
            let file =
                std::fs::File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
            Box::new(std::io::BufWriter::new(file))
        }
        None => Box::new(std::io::stdout().lock()),
    };
    let (mut turn, mut written) = (Turn::Newest, 0_u64);
    loop {
        let page = store.letters(&LetterQuery { filter: filter.clone(), turn, limit: PAGE }).await?;
        for summary in &page.letters {
            if let Some(stored) = store.letter(summary.id).await? {
                let status = stored.summary.status;
                let status = (status != LetterStatus::Open).then(|| status.as_str());
                let line = Exported { letter: &stored.letter, status };
                writeln!(out, "{}", serde_json::to_string(&line)?)?;
                written += 1;
            }
        }
        match page.next {
            Some(next) => turn = Turn::Before(next),
            None => break,
        }
    }
    out.flush()?;
    context.output.note(&format!("{written} dead letters were written; they stay where they are"));
    Ok(Exit::Ok)
}

pub(super) async fn import<S: Triage>(
    args: ImportArgs,
    store: &S,
    context: &Context,
) -> anyhow::Result<Exit> {
    let reader: Box<dyn std::io::BufRead> = if args.file == "-" {
        Box::new(std::io::stdin().lock())
    } else {
        let file = std::fs::File::open(&args.file).with_context(|| format!("cannot read {}", args.file))?;
        Box::new(std::io::BufReader::new(file))
    };
    let (mut batch, mut read, mut left_out) = (Vec::new(), 0_u64, 0_u64);
    for (number, line) in (1_u64..).zip(reader.lines()) {
        let line = line.with_context(|| format!("cannot read line {number}"))?;
        if line.trim().is_empty() {
            continue;
        }
        let letter: DeadLetter = match serde_json::from_str(&line) {
            Ok(letter) => letter,
            Err(error) if args.dry_run => {
                return Err(usage(format!(
                    "line {number} is no exported dead letter: {error}; nothing was stored"
                )));
            }
            Err(error) => {
                store.collect(batch).await?;
                return Err(usage(format!(
                    "line {number} is no exported dead letter: {error}; the {read} before it are stored"
                )));
            }
        };
        // Open again, it would be sent again with the others, although somebody has dealt with it.
        if !serde_json::from_str::<Became>(&line).is_ok_and(|became| became.is_open()) {
            left_out += 1;
            continue;
        }
        batch.push(letter);
        read += 1;
        if batch.len() == PAGE && !args.dry_run {
            store.collect(std::mem::take(&mut batch)).await?;
        }
    }
    if left_out > 0 {
        context.output.note(&format!(
            "{left_out} were replayed or discarded before they were exported, and are left out; take `status` off their lines to \
             have them open"
        ));
    }
    if args.dry_run {
        context.output.note(&format!("would store {read} dead letters; nothing was stored"));
        return Ok(Exit::Ok);
    }
    store.collect(batch).await?;
    let told = format!("{read} dead letters were read; those that were known already stay as they were");
    context.output.one(&Imported { read, left_out }, &told)?;
    Ok(Exit::Ok)
}
