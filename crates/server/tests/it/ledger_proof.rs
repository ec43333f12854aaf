//! The proof of the ledger: events of 50 tenants come from RabbitMQ with duplicates, conflicts, bad ones and three currencies, while the
//! ledger's process, a backend of PostgreSQL, Redis and a node of the broker are killed. Then every event is in the books once or
//! among the dead letters with its reason, everything adds up, and programs that are not ours agree.
//!
//! `scripts/ledger-proof --events N` runs it with another number of events.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use jiff::civil::date;
use postrider::Clock;
use postrider::broker::{Broker as _, Message, Outgoing, Published};
use postrider::envelope::TenantId;
use postrider::postgres::{Postgres as Store, PostgresConfig};
use postrider::rabbitmq::{RabbitMq, RabbitMqConfig};
use postrider::topology::{ExchangeName, QueueName, RoutingKey};
use postrider_ledger::Ledger;
use postrider_ledger::account::{Account, AccountCode};
use postrider_ledger::chart::{Book, DayRate};
use postrider_ledger::money::Currency;
use postrider_ledger::rules::ready;
use postrider_testkit::servers::{Postgres, RabbitCluster, Redis};
use rustix::process::{Pid, Signal, kill_process};
use sqlx::{Connection as _, PgConnection, Row as _};

use super::ledger_serve::journal;
use super::process::{Folder, PYTHON, Serving};

const TENANTS: usize = 50;
const CONFIG: &str = r#"
[topology]
preset = "fis"
vhost = "/"
[ledger]
queue = "fis.ingestion.queue"
announce_exchange = "fis.domain.exchange"
outbox = "fis_outbox"
[[outbox.table]]
name = "fis_outbox"
exchange = "fis.domain.exchange"
[[queue]]
name = "journal"
bind = ["fis.domain.exchange:fis.journal.*"]
"#;
const PUBLISHED_AT_ONCE: usize = 500;
/// A generous limit for what is waited for.
const LIMIT: Duration = Duration::from_mins(8);
const POLL: Duration = Duration::from_millis(100);

#[allow(clippy::disallowed_methods, reason = "how much is proved is asked for by whoever runs it")]
fn events() -> usize {
    std::env::var("POSTRIDER_LEDGER_EVENTS").map_or(5_000, |number| number.parse().unwrap())
}

