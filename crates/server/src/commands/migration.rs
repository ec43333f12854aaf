//! `postrider migration`: from an old bus to a new one, phase by phase.
//!
//! The phase is in the store, and relays obey it wherever they run. What needs the broker (comparing, removing the old bus) is asked for
//! as an operation: `serve` does it, or this process where nobody serves.

mod show;

use std::time::Duration;

use clap::{Args, Subcommand};
use postrider::migration::{
    self, Comparing, Databases, Errand, Errands, MigrationError, Phase, Standing, Taken,
};
use postrider::store::{Operation, OperationState};
use uuid::Uuid;

use super::Context;
use crate::exit::{Exit, usage};
use crate::outboxes;
use crate::wiring::{OnStore, WholeStore, Wired};

/// How long to wait until all relays obey, before it is left to them.
const SETTLES: Duration = Duration::from_secs(20);
/// How long to wait for somebody who serves, before this process does it.
const SERVED: Duration = Duration::from_secs(4);
/// How often to look.
const LOOK: Duration = Duration::from_millis(200);

/// What to do with a migration.
#[derive(Debug, Args)]
#[command(after_help = "The phases:\n  \
    start     every event goes to both buses (dual)\n  \
    compare   proves that both have the same\n  \
    cutover   events go to the new bus alone; the old one is still there\n  \
    rollback  back to both; what went to the new one alone is copied\n  \
    finish    the old exchange and queue are removed\n\n\
    Outboxes in other databases ([[outbox.table]] url) follow: every figure is of all of them, and compare, cutover and finish \
    are refused while one of them cannot be asked.\n\n\
    Examples:\n  \
    postrider migration start --dry-run\n  \
    postrider migration compare --for 60\n  \
    postrider migration status\n\n\
    docs/migration.md goes through all of it in ten minutes.")]
pub(crate) struct MigrationArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show every migration: its phase, which relays obey it, what failed
    Status,
    /// Publish every event to the old bus too, as [migration] says
    Start {
        #[command(flatten)]
        step: Step,
    },
    /// Tap both buses and compare by event id what arrives there; exit 3 when they differ
    Compare {
        /// Listen for so many seconds
        #[arg(long = "for", default_value_t = 30, value_name = "SECONDS")]
        listen: u64,
        /// Stop when so many events have arrived
        #[arg(long, default_value_t = 100_000, value_name = "N")]
        events: usize,
    },
    /// Publish to the new bus alone; refused while parity is not proven
    Cutover {
        #[command(flatten)]
        step: Step,
        /// Cut over whatever stands against it; the audit log keeps that and the reason
        #[arg(long, requires = "reason")]
        force: bool,
    },
    /// Publish to both buses again, and copy what went to the new one alone
    Rollback {
        #[command(flatten)]
        step: Step,
    },
    /// Remove the old exchange and queue; refused while messages or consumers remain
    Finish {
        #[command(flatten)]
        step: Step,
        /// Give up copies that have not reached the old bus
        #[arg(long, requires = "reason")]
        force: bool,
    },
}

/// What every step takes.
#[derive(Debug, Args)]
struct Step {
    /// Why, for the audit log
    #[arg(long, id = "reason", value_name = "TEXT")]
    reason: Option<String>,
    /// Say what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// The command, on a store.
pub(crate) struct Migrate<'a> {
    pub(crate) args: MigrationArgs,
    pub(crate) context: &'a Context,
}

impl OnStore for Migrate<'_> {
    async fn run<S: WholeStore>(self, wired: Wired<S>) -> anyhow::Result<Exit> {
        wired.store.check().await?;
        let context = self.context;
        let open = outboxes::open(&wired.store, &context.config, &context.clock)?;
        let databases = &outboxes::buses(&wired.store, &open, &context.clock);
        let done = match &self.args.what {
            What::Status => return status(databases, context).await,
            What::Start { step } => start(&wired, databases, step, context).await,
            What::Compare { listen, events } => {
                let how = Comparing {
                    listen: Duration::from_secs(*listen),
                    most_events: *events,
                    ..Comparing::default()
                };
                return compare(&wired, databases, &how, context).await;
            }
            What::Cutover { step, force } => cut_over(databases, step, *force, context).await,
            What::Rollback { step } => roll_back(databases, step, context).await,
            What::Finish { step, force } => finish(&wired, databases, step, *force, context).await,
        };
        match done.as_ref().map_err(|error| error.downcast_ref::<MigrationError>()) {
            // What stands against it is the answer, not a failure of the command.
            Err(Some(MigrationError::Obstacles(obstacles))) => {
                for obstacle in obstacles {
                    eprintln!("{obstacle}");
                }
                eprintln!("nothing was changed");
                Ok(Exit::Unhealthy)
            }
            _ => done,
        }
    }
}

