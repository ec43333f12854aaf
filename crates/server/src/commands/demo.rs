//! `postrider demo`: the whole product in one command.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use postrider::Broker;
use postrider::audit::Account;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::Context;
use super::serve::{ApiTask, Behind, Faces};
use crate::api::metrics;
use crate::config::Live;
use crate::demo::{self, End, Options};
use crate::exit::{Exit, UsageError};
use crate::output::table;
use crate::wiring::{OnStore, WholeStore, Wired};

/// How the demo is run.
#[derive(Debug, Args)]
#[command(
    after_help = "A small shop commits orders with their events; four services apply them: one issues events of its own, \
    one is flaky, one gets poisoned orders, one wants everything. At the end the account is drawn up from \
    what is stored. Exit code 0 only if it holds: committed = applied + waiting + dead, and no effect twice.\n\n\
    Kill it at any moment (kill -9) and run it again: the account of all runs still holds.\n\n\
    Examples:\n  \
      postrider demo\n  \
      postrider demo --events 5000 --rate 1000 --exit\n  \
      postrider demo --events 200 --exit --json"
)]
pub(crate) struct DemoArgs {
    /// Orders to place
    #[arg(long, default_value_t = 500, value_name = "N")]
    events: u64,
    /// Orders per second, as 100 or 100/s; 0 is as fast as it goes
    #[arg(long, default_value = "100/s", value_parser = rate, value_name = "N/s")]
    rate: u64,
    /// Leave when everything has taken effect, without waiting for a key
    #[arg(long)]
    exit: bool,
    /// What the shop's luck is made of: the same seed, the same failures
    #[arg(long, default_value_t = 7, value_name = "N")]
    seed: u64,
}

fn rate(text: &str) -> Result<u64, UsageError> {
    let number = text.strip_suffix("/s").unwrap_or(text);
    number.parse().map_err(|_| UsageError(format!("{text:?} is not a rate; write 100 or 100/s")))
}

/// The command, on a store.
pub(crate) struct Demo<'a> {
    pub(crate) args: DemoArgs,
    pub(crate) context: &'a Context,
}

/// What is printed.
#[derive(Serialize)]
struct Report<'a> {
    consumers: &'a [Account],
    holds: bool,
    #[serde(skip_serializing_if = "is_none")]
    doubled_effects: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_none(count: &u64) -> bool {
    *count == 0
}

impl OnStore for Demo<'_> {
    async fn run<S: WholeStore>(self, wired: Wired<S>) -> anyhow::Result<Exit> {
        let _lock = wired.serve_lock()?;
        wired.store.check().await?;
        let output = self.context.output;
        let terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
        let stop = CancellationToken::new();
        let broker = wired.broker.open().await?;
        let (serving, dashboard) = if self.args.exit {
            (None, None)
        } else {
            let serving = self.dashboard(&wired.store, &broker, &stop).await;
            let at = serving.as_ref().and_then(|serving| serving.dashboard.clone());
            (serving, at)
        };
        let options = Options {
            events: self.args.events,
            rate: self.args.rate,
            seed: self.args.seed,
            exit: self.args.exit,
            live: terminal && output.is_for_people() && !output.quiet,
            quiet: output.quiet,
            backend: self.context.config.backends.to_string(),
            dashboard,
            at_work: serving.as_ref().map(|serving| serving.at_work.clone()).unwrap_or_default(),
        };
        let interrupt = stop.clone();
        tokio::spawn(async move {
            if tokio::signal::ctrl_c().await.is_ok() {
                interrupt.cancel();
            }
        });
        let end = demo::run(wired.store, broker, self.context.clock.clone(), options, stop).await?;
        if let Some(serving) = serving {
            serving.finished(Duration::from_secs(1)).await;
        }
        let holds = end.holds();
        let report = Report { consumers: &end.accounts, holds, doubled_effects: end.doubled };
        output.one(&report, &for_people(&end))?;
        if end.stuck {
            output.note("not everything took effect, and for two minutes nothing more has; the account says what is where");
        }
        Ok(match (holds && !end.stuck, end.interrupted) {
            (false, _) => Exit::Unhealthy,
            (true, true) => Exit::Interrupted,
            (true, false) => Exit::Ok,
        })
    }
}

impl Demo<'_> {
    /// Serves the dashboard beside the shop: at the configured address, or at a free one if that is taken. The demo goes on
    /// without it if it cannot be.
    async fn dashboard<S: WholeStore>(
        &self,
        store: &S,
        broker: &Arc<dyn Broker>,
        stop: &CancellationToken,
    ) -> Option<ApiTask> {
        let context = self.context;
        let mut config = context.config.clone();
        config.own.layout = demo::layout().ok()?;
        let metrics = metrics::install().ok()?;
        for port in [config.settings.http.listen.port(), 0] {
            config.settings.http.listen.set_port(port);
            let (metrics, config) = (metrics.clone(), config.clone());
            let live = Live::new(config.clone());
            let behind = Behind { store, broker, accelerator: None, metrics, config, live, context };
            let faces = Faces { api: true, dashboard: true };
            match ApiTask::start(behind, faces, stop.clone()).await {
                Ok(serving) => {
                    let at = serving.dashboard.clone().unwrap_or_default();
                    context.output.note(&format!("see it in a browser: {at}"));
                    return Some(serving);
                }
                Err(error) => tracing::debug!(%error, port, "no dashboard here"),
            }
        }
        None
    }
}

fn for_people(end: &End) -> String {
    let rows = end.accounts.iter().map(|account| {
        let holds = if account.holds() { "holds" } else { "DOES NOT HOLD" };
        let counts = [account.committed, account.applied, account.waiting, account.dead];
        let mut row = vec![account.name.clone()];
        row.extend(counts.map(|count| count.to_string()));
        row.push(holds.to_owned());
        row
    });
    let header = ["CONSUMER", "COMMITTED", "= APPLIED", "+ WAITING", "+ DEAD", "ACCOUNT"];
    let doubled = match end.doubled {
        0 => "no effect happened twice".to_owned(),
        count => format!("{count} effects happened MORE THAN ONCE"),
    };
    format!("{}\n\n{doubled}", table(&header, rows))
}
