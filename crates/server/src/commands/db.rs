//! `postrider db`: the database schema, made when somebody says so and never before.

mod grants;

use std::io::Write as _;

use clap::{Args, Subcommand};
use postrider::store::{Migration, MigrationState, RelayId};
use serde::Serialize;

use super::Context;
use crate::config::Backends;
use crate::exit::{Exit, usage};
use crate::outboxes;
use crate::wiring::{OnStore, WholeStore, Wired};

/// What to do with the schema.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    postrider db migrate --dry-run\n  \
    postrider db migrate\n  \
    postrider db adopt public.order_outbox --dry-run")]
pub(crate) struct DbArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Bring the schema up to date; touches the schema `postrider` only
    #[command(
        after_help = "An SQLite file is brought up to date whenever it is opened; PostgreSQL only by this command."
    )]
    Migrate {
        /// Say what would be applied, and apply nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Take over an outbox table that is there already: additive columns, no long lock, its own INSERTs go on
    #[command(
        after_help = "The table needs the columns of the usual outbox: id, group_id, subsidiary_id, aggregate_type, \
        aggregate_id, event_type, payload (jsonb), status, available_at, attempts, created_at. Stop its old publisher first, \
        then name it under [[outbox.table]] so that `serve` relays it. From then on an INSERT of a row that no relay could publish is \
        refused. No view and no partitioned table can be adopted. May be repeated, and should be after an upgrade."
    )]
    Adopt {
        /// table, or schema.table
        table: String,
        /// Say whether it can be, and how many events would get their places; change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// List the migrations and whether the database has them; exit code 3 if one is missing
    Status,
    /// Print least-privilege roles as SQL: migrator, producer, relay, consumer, ledger, dashboard
    #[command(
        after_help = "Changes nothing. Example:\n  postrider db grants > grants.sql && psql -f grants.sql"
    )]
    Grants {
        /// What the names of the roles begin with
        #[arg(long, default_value = "postrider")]
        prefix: String,
    },
}

/// The command, on a store.
pub(crate) struct Db<'a> {
    pub(crate) args: DbArgs,
    pub(crate) context: &'a Context,
}

#[derive(Serialize)]
struct Row {
    version: u32,
    name: String,
    state: &'static str,
}

impl OnStore for Db<'_> {
    async fn run<S: WholeStore>(self, wired: Wired<S>) -> anyhow::Result<Exit> {
        match self.args.what {
            What::Status => self.list(&wired.store.migrations().await?),
            What::Grants { prefix } => {
                if matches!(self.context.config.backends, Backends::Embedded { .. }) {
                    return Err(usage("a SQLite file has no roles; set DATABASE_URL (store.url)"));
                }
                std::io::stdout().write_all(grants::sql(&prefix)?.as_bytes())?;
                Ok(Exit::Ok)
            }
            What::Migrate { dry_run: true } => {
                let all = wired.store.migrations().await?;
                self.list(
                    &all.into_iter()
                        .filter(|migration| migration.state == MigrationState::Missing)
                        .collect::<Vec<_>>(),
                )
            }
            What::Adopt { table, dry_run: true } => {
                wired.store.check().await?;
                let rows = wired.store.would_adopt_outbox(&table).await?;
                self.context.output.note(&format!(
                    "{table} can be adopted; events in it that would get their places: {rows}. Nothing was changed"
                ));
                Ok(Exit::Ok)
            }
            What::Adopt { table, dry_run: false } => {
                wired.store.check().await?;
                let rows = wired.store.adopt_outbox(&table).await?;
                self.context.output.note(&format!(
                    "{table} is an outbox now; events in it that have got their places: {rows}. Name it under [[outbox.table]]"
                ));
                Ok(Exit::Ok)
            }
            What::Migrate { dry_run: false } => {
                let applied = wired.store.apply_migrations().await?;
                self.migrate_outboxes(&wired.store).await?;
                if applied.is_empty() {
                    self.context.output.note("the schema is up to date; nothing was changed");
                }
                self.list(&applied)
            }
        }
    }
}

impl Db<'_> {
    /// The schema of the outboxes' own databases, their tables, and partitions ahead.
    async fn migrate_outboxes<S: WholeStore>(&self, store: &S) -> anyhow::Result<()> {
        let (config, clock) = (&self.context.config, &self.context.clock);
        let worker = RelayId::of_process(clock);
        for outbox in outboxes::open(store, config, clock)? {
            let label = &outbox.choice.label;
            if let Some(database) = &outbox.choice.database {
                let applied = outbox.store.apply_migrations().await?;
                if !applied.is_empty() {
                    let steps = applied.len();
                    self.context
                        .output
                        .note(&format!("applied {steps} migrations at {} for {label}", database.shown));
                }
            }
            if let Some(table) = &outbox.choice.table
                && outbox.store.create_outbox(table).await?
            {
                self.context.output.note(&format!("made the outbox {label}"));
            }
            outbox.store.keep_house(&worker, &outbox.house(config)).await?;
        }
        Ok(())
    }

    fn list(&self, migrations: &[Migration]) -> anyhow::Result<Exit> {
        let row = |migration: &Migration| Row {
            version: migration.version,
            name: migration.name.clone(),
            state: migration.state.as_str(),
        };
        let rows: Vec<_> = migrations.iter().map(row).collect();
        let behind = |state| matches!(state, MigrationState::Missing | MigrationState::Changed);
        let missing = migrations.iter().any(|migration| behind(migration.state));
        self.context.output.rows(&["VERSION", "NAME", "STATE"], &rows, |row| {
            vec![row.version.to_string(), row.name.clone(), row.state.to_owned()]
        })?;
        if missing {
            self.context.output.note("the schema is not up to date; run `postrider db migrate`");
        }
        Ok(if missing { Exit::Unhealthy } else { Exit::Ok })
    }
}
