//! The simulated database behind the real ports. Every method is one call, so one await point.

mod held;
mod outbox;
mod stream;

use std::time::Duration;

use bytes::Bytes;
use postrider::Event;
use postrider::envelope::EventId;
use postrider::store::{
    Admission, Arrival, Controls, Crashes, DeadLetter, DeadLetters, Forgotten, Inbox, InboxMemory,
    OutboxStatus, Pause, Store, StoreError, StoreErrorKind,
};
use postrider::topology::ConsumerName;

use super::database::{Effect, Write};
use super::flaw::Flaw;
use super::world::{Port, Server, World};

/// One process's connections to the database.
#[derive(Clone)]
pub(super) struct SimStore(pub(super) Port);

/// A transaction: what it will have written. Nothing of it is seen before the commit.
pub(super) struct SimTx {
    id: u64,
    pub(super) writes: Vec<Write>,
    port: Port,
}

impl Drop for SimTx {
    fn drop(&mut self) {
        self.port.world().database.ended(self.id);
    }
}

fn away() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "the simulated database does not answer")
}

impl SimStore {
    pub(super) async fn call<R: Send + 'static>(
        &self,
        what: &'static str,
        act: impl FnOnce(&mut World) -> R + Send + 'static,
    ) -> Result<R, StoreError> {
        self.0.call(Server::Store, what, act).await.ok_or_else(away)
    }

    /// Writes an effect in the handler's transaction.
    pub(super) async fn write_effect(&self, tx: &mut SimTx, effect: Effect) -> Result<(), StoreError> {
        self.call("effect", |_| ()).await?;
        tx.writes.push(Write::Effect(effect));
        Ok(())
    }

    /// Marks an item of the job in the handler's transaction, and says what to append should it be the last.
    pub(super) async fn mark_item(
        &self,
        tx: &mut SimTx,
        item: &EventId,
        completed: Event,
    ) -> Result<(), StoreError> {
        let row = outbox::new_row(&self.0, completed, 0);
        let (counted, spare) = (item.clone(), row.clone());
        self.call("mark item", move |world| {
            if world.flaw == Some(Flaw::CountedWithoutItems) {
                let now = world.time();
                let job = &mut world.database.job;
                job.counts.done += 1;
                if job.counts.done == job.counts.total {
                    world.database.append(spare, now);
                }
            }
        })
        .await?;
        if self.0.world().flaw != Some(Flaw::CountedWithoutItems) {
            tx.writes.push(Write::Item(counted, Box::new(row)));
        }
        Ok(())
    }

    /// Waits until somebody commits to the outbox, unless that takes too long or is missed.
    pub(super) async fn wait_for_news(&self, at_most: Duration) {
        tokio::select! {
            biased;
            () = self.0.news.notified() => {}
            () = self.0.clock.sleep(at_most) => {}
        }
    }

    /// Whether an event is committed.
    pub(super) async fn knows(&self, event: &EventId) -> Result<bool, StoreError> {
        let event = event.clone();
        self.call("ask", move |world| world.database.knows(&event)).await
    }
}

impl Store for SimStore {
    type Tx = SimTx;

    async fn begin(&self) -> Result<SimTx, StoreError> {
        let id = self.call("begin", |world| world.database.begin()).await?;
        Ok(SimTx { id, writes: Vec::new(), port: self.0.clone() })
    }

    async fn commit(&self, mut tx: SimTx) -> Result<(), StoreError> {
        let (id, writes) = (tx.id, std::mem::take(&mut tx.writes));
        let appends = writes.iter().any(|write| matches!(write, Write::Append(..)));
        let news = self.0.news.clone();
        let committed = self.call("commit", move |world| {
            let now = world.time();
            let dual = world.flaw == Some(Flaw::DualWrite);
            let status = if dual { OutboxStatus::Published } else { OutboxStatus::Pending };
            world.note_ids(writes.iter().map(Write::to_string));
            let committed = world.database.commit(id, writes, now, status);
            // A notification may be lost; polling is the net.
            if appends && !world.random.one_in(8) {
                news.notify_waiters();
            }
            committed
        });
        committed.await?
    }

    async fn rollback(&self, tx: SimTx) -> Result<(), StoreError> {
        drop(tx);
        Ok(())
    }

