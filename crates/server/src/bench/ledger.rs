//! The ledger over plain SQL: the same transfers, the same PostgreSQL, the same run; then from RabbitMQ over the ledger alone.
//!
//! It works in a database of its own, which is removed afterwards: entries can never be deleted.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use postrider::broker::{Broker, Message, Outgoing, Published};
use postrider::envelope::TenantId;
use postrider::envelope::wire::Identity;
use postrider::postgres::{Postgres, PostgresConfig};
use postrider::topology::{ConsumerName, ExchangeName, ServiceQueue, Topology};
use postrider::{Clock, Envelope, Event};
use postrider_ledger::Ledger;
use postrider_ledger::account::{Account, AccountCode, AccountType};
use postrider_ledger::chart::Book;
use postrider_ledger::intake::{Intake, IntakeStatus};
use postrider_ledger::money::Currency;
use postrider_ledger::pipeline::{Answer, Arrival};
use postrider_ledger::sequencer::{MAX_BATCH, Sequencer};
use secrecy::ExposeSecret as _;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::plain_sql::PlainSql;
use super::processor::Processes;
use super::{Figure, Load, per_second};

/// Tenants whose transfers are spread over their accounts.
const TENANTS: usize = 8;
/// Accounts of each.
const ACCOUNTS: usize = 1000;
/// Many tenants that have little to post each, and the accounts of each.
const MANY_TENANTS: usize = 200;
const FEW_ACCOUNTS: usize = 20;
/// Tenants posted at the same time.
const SIDE_BY_SIDE: usize = 4;
/// Subscriptions, and deliveries in the hands of each, as the FIS document has them.
const SUBSCRIPTIONS: usize = 10;
const PREFETCH: u16 = 250;

const BOTH: &str = "PostgreSQL + RabbitMQ";

const RULES: &str = "[[rule]]\nname = 'transfer'\nmatch = 'bench.transfer.made'\ncurrency = 'payload.currency'\n\
    line = [{account='a:{payload.taker}',debit='payload.amount'},{account='a:{payload.giver}',credit='rest'}]\n";

/// Where it is measured.
pub(crate) struct LedgerBench<'a> {
    pub(crate) database: PostgresConfig,
    pub(crate) broker: &'a Arc<dyn Broker>,
    pub(crate) queue: &'a ServiceQueue,
    pub(crate) clock: &'a Clock,
    pub(crate) load: Load,
    /// Whose processor time is told apart.
    pub(crate) processes: Processes,
}

/// Who pays whom, and in whose books.
#[derive(Clone, Copy)]
enum Shape {
    /// Everybody pays somebody else.
    Spread,
    /// Everybody pays the same one.
    Hot,
    /// The same as spread, in the books of many small tenants.
    Many,
}

