//! How a relay comes to stream, and back: poll until little waits, open a stream, agree with the poller on a point, poll up to
//! it, and read the stream from there. Whatever goes wrong on the way, polling goes on, and nothing depends on the stream:
//! the table knows what is not published.

mod joining;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};

use super::{MOST_BYTES, Pump, Step};
use crate::envelope::OrderingKey;
use crate::relay::RelayMode;
use crate::relay::handover::Handover;
use crate::store::{
    Horizon, Opening, Outbox, OutboxRow, RowStream, StoreError, StreamLimit, StreamState, Streamed,
};

/// How often to look how far the stream lags.
const LAG: Duration = Duration::from_secs(1);
/// How long the database may keep more of its log than it should, for a transaction that somebody holds open.
const PINNED: Duration = Duration::from_mins(1);
/// How often to look which keys are failing, as a net.
const FAILING: Duration = Duration::from_mins(1);
/// How long to poll when streaming is impossible, in general and where it was asked for.
const IMPOSSIBLE: Duration = Duration::from_mins(1);
const IMPOSSIBLE_CDC: Duration = Duration::from_secs(5);
/// The longest wait for another try after a stream was lost.
const LONGEST: Duration = Duration::from_mins(1);
/// When so many rows were claimed while waiting for writers to end, a later point is better.
const REMEMBERED: usize = 100_000;

/// What was heard of a stream.
pub(super) enum News {
    Opened(Result<Opening, StoreError>),
    /// The point is that far.
    Reached(Result<Horizon, StoreError>),
    /// Who writes now.
    Writing(Result<Horizon, StoreError>),
    Failing(Result<Vec<OrderingKey>, StoreError>),
    Rows(Result<(Box<dyn RowStream>, Streamed), StoreError>),
    Dated(Vec<i64>, Result<Horizon, StoreError>),
    State(Result<Option<StreamState>, StoreError>),
    /// It was told to end.
    Ended,
}

/// Where a relay is on its way to a stream.
#[derive(Default)]
enum Phase {
    #[default]
    Polling,
    Opening,
    /// It is open, and waits for all slots and for the claim under way.
    Waiting,
    /// The point is asked for.
    Reaching,
    /// Everything up to the point is polled.
    Joining {
        /// Who wrote when the point was reached; gone once they have all ended.
        writers: Option<Vec<String>>,
        /// A claim since then began at the low-water mark.
        asked: bool,
    },
    /// It asks which keys are failing; then it streams.
    Entering,
    Live,
}

/// A relay's stream, if it has one.
#[derive(Default)]
pub(super) struct Streaming {
    phase: Phase,
    /// Not there while somebody reads it.
    stream: Option<Box<dyn RowStream>>,
    handover: Handover,
    /// Ends what reads or opens the stream.
    stop: Option<DropGuard>,
    try_at: Duration,
    lost: u32,
    since: Duration,
    /// Why it polls, as it was said last.
    said: Option<String>,
    state_at: Option<Duration>,
    /// Since when the database keeps too much of its log.
    pinned_since: Option<Duration>,
    failing_at: Option<Duration>,
    dating: bool,
    /// Not again before, since the last answer did not come.
    date_at: Duration,
}

impl<S: Outbox> Pump<S> {
    pub(super) fn is_live(&self) -> bool {
        matches!(self.streaming.phase, Phase::Live)
    }

    /// Rows claimed from now on may come by the stream too.
    pub(super) fn is_joined(&self) -> bool {
        matches!(self.streaming.phase, Phase::Joining { .. } | Phase::Entering | Phase::Live)
    }

    /// Goes on with the stream, wherever it is.
    pub(super) fn stream(&mut self) {
        match self.streaming.phase {
            Phase::Polling => self.open(),
            Phase::Waiting => self.reach(),
            Phase::Live => self.read(),
            Phase::Joining { .. } if self.streaming.handover.remembered() > REMEMBERED => {
                self.lose("a transaction that writes to the outbox stays open, and the stream can only begin after it");
            }
            _ => {}
        }
        if !matches!(self.streaming.phase, Phase::Polling | Phase::Opening) {
            self.watch();
        }
    }

    // ── Opening ──

