//! `postrider bench`: the figures of the README, as ratios measured in one run.

use std::sync::Arc;

use clap::Args;
use postrider::embedded::EmbeddedBroker;
use postrider::postgres::Postgres;
use postrider::rabbitmq::RabbitMq;
use postrider::relay::RelayMode;
use postrider::settlement::RetryPolicy;
use postrider::sqlite::{Sqlite, SqliteConfig};
use postrider::store::{Outbox as _, Store as _};
use postrider::topology::{QueueName, ServiceQueue};
use postrider::{Broker, Clock};
use secrecy::ExposeSecret as _;
use serde::Serialize;

use super::Context;
use crate::bench::{
    DedupBench, EmbeddedRaw, Figure, Held, LedgerBench, Load, Naive, RabbitRaw, Raw as _, Rival,
    TriageFigures, add_published, delay_over_raw, forget, forget_inbox, over_http, relay_over_raw, triage,
};
use crate::config::{Backends, Config, Server};
use crate::exit::{Exit, usage};
use crate::wiring;

/// What is measured.
#[derive(Debug, Args)]
#[command(
    after_help = "Without --keys it measures events without keys, with 5,000 keys and of one hot key, and how long an event takes\n\
    from its commit to its confirm. A naive poller is measured beside it.\n\n\
    On the embedded default it works in a file of its own. On servers it writes its events to the outbox and\n\
    a queue of its own, and removes them afterwards: use a database where nothing else waits.\n\n\
    Example, with servers of your own for the occasion:\n  \
      scripts/servers up && source .servers/env && postrider db migrate && postrider bench"
)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct BenchArgs {
    /// Events in each round
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    events: usize,
    /// Bytes of payload in each event
    #[arg(long, default_value_t = 1024, value_name = "N")]
    bytes: usize,
    /// Measure the throughput with so many ordering keys alone; 0 for none, 1 for one hot key
    #[arg(long, value_name = "N")]
    keys: Option<usize>,
    /// Measure the time from commit to confirm alone
    #[arg(long, conflicts_with = "keys")]
    delay: bool,
    /// Measure duplicates and new events with Redis in front of the inbox instead, over the inbox alone
    #[arg(long, conflicts_with_all = ["keys", "delay", "letters"])]
    dedup: bool,
    /// Events a second while that time is measured
    #[arg(long, default_value_t = 1000, value_name = "N")]
    rate: u32,
    /// Rounds, of which the median counts
    #[arg(long, default_value_t = 3, value_name = "N")]
    rounds: usize,
    /// Measure triage instead, with so many dead letters: collecting, listing, grouping, searching, replaying
    #[arg(long, value_name = "N")]
    letters: Option<usize>,
    /// Of these, replay so many
    #[arg(long, default_value_t = 100_000, value_name = "N")]
    replays: u64,
    /// Measure publishing over HTTP and push instead
    #[arg(long, conflicts_with_all = ["keys", "delay", "letters"])]
    http: bool,
    /// Measure the ledger instead, over a posting function in SQL; in a database of its own, which needs the right to make one
    #[arg(long, conflicts_with_all = ["keys", "delay", "letters", "http", "dedup"])]
    ledger: bool,
    /// Put so many published events into the outbox first
    #[arg(long, default_value_t = 0, value_name = "N")]
    history: usize,
    /// Hold a transaction open all the while, so that the database cannot clean up
    #[arg(long)]
    hold: bool,
}

impl BenchArgs {
    fn load(&self, keys: usize) -> Load {
        // One message at a time takes longer.
        let events = if keys == 1 { self.events.div_ceil(10) } else { self.events };
        Load { events, bytes: self.bytes, keys, rounds: self.rounds }
    }

    /// With how many keys the throughput is measured.
    fn keys(&self) -> Vec<usize> {
        match self.keys {
            Some(keys) => vec![keys],
            None if self.delay || self.http => Vec::new(),
            None => vec![0, 5000, 1],
        }
    }

    fn wants_delay(&self) -> bool {
        self.delay || (self.keys.is_none() && !self.http)
    }
}

