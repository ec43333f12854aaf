//! `postrider audit`: whether every committed event was found again, for every consumer.

mod watch;

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use postrider::audit::{self, Account, AuditError, Effects, Source};
use postrider::broker::Broker;
use postrider::store::{AppliedIn, Registration};
use postrider_ledger::accounting::Entries;
use serde::Serialize;

use self::watch::{Finding, Watch};
use super::Context;
use crate::desk::consumers::known;
use crate::exit::Exit;
use crate::outboxes;
use crate::output::table;
use crate::wiring::{OnStore, WholeStore, Wired};

/// How long to wait before an account that does not hold is drawn up again.
const PAUSE: Duration = Duration::from_millis(250);

/// It takes nothing of its own.
#[derive(Debug, Args)]
#[command(
    after_help = "The consumers are those that ever started on this store, and every [[consumer]] of the \
    configuration; the events are those of every outbox, in whatever database, that were there when it began. What the ledger has applied is \
    counted from its books. On RabbitMQ the management API tells what is with consumers, some seconds late, so an account that \
    does not hold is drawn up again, for the same events; more may be committed meanwhile. Where the same ones are missing each \
    time for twelve seconds, it names them: exit code 3. Where something moves all the while, it says so: exit code 6, ask again.\n\n\
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
    consumers: Vec<Drawn>,
    holds: bool,
}

/// The last account of one consumer, and what it came to.
#[derive(Debug, Serialize)]
struct Drawn {
    #[serde(flatten)]
    account: Account,
    /// So many were in no place in any draw, and something moved all the while: nobody knows yet whether they are missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    moving: Option<u64>,
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
        Ok(report.exit())
    }
}

/// What is on its way between two places is in neither for a moment, so an account that does not hold is drawn up again for a while,
/// of the same events. One that held once holds: these events were all found, wherever they go from there.
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
    let tenant = config.settings.ledger.tenant()?;
    let books = Entries::new(store, tenant.as_ref());
    let start = clock.monotonic();
    let mut watched = Vec::new();
    for consumer in known(store, &config.own.consumers).await? {
        let account = draw(store, &sources, broker, &books, &consumer).await?;
        watched.push((consumer, Watch::new(account, clock.since(start))));
    }
    while watched.iter().any(|(_, watch)| watch.finding(clock.since(start)).is_none()) {
        clock.sleep(PAUSE).await;
        for (consumer, watch) in &mut watched {
            if watch.finding(clock.since(start)).is_none() {
                let account = draw(store, &sources, broker, &books, consumer).await?;
                watch.again(account, clock.since(start));
            }
        }
    }
    let now = clock.since(start);
    Ok(Report::of(watched.into_iter().map(|(_, watch)| (watch.finding(now), watch.into_account()))))
}

async fn draw<S: WholeStore>(
    store: &S,
    sources: &[Source<S>],
    broker: &Arc<dyn Broker>,
    books: &Entries<'_, S>,
    consumer: &Registration,
) -> Result<Account, AuditError> {
    let effects: Option<&dyn Effects> = match consumer.applied_in {
        AppliedIn::Inbox => None,
        AppliedIn::Books => Some(books),
    };
    audit::account_of(store, sources, broker, consumer, effects).await
}

impl Report {
    fn of(found: impl Iterator<Item = (Option<Finding>, Account)>) -> Self {
        let drawn = |(finding, account): (Option<Finding>, Account)| match finding {
            Some(Finding::Moving { at_least }) => {
                // Nobody is to look for ids that are on their way.
                let account = Account { unaccounted: 0, unaccounted_ids: Vec::new(), ..account };
                Drawn { account, moving: Some(at_least) }
            }
            _ => Drawn { account, moving: None },
        };
        let consumers: Vec<Drawn> = found.map(drawn).collect();
        let holds = consumers.iter().all(|drawn| drawn.account.holds());
        Self { consumers, holds }
    }

    fn exit(&self) -> Exit {
        if self.consumers.iter().any(|drawn| drawn.account.unaccounted > 0) {
            Exit::Unhealthy
        } else if self.holds {
            Exit::Ok
        } else {
            Exit::Partly
        }
    }

    fn for_people(&self) -> String {
        let rows = self.consumers.iter().map(|Drawn { account, moving }| {
            let holds = match moving {
                Some(_) => "still moving; ask again",
                None if account.holds() => "holds",
                None => "DOES NOT HOLD",
            };
            let counts =
                [account.committed, account.applied, account.waiting, account.dead, account.unaccounted];
            let mut row = vec![account.name.clone()];
            row.extend(counts.map(|count| count.to_string()));
            row.push(holds.to_owned());
            row
        });
        let header = ["CONSUMER", "COMMITTED", "APPLIED", "WAITING", "DEAD", "UNACCOUNTED", "ACCOUNT"];
        let told = self.consumers.iter().map(|Drawn { account, moving }| {
            if let Some(at_least) = moving {
                return format!(
                    "\n\nevents of {} were moving all the while: {at_least} or more of them were between two places at each \
                     look. Ask again; what is lost stays when they have come to rest",
                    account.name
                );
            }
            if account.unaccounted_ids.is_empty() {
                return String::new();
            }
            let ids: Vec<_> = account.unaccounted_ids.iter().map(|id| format!("\n  {id}")).collect();
            format!(
                "\n\n{} of these are unaccounted for in {}:{}",
                account.unaccounted,
                account.name,
                ids.concat()
            )
        });
        table(&header, rows) + &told.collect::<String>()
    }
}