    fn open(&mut self) {
        let idle = !self.reading.has_more() && self.flow.len() < self.relay.config.batch_size.max(1);
        let may = self.relay.config.mode != RelayMode::Poll && self.now() >= self.streaming.try_at;
        if !may || !idle || self.claims == 0 || self.pause.is_on() || !self.is_leased() {
            return;
        }
        self.streaming.phase = Phase::Opening;
        let stop = CancellationToken::new();
        self.streaming.stop = Some(stop.clone().drop_guard());
        let (store, id, lease) = (self.relay.store.clone(), self.relay.id.clone(), self.relay.config.lease);
        self.start(async move {
            tokio::select! {
                opened = store.open_stream(&id, lease) => Step::Stream(News::Opened(opened)),
                () = stop.cancelled() => Step::Stream(News::Ended),
            }
        });
    }

    fn opened(&mut self, opened: Result<Opening, StoreError>) {
        let cdc = self.relay.config.mode == RelayMode::Cdc;
        match opened {
            Ok(Opening::Open(stream)) => {
                self.streaming.stream = Some(stream);
                self.streaming.since = self.now();
                self.streaming.phase = Phase::Waiting;
            }
            Ok(Opening::Elsewhere) => self.poll_for(LAG),
            Ok(Opening::Impossible(why)) => {
                self.say(&why);
                self.poll_for(if cdc { IMPOSSIBLE_CDC } else { IMPOSSIBLE });
            }
            Ok(Opening::Unknown) => {
                if cdc {
                    self.say("this store has no streams; relay.mode = \"cdc\" is for PostgreSQL");
                }
                self.poll_for(Duration::MAX / 4);
            }
            Err(error) => self.lose(&error.to_string()),
        }
    }

    /// Says once why it polls.
    fn say(&mut self, why: &str) {
        if self.streaming.said.as_deref() != Some(why) {
            self.streaming.said = Some(why.to_owned());
            let relay = &self.relay.id;
            if self.relay.config.mode == RelayMode::Cdc {
                tracing::warn!(%relay, %why, "the relay cannot stream and polls; nothing is lost, it tries again");
            } else {
                tracing::info!(%relay, %why, "the relay polls, because it cannot stream");
            }
        }
    }

    // ── Streaming ──

    /// Reads what fits. While nothing does, or the broker is away, the database keeps the rest, up to a limit.
    fn read(&mut self) {
        let (room, least) = self.room();
        if room < least || self.pause.is_on() || !self.is_leased() {
            return;
        }
        let Some(mut stream) = self.streaming.stream.take() else { return };
        let token = CancellationToken::new();
        self.streaming.stop = Some(token.clone().drop_guard());
        let limit = StreamLimit { rows: room, bytes: MOST_BYTES.saturating_sub(self.flow.bytes()).max(1) };
        self.start(async move {
            let rows = tokio::select! {
                rows = stream.next(limit) => rows,
                () = token.cancelled() => return Step::Stream(News::Ended),
            };
            Step::Stream(News::Rows(rows.map(|rows| (stream, rows))))
        });
    }

    fn streamed(&mut self, stream: Box<dyn RowStream>, streamed: Streamed) {
        if !self.is_live() {
            return;
        }
        let Streamed { mut rows, failing, unreadable, told_to } = streamed;
        let told_of_failing = !failing.is_empty();
        let handover = &mut self.streaming.handover;
        for key in failing {
            handover.park(key);
        }
        rows.retain(|row| handover.admits(row));
        handover.told_to(told_to);
        self.streaming.stream = Some(stream);
        if told_of_failing {
            // A claim may have been quicker, and nobody would unpark it: the table is asked in a second, when it has the row for sure.
            let soon = (self.now() + LAG).checked_sub(FAILING);
            self.streaming.failing_at = self.streaming.failing_at.zip(soon).map(|(at, soon)| at.min(soon));
        }
        if let Some(position) = unreadable {
            self.reading.read_again(position.saturating_sub(1).max(0), None);
        }
        if rows.is_empty() {
            return;
        }
        self.measure(&rows);
        self.flow.take_streamed(self.reading.low(), rows);
        for key in self.flow.crowded() {
            if !self.streaming.handover.has_left(&key) {
                self.streaming.handover.drain(key);
            }
        }
    }

    /// The head of a key failed.
    pub(super) fn park(&mut self, row: &OutboxRow) {
        if let (true, Some(key)) = (self.is_joined(), row.envelope.ordering_key.clone()) {
            self.streaming.handover.park(key);
        }
    }

    /// The head of a key is out of the way.
    pub(super) fn unpark(&mut self, key: OrderingKey) {
        if self.is_joined() {
            self.streaming.handover.drain(key);
        }
    }

    /// Whether something that the stream let go has to be claimed.
    pub(super) fn streaming_wants_claim(&mut self) -> bool {
        let wants = self.is_live() && self.streaming.handover.wants_claim(|key| self.flow.is_crowded(key));
        if wants {
            self.reading.look_from_low();
        }
        wants
    }

