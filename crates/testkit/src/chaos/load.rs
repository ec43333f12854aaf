//! The client: commits events by a connection of its own and writes down which commits were answered.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use postrider::envelope::{Envelope, EventId, Ordering, OrderingKey, Tenant, TenantId};
use postrider::postgres::Postgres;
use postrider::progress::{Change, NewJob, Progress, ProgressStore as _};
use postrider::store::{Outbox as _, Store as _, StoreError, StoreErrorKind};
use postrider::{Clock, Event};
use serde_json::json;
use tokio_util::sync::CancellationToken;

/// Clients that write side by side, each with keys of its own.
const WRITERS: u64 = 4;
const KEYS: u64 = 8;
/// Items of a job.
const ITEMS: u32 = 40;

/// What an event is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Order,
    Rejected,
    Solo,
    Hook,
    Salary,
}

/// What is known to be committed.
#[derive(Default)]
pub(super) struct Log {
    pub(super) committed: BTreeMap<EventId, Kind>,
    pub(super) jobs: BTreeSet<String>,
    /// Commits whose outcome was unknown, and was found out by trying again.
    pub(super) unknown: u64,
    /// Some committed orders, to be published a second time.
    pub(super) samples: Vec<Envelope>,
}

/// The client of a run.
#[derive(Clone)]
pub(super) struct Load {
    store: Postgres,
    clock: Clock,
    log: Arc<Mutex<Log>>,
    file: Arc<Mutex<File>>,
    rate: f64,
}

impl Load {
    pub(super) fn new(store: Postgres, folder: &Path, rate: f64) -> Result<Self> {
        let file = File::create(folder.join("client.jsonl")).context("the client's log cannot be written")?;
        let (log, file) = (Arc::default(), Arc::new(Mutex::new(file)));
        Ok(Self { store, clock: Clock::system(), log, file, rate })
    }

    pub(super) fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commits until told to stop. What was begun is committed for certain.
    pub(super) async fn run(&self, stop: &CancellationToken) -> Result<()> {
        let writers = (0..WRITERS).map(|writer| self.write(writer, stop));
        futures_util::future::try_join_all(writers).await?;
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    async fn write(&self, writer: u64, stop: &CancellationToken) -> Result<()> {
        let mut number = 0;
        let mut job = (String::new(), 0);
        let begun = self.clock.monotonic();
        while !stop.is_cancelled() {
            if job.1 == 0 {
                job = (format!("job-{writer}-{number}"), ITEMS);
                self.make_job(&job.0).await;
            }
            let mut batch = Vec::new();
            for _ in 0..8 {
                number += 1;
                batch.push(Self::event(writer, number, &mut job)?);
            }
            self.commit(&batch).await?;
            let due = Duration::from_secs_f64(number as f64 * WRITERS as f64 / self.rate);
            let early = due.saturating_sub(self.clock.since(begun));
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.clock.sleep(early) => {}
            }
        }
        // The rest of a job that was begun, so that it can end.
        let mut rest = Vec::new();
        while job.1 > 0 {
            number += 1;
            job.1 -= 1;
            rest.push((order(writer, number, &json!({ "number": number, "job": job.0 }))?, Kind::Order));
        }
        if rest.is_empty() { Ok(()) } else { self.commit(&rest).await }
    }

    /// A job with all its items known, made as often as it takes.
    async fn make_job(&self, id: &str) {
        let progress = Progress::new(self.store.clone());
        loop {
            let made = async {
                let job = NewJob::new(id)?.announces("chaos.job.done")?;
                progress.init(&job).await?;
                progress.change(&job.id, Change::SetTotal(ITEMS.into())).await?;
                progress.end_discovery(&job.id).await?;
                anyhow::Ok(())
            };
            if made.await.is_ok() {
                break;
            }
            self.clock.sleep(Duration::from_millis(100)).await;
        }
        self.log().jobs.insert(id.to_owned());
    }

    fn event(writer: u64, number: u64, job: &mut (String, u32)) -> Result<(Event, Kind)> {
        Ok(match number % 20 {
            1 | 11 => (named("chaos.solo.made", writer, number)?, Kind::Solo),
            2 | 12 => (named("chaos.hook.sent", writer, number)?, Kind::Hook),
            3 | 13 => {
                let mut event = named("payroll.salary.disbursed", writer, number)?;
                let group = Some(TenantId::new("acme")?);
                event.tenant = Tenant { group, ..Tenant::default() };
                let pay =
                    json!({ "employeeId": "e", "gross": "10.00", "currency": "EUR", "paidOn": "2026-03-01" });
                (event.ordering(Ordering::Free).json(&pay)?, Kind::Salary)
            }
            7 if number % 200 == 7 => {
                (order(writer, number, &json!({ "number": number, "trouble": "rejected" }))?, Kind::Rejected)
            }
            left => {
                let flaky = left == 9 && number.is_multiple_of(3);
                let trouble = if flaky { "flaky" } else { "none" };
                let marks = job.1 > 0;
                job.1 -= u32::from(marks);
                let id = marks.then_some(&job.0);
                (
                    order(writer, number, &json!({ "number": number, "trouble": trouble, "job": id }))?,
                    Kind::Order,
                )
            }
        })
    }

    /// Commits for certain: where the outcome is unknown, the same ids again, and a duplicate says that it was done.
    async fn commit(&self, batch: &[(Event, Kind)]) -> Result<()> {
        let ids: Vec<_> = batch.iter().filter_map(|(event, _)| event.id.clone()).collect();
        self.say("trying", &ids)?;
        loop {
            match self.try_commit(batch).await {
                Ok(()) => break,
                Err(error) if error.kind == StoreErrorKind::Duplicate => break,
                Err(_unknown) => self.log().unknown += 1,
            }
            self.clock.sleep(Duration::from_millis(100)).await;
        }
        self.say("committed", &ids)?;
        let mut log = self.log();
        for (event, kind) in batch {
            log.committed.extend(event.id.clone().map(|id| (id, *kind)));
            if *kind == Kind::Order && log.samples.len() < 2_000 {
                let envelope = event.clone().into_envelope(&self.clock);
                log.samples.push(envelope);
            }
        }
        Ok(())
    }

    async fn try_commit(&self, batch: &[(Event, Kind)]) -> Result<(), StoreError> {
        let mut tx = self.store.begin().await?;
        self.store.append(&mut tx, batch.iter().map(|(event, _)| event.clone()).collect()).await?;
        self.store.commit(tx).await
    }

    fn say(&self, what: &str, ids: &[EventId]) -> Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(file, "{}", json!({ what: ids })).context("the client's log cannot be written")
    }
}

fn named(event_type: &str, writer: u64, number: u64) -> Result<Event> {
    let event = Event::new(event_type)?.id(format!("{writer}-{number}"))?;
    Ok(event.json(&json!({ "number": number }))?)
}

/// An order of one of the writer's keys.
fn order(writer: u64, number: u64, payload: &serde_json::Value) -> Result<Event> {
    let key = OrderingKey::new(format!("key-{writer}-{}", number % KEYS))?;
    Ok(named("chaos.order.placed", writer, number)?.ordering(Ordering::Key(key)).json(payload)?)
}
