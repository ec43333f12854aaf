//! `postrider doctor`: every connection, schema, queue and clock, a line each, with what to do.

mod forgotten;
mod handling;
mod redis;

use std::time::Duration;

use clap::Args;
use postrider::broker::{Broker, BrokerErrorKind};
use postrider::consumer::ConsumerConfig;
use postrider::rabbitmq::Operator;
use postrider::rabbitmq::management::ManagementError;
use postrider::store::{StoreError, StoreErrorKind, StoredSubscription};
use postrider::topology::{ConsumerName, QueueName, Topology};
use serde::Serialize;

use super::Context;
use crate::exit::Exit;
use crate::wiring::{self, BrokerDoor, OnStore, WholeStore, Wired};
use crate::{old_buses, outboxes};

/// It takes nothing of its own.
#[derive(Debug, Args)]
#[command(after_help = "Changes nothing. Exit code 3 if something fails; a warning alone is no failure.\n\n\
    Examples:\n  postrider doctor\n  postrider doctor --config staging.toml --json")]
pub(crate) struct DoctorArgs {}

/// Clocks further apart than this are worth a word; leases are longer.
const CLOCK_WARN: Duration = Duration::from_secs(2);
/// Clocks further apart than this break schedules and token expiry.
const CLOCK_FAIL: Duration = Duration::from_mins(1);

/// So many names of a list are read by people.
const NAMED: usize = 5;

/// One line of the report.
#[derive(Debug, Serialize)]
struct Line {
    check: &'static str,
    status: Status,
    detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    Warn,
    Fail,
}

#[derive(Default)]
struct Report(Vec<Line>);

impl Report {
    fn ok(&mut self, check: &'static str, detail: impl Into<String>) {
        self.0.push(Line { check, status: Status::Ok, detail: detail.into() });
    }
    fn warn(&mut self, check: &'static str, detail: impl Into<String>) {
        self.0.push(Line { check, status: Status::Warn, detail: detail.into() });
    }
    fn fail(&mut self, check: &'static str, detail: impl Into<String>) {
        self.0.push(Line { check, status: Status::Fail, detail: detail.into() });
    }
}

/// Looks at everything, whatever fails on the way.
pub(crate) async fn run(context: &Context) -> anyhow::Result<Exit> {
    let mut report = Report::default();
    if let Err(error) = wiring::open(context, Examine { context, report: &mut report }).await {
        report.fail("store", error.to_string());
        if let Some(door) = wiring::broker_alone(context) {
            examine_broker(&door, &context.config.own.layout.topology, context, &mut report).await;
        }
    }
    self::redis::examine(context, &mut report).await;
    examine_http(context, &mut report);
    let healthy = report.0.iter().all(|line| line.status != Status::Fail);
    context.output.rows(&["STATUS", "CHECK", "DETAIL"], &report.0, |line| {
        let status = match line.status {
            Status::Ok => "ok",
            Status::Warn => "warn",
            Status::Fail => "FAIL",
        };
        vec![status.to_owned(), line.check.to_owned(), line.detail.clone()]
    })?;
    Ok(if healthy { Exit::Ok } else { Exit::Unhealthy })
}

struct Examine<'a> {
    context: &'a Context,
    report: &'a mut Report,
}

impl OnStore for Examine<'_> {
    async fn run<S: WholeStore>(self, wired: Wired<S>) -> anyhow::Result<Exit> {
        examine_store(&wired.store, self.context, self.report).await;
        examine_outboxes(&wired.store, self.context, self.report).await;
        let standings = wired.store.migrations_of_buses().await.unwrap_or_default();
        let subscriptions = wired.store.subscriptions().await.unwrap_or_default();
        examine_subscriptions(&subscriptions, self.context, self.report);
        let layout = self.context.config.layout_with(&subscriptions);
        let wanted = old_buses::without_removed(&layout.topology, &standings);
        examine_broker(&wired.broker, &wanted, self.context, self.report).await;
        Ok(Exit::Ok)
    }
}

