//! Health: whether the process lives, whether it can work, and what is missing.
//!
//! Nobody needs a token for it, so it says words and counts, and no name, address or version. Only who could read the list of consumers is
//! told by name which queues have none at the moment.

mod checkup;

pub(super) use checkup::Checkup;

use std::net::SocketAddr;
use std::time::Duration;

use axum::Json;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode};
use postrider::dedup::CacheHealth;
use postrider::store::TokenRole;
use postrider::topology::QueueName;
use postrider_ledger::intake::IntakeState;
use serde::Serialize;

use self::checkup::{Figures, Pings, StoreWord};
use super::table::Tenants;
use super::{Api, access};
use crate::at_work::{Consuming, Feeds, Relaying};

/// Clocks further apart than this break schedules and the ends of tokens. Leases are by the database's clock alone.
const SKEWED_MS: u64 = 60_000;
/// An event that could have been published for so long means that the relay does not keep up.
const BEHIND_SECONDS: f64 = 60.0;

/// What a full Redis means: duplicates of what it knows are answered still.
const FULL: &str = "full: new keys are refused";

/// So long somebody is looked up who would be told more.
const ASKED: Duration = Duration::from_secs(1);

/// Every part and how it is.
#[derive(Debug, Serialize)]
pub(super) struct Health {
    /// `ok`; `degraded`: everything works, slower or in part; `unavailable`: something essential does not.
    status: &'static str,
    store: &'static str,
    /// Whether the schema is the one this binary needs.
    migrations: &'static str,
    broker: &'static str,
    /// Only where there is one. Everything works without it, slower.
    #[serde(skip_serializing_if = "Option::is_none")]
    redis: Option<&'static str>,
    /// Why it is degraded, where it answers all the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    redis_reason: Option<&'static str>,
    clock: ClockHealth,
    outbox_publisher: Publisher,
    relay: RelayHealth,
    consumers: ConsumerHealth,
    /// Only where this process feeds the ledger; it is one of the consumers, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    ledger: Option<LedgerHealth>,
}

/// This machine's clock beside the database's.
#[derive(Debug, Serialize)]
struct ClockHealth {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    skew_ms: Option<u64>,
}

/// The outbox and who publishes it, wherever that is.
#[derive(Debug, Serialize)]
struct Publisher {
    /// `ok`, `behind` (an event waits for a minute), `partly unavailable` (the database of a further outbox is away), `paused` (its
    /// servers are away), `starting`, or `unknown`.
    status: &'static str,
    /// How the outbox is read: `cdc` while a relay streams it, else `poll`.
    mode: &'static str,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    backlog: Option<Waiting>,
    /// Only where there are several; the figures above are of all together.
    #[serde(skip_serializing_if = "Option::is_none")]
    outboxes: Option<Outboxes>,
}

/// How many outboxes there are. Which of them is which, `/v1/outboxes` says to those who may know.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Outboxes {
    count: usize,
    /// In these an event waits for a minute.
    behind: usize,
    /// The databases of these are away.
    unavailable: usize,
}

#[derive(Debug, Serialize)]
struct Waiting {
    pending: u64,
    scheduled: u64,
    dead: u64,
    parked_keys: u64,
    oldest_pending_seconds: f64,
}

/// The relay of this process.
#[derive(Debug, Serialize)]
struct RelayHealth {
    /// `running`, `paused`, `starting`, or `elsewhere`.
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    published: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<u64>,
}

/// The consumers of this process.
#[derive(Debug, Serialize)]
struct ConsumerHealth {
    status: &'static str,
    running: u32,
    paused: u32,
    tripped: u32,
    /// They would work, and have no subscription at the moment.
    unsubscribed: u32,
    /// To which queues, for those who may know.
    #[serde(skip_serializing_if = "Option::is_none")]
    queues_without_subscription: Option<Vec<QueueName>>,
}

/// The ledger of this process.
#[derive(Debug, Serialize)]
struct LedgerHealth {
    /// `running`, `paused`, `tripped` (its books cannot be reached), `disconnected` (the broker gives it nothing), or `starting`.
    status: &'static str,
    posted: u64,
    duplicates: u64,
    refused: u64,
}

/// `GET /v1/health/live`: the process answers. No dependency is checked, so an outage elsewhere restarts nothing.
pub(super) async fn live() -> Json<serde_json::Value> {
    Json(serde_json::json!({ "status": "ok" }))
}

/// `GET /v1/health/ready`: 200 while events can be committed. The outbox needs the store alone: without the broker they
/// wait there, so an outage of the broker does not take the API away.
pub(super) async fn ready(State(api): State<Api>) -> (StatusCode, Json<serde_json::Value>) {
    if api.checkup.pings().await.store == StoreWord::Ok {
        (StatusCode::OK, Json(serde_json::json!({ "status": "ok" })))
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, Json(serde_json::json!({ "status": "unavailable" })))
    }
}

