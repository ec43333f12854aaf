//! `postrider generate`: completions for shells and the manual page, from the command line's own definition.

use std::io::{self, Write as _};

use clap::{Args, CommandFactory as _, Subcommand};
use clap_complete::Shell;

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
}

/// Prints it on stdout. Needs no configuration and no server.
pub(crate) fn run(args: &GenerateArgs) -> anyhow::Result<Exit> {
    let mut command = Cli::command();
    let mut text = Vec::new();
    match args.what {
        What::Completions { shell } => clap_complete::generate(shell, &mut command, "postrider", &mut text),
        What::Man => clap_mangen::Man::new(command).render(&mut text)?,
    }
    io::stdout().write_all(&text)?;
    Ok(Exit::Ok)
}
