//! The faults of a chaos run.

use std::time::Duration;

use crate::proxy::Weather;
use crate::sim::Random;

/// What strikes, and whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// kill -9 of a process, which is started again.
    Kill(usize),
    /// SIGSTOP of a process, beyond leases and heartbeats.
    Pause(usize),
    /// A process runs with a clock that is off by so many seconds.
    ClockOff(usize, i64),
    /// The network to a server goes bad.
    Network(usize, Weather),
    /// kill -9 of a RabbitMQ node, which is started again.
    NodeKilled(usize),
    /// SIGSTOP of a RabbitMQ node.
    NodePaused(usize),
    /// A RabbitMQ node and the two others do not hear each other.
    NodeParted(usize),
    /// RabbitMQ blocks publishers, for want of memory.
    MemoryAlarm(usize),
    /// … or of disk.
    DiskAlarm(usize),
    /// kill -9 of PostgreSQL, which is started again.
    PostgresKilled,
    /// PostgreSQL can write nothing more, until there is room again.
    DiskFull,
    /// Every connection to PostgreSQL is terminated by it.
    BackendsTerminated,
    /// kill -9 of Redis, which is started again.
    RedisKilled,
    /// Redis has no memory left and drops keys.
    RedisFull,
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
        match random.below(34) {
            28 | 29 => Self::ClockOff(process, i64::try_from(random.below(7_200)).unwrap_or(0) - 3_600),
            30 | 31 => Self::NodeParted(node),
            32 => Self::DiskFull,
            33 => Self::RedisFull,
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
            Self::ClockOff(..) => "clock off",
            Self::Network(_, Weather::Cut) => "network cut",
            Self::Network(_, Weather::Reset) => "connections reset",
            Self::Network(_, Weather::HalfOpen) => "network half open",
            Self::Network(_, Weather::SwallowReplies) => "replies swallowed",
            Self::Network(_, Weather::Trickle(_)) => "network trickles",
            Self::Network(_, Weather::LimitThenClose(_)) => "closed after a limit",
            Self::Network(..) => "network slow",
            Self::NodeKilled(_) => "RabbitMQ node killed",
            Self::NodePaused(_) => "RabbitMQ node paused",
            Self::NodeParted(_) => "RabbitMQ node parted",
            Self::MemoryAlarm(_) => "memory alarm",
            Self::DiskAlarm(_) => "disk alarm",
            Self::PostgresKilled => "PostgreSQL killed",
            Self::DiskFull => "disk full",
            Self::BackendsTerminated => "backends terminated",
            Self::RedisKilled => "Redis killed",
            Self::RedisFull => "Redis full",
            Self::RedisFlushed => "Redis flushed",
            Self::Unbound => "binding deleted",
            Self::Duplicates => "published twice",
        }
    }

    /// What it needs for itself: two faults of one target never overlap, and one node of RabbitMQ at a time is away.
    pub(super) fn target(self) -> usize {
        match self {
            Self::Kill(process) | Self::Pause(process) | Self::ClockOff(process, _) => process,
            Self::Network(proxy, _) => 10 + proxy,
            Self::NodeKilled(_)
            | Self::NodePaused(_)
            | Self::NodeParted(_)
            | Self::MemoryAlarm(_)
            | Self::DiskAlarm(_) => 20,
            Self::PostgresKilled | Self::DiskFull | Self::BackendsTerminated => 21,
            Self::RedisKilled | Self::RedisFull | Self::RedisFlushed => 22,
            Self::Unbound => 23,
            Self::Duplicates => 24,
        }
    }
}