    /// Looks now and then how the stream does.
    fn watch(&mut self) {
        let now = self.now();
        let due = |at: Option<Duration>, interval| at.is_none_or(|at| now >= at + interval);
        if due(self.streaming.state_at, LAG) {
            self.streaming.state_at = Some(now);
            let store = self.relay.store.clone();
            self.start(async move { Step::Stream(News::State(store.stream_state().await)) });
        }
        if self.is_live() && due(self.streaming.failing_at, FAILING) {
            self.look_at_failing();
        }
        if self.streaming.handover.has_fresh() && !self.streaming.dating && now >= self.streaming.date_at {
            self.streaming.dating = true;
            let (store, positions) = (self.relay.store.clone(), self.streaming.handover.take_fresh());
            self.start(async move { Step::Stream(News::Dated(positions, store.horizon().await)) });
        }
    }

    fn state(&mut self, state: Option<StreamState>) {
        let Some(state) = state.filter(|state| state.relay == self.relay.id) else { return };
        if !state.tells {
            // It stays open, and nobody says that new rows do not come by it.
            return self
                .lose("the publication of the outbox was changed, and does not tell of every new event");
        }
        let (most, now) = (self.relay.config.max_lag_bytes, self.now());
        let StreamState { lag_bytes: kept, untold_bytes: untold, .. } = state;
        let pinned = (kept > most).then(|| self.streaming.pinned_since.unwrap_or(now));
        self.streaming.pinned_since = pinned;
        // Under load it keeps much for a moment; for longer, only for a transaction that stays open.
        if untold > most || pinned.is_some_and(|since| now >= since + PINNED) {
            self.lose(&format!("PostgreSQL keeps {kept} bytes of its log for the stream, more than {most} (relay.max_lag_bytes)"));
        }
    }

    // ── Back to polling ──

    /// Slots came or went: while they do, nobody can say that all rows are ours.
    pub(super) fn slots_changed(&mut self) {
        if self.is_joined() {
            self.lose("slots of the outbox changed hands");
        }
    }

    /// Ends the stream and polls; tries again later. What the stream had not told yet is in the table.
    fn lose(&mut self, why: &str) {
        let now = self.now();
        if self.is_live() {
            tracing::warn!(relay = %self.relay.id, %why, "the relay ended its stream and polls; nothing is lost, it tries again");
            self.relay.status.set_streaming(false);
            if now > self.streaming.since + LONGEST {
                self.streaming.lost = 0;
            }
        } else {
            self.say(why);
        }
        let pause = (LAG * 2_u32.saturating_pow(self.streaming.lost)).min(LONGEST);
        self.streaming.lost = self.streaming.lost.saturating_add(1).min(10);
        self.poll_for(pause);
        let (store, id) = (Arc::clone(&self.ear), self.relay.id.clone());
        self.start(async move {
            if let Err(error) = store.close_stream(&id).await {
                tracing::debug!(%error, "the stream was not given back; it is free when its lease ends");
            }
            Step::Over
        });
    }

    fn poll_for(&mut self, pause: Duration) {
        if matches!(self.streaming.phase, Phase::Reaching) {
            self.claiming = false;
        }
        if self.is_joined() {
            self.reading.start_over();
        }
        self.streaming.phase = Phase::Polling;
        (self.streaming.stream, self.streaming.stop) = (None, None);
        self.streaming.handover = Handover::default();
        self.streaming.pinned_since = None;
        self.streaming.try_at = self.now() + pause;
    }

    /// What became of it.
    pub(super) fn heard(&mut self, news: News) {
        match news {
            News::Opened(opened) => self.opened(opened),
            News::Reached(point) if matches!(self.streaming.phase, Phase::Reaching) => self.reached(point),
            News::Writing(now) => self.writing(now),
            News::Failing(keys) => self.failing(keys),
            News::Rows(Ok((stream, rows))) => self.streamed(stream, rows),
            News::Rows(Err(error)) if self.is_live() => self.lose(&error.to_string()),
            News::Dated(positions, horizon) => {
                self.streaming.dating = false;
                if horizon.is_err() {
                    self.streaming.date_at = self.now() + LAG;
                }
                if self.is_joined() {
                    self.streaming.handover.dated(positions, horizon.ok().map(|horizon| horizon.log));
                }
            }
            News::State(Ok(state)) => self.state(state),
            News::Reached(_) | News::Rows(Err(_)) | News::State(Err(_)) | News::Ended => {}
        }
    }
}
