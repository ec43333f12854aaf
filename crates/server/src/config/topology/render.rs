//! A layout as the configuration that stands for it, in long form: read back, it is the same layout.

use std::fmt::Write as _;
use std::time::Duration;

use postrider::envelope::wire::{Identity, Place};
use postrider::settlement::{FailureMatch, RetryOverride, RetryPolicy, Treat};
use postrider::topology::{
    Argument, Binding, Consuming, DeadLetterTarget, DeliveryLimit, Exchange, ExchangeName, Layout, OnDead,
    Queue, QueueKind, RoutingKey, ServiceQueue,
};

/// The whole configuration of a layout.
pub(crate) fn to_toml(layout: &Layout) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "[topology]");
    if let Some(vhost) = &layout.vhost {
        let _ = writeln!(text, "vhost = {}", quoted(vhost.as_str()));
    }
    let _ = writeln!(text, "collect = {}\n", layout.collect);
    let _ = writeln!(text, "[outbox]\nexchange = {}", quoted(layout.exchange.as_str()));
    for exchange in &layout.topology.exchanges {
        write_exchange(&mut text, exchange, layout);
    }
    for queue in &layout.topology.queues {
        write_queue(&mut text, queue, layout);
    }
    text
}

fn write_exchange(text: &mut String, exchange: &Exchange, layout: &Layout) {
    let _ = writeln!(text, "\n[[exchange]]\nname = {}", quoted(exchange.name.as_str()));
    let _ = writeln!(text, "kind = \"{}\"", exchange.kind.as_str());
    let alternate = exchange.policy.alternate.as_ref().map_or("", ExchangeName::as_str);
    let _ = writeln!(text, "alternate = {}", quoted(alternate));
    if let Some(alternate) = &exchange.alternate {
        let _ = writeln!(text, "alternate_argument = {}", quoted(alternate.as_str()));
    }
    if let Some(format) = layout.formats.get(&exchange.name) {
        let _ = writeln!(text, "format = \"{}\"", format.as_str());
    }
}

fn write_queue(text: &mut String, queue: &Queue, layout: &Layout) {
    let _ = writeln!(text, "\n[[queue]]\nname = {}", quoted(queue.name.as_str()));
    let kind = match queue.kind {
        QueueKind::Unsaid => "unsaid",
        said => said.as_str(),
    };
    let _ = writeln!(text, "kind = \"{kind}\"");
    let bindings: Vec<_> =
        layout.topology.bindings.iter().filter(|binding| binding.queue == queue.name).map(bind).collect();
    if !bindings.is_empty() {
        let _ = writeln!(text, "bind = [{}]", bindings.join(", "));
    }
    let service = layout.services.iter().find(|service| *service.name() == queue.name);
    match service {
        Some(service) => write_service(text, service),
        None => _ = writeln!(text, "consume = false"),
    }
    match &queue.dead_letter {
        Some(to) => _ = writeln!(text, "dead_letter = {}", target(to)),
        None => _ = writeln!(text, "dead_letter = \"none\""),
    }
    if let Some(ttl) = queue.message_ttl {
        let _ = writeln!(text, "message_ttl = \"{}\"", time(ttl));
    }
    if queue.single_active_consumer {
        let _ = writeln!(text, "single_active_consumer = true");
    }
    if queue.safe_dead_lettering {
        let _ = writeln!(text, "safe_dead_lettering = true");
    }
    if !queue.arguments.is_empty() {
        let named =
            queue.arguments.iter().map(|(name, value)| format!("{} = {}", quoted(name), argument(value)));
        let _ = writeln!(text, "arguments = {{ {} }}", named.collect::<Vec<_>>().join(", "));
    }
    write_policy(text, queue);
    if let Some(consuming) = layout.consuming.get(&queue.name) {
        let Consuming { prefetch, concurrency, max_concurrency } = *consuming;
        let settings =
            [("prefetch", prefetch), ("concurrency", concurrency), ("max_concurrency", max_concurrency)];
        for (name, value) in settings.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            let _ = writeln!(text, "{name} = {value}");
        }
    }
}

fn write_policy(text: &mut String, queue: &Queue) {
    let policy = &queue.policy;
    let mut parts = Vec::new();
    parts.extend(policy.dead_letter.as_ref().map(|to| format!("dead_letter = {}", target(to))));
    if policy.safe_dead_lettering {
        parts.push("safe_dead_lettering = true".to_owned());
    }
    parts.extend(policy.delivery_limit.map(|limit| match limit {
        DeliveryLimit::Times(times) => format!("delivery_limit = {times}"),
        DeliveryLimit::Unlimited => "delivery_limit = \"unlimited\"".to_owned(),
    }));
    parts.extend(policy.max_length.map(|most| format!("max_length = {most}")));
    parts.extend(policy.max_length_bytes.map(|most| format!("max_length_bytes = {most}")));
    let _ = writeln!(text, "policy = {{ {} }}", parts.join(", "));
}

