//! Every preset on a live broker, read back and compared with a table that was written from its document.
//!
//! The tables are written out on purpose: nothing in them is computed from the presets.

mod seeds;

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use postrider::topology::{Layout, Preset, QueueKind};
use seeds::Table;
use serde_json::{Value, json};

postrider_testkit::on_each_rabbitmq!(
    fis_is_what_its_document_says,
    event_bus_is_what_its_document_says,
    ratatoskr_is_what_its_document_says,
    smap_is_what_its_document_says,
    holdco_is_what_its_document_says,
    a_queue_without_a_type_is_a_classic_one_to_every_declarer,
    the_consumer_of_the_document_is_never_refused,
);

fn layout(preset: &str, set: &[(&str, &str)]) -> Layout {
    let set: Vec<_> = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Preset::find(preset).unwrap().layout(&set).unwrap()
}

async fn fis_is_what_its_document_says(version: RabbitVersion) {
    assert_eq!(layout("fis", &[]).vhost.unwrap().as_str(), "/fis");
    compare(version, "fis", &[("strict", "true")], seeds::fis()).await;
    compare(version, "fis", &[], seeds::fis().and(seeds::fis_additions())).await;
}

async fn event_bus_is_what_its_document_says(version: RabbitVersion) {
    let services = [("service", "wms-cincout"), ("service", "wms-stock"), ("service", "noprefix")];
    let strict = [&services[..], &[("strict", "true")]].concat();
    compare(version, "event-bus", &strict, seeds::event_bus("classic")).await;
    let classic = [&services[..], &[("queue_type", "classic"), ("strict", "true")]].concat();
    compare(version, "event-bus", &classic, seeds::event_bus("classic")).await;
    let quorum = seeds::event_bus("quorum").and(seeds::event_bus_additions());
    compare(version, "event-bus", &services, quorum).await;
}

async fn ratatoskr_is_what_its_document_says(version: RabbitVersion) {
    let set = [("exchange", "shop"), ("keys", "order.*,payment.#"), ("retry_delay_ms", "2500")];
    let strict = [&set[..], &[("strict", "true")]].concat();
    compare(version, "ratatoskr", &strict, seeds::ratatoskr()).await;
    compare(version, "ratatoskr", &set, seeds::ratatoskr().and(seeds::ratatoskr_additions())).await;
}

async fn smap_is_what_its_document_says(version: RabbitVersion) {
    compare(version, "smap", &[("strict", "true")], seeds::smap()).await;
    compare(version, "smap", &[], seeds::smap().and(seeds::smap_additions())).await;
}

async fn holdco_is_what_its_document_says(version: RabbitVersion) {
    compare(version, "holdco", &[("strict", "true")], seeds::holdco()).await;
    let set = [("aggregate_types", "stock_adjustment,stock_level,price_list")];
    compare(version, "holdco", &set, seeds::holdco_written_out().and(seeds::holdco_additions())).await;
}

/// Both ways round, so that it does not matter who comes first.
async fn a_queue_without_a_type_is_a_classic_one_to_every_declarer(version: RabbitVersion) {
    let (_vhost, broker) = broker(version).await;
    for (name, first, second) in
        [("a", QueueKind::Unsaid, QueueKind::Classic), ("b", QueueKind::Classic, QueueKind::Unsaid)]
    {
        for kind in [first, second] {
            let queue = Queue { kind, ..Queue::quorum(queue_name(name)) };
            broker.declare(&Topology::default().queue(queue)).await.unwrap();
        }
    }
}

/// `assertQueue("orders.consumer", { durable: true })`, before and after the preset was applied with its policies.
async fn the_consumer_of_the_document_is_never_refused(version: RabbitVersion) {
    for (strict, first) in [("true", true), ("true", false), ("false", true), ("false", false)] {
        let (vhost, broker) = broker(version).await;
        let foreign = Queue { kind: QueueKind::Unsaid, ..Queue::quorum(queue_name("orders.consumer")) };
        let foreign = Topology::default().queue(foreign);
        if first {
            broker.declare(&foreign).await.unwrap();
        }
        let holdco = layout("holdco", &[("queues", "orders.consumer"), ("strict", strict)]);
        assert_eq!(holdco.consuming[&queue_name("orders.consumer")].prefetch, Some(10));
        broker.declare(&holdco.topology).await.unwrap();
        vhost.set_policies(&holdco.topology).await.unwrap();
        broker.declare(&foreign).await.unwrap();
    }
}

/// Declares a preset with its policies, reads everything back, and compares it name by name and argument by argument.
async fn compare(version: RabbitVersion, preset: &str, set: &[(&str, &str)], expected: Table) {
    let (vhost, broker) = broker(version).await;
    let layout = layout(preset, set);
    broker.declare(&layout.topology).await.unwrap();
    vhost.set_policies(&layout.topology).await.unwrap();
    let found = read(&vhost).await;
    let what = format!("{preset} {set:?}");
    assert_eq!(found.exchanges, expected.exchanges, "{what}");
    assert_eq!(found.queues, expected.queues, "{what}");
    assert_eq!(found.bindings, expected.bindings, "{what}");
    let policies = expected.policies.into_iter().filter_map(|(name, mut definition)| {
        // RabbitMQ 3 has no limit of its own and no word for "unlimited".
        if version == RabbitVersion::Packaged && definition["delivery-limit"] == -1 {
            definition.as_object_mut().unwrap().remove("delivery-limit");
        }
        (definition != json!({})).then_some((name, definition))
    });
    assert_eq!(found.policies, policies.collect(), "{what}");
    // Whoever declares the same again is not refused, policies or not.
    broker.declare(&layout.topology).await.unwrap();
}

async fn read(vhost: &TestVhost) -> Table {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let exchanges = vhost.objects("exchanges").await.unwrap().into_iter().filter_map(|exchange| {
        let name = text(&exchange["name"]);
        let own = !name.is_empty() && !name.starts_with("amq.");
        assert!(!own || exchange["durable"] == true, "{name} is not durable");
        assert!(!own || exchange["arguments"] == json!({}), "{name} has {}", exchange["arguments"]);
        own.then(|| (name, text(&exchange["type"])))
    });
    let queues = vhost.objects("queues").await.unwrap().into_iter().map(|queue| {
        assert_eq!(queue["durable"], true, "{} is not durable", queue["name"]);
        let mut arguments = queue["arguments"].clone();
        // Its type is read beside: a broker may or may not write down a type that nobody said.
        arguments.as_object_mut().unwrap().remove("x-queue-type");
        (text(&queue["name"]), (text(&queue["type"]), arguments))
    });
    let bindings = vhost.objects("bindings").await.unwrap().into_iter().filter_map(|binding| {
        let source = text(&binding["source"]);
        assert_eq!(binding["destination_type"], "queue");
        (!source.is_empty()).then(|| (source, text(&binding["destination"]), text(&binding["routing_key"])))
    });
    let policies = vhost.objects("policies").await.unwrap().into_iter();
    Table {
        exchanges: exchanges.collect::<BTreeMap<_, _>>(),
        queues: queues.collect::<BTreeMap<_, _>>(),
        bindings: bindings.collect::<BTreeSet<_>>(),
        policies: policies.map(|policy| (text(&policy["name"]), policy["definition"].clone())).collect(),
    }
}
