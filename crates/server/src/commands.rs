//! The commands, one file each. Here: what they share, and which one runs.

pub(crate) mod audit;
pub(crate) mod bench;
pub(crate) mod consumers;
pub(crate) mod db;
pub(crate) mod demo;
pub(crate) mod dlq;
pub(crate) mod doctor;
pub(crate) mod event;
pub(crate) mod generate;
pub(crate) mod ledger;
pub(crate) mod migration;
pub(crate) mod ops;
pub(crate) mod outbox;
pub(crate) mod progress;
pub(crate) mod publish;
pub(crate) mod push;
pub(crate) mod schema;
pub(crate) mod serve;
pub(crate) mod token;
pub(crate) mod topology;

use postrider::Clock;
use postrider::store::LogEntry;

use crate::cli::{Cli, Command};
use crate::config::{Config, Environment, Flags, Live};
use crate::exit::Exit;
use crate::logging::{Logging, say, speak_as};
use crate::output::Output;
use crate::telemetry;
use crate::wiring;

/// What a command has at hand.
pub(crate) struct Context {
    /// As it was at the start.
    pub(crate) config: Config,
    /// With what a reload changes.
    pub(crate) live: Live,
    pub(crate) output: Output,
    pub(crate) clock: Clock,
    pub(crate) logging: Logging,
    /// To read the configuration again.
    pub(crate) flags: Flags,
    pub(crate) environment: Environment,
}

impl Context {
    /// What the person at the keyboard is about to do, for the audit log.
    pub(crate) fn log_entry(&self, action: &str, subject: String, reason: &str) -> LogEntry {
        LogEntry {
            at: self.clock.now(),
            actor: self.environment.actor(),
            action: action.to_owned(),
            subject,
            reason: Some(reason.to_owned()).filter(|reason| !reason.is_empty()),
            detail: None,
        }
    }
}

/// Runs one command.
pub(crate) async fn run(cli: Cli, environment: Environment) -> anyhow::Result<Exit> {
    if let Command::Generate(args) = &cli.command
        && !args.needs_config()
    {
        return generate::run(args);
    }
    let flags = cli.shared.flags(&cli.command);
    let config = Config::load(&flags, &environment)?;
    let (output, clock) = (cli.shared.speaking(), Clock::system());
    let (collect, exporting) = match cli.command {
        Command::Serve(_) => telemetry::start(&config, &clock)?.unzip(),
        _ => (None, None),
    };
    let log = &config.settings.log;
    let logging = Logging::start(log.format, &log.level, environment.no_color(), collect)?;
    if matches!(cli.command, Command::Serve(_)) {
        speak_as(log.format);
    }
    say(&format!("using {}", config.backends));
    let live = Live::new(config.clone());
    let context = Context { config, live, output, clock, logging, flags, environment };
    let ended = match cli.command {
        Command::Demo(args) => wiring::open(&context, demo::Demo { args, context: &context }).await,
        Command::Bench(args) => bench::run(args, &context).await,
        Command::Serve(args) => wiring::open(&context, serve::Serve { args, context: &context }).await,
        Command::Doctor(_) => doctor::run(&context).await,
        Command::Db(args) => wiring::open(&context, db::Db { args, context: &context }).await,
        Command::Topology(args) => topology::run(&args, &context).await,
        Command::Publish(args) => publish::run(args, &context).await,
        Command::Dlq(args) => Box::pin(wiring::open(&context, dlq::Dlq { args, context: &context })).await,
        Command::Ops(args) => wiring::open(&context, ops::Ops { args, context: &context }).await,
        Command::Event(args) => wiring::open(&context, event::OfEvent { args, context: &context }).await,
        Command::Outbox(args) => wiring::open(&context, outbox::Outbox { args, context: &context }).await,
        Command::Audit(_) => wiring::open(&context, audit::DrawUp { context: &context }).await,
        Command::Consumers(args) => {
            wiring::open(&context, consumers::Consumers { args, context: &context }).await
        }
        Command::Ledger(args) => wiring::open(&context, ledger::Keep { args, context: &context }).await,
        Command::Progress(args) => wiring::open(&context, progress::Follow { args, context: &context }).await,
        Command::Migration(args) => {
            Box::pin(wiring::open(&context, migration::Migrate { args, context: &context })).await
        }
        Command::Schema(args) => schema::run(&args, &context),
        Command::Push(args) => wiring::open(&context, push::ToEndpoints { args, context: &context }).await,
        Command::Token(args) => wiring::open(&context, token::Manage { args, context: &context }).await,
        Command::Generate(args) => generate::of_config(&args, &context),
    };
    if let Some(exporting) = exporting {
        exporting.finish().await;
    }
    ended
}

/// The id of an operation or of a token, as it is typed.
fn id(text: &str) -> Result<uuid::Uuid, String> {
    text.parse().map_err(|_| "write the whole id, such as 01a1eec7-7853-77c8-ad65-832d2d0ebbdc".to_owned())
}

/// The most rows of a page.
const ROWS: usize = 1000;

/// How many rows a page has at most, as it is typed.
fn rows(text: &str) -> Result<usize, String> {
    let rows = text.parse().ok().filter(|rows| (1..=ROWS).contains(rows));
    rows.ok_or_else(|| format!("write a number from 1 to {ROWS}"))
}
