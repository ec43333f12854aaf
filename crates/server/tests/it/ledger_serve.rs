//! The ledger of a running `serve`: a queue's events in the books, what is refused among the dead letters, and everybody told.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use postrider::broker::{Broker as _, Message, Outgoing, Published, Verdict};
use postrider::rabbitmq::{RabbitMq, RabbitMqConfig};
use postrider::topology::{ExchangeName, QueueName, RoutingKey};
use postrider::{Clock, topology::VhostName};
use postrider_testkit::servers::{TestDatabase, TestVhost, shared};
use rustix::process::Signal;
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};

use super::process::{Folder, Serving};

pub(super) const CONFIG: &str = r#"
[topology]
preset = "fis"
[ledger]
queue = "fis.ingestion.queue"
announce_exchange = "fis.domain.exchange"
"#;
const ON_SERVERS: &str = r#"
outbox = "fis_outbox"
[[outbox.table]]
name = "fis_outbox"
exchange = "fis.domain.exchange"
"#;
const JOURNAL: &str = r#"
[[queue]]
name = "journal"
bind = ["fis.domain.exchange:fis.journal.*"]
"#;
/// A generous limit for what a test waits for.
pub(super) const LIMIT: Duration = Duration::from_mins(2);

/// The journal events that came out: the entry, by the id of the event. So many are waited for.
pub(super) async fn journal(broker: &RabbitMq, count: usize) -> BTreeMap<String, (String, String)> {
    let mut subscription = broker.subscribe(&QueueName::new("journal").unwrap(), 500).await.unwrap();
    let (settler, mut told) = (subscription.settler(), BTreeMap::new());
    while told.len() < count {
        let came = tokio::time::timeout(LIMIT, subscription.next(500)).await;
        let came = came.unwrap_or_else(|_| panic!("only {} of {count} were told", told.len())).unwrap();
        let mut settled = Vec::new();
        for delivery in came {
            let event: Value = serde_json::from_slice(&delivery.message.body).unwrap();
            settled.push((delivery.receipt, Verdict::Ack));
            let text = |name: &str| event["payload"][name].as_str().map(str::to_owned);
            let id = delivery.message.properties.message_id.clone().unwrap();
            // Checkpoints are told of here too, and name no entry.
            told.extend(text("tenantId").zip(text("entry")).map(|entry| (id, entry)));
        }
        settler.settle(settled).await.unwrap();
    }
    told
}

/// Servers with the books of these tenants, and a broker to publish by as others do.
pub(super) struct Stage {
    pub(super) folder: Folder,
    pub(super) broker: RabbitMq,
    pub(super) database: TestDatabase,
    pub(super) vhost: TestVhost,
}

impl Stage {
    pub(super) async fn new(tenants: &[&str]) -> Self {
        let servers = shared().unwrap();
        let (database, vhost) = (servers.database().await.unwrap(), servers.vhost().await.unwrap());
        let folder = Folder::new()
            .with("DATABASE_URL", &database.url)
            .with("RABBITMQ_URL", &vhost.amqp_url)
            .with("REDIS_URL", &servers.redis_url);
        let name = VhostName::new(&vhost.name).unwrap();
        let config = CONFIG.replace("preset = \"fis\"", &format!("preset = \"fis\"\nvhost = \"{name}\""));
        folder.write("postrider.toml", &format!("{config}{ON_SERVERS}{JOURNAL}"));
        folder.run(&["db", "migrate"]).assert(0, "made the outbox fis_outbox");
        for tenant in tenants {
            folder
                .run(&["ledger", "--tenant", tenant, "accounts", "init", "--base", "EUR"])
                .assert(0, "opened");
        }
        let broker = RabbitMq::connect(RabbitMqConfig::new(&vhost.amqp_url), Clock::system()).await.unwrap();
        Self { folder, broker, database, vhost }
    }