/// Whether the configuration still allows the push subscriptions that were made beside it.
fn examine_subscriptions(stored: &[StoredSubscription], context: &Context, report: &mut Report) {
    for StoredSubscription { subscription, .. } in stored {
        let configured = context.config.push.iter().any(|one| one.subscription.name == subscription.name);
        if let Some(why) = context.config.keeps_from(subscription).filter(|_| !configured) {
            report.warn("push", format!("{why}; until then nothing is pushed to it, and its events wait"));
        }
    }
}

async fn examine_store<S: WholeStore>(store: &S, context: &Context, report: &mut Report) {
    let before = context.clock.now();
    match store.facts().await {
        Ok(facts) => {
            let after = context.clock.now();
            report.ok("store", format!("{} answers", facts.product));
            for warning in facts.warnings {
                report.warn("store settings", warning);
            }
            // Fair to a slow answer: the database read its clock somewhere between our two readings.
            let (early, late) = (before.duration_since(facts.now), facts.now.duration_since(after));
            let apart = Duration::try_from(early.max(late)).unwrap_or(Duration::ZERO);
            let detail = format!("the store's clock and this machine's are {} ms apart", apart.as_millis());
            match apart {
                _ if apart > CLOCK_FAIL => {
                    report.fail("clock", format!("{detail}; set one of them right (NTP)"));
                }
                _ if apart > CLOCK_WARN => report.warn("clock", format!("{detail}; check that both use NTP")),
                _ => report.ok("clock", detail),
            }
        }
        Err(error) => report.fail("store", advice(&error)),
    }
    match store.findings().await {
        Ok(findings) => findings.into_iter().for_each(|finding| report.warn("store setup", finding)),
        Err(error) => report.warn("store setup", advice(&error)),
    }
    match store.check().await {
        Ok(()) => report.ok("schema", "up to date"),
        Err(error) => report.fail("schema", advice(&error)),
    }
}

/// The outboxes beside the first: whether their databases answer, have the schema, and the table.
async fn examine_outboxes<S: WholeStore>(store: &S, context: &Context, report: &mut Report) {
    let open = match outboxes::open(store, &context.config, &context.clock) {
        Ok(open) => open,
        Err(error) => return report.fail("outboxes", error.message),
    };
    for outbox in open.into_iter().skip(1) {
        let label = &outbox.choice.label;
        let there = match outbox.store.check().await {
            Ok(()) => outbox.store.backlog().await,
            Err(error) => Err(error),
        };
        match there {
            Ok(backlog) => report.ok("outboxes", format!("{label} is there; {} events are due", backlog.due)),
            Err(error) => report.fail("outboxes", format!("{label}: {}", advice(&error))),
        }
    }
}

fn advice(error: &StoreError) -> String {
    match error.kind {
        StoreErrorKind::Schema if !["db migrate", "db adopt"].iter().any(|to| error.message.contains(to)) => {
            format!("{}; run `postrider db migrate`", error.message)
        }
        _ => error.message.clone(),
    }
}

async fn examine_broker(door: &BrokerDoor, wanted: &Topology, context: &Context, report: &mut Report) {
    let broker = match door.look().await {
        Ok(broker) => broker,
        Err(error) => return report.fail("broker", error.to_string()),
    };
    match broker.ping().await {
        Ok(()) => {
            report.ok("broker", "answers");
            examine_queues(broker.as_ref(), wanted, context, report).await;
            examine_management(wanted, context, report).await;
        }
        Err(error) => report.fail("broker", error.to_string()),
    }
    broker.close().await;
}

/// Which queues of the configuration the broker has. Asks for each, declares none.
async fn examine_queues(broker: &dyn Broker, wanted: &Topology, context: &Context, report: &mut Report) {
    let queues = &wanted.queues;
    if queues.len() == context.config.own.layout.unroutable.len() {
        return report.warn(
            "topology",
            "no [[queue]] is configured; unless other services bind queues, nothing is routed",
        );
    }
    let mut missing = Vec::new();
    for queue in queues {
        match broker.depth(&queue.name).await {
            Ok(_) => {}
            Err(error) if error.kind == BrokerErrorKind::NotFound => missing.push(queue.name.to_string()),
            Err(error) => return report.fail("topology", format!("{}: {error}", queue.name)),
        }
    }
    match (queues.len(), missing.len()) {
        (all, 0) => report.ok("topology", format!("all {all} queues are there")),
        (all, gone) => {
            // Programs get all of them.
            let names = if context.output.is_for_people() { first_of(&missing) } else { missing.join(", ") };
            let told =
                format!("{gone} of {all} queues are not there: {names}; `postrider serve` declares them");
            report.warn("topology", told);
        }
    }
}

