//! Over HTTP: publishing beside the raw outbox, and push beside a plain load generator with the same client.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use futures_util::future::try_join_all;
use postrider::broker::{Broker, Outgoing, Published};
use postrider::consumer::{Concurrency, ConsumerConfig};
use postrider::envelope::wire;
use postrider::push::{
    Allowed, Attempts, Form, Push, Sender, SenderParts, SigningSecret, StatusTable, SystemNames,
};
use postrider::registry::Registry;
use postrider::runtime::Runtime;
use postrider::store::{Backend, Outbox, Tokens, Upkeep};
use postrider::topology::{ConsumerName, ServiceQueue};
use postrider::{Clock, Deduplicator, Event, Incoming, Payload, WireFormat};
use tokio::net::TcpListener;

use super::desk::Desk;
use super::{Figure, Load, per_second};
use crate::api::{Api, Erased, append};
use crate::config::{Config, Environment, Flags};

/// Requests at the same time, on both sides of every comparison.
const SIDE_BY_SIDE: usize = 64;

/// Deliveries in hand, as a subscription of that concurrency has them.
const IN_HAND: u16 = 512;

/// Events of one batch.
const BATCH: usize = 100;

/// The figures: publishing alone and in batches over the raw insert, publishing and push over the load generator.
pub(super) async fn over_http<S: Backend + Tokens + Upkeep>(
    desk: &Desk<'_, S>,
    load: Load,
    service: &ServiceQueue,
) -> anyhow::Result<Vec<Figure>> {
    let Desk { store, broker, clock, backend, .. } = *desk;
    let (mut single, mut batch, mut push, mut requests) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let api = serve_api(store, broker, clock).await?;
    let receiver = serve_receiver().await?;
    for _ in 0..load.rounds {
        let few = Load { events: load.events.div_ceil(4), ..load };
        let raw = insert(store, clock, few, 1).await?;
        let published = publish(api, clock, few, 1).await?;
        single.push((published, raw));
        let raw = insert(store, clock, load, BATCH).await?;
        batch.push((publish(api, clock, load, BATCH).await?, raw));
        let raw = generate(receiver, clock, load).await?;
        requests.push((published, raw));
        push.push((pushed(store, broker, service, receiver, clock, load).await?, raw));
    }
    let figures = [
        ("publish over HTTP, over the outbox insert, one by one", single, None),
        ("publish over HTTP, over the outbox insert, batches of 100", batch, None),
        ("publish over HTTP, over a plain load generator, one by one", requests, None),
        ("push over a plain load generator", push, Some(0.6)),
    ];
    let figures = figures.into_iter().filter_map(|(name, rounds, target)| {
        Some(Figure { target, ..Figure::median(name, backend, "/s", rounds)? })
    });
    Ok(figures.collect())
}