/// `GET /v1/health`: 200 while everything essential works, else 503; the body has each part.
pub(super) async fn health(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
) -> (StatusCode, Json<Health>) {
    let (pings, figures) = tokio::join!(api.checkup.pings(), api.checkup.figures());
    let (relay, ledger) = (api.at_work.relay(), api.at_work.ledger());
    let mut health = Health::of(pings, figures.as_ref(), &relay, api.at_work.consumers(), &ledger);
    if health.consumers.unsubscribed > 0 && may_know_names(&api, peer, &headers).await {
        health.consumers.queues_without_subscription = Some(api.at_work.without_subscription());
    }
    let status =
        if health.status == "unavailable" { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    (status, Json(health))
}

/// Whether somebody may read the list of consumers. A store that does not say so soon is no reason to keep a probe waiting.
async fn may_know_names(api: &Api, peer: SocketAddr, headers: &HeaderMap) -> bool {
    let caller = tokio::time::timeout(ASKED, access::caller(api, peer, headers)).await;
    matches!(caller, Ok(Ok(caller)) if caller.may("GET", TokenRole::Viewer, Tenants::All).is_ok())
}

impl Health {
    /// Puts words to what was found.
    fn of(
        pings: Pings,
        figures: Option<&Figures>,
        relay: &Relaying,
        consumers: Consuming,
        ledger: &Feeds,
    ) -> Self {
        let word = |works| if works { "ok" } else { "unavailable" };
        let (store, migrations) = match pings.store {
            StoreWord::Ok => ("ok", "ok"),
            StoreWord::OtherSchema => ("ok", "other version"),
            StoreWord::Unavailable => ("unavailable", "unknown"),
        };
        let redis = pings.redis.map(|redis| if redis == CacheHealth::Ok { "ok" } else { "degraded" });
        let redis_reason = (pings.redis == Some(CacheHealth::Full)).then_some(FULL);
        let clock = ClockHealth::of(figures);
        let outbox_publisher = Publisher::of(figures, relay);
        let consumers = ConsumerHealth::of(consumers);
        let ledger = LedgerHealth::of(ledger);
        let fed = ledger.as_ref().is_none_or(|ledger| ledger.status != "disconnected");
        let essential = pings.store == StoreWord::Ok && pings.broker;
        let well = redis != Some("degraded")
            && clock.status != "skewed"
            && !matches!(outbox_publisher.status, "behind" | "paused" | "partly unavailable")
            && consumers.status == "ok"
            && fed;
        let status = match (essential, well) {
            (false, _) => "unavailable",
            (true, false) => "degraded",
            (true, true) => "ok",
        };
        let relay = RelayHealth::of(relay);
        let broker = word(pings.broker);
        Self {
            status,
            store,
            migrations,
            broker,
            redis,
            redis_reason,
            clock,
            outbox_publisher,
            relay,
            consumers,
            ledger,
        }
    }
}

impl ClockHealth {
    fn of(figures: Option<&Figures>) -> Self {
        let skew_ms = figures.map(|figures| u64::try_from(figures.skew.as_millis()).unwrap_or(u64::MAX));
        let status = match skew_ms {
            None => "unknown",
            Some(skew) if skew > SKEWED_MS => "skewed",
            Some(_) => "ok",
        };
        Self { status, skew_ms }
    }
}

impl Publisher {
    fn of(figures: Option<&Figures>, relay: &Relaying) -> Self {
        let oldest = figures.map_or(0.0, |figures| figures.oldest_pending.as_secs_f64());
        let outboxes = figures.filter(|figures| figures.each.len() > 1).map(Outboxes::of);
        let status = match relay {
            Relaying::Starting => "starting",
            Relaying::Here(relay) if relay.is_paused() => "paused",
            _ if figures.is_none() => "unknown",
            _ if oldest > BEHIND_SECONDS => "behind",
            _ if outboxes.as_ref().is_some_and(|outboxes| outboxes.unavailable > 0) => "partly unavailable",
            Relaying::Elsewhere | Relaying::Here(_) => "ok",
        };
        let backlog = figures.map(|figures| Waiting {
            pending: figures.backlog.due,
            scheduled: figures.backlog.later,
            dead: figures.backlog.dead,
            parked_keys: figures.backlog.parked_keys,
            oldest_pending_seconds: (oldest * 1000.0).round() / 1000.0,
        });
        let mode = if figures.is_some_and(|figures| figures.streamed) { "cdc" } else { "poll" };
        Self { status, mode, backlog, outboxes }
    }
}

impl Outboxes {
    fn of(figures: &Figures) -> Self {
        let behind = |oldest: &&Duration| oldest.as_secs_f64() > BEHIND_SECONDS;
        Self {
            count: figures.each.len(),
            behind: figures.each.iter().flatten().filter(behind).count(),
            unavailable: figures.each.iter().filter(|oldest| oldest.is_none()).count(),
        }
    }
}

impl RelayHealth {
    fn of(relay: &Relaying) -> Self {
        let here = if let Relaying::Here(relay) = relay { Some(relay) } else { None };
        let status = match relay {
            Relaying::Elsewhere => "elsewhere",
            Relaying::Starting => "starting",
            Relaying::Here(relay) if relay.is_paused() => "paused",
            Relaying::Here(_) => "running",
        };
        Self {
            status,
            published: here.map(|relay| relay.published()),
            failed: here.map(|relay| relay.failed()),
        }
    }
}

impl ConsumerHealth {
    fn of(Consuming { running, paused, tripped, unsubscribed }: Consuming) -> Self {
        // Who is paused is so because somebody wanted it.
        let status = if tripped > 0 || unsubscribed > 0 { "degraded" } else { "ok" };
        Self { status, running, paused, tripped, unsubscribed, queues_without_subscription: None }
    }
}

impl LedgerHealth {
    fn of(ledger: &Feeds) -> Option<Self> {
        let status = match ledger {
            Feeds::Elsewhere => return None,
            Feeds::Starting => {
                return Some(Self { status: "starting", posted: 0, duplicates: 0, refused: 0 });
            }
            Feeds::Here(status) => status,
        };
        let word = match status.state() {
            IntakeState::Running => "running",
            IntakeState::Paused => "paused",
            IntakeState::Tripped => "tripped",
            IntakeState::Disconnected => "disconnected",
        };
        let (posted, duplicates, refused) = (status.posted(), status.duplicates(), status.refused());
        Some(Self { status: word, posted, duplicates, refused })
    }
}

#[cfg(test)]
mod tests;
