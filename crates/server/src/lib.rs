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
mod opening;
mod outboxes;
mod output;
mod pull_desks;
mod push_desk;
mod rules_trial;
mod signing_key;
mod telemetry;
mod wiring;

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use postrider::Clock;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use cli::Cli;
use config::Environment;
use exit::Exit;

/// Runs the command that the command line names.
///
/// Not async, so that all of it is compiled here, side by side, and not in the one piece of whoever waits for it.
pub fn run() -> ExitCode {
    let ended =
        tokio::runtime::Runtime::new().map_err(Into::into).and_then(|runtime| runtime.block_on(named()));
    match ended {
        Ok(exit) => exit.into(),
        Err(error) if is_seen_enough(&error) => Exit::Ok.into(),
        Err(error) => {
            logging::say_error(&told(&error));
            exit::of(&error).into()
        }
    }
}

/// The command, until it ends or is interrupted.
async fn named() -> anyhow::Result<Exit> {
    // The HTTP client takes the process's TLS provider. An error means that one is there already.
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let cli = Cli::parse();
    let stops_by_itself = cli.command.handles_signals();
    let running = Box::pin(commands::run(cli, Environment::of_process()));
    if stops_by_itself {
        return running.await;
    }
    let interrupted = CancellationToken::new();
    tokio::spawn(interrupt(signal(SignalKind::interrupt())?, interrupted.clone()));
    tokio::select! {
        ended = running => ended,
        () = interrupted.cancelled() => Ok(Exit::Interrupted),
    }
}

/// How long a command may take to let go after Ctrl-C.
const LET_GO: Duration = Duration::from_millis(500);

/// Waits for Ctrl-C, in a task of its own: a command that reads from the keyboard keeps its thread until somebody answers, and does not
/// let go. What it was doing is as after a crash: what is not committed did not happen.
async fn interrupt(mut interrupts: Signal, interrupted: CancellationToken) {
    if interrupts.recv().await.is_some() {
        interrupted.cancel();
        Clock::system().sleep(LET_GO).await;
        std::process::exit(Exit::Interrupted as i32);
    }
}

/// Whether nobody reads stdout any more (`| head`). Connections that break are told of by errors of their own.
fn is_seen_enough(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
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
