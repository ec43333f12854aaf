//! Runs it: stage, load, faults, heal, drain, judge.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use postrider::Clock;
use postrider::broker::Broker;
use postrider::postgres::{Postgres, PostgresConfig};
use postrider::rabbitmq::{RabbitMq, RabbitMqConfig};
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::faults::Fault;
use super::judge::{self, Judgement};
use super::load::Load;
use super::report::Report;
use super::stage::Stage;
use super::striker::Striker;
use super::worker;
use crate::servers::{RabbitCluster, RabbitVersion};
use crate::sim::{Flaw, Random, play};

/// Nothing more came to rest for this long: it hangs. However slow the machine is, and however much was left.
const STILL: Duration = Duration::from_mins(4);
/// So many faults may last at the same time.
const AT_ONCE: usize = 3;
/// A control that no schedule among so many turns red is green.
const CONTROL_SEEDS: u64 = 2_000;

/// How to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long faults strike at least.
    pub lasts: Duration,
    /// They go on until so much was tried, however slow the machine is.
    pub floor: Floor,
    /// From which the schedule follows.
    pub seed: u64,
    /// Events a second.
    pub rate: f64,
    /// Which RabbitMQ.
    pub rabbitmq: RabbitVersion,
    /// Where logs go.
    pub folder: PathBuf,
    /// What was built.
    pub commit: String,
}

/// How much a run has to try before it says anything.
#[derive(Debug, Clone, Copy, Default)]
pub struct Floor {
    /// Events that are committed.
    pub events: u64,
    /// Faults that land.
    pub faults: u64,
    /// Given up after this time, if that is longer than the run lasts anyway.
    pub at_most: Duration,
}

impl Floor {
    /// Whether so much is enough.
    pub fn is_reached(&self, events: u64, faults: u64) -> bool {
        events >= self.events && faults >= self.faults
    }
}

/// Runs chaos and judges it.
pub async fn run(options: &Options) -> Result<Report> {
    let clock = Clock::system();
    let stage = Arc::new(Stage::set(&options.folder, options.rabbitmq).await?);
    let direct = PostgresConfig { max_connections: 8, ..PostgresConfig::new(stage.postgres.url()) };
    let store = Postgres::connect(direct, clock.clone()).await?;
    PgConnection::connect(&stage.postgres.url()).await?.execute(worker::CREATE).await?;
    let nodes: Vec<_> = (0..RabbitCluster::NODES).map(|node| stage.rabbitmq.amqp_url(node)).collect();
    let broker = RabbitMq::connect(RabbitMqConfig::new(nodes.join(",")), clock.clone()).await?;
    let broker: Arc<dyn Broker> = Arc::new(broker);
    let load = Load::new(store, &options.folder, options.rate)?;
    let versions = versions(&stage).await?;
    eprintln!("everything runs; faults strike for {} s, seed {}", options.lasts.as_secs(), options.seed);

    let (stop, watched) = (CancellationToken::new(), CancellationToken::new());
    let writing = tokio::spawn({
        let (load, stop) = (load.clone(), stop.clone());
        async move { load.run(&stop).await }
    });
    let watching = tokio::spawn(watch(stage.clone(), clock.clone(), watched.clone()));
    let striker =
        Striker { stage: stage.clone(), load: load.clone(), broker: broker.clone(), clock: clock.clone() };
    let begun = clock.monotonic();
    let struck = strike(&striker, options).await;
    let lasted = clock.since(begun);
    stop.cancel();
    striker.heal().await?;
    writing.await.context("the client fell over")??;
    watched.cancel();
    let longest_stall = watching.await.unwrap_or_default();
    eprintln!("all is healed; waiting for what is left");
    let healed = clock.monotonic();
    let drained = drain(&striker).await.then(|| clock.since(healed));
    let duplicates = stage.duplicates();
    eprintln!("judging, and playing the controls");
    let (judgement, events, unknown_commits) = {
        let log = std::mem::take(&mut *load.log());
        (judge::judge(&stage, &log).await?, log.committed.len() as u64, log.unknown)
    };
    let stories = stories(&stage, &judgement).await;
    let enough = options.floor.is_reached(events, struck.landed());
    Ok(Report {
        seed: options.seed,
        commit: options.commit.clone(),
        versions,
        events,
        enough,
        lasted,
        faults: struck.counts,
        missed: struck.missed,
        left_out: stage.left_out.clone(),
        stories,
        unknown_commits,
        duplicates,
        longest_stall,
        drained,
        judgement,
        controls: controls().await,
    })
}

/// What struck so far.
#[derive(Default)]
struct Struck {
    counts: BTreeMap<&'static str, u64>,
    missed: Vec<String>,
    busy: BTreeSet<usize>,
}

impl Struck {
    fn landed(&self) -> u64 {
        self.counts.values().sum()
    }

    fn note(&mut self, at: Duration, (fault, proof): (Fault, Result<String>)) {
        self.busy.remove(&fault.target());
        let (at, kind) = (at.as_secs_f64(), fault.kind());
        match proof {
            Ok(proof) => {
                *self.counts.entry(kind).or_insert(0) += 1;
                eprintln!("{at:7.1}s  {kind}: {proof}");
            }
            Err(error) => {
                let text = format!("{kind} did not land: {error:#}");
                eprintln!("{at:7.1}s  {text}");
                self.missed.push(text);
            }
        }
    }
}

