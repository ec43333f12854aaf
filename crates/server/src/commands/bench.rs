//! `postrider bench`: the figures of the README, as ratios measured in one run.

use std::sync::Arc;

use clap::Args;
use postrider::embedded::EmbeddedBroker;
use postrider::postgres::Postgres;
use postrider::rabbitmq::RabbitMq;
use postrider::sqlite::{Sqlite, SqliteConfig};
use postrider::store::{Outbox as _, Store as _};
use postrider::topology::QueueName;
use postrider::{Broker, Clock};
use secrecy::ExposeSecret as _;
use serde::Serialize;

use super::Context;
use crate::bench::{EmbeddedRaw, Figure, Load, RabbitRaw, TriageFigures, relay_over_raw, triage};
use crate::config::{Backends, Config, Server};
use crate::exit::{Exit, usage};
use crate::wiring;

/// What is measured.
#[derive(Debug, Args)]
#[command(
    after_help = "On the embedded default it works in a file of its own. On servers it writes its events to the outbox and\n\
    a queue of its own, and removes them afterwards: use a database where nothing else waits.\n\n\
    Example, with servers of your own for the occasion:\n  \
      scripts/servers up && source .servers/env && postrider db migrate && postrider bench"
)]
pub(crate) struct BenchArgs {
    /// Events in each round
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    events: usize,
    /// Bytes of payload in each event
    #[arg(long, default_value_t = 1024, value_name = "N")]
    bytes: usize,
    /// Ordering keys that the events share; 0 for none
    #[arg(long, default_value_t = 0, value_name = "N")]
    keys: usize,
    /// Rounds, of which the median counts
    #[arg(long, default_value_t = 3, value_name = "N")]
    rounds: usize,
    /// Measure triage instead, with so many dead letters: collecting, listing, grouping, searching, replaying
    #[arg(long, value_name = "N")]
    letters: Option<usize>,
    /// Of these, replay so many
    #[arg(long, default_value_t = 100_000, value_name = "N")]
    replays: u64,
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
    if args.events == 0 || args.rounds == 0 {
        return Err(usage("--events and --rounds must be at least 1"));
    }
    let load = Load { events: args.events, bytes: args.bytes, keys: args.keys, rounds: args.rounds };
    let (config, clock) = (&context.config, &context.clock);
    if let Some(letters) = args.letters {
        let figures = match &config.backends {
            Backends::Embedded { .. } => embedded_triage(clock, letters, args.replays).await?,
            Backends::Networked { database, .. } => {
                networked_triage(config, database, clock, letters, args.replays).await?
            }
        };
        let text = triage_lines(&figures);
        context.output.one(&Report { figures: Vec::new(), triage: Some(figures) }, &text)?;
        return Ok(Exit::Ok);
    }
    let figure = match &config.backends {
        Backends::Embedded { .. } => embedded(clock, load).await?,
        Backends::Networked { database, broker } => networked(config, database, broker, clock, load).await?,
    };
    let report = Report { figures: vec![figure], triage: None };
    let text = report.figures.iter().map(line).collect::<Vec<_>>().join("\n");
    context.output.one(&report, &text)?;
    Ok(Exit::Ok)
}

fn line(figure: &Figure) -> String {
    let Figure { name, backend, ratio, rate, raw, rounds } = figure;
    format!("{name} ({backend}): {ratio:.2}   {rate:.0}/s of {raw:.0}/s raw   rounds {rounds:?}")
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

async fn embedded(clock: &Clock, load: Load) -> anyhow::Result<Figure> {
    let folder = std::env::temp_dir().join(format!("postrider-bench-{}", clock.new_id()));
    let store = Sqlite::open(SqliteConfig::new(folder.join("bench.db")), clock.clone()).await?;
    let broker = Arc::new(EmbeddedBroker::open(store.clone(), clock.clone()).await?);
    let mut raw = EmbeddedRaw::open(broker.clone(), QueueName::new("bench")?).await?;
    let broker: Arc<dyn Broker> = broker;
    let measured = relay_over_raw(&store, &broker, &mut raw, clock, load, "embedded".to_owned()).await;
    broker.close().await;
    let _left_behind = std::fs::remove_dir_all(&folder);
    measured
}

async fn networked(
    config: &Config,
    database: &Server,
    broker: &Server,
    clock: &Clock,
    load: Load,
) -> anyhow::Result<Figure> {
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
    let mut raw = RabbitRaw::open(settings.url.expose_secret(), queue.clone()).await?;
    let rabbitmq: Arc<dyn Broker> = Arc::new(RabbitMq::connect(settings, clock.clone()).await?);
    let measured =
        relay_over_raw(&store, &rabbitmq, &mut raw, clock, load, "PostgreSQL + RabbitMQ".to_owned()).await;
    rabbitmq.close().await;
    raw.remove().await?;
    forget(&store, &queue).await?;
    measured
}

/// Removes the benchmark's rows.
async fn forget(store: &Postgres, queue: &QueueName) -> anyhow::Result<()> {
    let mut tx = store.begin().await?;
    sqlx::query(
        "WITH gone AS (DELETE FROM postrider.event_outbox WHERE target_queue = $1 RETURNING id)
         DELETE FROM postrider.event_outbox_id WHERE id IN (SELECT id FROM gone)",
    )
    .bind(queue.as_str())
    .execute(tx.connection())
    .await?;
    store.commit(tx).await?;
    Ok(())
}
