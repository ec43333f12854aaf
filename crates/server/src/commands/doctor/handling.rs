//! Whether RabbitMQ gives handlers the time they may take: a delivery that is not settled within `consumer_timeout` closes its channel,
//! and everything in hand comes again.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider::consumer::ConsumerConfig;
use postrider::topology::observed::Observed;
use serde_json::Value;

/// RabbitMQ's own, since 3.8.17, where neither a policy nor an argument says otherwise. rabbitmq.conf may; no API tells.
const USUAL: Duration = Duration::from_mins(30);

/// One consumer that cannot take the time it may: what is the matter, and what to do.
pub(super) fn too_short(
    consumer: &str,
    queue: &str,
    config: &ConsumerConfig,
    broker: &Observed,
) -> Option<String> {
    let (limit, said) = timeout_of(queue, broker);
    let longest = longest_in_hand(config);
    (limit <= longest).then(|| {
        format!(
            "a delivery may be in hand of {consumer} for {} s (handler_timeout, and its turn among prefetch), and RabbitMQ takes it \
             back after {} s ({said}); set a policy with consumer-timeout for {queue}, raise consumer_timeout in rabbitmq.conf, or \
             lower handler_timeout or prefetch",
            longest.as_secs(),
            limit.as_secs(),
        )
    })
}

/// How long a delivery waits for its turn and is handled, if every attempt takes as long as it may.
fn longest_in_hand(config: &ConsumerConfig) -> Duration {
    let rounds = usize::from(config.prefetch).div_ceil(config.concurrency.min.max(1));
    config.handler_limit.saturating_mul(u32::try_from(rounds).unwrap_or(u32::MAX))
}

/// What holds for a queue, and who says so. A policy goes before an argument only where it is shorter.
fn timeout_of(queue: &str, broker: &Observed) -> (Duration, &'static str) {
    let Some(found) = broker.queues.iter().find(|found| found.name == queue) else {
        return (USUAL, "its default");
    };
    let millis = |table: &BTreeMap<String, Value>, name: &str| {
        table.get(name).and_then(Value::as_u64).map(Duration::from_millis)
    };
    let policy = millis(&found.effective_policy_definition, "consumer-timeout");
    let argument = millis(&found.arguments, "x-consumer-timeout");
    match (policy, argument) {
        (Some(policy), Some(argument)) if argument < policy => (argument, "the queue's argument"),
        (Some(policy), _) => (policy, "a policy"),
        (None, Some(argument)) => (argument, "the queue's argument"),
        (None, None) => (USUAL, "its default"),
    }
}

#[cfg(test)]
mod tests {
    use postrider::consumer::Concurrency;
    use postrider::topology::observed::Queue;
    use serde_json::json;

    use super::*;

    fn broker(policy: &Value, arguments: &Value) -> Observed {
        let queue: Queue = serde_json::from_value(json!({
            "name": "mail", "durable": true, "auto_delete": false, "arguments": arguments,
            "effective_policy_definition": policy,
        }))
        .unwrap();
        Observed { queues: vec![queue], ..Observed::default() }
    }

    #[test]
    fn the_time_in_hand_counts_the_wait_among_those_that_were_prefetched() {
        let usual = ConsumerConfig::default();
        let nothing = || broker(&json!({}), &json!({}));
        assert_eq!(too_short("mail", "mail", &usual, &nothing()), None);
        let slow = ConsumerConfig { handler_limit: Duration::from_mins(31), ..usual.clone() };
        assert!(
            too_short("mail", "mail", &slow, &nothing())
                .is_some_and(|told| told.contains("1800 s (its default)"))
        );
        let one_by_one = ConsumerConfig { concurrency: Concurrency { min: 1, max: 1 }, ..usual.clone() };
        assert!(
            too_short("mail", "mail", &one_by_one, &nothing()).is_some(),
            "250 times 30 s is over two hours"
        );
        let policy = broker(&json!({"consumer-timeout": 60_000}), &json!({}));
        assert!(
            too_short("mail", "mail", &usual, &policy).is_some_and(|told| told.contains("60 s (a policy)"))
        );
        let argument = broker(&json!({}), &json!({"x-consumer-timeout": 1_000}));
        assert!(too_short("mail", "mail", &usual, &argument).is_some_and(|told| told.contains("argument")));
        assert_eq!(too_short("mail", "elsewhere", &usual, &policy), None);
    }
}
