//! `postrider schema`: the event catalogue, and whether it may be released.

use std::io::Read as _;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use postrider::EventType;
use serde::Serialize;

use super::Context;
use crate::catalog::{Catalog, RELEASED, payload};
use crate::exit::{Exit, usage};

/// What to do with the catalogue.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    postrider schema ls\n  \
    postrider schema check\n  \
    postrider schema check email.verification.requested --data @payload.json\n  \
    postrider schema release\n\n\
    A catalogue is a folder with a JSON file for each type of event: type, description, owner, schema, example. What was released is \
    in released.json beside them; commit both, and run `schema check` in CI.")]
pub(crate) struct SchemaArgs {
    #[command(subcommand)]
    what: What,
    /// The folder of the catalogue [default: catalog.path]
    #[arg(long, global = true, value_name = "FOLDER", help_heading = "Options of every schema command")]
    path: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the types of events
    Ls,
    /// Refuse changes that are not additive and personal fields that do not say so; exit 3 and what they are
    Check {
        /// Check a payload of this type instead
        #[arg(requires = "data", value_name = "TYPE")]
        event_type: Option<EventType>,
        /// The payload: JSON, @FILE, or - for stdin
        #[arg(long, requires = "event_type", value_name = "JSON")]
        data: Option<String>,
    },
    /// Take the catalogue as released, if nothing stands against it
    Release {
        /// Say what would be released, and write nothing
        #[arg(long)]
        dry_run: bool,
    },
}

/// A type as it is listed.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(rename = "type")]
    event_type: String,
    schema_version: u32,
    state: &'static str,
    owner: Option<String>,
    description: String,
}

/// What stands against a release.
#[derive(Debug, Serialize)]
struct Fault {
    #[serde(rename = "type")]
    event_type: String,
    problem: String,
}

/// Runs it. Needs no server.
pub(crate) fn run(args: &SchemaArgs, context: &Context) -> anyhow::Result<Exit> {
    let folder = args.path.clone().unwrap_or_else(|| context.config.settings.catalog.path.clone());
    let catalog = Catalog::read(&folder)?;
    match &args.what {
        What::Ls => list(&catalog, context),
        What::Check { event_type: Some(event_type), data: Some(data) } => {
            let Some(entry) = catalog.entries.get(event_type.as_str()) else {
                return Err(usage(format!("{event_type} is not in the catalogue {}", folder.display())));
            };
            let value =
                serde_json::from_str(&text_of(data)?).map_err(|error| usage(format!("--data: {error}")))?;
            let found = payload::problems(&entry.schema, &value);
            told(found.into_iter().map(|problem| (event_type.to_string(), problem)).collect(), context)
        }
        What::Check { .. } => told(catalog.faults(), context),
        What::Release { dry_run } => {
            let faults = catalog.faults();
            if !faults.is_empty() {
                return told(faults, context);
            }
            let new = catalog.entries.len().saturating_sub(catalog.released.len());
            if !dry_run {
                let text = serde_json::to_string_pretty(&catalog.entries)?;
                std::fs::write(folder.join(RELEASED), format!("{text}\n"))?;
            }
            let all = catalog.entries.len();
            context.output.note(&if *dry_run {
                format!("{all} types would be released, {new} of them new; nothing was written")
            } else {
                format!("{all} types are released, {new} of them new")
            });
            Ok(Exit::Ok)
        }
    }
}

fn list(catalog: &Catalog, context: &Context) -> anyhow::Result<Exit> {
    let rows: Vec<Row> = catalog
        .entries
        .iter()
        .map(|(name, entry)| Row {
            event_type: name.clone(),
            schema_version: entry.schema_version,
            state: match catalog.released.get(name) {
                None => "new",
                Some(released) if released == entry => "released",
                Some(_) => "changed",
            },
            owner: entry.owner.clone(),
            description: entry.description.clone(),
        })
        .collect();
    context.output.rows(&["TYPE", "VERSION", "STATE", "OWNER", "DESCRIPTION"], &rows, |row| {
        vec![
            row.event_type.clone(),
            row.schema_version.to_string(),
            row.state.to_owned(),
            row.owner.clone().unwrap_or_default(),
            row.description.clone(),
        ]
    })?;
    Ok(Exit::Ok)
}

/// What stands against it, if anything.
fn told(faults: Vec<(String, String)>, context: &Context) -> anyhow::Result<Exit> {
    if faults.is_empty() {
        context.output.note("nothing stands against it");
        return Ok(Exit::Ok);
    }
    let faults: Vec<_> =
        faults.into_iter().map(|(event_type, problem)| Fault { event_type, problem }).collect();
    context
        .output
        .rows(&["TYPE", "PROBLEM"], &faults, |fault| vec![fault.event_type.clone(), fault.problem.clone()])?;
    Ok(Exit::Unhealthy)
}

fn text_of(data: &str) -> anyhow::Result<String> {
    if data == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        return Ok(text);
    }
    match data.strip_prefix('@') {
        Some(path) => {
            std::fs::read_to_string(path).map_err(|error| usage(format!("--data @{path}: {error}")))
        }
        None => Ok(data.to_owned()),
    }
}
