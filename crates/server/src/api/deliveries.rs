//! `/v1/queues/{queue}/deliveries`: workers that cannot be called lease deliveries and settle them by the lease's token.
//!
//! What a worker says goes to the consumer's own settlement: an inbox mark and an ack, a wait queue, or a dead letter.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Extension, Path, State};
use axum::routing::post;
use axum::{Json, Router};
use postrider::Envelope;
use postrider::pull::{Leased, Said, Verdict};
use postrider::runtime::StartError;
use postrider::topology::QueueName;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::problem::{Code, Problem};
use super::subscriptions::{read, read_or_default};
use super::{Api, Peer};
use crate::pull_desks::{PullDesks, Told};
use crate::wiring::WholeStore;

/// The most deliveries of one lease.
const MOST: usize = 100;
/// A lease lasts so long, unless the worker says otherwise.
const LEASE_MS: u64 = 30_000;
/// A lease lasts so long at most; it can be extended.
const LONGEST_LEASE_MS: u64 = 600_000;
/// A delivery comes again within this at the latest, as where its producer says when: in a wait queue for years nobody would find it.
const LONGEST_AFTER_MS: u64 = 366 * 24 * 60 * 60 * 1000;
/// Whoever asks first, or after a while, is waited for a little: the queue has to be subscribed to before it gives anything.
const OPENING: Duration = Duration::from_secs(2);

type Desks<S> = State<Arc<PullDesks<S>>>;

/// The routes. A token for one tenant has no part in them: a queue has everybody's events.
pub(crate) fn routes<S: WholeStore>(desks: Arc<PullDesks<S>>) -> Router<Api> {
    Router::new()
        .route("/queues/{queue}/deliveries", post(lease::<S>))
        .route("/queues/{queue}/deliveries:ack", post(ack::<S>))
        .route("/queues/{queue}/deliveries:retry", post(retry::<S>))
        .route("/queues/{queue}/deliveries:reject", post(reject::<S>))
        .route("/queues/{queue}/deliveries:extend", post(extend::<S>))
        .with_state(desks)
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Ask {
    max: Option<usize>,
    lease_ms: Option<u64>,
    wait_ms: u64,
}

#[derive(Serialize)]
struct Given {
    deliveries: Vec<Delivered>,
}

/// A delivery as a worker gets it.
#[derive(Serialize)]
struct Delivered {
    lease: String,
    attempt: u32,
    id: String,
    #[serde(rename = "type")]
    event_type: String,
    aggregate_id: Option<String>,
    tenant: Option<String>,
    subsidiary: Option<String>,
    ordering_key: Option<String>,
    occurred_at: String,
    causation_id: Option<String>,
    correlation_id: Option<String>,
    traceparent: Option<String>,
    tracestate: Option<String>,
    /// What a CloudEvent says beside all this: its source, its schema, and extensions of others.
    attributes: BTreeMap<String, String>,
    /// What the message has of its own, the marks of a replay among it: the same as an endpoint gets.
    headers: serde_json::Map<String, serde_json::Value>,
    content_type: String,
    /// The payload, if it is JSON …
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Box<RawValue>>,
    /// … and if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    data_base64: Option<String>,
}

/// Leases what there is. An empty list when there was nothing within `wait_ms`, or before the worker closed its side or the process was told
/// to stop.
async fn lease<S: WholeStore>(
    State(desks): Desks<S>,
    Path(queue): Path<QueueName>,
    peer: Option<Extension<Peer>>,
    body: Bytes,
) -> Result<Json<Given>, Problem> {
    let ask: Ask = read_or_default(&body)?;
    let is_first = desks.open(&queue).await.is_none();
    if is_first && let Some(other) = desks.taken_by(&queue).await? {
        return Err(taken(&queue, &other));
    }
    let (desk, standing) = desks.desk(&queue).await?.ok_or_else(|| no_queue(&queue))?;
    let (max, lease) = (most_of(ask.max)?, lease_of(ask.lease_ms)?);
    let opening = if is_first { OPENING } else { Duration::ZERO };
    let wait = Duration::from_millis(ask.wait_ms).max(opening).min(desks.longest_wait());
    let leasing = async {
        let Some(standing) = standing else { return desk.lease(max, lease, wait).await };
        loop {
            // While its consumer is paused nothing is given out, also of what was delivered before.
            standing.free().await;
            tokio::select! {
                biased;
                () = standing.held_up() => {}
                deliveries = desk.lease(max, lease, wait) => return deliveries,
            }
        }
    };
    let left = async {
        match &peer {
            Some(Extension(peer)) => peer.left(desks.clock()).await,
            None => std::future::pending().await,
        }
    };
    let deliveries = tokio::select! {
        biased;
        deliveries = tokio::time::timeout(wait, leasing) => deliveries.unwrap_or_default(),
        // Nobody would read the answer, and what it gave out would be nobody's until the lease runs out.
        () = left => Vec::new(),
        // Who waited on would wait for nothing, and keep the process from ending.
        () = desks.stopped() => Vec::new(),
    };
    Ok(Json(Given { deliveries: deliveries.into_iter().map(delivered).collect() }))
}

/// What is settled, and why.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settle {
    leases: Vec<String>,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    after_ms: Option<u64>,
    #[serde(default)]
    lease_ms: Option<u64>,
}

