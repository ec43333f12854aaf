//! A connection that is kept: lost, it is made again, on the next node, after a growing pause.
//!
//! Publishing and consuming have a link each, because RabbitMQ stops reading a connection that publishes while it is
//! short of memory or disk: acks on the same connection would stall with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::config::{Node, RabbitMqConfig};
use super::dial;
use super::line::Line;
use crate::broker::{BrokerError, BrokerErrorKind, BrokerLimits};
use crate::clock::Clock;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// A connection that did not live this long counts as one more failed attempt.
const SETTLED: Duration = Duration::from_secs(5);
/// However many nodes there are, each has this long to answer.
const SHORTEST_DIAL: Duration = Duration::from_secs(2);
const GOODBYE: Duration = Duration::from_secs(2);

/// A supervised connection. It is first made when it is first needed, and ends when this is dropped.
pub(super) struct Link {
    /// What it is for: `publish` or `consume`.
    purpose: &'static str,
    settings: Arc<Settings>,
    state: watch::Sender<State>,
    started: AtomicBool,
    stop: CancellationToken,
    _stop_with_me: DropGuard,
}

/// What all links of one broker share.
pub(super) struct Settings {
    pub(super) config: RabbitMqConfig,
    pub(super) nodes: Vec<Node>,
    pub(super) clock: Clock,
}

impl Settings {
    pub(super) fn limits(&self) -> &BrokerLimits {
        &self.config.limits
    }
}

#[derive(Clone)]
enum State {
    /// Not connected, and why, once it is known.
    Down(Option<(BrokerErrorKind, String)>),
    Up(Arc<Line>),
    Closed,
}

