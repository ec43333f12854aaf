//! `postrider demo`: the main job, on the embedded default, with no server needed.
//!
//! A small shop commits orders with their events, four services apply them, and at the end the account is drawn up from
//! what is stored: committed = applied + waiting + dead. Kill it at any moment and run it again: the account still holds.

mod shop;
mod tables;
mod view;

pub(crate) use shop::ShopStore;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use postrider::audit::Account;
use postrider::runtime::Running;
use postrider::store::StoreError;
use postrider::{Broker, Clock};
use tokio_util::sync::CancellationToken;

use self::shop::Order;
use crate::at_work::{AtWork, Relaying};

/// How the demo is run.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Orders to place.
    pub(crate) events: u64,
    /// Orders per second; 0 is as fast as it goes.
    pub(crate) rate: u64,
    /// What the shop's luck is made of.
    pub(crate) seed: u64,
    /// Leave when everything is done, instead of waiting for a key.
    pub(crate) exit: bool,
    /// Draw the live view.
    pub(crate) live: bool,
    /// Say nothing on the way.
    pub(crate) quiet: bool,
    /// What is said to be in use.
    pub(crate) backend: String,
    /// Where the dashboard is, if there is one.
    pub(crate) dashboard: Option<String>,
    /// What health is told of this process.
    pub(crate) at_work: Arc<AtWork>,
}

/// The shop's topology, to be looked at.
pub(crate) fn layout() -> anyhow::Result<postrider::topology::Layout> {
    Ok(shop::layout()?)
}

/// How the demo ended.
pub(crate) struct End {
    /// Every consumer's account.
    pub(crate) accounts: Vec<Account>,
    /// Effects that happened more than once.
    pub(crate) doubled: u64,
    /// Somebody left before it was done.
    pub(crate) interrupted: bool,
    /// Not everything took effect, and nothing moved any more.
    pub(crate) stuck: bool,
}

impl End {
    /// Whether every event was found once.
    pub(crate) fn holds(&self) -> bool {
        self.doubled == 0 && self.accounts.iter().all(Account::holds)
    }
}

/// Orders per transaction when the shop is in a hurry.
const MOST_AT_ONCE: u64 = 100;

/// After the last order, wait this long for anything more to take effect.
const PATIENCE: Duration = Duration::from_mins(2);

/// Runs the shop until its orders are handled, or until it is told to stop.
pub(crate) async fn run<S: ShopStore>(
    store: S,
    broker: Arc<dyn Broker>,
    clock: Clock,
    options: Options,
    stop: CancellationToken,
) -> anyhow::Result<End> {
    store.create_tables().await?;
    let running = shop::open(&store, broker, clock.clone(), options.seed)?.start().await?;
    options
        .at_work
        .note_relay(running.relay().map_or(Relaying::Elsewhere, |relay| Relaying::Here(relay.clone())));
    options.at_work.note_consumers(running.consumers());
    let placed = Arc::new(AtomicU64::new(0));
    let placing = tokio::spawn({
        let (store, clock, options) = (store.clone(), clock.clone(), options.clone());
        let (placed, stop) = (placed.clone(), stop.clone());
        async move {
            let ended = place_orders(&store, &clock, &options, &placed, &stop).await;
            if ended.is_err() {
                stop.cancel();
            }
            ended
        }
    });

    let watched = view::watch(&running, &clock, &options, &placed, &stop).await;
    stop.cancel();
    placing.await??;
    let accounts = settled_accounts(&running, &clock).await?;
    running.stop(Duration::from_secs(10)).await;
    let doubled = store.doubled_effects().await?;
    let left = watched?;
    let (interrupted, stuck) = (left == view::Left::Early, left == view::Left::Stuck);
    Ok(End { accounts, doubled, interrupted, stuck })
}

/// Places orders at the asked rate, each with its event in one transaction. While the store is away the shop waits.
async fn place_orders<S: ShopStore>(
    store: &S,
    clock: &Clock,
    options: &Options,
    placed: &AtomicU64,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let start = clock.monotonic();
    let mut number = 0;
    while number < options.events && !stop.is_cancelled() {
        let due = due(options, clock.since(start));
        if due <= number {
            clock.sleep(Duration::from_millis(5)).await;
            continue;
        }
        let upto = due.min(number + MOST_AT_ONCE);
        match place(store, clock, options.seed, number..upto).await {
            Ok(()) => {
                number = upto;
                placed.store(number, Ordering::Relaxed);
            }
            Err(error) if is_transient(&error) => {
                tracing::warn!(%error, "the shop waits for its database");
                clock.sleep(Duration::from_millis(500)).await;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// How many orders should have been placed by now.
fn due(options: &Options, elapsed: Duration) -> u64 {
    if options.rate == 0 {
        return options.events;
    }
    let rate = f64::from(u32::try_from(options.rate).unwrap_or(u32::MAX));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "time and rate are positive")]
    let due = (elapsed.as_secs_f64() * rate) as u64 + 1;
    due.min(options.events)
}

async fn place<S: ShopStore>(
    store: &S,
    clock: &Clock,
    seed: u64,
    numbers: std::ops::Range<u64>,
) -> anyhow::Result<()> {
    let mut tx = store.begin().await?;
    let mut events = Vec::new();
    for number in numbers {
        let order = Order::make(seed, number, clock);
        store.insert_order(&mut tx, &order).await?;
        events.push(order.placed().map_err(|failure| anyhow::anyhow!(failure.message))?);
    }
    store.append(&mut tx, events).await?;
    Ok(store.commit(tx).await?)
}

fn is_transient(error: &anyhow::Error) -> bool {
    error.downcast_ref::<StoreError>().is_some_and(StoreError::is_transient)
}

/// The accounts, drawn up again while deliveries are still in somebody's hands.
async fn settled_accounts<S: ShopStore>(running: &Running<S>, clock: &Clock) -> anyhow::Result<Vec<Account>> {
    let start = clock.monotonic();
    loop {
        let accounts = running.accounts().await?;
        if accounts.iter().all(Account::holds) || clock.since(start) > Duration::from_secs(10) {
            return Ok(accounts);
        }
        clock.sleep(Duration::from_millis(50)).await;
    }
}
