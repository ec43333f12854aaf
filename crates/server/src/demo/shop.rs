//! The demo's shop: orders come in, four services want to know.
//!
//! - **billing** writes an invoice and says so: an event caused by an event.
//! - **email** is flaky: its mail server fails now and then, and it is tried again.
//! - **warehouse** gets poison: an order it can never ship becomes a dead letter.
//! - **analytics** wants everything, follow-up events included.

use std::sync::Arc;
use std::time::Duration;

use postrider::handler::handler_fn;
use postrider::registry::Registry;
use postrider::runtime::Runtime;
use postrider::settlement::RetryPolicy;
use postrider::store::{Backend, StoreError};
use postrider::topology::{ExchangeKind, ExchangeName, Layout, ServiceQueue, Topology};
use postrider::{Broker, Clock, Event, Failure, Incoming, InvalidText};
use serde::{Deserialize, Serialize};

/// What the shop needs of a database beyond Postrider's own ports: its domain tables.
pub(crate) trait ShopStore: Backend {
    /// Creates the shop's tables where they are absent.
    fn create_tables(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Writes an order.
    fn insert_order(
        &self,
        tx: &mut Self::Tx,
        order: &Order,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Writes that a service applied an event, into a table that would show it twice.
    fn insert_effect(
        &self,
        tx: &mut Self::Tx,
        service: &str,
        event_id: &str,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// How many effects happened more than once. Should be none.
    fn doubled_effects(&self) -> impl Future<Output = Result<u64, StoreError>> + Send;
}

/// What a customer ordered.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Order {
    /// The order's own id.
    pub(super) id: String,
    /// Which order of this run it is.
    pub(super) number: u64,
    /// Who ordered.
    pub(super) customer: String,
    /// How many pieces; a poisoned order has less than none.
    pub(super) quantity: i64,
    /// What it costs, in cents.
    pub(super) total_cents: u64,
}

impl Order {
    /// The order that this seed and number always make.
    pub(super) fn make(seed: u64, number: u64, clock: &Clock) -> Self {
        const CUSTOMERS: [&str; 6] = ["ada", "bola", "chen", "dina", "emre", "femi"];
        let dice = Dice { seed, number };
        let customer =
            usize::try_from(dice.below("customer", CUSTOMERS.len() as u64)).map_or("", |at| CUSTOMERS[at]);
        Self {
            id: format!("order-{}", clock.new_id()),
            number,
            customer: customer.to_owned(),
            quantity: if dice.chance("poison", 0.02) {
                -1
            } else {
                1 + dice.below("quantity", 5).cast_signed()
            },
            total_cents: 500 + dice.below("total", 50_000),
        }
    }

    /// The event that is committed with the order.
    pub(super) fn placed(&self) -> Result<Event, Failure> {
        Ok(event("shop.order.placed", &self.id)?.tenant("demo-shop")?.json(self)?)
    }
}

/// Decisions that depend on the seed and the order alone, whatever runs when.
#[derive(Clone, Copy)]
pub(crate) struct Dice {
    pub(super) seed: u64,
    pub(super) number: u64,
}

impl Dice {
    /// A number below `sides`.
    pub(super) fn below(self, what: &str, sides: u64) -> u64 {
        self.roll(what) % sides.max(1)
    }

    /// Whether something of this probability happens.
    pub(super) fn chance(self, what: &str, probability: f64) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "53 bits are plenty for a die")]
        let roll = (self.roll(what) >> 11) as f64 / (1_u64 << 53) as f64;
        roll < probability
    }

    fn roll(self, what: &str) -> u64 {
        let start = self.seed ^ self.number.rotate_left(32);
        let mixed = what.bytes().fold(start, |hash, byte| mix(hash ^ u64::from(byte)));
        mix(mixed)
    }
}

/// Spreads every bit over all of them.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

const EXCHANGE: &str = "demo.shop.events";

/// An event of the shop. It names its exchange: on a database that others use too, another relay may publish it.
fn event(event_type: &str, order: &str) -> Result<Event, InvalidText> {
    Ok(Event::new(event_type)?.aggregate_id(order)?.exchange(ExchangeName::new(EXCHANGE)?))
}