/// What is printed.
#[derive(Serialize)]
struct Report {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    figures: Vec<Figure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    triage: Option<TriageFigures>,
}

/// Measures on whatever is configured.
pub(crate) async fn run(args: BenchArgs, context: &Context) -> anyhow::Result<Exit> {
    if args.events == 0 || args.rounds == 0 || args.rate == 0 {
        return Err(usage("--events, --rounds and --rate must be at least 1"));
    }
    let (config, clock) = (&context.config, &context.clock);
    if let Some(letters) = args.letters {
        let figures = match &config.backends {
            Backends::Embedded { .. } | Backends::BrokerAlone { .. } => {
                embedded_triage(clock, letters, args.replays).await?
            }
            Backends::Networked { database, .. } => {
                networked_triage(config, database, clock, letters, args.replays).await?
            }
        };
        let text = triage_lines(&figures);
        context.output.one(&Report { figures: Vec::new(), triage: Some(figures) }, &text)?;
        return Ok(Exit::Ok);
    }
    let figures = match &config.backends {
        Backends::Networked { database, broker } if args.dedup => {
            dedup(context, database, broker, &args).await?
        }
        Backends::Embedded { .. } | Backends::BrokerAlone { .. } if args.dedup => {
            return Err(usage("--dedup measures PostgreSQL, RabbitMQ and Redis; set all three"));
        }
        Backends::Networked { database, broker } if args.ledger => {
            ledger(config, database, broker, clock, &args).await?
        }
        Backends::Embedded { .. } | Backends::BrokerAlone { .. } if args.ledger => {
            return Err(usage(
                "--ledger measures PostgreSQL and RabbitMQ; set DATABASE_URL and RABBITMQ_URL",
            ));
        }
        Backends::Embedded { .. } | Backends::BrokerAlone { .. } => embedded(clock, &args).await?,
        Backends::Networked { database, broker } => networked(config, database, broker, clock, &args).await?,
    };
    let report = Report { figures, triage: None };
    let text = report.figures.iter().map(line).collect::<Vec<_>>().join("\n");
    context.output.one(&report, &text)?;
    Ok(Exit::Ok)
}

fn line(figure: &Figure) -> String {
    let Figure { name, backend, ratio, measured, raw, unit, rounds } = figure;
    format!("{name} ({backend}): {ratio:.2}   {measured}{unit}, raw {raw}{unit}   rounds {rounds:?}")
}

fn triage_lines(figures: &TriageFigures) -> String {
    let TriageFigures { backend, letters, collected_per_second, list_ms, page_ms, groups_ms, .. } = figures;
    format!(
        "triage ({backend}), {letters} dead letters\n  collect {collected_per_second:.0}/s\n  list {list_ms} ms, a page in the \
         middle {page_ms} ms, of one group {} ms\n  groups {groups_ms} ms\n  text that is nowhere {} ms\n  replay of {}: \
         {:.0}/s into the outbox",
        figures.group_letters_ms, figures.text_ms, figures.replayed, figures.replayed_per_second
    )
}

async fn embedded_triage(clock: &Clock, letters: usize, replays: u64) -> anyhow::Result<TriageFigures> {
    let folder = std::env::temp_dir().join(format!("postrider-bench-{}", clock.new_id()));
    let store = Sqlite::open(SqliteConfig::new(folder.join("bench.db")), clock.clone()).await?;
    let queue = QueueName::new("bench")?;
    let measured = triage(&store, clock, &queue, letters, replays, "SQLite".to_owned()).await;
    let _left_behind = std::fs::remove_dir_all(&folder);
    measured
}

async fn networked_triage(
    config: &Config,
    database: &Server,
    clock: &Clock,
    letters: usize,
    replays: u64,
) -> anyhow::Result<TriageFigures> {
    let store = Postgres::connect(wiring::postgres(config, database), clock.clone()).await?;
    store.check().await?;
    let queue = QueueName::new(format!("postrider.bench.{}", clock.new_id()))?;
    let measured = triage(&store, clock, &queue, letters, replays, "PostgreSQL".to_owned()).await;
    forget(&store, &queue).await?;
    forget_letters(&store, &queue).await?;
    measured
}

