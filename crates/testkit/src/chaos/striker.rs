//! Lets faults strike. Each proves that it has landed, lasts a while, and heals.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use postrider::broker::{Broker, Outgoing, Published};
use postrider::envelope::{Envelope, wire};
use postrider::topology::{ExchangeName, RoutingKey};
use postrider::{Clock, WireFormat};
use sqlx::Connection as _;

use super::faults::Fault;
use super::load::Load;
use super::stage::Stage;
use super::worker;
use crate::proxy::Weather;

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
            Fault::ClockOff(process, seconds) => {
                let process = &stage.processes[process];
                process.kill().await?;
                let off = process.start_off(stage, seconds).await;
                self.clock.sleep(lasts * 2).await;
                if off.is_ok() {
                    process.kill().await?;
                }
                process.start(stage).await?;
                Ok(format!("{}, process {}, was off by {seconds} s", process.name, off?))
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
            Fault::NodeParted(node) => {
                let other = (node + 1) % 3;
                stage.rabbitmq.part(node).await?;
                let heard = stage.rabbitmq.hears(other, node).await;
                self.clock.sleep(lasts * 2).await;
                let heard = heard? && stage.rabbitmq.hears(other, node).await?;
                stage.rabbitmq.rejoin(node).await?;
                ensure!(!heard, "node {other} still heard of node {node}");
                Ok(format!("node {other} did not hear of node {node} any more"))
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
            Fault::DiskFull => self.fill_disk(lasts).await,
            Fault::BackendsTerminated => self.terminate().await,
            Fault::RedisKilled => {
                let pid = stage.redis.pid();
                stage.redis.kill()?;
                ensure!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "it is still there");
                self.clock.sleep(lasts / 2).await;
                stage.redis.restart().await?;
                Ok(format!("the server was process {pid}, which is gone"))
            }
            Fault::RedisFull => self.fill_redis(lasts).await,
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

    async fn fill_disk(&self, lasts: Duration) -> Result<String> {
        let postgres = &self.stage.postgres;
        let before = postgres.log()?.len();
        let used = postgres.fill_disk()?;
        self.clock.sleep(lasts).await;
        postgres.free_disk().await?;
        let log = postgres.log()?;
        let complaints = log.get(before..).unwrap_or_default().matches("No space left on device").count();
        ensure!(complaints > 0, "nothing had to be written meanwhile");
        Ok(format!("no room after {used} KiB, said {complaints} times"))
    }

    /// Less than an empty server takes: every key goes, and what is written is refused.
    async fn fill_redis(&self, lasts: Duration) -> Result<String> {
        let redis = &self.stage.redis;
        let evicted = async || -> Result<u64> {
            let shown = redis.cli(&["INFO", "stats"]).await?;
            let count = shown.lines().find_map(|line| line.strip_prefix("evicted_keys:"));
            count.and_then(|count| count.trim().parse().ok()).context("Redis does not say what it evicted")
        };
        let before = evicted().await?;
        redis.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random", "maxmemory", "100kb"]).await?;
        self.clock.sleep(lasts).await;
        let after = evicted().await;
        redis.cli(&["CONFIG", "SET", "maxmemory", "0"]).await?;
        let count = after?.saturating_sub(before);
        ensure!(count > 0, "it had no keys");
        Ok(format!("{count} keys were evicted"))
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

    /// Only what the relay has published: of anything else this would be the first delivery, and out of order.
    async fn publish_again(&self) -> Result<String> {
        let latest: Vec<_> = self.load.log().samples.iter().rev().take(200).cloned().collect();
        let ids: Vec<_> = latest.iter().map(|envelope| envelope.id.to_string()).collect();
        let mut connection = sqlx::PgConnection::connect(&self.stage.postgres.url()).await?;
        let published = "SELECT id FROM postrider.event_outbox WHERE id = ANY ($1) AND status = 'published'";
        let published: Vec<String> =
            sqlx::query_scalar(published).bind(ids).fetch_all(&mut connection).await?;
        let is_published = |envelope: &&Envelope| published.iter().any(|id| id == envelope.id.as_str());
        let envelopes: Vec<_> = latest.iter().filter(is_published).take(50).collect();
        let exchange = ExchangeName::new(worker::EXCHANGE)?;
        let outgoing = |envelope: &Envelope| Outgoing {
            exchange: exchange.clone(),
            routing_key: RoutingKey::from(&envelope.event_type),
            message: wire::encode(envelope, WireFormat::Envelope, 0),
        };
        let answers = self.broker.publish(envelopes.into_iter().rev().map(outgoing).collect()).await;
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
