//! `postrider generate`: completions for shells and the manual page, from the command line's own definition.

use std::io::{self, Write as _};

use clap::{Args, CommandFactory as _, Subcommand};
use clap_complete::Shell;

use super::Context;
use crate::catalog::{Catalog, asyncapi, docs};
use crate::cli::Cli;
use crate::exit::Exit;

/// What to print.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    postrider generate completions bash > ~/.local/share/bash-completion/completions/postrider\n  \
    postrider generate man > postrider.1")]
pub(crate) struct GenerateArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Completions for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// The manual page, in roff
    Man,
    /// The event catalogue as an AsyncAPI 3 document
    Asyncapi,
    /// The page of routing keys, in markdown: which events there are and where they go
    EventRoutingKeys,
    /// The page of schemas, in markdown: what each event says
    EventSchemas,
    /// The runbook of Redis, in markdown, with the settings in use
    RedisRunbook,
}

impl GenerateArgs {
    /// Whether the configuration is read for it.
    pub(crate) fn needs_config(&self) -> bool {
        !matches!(self.what, What::Completions { .. } | What::Man)
    }
}

/// Prints it on stdout. Needs no configuration and no server.
pub(crate) fn run(args: &GenerateArgs) -> anyhow::Result<Exit> {
    let mut command = Cli::command();
    let mut text = Vec::new();
    match args.what {
        What::Completions { shell } => clap_complete::generate(shell, &mut command, "postrider", &mut text),
        What::Man => clap_mangen::Man::new(command).render(&mut text)?,
        What::Asyncapi | What::EventRoutingKeys | What::EventSchemas | What::RedisRunbook => {}
    }
    io::stdout().write_all(&text)?;
    Ok(Exit::Ok)
}

/// The same for what is made of the configuration and the catalogue.
pub(crate) fn of_config(args: &GenerateArgs, context: &Context) -> anyhow::Result<Exit> {
    let (settings, layout) = (&context.config.settings, &context.config.own.layout);
    let catalog = || Catalog::read(&settings.catalog.path);
    let text = match args.what {
        What::Asyncapi => {
            let mut text = serde_json::to_string_pretty(&asyncapi::document(&catalog()?, layout))?;
            text.push('\n');
            text
        }
        What::EventRoutingKeys => docs::routing_keys(&catalog()?, layout),
        What::EventSchemas => docs::schemas(&catalog()?),
        What::RedisRunbook => docs::redis_runbook(settings),
        What::Completions { .. } | What::Man => return run(args),
    };
    io::stdout().write_all(text.as_bytes())?;
    Ok(Exit::Ok)
}