async fn status<S: WholeStore>(databases: &Databases<S>, context: &Context) -> anyhow::Result<Exit> {
    let standings = databases.standings().await?;
    if standings.is_empty() {
        let next = match &context.config.migration {
            Some(definition) => format!(
                "none was started; `postrider migration start` begins {}: from {} to {}",
                definition.name, definition.legacy.exchange, definition.exchange
            ),
            None => "none was started, and [migration] names no old exchange".to_owned(),
        };
        context.output.note(&next);
    }
    if context.output.is_for_people() {
        for standing in &standings {
            context.output.one(standing, &show::standing(standing))?;
        }
        return Ok(Exit::Ok);
    }
    context.output.rows(&[], &standings, |_| Vec::new())?;
    Ok(Exit::Ok)
}

async fn start<S: WholeStore>(
    wired: &Wired<S>,
    databases: &Databases<S>,
    step: &Step,
    context: &Context,
) -> anyhow::Result<Exit> {
    let Some(definition) = &context.config.migration else {
        return Err(usage("[migration] names no old exchange; set migration.legacy_exchange"));
    };
    if let Some(queue) = &definition.legacy.queue {
        let broker = wired.broker.look().await?;
        let depth = broker.depth(queue).await;
        broker.close().await;
        depth?;
    }
    if step.dry_run {
        context.output.note(&format!(
            "events {} of {} would go to {} too",
            show::patterns(definition),
            definition.exchange,
            definition.legacy.exchange
        ));
        return Ok(Exit::Ok);
    }
    migration::start(databases, definition, &step.taken(false, context)).await?;
    settle(databases, context).await
}

async fn cut_over<S: WholeStore>(
    databases: &Databases<S>,
    step: &Step,
    force: bool,
    context: &Context,
) -> anyhow::Result<Exit> {
    if step.dry_run {
        let standing = running(databases).await?;
        follows(&standing, Phase::Cutover)?;
        let obstacles = migration::obstacles_to_cutover(&standing, context.clock.now());
        if !obstacles.is_empty() && !force {
            return Err(MigrationError::Obstacles(obstacles).into());
        }
        for obstacle in &obstacles {
            context.output.note(&format!("would be overruled: {obstacle}"));
        }
        let told = if obstacles.is_empty() {
            "parity is proven; nothing stands against a cutover"
        } else {
            "events would go to the new bus alone; nothing was changed"
        };
        context.output.note(told);
        return Ok(Exit::Ok);
    }
    let overruled = migration::cut_over(databases, &step.taken(force, context)).await?;
    for obstacle in overruled {
        context.output.note(&format!("overruled: {obstacle}"));
    }
    settle(databases, context).await
}

async fn roll_back<S: WholeStore>(
    databases: &Databases<S>,
    step: &Step,
    context: &Context,
) -> anyhow::Result<Exit> {
    if step.dry_run {
        let standing = running(databases).await?;
        follows(&standing, Phase::Dual)?;
        let phase = standing.phase;
        context.output.note(&format!("from the phase {phase}, events would go to both buses again"));
        return Ok(Exit::Ok);
    }
    migration::roll_back(databases, &step.taken(false, context)).await?;
    settle(databases, context).await
}

async fn compare<S: WholeStore>(
    wired: &Wired<S>,
    databases: &Databases<S>,
    how: &Comparing,
    context: &Context,
) -> anyhow::Result<Exit> {
    running(databases).await?;
    context.output.note(&format!("listening to both buses for {} s", how.listen.as_secs()));
    let by = context.environment.actor();
    let asked = migration::ask(&wired.store, &context.clock, Errand::compare(how), &by, None).await?;
    let operation = carried_out(asked, wired, context).await?;
    if let Some(error) = operation.error {
        return Err(anyhow::anyhow!("the comparison was not made: {error}"));
    }
    let Some(parity) = running(databases).await?.parity else {
        return Err(anyhow::anyhow!("the comparison left no report; try again"));
    };
    context.output.one(&parity, &show::parity(&parity))?;
    Ok(if parity.holds { Exit::Ok } else { Exit::Unhealthy })
}

