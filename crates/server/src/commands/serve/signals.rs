//! What the process is told from outside: stop, stop at once, read the configuration again.

use tokio::signal::unix::{Signal as Unix, SignalKind, signal};

use crate::commands::Context;
use crate::config::Config;

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

/// Reads the configuration again and applies the log level. Says what else changed and needs a restart. A bad
/// configuration changes nothing.
pub(super) fn reload(context: &Context) {
    let new = match Config::load(&context.flags, &context.environment) {
        Ok(new) => new,
        Err(error) => {
            eprintln!("not reloaded, everything stays as it is: {error}");
            return;
        }
    };
    let level = &new.settings.log.level;
    match context.logging.set_level(level) {
        Ok(()) => eprintln!("reloaded: log.level is {level}"),
        Err(error) => eprintln!("log.level stays as it is: {error}"),
    }
    let waiting: Vec<_> =
        context.config.changed(&new).into_iter().filter(|key| *key != "log.level").collect();
    if !waiting.is_empty() {
        eprintln!("changed, and in use after a restart: {}", waiting.join(", "));
    }
}