/// The schedule: faults one after the other, some of them overlapping, never two of one target.
async fn strike(striker: &Striker, options: &Options) -> Struck {
    let mut random = Random::new(options.seed);
    let clock = &striker.clock;
    let (begun, mut struck) = (clock.monotonic(), Struck::default());
    let mut striking: JoinSet<(Fault, Result<String>)> = JoinSet::new();
    loop {
        let since = clock.since(begun);
        let committed = striker.load.log().committed.len() as u64;
        let enough = options.floor.is_reached(committed, struck.landed()) || since >= options.floor.at_most;
        if since >= options.lasts && enough {
            break;
        }
        let fault = Fault::draw(&mut random, striker.stage.processes.len());
        let lasts = Duration::from_millis(800 + random.below(4_000));
        let can = !striker.stage.left_out.contains_key(fault.kind());
        if can && struck.busy.insert(fault.target()) {
            let striker = striker.clone();
            striking.spawn(async move { (fault, striker.strike(fault, lasts).await) });
        }
        clock.sleep(Duration::from_millis(500 + random.below(1_500))).await;
        while let Some(Ok(proof)) = striking.try_join_next() {
            struck.note(clock.since(begun), proof);
        }
        while striking.len() >= AT_ONCE
            && let Some(Ok(proof)) = striking.join_next().await
        {
            struck.note(clock.since(begun), proof);
        }
    }
    while let Some(Ok(proof)) = striking.join_next().await {
        struck.note(clock.since(begun), proof);
    }
    struck
}

/// Where the first of the events that something is wrong with went, as far as anybody knows.
async fn stories(stage: &Stage, judgement: &Judgement) -> Vec<String> {
    let mut stories = Vec::new();
    for id in judgement.suspects().into_iter().take(5) {
        let told = stage.try_command(&["event", "trace", &id]).await;
        stories.push(told.map_or_else(|error| format!("{id}: {error:#}"), |(_, told)| told));
    }
    stories
}

/// The longest time without a new effect.
async fn watch(stage: Arc<Stage>, clock: Clock, stop: CancellationToken) -> Duration {
    let (mut longest, mut last, mut since) = (Duration::ZERO, 0_i64, clock.monotonic());
    while !stop.is_cancelled() {
        let count = async {
            let mut connection = PgConnection::connect(&stage.postgres.url()).await.ok()?;
            sqlx::query_scalar("SELECT last_value FROM chaos_effect_position_seq")
                .fetch_one(&mut connection)
                .await
                .ok()
        };
        let count: i64 = count.await.unwrap_or(last);
        let now = clock.monotonic();
        if count != last {
            (last, since) = (count, now);
        }
        longest = longest.max(now.saturating_sub(since));
        clock.sleep(Duration::from_millis(250)).await;
    }
    longest
}

/// Waits until nothing waits anywhere. False if it hangs.
async fn drain(striker: &Striker) -> bool {
    let clock = &striker.clock;
    let (mut least, mut since) = (u64::MAX, clock.monotonic());
    while clock.since(since) < STILL {
        match waiting(striker).await {
            Ok(0) => return true,
            Ok(left) if left < least => (least, since) = (left, clock.monotonic()),
            Ok(_) => {}
            Err(error) => eprintln!("cannot look yet: {error:#}"),
        }
        clock.sleep(Duration::from_millis(500)).await;
    }
    eprintln!("{least} events and messages still wait, and none of them moves");
    false
}

/// What is not published, held, or in a queue.
async fn waiting(striker: &Striker) -> Result<u64> {
    let mut connection = PgConnection::connect(&striker.stage.postgres.url()).await?;
    let open = "SELECT (SELECT count(*) FROM postrider.event_outbox WHERE status IN ('pending', 'failed')) + \
                (SELECT count(*) FROM postrider.held_event)";
    let open: i64 = sqlx::query_scalar(open).fetch_one(&mut connection).await?;
    let queues = striker.stage.manage("GET", "/api/queues/%2F", None).await?;
    let queues = queues.as_array().filter(|queues| !queues.is_empty()).context("no queue is listed")?;
    let told: Option<u64> = queues.iter().map(|queue| queue["messages"].as_u64()).sum();
    let messages = match told {
        Some(messages) => messages,
        None => counted(striker).await?,
    };
    Ok(u64::try_from(open)? + messages)
}

/// After many restarts the management API may have no count of a quiet queue for as long as it is quiet. The queue itself has.
async fn counted(striker: &Striker) -> Result<u64> {
    let told =
        striker.stage.rabbitmq.ctl(0, &["list_queues", "--quiet", "--no-table-headers", "messages"]).await?;
    told.lines().map(|line| line.trim().parse::<u64>().context("a queue without a count")).sum()
}

async fn versions(stage: &Stage) -> Result<BTreeMap<&'static str, String>> {
    let mut connection = PgConnection::connect(&stage.postgres.url()).await?;
    let postgres: String = sqlx::query_scalar("SHOW server_version").fetch_one(&mut connection).await?;
    let overview = stage.manage("GET", "/api/overview", None).await?;
    let info = stage.redis.cli(&["INFO", "server"]).await?;
    let redis = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or("?");
    Ok(BTreeMap::from([
        ("PostgreSQL", postgres.split(' ').next().unwrap_or_default().to_owned()),
        ("RabbitMQ", overview["rabbitmq_version"].as_str().unwrap_or("?").to_owned()),
        ("Redis", redis.trim().to_owned()),
    ]))
}

/// Plays each flaw in the simulation until the checkers see it.
async fn controls() -> Vec<(&'static str, bool)> {
    let playing = tokio::task::spawn_blocking(|| {
        let red = |flaw| (0..CONTROL_SEEDS).any(|seed| !play(seed, Some(flaw)).verdict.is_clean());
        Flaw::ALL.map(|flaw| (flaw.as_str(), red(flaw))).to_vec()
    });
    playing.await.unwrap_or_default()
}