impl Link {
    pub(super) fn new(purpose: &'static str, settings: Arc<Settings>) -> Self {
        let stop = CancellationToken::new();
        Self {
            purpose,
            settings,
            state: watch::Sender::new(State::Down(None)),
            started: AtomicBool::new(false),
            _stop_with_me: stop.clone().drop_guard(),
            stop,
        }
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The connection as it is now. Waits for it within the time limit; what waiting will not mend (wrong credentials, no
    /// such vhost) is said at once.
    pub(super) async fn line(&self) -> Result<Arc<Line>, BrokerError> {
        self.start();
        let mut state = self.state.subscribe();
        let decided = |state: &State| match state {
            // A line that is lost but not yet replaced does not count.
            State::Up(line) => line.is_up(),
            State::Closed => true,
            State::Down(why) => why.as_ref().is_some_and(|(kind, _)| *kind != BrokerErrorKind::Unavailable),
        };
        let limit = self.settings.limits().connect;
        let _late = timeout(limit, state.wait_for(decided)).await.is_err();
        let now = state.borrow().clone();
        match now {
            State::Up(line) if line.is_up() => Ok(line),
            State::Closed => Err(BrokerError::new(
                BrokerErrorKind::Closed,
                "the connection to RabbitMQ was closed by this process; nothing is lost",
            )),
            State::Down(Some((kind, why))) => Err(BrokerError::new(kind, why)),
            State::Up(_) | State::Down(None) => Err(BrokerError::new(
                BrokerErrorKind::Unavailable,
                format!(
                    "no connection to RabbitMQ within {} s; it is being tried again",
                    limit.as_secs_f32()
                ),
            )),
        }
    }

    /// Why RabbitMQ takes no messages now, if so.
    pub(super) fn blocked(&self) -> Option<String> {
        match &*self.state.borrow() {
            State::Up(line) => line.blocked(),
            State::Down(_) | State::Closed => None,
        }
    }

    /// Whether [`Self::close`] was called.
    pub(super) fn is_closed(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Says goodbye and stays closed.
    pub(super) async fn close(&self) {
        self.stop.cancel();
        if self.started.swap(true, Ordering::SeqCst) {
            let mut state = self.state.subscribe();
            let _late = timeout(GOODBYE * 2, state.wait_for(|state| matches!(state, State::Closed))).await;
        } else {
            self.state.send_replace(State::Closed);
        }
    }

    fn start(&self) {
        if !self.started.swap(true, Ordering::SeqCst) {
            let keeper = Keeper {
                purpose: self.purpose,
                settings: Arc::clone(&self.settings),
                state: self.state.clone(),
                stop: self.stop.clone(),
            };
            tokio::spawn(keeper.run());
        }
    }
}

/// The task behind a link.
struct Keeper {
    purpose: &'static str,
    settings: Arc<Settings>,
    state: watch::Sender<State>,
    stop: CancellationToken,
}

impl Keeper {
    async fn run(self) {
        let stop = self.stop.clone();
        tokio::select! {
            () = self.keep() => {}
            () = stop.cancelled() => {}
        }
        if let State::Up(line) = self.state.send_replace(State::Closed) {
            line.say_goodbye(GOODBYE).await;
        }
    }

    async fn keep(&self) {
        let Settings { config, nodes, clock } = &*self.settings;
        let name = format!("{} {}", config.name, self.purpose);
        // One node that swallows packets must not use up the time in which a call waits for any node.
        let count = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        let fair_share = config.limits.connect / count;
        let limit = fair_share.max(SHORTEST_DIAL).min(config.limits.connect);
        let (mut next, mut failed, mut told) = (0, 0_u32, Vec::new());
        let mut refused = None;
        loop {
            let (turn, node) = (next / nodes.len(), &nodes[next % nodes.len()]);
            next += 1;
            match dial::dial(node, &config.tls, &name, limit, turn).await {
                Ok(connection) => {
                    refused = None;
                    let line = Arc::new(Line::new(connection, node.place.clone()));
                    self.tell_connected(&line);
                    let since = clock.monotonic();
                    self.state.send_replace(State::Up(Arc::clone(&line)));
                    let why = line.until_lost(self.purpose).await;
                    self.state.send_replace(State::Down(None));
                    line.hang_up();
                    self.tell_lost(&line, &why.to_string());
                    told = vec![BrokerErrorKind::Unavailable];
                    failed = if clock.monotonic().saturating_sub(since) < SETTLED { failed + 1 } else { 0 };
                }
                Err(error) => {
                    failed += 1;
                    // Said once: the attempts that follow fail for the same reason, until they fail for another.
                    if told.contains(&error.kind) {
                        tracing::debug!(connection = self.purpose, host = node.place, %error, "RabbitMQ is not reachable yet");
                    } else {
                        tracing::warn!(connection = self.purpose, host = node.place, %error, "cannot connect to RabbitMQ, trying again");
                        told.push(error.kind);
                    }
                    let transient = error.is_transient();
                    let why = Some((error.kind, error.message));
                    if transient {
                        self.state.send_replace(State::Down(why));
                    } else {
                        refused = why;
                    }
                    // Whoever waits is told of a refusal when every node was asked: a node that has not joined its cluster yet
                    // knows nobody, and the next one may be well.
                    if failed.is_multiple_of(count) && refused.is_some() {
                        self.state.send_replace(State::Down(refused.take()));
                    }
                }
            }
            // Every node is tried once before the first pause.
            let rounds = failed / count;
            if rounds > 0 {
                clock.sleep(pause(rounds - 1, clock.random())).await;
            }
        }
    }

    fn tell_connected(&self, line: &Line) {
        tracing::info!(connection = self.purpose, host = line.place, "connected to RabbitMQ");
        metrics::counter!("postrider_broker_connects_total", "connection" => self.purpose).increment(1);
        metrics::gauge!("postrider_broker_up", "connection" => self.purpose).set(1.0);
    }

    fn tell_lost(&self, line: &Line, why: &str) {
        tracing::warn!(
            connection = self.purpose,
            host = line.place,
            why,
            "lost the connection to RabbitMQ, connecting again; unconfirmed messages will be published again"
        );
        metrics::counter!("postrider_broker_lost_connections_total", "connection" => self.purpose)
            .increment(1);
        metrics::gauge!("postrider_broker_up", "connection" => self.purpose).set(0.0);
    }
}

/// A growing pause with jitter, so that many processes do not come back at the same moment.
pub(super) fn pause(failed: u32, random: f64) -> Duration {
    let full = FIRST_PAUSE.saturating_mul(1 << failed.min(8)).min(LONGEST_PAUSE);
    full.mul_f64(0.5 + random / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_stay_bounded() {
        assert_eq!(pause(0, 0.0), Duration::from_millis(50));
        assert_eq!(pause(3, 0.0), Duration::from_millis(400));
        assert!(pause(1, 0.99) < Duration::from_millis(200));
        assert!(pause(1_000, 0.99) <= LONGEST_PAUSE);
    }
}
