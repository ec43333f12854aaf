//! The faults of a chaos run. Each strikes, proves that it has landed, lasts a while, and heals.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use postrider::broker::{Broker, Outgoing, Published};
use postrider::envelope::wire;
use postrider::topology::{ExchangeName, RoutingKey};
use postrider::{Clock, WireFormat};
use sqlx::Connection as _;

use super::load::Load;
use super::stage::Stage;
use super::worker;
use crate::proxy::Weather;
use crate::sim::Random;

/// What strikes, and whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// kill -9 of a process, which is started again.
    Kill(usize),
    /// SIGSTOP of a process, beyond leases and heartbeats.
    Pause(usize),
    /// The network to a server goes bad.
    Network(usize, Weather),
    /// kill -9 of a RabbitMQ node, which is started again.
    NodeKilled(usize),
    /// SIGSTOP of a RabbitMQ node.
    NodePaused(usize),
    /// RabbitMQ blocks publishers, for want of memory.
    MemoryAlarm(usize),
    /// … or of disk.
    DiskAlarm(usize),
    /// kill -9 of PostgreSQL, which is started again.
    PostgresKilled,
    /// Every connection to PostgreSQL is terminated by it.
    BackendsTerminated,
    /// kill -9 of Redis, which is started again.
    RedisKilled,
    /// FLUSHALL.
    RedisFlushed,
    /// The one binding of a queue is deleted.
    Unbound,
    /// Events that are committed are published once more, past the relay.
    Duplicates,
}

impl Fault {
    /// The next one. Kills and network faults come more often than the rest.
    pub(super) fn draw(random: &mut Random, processes: usize) -> Self {
        let (process, node) = (random.index(processes), random.index(3));
        match random.below(28) {
            0..=5 => Self::Kill(process),
            6..=8 => Self::Pause(process),
            9..=16 => {
                let weather = match random.below(8) {
                    0 | 1 => Weather::Cut,
                    2 => Weather::Reset,
                    3 => Weather::HalfOpen,
                    4 => Weather::SwallowReplies,
                    5 => Weather::Trickle(64),
                    6 => Weather::LimitThenClose(2_000 + random.below(20_000)),
                    _ => Weather::Latency(Duration::from_millis(20 + random.below(180))),
                };
                Self::Network(random.index(5), weather)
            }
            17 | 18 => Self::NodeKilled(node),
            19 => Self::NodePaused(node),
            20 => Self::MemoryAlarm(node),
            21 => Self::DiskAlarm(node),
            22 => Self::PostgresKilled,
            23 => Self::BackendsTerminated,
            24 => {
                if random.one_in(2) {
                    Self::RedisKilled
                } else {
                    Self::RedisFlushed
                }
            }
            25 => Self::RedisFlushed,
            26 => Self::Unbound,
            _ => Self::Duplicates,
        }
    }

    /// Its kind, for the report.
    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::Kill(_) => "process killed",
            Self::Pause(_) => "process paused",
            Self::Network(_, Weather::Cut) => "network cut",
            Self::Network(_, Weather::Reset) => "connections reset",
            Self::Network(_, Weather::HalfOpen) => "network half open",
            Self::Network(_, Weather::SwallowReplies) => "replies swallowed",
            Self::Network(_, Weather::Trickle(_)) => "network trickles",
            Self::Network(_, Weather::LimitThenClose(_)) => "closed after a limit",
            Self::Network(..) => "network slow",
            Self::NodeKilled(_) => "RabbitMQ node killed",
            Self::NodePaused(_) => "RabbitMQ node paused",
            Self::MemoryAlarm(_) => "memory alarm",
            Self::DiskAlarm(_) => "disk alarm",
            Self::PostgresKilled => "PostgreSQL killed",
            Self::BackendsTerminated => "backends terminated",
            Self::RedisKilled => "Redis killed",
            Self::RedisFlushed => "Redis flushed",
            Self::Unbound => "binding deleted",
            Self::Duplicates => "published twice",
        }
    }

    /// What it needs for itself: two faults of one target never overlap, and one node of RabbitMQ at a time is away.
    pub(super) fn target(self) -> usize {
        match self {
            Self::Kill(process) | Self::Pause(process) => process,
            Self::Network(proxy, _) => 10 + proxy,
            Self::NodeKilled(_) | Self::NodePaused(_) | Self::MemoryAlarm(_) | Self::DiskAlarm(_) => 20,
            Self::PostgresKilled | Self::BackendsTerminated => 21,
            Self::RedisKilled | Self::RedisFlushed => 22,
            Self::Unbound => 23,
            Self::Duplicates => 24,
        }
    }
}