fn event(load: Load) -> anyhow::Result<Event> {
    let body = format!(r#"{{"text":"{}"}}"#, "x".repeat(load.bytes.saturating_sub(11)));
    // Far away: the relay of nobody has it meanwhile.
    let later: jiff::Timestamp = "2100-01-01T00:00:00Z".parse()?;
    Ok(Event::new("bench.http.made")?.payload(Payload::new("application/json", body)).available_at(later))
}

/// Events a second straight into the outbox, so many a transaction.
async fn insert<S: Outbox>(store: &S, clock: &Clock, load: Load, size: usize) -> anyhow::Result<f64> {
    let start = clock.monotonic();
    let event = &event(load)?;
    let tasks = share(load.events / size).map(|transactions| async move {
        for _ in 0..transactions {
            if size == 1 {
                append(store, event.clone()).await?;
            } else {
                let mut tx = store.begin().await?;
                store.append(&mut tx, vec![event.clone(); size]).await?;
                store.commit(tx).await?;
            }
        }
        anyhow::Ok(())
    });
    try_join_all(tasks).await?;
    Ok(per_second(load.events / size * size, clock.since(start)))
}

/// The same through the API.
async fn publish(api: SocketAddr, clock: &Clock, load: Load, size: usize) -> anyhow::Result<f64> {
    let client = reqwest::Client::builder().no_proxy().tcp_nodelay(true).build()?;
    let one = format!(
        r#"{{"type":"bench.http.made","at":"2100-01-01T00:00:00Z","data":{}}}"#,
        String::from_utf8_lossy(event(load)?.payload.bytes())
    );
    let (path, body) = if size == 1 {
        ("events", one)
    } else {
        ("events:batch", format!("[{}]", vec![one; size].join(",")))
    };
    let (url, body) = (format!("http://{api}/v1/{path}"), bytes::Bytes::from(body));
    let start = clock.monotonic();
    let tasks = share(load.events / size).map(|requests| {
        let (client, url, body) = (client.clone(), url.clone(), body.clone());
        async move {
            for _ in 0..requests {
                let request = client.post(&url).header("content-type", "application/json");
                let answer = request.body(body.clone()).send().await?;
                anyhow::ensure!(
                    answer.status() == StatusCode::ACCEPTED,
                    "the API answered {}",
                    answer.status()
                );
                answer.bytes().await?;
            }
            anyhow::Ok(())
        }
    });
    try_join_all(tasks).await?;
    Ok(per_second(load.events / size * size, clock.since(start)))
}

/// Requests a second of a plain load generator: the same client, the same requests, nothing around them, on all processors.
async fn generate(receiver: SocketAddr, clock: &Clock, load: Load) -> anyhow::Result<f64> {
    let sender = Arc::new(sender(receiver, clock)?);
    let envelope = Event { available_at: None, ..event(load)? }.into_envelope(clock);
    let incoming = Incoming::new(ConsumerName::new("bench")?, envelope, 1);
    let start = clock.monotonic();
    let tasks = share(load.events).map(|requests| {
        let (sender, incoming) = (sender.clone(), incoming.clone());
        tokio::spawn(async move {
            for _ in 0..requests {
                sender.send(&incoming).await?;
            }
            anyhow::Ok(())
        })
    });
    for sent in try_join_all(tasks).await? {
        sent?;
    }
    Ok(per_second(load.events, clock.since(start)))
}

/// Events a second from a full queue to the same receiver.
async fn pushed<S: Backend>(
    store: &S,
    broker: &Arc<dyn Broker>,
    service: &ServiceQueue,
    receiver: SocketAddr,
    clock: &Clock,
    load: Load,
) -> anyhow::Result<f64> {
    broker.declare(&postrider::topology::Topology::default().service(service)).await?;
    let event = event(load)?;
    let message = || wire::encode(&event.clone().into_envelope(clock), WireFormat::Envelope, 0);
    let all: Vec<_> = (0..load.events).map(|_| Outgoing::to_queue(service.name(), message())).collect();
    for batch in all.chunks(1000) {
        let answers = broker.publish(batch.to_vec()).await;
        anyhow::ensure!(answers.iter().all(|answer| *answer == Published::Confirmed), "not confirmed");
    }
    let push = Push::new(
        sender(receiver, clock)?,
        StatusTable::default(),
        Arc::new(Attempts::default()),
        Arc::new(store.clone()),
        clock.clone(),
    );
    let config = ConsumerConfig {
        prefetch: IN_HAND,
        concurrency: Concurrency { min: SIDE_BY_SIDE, max: SIDE_BY_SIDE },
        ..ConsumerConfig::default()
    };
    let name = ConsumerName::new(service.name().as_str())?;
    let start = clock.monotonic();
    let running = Runtime::new(store.clone(), broker.clone(), clock.clone())
        .relay(None)
        .leave_dead_letters()
        .consumer_with(name, service.clone(), Registry::new().on_outside("#", push), config)
        .start()
        .await?;
    let status = running.consumers()[0].status.clone();
    while status.applied() < load.events as u64 {
        clock.sleep(Duration::from_millis(2)).await;
    }
    let took = clock.since(start);
    running.finish(Duration::from_secs(10)).await;
    Ok(per_second(load.events, took))
}

/// So many things shared out to as many tasks as go side by side.
fn share(all: usize) -> impl Iterator<Item = usize> {
    (0..SIDE_BY_SIDE).map(move |task| all / SIDE_BY_SIDE + usize::from(task < all % SIDE_BY_SIDE))
}

fn sender(receiver: SocketAddr, clock: &Clock) -> anyhow::Result<Sender> {
    let parts = SenderParts {
        form: Form::Envelope,
        headers: &BTreeMap::new(),
        secrets: vec![SigningSecret::shared([7; 32])],
        limit: Duration::from_secs(30),
        allowed: Allowed::new(&["127.0.0.1", "http"]).map_err(anyhow::Error::msg)?,
        names: Arc::new(SystemNames),
    };
    Sender::new(format!("http://{receiver}/").parse()?, parts, clock.clone()).map_err(anyhow::Error::msg)
}

/// An endpoint that reads a request and says that it is done.
async fn serve_receiver() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let router = Router::new().route("/", post(|_: bytes::Bytes| async { StatusCode::NO_CONTENT }));
    tokio::spawn(axum::serve(listener, router).into_future());
    Ok(address)
}

async fn serve_api<S: Backend + Tokens + Upkeep>(
    store: &S,
    broker: &Arc<dyn Broker>,
    clock: &Clock,
) -> anyhow::Result<SocketAddr> {
    let settings = Config::load(&Flags::default(), &Environment::default())?.settings;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let backend = Arc::new(Erased { store: store.clone(), further: Vec::new(), broker: broker.clone() });
    let once = Arc::new(Deduplicator::new(store.clone(), clock.clone(), "http"));
    let metrics = crate::api::metrics::install()?;
    let api = Api::new(backend, once, clock.clone(), settings.http, settings.limits, metrics, address);
    let service = api
        .router(Some(axum::Router::new()), axum::Router::new())
        .into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(axum::serve(listener, service).into_future());
    Ok(address)
}
