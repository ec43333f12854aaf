//! What the consumers of a simulation do with an event, and which events fail.

use postrider::envelope::EventId;
use postrider::handler::{BatchLimits, Incoming, batch_handler_fn, handler_fn};
use postrider::registry::Registry;
use postrider::{Event, Failure};

use super::database::{Effect, JOB_ITEMS};
use super::store::{SimStore, SimTx};

/// So many events of each writer with keys are items of the job.
const ITEMS_EACH: u64 = (JOB_ITEMS / 2) as u64;

/// A handler of all events, which takes them alone or several in a transaction.
pub(super) fn handlers(store: &SimStore, batches: bool) -> Registry<SimStore> {
    let store = store.clone();
    if !batches {
        return Registry::new().on(
            "#",
            handler_fn::<SimStore, _>(move |tx, event| {
                let store = store.clone();
                Box::pin(async move { apply(&store, tx, event).await })
            }),
        );
    }
    let limits = BatchLimits { max_size: 3, ..BatchLimits::default() };
    let handler = batch_handler_fn::<SimStore, _>(move |tx, events| {
        let store = store.clone();
        Box::pin(async move {
            for event in events {
                apply(&store, tx, event).await?;
            }
            Ok(())
        })
    });
    Registry::new().on_batch("#", limits, handler)
}

async fn apply(store: &SimStore, tx: &mut SimTx, event: &Incoming) -> Result<(), Failure> {
    let effect = effect(event)?;
    let is_item = effect.key.is_some() && effect.number < ITEMS_EACH;
    store.write_effect(tx, effect).await?;
    if event.consumer.as_str() == "free" && is_item {
        store.mark_item(tx, &event.envelope.id, job_done()?).await?;
    }
    judge(event)
}

fn effect(event: &Incoming) -> Result<Effect, Failure> {
    let payload: serde_json::Value = event.envelope.payload.parse()?;
    Ok(Effect {
        consumer: event.consumer.to_string(),
        event: event.envelope.id.clone(),
        key: event.envelope.ordering_key.clone(),
        number: payload["number"].as_u64().unwrap_or(0),
    })
}

/// What the handler makes of an event: its number says so.
fn judge(event: &Incoming) -> Result<(), Failure> {
    match trouble(&event.envelope.id) {
        Trouble::Flaky if event.attempt < 2 => Err(Failure::transient("not yet")),
        Trouble::Rejected => Err(Failure::permanent("no such account")),
        _ => Ok(()),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    None,
    Flaky,
    Rejected,
}

/// Of each writer's events the second fails once, and the last of the keyless ones is rejected.
pub(super) fn trouble(event: &EventId) -> Trouble {
    match event.as_str().split_once('-') {
        Some(("2", "3")) => Trouble::Rejected,
        Some((_, "1")) => Trouble::Flaky,
        _ => Trouble::None,
    }
}

/// Tells that the job is done.
fn job_done() -> Result<Event, Failure> {
    Event::new("sim.job.done").and_then(|event| event.id("job-done")).map_err(Failure::permanent)
}