/// What a fault needs to strike.
#[derive(Clone)]
pub(super) struct Striker {
    pub(super) stage: Arc<Stage>,
    pub(super) load: Load,
    pub(super) broker: Arc<dyn Broker>,
    pub(super) clock: Clock,
}

impl Striker {
    /// Strikes, lasts, heals. Says how it is known to have landed.
    pub(super) async fn strike(&self, fault: Fault, lasts: Duration) -> Result<String> {
        let stage = &self.stage;
        match fault {
            Fault::Kill(process) => {
                let process = &stage.processes[process];
                let pid = process.kill().await?;
                self.clock.sleep(lasts / 4).await;
                process.start(stage).await?;
                Ok(format!("{} was process {pid}, which is gone", process.name))
            }
            Fault::Pause(process) => {
                let process = &stage.processes[process];
                let pid = process.pause(&self.clock).await?;
                // Longer than leases, sometimes.
                self.clock.sleep(lasts * 2).await;
                process.resume().await?;
                Ok(format!("{}, process {pid}, was stopped for {:?}", process.name, lasts * 2))
            }
            Fault::Network(proxy, weather) => self.network(proxy, weather, lasts).await,
            Fault::NodeKilled(node) => {
                let before = stage.rabbitmq.pids().len();
                stage.rabbitmq.kill(node)?;
                self.clock.sleep(lasts / 2).await;
                stage.rabbitmq.restart(node).await?;
                Ok(format!("node {node} of {} was killed, and is back", before - 1))
            }
            Fault::NodePaused(node) => {
                stage.rabbitmq.pause(node)?;
                self.clock.sleep(lasts).await;
                stage.rabbitmq.resume(node)?;
                Ok(format!("node {node} stood still for {lasts:?}"))
            }
            Fault::MemoryAlarm(node) => {
                let set = |value| ["set_vm_memory_high_watermark", value];
                self.alarm(node, &set("0.0001"), &set("0.6"), "memory", lasts).await
            }
            Fault::DiskAlarm(node) => {
                let set = |value| ["set_disk_free_limit", value];
                self.alarm(node, &set("1000000000000000"), &set("50000000"), "disk", lasts).await
            }
            Fault::PostgresKilled => {
                let pid = stage.postgres.pid();
                stage.postgres.kill()?;
                ensure!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "it is still there");
                self.clock.sleep(lasts / 4).await;
                stage.postgres.restart().await?;
                Ok(format!("the server was process {pid}, which is gone"))
            }
            Fault::BackendsTerminated => self.terminate().await,
            Fault::RedisKilled => {
                let pid = stage.redis.pid();
                stage.redis.kill()?;
                ensure!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "it is still there");
                self.clock.sleep(lasts / 2).await;
                stage.redis.restart().await?;
                Ok(format!("the server was process {pid}, which is gone"))
            }
            Fault::RedisFlushed => {
                let keys = stage.redis.cli(&[
                    "EVAL",
                    "local n = redis.call('DBSIZE'); redis.call('FLUSHALL'); return n",
                    "0",
                ]);
                Ok(format!("{} keys are gone", keys.await?))
            }
            Fault::Unbound => self.unbind(lasts).await,
            Fault::Duplicates => self.publish_again().await,
        }
    }

    async fn network(&self, proxy: usize, weather: Weather, lasts: Duration) -> Result<String> {
        let (name, proxy) = self.stage.busiest(proxy);
        let counters = proxy.counters();
        let before = (counters.severed(), counters.refused(), counters.swallowed(), counters.passed());
        let open = counters.open();
        proxy.set(weather);
        self.clock.sleep(lasts).await;
        let after = (counters.severed(), counters.refused(), counters.swallowed(), counters.passed());
        proxy.set(Weather::Clear);
        let (severed, refused) = (after.0 - before.0, after.1 - before.1);
        let (swallowed, passed) = (after.2 - before.2, after.3 - before.3);
        let landed = match weather {
            Weather::Cut | Weather::Reset | Weather::LimitThenClose(_) => severed + refused > 0,
            Weather::SwallowReplies => swallowed > 0,
            Weather::HalfOpen => open > 0 && passed == 0,
            Weather::Latency(_) | Weather::Trickle(_) => passed > 0,
            Weather::Clear => false,
        };
        if !landed {
            bail!("nobody was connected to {name} and noticed");
        }
        Ok(format!(
            "{name}: {open} open, {severed} severed, {refused} refused, {swallowed} bytes swallowed, {passed} passed"
        ))
    }

    async fn alarm(
        &self,
        node: usize,
        raise: &[&str; 2],
        clear: &[&str; 2],
        name: &str,
        lasts: Duration,
    ) -> Result<String> {
        let rabbitmq = &self.stage.rabbitmq;
        rabbitmq.ctl(node, raise).await?;
        let mut listed = String::new();
        for _ in 0..20 {
            listed = rabbitmq.ctl(node, &["eval", "rabbit_alarm:get_alarms()."]).await.unwrap_or_default();
            if listed.contains(name) {
                break;
            }
            self.clock.sleep(Duration::from_millis(200)).await;
        }
        self.clock.sleep(lasts / 2).await;
        rabbitmq.ctl(node, clear).await?;
        ensure!(listed.contains(name), "the alarm was not listed: {listed}");
        Ok(format!("node {node} listed {}", listed.split_whitespace().collect::<Vec<_>>().join(" ")))
    }

    async fn terminate(&self) -> Result<String> {
        let mut connection = sqlx::PgConnection::connect(&self.stage.postgres.url()).await?;
        let all = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                   WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'";
        let count: i64 = sqlx::query_scalar(all).fetch_one(&mut connection).await?;
        ensure!(count > 0, "nobody was connected");
        Ok(format!("{count} backends"))
    }

    /// The queue is alone with its events: none of them can reach anybody, and the publisher has to notice.
    async fn unbind(&self, lasts: Duration) -> Result<String> {
        let path = format!("/api/bindings/%2F/e/{}/q/chaos.solo", worker::EXCHANGE);
        let stage = &self.stage;
        stage.manage("DELETE", &format!("{path}/chaos.solo.%2A"), None).await?;
        self.clock.sleep(lasts / 2).await;
        let left = stage.manage("GET", &path, None).await;
        let body = serde_json::json!({ "routing_key": "chaos.solo.*" });
        while stage.manage("POST", &path, Some(&body)).await.is_err() {
            self.clock.sleep(Duration::from_millis(200)).await;
        }
        let left = left?;
        ensure!(left.as_array().is_some_and(Vec::is_empty), "the binding was still there: {left}");
        Ok("the queue had no binding".to_owned())
    }

    async fn publish_again(&self) -> Result<String> {
        let envelopes: Vec<_> = self.load.log().samples.iter().rev().take(50).cloned().collect();
        let exchange = ExchangeName::new(worker::EXCHANGE)?;
        let outgoing = |envelope: &postrider::Envelope| Outgoing {
            exchange: exchange.clone(),
            routing_key: RoutingKey::from(&envelope.event_type),
            message: wire::encode(envelope, WireFormat::Envelope, 0),
        };
        let answers = self.broker.publish(envelopes.iter().map(outgoing).collect()).await;
        let count = answers.iter().filter(|answer| **answer == Published::Confirmed).count();
        ensure!(count > 0, "none was confirmed");
        Ok(format!("{count} confirmed"))
    }

    /// Ends whatever an interrupted fault may have left behind.
    pub(super) async fn heal(&self) -> Result<()> {
        for (_, proxy) in &self.stage.proxies {
            proxy.set(Weather::Clear);
        }
        for process in &self.stage.processes {
            if process.resume().await.is_err() || process.has_ended().await.is_some() {
                process.start(&self.stage).await.context("a process does not start again")?;
            }
        }
        Ok(())
    }
}
