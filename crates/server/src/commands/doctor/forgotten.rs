//! Dead letters that nobody collects any more: those of an exchange or a queue that left the configuration.

use postrider::topology::Topology;
use postrider::topology::observed::Observed;

/// What Postrider puts behind the name of what it derives a queue of dead letters for, and where that is named.
const DERIVED: [(&str, &str); 2] = [(".unroutable", "exchange"), (".dlq", "queue")];

/// A sentence for each such queue: what is in it, and what to do.
pub(super) fn forgotten(wanted: &Topology, broker: &Observed) -> Vec<String> {
    let configured = |name: &str| wanted.queues.iter().any(|queue| queue.name.as_str() == name);
    let left = broker.queues.iter().filter(|queue| queue.consumers == Some(0) && !configured(&queue.name));
    left.filter_map(|queue| {
        let messages = queue.messages.filter(|messages| *messages > 0)?;
        let (of, kind) =
            DERIVED.iter().find_map(|(end, kind)| Some((queue.name.strip_suffix(end)?, kind)))?;
        Some(format!(
            "dead letters lie in {} ({messages}), which is not of this configuration, and nobody takes them; if the {kind} was yours, name it \
             again ([[{kind}]] name = \"{of}\") and start `postrider serve` to have them collected; if it is somebody else's, leave it alone",
            queue.name
        ))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use postrider::topology::observed::Queue;
    use postrider::topology::{Queue as Wanted, QueueName};

    use super::*;

    #[test]
    fn what_lies_in_queues_of_dead_letters_that_left_the_configuration_is_told() {
        let queue = |name: &str, messages, consumers| Queue {
            name: name.to_owned(),
            kind: Some("quorum".to_owned()),
            durable: true,
            auto_delete: false,
            exclusive: false,
            arguments: BTreeMap::new(),
            messages,
            messages_unacknowledged: None,
            consumers: Some(consumers),
            effective_policy_definition: BTreeMap::new(),
        };
        let broker = Observed {
            queues: vec![
                queue("old.events.unroutable", Some(2), 0),
                queue("mail.dlq", Some(1), 0),
                queue("shop.events.unroutable", Some(3), 0),
                queue("taken.dlq", Some(4), 1),
                queue("empty.dlq", Some(0), 0),
                queue("young.dlq", None, 0),
                queue("billing", Some(5), 0),
            ],
            ..Observed::default()
        };
        let name = QueueName::new("shop.events.unroutable").unwrap();
        let wanted = Topology { queues: vec![Wanted::quorum(name)], ..Topology::default() };
        let told = forgotten(&wanted, &broker);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(
            told[0].starts_with("dead letters lie in old.events.unroutable (2)")
                && told[0].contains("[[exchange]] name = \"old.events\"")
        );
        assert!(told[1].contains("[[queue]] name = \"mail\""));
    }
}