/// Removes the benchmark's dead letters and their counts.
async fn forget_letters(store: &Postgres, queue: &QueueName) -> anyhow::Result<()> {
    let mut tx = store.begin().await?;
    for sql in [
        "DELETE FROM postrider.dead_letter_hour WHERE fingerprint IN \
             (SELECT fingerprint FROM postrider.dead_letter_group WHERE queue = $1)",
        "DELETE FROM postrider.dead_letter_group WHERE queue = $1",
        "DELETE FROM postrider.dead_letter WHERE queue = $1",
    ] {
        sqlx::query(sql).bind(queue.as_str()).execute(tx.connection()).await?;
    }
    store.commit(tx).await?;
    Ok(())
}

/// The queue that push is measured on, beside the benchmark's own.
fn push_queue(queue: &QueueName) -> anyhow::Result<ServiceQueue> {
    Ok(ServiceQueue::new(format!("{queue}.push"), RetryPolicy::default())?)
}

/// Removes what was published over HTTP.
async fn forget_published(store: &Postgres) -> anyhow::Result<()> {
    let delete = "DELETE FROM postrider.event_outbox WHERE aggregate_type = 'bench.http'";
    let mut tx = store.begin().await?;
    sqlx::query(delete).execute(tx.connection()).await?;
    store.commit(tx).await?;
    Ok(())
}

async fn embedded(clock: &Clock, args: &BenchArgs) -> anyhow::Result<Vec<Figure>> {
    let folder = std::env::temp_dir().join(format!("postrider-bench-{}", clock.new_id()));
    let store = Sqlite::open(SqliteConfig::new(folder.join("bench.db")), clock.clone()).await?;
    let broker = Arc::new(EmbeddedBroker::open(store.clone(), clock.clone()).await?);
    let mut raw = EmbeddedRaw::open(broker.clone(), QueueName::new("bench")?).await?;
    let broker: Arc<dyn Broker> = broker;
    let measured = async {
        let mut figures = Vec::new();
        for keys in args.keys() {
            let mut rival = Rival { raw: &mut raw, naive: None, streams: false };
            figures.extend(
                relay_over_raw(&store, &broker, &mut rival, clock, args.load(keys), "embedded").await?,
            );
        }
        if args.wants_delay() {
            let load = args.load(0);
            let mode = RelayMode::Poll;
            figures.extend(
                delay_over_raw(&store, &broker, &mut raw, clock, load, args.rate, mode, "embedded").await?,
            );
        }
        if args.http {
            figures.extend(
                over_http(&store, &broker, clock, args.load(0), &push_queue(raw.queue())?, "embedded")
                    .await?,
            );
        }
        anyhow::Ok(figures)
    };
    let measured = measured.await;
    broker.close().await;
    let _left_behind = std::fs::remove_dir_all(&folder);
    measured
}

async fn dedup(
    context: &Context,
    database: &Server,
    broker: &Server,
    args: &BenchArgs,
) -> anyhow::Result<Vec<Figure>> {
    let (config, clock) = (&context.config, &context.clock);
    let accelerator = wiring::accelerator(context).await;
    let Some(accelerator) = accelerator.filter(|accelerator| !accelerator.is_degraded()) else {
        return Err(usage("--dedup needs a Redis that answers; set REDIS_URL"));
    };
    let store = Postgres::connect(wiring::postgres(config, database), clock.clone()).await?;
    store.check().await?;
    let rabbitmq: Arc<dyn Broker> =
        Arc::new(RabbitMq::connect(wiring::rabbitmq(config, broker), clock.clone()).await?);
    let queue = QueueName::new(format!("postrider.bench.{}", clock.new_id()))?;
    let bench = DedupBench {
        store: &store,
        broker: &rabbitmq,
        accelerator: &accelerator,
        queue: &queue,
        clock,
        load: args.load(0),
        backend: "PostgreSQL + RabbitMQ + Redis",
    };
    let measured = bench.figures().await;
    rabbitmq.close().await;
    let url = wiring::rabbitmq(config, broker).url.expose_secret().to_owned();
    RabbitRaw::open(&url, queue.clone()).await?.remove().await?;
    forget_inbox(&store, &queue).await?;
    measured
}

