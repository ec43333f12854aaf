//! The policies of the topology, set before anything is published: AMQP declares queues, but only the management API makes
//! their dead-lettering safe and keeps what no queue wants.
//!
//! Only what is missing is set. Nothing is removed and no queue is replaced here: that is `postrider topology apply`.

use postrider::topology::plan::Step;

use crate::commands::Context;
use crate::wiring;

/// Sets what is missing, or says what that leaves unprotected. Nothing waits for it: events are safe in the outbox.
pub(super) async fn set(context: &Context) {
    let topology = &context.config.own.layout.topology;
    if !context.config.settings.broker.set_policies || topology.policies(true).is_empty() {
        return;
    }
    match missing(context).await {
        Ok(set) if set.is_empty() => {}
        Ok(set) => tracing::info!(policies = %set.join(", "), "set policies that the broker did not have"),
        Err(error) => tracing::warn!(
            %error,
            "policies are not set: until they are, dead letters may be lost while their target is away, and what no queue wants \
             vanishes. `postrider topology apply` sets them; broker.set_policies = false says that somebody else does"
        ),
    }
}

async fn missing(context: &Context) -> anyhow::Result<Vec<String>> {
    let Some(operator) = wiring::operator(context, None)? else { return Ok(Vec::new()) };
    let mut plan = operator.plan(&context.config.own.layout.topology, false).await?;
    plan.steps.retain(|step| matches!(step, Step::SetPolicy { .. }));
    operator.apply(&plan, std::time::Duration::ZERO, &|_| {}).await?;
    Ok(plan.steps.iter().map(Step::subject).collect())
}