    async fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// What the inbox knows of an arrival.
fn look_up(world: &World, consumer: &ConsumerName, arrival: &Arrival) -> Admission {
    match world.database.inbox.get(&(consumer.clone(), arrival.event_id.clone())) {
        None => Admission::New,
        Some((hash, answer)) if *hash == arrival.payload_hash => Admission::Duplicate(answer.clone()),
        Some(_) => Admission::Conflict,
    }
}

/// What it says instead under a flaw, if it says anything else.
fn flawed(world: &mut World, consumer: &ConsumerName, arrival: &Arrival) -> Option<Admission> {
    let duplicate = Admission::Duplicate(None);
    match world.flaw? {
        Flaw::NoInbox => Some(Admission::New),
        Flaw::SetIfAbsentOnly => {
            let key = format!("seen/{consumer}/{}", arrival.event_id);
            let before = world.cache.insert(key, Vec::new());
            Some(if before.is_some() { duplicate } else { Admission::New })
        }
        Flaw::InboxApart => {
            let key = (consumer.clone(), arrival.event_id.clone());
            let before = world.database.inbox.insert(key, (arrival.payload_hash, None));
            Some(if before.is_some() { duplicate } else { Admission::New })
        }
        _ => None,
    }
}

impl Inbox for SimStore {
    async fn admit(
        &self,
        tx: &mut SimTx,
        consumer: &ConsumerName,
        arrivals: &[Arrival],
    ) -> Result<Vec<Admission>, StoreError> {
        let (name, asked) = (consumer.clone(), arrivals.to_vec());
        let (admissions, marks) = self
            .call("admit", move |world| {
                let (mut admissions, mut marks) = (Vec::new(), Vec::new());
                for arrival in asked {
                    if let Some(admission) = flawed(world, &name, &arrival) {
                        admissions.push(admission);
                        continue;
                    }
                    let again = marks.iter().find_map(|mark| match mark {
                        Write::Mark(_, event, hash) if *event == arrival.event_id => Some(*hash),
                        _ => None,
                    });
                    let admission = match again {
                        None => look_up(world, &name, &arrival),
                        Some(hash) if hash == arrival.payload_hash => Admission::Duplicate(None),
                        Some(_) => Admission::Conflict,
                    };
                    if admission == Admission::New {
                        marks.push(Write::Mark(name.clone(), arrival.event_id, arrival.payload_hash));
                    }
                    admissions.push(admission);
                }
                (admissions, marks)
            })
            .await?;
        tx.writes.extend(marks);
        Ok(admissions)
    }

    async fn keep_answers(
        &self,
        tx: &mut SimTx,
        consumer: &ConsumerName,
        answers: &[(EventId, Bytes)],
    ) -> Result<(), StoreError> {
        let answers = answers.iter().cloned();
        tx.writes.extend(answers.map(|(event, answer)| Write::Answer(consumer.clone(), event, answer)));
        Ok(())
    }

    async fn lineage(&self) -> Result<String, StoreError> {
        Ok("simulated".to_owned())
    }

    async fn look(
        &self,
        consumer: &ConsumerName,
        arrivals: &[Arrival],
    ) -> Result<Vec<Admission>, StoreError> {
        let (name, asked) = (consumer.clone(), arrivals.to_vec());
        self.call("look", move |world| asked.iter().map(|one| look_up(world, &name, one)).collect()).await
    }
}

impl InboxMemory for SimStore {
    async fn forget(
        &self,
        _worker: &str,
        _keep: Duration,
        _most: u32,
    ) -> Result<Option<Forgotten>, StoreError> {
        Ok(None)
    }

    async fn forgotten_before(&self, _of: &ConsumerName) -> Result<Option<jiff::Timestamp>, StoreError> {
        Ok(None)
    }
}

/// Nobody pauses a consumer here.
impl Controls for SimStore {
    async fn pause(&self, _of: &ConsumerName, _by: &str, _why: &str) -> Result<bool, StoreError> {
        Ok(false)
    }

    async fn resume(&self, _of: &ConsumerName, _by: &str, _why: &str) -> Result<bool, StoreError> {
        Ok(false)
    }

    async fn pause_of(&self, _of: &ConsumerName) -> Result<Option<Pause>, StoreError> {
        Ok(None)
    }

    async fn pauses(&self) -> Result<Vec<Pause>, StoreError> {
        Ok(Vec::new())
    }
}

impl Crashes for SimStore {
    async fn crash_marks(&self, consumer: &ConsumerName) -> Result<Vec<String>, StoreError> {
        let consumer = consumer.clone();
        self.call("crash marks", move |world| {
            let marks = world.database.crashes.keys().filter(|(of, _)| *of == consumer);
            marks.map(|(_, mark)| mark.clone()).collect()
        })
        .await
    }

    async fn unfinished(&self, consumer: &ConsumerName, mark: &str) -> Result<u32, StoreError> {
        let key = (consumer.clone(), mark.to_owned());
        self.call("unfinished", move |world| world.database.crashes.get(&key).copied().unwrap_or(0)).await
    }

    async fn begun(&self, consumer: &ConsumerName, mark: &str) -> Result<(), StoreError> {
        let key = (consumer.clone(), mark.to_owned());
        self.call("begun", move |world| *world.database.crashes.entry(key).or_default() += 1).await
    }

    async fn ended(&self, consumer: &ConsumerName, mark: &str) -> Result<(), StoreError> {
        let key = (consumer.clone(), mark.to_owned());
        self.call("ended", move |world| _ = world.database.crashes.remove(&key)).await
    }
}

impl DeadLetters for SimStore {
    async fn collect(&self, letters: Vec<DeadLetter>) -> Result<(), StoreError> {
        self.call("collect", move |world| {
            for letter in letters {
                world.database.letters.entry(letter.key.clone()).or_insert(letter);
            }
        })
        .await
    }

    async fn dead_letters(&self, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        self.call("letters", move |world| world.database.letters.values().take(limit).cloned().collect())
            .await
    }
}
