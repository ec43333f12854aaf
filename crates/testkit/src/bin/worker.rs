//! `postrider-worker ROLE sqlite PATH` or `postrider-worker ROLE servers DATABASE_URL RABBITMQ_URL[,URL…] [DATABASE_URL…]`: a process for
//! tests to kill; or `postrider-worker chaos DATABASE_URL RABBITMQ_URL REDIS_URL`. The role `trouble` may be followed by a step at which it kills itself: `trouble@published:3`.

use std::sync::Arc;

use anyhow::{Result, bail};
use postrider::embedded::EmbeddedBroker;
use postrider::sqlite::{Sqlite, SqliteConfig};
use postrider::{Broker, Clock};
use postrider_testkit::chaos;
use postrider_testkit::effects::Effects;
use postrider_testkit::worker::fault::{Fault, Faulty};
use postrider_testkit::worker::mailer::{self, Mailer};
use postrider_testkit::worker::operator::{self, ChunkStep};
use postrider_testkit::worker::{self, DieAt, Dying, Role, Watched, counter, flawed, trouble};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

#[tokio::main]
async fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    // Where a run goes wrong, what consumers did is wanted.
    let consumers = if words.first() == Some(&"chaos") { LevelFilter::DEBUG } else { LevelFilter::WARN };
    let told = Targets::new().with_default(LevelFilter::WARN).with_target("postrider::consumer", consumers);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    tracing_subscriber::registry().with(lines).with(told).init();
    if let ["chaos", database, rabbitmq, redis] = words.as_slice() {
        return chaos::worker::work(database, rabbitmq, redis).await;
    }
    // `count STEP REDIS_URL PREFIX FILE JOB ITEM`: marks an item, and dies at that step of the finish line.
    if let ["count", step, redis, prefix, file, job, item] = words.as_slice() {
        return counter::mark(step.parse()?, redis, prefix, file, job, item).await;
    }
    // `triage FILE STEP …`: the file says that the handler is mended, the step is where the process dies; `-` for nowhere.
    if let ["triage", mended, step, backend @ ..] = words.as_slice() {
        let die_at = if *step == "-" { None } else { Some(step.parse()?) };
        return run(Work::Plain(Role::Triage(mended.into()), die_at), backend).await;
    }
    // `correct STEP …`: dies as `triage` does, and takes what was mended by hand.
    if let ["correct", step, backend @ ..] = words.as_slice() {
        let die_at = if *step == "-" { None } else { Some(step.parse()?) };
        return run(Work::Plain(Role::Correcting, die_at), backend).await;
    }
    // `edit STEP …`: carries out edits of dead letters, and nothing else, and dies at that step of one.
    if let ["edit", step, backend @ ..] = words.as_slice() {
        return run(Work::Edit(step.parse()?), backend).await;
    }
    let (role, backend) = words.split_first().map_or(("", &[][..]), |(role, rest)| (*role, rest));
    let (role, fault) = match role.split_once('@') {
        Some((role, fault)) => (role, Some(fault.parse::<Fault>()?)),
        None => (role, None),
    };
    let wanted = match role {
        "trouble" => Work::Trouble(fault),
        "relay" => Work::Plain(Role::Relay, None),
        "consumers" => Work::Plain(Role::Consumers, None),
        "both" => Work::Plain(Role::Both, None),
        "mailer-relay" => Work::Mail(Mailer::Relay),
        "mailer-consumers" => Work::Mail(Mailer::Consumers),
        "mailer-whole" => Work::Mail(Mailer::Whole),
        "mailer-moved" => Work::Mail(Mailer::Moved),
        flaw if flaw.parse::<flawed::Flaw>().is_ok() => Work::Flawed(flaw.parse()?),
        other => {
            bail!(
                "the role is relay, consumers, both, mailer-…, trouble, triage, correct, edit or a flaw, not {other:?}"
            )
        }
    };
    run(wanted, backend).await
}

async fn run(wanted: Work, backend: &[&str]) -> Result<()> {
    let clock = Clock::system();
    match backend {
        ["sqlite", path] => {
            let store = Sqlite::open(SqliteConfig::new(*path), clock.clone()).await?;
            let broker = Arc::new(EmbeddedBroker::open(store.clone(), clock.clone()).await?);
            work(store, Vec::new(), broker, clock, wanted).await
        }
        ["servers", database, rabbitmq, others @ ..] => {
            let store = worker::connect_postgres(database, &clock).await?;
            let broker = worker::connect_rabbitmq(rabbitmq, &clock).await?;
            let mut more = Vec::new();
            for other in others {
                more.push(((*other).to_owned(), worker::connect_postgres(other, &clock).await?));
            }
            work(store, more, broker, clock, wanted).await
        }
        _ => bail!("after the role comes: sqlite PATH, or servers DATABASE_URL RABBITMQ_URL [DATABASE_URL…]"),
    }
}

/// What is to be done.
enum Work {
    /// A role, and where the process dies, if anywhere.
    Plain(Role, Option<DieAt>),
    Edit(ChunkStep),
    Trouble(Option<Fault>),
    Mail(Mailer),
    Flawed(flawed::Flaw),
}

/// `others` are databases that have outboxes too, by their names; only a mailer relays them.
async fn work<S: Effects>(
    store: S,
    others: Vec<(String, S)>,
    broker: Arc<dyn Broker>,
    clock: Clock,
    work: Work,
) -> Result<()> {
    let running = match work {
        Work::Plain(role, die_at) => {
            let broker: Arc<dyn Broker> = match die_at {
                Some(at) => Arc::new(Dying::new(broker, at)),
                None => broker,
            };
            worker::start(store, Arc::new(Watched(broker)), clock, role).await?
        }
        Work::Mail(mailer) => mailer::start(store, others, Arc::new(Watched(broker)), clock, mailer).await?,
        Work::Edit(step) => return operator::edit(store, clock, step).await,
        Work::Flawed(flaw) => return flawed::work(store, broker, clock, flaw).await,
        Work::Trouble(None) => trouble::start(store, broker, clock, None).await?,
        Work::Trouble(Some(fault)) => {
            let broker = Arc::new(Faulty(broker, fault.clone()));
            trouble::start(store, broker, clock, Some(fault)).await?
        }
    };
    // Works until it is killed.
    std::future::pending::<()>().await;
    running.stop(std::time::Duration::from_secs(1)).await;
    Ok(())
}
