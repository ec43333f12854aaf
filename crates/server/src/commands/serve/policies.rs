//! The policies of the topology, set before anything is published: AMQP declares queues, but only the management API makes
//! their dead-lettering safe and keeps what no queue wants.
//!
//! Only what is missing is set. Nothing is removed and no queue is replaced here: that is `postrider topology apply`.

use std::fmt::Display;

use postrider::rabbitmq::Operator;
use postrider::topology::Topology;
use postrider::topology::plan::Step;

use crate::commands::Context;
use crate::wiring;

/// Who sets policies; nobody where the configuration leaves them to others, or no management API is known.
pub(super) struct Policies(Option<Operator>);

impl Policies {
    /// As the configuration says.
    pub(super) fn of(context: &Context) -> Self {
        if !context.config.settings.broker.set_policies {
            return Self(None);
        }
        Self(wiring::operator(context, None).unwrap_or_else(|error| {
            unprotected(&error);
            None
        }))
    }

    /// Sets what is missing, or says what that leaves unprotected. Nothing waits for it: events are safe in the outbox.
    pub(super) async fn set(&self, topology: &Topology) {
        let Some(operator) = self.0.as_ref().filter(|_| !topology.policies(true).is_empty()) else { return };
        match missing(operator, topology).await {
            Ok(set) if set.is_empty() => {}
            Ok(set) => {
                tracing::info!(policies = %set.join(", "), "set policies that the broker did not have");
            }
            Err(error) => unprotected(&error),
        }
    }
}

async fn missing(operator: &Operator, topology: &Topology) -> anyhow::Result<Vec<String>> {
    let mut plan = operator.plan(topology, false).await?;
    plan.steps.retain(|step| matches!(step, Step::SetPolicy { .. }));
    operator.apply(&plan, std::time::Duration::ZERO, &|_| {}).await?;
    Ok(plan.steps.iter().map(Step::subject).collect())
}

fn unprotected(error: &dyn Display) {
    tracing::warn!(
        %error,
        "policies are not set: until they are, dead letters may be lost while their target is away, and what no queue wants \
         vanishes. `postrider topology apply` sets them; broker.set_policies = false says that somebody else does"
    );
}
