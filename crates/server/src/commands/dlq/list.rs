//! Pages of dead letters and of groups.

use clap::Args;
use jiff::Timestamp;
use postrider::store::{
    Cursor, GroupQuery, LetterGroup, LetterQuery, LetterStatus, LetterSummary, Triage, Turn,
};
use postrider::topology::QueueName;
use serde::Serialize;

use super::Context;
use super::filter::{FilterArgs, StatusWord, status};
use crate::commands::rows;
use crate::desk::letters::{read_place, write_place};
use crate::exit::{Exit, usage};
use crate::output::{ago, table};

#[derive(Debug, Args)]
pub(super) struct GroupsArgs {
    #[command(flatten)]
    pub(super) filter: FilterArgs,
    /// What became of them: open, or all
    #[arg(long, value_parser = status, default_value = "open")]
    status: StatusWord,
    /// At most so many
    #[arg(long, default_value_t = 20, value_parser = rows, value_name = "N")]
    pub(super) limit: usize,
    /// Counts over so many hours
    #[arg(long, default_value_t = 24, value_name = "N")]
    hours: u16,
    /// The page after the one that ended here
    #[arg(long, value_name = "PLACE")]
    after: Option<String>,
    /// Look into the dead-letter queue of this queue itself, where it is not collected
    #[arg(long, value_name = "QUEUE")]
    pub(super) in_queue: Option<QueueName>,
}

#[derive(Debug, Args)]
pub(super) struct LsArgs {
    #[command(flatten)]
    pub(super) filter: FilterArgs,
    /// What became of them: open, replayed, discarded or all
    #[arg(long, value_parser = status, default_value = "open")]
    status: StatusWord,
    /// At most so many
    #[arg(long, default_value_t = 50, value_parser = rows, value_name = "N")]
    pub(super) limit: usize,
    /// Older than this place
    #[arg(long, value_name = "PLACE", conflicts_with = "after")]
    before: Option<Cursor>,
    /// Newer than this place
    #[arg(long, value_name = "PLACE")]
    after: Option<Cursor>,
    /// Look into the dead-letter queue of this queue itself, where it is not collected
    #[arg(long, value_name = "QUEUE")]
    pub(super) in_queue: Option<QueueName>,
}

#[derive(Serialize)]
struct GroupPage<'a> {
    groups: &'a [LetterGroup],
    next: Option<String>,
    stopped_at: Option<Timestamp>,
}

#[derive(Serialize)]
struct LetterPage<'a> {
    letters: &'a [LetterSummary],
    next: Option<String>,
    stopped_at: Option<Timestamp>,
}

pub(super) async fn groups<S: Triage>(
    args: GroupsArgs,
    store: &S,
    context: &Context,
) -> anyhow::Result<Exit> {
    let now = context.clock.now();
    if args.status.0.is_some_and(|status| status != LetterStatus::Open) {
        return Err(usage("groups count what is open and what there ever was; use --status open or all"));
    }
    let after = args.after.as_deref().map(group_place).transpose()?;
    let filter = args.filter.into_filter(args.status.0, now)?;
    let query = GroupQuery { filter, after, limit: args.limit, hours: args.hours.clamp(1, 720), now };
    let page = store.groups(&query).await?;
    let next = page.next.as_ref().map(write_place);
    let rows = page.groups.iter().map(|group| group_row(group, now));
    let header = ["GROUP", "OPEN", "TOTAL", "CONSUMER", "TYPE", "REASON", "LAST", "OVER TIME", "ERROR"];
    let shown = GroupPage { groups: &page.groups, next: next.clone(), stopped_at: page.stopped_at };
    context.output.one(&shown, &table(&header, rows))?;
    stopped(context, page.stopped_at);
    elsewhere(context, page.groups.is_empty());
    if let Some(next) = next {
        context.output.note(&format!("more: --after {next}"));
    }
    Ok(Exit::Ok)
}

