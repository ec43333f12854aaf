//! `postrider ledger ingest`: posts events from a file, a JSON document a line. A repeat is safe: what is posted is a duplicate.

use std::collections::BTreeMap;
use std::io::{self, BufRead};
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use postrider::envelope::TenantId;
use postrider::{Envelope, EventId};
use postrider_ledger::books::Books;
use postrider_ledger::pipeline::{Answer, Arrival};
use postrider_ledger::refusal::Refusal;
use serde::{Deserialize, Serialize};

use super::Desk;
use super::reading::Reading;
use crate::commands::Context;
use crate::event_input::EventInput;
use crate::exit::Exit;
use crate::output::Output;

/// Events in one transaction.
const BATCH: usize = 500;

/// Where the events are.
#[derive(Debug, Args)]
#[command(
    after_help = "A line is {\"type\": …, \"id\": …, \"tenant\": …, \"data\": {…}}, with occurred_at where it matters. \
    Events that are refused are printed with their reasons, and the rest is posted: exit code 6. Mend the cause and run it \
    again: what is posted already is not posted twice. In json: posted, duplicates, and refused with a row each."
)]
pub(crate) struct IngestArgs {
    /// A file of events; - for stdin
    file: PathBuf,
    /// Say what would be posted and what refused, on the books as they are, and post nothing
    #[arg(long)]
    dry_run: bool,
}

/// What became of a file, or would.
#[derive(Debug, Default, Serialize)]
struct Ingested {
    /// Events that are in the books now.
    posted: usize,
    /// Events that were in the books before.
    duplicates: usize,
    /// Events that are not in the books.
    refused: Vec<Refused>,
}

#[derive(Debug, Serialize)]
struct Refused {
    line: usize,
    id: String,
    code: String,
    why: String,
}

pub(super) async fn run<B: Books>(args: IngestArgs, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let mut ingested = Ingested::default();
    let mut waiting: BTreeMap<TenantId, Vec<(usize, Arrival)>> = BTreeMap::new();
    let (mut reading, input) = Reading::open(&args.file, desk.context)?;
    for line in lines(input) {
        let (number, line) = line?;
        let read = read(&line, desk.context).map_err(|why| ("malformed", why)).and_then(|envelope| {
            let tenant = envelope.tenant.group.clone().or_else(|| desk.tenant.clone());
            let nobody = || (Refusal::NoTenant.code(), "it names no tenant; add --tenant".to_owned());
            tenant.map(|tenant| (tenant, envelope)).ok_or_else(nobody)
        });
        match read {
            Err((code, why)) => {
                let (id, code) = (id(&line), code.to_owned());
                ingested.refused.push(Refused { line: number, id, code, why });
            }
            Ok((tenant, envelope)) => {
                let batch = waiting.entry(tenant.clone()).or_default();
                batch.push((number, Arrival::event(envelope)));
                if batch.len() >= BATCH {
                    let batch = std::mem::take(batch);
                    post(&tenant, batch, args.dry_run, desk, &mut ingested).await?;
                }
            }
        }
        reading.tell(number, ingested.posted);
    }
    for (tenant, batch) in waiting {
        post(&tenant, batch, args.dry_run, desk, &mut ingested).await?;
    }
    reading.end();
    ingested.refused.sort_by_key(|refused| refused.line);
    tell(&ingested, args.dry_run, desk.context.output)?;
    Ok(if ingested.refused.is_empty() { Exit::Ok } else { Exit::Partly })
}

/// What became of the file: for people the refusals and the counts, in JSON one document with both.
fn tell(ingested: &Ingested, dry_run: bool, output: Output) -> anyhow::Result<()> {
    let Ingested { posted, duplicates, refused } = ingested;
    if !output.is_for_people() {
        output.one(ingested, "")?;
    } else if !refused.is_empty() {
        output.rows(&["LINE", "EVENT", "REFUSED", "WHY"], refused, |row| {
            vec![row.line.to_string(), row.id.clone(), row.code.clone(), row.why.clone()]
        })?;
    }
    let refused = refused.len();
    let were = if *duplicates == 1 { "was" } else { "were" };
    let told = if dry_run {
        format!(
            "{posted} would be posted, {duplicates} {were} posted before, {refused} would be refused; nothing was posted"
        )
    } else {
        format!("{posted} posted, {duplicates} {were} posted before, {refused} refused")
    };
    output.note(&told);
    Ok(())
}

async fn post<B: Books>(
    tenant: &TenantId,
    batch: Vec<(usize, Arrival)>,
    dry_run: bool,
    desk: &Desk<'_, B>,
    ingested: &mut Ingested,
) -> anyhow::Result<()> {
    let (numbers, arrivals): (Vec<usize>, Vec<Arrival>) = batch.into_iter().unzip();
    let answers = if dry_run {
        desk.ledger.rehearse(tenant, &arrivals).await?
    } else {
        desk.ledger.post(tenant, &arrivals).await?
    };
    for ((line, arrival), answer) in numbers.into_iter().zip(&arrivals).zip(answers) {
        match answer {
            Answer::Posted(_) => ingested.posted += 1,
            Answer::Duplicate(_) => ingested.duplicates += 1,
            Answer::Refused(refusal) => {
                let (id, code) = (arrival.id().0.to_string(), refusal.code().to_owned());
                ingested.refused.push(Refused { line, id, code, why: refusal.to_string() });
            }
        }
    }
    Ok(())
}

/// The lines of a file with their numbers, empty ones left out. A file that cannot be read to its end is an error: what is left
/// of it would be missing without a word.
pub(super) fn lines(input: impl BufRead) -> impl Iterator<Item = anyhow::Result<(usize, String)>> {
    // What is not UTF-8 is shown as it is and refused as an event, line by line.
    let read = |(number, line): (usize, io::Result<Vec<u8>>)| match line {
        Ok(line) if line.trim_ascii().is_empty() => None,
        Ok(line) => Some(Ok((number, String::from_utf8_lossy(&line).into_owned()))),
        Err(error) => Some(Err(error).with_context(|| format!("cannot read line {number}"))),
    };
    (1..).zip(input.split(b'\n')).filter_map(read)
}

/// The id of a line that is no event, as far as it can be told.
fn id(line: &str) -> String {
    #[derive(Deserialize)]
    struct Named {
        id: EventId,
    }
    serde_json::from_str(line).map_or_else(|_| String::new(), |Named { id }| id.to_string())
}

/// One event, or in words why it is none.
pub(super) fn read(line: &str, context: &Context) -> Result<Envelope, String> {
    let input: EventInput = serde_json::from_str(line).map_err(|error| error.to_string())?;
    if input.id.is_none() {
        return Err("it has no id, so a repeat could not be told; give it one".to_owned());
    }
    let event = input.into_event(context.config.settings.limits).map_err(|error| error.to_string())?;
    Ok(event.into_envelope(&context.clock))
}
