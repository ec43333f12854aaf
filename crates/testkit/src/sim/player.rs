//! Plays one schedule: lets the processes run until all of them wait, then takes one step, again and again.

use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use jiff::SignedDuration;
use postrider::Clock;
use tokio::sync::Notify;

use super::check::{self, Verdict};
use super::fault::{self, Fault, Planned};
use super::flaw::Flaw;
use super::process::{self, Log, PROCESSES, Stage};
use super::world::{Call, Fate, Life, Port, Server, World, lock, start};

/// A schedule that has not come to rest after so many steps never does.
const MOST_STEPS: u64 = 6_000;
/// Nor one that takes so long.
const MOST_TIME: Duration = Duration::from_mins(20);

/// What came of a schedule.
#[derive(Debug, Clone)]
pub struct Played {
    /// What went wrong, if anything.
    pub verdict: Verdict,
    /// Steps taken.
    pub steps: u64,
    /// Faults that happened.
    pub faults: u64,
    /// Deliveries of messages that had been delivered before.
    pub redelivered: u64,
    /// Events that were committed.
    pub events: usize,
    /// What happened, step by step, if it was recorded.
    pub history: Vec<String>,
}

/// Plays the schedule of a seed.
pub fn play(seed: u64, flaw: Option<Flaw>) -> Played {
    play_plan(seed, flaw, &fault::plan(seed), false)
}

/// Plays it again and records what happens.
pub fn replay(seed: u64, flaw: Option<Flaw>) -> Played {
    play_plan(seed, flaw, &fault::plan(seed), true)
}

/// Leaves faults out of a failing schedule one by one, for as long as it still fails. Returns what is left, and how it goes.
pub fn minimise(seed: u64, flaw: Option<Flaw>) -> (Vec<Planned>, Played) {
    let mut plan = fault::plan(seed);
    let mut place = 0;
    while place < plan.len() {
        let mut fewer = plan.clone();
        fewer.remove(place);
        if play_plan(seed, flaw, &fewer, false).verdict.is_clean() {
            place += 1;
        } else {
            plan = fewer;
        }
    }
    let played = play_plan(seed, flaw, &plan, true);
    (plan, played)
}

/// Plays a schedule with these faults instead of the seed's own.
///
/// # Panics
/// Where no runtime can be made.
#[expect(clippy::expect_used, reason = "without a runtime there is no simulation")]
pub fn play_plan(seed: u64, flaw: Option<Flaw>, plan: &[Planned], recorded: bool) -> Played {
    thread_local! {
        static STAGE: Arc<Stage> = Arc::new(Stage::new().expect("the names are good"));
    }
    let stage = STAGE.with(Arc::clone);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .on_thread_park(wake_player)
        .build()
        .expect("a runtime of one thread");
    let world = World::new(seed, flaw, stage.topology.clone(), recorded);
    let player = Player {
        log: process::log(world.shape),
        world: Arc::new(Mutex::new(world)),
        stage,
        news: Arc::default(),
        seed,
        plan,
        faults: 0,
    };
    runtime.block_on(player.play())
}

thread_local! {
    static IDLE: RefCell<Option<Waker>> = const { RefCell::new(None) };
}

/// Called by the runtime when no task can go on.
fn wake_player() {
    if let Some(waker) = IDLE.with_borrow_mut(Option::take) {
        waker.wake();
    }
}

/// Waits until every task of every process waits for something.
async fn all_wait() {
    let mut waited = false;
    poll_fn(|context| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        IDLE.with_borrow_mut(|idle| *idle = Some(context.waker().clone()));
        Poll::Pending
    })
    .await;
}

struct Player<'a> {
    world: Arc<Mutex<World>>,
    stage: Arc<Stage>,
    log: Log,
    news: Arc<Notify>,
    seed: u64,
    plan: &'a [Planned],
    faults: u64,
}

