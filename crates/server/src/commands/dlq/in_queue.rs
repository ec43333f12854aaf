//! Dead letters that are not collected, in their own queue.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::bail;
use jiff::Timestamp;
use postrider::Broker;
use postrider::dead_letter::in_queue::{Moved, Taking, Way, look, take_away};
use postrider::envelope::EventId;
use postrider::sqlite::ServeLock;
use postrider::store::{DeadLetter, LetterFilter};
use postrider::topology::{QueueName, ServiceQueue};
use serde::Serialize;

use super::Context;
use super::change::{DiscardArgs, ReplayArgs, Which};
use super::list::{GroupsArgs, LsArgs, short};
use super::show;
use crate::exit::{Exit, absent, usage};
use crate::output::ago;
use crate::wiring::{WholeStore, Wired};

/// The service queue and its broker, opened to work with it.
async fn open<S: WholeStore>(
    queue: &QueueName,
    wired: &Wired<S>,
    context: &Context,
) -> anyhow::Result<(ServiceQueue, Arc<dyn Broker>, Option<ServeLock>)> {
    let registered = wired.store.registrations().await?.into_iter().map(|one| one.service);
    let layout = &context.config.own.layout;
    let unroutable = layout.unroutable.iter().map(ServiceQueue::of_dead_letters);
    let mut known = layout.services.iter().cloned().chain(registered).chain(unroutable);
    let Some(service) = known.find(|service| service.name() == queue) else {
        return Err(absent(format!("no [[queue]] and no consumer is known for {queue}")));
    };
    if service.collect && layout.collect {
        return Err(usage(format!(
            "the dead letters of {queue} are collected: leave out --in-queue, or set collect = false for the queue"
        )));
    }
    // On the embedded default its queues live in one process at a time.
    let lock = wired.serve_lock()?;
    Ok((service, wired.broker.open().await?, lock))
}

pub(super) async fn ls<S: WholeStore>(
    args: LsArgs,
    wired: &Wired<S>,
    context: &Context,
) -> anyhow::Result<Exit> {
    let Some(queue) = args.in_queue else { bail!("no queue is named") };
    let (service, broker, _lock) = open(&queue, wired, context).await?;
    let filter = args.filter.into_filter(None, context.clock.now())?;
    let found = look(&broker, &context.clock, &service, &filter, args.limit).await;
    broker.close().await;
    let now = context.clock.now();
    let header = ["DEAD", "TYPE", "EVENT", "REASON", "ATTEMPTS", "ERROR"];
    context.output.rows(&header, &found?, |letter: &DeadLetter| {
        vec![
            ago(letter.dead_at, now),
            letter.event_type.clone().unwrap_or_default(),
            letter.event_id.as_ref().map_or_else(|| "(no id)".to_owned(), ToString::to_string),
            letter.reason.clone(),
            letter.attempts.to_string(),
            short(&letter.error, 60),
        ]
    })?;
    Ok(Exit::Ok)
}

/// Messages that failed for the same reason, counted as they lie there.
#[derive(Serialize)]
struct Group {
    fingerprint: String,
    event_type: Option<String>,
    reason: String,
    messages: u64,
    last_at: Timestamp,
    error: String,
}

pub(super) async fn groups<S: WholeStore>(
    args: GroupsArgs,
    wired: &Wired<S>,
    context: &Context,
) -> anyhow::Result<Exit> {
    let Some(queue) = args.in_queue else { bail!("no queue is named") };
    let (service, broker, _lock) = open(&queue, wired, context).await?;
    let now = context.clock.now();
    let filter = args.filter.into_filter(None, now)?;
    let found = look(&broker, &context.clock, &service, &filter, usize::MAX).await;
    broker.close().await;
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for letter in found? {
        let fingerprint = letter.fingerprint();
        let group = groups.entry(fingerprint.clone()).or_insert_with(|| Group {
            fingerprint,
            event_type: letter.event_type.clone(),
            reason: letter.reason.clone(),
            messages: 0,
            last_at: letter.dead_at,
            error: letter.error.clone(),
        });
        group.messages += 1;
        group.last_at = group.last_at.max(letter.dead_at);
    }
    let mut groups: Vec<Group> = groups.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.last_at));
    groups.truncate(args.limit);
    let header = ["GROUP", "MESSAGES", "TYPE", "REASON", "LAST", "ERROR"];
    context.output.rows(&header, &groups, |group| {
        vec![
            group.fingerprint.clone(),
            group.messages.to_string(),
            group.event_type.clone().unwrap_or_default(),
            group.reason.clone(),
            ago(group.last_at, now),
            short(&group.error, 60),
        ]
    })?;
    Ok(Exit::Ok)
}

/// One message, whole: the first of this event.
pub(super) async fn show<S: WholeStore>(
    queue: &QueueName,
    event: &str,
    wired: &Wired<S>,
    context: &Context,
) -> anyhow::Result<Exit> {
    let event_id = EventId::new(event).map_err(|error| usage(error.to_string()))?;
    let (service, broker, _lock) = open(queue, wired, context).await?;
    let filter = LetterFilter { event_id: Some(event_id), ..LetterFilter::default() };
    let found = look(&broker, &context.clock, &service, &filter, 1).await;
    broker.close().await;
    let dead = &service.dead_letter_queue;
    let none = || absent(format!("there is no message of the event {event} in {dead}"));
    let letter = found?.into_iter().next().ok_or_else(none)?;
    show::of_message(&letter, dead, context)
}

pub(super) async fn replay<S: WholeStore>(
    args: ReplayArgs,
    wired: &Wired<S>,
    context: &Context,
) -> anyhow::Result<Exit> {
    let way = Way::Replay { to: args.to_queue };
    take(args.which, way, "Replay", wired, context).await
}

pub(super) async fn discard<S: WholeStore>(
    args: DiscardArgs,
    wired: &Wired<S>,
    context: &Context,
) -> anyhow::Result<Exit> {
    take(args.which, Way::Discard, "Discard for good", wired, context).await
}

#[derive(Serialize)]
struct Report {
    moved: u64,
    failed: u64,
    left: u64,
}

async fn take<S: WholeStore>(
    which: Which,
    way: Way,
    verb: &str,
    wired: &Wired<S>,
    context: &Context,
) -> anyhow::Result<Exit> {
    let Some(queue) = &which.in_queue else { bail!("no queue is named") };
    let (service, broker, _lock) = open(queue, wired, context).await?;
    let filter: LetterFilter = which.filter.clone().into_filter(None, context.clock.now())?;
    let limit = which.limit.unwrap_or(u64::MAX);
    if which.dry_run {
        let most = usize::try_from(limit).unwrap_or(usize::MAX);
        let found = look(&broker, &context.clock, &service, &filter, most).await;
        broker.close().await;
        let found = found?.len();
        context
            .output
            .note(&format!("{found} dead letters in {} fit; nothing was changed", service.dead_letter_queue));
        return Ok(Exit::Ok);
    }
    context.output.confirm(&format!("{verb} what fits in {}?", service.dead_letter_queue))?;
    let taking = Taking { filter, limit, way, by: context.environment.actor(), reason: which.reason };
    let taken = take_away(&wired.store, &broker, &context.clock, &service, &taking).await;
    broker.close().await;
    let Moved { moved, failed, left } = taken?;
    let text = format!(
        "{moved} taken out of {}, {failed} could not be sent and stay, {left} were not wanted",
        service.dead_letter_queue
    );
    context.output.one(&Report { moved, failed, left }, &text)?;
    Ok(if failed > 0 { Exit::Partly } else { Exit::Ok })
}
