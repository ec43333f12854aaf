//! The only reader of time and randomness.
//!
//! Everything that waits, measures or draws asks a [`Clock`], so that a test can move time by hand and a simulation
//! can replay a schedule from its seed.
#![allow(clippy::disallowed_methods, reason = "this is the one door to time and randomness")]

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Tells the time, waits, and makes ids and random numbers. Cheap to clone.
#[derive(Clone)]
pub struct Clock(Arc<dyn Time>);

trait Time: Send + Sync {
    fn now(&self) -> Timestamp;
    fn monotonic(&self) -> Duration;
    fn sleep(&self, duration: Duration) -> Sleep;
    /// The next number of a seed; nothing where real randomness is wanted.
    fn seeded(&self) -> Option<u64> {
        None
    }
}

impl Clock {
    /// The machine's own clock.
    pub fn system() -> Self {
        Self(Arc::new(SystemTime { start: tokio::time::Instant::now() }))
    }

    /// A clock that stands still until the returned handle moves it.
    pub fn manual(start: Timestamp) -> (Self, ManualClock) {
        Self::with_hands(start, None)
    }

    /// The same, and all ids and random numbers follow from a seed, so that a simulation can be played again. Never for secrets.
    pub fn simulated(start: Timestamp, seed: u64) -> (Self, ManualClock) {
        Self::with_hands(start, Some(seed))
    }

    fn with_hands(start: Timestamp, seed: Option<u64>) -> (Self, ManualClock) {
        let hands = Hands {
            start,
            elapsed: Duration::ZERO,
            shift: jiff::SignedDuration::ZERO,
            sleepers: Vec::new(),
            seed,
        };
        let hands = ManualClock(Arc::new(Mutex::new(hands)));
        (Self(Arc::new(hands.clone())), hands)
    }

    /// The time of day, for people and for tables. Whole microseconds, which is what every store keeps.
    pub fn now(&self) -> Timestamp {
        let now = self.0.now();
        Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
    }

    /// Time since some start, never stepping back: for limits and measurements.
    pub fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    /// How long ago a reading of [`Self::monotonic`] was.
    pub fn since(&self, start: Duration) -> Duration {
        self.monotonic().saturating_sub(start)
    }

    /// Waits.
    pub async fn sleep(&self, duration: Duration) {
        self.0.sleep(duration).await;
    }

    /// Waits until a time of day; at once if it has passed.
    pub async fn sleep_until(&self, when: Timestamp) {
        let wait = when.duration_since(self.now());
        if let Ok(wait) = Duration::try_from(wait) {
            self.sleep(wait).await;
        }
    }

    /// A new id: UUID v7, so that ids sort by the time they were made.
    pub fn new_id(&self) -> Uuid {
        let now = self.0.now();
        if let (Some(high), Some(low)) = (self.0.seeded(), self.0.seeded()) {
            let mut random = [0; 10];
            random[..8].copy_from_slice(&high.to_le_bytes());
            random[8..].copy_from_slice(&low.to_le_bytes()[..2]);
            let millis = u64::try_from(now.as_millisecond()).unwrap_or(0);
            return uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid();
        }
        let seconds = u64::try_from(now.as_second()).unwrap_or(0);
        let nanos = u32::try_from(now.subsec_nanosecond()).unwrap_or(0);
        Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, seconds, nanos))
    }

    /// 32 random bytes that nobody can guess, for secrets.
    pub fn secret(&self) -> [u8; 32] {
        rand::random()
    }

    /// A random number from 0 up to, but not including, 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    pub fn random(&self) -> f64 {
        match self.0.seeded() {
            Some(number) => (number >> 11) as f64 / (1_u64 << 53) as f64,
            None => rand::random(),
        }
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Clock({})", self.now())
    }
}

struct SystemTime {
    start: tokio::time::Instant,
}

impl Time for SystemTime {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }
    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// The hands of a manual clock.
