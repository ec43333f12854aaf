//! What stands beside a queue while it is replaced: the queue that holds its messages, the exchanges that lead there and
//! back, and the policies that shield the one and close the other.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{ASIDE, REGISTERED, Replacement, SILENCE};
use crate::broker::{BrokerError, BrokerErrorKind, Headers};
use crate::rabbitmq::desk::{self, Desk};
use crate::topology::observed::{self, Policy};
use crate::topology::{AppliesTo, Argument, Exchange, ExchangeKind, ExchangeName, plan};

/// What is behind the name of a queue that is made for a moment.
const TRIAL: &str = ".postrider-trial";

impl Replacement<'_> {
    /// Declares the new queue under another name first: what RabbitMQ will not have, it refuses while the old one is untouched.
    pub(super) async fn try_out(&self, desk: &mut Desk<'_>) -> Result<(), BrokerError> {
        // One may be left of an attempt that was interrupted.
        self.clear_trial(desk).await?;
        desk.raw_queue(&self.trial(), desk::table(self.wanted.declared_arguments())).await?;
        self.clear_trial(desk).await
    }

    /// Deletes what [`Self::try_out`] made; what is not there is fine to RabbitMQ. Done again at the end: a node that was starting when the
    /// queue was deleted can bring it back (seen on 4.0.5).
    pub(super) async fn clear_trial(&self, desk: &mut Desk<'_>) -> Result<(), BrokerError> {
        desk.delete_queue(&self.trial()).await.map(|_| ())
    }

    fn trial(&self) -> String {
        format!("{}{TRIAL}", self.name())
    }

    /// Makes the queue beside, and shields it from other people's policies, which could expire or drop what it holds.
    pub(super) async fn prepare_aside(&self, desk: &mut Desk<'_>) -> Result<(), BrokerError> {
        let aside = self.aside();
        if aside.len() > 255 {
            let told =
                format!("{} is too long a name to be replaced: {ASIDE} does not fit behind it", self.name());
            return Err(BrokerError::new(BrokerErrorKind::Mismatch, told));
        }
        if self.broker.may_set_policies {
            let shield = self.policy(
                &format!("postrider.queue.{aside}"),
                &aside,
                json!({"overflow": "reject-publish"}),
            );
            self.management.set_policy(self.vhost(), &shield).await?;
        }
        if self.management.queue(self.vhost(), &aside).await?.is_none() {
            desk.raw_queue(&aside, self.aside_arguments()).await?;
            self.clock.sleep(REGISTERED).await;
        }
        self.check_shield(&aside).await?;
        self.prepare_exchange(desk, ASIDE, &aside).await
    }

    /// A quorum queue from which nothing expires by itself. What carries a time of its own dies to where it would have died.
    fn aside_arguments(&self) -> Headers {
        let mut arguments: BTreeMap<String, Argument> = BTreeMap::new();
        let mut set = |name: &str, value: Argument| _ = arguments.insert(name.to_owned(), value);
        set("x-queue-type", "quorum".into());
        set("x-delivery-limit", Argument::Int(1_000_000));
        if let Some(target) = self.wanted.effective_dead_letter() {
            set("x-dead-letter-exchange", target.exchange.as_str().into());
            if let Some(key) = &target.routing_key {
                set("x-dead-letter-routing-key", key.as_str().into());
            }
            set("x-dead-letter-strategy", "at-least-once".into());
            set("x-overflow", "reject-publish".into());
        }
        desk::table(arguments)
    }

    /// Without the right to set policies, somebody's policy may reach the queue beside.
    async fn check_shield(&self, aside: &str) -> Result<(), BrokerError> {
        let exists = self.management.queue(self.vhost(), aside).await?;
        let policy = exists.map(|queue| queue.effective_policy_definition).unwrap_or_default();
        let harmful = ["message-ttl", "expires", "max-length", "max-length-bytes"]
            .into_iter()
            .find(|key| policy.contains_key(*key));
        match harmful {
            Some(key) if !self.broker.may_set_policies => Err(BrokerError::new(
                BrokerErrorKind::Denied,
                format!(
                    "a policy sets {key} on {aside}, which could lose messages that wait there; nothing was moved: use a user \
                     with the tag `policymaker`, or narrow that policy"
                ),
            )),
            _ => Ok(()),
        }
    }

    pub(super) async fn prepare_exchange(
        &self,
        desk: &mut Desk<'_>,
        end: &str,
        queue: &str,
    ) -> Result<(), BrokerError> {
        let name = self.exchange(end);
        let exchange = ExchangeName::new(&name)
            .map_err(|error| BrokerError::new(BrokerErrorKind::Mismatch, error.to_string()))?;
        desk.exchange(&Exchange::new(exchange, ExchangeKind::Fanout)).await?;
        desk.raw_bind(queue, &name, "").await
    }

    /// Lets nothing more into the old queue, where that is possible: who publishes by its name is told no, and tries again.
    /// A queue that drops its oldest when it is full would lose them instead, so that one stays open.
    ///
    /// RabbitMQ applies one policy only, so what the queue's own says is carried along: its consumers may still reject what they
    /// have, and without a dead-letter target that is gone.
    pub(super) async fn close(&self, exists: &observed::Queue) -> Result<bool, BrokerError> {
        let overflow = exists.arguments.get("x-overflow").and_then(Value::as_str);
        if !self.broker.may_set_policies || !matches!(overflow, None | Some("reject-publish")) {
            return Ok(false);
        }
        let own = plan::applied(self.broker, self.name(), AppliesTo::Queues, exists.kind());
        let mut full = own.map(|policy| policy.definition.clone()).unwrap_or_default();
        full.extend([("max-length".to_owned(), json!(0)), ("overflow".to_owned(), json!("reject-publish"))]);
        let policy = self.policy(&self.closing(), self.name(), json!(full));
        self.management.set_policy(self.vhost(), &policy).await?;
        Ok(true)
    }

    pub(super) async fn reopen(&self) -> Result<(), BrokerError> {
        Ok(self.management.delete_policy(self.vhost(), &self.closing()).await?)
    }

    /// Opens the queue that has the name now. As long as the management API is away what is held stays held, because it would be lost
    /// otherwise, but for no longer than consumers may take.
    pub(super) async fn reopen_in_the_end(&self) -> Result<(), BrokerError> {
        let since = self.clock.monotonic();
        loop {
            match self.reopen().await {
                Err(error) if error.is_transient() && self.clock.since(since) < self.patience => {
                    self.clock.sleep(SILENCE).await;
                }
                answer => return answer,
            }
        }
    }

    fn closing(&self) -> String {
        format!("postrider.closing.{}", self.wanted.name)
    }

    /// Above all policies that there are, for one queue.
    fn policy(&self, name: &str, queue: &str, definition: Value) -> Policy {
        let highest = self.broker.policies.iter().map(|policy| policy.priority).max().unwrap_or(0);
        Policy {
            name: name.to_owned(),
            pattern: format!("^{}$", regex::escape(queue)),
            apply_to: "queues".to_owned(),
            priority: highest.saturating_add(100),
            definition: serde_json::from_value(definition).unwrap_or_default(),
        }
    }
}