    /// Publishes bodies as a foreign producer does: identity in the body, the type in the routing key.
    async fn publish(&self, bodies: Vec<String>) {
        let outgoing = |body: String| Outgoing {
            exchange: ExchangeName::new("fis.events.exchange").unwrap(),
            routing_key: RoutingKey::new("payroll.salary.disbursed").unwrap(),
            message: Message { body: body.into_bytes().into(), ..Message::default() },
        };
        let answers = self.broker.publish(bodies.into_iter().map(outgoing).collect()).await;
        assert!(answers.iter().all(|answer| *answer == Published::Confirmed), "{answers:?}");
    }

    /// What became of dead letters, by event: their class. So many are waited for.
    fn letters(&self, count: usize) -> BTreeMap<String, String> {
        let clock = Clock::system();
        let start = clock.monotonic();
        loop {
            let lines = self.folder.run(&["dlq", "export"]).assert(0, "").out;
            let letters: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            if letters.len() >= count {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                return letters
                    .iter()
                    .map(|one| (text(&one["event_id"]), text(&one["error_class"])))
                    .collect();
            }
            assert!(clock.since(start) < LIMIT, "only {} of {count} dead letters", letters.len());
        }
    }
}

fn salary(tenant: &str, id: &str, gross: &str, currency: &str) -> String {
    format!(
        r#"{{"eventId": "{id}", "tenantId": "{tenant}", "employeeId": "e", "gross": {gross}, "currency": "{currency}", "paidOn": "2026-03-01"}}"#
    )
}

