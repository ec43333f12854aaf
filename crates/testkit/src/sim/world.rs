//! Everything that is outside of the processes: three servers in memory, calls on their way, and time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use postrider::Clock;
use postrider::clock::ManualClock;
use postrider::topology::Topology;
use tokio::sync::{Notify, oneshot};

use super::database::Database;
use super::flaw::Flaw;
use super::queues::Queues;
use super::random::Random;
use super::shape::Shape;

/// When every simulation begins.
pub(super) fn start() -> Timestamp {
    Timestamp::from_second(1_767_225_600).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Who is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Server {
    Store,
    Broker,
    Cache,
}

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Done,
    LostRequest,
    LostReply,
}

/// Wakes whoever waits for the answer.
pub(super) type Reply = Box<dyn FnOnce() + Send>;

/// What a call does to the world when its turn comes.
pub(super) type Run = Box<dyn FnOnce(&mut World, Fate) -> Reply + Send>;

/// A call on its way.
pub(super) struct Call {
    pub(super) process: usize,
    pub(super) server: Server,
    pub(super) what: &'static str,
    /// Not answered before.
    pub(super) not_before: Duration,
    pub(super) run: Run,
}

/// A process as the world knows it.
pub(super) struct Life {
    /// Which incarnation runs; calls of an earlier one are never answered.
    pub(super) generation: u64,
    pub(super) alive: bool,
    pub(super) hands: ManualClock,
    /// Started again at this time.
    pub(super) back_at: Option<Duration>,
    /// Stands still until this time; how long it has stood still is made up for then.
    pub(super) paused_until: Option<Duration>,
    pub(super) behind: Duration,
    /// Answers that wait until it goes on.
    pub(super) kept: Vec<Reply>,
}

/// The world.
pub(super) struct World {
    pub(super) now: Duration,
    pub(super) random: Random,
    pub(super) flaw: Option<Flaw>,
    pub(super) shape: Shape,
    pub(super) lives: Vec<Life>,
    pub(super) calls: Vec<Call>,
    pub(super) database: Database,
    pub(super) queues: Queues,
    pub(super) cache: BTreeMap<String, Vec<u8>>,
    /// Until when the store, the broker and the cache are away.
    pub(super) away: [Duration; 3],
    /// What happened, if somebody wants to know.
    pub(super) history: Option<Vec<String>>,
}

impl World {
    pub(super) fn new(seed: u64, flaw: Option<Flaw>, topology: Topology, recorded: bool) -> Self {
        Self {
            now: Duration::ZERO,
            random: Random::new(seed),
            flaw,
            shape: Shape::of(seed, flaw),
            lives: Vec::new(),
            calls: Vec::new(),
            database: Database::default(),
            queues: Queues::new(topology),
            cache: BTreeMap::new(),
            away: [Duration::ZERO; 3],
            history: recorded.then(Vec::new),
        }
    }

    /// The time of day by the servers' clocks.
    pub(super) fn time(&self) -> Timestamp {
        start().saturating_add(self.now).unwrap_or(Timestamp::MAX)
    }

    pub(super) fn note(&mut self, what: impl FnOnce() -> String) {
        let now = self.now.as_secs_f64();
        if let Some(history) = &mut self.history {
            history.push(format!("{now:9.3}s  {}", what()));
        }
    }

    /// What the last call was about.
    pub(super) fn note_ids<I: AsRef<str>>(&mut self, ids: impl IntoIterator<Item = I>) {
        self.note(|| {
            let ids: Vec<_> = ids.into_iter().map(|id| id.as_ref().to_owned()).collect();
            format!("    {}", ids.join(", "))
        });
    }

    pub(super) fn is_away(&self, server: Server) -> bool {
        self.now < self.away[server as usize]
    }

    /// kill -9: nothing of the process is left but what the servers have. Calls that were on their way may still arrive.
    pub(super) fn kill(&mut self, process: usize) {
        let calls = std::mem::take(&mut self.calls);
        for call in calls {
            if call.process != process {
                self.calls.push(call);
            } else if self.random.one_in(2) && !self.is_away(call.server) {
                drop((call.run)(self, Fate::LostReply));
            }
        }
        let back_at = self.now + Duration::from_millis(self.random.below(3_000));
        let life = &mut self.lives[process];
        life.alive = false;
        life.back_at = Some(back_at);
        life.paused_until = None;
        life.kept.clear();
        self.queues.cut(process, true);
        self.database.forget_process(process);
    }

    /// Answers, or keeps the answer for a process that stands still.
    pub(super) fn answer(&mut self, process: usize, reply: Reply) {
        let life = &mut self.lives[process];
        if life.paused_until.is_some() {
            life.kept.push(reply);
        } else {
            reply();
        }
    }
}

/// One incarnation's way to the servers.
#[derive(Clone)]
pub(super) struct Port {
    world: Arc<Mutex<World>>,
    pub(super) process: usize,
    generation: u64,
    pub(super) clock: Clock,
    /// Somebody committed to the outbox.
    pub(super) news: Arc<Notify>,
}

impl Port {
    pub(super) fn new(world: &Arc<Mutex<World>>, process: usize, clock: Clock, news: &Arc<Notify>) -> Self {
        let generation = lock(world).lives[process].generation;
        Self { world: world.clone(), process, generation, clock, news: news.clone() }
    }

    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    /// Calls a server. Nothing when the request or the reply was lost. A dead process is never answered.
    pub(super) async fn call<R: Send + 'static>(
        &self,
        server: Server,
        what: &'static str,
        act: impl FnOnce(&mut World) -> R + Send + 'static,
    ) -> Option<R> {
        let (tell, told) = oneshot::channel();
        self.send(server, what, move |world, fate| {
            let answer = match fate {
                Fate::LostRequest => None,
                Fate::LostReply => {
                    act(world);
                    None
                }
                Fate::Done => Some(act(world)),
            };
            Box::new(move || {
                let _gone = tell.send(answer);
            })
        });
        match told.await {
            Ok(answer) => answer,
            Err(_dead) => std::future::pending().await,
        }
    }

    /// Sends what nobody waits for.
    pub(super) fn send(
        &self,
        server: Server,
        what: &'static str,
        run: impl FnOnce(&mut World, Fate) -> Reply + Send + 'static,
    ) {
        let mut world = self.world();
        let life = &world.lives[self.process];
        if life.alive && life.generation == self.generation {
            let not_before = Duration::ZERO;
            world.calls.push(Call { process: self.process, server, what, not_before, run: Box::new(run) });
        }
    }
}

pub(super) fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}
