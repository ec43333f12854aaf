//! A database that is down while RabbitMQ has deliveries: how often it is asked, and what becomes of them.

use std::sync::Arc;
use std::time::Duration;

use postrider::Clock;
use postrider::consumer::ConsumerState;
use postrider::rabbitmq::{RabbitMq, RabbitMqConfig};
use postrider_testkit::effects::Effects as _;
use postrider_testkit::servers::{self, Redis, shared};

use super::mail::Mail;
use super::proxy::Proxy;
use super::{accelerator, postgres, quick, until};

/// How long it is counted for.
const OUTAGE: Duration = Duration::from_secs(12);
/// Deliveries that wait meanwhile, each twice.
const EVENTS: usize = 100;

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_down_is_asked_seldom_and_rabbitmq_keeps_everything() {
    let (server, redis) = (servers::Postgres::start().await.unwrap(), Redis::start().await.unwrap());
    let (vhost, proxy) = (shared().unwrap().vhost().await.unwrap(), Proxy::to(&server.url()).await);
    let clock = Clock::system();
    let broker = RabbitMq::connect(RabbitMqConfig::new(&vhost.amqp_url), clock.clone()).await.unwrap();
    let cache = accelerator(&redis.url(), quick()).await;
    let mail = Mail::on(postgres(&proxy.url).await, Arc::new(broker), &cache).await;
    mail.deliver(&Mail::event("before")).await;
    until(async || mail.status.applied() == 1).await;

    server.kill().unwrap();
    let events: Vec<_> = (0..EVENTS).map(|number| Mail::event(&format!("evt_{number}"))).collect();
    mail.deliver_all(events.iter().chain(&events)).await;
    until(async || matches!(mail.status.state(), ConsumerState::Tripped(_))).await;
    let (start, before) = (clock.monotonic(), proxy.connections());
    until(async || clock.since(start) > OUTAGE).await;
    let asked = proxy.connections() - before;
    // Each of the few in hand tries again ever more slowly, up to every 5 s; one probe and a look a second come on top.
    assert!(asked < 250, "{asked} connections in {OUTAGE:?} to a database that is down");
    assert_eq!(mail.calls(), 1, "nobody is called without a transaction");

    server.restart().await.unwrap();
    let all = EVENTS as u64;
    until(async || mail.status.applied() == 1 + all && mail.status.duplicates() == all).await;
    assert_eq!((mail.status.retried(), mail.status.dead()), (0, 0), "an outage costs no attempt");
    assert_eq!(mail.store.effects().await.unwrap().len(), 1 + EVENTS);
    assert_eq!(mail.calls(), 1 + EVENTS);
}
