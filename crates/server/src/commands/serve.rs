//! `postrider serve`: declares the topology, sets its policies, and runs the relay, the collectors and the API until it is told to stop.
//!
//! A crash at any point loses nothing: what was not marked is published again, what was not acked is delivered again.

pub(crate) mod api_task;
mod checkpoint_task;
mod connections;
mod gauges_task;
mod ledger_task;
mod migration_task;
mod patient;
mod policies;
mod progress_task;
mod push_task;
mod signals;
mod tls;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use postrider::broker::Broker;
use postrider::dedup::Accelerator;
use postrider::runtime::{Running, Runtime, StartError};
use postrider::store::AppliedIn;
use tokio_util::sync::CancellationToken;

pub(crate) use self::api_task::{ApiTask, Behind, Faces};
use self::ledger_task::LedgerTask;
use self::policies::Policies;
use self::push_task::PushTask;
use self::signals::{Signal, Signals};
use super::Context;
use crate::api::metrics;
use crate::at_work::{Feeds, Relaying};
use crate::config::ledger_consumer;
use crate::exit::Exit;
use crate::logging::say;
use crate::old_buses;
use crate::outboxes::{self, OpenOutbox, house, relay};
use crate::wiring::{self, OnStore, WholeStore, Wired};

/// Which parts run in this process, and where.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    postrider serve\n  \
    postrider serve --roles relay,collector\n  \
    postrider serve --roles consumers\n  \
    postrider serve --roles ledger --listen 127.0.0.1:7071\n  \
    postrider serve --roles api,dashboard --listen 127.0.0.1:0\n\n\
    SIGTERM or Ctrl-C stops it in order: work in flight is finished, for at most shutdown.drain_ms. A second one ends it \
    at once; nothing is lost, some of it is done again. SIGHUP reads the configuration again.")]
pub(crate) struct ServeArgs {
    /// The parts to run [default: all; the ledger where ledger.queue names its queue]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "ROLES")]
    roles: Option<Vec<Role>>,
    /// Where the HTTP API listens, or health and metrics alone where the roles have neither api nor dashboard [default: http.listen;
    /// http.health_listen]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
}

/// A part of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Outbox to broker
    Relay,
    /// Dead letters to their table, operations on them, and the rules of [[triage.rule]]
    Collector,
    /// HTTP
    Api,
    /// The pages for people, at the API's address
    Dashboard,
    /// Job progress to Redis
    Progress,
    /// Deliveries to the endpoints of push subscriptions
    Push,
    /// Events of a queue into the books
    Ledger,
    /// All that takes from queues: push and ledger
    Consumers,
}

impl Role {
    const ALL: [Self; 7] =
        [Self::Relay, Self::Collector, Self::Api, Self::Dashboard, Self::Progress, Self::Push, Self::Ledger];
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Relay => "relay",
            Self::Collector => "collector",
            Self::Api => "api",
            Self::Dashboard => "dashboard",
            Self::Progress => "progress",
            Self::Push => "push",
            Self::Ledger => "ledger",
            Self::Consumers => "consumers",
        })
    }
}

/// The command, on a store.
pub(crate) struct Serve<'a> {
    pub(crate) args: ServeArgs,
    pub(crate) context: &'a Context,
}

impl OnStore for Serve<'_> {
    async fn run<S: WholeStore>(self, wired: Wired<S>) -> anyhow::Result<Exit> {
        let context = self.context;
        let mut signals = Signals::listen()?;
        let _lock = wired.serve_lock()?;
        wired.store.check().await?;
        let measured = metrics::install()?;
        tokio::spawn(metrics::upkeep(measured.clone(), context.clock.clone()));
        if self.runs(Role::Relay) {
            migration_task::begin(&wired.store, context).await?;
        }
        let broker = wired.broker.open().await?;
        let accelerator = wiring::accelerator(context).await;

        let stop = CancellationToken::new();
        let faces = Faces { api: self.runs(Role::Api), dashboard: self.runs(Role::Dashboard) };
        let api = if let Some(listen) = self.listens_at(faces) {
            let mut config = context.config.clone();
            config.settings.http.listen = listen;
            let behind = Behind {
                store: &wired.store,
                broker: &broker,
                accelerator: accelerator.as_ref(),
                metrics: measured,
                config,
                live: context.live.clone(),
                context,
            };
            Some(ApiTask::start(behind, faces, stop.clone()).await?)
        } else {
            None
        };
        let at_work = api.as_ref().map(|api| api.at_work.clone()).unwrap_or_default();
        if self.runs(Role::Relay) {
            at_work.note_relay(Relaying::Starting);
        }
        if self.runs(Role::Ledger) {
            at_work.note_ledger(Feeds::Starting);
        }
        if api.is_some() {
            gauges_task::start(&wired.store, &broker, context, &stop);
        }
        if self.runs(Role::Progress) {
            progress_task::start(&wired.store, context, &stop)?;
        }
        let push = self
            .runs(Role::Push)
            .then(|| PushTask::start(&wired.store, &broker, accelerator.as_ref(), context, &at_work, &stop));
        let mut ledger = if self.runs(Role::Ledger) {
            Some(LedgerTask::prepare(&wired.store, context).await?)
        } else {
            None
        };
        let (mut running, mut feeding) = (None, None);
        loop {
            tokio::select! {
                started = self.start(&wired.store, &broker, accelerator.as_ref()), if running.is_none() => {
                    let started = started?;
                    if let Some(relay) = started.relay() {
                        at_work.note_relay(Relaying::Here(relay.clone()));
                    }
                    running = Some(started);
                    if let Some(ledger) = ledger.take() {
                        feeding = Some(ledger.start(&broker, accelerator.as_ref(), &at_work, &stop).await);
                    }
                    self.say_serving(api.as_ref());
                }
                signal = signals.next() => match signal {
                    Signal::Reload => signals::reload(context, api.as_ref()),
                    Signal::Stop => break,
                },
            }
        }
        let drain = context.config.settings.shutdown.drain();
        say(&format!("stopping: work in flight is finished, for at most {} ms", drain.as_millis()));
        stop.cancel();
        let stopped = async {
            if let Some(api) = api {
                api.finished(drain).await;
            }
            if let Some(push) = push {
                push.finished().await;
            }
            if let Some(feeding) = feeding {
                feeding.finished().await;
            }
            match running {
                Some(running) => running.stop(drain).await,
                None => true,
            }
        };
        tokio::select! {
            drained = stopped => {
                say(if drained { "stopped" } else { "stopped before everything was finished; it is done again" });
                Ok(Exit::Ok)
            }
            () = signals.stop_again() => {
                say("stopped at once; what was not finished is done again");
                Ok(Exit::Interrupted)
            }
        }
    }
}

