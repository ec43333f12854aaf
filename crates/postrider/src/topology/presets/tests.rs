//! What the presets promise, without a broker.

use super::*;
use crate::topology::DeliveryLimit;

fn layout(preset: &str, set: &[(&str, &str)]) -> Layout {
    built(preset, set).unwrap()
}

fn built(preset: &str, set: &[(&str, &str)]) -> Result<Layout, PresetError> {
    let set: Vec<_> = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Preset::find(preset)?.layout(&set)
}

fn refused(preset: &str, set: &[(&str, &str)]) -> String {
    built(preset, set).unwrap_err().to_string()
}

fn names(layout: &Layout) -> Vec<&str> {
    layout.topology.queues.iter().map(|queue| queue.name.as_str()).collect()
}

fn keys_of<'a>(layout: &'a Layout, queue: &str) -> Vec<&'a str> {
    let bindings = layout.topology.bindings.iter().filter(|binding| binding.queue.as_str() == queue);
    bindings.map(|binding| binding.key.as_str()).collect()
}

fn route(layout: &Layout, exchange: &str, key: &str) -> Vec<String> {
    let (exchange, key) = (ExchangeName::new(exchange).unwrap(), RoutingKey::new(key).unwrap());
    layout.topology.route(&exchange, &key).into_iter().map(ToString::to_string).collect()
}

#[test]
fn what_the_intake_queue_does_not_want_is_a_dead_letter_once() {
    let fis = layout("fis", &[]);
    assert_eq!(fis.vhost.as_ref().unwrap().as_str(), "/fis");
    assert_eq!(route(&fis, "fis.events.exchange", "ecommerce.order.completed"), ["fis.ingestion.queue"]);
    assert_eq!(route(&fis, "fis.events.exchange", "order.completed"), ["fis.ingestion.dlq.queue"]);
    let strict = layout("fis", &[("strict", "true")]);
    assert!(route(&strict, "fis.events.exchange", "order.completed").is_empty());
    assert!(!strict.collect);
    assert_eq!(strict.topology.policies(true), []);
}

#[test]
fn the_prefix_is_what_stands_before_the_first_hyphen() {
    let bus = layout(
        "event-bus",
        &[("service", "wms-cincout"), ("service", "wms-stock-sync"), ("service", "noprefix")],
    );
    let exchanges: Vec<_> = bus.topology.exchanges.iter().map(|exchange| exchange.name.as_str()).collect();
    assert_eq!(
        exchanges,
        [
            "wms.main-exchange",
            "wms.retry-exchange.wms-cincout",
            "wms.retry-exchange.wms-stock-sync",
            "default.main-exchange",
            "default.retry-exchange.noprefix"
        ]
    );
    assert_eq!(
        route(&bus, "wms.main-exchange", "anything"),
        ["wms.queue.wms-cincout", "wms.queue.wms-stock-sync"]
    );
    assert!(refused("event-bus", &[]).contains("needs service"));
    assert!(refused("event-bus", &[("service", "a"), ("service", "a")]).contains("given twice"));
    assert!(refused("event-bus", &[("service", "wms-a,wms-b")]).contains("give each service its own"));
}

#[test]
fn a_retry_loop_has_no_delivery_limit() {
    for (preset, set, main) in [
        ("event-bus", &[("service", "wms-cincout")][..], "wms.queue.wms-cincout"),
        ("ratatoskr", &[], "my-service.events"),
    ] {
        let layout = layout(preset, set);
        let queue = layout.topology.find_queue(&QueueName::new(main).unwrap()).unwrap();
        assert_eq!(queue.policy.delivery_limit, Some(DeliveryLimit::Unlimited), "{main}");
        assert!(queue.policy.safe_dead_lettering, "{main}");
    }
    let fis = layout("fis", &[]);
    assert!(matches!(fis.topology.queues[0].policy.delivery_limit, Some(DeliveryLimit::Times(20))));
}

#[test]
fn parts_of_words_are_written_out() {
    let holdco = layout("holdco", &[("aggregate_types", "stock_adjustment,stock_level,price_list")]);
    assert_eq!(keys_of(&holdco, "inventory.reconcile"), ["stock_adjustment.*", "stock_level.*"]);
    assert_eq!(keys_of(&holdco, "pricing.refresh"), ["price_list.*"]);
    let strict = layout("holdco", &[("strict", "true")]);
    assert_eq!(keys_of(&strict, "inventory.reconcile"), ["stock_*.*"]);
}

#[test]
fn queues_are_chosen_and_added() {
    let set =
        [("queues", "notifications, orders.consumer, billing:invoice.*+order.paid"), ("strict", "true")];
    let holdco = layout("holdco", &set);
    assert_eq!(
        names(&holdco),
        [
            "notifications",
            "notifications.dlq",
            "orders.consumer",
            "orders.consumer.dlq",
            "billing",
            "billing.dlq"
        ]
    );
    assert_eq!(keys_of(&holdco, "billing"), ["invoice.*", "order.paid"]);
    let asserted = holdco.topology.find_queue(&QueueName::new("orders.consumer").unwrap()).unwrap();
    assert_eq!((asserted.kind, &asserted.dead_letter), (QueueKind::Unsaid, &None));
    assert!(refused("holdco", &[("queues", "mystery")]).contains("none of the examples"));
    assert!(refused("holdco", &[("queues", "a:b,a:c")]).contains("twice"));
}

#[test]
fn what_cannot_be_is_refused_with_what_can() {
    assert!(refused("nope", &[]).contains("fis, event-bus, ratatoskr, smap, holdco"));
    assert!(refused("fis", &[("services", "x")]).contains("it has vhost, strict"));
    assert!(refused("fis", &[("strict", "maybe")]).contains("true or false"));
    assert!(refused("ratatoskr", &[("retry_delay_ms", "5s")]).contains("milliseconds"));
    assert!(refused("ratatoskr", &[("retry_delay_ms", "0")]).contains("milliseconds"));
    assert!(refused("ratatoskr", &[("keys", "a.*,,b")]).contains("an entry is empty"));
    assert!(refused("ratatoskr", &[("queue", "a"), ("queue", "b")]).contains("twice"));
    assert!(refused("ratatoskr", &[("queue", &"x".repeat(255))]).contains("bytes"));
    assert!(refused("event-bus", &[("service", "a"), ("queue_type", "stream")]).contains("quorum, classic"));
}

#[test]
fn every_service_is_declared_whole() {
    for preset in PRESETS {
        for strict in ["false", "true"] {
            let set = match preset.name {
                "event-bus" => vec![("service", "wms-cincout"), ("strict", strict)],
                _ => vec![("strict", strict)],
            };
            let layout = layout(preset.name, &set);
            for service in &layout.services {
                let declared =
                    |name: &QueueName| assert!(layout.topology.find_queue(name).is_some(), "{name}");
                declared(service.name());
                declared(&service.dead_letter_queue);
                service.wait_queues.iter().for_each(|wait| declared(&wait.name));
                let key = service.dead_letter.routing_key.clone();
                let key = key.unwrap_or_else(|| RoutingKey::new("any.key").unwrap());
                let reached = layout.topology.route(&service.dead_letter.exchange, &key);
                assert_eq!(reached, [&service.dead_letter_queue], "{} {}", preset.name, service.name());
            }
        }
    }
}
