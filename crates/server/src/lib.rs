//! Everything of the `postrider` binary: reads the command line, runs one command, ends with its exit code. A library only so that
//! its parsers can be fuzzed.

mod api;
mod at_work;
mod bench;
mod catalog;
mod cli;
mod commands;
mod config;
mod dashboard;
mod demo;
mod desk;
mod entry_input;
mod event_input;
mod exit;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod logging;
mod old_buses;
mod outboxes;
mod output;
mod pull_desks;
mod push_desk;
mod signing_key;
mod telemetry;
mod wiring;

use std::process::ExitCode;

use clap::Parser as _;

use cli::Cli;
use config::Environment;
use exit::Exit;

/// Runs the command that the command line names.
///
/// Not async, so that all of it is compiled here, side by side, and not in the one piece of whoever waits for it.
#[tokio::main]
pub async fn run() -> ExitCode {
    // The HTTP client takes the process's TLS provider. An error means that one is there already.
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let cli = Cli::parse();
    let stops_by_itself = cli.command.handles_signals();
    let running = Box::pin(commands::run(cli, Environment::of_process()));
    let ended = if stops_by_itself {
        running.await
    } else {
        tokio::select! {
            ended = running => ended,
            _ = tokio::signal::ctrl_c() => Ok(Exit::Interrupted),
        }
    };
    match ended {
        Ok(exit) => exit.into(),
        Err(error) => {
            eprintln!("error: {}", told(&error));
            exit::of(&error).into()
        }
    }
}

/// An error and its causes, a line each, none twice.
fn told(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}\n  because {cause}");
        }
    }
    text
}