impl Serve<'_> {
    /// Where this process listens. One without API and dashboard answers for its health and metrics where it is told to, and nowhere
    /// else: several of them on one machine must not want the same port.
    fn listens_at(&self, faces: Faces) -> Option<SocketAddr> {
        let http = &self.context.config.settings.http;
        if faces.any() || self.args.listen.is_some() { Some(http.listen) } else { http.health_listen.0 }
    }

    fn say_serving(&self, api: Option<&ApiTask>) {
        let roles = Role::ALL.iter().filter(|role| self.runs(**role)).map(Role::to_string);
        say(&format!("serving {}", roles.collect::<Vec<_>>().join(", ")));
        if let Some(dashboard) = api.and_then(|api| api.dashboard.as_ref()) {
            say(&format!("dashboard at {dashboard}"));
        }
    }

    fn runs(&self, role: Role) -> bool {
        let wanted = role != Role::Ledger || !self.context.config.settings.ledger.queue.is_empty();
        match &self.args.roles {
            Some(roles) => {
                let consumes = matches!(role, Role::Push | Role::Ledger) && wanted;
                roles.contains(&role) || (consumes && roles.contains(&Role::Consumers))
            }
            None => wanted,
        }
    }

    /// Declares and starts. Waits for a broker that is away: the API takes events meanwhile.
    async fn start<S: WholeStore>(
        &self,
        store: &S,
        broker: &Arc<dyn Broker>,
        accelerator: Option<&Accelerator>,
    ) -> anyhow::Result<Running<S>> {
        let config = &self.context.config;
        let policies = Policies::of(self.context);
        let mut pause = Duration::from_secs(1);
        loop {
            let standings = match store.migrations_of_buses().await {
                Err(error) if error.is_transient() => {
                    self.context.clock.sleep(pause).await;
                    continue;
                }
                standings => standings?,
            };
            let topology = old_buses::without_removed(&config.own.layout.topology, &standings);
            policies.set(&topology).await;
            let clock = self.context.clock.clone();
            let relay = self.runs(Role::Relay).then(|| relay(config));
            let mut runtime = Runtime::new(store.clone(), broker.clone(), clock)
                .topology(topology)
                .relay(relay)
                .events_from(config.own.layout.exchange.clone())
                .house(house(config))
                .inbox_keeps(config.settings.inbox.keep());
            if let Some(accelerator) = accelerator {
                runtime = runtime.accelerator(accelerator.clone());
            }
            if self.runs(Role::Ledger) {
                runtime = runtime.beside(ledger_consumer()?, ledger_task::queue(config)?, AppliedIn::Books);
            }
            let further = outboxes::open(store, config, &self.context.clock)?.into_iter().skip(1);
            let further = further.inspect(OpenOutbox::tell_if_unreadable);
            runtime = further.map(|outbox| outbox.further(config)).fold(runtime, Runtime::outbox);
            if self.runs(Role::Collector) {
                runtime = config.own.layout.collected().into_iter().fold(runtime, Runtime::collect);
                runtime = config.rules.iter().cloned().fold(runtime, Runtime::rule).operations();
            } else if self.runs(Role::Push) {
                // The dead letters of subscriptions' own queues are collected here, and who collects takes up what people do with them.
                runtime = runtime.operations();
            }
            match runtime.start().await {
                Err(error) if may_pass(&error) => {
                    tracing::warn!(%error, "not started yet; events wait in the outbox, trying again in {pause:?}");
                    self.context.clock.sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(30));
                }
                started => return Ok(started?),
            }
        }
    }
}

fn may_pass(error: &StartError) -> bool {
    match error {
        StartError::Store(error) => error.is_transient(),
        StartError::Broker(error) => error.is_transient(),
        StartError::Twice(_) => false,
    }
}
