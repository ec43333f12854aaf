//! Plans for brokers that exist on paper only.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::topology::{DeliveryLimit, Exchange, ExchangeKind, ExchangeName, QueueKind};

fn wanted() -> Topology {
    let mut orders = Queue { safe_dead_lettering: false, ..Queue::quorum(QueueName::new("orders").unwrap()) };
    orders.policy.delivery_limit = Some(DeliveryLimit::Times(20));
    let exchange = ExchangeName::new("events").unwrap();
    Topology::default().exchange(exchange.clone(), ExchangeKind::Topic).queue(orders).bind(
        exchange,
        QueueName::new("orders").unwrap(),
        crate::topology::BindingKey::new("order.*").unwrap(),
    )
}

fn broker() -> Observed {
    Observed {
        version: "3.10.8".into(),
        vhost: "/".into(),
        vhost_exists: true,
        may_set_policies: true,
        ..Observed::default()
    }
}

fn queue(name: &str, kind: &str, arguments: Value) -> observed::Queue {
    let arguments: BTreeMap<String, Value> = serde_json::from_value(arguments).unwrap();
    let all = json!({ "name": name, "type": kind, "durable": true, "auto_delete": false, "arguments": arguments,
        "messages": 7, "consumers": 2 });
    serde_json::from_value(all).unwrap()
}

fn policy(name: &str, pattern: &str, priority: i64, definition: Value) -> observed::Policy {
    let definition = serde_json::from_value(definition).unwrap();
    observed::Policy {
        name: name.into(),
        pattern: pattern.into(),
        apply_to: "queues".into(),
        priority,
        definition,
    }
}