/// A service's queue, bound by a key.
fn queue(name: &str, key: &str) -> Result<ServiceQueue, InvalidText> {
    let quick = RetryPolicy::ladder(10, [200, 500, 1000].map(Duration::from_millis));
    ServiceQueue::new(format!("demo.{name}"), quick)?.bind(&ExchangeName::new(EXCHANGE)?, key)
}

/// The shop's topology, to be looked at.
pub(super) fn layout() -> Result<Layout, InvalidText> {
    let exchange = ExchangeName::new(EXCHANGE)?;
    let named = ["billing", "email", "warehouse"].map(|name| queue(name, "shop.order.*"));
    let services = named.into_iter().chain([queue("analytics", "shop.#")]).collect::<Result<Vec<_>, _>>()?;
    let bare = Topology::default().exchange(exchange.clone(), ExchangeKind::Topic);
    Ok(Layout::of(services.iter().fold(bare, Topology::service), services, exchange))
}

/// The shop's four services, ready to start.
pub(super) fn open<S: ShopStore>(
    store: &S,
    broker: Arc<dyn Broker>,
    clock: Clock,
    seed: u64,
) -> Result<Runtime<S>, InvalidText> {
    Runtime::new(store.clone(), broker, clock)
        .exchange(ExchangeName::new(EXCHANGE)?, ExchangeKind::Topic)
        .operations()
        .consumer(
            "billing",
            queue("billing", "shop.order.*")?,
            service(store, "shop.order.placed", bill::<S>),
        )?
        .consumer(
            "email",
            queue("email", "shop.order.*")?,
            service(store, "shop.order.placed", move |_, event| send_mail(seed, event)),
        )?
        .consumer(
            "warehouse",
            queue("warehouse", "shop.order.*")?,
            service(store, "shop.order.placed", |_, event| ship(event)),
        )?
        .consumer("analytics", queue("analytics", "shop.#")?, service(store, "#", |_, _| Ok(Vec::new())))
}

/// A service: its own work decides, then its effect and what follows are written in the one transaction.
fn service<S, W>(store: &S, pattern: &str, work: W) -> Registry<S>
where
    S: ShopStore,
    W: Fn(&S, &Incoming) -> Result<Vec<Event>, Failure> + Clone + Send + Sync + 'static,
{
    let store = store.clone();
    Registry::new().on(
        pattern,
        handler_fn::<S, _>(move |tx, event| {
            let (store, work) = (store.clone(), work.clone());
            Box::pin(async move {
                let follow_ups = work(&store, event)?;
                store.insert_effect(tx, event.consumer.as_str(), event.envelope.id.as_str()).await?;
                store.append(tx, follow_ups).await?;
                Ok(())
            })
        }),
    )
}

fn bill<S>(_: &S, event: &Incoming) -> Result<Vec<Event>, Failure> {
    let order: Order = event.envelope.payload.parse()?;
    let invoice = serde_json::json!({ "order": order.id, "amount_cents": order.total_cents.to_string() });
    let issued = self::event("shop.invoice.issued", &order.id)?.json(&invoice)?;
    Ok(vec![issued.caused_by(&event.envelope)])
}

fn send_mail(seed: u64, event: &Incoming) -> Result<Vec<Event>, Failure> {
    let order: Order = event.envelope.payload.parse()?;
    let dice = Dice { seed, number: order.number };
    if dice.chance(&format!("mail {}", event.attempt), 0.25) {
        return Err(Failure::transient("421 the mail server is busy").class("smtp"));
    }
    Ok(Vec::new())
}

fn ship(event: &Incoming) -> Result<Vec<Event>, Failure> {
    let order: Order = event.envelope.payload.parse()?;
    if order.quantity < 1 {
        return Err(
            Failure::permanent(format_args!("cannot ship {} pieces", order.quantity)).class("bad_quantity")
        );
    }
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_makes_the_same_shop() {
        let clock = Clock::system();
        let orders =
            |seed| (0..500).map(|number| Order::make(seed, number, &clock).quantity).collect::<Vec<_>>();
        assert_eq!(orders(7), orders(7));
        assert_ne!(orders(7), orders(8));
        let poisoned = orders(7).iter().filter(|quantity| **quantity < 0).count();
        assert!((1..=30).contains(&poisoned), "{poisoned} of 500 orders are poisoned");
    }
}
