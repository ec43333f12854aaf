//! A broker's topology, looked at and changed: what `postrider topology plan`, `apply`, `drift` and `export` do.

use std::time::Duration;

use super::config::RabbitMqConfig;
use super::desk::Desk;
use super::line::Line;
use super::management::{Management, ManagementConfig, ManagementError, ManagementErrorKind};
use super::replace::Replacement;
use super::{dial, link};
use crate::broker::{BrokerError, BrokerErrorKind};
use crate::clock::Clock;
use crate::topology::observed::Observed;
use crate::topology::plan::{self, Plan, Step};
use crate::topology::{Queue, Topology};

/// An interrupted replacement is gone on with for this long, while the broker is away.
const AWAY: Duration = Duration::from_mins(3);

/// Looks at a broker's virtual host and changes it.
pub struct Operator {
    config: RabbitMqConfig,
    management: Management,
    clock: Clock,
    vhost: String,
}

/// How far an apply came before it failed.
#[derive(Debug, thiserror::Error)]
#[error("{subject}: {source}")]
pub struct ApplyError {
    /// Steps that were carried out.
    pub done: usize,
    /// Steps in all.
    pub of: usize,
    /// What failed.
    pub subject: String,
    /// Why.
    pub source: BrokerError,
}

impl Operator {
    /// For the virtual host in the broker's URL. Connects to nothing yet.
    pub fn new(
        config: RabbitMqConfig,
        management: &ManagementConfig,
        clock: Clock,
    ) -> Result<Self, BrokerError> {
        let vhost = config.vhost()?;
        Ok(Self { management: Management::new(management)?, config, clock, vhost })
    }

    /// The management API.
    pub fn management(&self) -> &Management {
        &self.management
    }

    /// The virtual host.
    pub fn vhost(&self) -> &str {
        &self.vhost
    }

    /// Everything in the virtual host.
    pub async fn observe(&self) -> Result<Observed, ManagementError> {
        let api = &self.management;
        let (overview, me, vhosts) = (api.overview().await?, api.whoami().await?, api.vhosts().await?);
        let vhost = vhosts.into_iter().find(|vhost| vhost.name == self.vhost);
        let mut observed = Observed {
            version: overview.rabbitmq_version,
            vhost: self.vhost.clone(),
            vhost_exists: vhost.is_some(),
            default_queue_type: vhost.and_then(|vhost| vhost.default_queue_type),
            may_set_policies: me.may_set_policies(),
            ..Observed::default()
        };
        if !observed.vhost_exists {
            // Without access to it, it is not listed either; asking for its queues tells the two apart.
            return match api.exchanges(&self.vhost).await {
                Err(error) if error.kind == ManagementErrorKind::NotFound => Ok(observed),
                Err(error) => Err(error),
                Ok(_) => Ok(observed),
            };
        }
        let (exchanges, queues, bindings, policies) = tokio::try_join!(
            api.exchanges(&self.vhost),
            api.queues(&self.vhost),
            api.bindings(&self.vhost),
            api.policies(&self.vhost),
        )?;
        (observed.exchanges, observed.queues, observed.policies) = (exchanges, queues, policies);
        observed.bindings = bindings.into_iter().filter(|binding| !binding.source.is_empty()).collect();
        Ok(observed)
    }

    /// What has to be done. The messages in queues that have to be replaced are counted now, not by statistics.
    pub async fn plan(&self, wanted: &Topology, prune: bool) -> Result<Plan, BrokerError> {
        let mut observed = self.observe().await?;
        let first = plan::diff(wanted, &observed, prune);
        if first.count(plan::Sign::Replace) == 0 {
            return Ok(first);
        }
        let line = self.line().await?;
        let mut desk = Desk::new(&line, self.config.limits.call);
        for queue in &mut observed.queues {
            let replaced = |step: &Step| match step {
                Step::ReplaceQueue { queue: wanted, .. } | Step::FinishReplacing { queue: wanted, .. } => {
                    queue.name == wanted.name.as_str() || queue.name == plan::aside_of(&wanted.name)
                }
                _ => false,
            };
            if first.steps.iter().any(replaced)
                && let Ok(seen) = desk.look(&queue.name).await
            {
                queue.messages = Some(seen.ready + queue.messages_unacknowledged.unwrap_or(0));
            }
        }
        desk.close().await;
        line.say_goodbye(Duration::from_secs(2)).await;
        Ok(plan::diff(wanted, &observed, prune))
    }