/// A broker on which a plan was carried out.
fn after(plan: &Plan, mut broker: Observed) -> Observed {
    broker.vhost_exists = true;
    for step in &plan.steps {
        match step {
            Step::AddExchange { exchange: Exchange { name, kind, .. } } => {
                broker.exchanges.push(observed::Exchange {
                    name: name.to_string(),
                    kind: kind.as_str().into(),
                    durable: true,
                    auto_delete: false,
                    internal: false,
                    arguments: BTreeMap::new(),
                });
            }
            Step::AddQueue { queue: wanted } => {
                let arguments = serde_json::to_value(wanted.declared_arguments()).unwrap();
                broker.queues.push(queue(wanted.name.as_str(), wanted.kind.as_str(), arguments));
            }
            Step::SetPolicy { policy, .. } => {
                broker.policies.retain(|seen| seen.name != policy.name);
                broker.policies.push(policy.clone());
            }
            Step::AddBinding { binding } => broker.bindings.push(observed::Binding {
                source: binding.exchange.to_string(),
                destination: binding.queue.to_string(),
                destination_type: "queue".into(),
                routing_key: binding.key.to_string(),
                arguments: BTreeMap::new(),
                properties_key: binding.key.to_string(),
            }),
            Step::CreateVhost { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    broker
}

fn shown(plan: &Plan) -> Vec<String> {
    plan.steps.iter().map(|step| format!("{} {}", step.sign().as_str(), step.subject())).collect()
}

#[test]
fn an_empty_broker_gets_everything_once() {
    let empty = Observed { vhost_exists: false, ..broker() };
    let plan = diff(&wanted(), &empty, false);
    let all = [
        "+ virtual host /",
        "+ exchange events (topic)",
        "+ queue orders (quorum)",
        "+ policy postrider.queue.orders",
        "+ binding events → orders for \"order.*\"",
    ];
    assert_eq!(shown(&plan), all);
    let again = diff(&wanted(), &after(&plan, empty), false);
    assert!(again.is_empty() && again.extra.is_empty() && again.notes.is_empty(), "{again:?}");
}

#[test]
fn another_type_is_a_replacement_and_says_what_is_concerned() {
    let mut there = after(&diff(&wanted(), &broker(), false), broker());
    there.queues = vec![queue("orders", "classic", json!({}))];
    let plan = diff(&wanted(), &there, false);
    assert_eq!(shown(&plan), ["-/+ queue orders"]);
    assert_eq!(
        plan.steps[0].details(),
        ["x-queue-type: \"classic\" → \"quorum\"", "7 messages to move, 2 consumers to come back"]
    );
    // One that was interrupted goes on, whatever is there by then.
    there.queues.push(queue("orders.postrider-replacing", "quorum", json!({"x-queue-type": "quorum"})));
    assert!(matches!(diff(&wanted(), &there, false).steps[0], Step::FinishReplacing { messages: 14, .. }));
    there.queues.remove(0);
    assert!(matches!(diff(&wanted(), &there, false).steps[0], Step::FinishReplacing { messages: 7, .. }));
}

#[test]
fn a_queue_is_replaced_after_what_gives_and_before_what_takes() {
    let mut there = after(&diff(&wanted(), &broker(), false), broker());
    there.queues = vec![queue("orders", "classic", json!({}))];
    there.policies.clear();
    let plan = diff(&wanted(), &there, false);
    assert_eq!(shown(&plan), ["+ policy postrider.queue.orders", "-/+ queue orders"]);
    let dying = json!({"dead-letter-exchange": "events"});
    there.policies.push(policy("postrider.queue.orders", "^orders$", 0, dying));
    let plan = diff(&wanted(), &there, false);
    assert_eq!(shown(&plan), ["-/+ queue orders", "~ policy postrider.queue.orders"]);
}

#[test]
fn what_does_not_fit_into_the_new_queue_is_foretold() {
    let mut there = after(&diff(&wanted(), &broker(), false), broker());
    there.queues = vec![queue("orders", "classic", json!({}))];
    let noted = |arguments: &[(&str, crate::topology::Argument)]| {
        let mut topology = wanted();
        topology.queues[0].arguments =
            arguments.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        diff(&topology, &there, false).notes
    };
    let most = |most| ("x-max-length", crate::topology::Argument::Int(most));
    assert_eq!(noted(&[most(7)]), Vec::<String>::new());
    assert!(
        noted(&[most(5), ("x-overflow", "reject-publish".into())])[0].contains("5 of its 7 messages fit")
    );
    assert!(noted(&[most(5)])[0].contains("the oldest 2 do not fit"), "RabbitMQ drops the oldest by itself");
}

#[test]
fn no_type_is_the_default_type() {
    let mut topology = wanted();
    for (kind, there, default, same) in [
        (QueueKind::Unsaid, "classic", None, true),
        (QueueKind::Classic, "classic", None, true),
        (QueueKind::Unsaid, "quorum", None, false),
        (QueueKind::Unsaid, "quorum", Some("quorum"), true),
        (QueueKind::Unsaid, "classic", Some("undefined"), true),
    ] {
        topology.queues[0].kind = kind;
        let broker = Observed { default_queue_type: default.map(str::to_owned), ..broker() };
        let found = queue_differences(&topology.queues[0], &queue("orders", there, json!({})), &broker);
        assert_eq!(found.is_empty(), same, "{kind:?} {there} {default:?}");
    }
}

#[test]
fn what_rabbitmq_never_compares_is_a_note() {
    let mut there = after(&diff(&wanted(), &broker(), false), broker());
    there.queues[0].arguments.insert("x-consumer-timeout".into(), json!(5));
    let plan = diff(&wanted(), &there, false);
    assert!(plan.is_empty(), "{plan:?}");
    assert!(plan.notes[0].contains("x-consumer-timeout: 5 → none"), "{:?}", plan.notes);
}

#[test]
fn an_exchange_of_another_kind_blocks_everything() {
    let mut there = after(&diff(&wanted(), &broker(), false), broker());
    there.exchanges[0].kind = "fanout".into();
    let plan = diff(&wanted(), &there, false);
    assert!(!plan.is_empty() && plan.blocked[0].contains("type: \"fanout\" → \"topic\""), "{plan:?}");
}

#[test]
fn an_argument_that_the_type_cannot_have_is_foreseen() {
    let mut topology = wanted();
    topology.queues[0].arguments.insert("x-max-priority".into(), crate::topology::Argument::Int(5));
    assert!(diff(&topology, &broker(), false).blocked[0].contains("x-max-priority"));
    // RabbitMQ does not look at it where the queue exists.
    let there = after(&diff(&wanted(), &broker(), false), broker());
    assert!(diff(&topology, &there, false).is_empty());
}

#[test]
fn another_policy_is_carried_along_and_stays_below_ours() {
    let mut there = after(&diff(&wanted(), &broker(), false), broker());
    there.policies.push(policy("limits", "^ord", 5, json!({"max-length": 1000, "delivery-limit": 3})));
    there.policies.push(policy("weaker", ".*", 1, json!({"expires": 1})));
    there.policies.push(policy("other", "^invoices", 9, json!({"expires": 1})));
    let plan = diff(&wanted(), &there, false);
    let Step::SetPolicy { policy, was: Some(_) } = &plan.steps[0] else { panic!("{plan:?}") };
    assert_eq!(
        (policy.priority, json!(policy.definition)),
        (6, json!({"max-length": 1000, "delivery-limit": 20}))
    );
    assert!(plan.notes[0].contains("its delivery-limit = 3 is overridden"), "{:?}", plan.notes);
    assert!(diff(&wanted(), &after(&plan, there), false).is_empty());
}

/// RabbitMQ 3 has no word for "unlimited", and drops or strands what reaches a limit in a retry loop.
#[test]
fn a_limit_of_another_policy_is_lifted_where_there_must_be_none() {
    let mut wanted = wanted();
    wanted.queues[0].policy.delivery_limit = Some(DeliveryLimit::Unlimited);
    let mut there = after(&diff(&wanted, &broker(), false), broker());
    assert_eq!(there.policies, [], "nothing has to be said");
    there.policies.push(policy("limits", "^ord", 5, json!({"delivery-limit": 3, "max-length": 1000})));
    let plan = diff(&wanted, &there, false);
    let [Step::SetPolicy { policy: set, .. }] = &plan.steps[..] else { panic!("{plan:?}") };
    assert_eq!(
        (set.priority, json!(set.definition)),
        (6, json!({"delivery-limit": 1_000_000, "max-length": 1000}))
    );
    let mut done = after(&plan, there);
    assert!(diff(&wanted, &done, false).is_empty());
    done.policies.remove(0);
    let plan = diff(&wanted, &done, false);
    assert!(matches!(&plan.steps[..], [Step::RemovePolicy { .. }]), "{plan:?}");
}

#[test]
fn messages_go_where_the_policy_says_that_is_applied_whoever_set_it() {
    let mut there = after(&diff(&wanted(), &broker(), false), broker());
    there.exchanges.push(observed::Exchange { name: "rest".into(), ..there.exchanges[0].clone() });
    let says = json!({"alternate-exchange": "rest", "dead-letter-exchange": "rest"});
    for (priority, of_queue) in [(5, Some("rest")), (-1, None)] {
        let theirs =
            observed::Policy { apply_to: "all".into(), ..policy("theirs", "", priority, says.clone()) };
        let there = Observed { policies: [&there.policies[..], &[theirs]].concat(), ..there.clone() };
        let topology = crate::topology::export::in_effect(&there).topology;
        let events = topology.find_exchange(&ExchangeName::new("events").unwrap()).unwrap();
        assert_eq!(events.effective_alternate().map(ExchangeName::as_str), Some("rest"), "{priority}");
        let dead = topology.queues[0].effective_dead_letter();
        assert_eq!(dead.map(|target| target.exchange.as_str()), of_queue, "{priority}");
    }
}

#[test]
fn without_the_right_to_set_policies_the_unprotected_are_named() {
    let plan = diff(&wanted(), &Observed { may_set_policies: false, ..broker() }, false);
    assert!(!shown(&plan).iter().any(|line| line.contains("policy")));
    assert!(plan.notes[0].contains("postrider.queue.orders"), "{:?}", plan.notes);
    // Carried out there is nothing left that this user could do, and the broker is still not what it should be.
    let there = Observed { may_set_policies: false, ..after(&plan, broker()) };
    let left = diff(&wanted(), &there, false);
    assert_eq!((left.is_empty(), left.unset.len(), left.drift()), (true, 1, 1), "{left:?}");
    let set = diff(&wanted(), &Observed { may_set_policies: true, ..there }, false);
    assert_eq!((set.steps, set.unset), (left.unset, Vec::new()));
}

#[test]
fn only_what_is_ours_is_ever_removed_and_only_when_asked() {
    let mut there = after(&diff(&wanted(), &broker(), false), broker());
    let back =
        json!({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders", "x-message-ttl": 5000});
    there.queues.push(queue("orders.wait.5s", "quorum", back));
    there.queues.push(queue("orders.wait.room", "classic", json!({})));
    there.queues.push(queue("somebody.elses", "classic", json!({})));
    there.policies.push(policy("postrider.queue.gone", "^gone$", 0, json!({"delivery-limit": 20})));
    there.policies.push(policy("theirs", "^gone$", 0, json!({"delivery-limit": 20})));
    let mut binding = there.bindings[0].clone();
    binding.routing_key = "invoice.*".into();
    there.bindings.push(binding.clone());
    there.bindings.push(observed::Binding { destination: "somebody.elses".into(), ..binding });
    let plan = diff(&wanted(), &there, false);
    assert!(plan.is_empty(), "{plan:?}");
    assert_eq!(plan.extra.len(), 3, "{:?}", plan.extra);
    let removals = [
        "- binding events → orders for \"invoice.*\"",
        "- queue orders.wait.5s",
        "- policy postrider.queue.gone",
    ];
    assert_eq!(shown(&diff(&wanted(), &there, true)), removals);
}

#[test]
fn a_plan_knows_when_the_broker_has_changed() {
    let there = after(&diff(&wanted(), &broker(), false), broker());
    let before = there.fingerprint(&wanted());
    let mut busier = there.clone();
    busier.queues[0].messages = Some(1_000_000);
    busier.queues.push(queue("somebody.elses", "classic", json!({})));
    assert_eq!(busier.fingerprint(&wanted()), before);
    // A queue without a type is of this one, and policies are part of a plan for whoever may set them.
    let quorum = Observed { default_queue_type: Some("quorum".to_owned()), ..there.clone() };
    assert_ne!(quorum.fingerprint(&wanted()), before);
    let restricted = Observed { may_set_policies: false, ..there.clone() };
    assert_ne!(restricted.fingerprint(&wanted()), before);
    let mut other = there.clone();
    other.queues[0].arguments.insert("x-max-length".into(), json!(5));
    assert_ne!(other.fingerprint(&wanted()), before);
    let mut bound = there;
    bound.bindings[0].routing_key = "order.#".into();
    assert_ne!(bound.fingerprint(&wanted()), before);
}