/// The sum of all metrics whose names begin so.
fn metric(serving: &Serving, name: &str) -> u64 {
    let (_, _, text) = serving.http("GET", "/v1/metrics", &[], "");
    let of_it = text.lines().filter(|line| line.starts_with(name));
    of_it.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

pub(super) fn wait_for(serving: &Serving, name: &str, least: u64) {
    let clock = Clock::system();
    let start = clock.monotonic();
    while metric(serving, name) < least {
        assert!(clock.since(start) < LIMIT, "{name} is {} and not {least}", metric(serving, name));
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// What Redis has under a key, by its own protocol.
fn redis(key: &str) -> String {
    let url = shared().unwrap().redis_url;
    let place = url.trim_start_matches("redis://").split('/').next().unwrap().to_owned();
    let mut stream = TcpStream::connect(place.rsplit('@').next().unwrap()).unwrap();
    stream.write_all(format!("GET {key}\r\nQUIT\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    let _closed = stream.read_to_string(&mut answer);
    answer
}

/// Waits until Redis has this word under a key: it is written without waiting.
fn noted(key: &str, word: &str) {
    let clock = Clock::system();
    let start = clock.monotonic();
    while !redis(key).contains(word) {
        assert!(clock.since(start) < LIMIT, "{key} has {} and not {word}", redis(key));
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// The payload of the next event that tells of a checkpoint.
async fn next_checkpoint(broker: &RabbitMq) -> Value {
    let mut subscription = broker.subscribe(&QueueName::new("journal").unwrap(), 10).await.unwrap();
    let settler = subscription.settler();
    loop {
        let came = tokio::time::timeout(LIMIT, subscription.next(1)).await;
        let came = came.unwrap_or_else(|_| panic!("no checkpoint was told")).unwrap();
        for delivery in came {
            let event: Value = serde_json::from_slice(&delivery.message.body).unwrap();
            settler.settle(vec![(delivery.receipt, Verdict::Ack)]).await.unwrap();
            if event["payload"]["root"].is_string() {
                return event["payload"].clone();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_of_foreign_events_becomes_entries_and_dead_letters_with_their_reasons() {
    let stage = Stage::new(&["acme"]).await;
    let mut serving = stage.folder.serve(&[]);
    let roles = serving.wait_for("serving");
    assert!(roles.ends_with("ledger"), "{roles}");
    let bodies = [
        salary("acme", "evt_1", "\"100.50\"", "EUR"),
        salary("acme", "evt_1", "\"100.50\"", "EUR"),
        salary("acme", "evt_2", "1.005", "EUR"),
        salary("acme", "evt_3", "7", "USD"),
        salary("nobody", "evt_4", "7", "EUR"),
        salary("acme", "evt_1", "7", "EUR"),
        r#"{"eventId": "evt_6", "gross": 1}"#.to_owned(),
        "nonsense".to_owned(),
    ];
    stage.publish(bodies.to_vec()).await;
    let letters = stage.letters(6);
    let expected = [
        ("", "malformed"),
        ("evt_1", "conflict"),
        ("evt_2", "too_many_digits"),
        ("evt_3", "missing_rate"),
        ("evt_4", "unknown_tenant"),
        ("evt_6", "no_tenant"),
    ];
    let expected: BTreeMap<_, _> = expected.map(|(id, class)| (id.to_owned(), class.to_owned())).into();
    assert_eq!(letters, expected);
    wait_for(&serving, "postrider_ledger_posted_total", 1);
    // How far behind it is can be seen, and raises the same alert as that of any consumer.
    serving.wait_for_metric(r#"postrider_consumer_lag_messages{consumer="ledger"} 0"#);
    noted("fis:ik:acme:evt_2", "FAILED");
    noted("fis:ik:acme:evt_1", "COMPLETED");

    // The cause is mended, and what was refused is sent again.
    stage
        .folder
        .run(&["ledger", "--tenant", "acme", "rates", "add", "USD", "0.5", "--on", "2026-03-01"])
        .assert(0, "");
    stage.folder.run(&["dlq", "replay", "--event", "evt_3", "--yes"]).assert(0, "");
    wait_for(&serving, "postrider_ledger_posted_total", 2);
    let told: BTreeSet<_> = journal(&stage.broker, 2).await.into_values().collect();
    assert_eq!(told, BTreeSet::from(["1", "2"].map(|entry| ("acme".to_owned(), entry.to_owned()))));
    stage.folder.run(&["ledger", "verify"]).assert(0, "hold");
    serving.signal(Signal::TERM);
    let (code, said) = serving.ended();
    assert_eq!((code, said.last().map(String::as_str)), (0, Some("stopped")), "{said:#?}");

    // Whoever starts signs what is there, and tells of it.
    let serving = stage.folder.serve(&[]);
    let told = next_checkpoint(&stage.broker).await;
    assert_eq!(
        (&told["tenantId"], &told["first"], &told["last"]),
        (&json!("acme"), &json!("1"), &json!("2"))
    );
    let (_, _, kept) = serving.http("GET", "/v1/ledger/acme/checkpoints", &[], "");
    let kept: Value = serde_json::from_str(&kept).unwrap();
    assert_eq!(
        (&told["root"], &told["signature"]),
        (&kept["checkpoints"][0]["root"], &kept["checkpoints"][0]["signature"])
    );
    let key = told["publicKey"].as_str().unwrap();
    stage.folder.run(&["ledger", "verify", "--key", key]).assert(0, "pinned");
}

/// 2,000 events of four tenants, each sent twice; a tenth of them are bad, and a fiftieth say something else the second time. Somebody
/// holds the books of one tenant while the ledger is killed, so that it dies with work in hand however fast it is.
#[tokio::test(flavor = "multi_thread")]
async fn killed_twice_the_ledger_posts_every_event_once() {
    const EVENTS: usize = 2_000;
    const MORE: usize = 400;
    let tenants = ["t0", "t1", "t2", "t3"];
    let stage = Stage::new(&tenants).await;
    let mut others = stage.folder.start(&["serve", "--roles", "relay,collector"]);
    others.wait_for("serving");
    let (is_bad, differs) = (|n: usize| n % 10 == 3, |n: usize| n % 50 == 7);
    let good = (0..EVENTS).filter(|n| !is_bad(*n)).count() + MORE;
    let mut holder = PgConnection::connect(&stage.database.url).await.unwrap();
    let hold = "BEGIN; SELECT FROM postrider.ledger_book WHERE tenant = 't0' FOR UPDATE";
    sqlx::raw_sql(hold).execute(&mut holder).await.unwrap();
    for round in 0..2 {
        let body = |n: usize| {
            let gross = match n {
                n if is_bad(n) => "-1".to_owned(),
                n if differs(n) => format!("{}", 10 + round),
                _ => "10.01".to_owned(),
            };
            salary(tenants[n % tenants.len()], &format!("evt_{n}"), &gross, "EUR")
        };
        stage.publish((0..EVENTS).map(body).collect()).await;
        let serving = stage.folder.serve(&["--roles", "ledger,api"]);
        wait_for(&serving, "postrider_ledger_", 200);
        serving.signal(Signal::KILL);
        serving.ended();
        let entries =
            stage.folder.run(&["ledger", "--tenant", "t0", "entries", "ls", "--json"]).assert(0, "").json();
        assert_eq!(entries, json!([]), "killed with these in hand");
    }
    // Two processes share what is left, tenant by tenant.
    let mut serving = stage.folder.serve(&["--roles", "ledger,api"]);
    serving.wait_for("serving");
    let mut second = stage.folder.serve(&["--roles", "ledger,api"]);
    second.wait_for("serving");
    let more: Vec<_> = (0..MORE).map(|n| salary(tenants[n % 4], &format!("more_{n}"), "1", "EUR")).collect();
    stage.publish([more.clone(), more].concat()).await;
    holder.close().await.unwrap();

    // Whatever order they came in: each good event is an entry, each bad one and each second payload a dead letter.
    let letters = stage.letters(EVENTS + MORE - good + EVENTS / 50);
    let class = |n: usize| letters.get(&format!("evt_{n}")).map(String::as_str);
    for n in 0..EVENTS {
        let expected = match n {
            n if is_bad(n) => Some("amount_not_positive"),
            n if differs(n) => Some("conflict"),
            _ => None,
        };
        assert_eq!(class(n), expected, "evt_{n}");
    }
    let told = journal(&stage.broker, good).await;
    let entries: BTreeSet<_> = told.values().collect();
    assert_eq!((told.len(), entries.len()), (good, good), "one journal event for each entry");
    for process in [serving, second] {
        process.signal(Signal::TERM);
        assert_eq!(process.ended().0, 0);
    }
    let queue = QueueName::new("fis.ingestion.queue").unwrap();
    assert_eq!(stage.broker.depth(&queue).await.unwrap(), 0, "nothing is left");

    let verified = stage.folder.run(&["ledger", "verify", "--json"]).assert(0, "").json();
    let numbers = verified.as_array().unwrap().iter().map(|one| one["entries"].as_str().unwrap());
    assert_eq!(numbers.map(|number| number.parse::<usize>().unwrap()).sum::<usize>(), good, "{verified}");
    for tenant in tenants {
        stage.folder.run(&["ledger", "--tenant", tenant, "trial-balance"]).assert(0, "equal");
    }
}

#[test]
fn the_embedded_broker_feeds_the_books_too() {
    let folder = Folder::new();
    folder.write("postrider.toml", &format!("{CONFIG}{JOURNAL}"));
    folder.run(&["ledger", "--tenant", "acme", "accounts", "init", "--base", "EUR"]).assert(0, "opened");
    let serving = folder.serve(&[]);
    let data = r#"{"employeeId": "e", "gross": "10.01", "currency": "EUR", "paidOn": "2026-03-01"}"#;
    let publish = ["publish", "payroll.salary.disbursed", "--tenant", "acme", "--id", "s-1", "--data", data];
    folder.run(&publish).assert(0, "s-1");
    wait_for(&serving, "postrider_ledger_posted_total", 1);
    let shown = folder.run(&["ledger", "entries", "show", "1", "--json"]).assert(0, "").json();
    assert_eq!((&shown["sourceEvent"], &shown["lines"][0]["amount"]), (&json!("s-1"), &json!("10.01")));
}

#[test]
fn a_ledger_without_a_queue_says_what_to_set() {
    let folder = Folder::new();
    folder.run(&["serve", "--roles", "ledger"]).assert(2, "set ledger.queue");
    folder.write("postrider.toml", "[ledger]\nqueue = 'nowhere'");
    folder.run(&["serve"]).assert(2, "nowhere is no queue that is consumed here");
    folder.write("postrider.toml", "[ledger]\noutbox = 'fis_outbox'");
    folder.run(&["serve"]).assert(2, "add [[outbox.table]]");
}
