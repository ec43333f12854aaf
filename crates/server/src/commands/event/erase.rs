//! `postrider event erase`: takes a person's payloads out of everything that is kept here, and says what is kept elsewhere.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{ArgGroup, Args};
use postrider::EventId;
use postrider::archive;
use postrider::envelope::AggregateId;
use postrider::store::{Erase, Erased};
use serde::Serialize;

use crate::commands::Context;
use crate::desk::write_down;
use crate::exit::{Exit, usage};
use crate::outboxes::{self, OpenOutbox};
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
#[command(group(ArgGroup::new("which").required(true).args(["ids", "aggregate"])))]
pub(super) struct EraseArgs {
    /// The events, by id
    #[arg(value_name = "ID")]
    ids: Vec<EventId>,
    /// Everything that happened to an entity, as TYPE/ID: shop.customer/42
    #[arg(long, value_name = "TYPE/ID")]
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
    let reason = args.reason.as_deref().unwrap_or_default();
    let outboxes = outboxes::open(store, &context.config, &context.clock)?;
    for one in &which {
        add(&mut report.erased, everywhere(one, &outboxes, store, (&by, reason, args.dry_run)).await?, false);
    }
    report.erased.events.sort();
    report.erased.events.dedup();
    // What is in files alone is in no table that would tell the log of it.
    let alone = if args.dry_run { Vec::new() } else { in_files_alone(&args, &report.erased, context)? };
    report.archived_lines = in_files(&args, &report.erased, context)?;
    for id in alone {
        write_down(store, context.log_entry("event.erase", id, reason)).await?;
    }
    report.elsewhere = elsewhere(&report.erased, context);
    context.output.one(&report, &told(&report))?;
    let Erased { unpublished, held, replaying, .. } = &report.erased;
    let left = !unpublished.is_empty() || held + replaying > 0;
    Ok(if left { Exit::Partly } else { Exit::Ok })
}

/// From every outbox, and from the store what it has of events that are in other databases.
async fn everywhere<S: WholeStore>(
    one: &Erase,
    outboxes: &[OpenOutbox<S>],
    store: &S,
    (by, reason, dry_run): (&str, &str, bool),
) -> anyhow::Result<Erased> {
    let one_event = matches!(one, Erase::Event(_));
    let mut found = Vec::new();
    for outbox in outboxes {
        found.push((outbox, outbox.store.would_erase(one).await?));
    }
    let has = |would: &Erased| would.rows > 0 || !would.unpublished.is_empty();
    let waits = found.iter().any(|(_, would)| !would.unpublished.is_empty());
    let mut all = Erased::default();
    for (at, (outbox, would)) in found.iter().enumerate() {
        let place = outbox.choice.place();
        let beside = |others: &[(&OpenOutbox<S>, Erased)], wanted: fn(&Erased) -> bool| {
            others.iter().any(|(other, would)| other.choice.place() == place && wanted(would))
        };
        // A table that never had it would take its dead letters for nobody's, or write them into the log once more.
        if one_event && !has(would) && (waits || beside(&found, has) || beside(&found[..at], |_| true)) {
            continue;
        }
        let erased = if dry_run { would.clone() } else { outbox.store.erase(one, by, reason).await? };
        if !one_event && place.is_some() {
            // Dead letters and answers are in the store, whichever database an outbox is in.
            for id in &erased.events {
                let event = Erase::Event(EventId::new(id)?);
                let here = if dry_run {
                    store.would_erase(&event).await?
                } else {
                    store.erase(&event, by, reason).await?
                };
                add(&mut all, here, false);
            }
        }
        add(&mut all, erased, one_event);
    }
    Ok(all)
}

/// Adds up. The dead letters and answers of one event are found from every outbox of their database, and are counted once.
fn add(all: &mut Erased, more: Erased, same_event: bool) {
    let sum = |one: u64, other: u64| if same_event { one.max(other) } else { one + other };
    all.dead_letters = sum(all.dead_letters, more.dead_letters);
    all.answers = sum(all.answers, more.answers);
    all.held = sum(all.held, more.held);
    all.replaying = sum(all.replaying, more.replaying);
    all.events.extend(more.events);
    all.unpublished.extend(more.unpublished);
    all.rows += more.rows;
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

/// Archive files of this machine, of every outbox, whatever outbox.archive says now: an event may be in one and in no table any more.
fn in_files(args: &EraseArgs, erased: &Erased, context: &Context) -> anyhow::Result<u64> {
    let ids = erased.events.iter().cloned().chain(args.ids.iter().map(ToString::to_string));
    let ids: BTreeSet<_> = ids.collect();
    let aggregate = args.aggregate.as_deref().and_then(|aggregate| aggregate.split_once('/'));
    let changed = if args.dry_run { "read" } else { "erased" };
    let lines = if args.dry_run { archive::would_erase } else { archive::erase };
    let mut found = 0;
    for folder in folders(context) {
        found += lines(folder, &ids, aggregate)
            .with_context(|| format!("the archive in {} was not {changed}", folder.display()))?;
    }
    Ok(found)
}

/// The events that were named, are in no table, and are in some file.
fn in_files_alone(args: &EraseArgs, erased: &Erased, context: &Context) -> anyhow::Result<Vec<String>> {
    let named = args.ids.iter().map(ToString::to_string).filter(|id| !erased.events.contains(id));
    let mut alone = Vec::new();
    for id in named {
        let ids = BTreeSet::from([id.clone()]);
        for folder in folders(context) {
            let lines = archive::would_erase(folder, &ids, None)
                .with_context(|| format!("the archive in {} was not read", folder.display()))?;
            if lines > 0 {
                alone.push(id);
                break;
            }
        }
    }
    Ok(alone)
}

fn folders(context: &Context) -> BTreeSet<&PathBuf> {
    context.config.outboxes.iter().map(|outbox| &outbox.archive_dir).collect()
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
    if erased.replaying > 0 {
        places.push(format!(
            "{} events are part of a replay that is not finished, and still go out; cancel it (`postrider ops cancel`), or run this again once it is done",
            erased.replaying
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