/// The first few names, and how many there are beside them.
fn first_of(names: &[String]) -> String {
    let shown = names[..names.len().min(NAMED)].join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// What AMQP cannot tell: the version, and whether policies can be set. Everything works without it, less safely.
async fn examine_management(wanted: &Topology, context: &Context, report: &mut Report) {
    let operator = match wiring::operator(context, None) {
        Ok(Some(operator)) => operator,
        Ok(None) => return,
        Err(error) => return report.fail("management", error.to_string()),
    };
    let api = operator.management();
    let looked = async { Ok::<_, ManagementError>((api.overview().await?, api.whoami().await?)) };
    match looked.await {
        Ok((overview, me)) => {
            examine_observed(&operator, wanted, context, report).await;
            let detail =
                format!("RabbitMQ {} at {} answers to {}", overview.rabbitmq_version, api.places(), me.name);
            if me.may_set_policies() {
                report.ok("management", format!("{detail}, who may set policies"));
            } else {
                report.warn(
                    "management",
                    format!("{detail}, who may not set policies; give it the tag `policymaker`, or have somebody else apply"),
                );
            }
            examine_drift(&operator, wanted, report).await;
        }
        Err(error) => report
            .warn("management", format!("{error}; without it policies are not set, and drift is not seen")),
    }
}

/// Whether handlers have the time they may take, and whether dead letters lie where nobody takes them.
async fn examine_observed(operator: &Operator, wanted: &Topology, context: &Context, report: &mut Report) {
    let Ok(broker) = operator.observe().await else { return };
    for told in forgotten::forgotten(wanted, &broker) {
        report.warn("dead letters", told);
    }
    let consumers = context.config.consuming();
    let short = |(name, queue, config): &(ConsumerName, QueueName, ConsumerConfig)| {
        handling::too_short(name.as_str(), queue.as_str(), config, &broker)
    };
    let found: Vec<_> = consumers.iter().filter_map(short).collect();
    if found.is_empty() && !consumers.is_empty() {
        report.ok(
            "handlers",
            "RabbitMQ waits longer for each than it may take, unless rabbitmq.conf says otherwise",
        );
    }
    for told in found {
        report.warn("handlers", told);
    }
}

/// Whether the broker has the topology as it is configured, policies included.
async fn examine_drift(operator: &Operator, wanted: &Topology, report: &mut Report) {
    match operator.plan(wanted, false).await {
        Ok(plan) if plan.is_empty() && plan.unset.is_empty() => {
            report.ok("drift", "the broker has the topology as it is configured");
        }
        Ok(plan) => {
            let left = super::topology::counts(&plan);
            // What is left may be nothing that this user's apply would do.
            let by = if plan.is_empty() {
                "`apply` by a user with the tag `policymaker` does it"
            } else {
                "`apply` does it"
            };
            report.warn("drift", format!("{left}; `postrider topology plan` shows it, {by}"));
        }
        Err(error) => report.warn("drift", error.to_string()),
    }
}

fn examine_http(context: &Context, report: &mut Report) {
    let http = &context.config.settings.http;
    if http.listen.ip().is_loopback() {
        report.ok("http", format!("{} is on this machine alone", http.listen));
    } else if http.tls == crate::config::Tls::Off {
        report.fail(
            "http",
            format!(
                "{} is open to other machines without TLS; set http.tls = \"proxy\" behind one",
                http.listen
            ),
        );
    } else {
        report.ok(
            "http",
            format!("{} is open to other machines, behind a proxy with TLS, for tokens only", http.listen),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_cut_after_the_first_few() {
        let names = |count: usize| (1..=count).map(|number| format!("q{number}")).collect::<Vec<_>>();
        assert_eq!(first_of(&names(2)), "q1, q2");
        assert_eq!(first_of(&names(5)), "q1, q2, q3, q4, q5");
        assert_eq!(first_of(&names(109)), "q1, q2, q3, q4, q5 and 104 more");
    }
}