#[derive(Clone)]
pub struct ManualClock(Arc<Mutex<Hands>>);

struct Hands {
    start: Timestamp,
    elapsed: Duration,
    /// How far the time of day is off.
    shift: jiff::SignedDuration,
    sleepers: Vec<(Duration, tokio::sync::oneshot::Sender<()>)>,
    /// Where the numbers of a simulation come from.
    seed: Option<u64>,
}

impl ManualClock {
    /// Moves time forward and wakes everybody whose wait is over.
    pub fn advance(&self, by: Duration) {
        let mut hands = self.hands();
        hands.elapsed += by;
        let now = hands.elapsed;
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut hands.sleepers).into_iter().partition(|(at, _)| *at <= now);
        hands.sleepers = later;
        drop(hands);
        for (_, wake) in due {
            let _gone = wake.send(());
        }
    }

    /// Sets the time of day off by this much, forward or back, as an operator or a bad time server does. Waits and limits go by
    /// the time since the start, and do not notice.
    pub fn shift(&self, by: jiff::SignedDuration) {
        self.hands().shift = by;
    }

    /// How long until the next sleeper is due, if anybody sleeps.
    pub fn next_wake(&self) -> Option<Duration> {
        let hands = self.hands();
        let live = hands.sleepers.iter().filter(|(_, wake)| !wake.is_closed());
        live.map(|(at, _)| at.saturating_sub(hands.elapsed)).min()
    }

    fn hands(&self) -> std::sync::MutexGuard<'_, Hands> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Time for ManualClock {
    fn now(&self) -> Timestamp {
        let hands = self.hands();
        let now = hands.start.saturating_add(hands.elapsed).unwrap_or(Timestamp::MAX);
        now.saturating_add(hands.shift).unwrap_or(now)
    }
    fn monotonic(&self) -> Duration {
        self.hands().elapsed
    }
    fn sleep(&self, duration: Duration) -> Sleep {
        let (wake, woken) = tokio::sync::oneshot::channel();
        let mut hands = self.hands();
        let at = hands.elapsed + duration;
        if duration.is_zero() {
            let _gone = wake.send(());
        } else {
            hands.sleepers.push((at, wake));
        }
        Box::pin(async move {
            let _gone = woken.await;
        })
    }
    fn seeded(&self) -> Option<u64> {
        self.hands().seed.as_mut().map(next_number)
    }
}

/// SplitMix64: small, quick, and the same everywhere.
fn next_number(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_manual_clock_wakes_only_those_who_are_due() {
        let (clock, hands) = Clock::manual(Timestamp::UNIX_EPOCH);
        let short = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep(Duration::from_secs(5)).await }
        });
        while hands.next_wake().is_none() {
            tokio::task::yield_now().await;
        }
        hands.advance(Duration::from_secs(4));
        assert_eq!(hands.next_wake(), Some(Duration::from_secs(1)));
        hands.advance(Duration::from_secs(1));
        short.await.unwrap();
        assert_eq!(clock.now(), Timestamp::from_second(5).unwrap());
    }

    #[test]
    fn a_simulated_clock_draws_the_same_again() {
        let drawn = |seed| {
            let (clock, hands) = Clock::simulated(Timestamp::from_second(1_700_000_000).unwrap(), seed);
            hands.shift(jiff::SignedDuration::from_secs(-60));
            (clock.new_id(), clock.random().to_bits(), clock.now())
        };
        assert_eq!(drawn(7), drawn(7));
        assert_ne!(drawn(7).0, drawn(8).0);
        assert_eq!(drawn(7).2, Timestamp::from_second(1_699_999_940).unwrap());
    }

    #[test]
    fn ids_sort_by_time() {
        let (clock, hands) = Clock::manual(Timestamp::from_second(1_700_000_000).unwrap());
        let first = clock.new_id();
        hands.advance(Duration::from_millis(2));
        assert!(first < clock.new_id());
    }
}
