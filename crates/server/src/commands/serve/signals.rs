//! What the process is told from outside: stop, stop at once, read the configuration again.

use tokio::signal::unix::{Signal as Unix, SignalKind, signal};

use super::ApiTask;
use crate::commands::Context;
use crate::config::Config;
use crate::logging::say;

/// What was asked.
pub(super) enum Signal {
    /// SIGTERM or Ctrl-C.
    Stop,
    /// SIGHUP.
    Reload,
}

/// The signals of this process.
pub(super) struct Signals {
    interrupt: Unix,
    terminate: Unix,
    hang_up: Unix,
}

impl Signals {
    /// Listens from now on; none is missed.
    pub(super) fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one.
    pub(super) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::Stop,
            _ = self.terminate.recv() => Signal::Stop,
            _ = self.hang_up.recv() => Signal::Reload,
        }
    }

    /// Waits for somebody who lost patience.
    pub(super) async fn stop_again(&mut self) {
        while matches!(self.next().await, Signal::Reload) {}
    }
}

/// Reads the configuration again and puts in force what may change while everything runs; says what waits for a restart. A bad
/// configuration, or a certificate that cannot be read, changes nothing.
pub(super) fn reload(context: &Context, api: Option<&ApiTask>) {
    let new = match Config::load(&context.flags, &context.environment) {
        Ok(new) => new,
        Err(error) => {
            say(&format!("not reloaded, everything stays as it is: {error}"));
            return;
        }
    };
    if let Some(api) = api
        && let Err(error) = api.reload(&new.settings.http)
    {
        say(&format!("not reloaded, everything stays as it is: {error:#}"));
        return;
    }
    let level = new.settings.log.level.clone();
    if let Err(error) = context.logging.set_level(&level) {
        say(&format!("log.level stays as it is: {error}"));
    }
    let (taken, waiting) = context.live.take_up(new);
    match taken.as_slice() {
        [] => {
            say(&format!("reloaded: log.level is {level}, and nothing that is in force at once has changed"));
        }
        taken => say(&format!("reloaded: log.level is {level}; in force now: {}", taken.join(", "))),
    }
    if !waiting.is_empty() {
        say(&format!("changed, and in use after a restart: {}", waiting.join(", ")));
    }
}
