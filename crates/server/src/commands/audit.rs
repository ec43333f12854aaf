//! `postrider audit`: whether every committed event was found again, for every consumer.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use postrider::audit::{self, Account, Effects, Source};
use postrider::broker::Broker;
use postrider::store::AppliedIn;
use postrider_ledger::accounting::Entries;
use serde::Serialize;

use super::Context;
use crate::config::Config;
use crate::desk::consumers::known;
use crate::exit::Exit;
use crate::outboxes;
use crate::output::table;
use crate::wiring::{OnStore, WholeStore, Wired};

/// How long an account may take to hold: RabbitMQ's statistics, which tell what is with consumers, are up to so late.
const PATIENCE: Duration = Duration::from_secs(12);

/// It takes nothing of its own.
#[derive(Debug, Args)]
#[command(
    after_help = "The consumers are those that ever started on this store, and every [[consumer]] of the \
    configuration; the events\nare those of every outbox, in whatever database, that were there when it began. What the ledger has applied is\n\
    counted from its books. Exit code 3 and the ids where the account does not hold. On RabbitMQ the management API tells\n\
    what is with consumers, some seconds late, so an account that does not hold is drawn up again for twelve seconds, for\n\
    the same events; more may be committed meanwhile.\n\n\
    Examples:\n  postrider audit\n  postrider audit --json    the ids of what is unaccounted for, for a script"
)]
pub(crate) struct AuditArgs {}

/// The command, on a store.
pub(crate) struct DrawUp<'a> {
    pub(crate) context: &'a Context,
}

/// What is printed.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    consumers: Vec<Account>,
    holds: bool,
}

impl OnStore for DrawUp<'_> {
    async fn run<S: WholeStore>(self, wired: Wired<S>) -> anyhow::Result<Exit> {
        wired.store.check().await?;
        let broker = wired.broker.look().await?;
        let report = settled(&wired.store, &broker, self.context).await;
        broker.close().await;
        let report = report?;
        self.context.output.one(&report, &report.for_people())?;
        if report.consumers.is_empty() {
            self.context.output.note("no consumer has started on this store yet, so nobody has an account");
        }
        Ok(if report.holds { Exit::Ok } else { Exit::Unhealthy })
    }
}

/// What is on its way between two places is in neither for a moment, so an account that does not hold is drawn up again for a while,
/// of the same events.
async fn settled<S: WholeStore>(
    store: &S,
    broker: &Arc<dyn Broker>,
    context: &Context,
) -> anyhow::Result<Report> {
    let (config, clock) = (&context.config, &context.clock);
    let mut sources = Vec::new();
    for outbox in outboxes::open(store, config, clock)? {
        let source = outbox.source();
        sources.push(Source { until: source.store.last_position().await?, ..source });
    }
    let start = clock.monotonic();
    loop {
        let report = report(store, &sources, broker, config).await?;
        if report.holds || clock.since(start) > PATIENCE {
            return Ok(report);
        }
        clock.sleep(Duration::from_millis(250)).await;
    }
}

async fn report<S: WholeStore>(
    store: &S,
    sources: &[Source<S>],
    broker: &Arc<dyn Broker>,
    config: &Config,
) -> anyhow::Result<Report> {
    let mut consumers = Vec::new();
    let tenant = config.settings.ledger.tenant()?;
    let books = Entries::new(store, tenant.as_ref());
    for consumer in known(store, &config.own.consumers).await? {
        let effects: Option<&dyn Effects> = match consumer.applied_in {
            AppliedIn::Inbox => None,
            AppliedIn::Books => Some(&books),
        };
        consumers.push(audit::account_of(store, sources, broker, &consumer, effects).await?);
    }
    let holds = consumers.iter().all(Account::holds);
    Ok(Report { consumers, holds })
}

impl Report {
    fn for_people(&self) -> String {
        let rows = self.consumers.iter().map(|account| {
            let holds = if account.holds() { "holds" } else { "DOES NOT HOLD" };
            let counts =
                [account.committed, account.applied, account.waiting, account.dead, account.unaccounted];
            let mut row = vec![account.name.clone()];
            row.extend(counts.map(|count| count.to_string()));
            row.push(holds.to_owned());
            row
        });
        let header = ["CONSUMER", "COMMITTED", "APPLIED", "WAITING", "DEAD", "UNACCOUNTED", "ACCOUNT"];
        let missing =
            self.consumers.iter().filter(|account| !account.unaccounted_ids.is_empty()).map(|account| {
                let ids: Vec<_> = account.unaccounted_ids.iter().map(|id| format!("\n  {id}")).collect();
                format!(
                    "\n\n{} of these are unaccounted for in {}:{}",
                    account.unaccounted,
                    account.name,
                    ids.concat()
                )
            });
        table(&header, rows) + &missing.collect::<String>()
    }
}