async fn ack<S: WholeStore>(
    State(desks): Desks<S>,
    Path(queue): Path<QueueName>,
    body: Bytes,
) -> Result<Json<Told>, Problem> {
    let asked: Settle = read(&body)?;
    say(&desks, &queue, asked.leases, Said::Settle(Verdict::Ack)).await
}

async fn retry<S: WholeStore>(
    State(desks): Desks<S>,
    Path(queue): Path<QueueName>,
    body: Bytes,
) -> Result<Json<Told>, Problem> {
    let asked: Settle = read(&body)?;
    let reason = reason(&asked, "the worker asked for a retry");
    if asked.after_ms.is_some_and(|after| after > LONGEST_AFTER_MS) {
        let told = format!("after_ms is at most {LONGEST_AFTER_MS}, 366 days; nothing was settled");
        return Err(Problem::new(Code::InvalidRequest, told));
    }
    let after = asked.after_ms.map(Duration::from_millis);
    say(&desks, &queue, asked.leases, Said::Settle(Verdict::Retry { reason, after })).await
}

async fn reject<S: WholeStore>(
    State(desks): Desks<S>,
    Path(queue): Path<QueueName>,
    body: Bytes,
) -> Result<Json<Told>, Problem> {
    let asked: Settle = read(&body)?;
    let reason = reason(&asked, "the worker rejected it");
    say(&desks, &queue, asked.leases, Said::Settle(Verdict::Reject { reason })).await
}

async fn extend<S: WholeStore>(
    State(desks): Desks<S>,
    Path(queue): Path<QueueName>,
    body: Bytes,
) -> Result<Json<Told>, Problem> {
    let asked: Settle = read(&body)?;
    let lease = lease_of(asked.lease_ms)?;
    say(&desks, &queue, asked.leases, Said::Extend(lease)).await
}

/// Says it of every lease. 410 when all of them are over.
async fn say<S: WholeStore>(
    desks: &PullDesks<S>,
    queue: &QueueName,
    leases: Vec<String>,
    said: Said,
) -> Result<Json<Told>, Problem> {
    let told = desks.say(queue, leases, &said).await?;
    if told.settled.is_empty() && !told.over.is_empty() {
        let detail = "it ran out, was settled before, is of another queue, or the process that gave it is gone; what was not \
                      settled comes again";
        return Err(Problem::new(Code::LeaseOver, detail));
    }
    Ok(Json(told))
}

fn reason(asked: &Settle, otherwise: &str) -> String {
    if asked.reason.is_empty() { otherwise.to_owned() } else { asked.reason.clone() }
}

/// So many at most. Who asks for more than a lease may have gets as many as it may have.
fn most_of(asked: Option<usize>) -> Result<usize, Problem> {
    match asked.unwrap_or(1) {
        0 => Err(Problem::new(Code::InvalidRequest, format!("max is from 1 to {MOST}"))),
        max => Ok(max.min(MOST)),
    }
}

fn lease_of(asked: Option<u64>) -> Result<Duration, Problem> {
    let millis = asked.unwrap_or(LEASE_MS);
    if (1..=LONGEST_LEASE_MS).contains(&millis) {
        return Ok(Duration::from_millis(millis));
    }
    Err(Problem::new(
        Code::InvalidRequest,
        format!("lease_ms is from 1 to {LONGEST_LEASE_MS}; it can be extended"),
    ))
}

fn no_queue(queue: &QueueName) -> Problem {
    Problem::new(Code::NotFound, format!("the configuration has no consumed queue {queue}"))
}

fn taken(queue: &QueueName, other: &str) -> Problem {
    let told = format!(
        "{other} takes from the queue {queue}, and a worker would get a part of its events; bind another queue to the same keys, \
         and pull from that"
    );
    Problem::new(Code::Conflict, told)
}

fn delivered(leased: Leased) -> Delivered {
    use base64::Engine as _;

    let Leased { token, event } = leased;
    let Envelope { payload, .. } = &event.envelope;
    let data = if payload.is_json() { serde_json::from_slice(payload.bytes()).ok() } else { None };
    let data_base64 =
        data.is_none().then(|| base64::engine::general_purpose::STANDARD.encode(payload.bytes()));
    let content_type = payload.content_type().to_owned();
    let headers = event.passed_on().into_iter().map(|(name, value)| (name, value.to_plain_json())).collect();
    let envelope = event.envelope;
    let attributes = envelope.attributes.iter();
    let attributes = attributes.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    Delivered {
        lease: token,
        attempt: event.attempt,
        id: envelope.id.to_string(),
        event_type: envelope.event_type.to_string(),
        aggregate_id: envelope.aggregate_id.map(String::from),
        tenant: envelope.tenant.group.map(String::from),
        subsidiary: envelope.tenant.subsidiary.map(String::from),
        ordering_key: envelope.ordering_key.map(String::from),
        occurred_at: envelope.occurred_at.to_string(),
        attributes,
        causation_id: envelope.causation_id.map(String::from),
        correlation_id: envelope.correlation_id.map(String::from),
        traceparent: envelope.trace.traceparent,
        tracestate: envelope.trace.tracestate,
        headers,
        content_type,
        data,
        data_base64,
    }
}

impl From<StartError> for Problem {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Store(error) => error.into(),
            StartError::Broker(error) => {
                tracing::warn!(%error, "a request failed: the broker is not available");
                Self::new(Code::BrokerUnavailable, "the broker cannot be reached now; try again")
            }
            error @ StartError::Twice(_) => Self::new(Code::Internal, error.to_string()),
        }
    }
}
