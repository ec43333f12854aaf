//! `postrider event erase`: takes a person's payloads out of everything that is kept here, and says what is kept elsewhere.

use std::collections::BTreeSet;

use anyhow::Context as _;
use clap::Args;
use postrider::EventId;
use postrider::archive;
use postrider::envelope::AggregateId;
use postrider::store::{Erase, Erased};
use serde::Serialize;

use crate::commands::Context;
use crate::config::ArchiveChoice;
use crate::exit::{Exit, usage};
use crate::wiring::WholeStore;

/// Which events.
#[derive(Debug, Args)]
#[command(
    after_help = "A note with the payload's hash takes its place in the outbox, its archive and dead letters; answers of handlers and \
    endpoints are forgotten. Ids, types, times, hashes and counts stay, so that duplicates are known and the account holds. Every event \
    is in the audit log. What it cannot reach, it names.\n\nExamples:\n  \
    postrider event erase evt_1 --reason 'request 4711'\n  \
    postrider event erase --aggregate shop.customer/42 --reason 'request 4711'"
)]
pub(super) struct EraseArgs {
    /// The events, by id
    #[arg(required_unless_present = "aggregate")]
    ids: Vec<EventId>,
    /// Everything that happened to an entity, as TYPE/ID: shop.customer/42
    #[arg(long, value_name = "TYPE/ID", conflicts_with = "ids")]
    aggregate: Option<String>,
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT", required_unless_present = "dry_run")]
    reason: Option<String>,
    /// Say what would be erased, and erase nothing
    #[arg(long)]
    dry_run: bool,
}

/// What was erased, and what could not be.
#[derive(Debug, Default, Serialize)]
struct Report {
    /// Whether nothing was.
    dry_run: bool,
    #[serde(flatten)]
    erased: Erased,
    /// Lines of archive files.
    archived_lines: u64,
    /// Where it may be still, and what to do about it.
    elsewhere: Vec<String>,
}

/// Erases, after a question.
pub(super) async fn run<S: WholeStore>(
    args: EraseArgs,
    store: &S,
    context: &Context,
) -> anyhow::Result<Exit> {
    let which = which(&args)?;
    let what = match &args.aggregate {
        Some(aggregate) => format!("everything that happened to {aggregate}"),
        None => format!("{} events", args.ids.len()),
    };
    if !args.dry_run {
        context.output.confirm(&format!("erase what is said in {what}? It cannot be brought back"))?;
    }
    let by = context.environment.actor();
    let mut report = Report { dry_run: args.dry_run, ..Report::default() };
    for one in &which {
        let erased = if args.dry_run {
            store.would_erase(one).await?
        } else {
            store.erase(one, &by, args.reason.as_deref().unwrap_or_default()).await?
        };
        report.erased.events.extend(erased.events);
        report.erased.unpublished.extend(erased.unpublished);
        report.erased.rows += erased.rows;
        report.erased.dead_letters += erased.dead_letters;
        report.erased.answers += erased.answers;
        report.erased.held += erased.held;
    }
    report.archived_lines = in_files(&args, &report.erased, context)?;
    report.elsewhere = elsewhere(&report.erased, context);
    context.output.one(&report, &told(&report))?;
    let left = !report.erased.unpublished.is_empty() || report.erased.held > 0;
    Ok(if left { Exit::Partly } else { Exit::Ok })
}

fn which(args: &EraseArgs) -> anyhow::Result<Vec<Erase>> {
    let Some(aggregate) = &args.aggregate else {
        return Ok(args.ids.iter().cloned().map(Erase::Event).collect());
    };
    let (kind, id) = aggregate
        .split_once('/')
        .filter(|(kind, _)| !kind.is_empty())
        .ok_or_else(|| usage("--aggregate is TYPE/ID, such as shop.customer/42"))?;
    Ok(vec![Erase::Aggregate { kind: kind.to_owned(), id: AggregateId::new(id)? }])
}

/// Archive files of this machine.
fn in_files(args: &EraseArgs, erased: &Erased, context: &Context) -> anyhow::Result<u64> {
    let outbox = &context.config.settings.outbox;
    if outbox.archive != ArchiveChoice::Files {
        return Ok(0);
    }
    let ids: BTreeSet<_> = erased.events.iter().cloned().collect();
    let aggregate = args.aggregate.as_deref().and_then(|aggregate| aggregate.split_once('/'));
    let (folder, changed) = (&outbox.archive_dir, if args.dry_run { "read" } else { "erased" });
    let lines = if args.dry_run { archive::would_erase } else { archive::erase };
    lines(folder, &ids, aggregate)
        .with_context(|| format!("the archive in {} was not {changed}", folder.display()))
}

fn elsewhere(erased: &Erased, context: &Context) -> Vec<String> {
    let mut places = Vec::new();
    if !erased.unpublished.is_empty() {
        let ids = erased.unpublished.join(", ");
        places.push(format!("{ids}: not published yet; run this again once they are"));
    }
    if erased.held > 0 {
        places.push(format!(
            "{} deliveries are held behind an earlier event of their key; run this again once they are applied",
            erased.held
        ));
    }
    places.push(
        "messages that wait in queues of the broker: they go as they are handled; `postrider event trace` says where they wait".to_owned(),
    );
    if context.config.redis.is_some() {
        places.push(format!(
            "answers of handlers in Redis: for {} hours",
            context.config.settings.redis.idempotency_ttl_hours
        ));
    }
    places.push(
        "what consumers have made of it, journal entries of the ledger, and backups and logs of the database: theirs to erase".to_owned(),
    );
    places
}

fn told(report: &Report) -> String {
    let Erased { events, rows, dead_letters, answers, .. } = &report.erased;
    let erased = if report.dry_run { "would erase" } else { "erased" };
    let mut text = format!(
        "{erased} {} events: {rows} rows, {dead_letters} dead letters, {answers} answers, {} lines of archive files\nnot erased here:",
        events.len(),
        report.archived_lines
    );
    for place in &report.elsewhere {
        text.push_str("\n  ");
        text.push_str(place);
    }
    text
}