impl Player<'_> {
    async fn play(mut self) -> Played {
        for process in 0..PROCESSES {
            self.start(process);
        }
        let mut plan = self.plan.iter().peekable();
        let (mut steps, mut stuck) = (0, false);
        loop {
            all_wait().await;
            let mut next = None;
            while let Some(planned) = plan.next_if(|planned| planned.at <= steps) {
                self.faults += 1;
                next = self.befall(planned.fault).or(next);
            }
            self.wake_the_dead();
            self.offer();
            if !self.step(next) {
                if plan.peek().is_none() && self.is_at_rest() {
                    break;
                }
                self.pass_time();
            }
            steps += 1;
            if steps > MOST_STEPS || lock(&self.world).now > MOST_TIME {
                stuck = true;
                break;
            }
        }
        let mut world = lock(&self.world);
        let log = self.log.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Played {
            verdict: check::judge(&world, &log, stuck),
            steps,
            faults: self.faults,
            redelivered: world.queues.redelivered,
            events: world.database.rows.len(),
            history: world.history.take().unwrap_or_default(),
        }
    }

    /// Starts an incarnation of a process.
    fn start(&self, process: usize) {
        let port = {
            let mut world = lock(&self.world);
            let generation = world.lives.get(process).map_or(0, |life| life.generation + 1);
            let seed = self.seed ^ (process as u64) << 32 ^ generation << 48;
            let begun = start().saturating_add(world.now).unwrap_or(start());
            let (clock, hands) = Clock::simulated(begun, seed);
            let life = Life {
                generation,
                alive: true,
                hands,
                back_at: None,
                paused_until: None,
                behind: Duration::ZERO,
                kept: Vec::new(),
            };
            if process < world.lives.len() {
                world.lives[process] = life;
            } else {
                world.lives.push(life);
            }
            world.note(|| format!("{} starts", process::name(process)));
            drop(world);
            Port::new(&self.world, process, clock, &self.news)
        };
        process::start(process, port, &self.stage, &self.log);
    }

    /// Lets a fault happen now; one that is about the next call is given back.
    fn befall(&self, fault: Fault) -> Option<Fault> {
        let mut world = lock(&self.world);
        let now = world.now;
        let until = |millis| now + Duration::from_millis(millis);
        world.note(|| format!("** {fault:?}"));
        match fault {
            Fault::Crash { .. } | Fault::LoseRequest | Fault::LoseReply | Fault::Stall(_) => {
                return Some(fault);
            }
            Fault::Pause { process, millis, noticed } => {
                if world.lives[process].alive {
                    world.lives[process].paused_until = Some(until(millis));
                    if noticed {
                        world.queues.cut(process, false);
                    }
                }
            }
            Fault::Cut { process } => world.queues.cut(process, false),
            Fault::Duplicate => {
                let pick = world.random.next();
                world.queues.duplicate(pick);
            }
            Fault::BrokerAway(millis) => {
                world.away[Server::Broker as usize] = until(millis);
                for process in 0..PROCESSES {
                    world.queues.cut(process, false);
                }
            }
            Fault::StoreAway(millis) => world.away[Server::Store as usize] = until(millis),
            Fault::CacheAway(millis) => world.away[Server::Cache as usize] = until(millis),
            Fault::CacheFlushed => world.cache.clear(),
            Fault::Unbound(millis) => world.queues.unbound_until = until(millis),
            Fault::Jump { process, millis } => {
                world.lives[process].hands.shift(SignedDuration::from_millis(millis));
            }
        }
        None
    }

    /// Starts again what died, and lets go on what stood still, when their time has come.
    fn wake_the_dead(&self) {
        for process in 0..PROCESSES {
            let mut world = lock(&self.world);
            let now = world.now;
            let life = &mut world.lives[process];
            if life.back_at.is_some_and(|at| at <= now) {
                drop(world);
                self.start(process);
            } else if life.paused_until.is_some_and(|until| until <= now) {
                life.paused_until = None;
                let (hands, behind) = (life.hands.clone(), std::mem::take(&mut life.behind));
                let kept = std::mem::take(&mut life.kept);
                world.note(|| format!("{} goes on", process::name(process)));
                drop(world);
                for reply in kept {
                    reply();
                }
                hands.advance(behind);
            }
        }
    }

    /// Puts deliveries on their way to those who wait for them.
    fn offer(&self) {
        let mut world = lock(&self.world);
        if world.is_away(Server::Broker) {
            return;
        }
        for (subscriber, process) in world.queues.offer() {
            let run = move |world: &mut World, fate| -> super::world::Reply {
                if fate == Fate::Done {
                    let delivered = world.queues.deliver(subscriber);
                    world.note_ids(&delivered);
                } else {
                    world.queues.not_delivered(subscriber);
                }
                Box::new(|| ())
            };
            let (server, what, not_before) = (Server::Broker, "deliver", Duration::ZERO);
            world.calls.push(Call { process, server, what, not_before, run: Box::new(run) });
        }
    }

    /// Answers one of the calls that are on their way. False if there is none, or if time should pass first.
    fn step(&self, fault: Option<Fault>) -> bool {
        let mut world = lock(&self.world);
        let now = world.now;
        let ready: Vec<_> =
            (0..world.calls.len()).filter(|place| world.calls[*place].not_before <= now).collect();
        if ready.is_empty() || fault.is_none() && world.random.one_in(24) {
            return false;
        }
        let place = ready[world.random.index(ready.len())];
        if let Some(Fault::Stall(millis)) = fault
            && world.calls[place].what != "deliver"
        {
            world.calls[place].not_before = now + Duration::from_millis(millis);
            let (process, what) = (world.calls[place].process, world.calls[place].what);
            world.note(|| format!("{} {what} … on its way", process::name(process)));
            return true;
        }
        let call = world.calls.remove(place);
        let (process, server, what) = (call.process, call.server, call.what);
        let fate = match fault {
            _ if world.is_away(server) => Fate::LostRequest,
            Some(Fault::LoseRequest | Fault::Crash { done: false }) => Fate::LostRequest,
            Some(Fault::LoseReply | Fault::Crash { done: true }) => Fate::LostReply,
            _ => Fate::Done,
        };
        // A subscription ends with the connection that lost the reply to it.
        let fate = if what == "subscribe" && fate == Fate::LostReply { Fate::LostRequest } else { fate };
        world.note(|| format!("{} {what} {fate:?}", process::name(process)));
        let reply = (call.run)(&mut world, fate);
        if matches!(fault, Some(Fault::Crash { .. })) {
            world.kill(process);
            world.note(|| format!("{} dies", process::name(process)));
            return true;
        }
        // A connection that loses an ack or a delivery is lost as a whole.
        if fate != Fate::Done && matches!(what, "settle" | "deliver") {
            world.queues.cut(process, false);
        }
        world.answer(process, reply);
        true
    }

    /// Moves all clocks to the next moment at which anything is due, or a little when calls are on their way.
    fn pass_time(&self) {
        let mut world = lock(&self.world);
        let now = world.now;
        let mut next: Vec<Duration> = world.calls.iter().map(|call| call.not_before).collect();
        next.extend(world.queues.next_expiry());
        next.extend(world.away.iter().copied().filter(|until| *until > now));
        for life in world.lives.iter().filter(|life| life.alive || life.back_at.is_some()) {
            next.extend(life.back_at);
            match life.paused_until {
                Some(until) => next.push(until),
                None if life.alive => next.extend(life.hands.next_wake().map(|wait| now + wait)),
                None => {}
            }
        }
        let soonest = next.into_iter().filter(|at| *at > now).min().unwrap_or(now + Duration::from_secs(1));
        let mut by = soonest.saturating_sub(now);
        if world.calls.iter().any(|call| call.not_before <= now) {
            by = by.min(Duration::from_millis(1 + world.random.below(50)));
        }
        world.now += by;
        let moment = world.now;
        world.queues.expire(moment);
        let mut moved = Vec::new();
        for life in world.lives.iter_mut().filter(|life| life.alive) {
            if life.paused_until.is_some() {
                life.behind += by;
            } else {
                moved.push(life.hands.clone());
            }
        }
        drop(world);
        for hands in moved {
            hands.advance(by);
        }
    }

    /// Whether everything is committed, published, applied and settled.
    fn is_at_rest(&self) -> bool {
        let log = self.log.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let world = lock(&self.world);
        let all_run = world.lives.iter().all(|life| life.alive && life.paused_until.is_none());
        let over = log.is_over() && world.calls.is_empty() && all_run;
        over && world.database.is_drained() && world.queues.is_empty()
    }
}