async fn ledger(
    config: &Config,
    database: &Server,
    broker: &Server,
    clock: &Clock,
    args: &BenchArgs,
) -> anyhow::Result<Vec<Figure>> {
    let settings = wiring::rabbitmq(config, broker);
    let url = settings.url.expose_secret().to_owned();
    let rabbitmq: Arc<dyn Broker> = Arc::new(RabbitMq::connect(settings, clock.clone()).await?);
    let name = QueueName::new(format!("postrider.bench.{}", clock.new_id()))?;
    let queue = ServiceQueue::new(name.as_str(), RetryPolicy::default())?;
    let database = wiring::postgres(config, database);
    let bench = LedgerBench { database, broker: &rabbitmq, queue: &queue, clock, load: args.load(0) };
    let measured = bench.figures().await;
    rabbitmq.close().await;
    let raw = RabbitRaw::open(&url, QueueName::new(format!("{name}.end"))?).await?;
    raw.remove_also(queue.queues().iter().map(|queue| &queue.name)).await?;
    raw.remove().await?;
    measured
}

async fn networked(
    config: &Config,
    database: &Server,
    broker: &Server,
    clock: &Clock,
    args: &BenchArgs,
) -> anyhow::Result<Vec<Figure>> {
    const BACKEND: &str = "PostgreSQL + RabbitMQ";
    let store = Postgres::connect(wiring::postgres(config, database), clock.clone()).await?;
    store.check().await?;
    let waiting = store.backlog().await?;
    if waiting.due > 0 {
        let text = format!(
            "{} events wait in this outbox, and the benchmark's relay would publish them; use a database of its own",
            waiting.due
        );
        return Err(usage(text));
    }
    let queue = QueueName::new(format!("postrider.bench.{}", clock.new_id()))?;
    let settings = wiring::rabbitmq(config, broker);
    let url = settings.url.expose_secret().to_owned();
    let mut raw = RabbitRaw::open(&url, queue.clone()).await?;
    let naive = Naive::open(store.pool(), &url, queue.as_str()).await?;
    let rabbitmq: Arc<dyn Broker> = Arc::new(RabbitMq::connect(settings, clock.clone()).await?);
    add_published(&store, args.history, args.bytes, &queue).await?;
    let held = if args.hold { Some(Held::open(&store).await?) } else { None };
    let measured = async {
        let mut figures = Vec::new();
        for keys in args.keys() {
            let naive = (keys != 1).then_some(&naive);
            let mut rival = Rival { raw: &mut raw, naive, streams: true };
            figures.extend(
                relay_over_raw(&store, &rabbitmq, &mut rival, clock, args.load(keys), BACKEND).await?,
            );
        }
        if args.wants_delay() {
            let load = args.load(0);
            for mode in [RelayMode::Poll, RelayMode::Cdc] {
                figures.extend(
                    delay_over_raw(&store, &rabbitmq, &mut raw, clock, load, args.rate, mode, BACKEND)
                        .await?,
                );
            }
        }
        if args.http {
            figures.extend(
                over_http(&store, &rabbitmq, clock, args.load(0), &push_queue(&queue)?, BACKEND).await?,
            );
        }
        anyhow::Ok(figures)
    };
    let measured = measured.await;
    if let Some(held) = held {
        held.end().await?;
    }
    rabbitmq.close().await;
    if args.http {
        let queues = push_queue(&queue)?.queues();
        raw.remove_also(queues.iter().map(|queue| &queue.name)).await?;
        forget_published(&store).await?;
    }
    raw.remove().await?;
    naive.remove().await?;
    forget(&store, &queue).await?;
    measured
}
