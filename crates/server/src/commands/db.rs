//! `postrider db`: the database schema, made when somebody says so and never before.

use clap::{Args, Subcommand};
use postrider::store::{Migration, MigrationState};
use serde::Serialize;

use super::Context;
use crate::exit::Exit;
use crate::wiring::{OnStore, WholeStore, Wired};

/// What to do with the schema.
#[derive(Debug, Args)]
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
    /// List the migrations and whether the database has them; exit code 3 if one is missing
    Status,
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
            What::Migrate { dry_run: true } => {
                let all = wired.store.migrations().await?;
                self.list(
                    &all.into_iter()
                        .filter(|migration| migration.state == MigrationState::Missing)
                        .collect::<Vec<_>>(),
                )
            }
            What::Migrate { dry_run: false } => {
                let applied = wired.store.apply_migrations().await?;
                if applied.is_empty() {
                    self.context.output.note("the schema is up to date; nothing was changed");
                }
                self.list(&applied)
            }
        }
    }
}

impl Db<'_> {
    fn list(&self, migrations: &[Migration]) -> anyhow::Result<Exit> {
        let row = |migration: &Migration| Row {
            version: migration.version,
            name: migration.name.clone(),
            state: migration.state.as_str(),
        };
        let rows: Vec<_> = migrations.iter().map(row).collect();
        let missing = migrations.iter().any(|migration| migration.state != MigrationState::Applied);
        self.context.output.rows(&["VERSION", "NAME", "STATE"], &rows, |row| {
            vec![row.version.to_string(), row.name.clone(), row.state.to_owned()]
        })?;
        if missing {
            self.context.output.note("the schema is not up to date; run `postrider db migrate`");
        }
        Ok(if missing { Exit::Unhealthy } else { Exit::Ok })
    }
}
