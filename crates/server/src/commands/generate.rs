//! `postrider generate`: completions for shells, the manual page and the API's document, from the code's own definitions.

use std::io::{self, Write as _};

use clap::{Args, CommandFactory as _, Subcommand};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::exit::Exit;

/// What to print.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    postrider generate completions bash > ~/.local/share/bash-completion/completions/postrider\n  \
    postrider generate man > postrider.1\n  \
    postrider generate openapi > openapi.json")]
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
    /// The HTTP API as OpenAPI 3.1
    Openapi,
}

/// Prints it on stdout. Needs no configuration and no server.
pub(crate) fn run(args: &GenerateArgs) -> anyhow::Result<Exit> {
    let mut command = Cli::command();
    let mut text = Vec::new();
    match args.what {
        What::Completions { shell } => clap_complete::generate(shell, &mut command, "postrider", &mut text),
        What::Man => clap_mangen::Man::new(command).render(&mut text)?,
        What::Openapi => {
            text = serde_json::to_vec_pretty(&crate::api::openapi::document())?;
            text.push(b'\n');
        }
    }
    io::stdout().write_all(&text)?;
    Ok(Exit::Ok)
}