impl Shape {
    /// Each, and what their names begin with.
    const ALL: [(Self, &'static str); 3] =
        [(Self::Spread, "spread"), (Self::Hot, "hot"), (Self::Many, "many")];

    fn tenants(self) -> usize {
        match self {
            Self::Spread => TENANTS,
            Self::Hot => 1,
            Self::Many => MANY_TENANTS,
        }
    }

    /// Accounts of a tenant.
    fn accounts(self) -> usize {
        if matches!(self, Self::Many) { FEW_ACCOUNTS } else { ACCOUNTS }
    }

    fn transfer(self, number: usize) -> (usize, usize) {
        let others = self.accounts() - 1;
        let giver = 1 + number * 7919 % others;
        match self {
            // Never all the way round: nobody pays himself.
            Self::Spread | Self::Many => (giver, 1 + (giver + number % 97 % (others - 1)) % others),
            Self::Hot => (giver, 0),
        }
    }
}

impl LedgerBench<'_> {
    /// Every figure, and the database removed whatever happens.
    pub(crate) async fn figures(&self) -> anyhow::Result<Vec<Figure>> {
        let url = self.database.url.expose_secret();
        let name = format!("postrider_bench_{}", self.clock.new_id().simple());
        let mut door = PgConnection::connect(url).await?;
        sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut door).await?;
        let mut own = url::Url::parse(url)?;
        own.set_path(&name);
        let measured = self.measure(own.as_str()).await;
        sqlx::raw_sql(AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"))).execute(&mut door).await?;
        measured
    }

    async fn measure(&self, url: &str) -> anyhow::Result<Vec<Figure>> {
        let config = PostgresConfig { url: url.into(), ..self.database.clone() };
        let store = Postgres::connect(config, self.clock.clone()).await?;
        store.migrate().await?;
        let plain = PlainSql::open(url, TENANTS * ACCOUNTS).await?;
        let ledger =
            Ledger::new(store.clone(), self.clock.clone()).announcing(ExchangeName::new("bench.journal")?);
        for (shape, name) in Shape::ALL {
            for tenant in 0..shape.tenants() {
                open(&ledger, &format!("{name}-{tenant}")).await?;
            }
        }
        let (mut spread, mut hot, mut many, mut fed) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for round in 1..=self.load.rounds {
            spread.push(self.against_plain(&ledger, &plain, Shape::Spread, round).await?);
            hot.push(self.against_plain(&ledger, &plain, Shape::Hot, round).await?);
            many.push(self.against_plain(&ledger, &plain, Shape::Many, round).await?);
            let rate = spread.last().map_or(0.0, |(rate, _)| *rate);
            let ingested = self.ingest(&ledger, round).await?;
            eprintln!("round {round}: from the queue to the ack {ingested:.0}/s");
            fed.push((ingested, rate));
        }
        let verified = self.verified(&store).await?;
        plain.close().await;
        store.close().await;
        let backend = "PostgreSQL";
        let figures = [
            Figure::median("ledger over a posting function in SQL, spread accounts", backend, "/s", spread)
                .map(|figure| figure.aims_at(15.0)),
            Figure::median("ledger over a posting function in SQL, one hot account", backend, "/s", hot)
                .map(|figure| figure.aims_at(50.0)),
            Figure::median("ledger over a posting function in SQL, 200 tenants", backend, "/s", many),
            Figure::median("ledger from RabbitMQ to ack over the ledger alone", BOTH, "/s", fed)
                .map(|figure| figure.aims_at(0.5)),
        ];
        Ok(figures.into_iter().flatten().chain(verified).collect())
    }

    /// One round of both: what the ledger did a second, and what the function did.
    async fn against_plain(
        &self,
        ledger: &Ledger<Postgres>,
        plain: &PlainSql,
        shape: Shape,
        round: usize,
    ) -> anyhow::Result<(f64, f64)> {
        // A call at a time is slow: a fraction of the transfers tells as much.
        let fewer = self.load.events.div_ceil(10);
        let account = |number: usize, within: usize| (number % shape.tenants()) * shape.accounts() + within;
        let transfers = (0..fewer).map(|number| {
            let (giver, taker) = shape.transfer(number);
            (account(number, giver), account(number, taker))
        });
        // Rounds of all shapes share the table of events.
        let ids = round * Shape::ALL.len() + shape as usize;
        let took = plain.post(ids, Arc::new(transfers.collect()), self.clock).await?;
        let limit = per_second(fewer, took);
        let name = Shape::ALL[shape as usize].1;
        let before = self.processes.spent();
        let rate = per_second(self.load.events, self.post(ledger, shape, name, round).await?);
        let told = (self.processes.spent() - before).told(self.load.events);
        eprintln!("round {round}, {name}: plain SQL {limit:.0}/s, ledger {rate:.0}/s, {told}");
        Ok((rate, limit))
    }

    /// Submits all events as the intake does, and waits until they are posted.
    async fn post(
        &self,
        ledger: &Ledger<Postgres>,
        shape: Shape,
        name: &str,
        round: usize,
    ) -> anyhow::Result<Duration> {
        let mut of_tenants: Vec<(TenantId, Vec<Envelope>)> = Vec::new();
        for tenant in 0..shape.tenants() {
            let whose = TenantId::new(format!("{name}-{tenant}"))?;
            let numbers = (tenant..self.load.events).step_by(shape.tenants());
            let events = numbers.map(|number| self.event(shape, name, round, number));
            of_tenants.push((whose, events.collect::<anyhow::Result<_>>()?));
        }
        let stop = CancellationToken::new();
        let sequencer = Sequencer::new(ledger.clone(), SIDE_BY_SIDE, stop.clone());
        let start = self.clock.monotonic();
        let mut submitting = JoinSet::new();
        for (tenant, events) in of_tenants {
            let sequencer = sequencer.clone();
            submitting.spawn(async move {
                let submitted = futures_util::stream::iter(events).map(|envelope| {
                    let (sequencer, tenant) = (sequencer.clone(), tenant.clone());
                    async move { sequencer.submit(&tenant, Arrival::event(envelope)).await }
                });
                let mut answers = submitted.buffer_unordered(2 * MAX_BATCH);
                while let Some(answer) = answers.next().await {
                    anyhow::ensure!(matches!(answer?, Answer::Posted(_)), "an event was not posted");
                }
                Ok(())
            });
        }
        while let Some(ended) = submitting.join_next().await {
            ended??;
        }
        let took = self.clock.since(start);
        stop.cancel();
        sequencer.finish().await;
        Ok(took)
    }

    /// Publishes spread transfers to a queue, and takes them into the books. The clock runs until the last one is acked.
    async fn ingest(&self, ledger: &Ledger<Postgres>, round: usize) -> anyhow::Result<f64> {
        self.broker.declare(&Topology::default().service(self.queue)).await?;
        let numbers: Vec<usize> = (0..self.load.events).collect();
        for chunk in numbers.chunks(1000) {
            let messages = chunk.iter().map(|number| {
                let body = foreign_body(*number, round);
                Outgoing::to_queue(
                    self.queue.name(),
                    Message { body: body.into_bytes().into(), ..Message::default() },
                )
            });
            let answers = self.broker.publish(messages.collect()).await;
            anyhow::ensure!(answers.iter().all(|answer| *answer == Published::Confirmed), "not confirmed");
        }
        let (stop, status) = (CancellationToken::new(), Arc::<IntakeStatus>::default());
        let mut service = self.queue.clone();
        service.identity = Identity::fis();
        service.identity.event_type = vec![postrider::envelope::wire::Place::parse("/type")];
        let intake = Arc::new(Intake {
            sequencer: Sequencer::new(ledger.clone(), SIDE_BY_SIDE, stop.clone()),
            broker: self.broker.clone(),
            service,
            name: ConsumerName::new("bench")?,
            tenant: None,
            prefetch: PREFETCH,
            sight: None,
            clock: self.clock.clone(),
            status: status.clone(),
        });
        let start = self.clock.monotonic();
        let mut running = JoinSet::new();
        for _ in 0..SUBSCRIPTIONS {
            running.spawn(intake.clone().run(stop.clone()));
        }
        while status.posted() < self.load.events as u64 {
            anyhow::ensure!(status.refused() == 0, "events were refused");
            self.clock.sleep(Duration::from_millis(2)).await;
        }
        stop.cancel();
        while let Some(ended) = running.join_next().await {
            ended??;
        }
        Ok(per_second(self.load.events, self.clock.since(start)))
    }

    fn event(&self, shape: Shape, name: &str, round: usize, number: usize) -> anyhow::Result<Envelope> {
        let (giver, taker) = shape.transfer(number);
        let payload = serde_json::json!({ "giver": giver.to_string(), "taker": taker.to_string(), "amount": "1.00", "currency": "EUR" });
        let event = Event::new("bench.transfer.made")?.id(format!("{name}_{round}_{number}"))?;
        Ok(event.json(&payload)?.into_envelope(self.clock))
    }
}

/// A transfer of a tenant whose transfers are spread, as a foreign producer would send it.
fn foreign_body(number: usize, round: usize) -> String {
    let (giver, taker) = Shape::Spread.transfer(number);
    format!(
        r#"{{"eventId": "queue_{round}_{number}", "tenantId": "spread-{}", "type": "bench.transfer.made", "giver": "{giver}", "taker": "{taker}", "amount": "1.00", "currency": "EUR"}}"#,
        number % TENANTS
    )
}

async fn open(ledger: &Ledger<Postgres>, tenant: &str) -> anyhow::Result<()> {
    let book = Book::new(TenantId::new(tenant)?, Currency::new("EUR")?);
    let account = Account {
        code: AccountCode::new("a")?,
        name: String::new(),
        kind: AccountType::Asset,
        normal_side: None,
        currency: None,
        active: true,
        opens_children: true,
    };
    ledger.open_books(&book, &[account], RULES).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_pays_himself_and_all_accounts_exist() {
        for (shape, name) in Shape::ALL {
            for number in 0..100_000 {
                let (giver, taker) = shape.transfer(number);
                assert_ne!(giver, taker, "{name}, {number}");
                assert!(giver < shape.accounts() && taker < shape.accounts(), "{name}, {number}");
            }
        }
    }
}