    /// Carries out a plan, step by step. Every step can be done again: after an error, plan and apply again.
    ///
    /// `patience` is how long consumers may take to settle what they have of a queue that is replaced; `tell` is told what
    /// happens.
    pub async fn apply(
        &self,
        plan: &Plan,
        patience: Duration,
        tell: &(dyn Fn(String) + Send + Sync),
    ) -> Result<(), ApplyError> {
        // For every step that asks over AMQP; a replacement has its own, which its lock goes with.
        let mut line = None;
        let mut applied = Ok(());
        for (done, step) in plan.steps.iter().enumerate() {
            if let Err(source) = self.carry_out(step, &mut line, patience, tell).await {
                applied = Err(ApplyError { done, of: plan.steps.len(), subject: step.subject(), source });
                break;
            }
        }
        if let Some(line) = line {
            line.say_goodbye(Duration::from_secs(2)).await;
        }
        applied
    }

    async fn carry_out(
        &self,
        step: &Step,
        line: &mut Option<Line>,
        patience: Duration,
        tell: &(dyn Fn(String) + Send + Sync),
    ) -> Result<(), BrokerError> {
        let api = &self.management;
        match step {
            Step::CreateVhost { name } => {
                api.create_vhost(name).await?;
                Ok(api.grant(name, &self.config.user()?).await?)
            }
            Step::SetPolicy { policy, .. } => Ok(api.set_policy(&self.vhost, policy).await?),
            Step::RemovePolicy { name, .. } => Ok(api.delete_policy(&self.vhost, name).await?),
            Step::RemoveBinding { binding } => Ok(api.unbind(&self.vhost, binding).await?),
            Step::ReplaceQueue { queue, .. } | Step::FinishReplacing { queue, .. } => {
                self.replace(queue, patience, tell).await
            }
            Step::AddExchange { .. }
            | Step::AddQueue { .. }
            | Step::AddBinding { .. }
            | Step::RemoveQueue { .. } => {
                let usable = line.take().filter(Line::is_up);
                let line = line.insert(match usable {
                    Some(line) => line,
                    None => self.line().await?,
                });
                let mut desk = Desk::new(line, self.config.limits.call);
                let done = match step {
                    Step::AddExchange { exchange } => desk.exchange(exchange).await,
                    Step::AddQueue { queue } => desk.queue(queue).await,
                    Step::AddBinding { binding } => desk.bind(binding).await,
                    Step::RemoveQueue { name, .. } => self.remove(&mut desk, name).await,
                    _ => Ok(()),
                };
                desk.close().await;
                done
            }
        }
    }

    /// Deletes a wait queue of an earlier ladder, if nothing is in it. Only consumers of an earlier configuration publish to it.
    async fn remove(&self, desk: &mut Desk<'_>, name: &str) -> Result<(), BrokerError> {
        let waiting = desk.look(name).await?.ready;
        if waiting > 0 {
            return Err(BrokerError::new(
                BrokerErrorKind::Mismatch,
                format!(
                    "{waiting} messages are still in it; it was left alone: apply again when their time is up"
                ),
            ));
        }
        desk.delete_queue(name).await.map(|_| ())
    }

    /// Replaces a queue, going on for a while when the broker or a node of it goes away.
    async fn replace(
        &self,
        wanted: &Queue,
        patience: Duration,
        tell: &(dyn Fn(String) + Send + Sync),
    ) -> Result<(), BrokerError> {
        let mut away_since = None;
        let mut failed = 0;
        loop {
            let started = self.clock.monotonic();
            let error = match self.replace_once(wanted, patience, tell).await {
                Ok(()) => return Ok(()),
                Err(error) if error.is_transient() => error,
                Err(error) => return Err(error),
            };
            if self.clock.since(started) > AWAY {
                // It went well for long enough to be another mishap.
                (away_since, failed) = (None, 0);
            }
            let since = *away_since.get_or_insert_with(|| self.clock.monotonic());
            if self.clock.since(since) > AWAY {
                return Err(error);
            }
            tell(format!("queue {}: {error}; going on", wanted.name));
            self.clock.sleep(link::pause(failed, self.clock.random())).await;
            failed = (failed + 1).min(5);
        }
    }

    async fn replace_once(
        &self,
        wanted: &Queue,
        patience: Duration,
        tell: &(dyn Fn(String) + Send + Sync),
    ) -> Result<(), BrokerError> {
        let broker = self.observe().await?;
        let line = self.line().await?;
        let replacement = Replacement {
            line: &line,
            management: &self.management,
            clock: &self.clock,
            broker: &broker,
            wanted,
            limit: self.config.limits.call,
            patience,
            tell,
        };
        let done = replacement.run().await;
        line.say_goodbye(Duration::from_secs(2)).await;
        done
    }

    /// A connection of its own to the first node that answers.
    async fn line(&self) -> Result<Line, BrokerError> {
        let mut why = None;
        for node in self.config.nodes()? {
            let name = format!("{} topology", self.config.name);
            match dial::dial(&node, &self.config.tls, &name, self.config.limits.connect, 0).await {
                Ok(connection) => return Ok(Line::new(connection, node.place)),
                Err(error) => why = Some(error),
            }
        }
        Err(why
            .unwrap_or_else(|| BrokerError::new(BrokerErrorKind::Unavailable, "no RabbitMQ is configured")))
    }
}
