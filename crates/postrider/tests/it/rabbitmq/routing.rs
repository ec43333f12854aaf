//! Topic matching as we compute it, against the broker itself.

use super::*;
use postrider::topology::{QueueKind, topic_matches};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

postrider_testkit::on_each_rabbitmq!(keys_reach_the_queues_that_we_say);

const PATTERNS: usize = 60;
const KEYS: usize = 400;

/// Few words, so that many match; empty ones, and wildcards that are none.
fn dotted(words: &'static [&'static str]) -> impl Strategy<Value = String> {
    vec(prop::sample::select(words), 0..5).prop_map(|words| words.join("."))
}

/// Binds many generated patterns, publishes many generated keys, and compares what arrived with what should have.
async fn keys_reach_the_queues_that_we_say(version: RabbitVersion) {
    let (_vhost, broker) = broker(version).await;
    let mut runner = TestRunner::default();
    let patterns = vec(dotted(&["a", "b", "*", "#", "", "a*", "#a"]), PATTERNS);
    let patterns = patterns.new_tree(&mut runner).unwrap().current();
    let keys = vec(dotted(&["a", "b", "c", "", "a*", "#"]), KEYS).new_tree(&mut runner).unwrap().current();

    let mut topology = Topology::default().exchange(exchange_name("topic"), ExchangeKind::Topic);
    let name = |number: usize| queue_name(&format!("q{number}"));
    for (number, pattern) in patterns.iter().enumerate() {
        let queue = Queue { kind: QueueKind::Classic, ..Queue::quorum(name(number)) };
        topology = topology.queue(queue).bind(
            exchange_name("topic"),
            name(number),
            BindingKey::new(pattern).unwrap(),
        );
    }
    broker.declare(&topology).await.unwrap();
    let batch = keys.iter().enumerate().map(|(number, key)| event(&number.to_string(), "topic", key));
    let answers = broker.publish(batch.collect()).await;
    for (key, answer) in keys.iter().zip(&answers) {
        let wanted = patterns.iter().any(|pattern| topic_matches(pattern, key));
        let arrived = *answer == Published::Confirmed;
        assert_eq!(arrived, wanted, "{key:?} among {patterns:?}: {answer:?}");
    }
    for (number, pattern) in patterns.iter().enumerate() {
        let matching = keys.iter().enumerate().filter(|(_, key)| topic_matches(pattern, key));
        let expected: HashSet<String> = matching.map(|(number, _)| number.to_string()).collect();
        assert_eq!(arrived(&broker, &name(number)).await, expected, "{pattern:?} of {keys:?}");
    }
}

/// The ids in a queue. A last message marks the end, so that nothing has to be waited for in vain.
async fn arrived(broker: &RabbitMq, queue: &QueueName) -> HashSet<String> {
    let last = event("the end", "", queue.as_str());
    assert_eq!(broker.publish(vec![last]).await, [Published::Confirmed]);
    let mut subscription = broker.subscribe(queue, 500).await.unwrap();
    let mut ids = HashSet::new();
    while !ids.contains("the end") {
        ids.extend(soon(&mut *subscription, 500).await.iter().map(|delivery| id_of(&delivery.message)));
    }
    ids.remove("the end");
    ids
}