pub(super) async fn ls<S: Triage>(args: LsArgs, store: &S, context: &Context) -> anyhow::Result<Exit> {
    let now = context.clock.now();
    let turn = match (args.before, args.after) {
        (Some(cursor), _) => Turn::Before(cursor),
        (None, Some(cursor)) => Turn::After(cursor),
        (None, None) => Turn::Newest,
    };
    let filter = args.filter.into_filter(args.status.0, now)?;
    let page = store.letters(&LetterQuery { filter, turn, limit: args.limit }).await?;
    let next = page.next.map(|cursor| cursor.to_string());
    let rows = page.letters.iter().map(|letter| letter_row(letter, now));
    let header =
        ["ID", "DEAD", "STATUS", "CONSUMER", "TYPE", "EVENT", "REASON", "ATTEMPTS", "REPLAYS", "ERROR"];
    let shown = LetterPage { letters: &page.letters, next: next.clone(), stopped_at: page.stopped_at };
    context.output.one(&shown, &table(&header, rows))?;
    stopped(context, page.stopped_at);
    elsewhere(context, page.letters.is_empty());
    if let Some(next) = next {
        let way = if matches!(turn, Turn::After(_)) { "after" } else { "before" };
        context.output.note(&format!("more: --{way} {next}"));
    }
    Ok(Exit::Ok)
}

/// Who finds nothing may have to look where nothing is collected.
fn elsewhere(context: &Context, found_nothing: bool) {
    let layout = &context.config.own.layout;
    let left = layout.services.iter().find(|service| !(service.collect && layout.collect));
    if let Some(service) = left.filter(|_| found_nothing) {
        let queue = service.name();
        context
            .output
            .note(&format!("dead letters of {queue} are not collected: --in-queue {queue} looks there"));
    }
}

fn stopped(context: &Context, at: Option<Timestamp>) {
    if let Some(at) = at {
        context
            .output
            .note(&format!("the search stopped at {at}, after 20000 dead letters; there may be more beyond"));
    }
}

fn group_place(text: &str) -> anyhow::Result<(Timestamp, String)> {
    let place = read_place(text);
    place.ok_or_else(|| usage(format!("{text:?} is no place in a list; give one that a page before named")))
}

fn group_row(group: &LetterGroup, now: Timestamp) -> Vec<String> {
    vec![
        group.fingerprint.clone(),
        group.open.to_string(),
        group.total.to_string(),
        group.consumer.clone().unwrap_or_else(|| group.queue.clone()),
        group.event_type.clone().unwrap_or_default(),
        group.reason.clone(),
        ago(group.last_at, now),
        sparkline(&group.hours),
        short(&group.error, 60),
    ]
}

pub(super) fn letter_row(letter: &LetterSummary, now: Timestamp) -> Vec<String> {
    vec![
        letter.id.to_string(),
        ago(letter.dead_at, now),
        letter.status.as_str().to_owned(),
        letter.consumer.clone().unwrap_or_else(|| letter.queue.clone()),
        letter.event_type.clone().unwrap_or_default(),
        letter.event_id.clone().unwrap_or_else(|| "(no id)".to_owned()),
        letter.reason.clone(),
        letter.attempts.to_string(),
        letter.replays.to_string(),
        short(&letter.error, 60),
    ]
}

/// The first line, and no more of it than fits; nothing a terminal would obey.
pub(super) fn short(text: &str, most: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    let plain: String = line.chars().filter(|c| !c.is_control()).take(most + 1).collect();
    if plain.chars().count() > most || text.lines().nth(1).is_some() {
        format!("{}…", plain.chars().take(most).collect::<String>())
    } else {
        plain
    }
}

/// Counts as bars, the largest as the highest.
fn sparkline(counts: &[u64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = counts.iter().copied().max().unwrap_or(0).max(1);
    let bar = |count: &u64| match *count {
        0 => '·',
        count => BARS[usize::try_from(count * 7 / most).unwrap_or(7).min(7)],
    };
    counts.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_shows_nothing_as_a_dot() {
        assert_eq!(sparkline(&[0, 1, 8, 4]), "·▁█▄");
        assert_eq!(sparkline(&[]), "");
    }

    #[test]
    fn what_a_terminal_would_obey_is_not_shown() {
        assert_eq!(short("\u{1b}[31mred\nsecond line", 60), "[31mred…");
        assert_eq!(short("ж".repeat(100).as_str(), 3), "жжж…");
    }
}
