//! The presets event-bus and ratatoskr as people set them up: a preset, push subscriptions, and producers that know nothing of us.

use postrider::broker::{HeaderValue, Message, Outgoing, Published, Verdict};
use postrider::rabbitmq::{RabbitMq, RabbitMqConfig};
use postrider::topology::{ExchangeName, QueueName, RoutingKey};
use postrider::{Broker as _, Clock};
use postrider_testkit::receiver::{Receiver, Reply, Request};
use postrider_testkit::servers::{RabbitVersion, TestDatabase, TestVhost};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::networked::servers_on;
use super::process::{Folder, Serving};
use super::push::{ask, until};

/// What an event's id says, how often its endpoint is called, and why it dies in the end, if it does.
type Row = (&'static str, usize, &'static str);

const CODE: &str = "RABBITMQ_MESSAGE_MAX_RETRIES_EXCEEDED";

/// Somewhere to serve, and whoever else publishes there: on one file nobody but the API can.
struct Bus {
    folder: Folder,
    foreign: Option<RabbitMq>,
    _kept: Option<(TestDatabase, TestVhost)>,
}

impl Bus {
    fn embedded() -> Self {
        Self { folder: Folder::new(), foreign: None, _kept: None }
    }

    async fn servers(version: RabbitVersion) -> Self {
        let (folder, database, vhost) = servers_on(version).await;
        let folder = folder.with("RABBITMQ_MANAGEMENT_URL", &vhost.management_url);
        folder.write("postrider.toml", "");
        folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
        let foreign = RabbitMq::connect(RabbitMqConfig::new(&vhost.amqp_url), Clock::system()).await.unwrap();
        Self { folder, foreign: Some(foreign), _kept: Some((database, vhost)) }
    }

    fn serve(&self, config: &str) -> Serving {
        self.folder.write("postrider.toml", &format!("[egress]\nallow = ['127.0.0.1', 'http']\n{config}"));
        let mut serving = self.folder.serve(&[]);
        serving.wait_for("serving");
        serving
    }

