//! Dead letters that are not collected, in their own queue.

use std::sync::Arc;

use anyhow::bail;
use postrider::Broker;
use postrider::dead_letter::in_queue::{Moved, Way, look, take_away};
use postrider::sqlite::ServeLock;
use postrider::store::{DeadLetter, LetterFilter};
use postrider::topology::{QueueName, ServiceQueue};
use serde::Serialize;

use super::Context;
use super::change::{DiscardArgs, ReplayArgs, Which};
use super::list::{LsArgs, ago, short};
use crate::exit::{Exit, usage};
use crate::wiring::{WholeStore, Wired};

/// The service queue and its broker, opened to work with it.
async fn open<S: WholeStore>(
    queue: &QueueName,
    wired: &Wired<S>,
    context: &Context,
) -> anyhow::Result<(ServiceQueue, Arc<dyn Broker>, Option<ServeLock>)> {
    let registered = wired.store.registrations().await?.into_iter().map(|one| one.service);
    let mut known = context.config.own.layout.services.iter().cloned().chain(registered);
    let Some(service) = known.find(|service| service.name() == queue) else {
        return Err(usage(format!("no [[queue]] and no consumer is known for {queue}")));
    };
    if service.collect && context.config.own.layout.collect {
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

pub(super) async fn replay<S: WholeStore>(
    args: ReplayArgs,
    wired: &Wired<S>,
    context: &Context,
) -> anyhow::Result<Exit> {
    let way = Way::Replay { to: args.to_queue };
    take(args.which, &way, "Replay", wired, context).await
}

pub(super) async fn discard<S: WholeStore>(
    args: DiscardArgs,
    wired: &Wired<S>,
    context: &Context,
) -> anyhow::Result<Exit> {
    take(args.which, &Way::Discard, "Discard for good", wired, context).await
}

#[derive(Serialize)]
struct Report {
    moved: u64,
    failed: u64,
    left: u64,
}

async fn take<S: WholeStore>(
    which: Which,
    way: &Way,
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
    let taken = take_away(&broker, &context.clock, &service, &filter, limit, way).await;
    broker.close().await;
    let Moved { moved, failed, left } = taken?;
    let text = format!(
        "{moved} taken out of {}, {failed} could not be sent and stay, {left} were not wanted",
        service.dead_letter_queue
    );
    context.output.one(&Report { moved, failed, left }, &text)?;
    Ok(if failed > 0 { Exit::Partly } else { Exit::Ok })
}