fn write_service(text: &mut String, service: &ServiceQueue) {
    let _ = writeln!(text, "retry = {}", retry(&service.retry));
    if let Some(on_dead) = service.order {
        let on_dead = if on_dead == OnDead::Park { "park" } else { "continue" };
        let _ = writeln!(text, "ordered = true\non_dead = \"{on_dead}\"");
    }
    let waits = service
        .wait_queues
        .iter()
        .map(|wait| format!("{{ name = {}, delay = \"{}\" }}", quoted(wait.name.as_str()), time(wait.delay)));
    let _ = writeln!(text, "wait_queues = [{}]", waits.collect::<Vec<_>>().join(", "));
    let DeadLetterTarget { exchange, routing_key } = &service.dead_letter;
    let _ = writeln!(
        text,
        "dead_letters_to = {{ exchange = {}, {}queue = {} }}",
        quoted(exchange.as_str()),
        routing_key.as_ref().map_or_else(String::new, |key| format!("key = {}, ", quoted(key.as_str()))),
        quoted(service.dead_letter_queue.as_str())
    );
    if !service.collect {
        text.push_str("collect = false\n");
    }
    let Identity { event_id, tenant, event_type, aggregate_id, usual_type } = &service.identity;
    let named = [
        ("event_id", event_id),
        ("tenant", tenant),
        ("event_type", event_type),
        ("aggregate_id", aggregate_id),
    ];
    let places =
        |places: &[Place]| places.iter().map(|place| quoted(place.as_str())).collect::<Vec<_>>().join(", ");
    let mut named: Vec<_> = named
        .into_iter()
        .filter(|(_, found)| !found.is_empty())
        .map(|(name, found)| format!("{name} = [{}]", places(found)))
        .collect();
    named.extend(usual_type.as_ref().map(|usual| format!("usual_type = {}", quoted(usual.as_str()))));
    if !named.is_empty() {
        let _ = writeln!(text, "identity = {{ {} }}", named.join(", "));
    }
}

fn retry(policy: &RetryPolicy) -> String {
    let list = |delays: &[Duration]| {
        let delays: Vec<_> = delays.iter().map(|delay| format!("\"{}\"", time(*delay))).collect();
        format!("[{}]", delays.join(", "))
    };
    let mut parts =
        vec![format!("max_retries = {}", policy.max_retries), format!("delays = {}", list(&policy.delays))];
    if policy.jitter_percent > 0 {
        parts.push(format!("jitter_percent = {}", policy.jitter_percent));
    }
    if !policy.defer.is_empty() {
        parts.push(format!("defer = {}", list(&policy.defer)));
    }
    let (mut classes, mut statuses) = (Vec::new(), Vec::new());
    for RetryOverride { on, treat, max_retries, delays } in &policy.overrides {
        let treat = treat.map(|treat| match treat {
            Treat::Transient => "treat = \"transient\"".to_owned(),
            Treat::Permanent => "treat = \"permanent\"".to_owned(),
        });
        let said = [
            treat,
            max_retries.map(|most| format!("max_retries = {most}")),
            delays.as_ref().map(|delays| format!("delays = {}", list(delays))),
        ];
        let said = said.into_iter().flatten().collect::<Vec<_>>().join(", ");
        match on {
            FailureMatch::Class(class) => classes.push(format!("{} = {{ {said} }}", quoted(class))),
            FailureMatch::Status(from, to) => statuses.push(format!("\"{from}-{to}\" = {{ {said} }}")),
        }
    }
    for (name, exceptions) in [("class", classes), ("status", statuses)] {
        if !exceptions.is_empty() {
            parts.push(format!("{name} = {{ {} }}", exceptions.join(", ")));
        }
    }
    format!("{{ {} }}", parts.join(", "))
}

fn bind(binding: &Binding) -> String {
    let (exchange, key) = (quoted(binding.exchange.as_str()), quoted(binding.key.as_str()));
    format!("{{ exchange = {exchange}, key = {key} }}")
}

fn target(target: &DeadLetterTarget) -> String {
    let exchange = quoted(target.exchange.as_str());
    match target.routing_key.as_ref().map(RoutingKey::as_str) {
        Some(key) => format!("{{ exchange = {exchange}, key = {} }}", quoted(key)),
        None => format!("{{ exchange = {exchange} }}"),
    }
}

fn argument(value: &Argument) -> String {
    match value {
        Argument::Text(text) => quoted(text),
        Argument::Bool(_) | Argument::Int(_) => value.to_string(),
    }
}

fn time(time: Duration) -> String {
    match (time.subsec_nanos(), time.subsec_nanos() % 1_000_000) {
        (0, _) => format!("{}s", time.as_secs()),
        (_, 0) => format!("{}ms", time.as_millis()),
        _ => format!("{}us", time.as_micros()),
    }
}

/// As TOML writes a text.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}