async fn finish<S: WholeStore>(
    wired: &Wired<S>,
    databases: &Databases<S>,
    step: &Step,
    force: bool,
    context: &Context,
) -> anyhow::Result<Exit> {
    let standing = running(databases).await?;
    let legacy = &standing.definition.legacy;
    let queue = legacy.queue.as_ref().map(|queue| format!(" and the queue {queue}")).unwrap_or_default();
    let what = format!("the exchange {}{queue}", legacy.exchange);
    if step.dry_run {
        follows(&standing, Phase::Finished)?;
        let obstacles = migration::obstacles_to_finish(&standing);
        if !obstacles.is_empty() && !force {
            return Err(MigrationError::Obstacles(obstacles).into());
        }
        for obstacle in &obstacles {
            context.output.note(&format!("would be overruled: {obstacle}"));
        }
        context.output.note(&format!("{what} would be removed, if nothing is left there"));
        return Ok(Exit::Ok);
    }
    context.output.confirm(&format!("Remove {what}?"))?;
    let by = context.environment.actor();
    let errand = Errand::Finish { forced: force };
    let asked = migration::ask(&wired.store, &context.clock, errand, &by, step.reason.as_deref()).await?;
    let operation = carried_out(asked, wired, context).await?;
    if let Some(error) = operation.error {
        eprintln!("{error}");
        eprintln!("the migration is not finished");
        return Ok(Exit::Unhealthy);
    }
    context
        .output
        .note(&format!("{what} are gone; take them out of the configuration of whoever declares them"));
    status(databases, context).await
}

/// Waits for an errand. Where nobody serves, it is done here.
async fn carried_out<S: WholeStore>(
    id: Uuid,
    wired: &Wired<S>,
    context: &Context,
) -> anyhow::Result<Operation> {
    let (store, clock) = (&wired.store, &context.clock);
    let started = clock.monotonic();
    loop {
        let operation = store.operation(id).await?.ok_or_else(|| usage("the operation is gone"))?;
        if operation.state == OperationState::Cancelled {
            return Err(anyhow::anyhow!("somebody cancelled it: `postrider ops get {id}` says when"));
        }
        if operation.state.is_over() {
            return Ok(operation);
        }
        let waits = operation.state == OperationState::Planned && clock.since(started) > SERVED;
        // On the embedded default one process at a time has the broker; while somebody serves, he has it.
        if waits && let Ok(_lock) = wired.serve_lock() {
            let broker = wired.broker.open().await?;
            let sources = outboxes::open(store, &context.config, clock)?.into_iter();
            let mut sources = sources.map(|outbox| outbox.publishing(&context.config));
            let first = sources.next().ok_or_else(|| usage("the configuration has no outbox"))?;
            Errands::new(first, sources.collect(), broker.clone(), clock.clone()).run(id).await?;
            broker.close().await;
            continue;
        }
        clock.sleep(LOOK).await;
    }
}

/// Waits until all relays obey, and shows where it stands.
async fn settle<S: WholeStore>(databases: &Databases<S>, context: &Context) -> anyhow::Result<Exit> {
    let settled = migration::settled(databases, SETTLES).await?;
    let done = status(databases, context).await?;
    if settled {
        return Ok(done);
    }
    context.output.note(
        "not every relay obeys yet, none runs, or a database is away; each does as soon as it sees the phase, and nothing is lost \
         meanwhile",
    );
    Ok(Exit::Partly)
}

async fn running<S: WholeStore>(databases: &Databases<S>) -> anyhow::Result<Standing> {
    let all = databases.standings().await?;
    let found = all.into_iter().find(|one| one.phase != Phase::Finished);
    found.ok_or_else(|| MigrationError::NoneRuns.into())
}

/// A dry run refuses what the step itself would refuse.
fn follows(standing: &Standing, next: Phase) -> Result<(), MigrationError> {
    if standing.phase.may_become(next) {
        return Ok(());
    }
    let (name, phase) = (standing.definition.name.clone(), standing.phase);
    Err(MigrationError::NotNow {
        name,
        phase,
        why: "this step does not follow from it; nothing would be changed",
    })
}

impl Step {
    fn taken(&self, forced: bool, context: &Context) -> Taken {
        let reason = self.reason.clone().unwrap_or_default();
        Taken { by: context.environment.actor(), reason, forced }
    }
}