    /// A foreign producer gives a body, a message id, and the key that its exchange needs.
    async fn put(&self, serving: &Serving, (exchange, key): (&str, &str), id: &str) {
        let Some(foreign) = &self.foreign else {
            let event = json!({"type": "order.placed", "data": {}, "id": id});
            assert_eq!(ask(serving, "POST", "/v1/events", &event).0, 202);
            return;
        };
        let mut message = Message { body: r#"{"total":"1.50"}"#.into(), ..Message::default() };
        message.properties.message_id = Some(id.to_owned());
        let (exchange, routing_key) = (ExchangeName::new(exchange).unwrap(), RoutingKey::new(key).unwrap());
        let sent = foreign.publish(vec![Outgoing { exchange, routing_key, message }]).await;
        assert_eq!(sent, [Published::Confirmed]);
    }

    fn letters(&self) -> Vec<Value> {
        let page = self.folder.run(&["dlq", "ls", "--json"]).json();
        page["letters"].as_array().cloned().unwrap_or_default()
    }
}

/// A status, for ever or so many times (`503x2`), and 200 after that. What is no status is no HTTP either.
fn as_the_id_says(request: &Request, before: usize) -> Reply {
    let id = request.header("webhook-id");
    let (status, times) = id.split_once('x').unwrap_or((id, ""));
    if times.parse().is_ok_and(|times: usize| before >= times) {
        return Reply::status(200);
    }
    status.parse().map_or(Reply::Raw("this is not HTTP\r\n\r\n"), Reply::status)
}

fn attempts(receiver: &Receiver, id: &str) -> Vec<String> {
    let of = |request: &Request| request.header("webhook-id") == id;
    let requests = receiver.requests().into_iter().filter(of);
    requests.map(|request| request.header("x-attempt").to_owned()).collect()
}

/// Puts an event on the bus for each row, and waits until each has ended as it says.
async fn play(bus: &Bus, serving: &Serving, receiver: &Receiver, at: (&str, &str), rows: &[Row]) {
    for (id, ..) in rows {
        bus.put(serving, at, id).await;
    }
    let dead = rows.iter().filter(|(.., reason)| !reason.is_empty()).count();
    let calls: usize = rows.iter().map(|(_, calls, _)| calls).sum();
    until(|| receiver.requests().len() >= calls && bus.letters().len() >= dead).await;
    let letters = bus.letters();
    for (id, calls, reason) in rows {
        let letter = letters.iter().find(|letter| letter["event_id"] == *id);
        assert_eq!(letter.map_or("", |letter| letter["reason"].as_str().unwrap()), *reason, "{id}");
        let attempts = attempts(receiver, id);
        assert_eq!(attempts.len(), *calls, "{id}: {attempts:?}");
        if let Some(letter) = letter {
            assert_eq!(letter["attempts"], *calls, "{letter}");
        }
    }
    assert_eq!(letters.len(), dead, "{letters:?}");
}

fn push(name: &str, queue: &str, url: &str) -> String {
    format!(
        "[[push]]\nname = '{name}'\nqueue = '{queue}'\nurl = '{url}'\n[[consumer]]\nname = '{name}'\nqueue = '{queue}'\n\
         breaker_failures = 0\n"
    )
}

async fn the_event_bus(bus: Bus) {
    let rows: [Row; 10] = [
        ("200", 1, ""),
        ("204", 1, ""),
        ("425x1", 2, ""),
        ("503x3", 4, ""),
        ("429", 11, "retries_exhausted"),
        ("409", 11, "retries_exhausted"),
        ("500", 11, "retries_exhausted"),
        ("exception", 11, "retries_exhausted"),
        ("404", 1, "rejected"),
        ("422", 1, "rejected"),
    ];
    let cincout = Receiver::start(as_the_id_says).await;
    let stock = Receiver::start(|_, _| Reply::status(200)).await;
    let config = format!(
        "[topology]\npreset = 'event-bus'\n[topology.set]\nservice = ['wms-cincout', 'wms-stock']\nretry_delay_ms = 50\n{}{}",
        push("cincout", "wms.queue.wms-cincout", &cincout.url()),
        push("stock", "wms.queue.wms-stock", &stock.url()),
    );
    let serving = bus.serve(&config);
    play(&bus, &serving, &cincout, ("wms.main-exchange", ""), &rows).await;
    until(|| stock.requests().len() >= rows.len()).await;
    assert!(bus.letters().iter().all(|letter| letter["queue"] == "wms.queue.wms-cincout"));

    serving.signal(Signal::TERM);
    let (_, said) = serving.ended();
    let told: Vec<_> = said.iter().filter(|line| line.contains(CODE)).collect();
    assert_eq!(told.len(), 4, "once for each that failed as often as it may: {told:#?}");
    assert_eq!(
        stock.requests().len(),
        rows.len(),
        "a retry is for the service that failed, and for no other"
    );
}

async fn the_ratatoskr_flow(bus: Bus) {
    let rows: [Row; 4] =
        [("200", 1, ""), ("503x2", 3, ""), ("503", 11, "retries_exhausted"), ("422", 1, "rejected")];
    let receiver = Receiver::start(as_the_id_says).await;
    let config = format!(
        "[topology]\npreset = 'ratatoskr'\n[topology.set]\nqueue = 'my-service.events'\nkeys = 'order.*'\nretry_delay_ms = 50\n{}",
        push("my-service", "my-service.events", &receiver.url())
    );
    let serving = bus.serve(&config);
    play(&bus, &serving, &receiver, ("ratatoskr.events", "order.placed"), &rows).await;
    assert!(bus.letters().iter().all(|letter| letter["queue"] == "my-service.events"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_event_bus_on_one_file() {
    the_event_bus(Bus::embedded()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ratatoskr_flow_on_one_file() {
    the_ratatoskr_flow(Bus::embedded()).await;
}

postrider_testkit::on_each_rabbitmq!(
    the_event_bus_on_servers,
    the_ratatoskr_flow_on_servers,
    the_event_bus_to_the_letter_and_a_dead_letter_that_somebody_shovels_back,
);

async fn the_event_bus_on_servers(version: RabbitVersion) {
    the_event_bus(Bus::servers(version).await).await;
}

async fn the_ratatoskr_flow_on_servers(version: RabbitVersion) {
    the_ratatoskr_flow(Bus::servers(version).await).await;
}

/// Only what the document has, its own status table, and dead letters that stay where its operators look for them.
async fn the_event_bus_to_the_letter_and_a_dead_letter_that_somebody_shovels_back(version: RabbitVersion) {
    let bus = Bus::servers(version).await;
    let receiver = Receiver::start(as_the_id_says).await;
    let config = format!(
        "[topology]\npreset = 'event-bus'\nstrict = true\n[topology.set]\nservice = ['wms-cincout']\nretry_delay_ms = 50\n{}",
        push("cincout", "wms.queue.wms-cincout", &receiver.url()),
    );
    let serving = bus.serve(&config);
    // One that will never pass, and one that does when somebody has mended what it needs.
    for id in ["404", "503x13"] {
        bus.put(&serving, ("wms.main-exchange", ""), id).await;
    }
    let foreign = bus.foreign.as_ref().unwrap();
    let queue = |name: &str| QueueName::new(name).unwrap();
    let mut dead = foreign.subscribe(&queue("wms.dlq.wms-cincout"), 10).await.unwrap();
    let (mut kept, mut moved) = (Vec::new(), None);
    while kept.len() < 2 {
        let next = tokio::time::timeout(std::time::Duration::from_mins(1), dead.next(1)).await.unwrap();
        let delivery = next.unwrap().remove(0);
        let header = |name: &str| delivery.message.headers.get(name).cloned();
        let number = |name: &str| header(name).and_then(|value| value.as_int());
        assert_eq!(header("x-original-queue"), Some(HeaderValue::from("wms.queue.wms-cincout")));
        assert_eq!(number("x-final-retry-count"), Some(10));
        assert!(header("x-final-error").is_some() && header("x-death").is_some());
        let id = delivery.message.properties.message_id.clone().unwrap();
        assert_eq!(number("x-final-status-code"), Some(if id == "404" { 404 } else { 503 }));
        assert_eq!(attempts(&receiver, &id).len(), 11, "{id}");
        if id != "404" {
            moved = Some(delivery.message.clone());
        }
        kept.push((delivery.receipt, Verdict::Ack));
    }
    // Somebody moves it back as it is, with every header that tells of its death.
    let (exchange, routing_key) =
        (ExchangeName::default_exchange(), RoutingKey::new("wms.queue.wms-cincout").unwrap());
    let sent = foreign.publish(vec![Outgoing { exchange, routing_key, message: moved.unwrap() }]).await;
    assert_eq!(sent, [Published::Confirmed]);
    dead.settler().settle(kept).await.unwrap();
    until(|| attempts(&receiver, "503x13").len() >= 14).await;
    assert_eq!(attempts(&receiver, "503x13")[11..], ["1", "2", "3"], "a fresh budget, and it passed");
    serving.wait_for_metric(r#"postrider_consumer_applied_total{consumer="cincout"} 1"#);
    assert_eq!(foreign.depth(&queue("wms.dlq.wms-cincout")).await.unwrap(), 0, "it did not bounce back");
}