/// What has to become of an event.
#[derive(Debug, PartialEq)]
enum Fate {
    Posted,
    /// One of its two payloads is posted, the other refused.
    Conflict,
    Refused(&'static str),
}

fn fate(n: usize) -> Fate {
    match n {
        n if n % 10 == 3 => Fate::Refused("amount_not_positive"),
        n if n % 100 == 21 => Fate::Refused("missing_rate"),
        n if n % 50 == 7 => Fate::Conflict,
        _ => Fate::Posted,
    }
}

/// Every tenant gets some of everything.
fn tenant(n: usize) -> String {
    format!("t{:02}", (n + n / TENANTS) % TENANTS)
}

/// An event as foreign producers send it: what it is in the routing key, all else in the body.
fn message(n: usize, copy: usize) -> Outgoing {
    let currency = match n {
        n if n % 100 == 21 => "CHF",
        n if n % 7 == 0 => "USD",
        n if n % 11 == 0 => "JPY",
        _ => "EUR",
    };
    let whole = 10 + n % 900 + if fate(n) == Fate::Conflict { copy } else { 0 };
    let amount = match (fate(n), currency) {
        (Fate::Refused("amount_not_positive"), _) => "-1".to_owned(),
        (_, "JPY") => whole.to_string(),
        _ => format!("{whole}.{:02}", n % 100),
    };
    let (key, own) = match n % 3 {
        0 => (
            "ecommerce.order.completed",
            format!(
                r#""orderId": "o{n}", "customerId": "c{}", "total": {amount}, "tax": "1", "completedAt": "2026-03-01""#,
                n % 20
            ),
        ),
        1 => (
            "payroll.salary.disbursed",
            format!(r#""employeeId": "e{}", "gross": "{amount}", "paidOn": "2026-03-01""#, n % 20),
        ),
        _ => (
            "billing.invoice.paid",
            format!(
                r#""invoiceId": "i{n}", "customerId": "c{}", "amount": {amount}, "paidAt": "2026-03-01""#,
                n % 20
            ),
        ),
    };
    let body =
        format!(r#"{{"eventId": "evt_{n}", "tenantId": "{}", "currency": "{currency}", {own}}}"#, tenant(n));
    Outgoing {
        exchange: ExchangeName::new("fis.events.exchange").unwrap(),
        routing_key: RoutingKey::new(key).unwrap(),
        message: Message { body: body.into_bytes().into(), ..Message::default() },
    }
}

/// Every event, and a fifth of them a second time among the others, conflicts too.
async fn publish_all(broker: RabbitMq, count: usize) {
    let again = |n: &usize| n % 5 == 2;
    let all: Vec<(usize, usize)> = (0..count)
        .flat_map(|n| {
            let earlier = n.checked_sub(50).filter(again);
            [Some((n, 0)), earlier.map(|n| (n, 1))].into_iter().flatten()
        })
        .chain((count.saturating_sub(50)..count).filter(again).map(|n| (n, 1)))
        .collect();
    for chunk in all.chunks(PUBLISHED_AT_ONCE) {
        let mut left: Vec<(usize, usize)> = chunk.to_vec();
        // What was not confirmed is sent again: a duplicate more.
        while !left.is_empty() {
            let answers = broker.publish(left.iter().map(|(n, copy)| message(*n, *copy)).collect()).await;
            left = left
                .into_iter()
                .zip(answers)
                .filter(|(_, answer)| *answer != Published::Confirmed)
                .map(|(one, _)| one)
                .collect();
        }
    }
}

/// All servers, each our own to kill.
struct Stage {
    postgres: Postgres,
    redis: Redis,
    cluster: RabbitCluster,
    folder: Folder,
    clock: Clock,
}

impl Stage {
    async fn new() -> Self {
        let (postgres, redis, cluster) =
            tokio::try_join!(Postgres::start(), Redis::start(), RabbitCluster::start()).unwrap();
        let nodes: Vec<String> = (0..3).map(|node| cluster.amqp_url(node)).collect();
        let folder = Folder::new()
            .with("DATABASE_URL", &postgres.url())
            .with("RABBITMQ_URL", &nodes.join(","))
            .with("REDIS_URL", &redis.url());
        folder.write("postrider.toml", CONFIG);
        folder.run(&["db", "migrate"]).assert(0, "made the outbox fis_outbox");
        let stage = Self { postgres, redis, cluster, folder, clock: Clock::system() };
        stage.open_books().await;
        stage
    }

    async fn open_books(&self) {
        #[derive(serde::Deserialize)]
        struct Chart {
            account: Vec<Account>,
        }
        let chart: Chart = toml::from_str(ready::CHART).unwrap();
        let (eur, config) = (Currency::new("EUR").unwrap(), PostgresConfig::new(self.postgres.url()));
        let store = Store::connect(config, self.clock.clone()).await.unwrap();
        let ledger = Ledger::new(store.clone(), self.clock.clone());
        for n in 0..TENANTS {
            // The first so many events are of so many tenants.
            let mut book = Book::new(TenantId::new(tenant(n)).unwrap(), eur);
            book.rounding_account = Some(AccountCode::new("rounding").unwrap());
            assert!(ledger.open_books(&book, &chart.account, ready::RULES).await.unwrap());
            let rates = [("USD", "0.9213"), ("JPY", "0.0061234")].map(|(quote, rate)| DayRate {
                source: String::new(),
                base: eur,
                quote: Currency::new(quote).unwrap(),
                day: date(2026, 3, 1),
                rate: rate.parse().unwrap(),
            });
            ledger.set_rates(&book.tenant, &rates).await.unwrap();
        }
        store.close().await;
    }

    async fn broker(&self) -> RabbitMq {
        RabbitMq::connect(RabbitMqConfig::new(self.cluster.amqp_url(1)), self.clock.clone()).await.unwrap()
    }

    fn ledger(&self) -> Serving {
        self.folder.serve(&["--roles", "ledger,api"])
    }

    /// Asks until PostgreSQL answers: it may be starting again.
    async fn ask(&self, sql: &'static str) -> Vec<sqlx::postgres::PgRow> {
        let start = self.clock.monotonic();
        loop {
            let asked = async {
                let mut connection = PgConnection::connect(&self.postgres.url()).await?;
                sqlx::query(sql).fetch_all(&mut connection).await
            };
            match asked.await {
                Ok(rows) => return rows,
                Err(error) => assert!(self.clock.since(start) < LIMIT, "{error}"),
            }
            self.clock.sleep(POLL).await;
        }
    }

    async fn posted(&self) -> usize {
        let rows = self.ask("SELECT COALESCE(sum(head_number), 0)::bigint FROM postrider.ledger_book").await;
        usize::try_from(rows[0].get::<i64, _>(0)).unwrap()
    }

    async fn until_posted(&self, least: usize) {
        let start = self.clock.monotonic();
        while self.posted().await < least {
            assert!(self.clock.since(start) < LIMIT, "only {} of {least} were posted", self.posted().await);
            self.clock.sleep(POLL).await;
        }
    }

    /// The dead letters by event. So many are waited for.
    async fn letters(&self, count: usize) -> BTreeMap<String, BTreeSet<String>> {
        let start = self.clock.monotonic();
        loop {
            let rows =
                self.ask("SELECT event_id, COALESCE(error_class, reason) FROM postrider.dead_letter").await;
            let mut letters: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
            for row in rows {
                letters.entry(row.get(0)).or_default().insert(row.get(1));
            }
            if letters.len() >= count {
                return letters;
            }
            assert!(self.clock.since(start) < LIMIT, "only {} of {count} dead letters", letters.len());
            self.clock.sleep(POLL).await;
        }
    }

    /// kill -9 of a process that works for the ledger inside PostgreSQL: all connections end, and it recovers from its log.
    async fn kill_a_backend(&self) {
        let busy = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() \
             ORDER BY (query LIKE '%ledger_%') DESC, state LIMIT 1";
        let rows = self.ask(busy).await;
        kill_process(Pid::from_raw(rows[0].get(0)).unwrap(), Signal::KILL).unwrap();
    }
}

fn program(folder: &Folder, name: &str, args: &[&str]) -> String {
    let ran = Command::new(name).args(args).current_dir(folder.path()).output().unwrap();
    assert!(ran.status.success(), "{name} {args:?}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

/// hledger comes to the balances of our trial balance, to the last digit.
fn hledger_agrees(folder: &Folder, tenant: &str) {
    let journal =
        folder.run(&["ledger", "--tenant", tenant, "export", "--format", "hledger"]).assert(0, "").out;
    folder.write("journal.hledger", &journal);
    let balance = ["-f", "journal.hledger", "balance", "-N", "--flat", "-E", "-O", "csv", "--layout", "bare"];
    let theirs = program(folder, "hledger", &balance);
    let ours = folder.run(&["ledger", "--tenant", tenant, "trial-balance", "--json"]).assert(0, "").json();
    let cents = |text: &str| -> i128 {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        format!("{whole}{fraction:0<4}").parse().unwrap()
    };
    for row in ours["rows"].as_array().unwrap() {
        let text = |name: &str| row[name].as_str().unwrap();
        let there = theirs.lines().find_map(|line| {
            let cells: Vec<_> = line.split(',').map(|cell| cell.trim_matches('"')).collect();
            (cells[0] == text("account") && cells[1] == text("currency")).then(|| cents(cells[2]))
        });
        let here = cents(text("debits")) - cents(text("credits"));
        assert_eq!(there.unwrap_or(0), here, "{tenant}: {row}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_on_every_side_the_ledger_posts_every_event_once_or_says_why_not() {
    let count = events();
    let stage = Stage::new().await;
    let mut others = stage.folder.start(&["serve", "--roles", "relay,collector"]);
    others.wait_for("serving");
    let publishing = tokio::spawn(publish_all(stage.broker().await, count));
    let good = (0..count).filter(|n| !matches!(fate(*n), Fate::Refused(_))).count();

    let serving = stage.ledger();
    stage.until_posted(good / 10).await;
    serving.signal(Signal::KILL);
    serving.ended();
    let serving = stage.ledger();
    stage.until_posted(good / 4).await;
    stage.kill_a_backend().await;
    stage.until_posted(good / 5 * 2).await;
    stage.redis.kill().unwrap();
    stage.until_posted(good / 2).await;
    stage.redis.restart().await.unwrap();
    stage.until_posted(good / 5 * 3).await;
    stage.cluster.kill(0).unwrap();
    stage.until_posted(good / 4 * 3).await;
    serving.signal(Signal::KILL);
    serving.ended();
    let serving = stage.ledger();
    stage.cluster.restart(0).await.unwrap();
    publishing.await.unwrap();

    stage.until_posted(good).await;
    let is_dead = |n: &usize| fate(*n) != Fate::Posted;
    let letters = stage.letters((0..count).filter(is_dead).count()).await;
    for n in 0..count {
        let expected = match fate(n) {
            Fate::Posted => None,
            Fate::Conflict => Some("conflict"),
            Fate::Refused(code) => Some(code),
        };
        let found = letters.get(&format!("evt_{n}")).map(|codes| codes.iter().map(String::as_str).collect());
        assert_eq!(found, expected.map(|code| vec![code]), "evt_{n}");
    }
    let told = journal(&stage.broker().await, good).await;
    let entries: BTreeSet<_> = told.values().collect();
    assert_eq!((told.len(), entries.len()), (good, good), "one journal event for each entry");
    serving.signal(Signal::TERM);
    assert_eq!(serving.ended().0, 0);
    let queue = QueueName::new("fis.ingestion.queue").unwrap();
    assert_eq!(stage.broker().await.depth(&queue).await.unwrap(), 0, "nothing is left");

    let rows = stage.ask("SELECT tenant, source_event FROM postrider.ledger_entry").await;
    let posted: BTreeSet<(String, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let should = (0..count).filter(|n| !matches!(fate(*n), Fate::Refused(_)));
    let should: BTreeSet<_> = should.map(|n| (tenant(n), format!("evt_{n}"))).collect();
    assert_eq!(
        (rows.len(), posted == should),
        (good, true),
        "every good event is in its tenant's books, once"
    );
    let sums = "SELECT currency, sum(amount * (3 - 2 * side))::bigint, sum(base_amount * (3 - 2 * side))::bigint, count(*) \
        FROM postrider.ledger_line GROUP BY currency ORDER BY currency";
    let rows = stage.ask(sums).await;
    let currencies: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(currencies, ["EUR", "JPY", "USD"]);
    assert!(rows.iter().all(|row| row.get::<i64, _>(1) == 0), "debits equal credits in every currency");
    assert_eq!(rows.iter().map(|row| row.get::<i64, _>(2)).sum::<i64>(), 0, "and in base, residues included");

    stage.folder.run(&["ledger", "verify"]).assert(0, "hold");
    let python = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ledger-verify.py");
    let said = program(&stage.folder, PYTHON, &[python, "--postgres", &stage.postgres.url()]);
    assert_eq!(said.matches("holds").count(), TENANTS, "{said}");
    for n in [0, 17, 49] {
        hledger_agrees(&stage.folder, &tenant(n));
    }
    println!("{count} events: {good} entries, {} dead letters", letters.len());
}
