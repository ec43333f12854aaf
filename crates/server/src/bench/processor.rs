//! What an event costs in processor time, and where: in this process, in the database, in the broker. On a machine that they share this
//! says more than a rate: whoever spends less leaves more to the others.
//!
//! Read from `/proc`, so it is known on Linux, of servers on this machine whose processes we may look at. Elsewhere it is zero, and
//! nothing is said of it.

use std::fs;
use std::ops::Sub;
use std::time::Duration;

use url::Url;

use super::{Figure, per_second};

/// The kernel counts in these.
const TICK: Duration = Duration::from_millis(10);
/// A socket that listens, in the tables of `/proc/net`.
const LISTENS: &str = "0A";

/// The processes that take part.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Processes {
    database: Option<u32>,
    broker: Option<u32>,
}

/// Processor time that was spent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Spent {
    ours: Duration,
    database: Duration,
    broker: Duration,
}

impl Processes {
    /// Those that listen on the ports of these urls, if they are here.
    pub(crate) fn behind(database: &str, broker: &str) -> Self {
        Self { database: listener(database, 5432), broker: listener(broker, 5672) }
    }

    /// What all of them have spent so far.
    pub(crate) fn spent(self) -> Spent {
        let with_children = |process: Option<u32>| process.map_or(Duration::ZERO, family_time);
        Spent {
            ours: own_time(std::process::id()),
            database: with_children(self.database),
            broker: with_children(self.broker),
        }
    }
}

impl Spent {
    /// Seconds for a million events.
    #[expect(clippy::cast_precision_loss, reason = "counts of a benchmark are far below 2^53")]
    pub(crate) fn per_million(self, events: usize) -> f64 {
        (self.ours + self.database + self.broker).as_secs_f64() * 1_000_000.0 / events as f64
    }

    /// Events in a second of our own processor time. None where it is not known.
    pub(crate) fn ours_per_second(self, events: usize) -> Option<f64> {
        (!self.ours.is_zero()).then(|| per_second(events, self.ours))
    }

    /// The same for people, in microseconds an event and by who spent them.
    pub(crate) fn told(self, events: usize) -> String {
        let events = u32::try_from(events).unwrap_or(u32::MAX).max(1);
        let each = |spent: Duration| (spent / events).as_nanos() / 100;
        let tenths = |spent: Duration| format!("{}.{}", each(spent) / 10, each(spent) % 10);
        format!(
            "{} µs an event here, {} in the database, {} in the broker",
            tenths(self.ours),
            tenths(self.database),
            tenths(self.broker)
        )
    }
}

impl Sub for Spent {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            ours: self.ours.saturating_sub(before.ours),
            database: self.database.saturating_sub(before.database),
            broker: self.broker.saturating_sub(before.broker),
        }
    }
}

/// The figure of rounds of (measured, raw), in seconds for a million events. None where nothing is known.
pub(super) fn figure(what: &str, backend: &str, rounds: Vec<(f64, f64)>) -> Option<Figure> {
    let known = rounds.into_iter().filter(|(_, raw)| *raw > 0.0).collect();
    Figure::median(format!("processor seconds of a million events, {what}"), backend, "s", known)
}

/// The process that listens on a url's port here.
fn listener(url: &str, default: u16) -> Option<u32> {
    let url = Url::parse(url).ok()?;
    let host = url.host_str()?;
    if !matches!(host, "localhost" | "127.0.0.1" | "[::1]") {
        return None;
    }
    let port = url.port().unwrap_or(default);
    let socket = ["/proc/net/tcp", "/proc/net/tcp6"].into_iter().find_map(|table| socket_of(table, port))?;
    let name = format!("socket:[{socket}]");
    processes().find(|process| {
        let Ok(files) = fs::read_dir(format!("/proc/{process}/fd")) else { return false };
        files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == name.as_str()))
    })
}

/// The number of the socket that listens on a port: of its line the second field is the address, the fourth the state, the tenth
/// the number.
fn socket_of(table: &str, port: u16) -> Option<String> {
    let end = format!(":{port:04X}");
    fs::read_to_string(table).ok()?.lines().find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let listens = fields.get(1)?.ends_with(&end) && *fields.get(3)? == LISTENS;
        listens.then(|| fields.get(9).map(ToString::to_string))?
    })
}

fn processes() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Of a process, of its children that live, and of those that are gone.
fn family_time(process: u32) -> Duration {
    let children = processes().filter_map(stat).filter(|stat| stat.parent == process).map(|stat| stat.own);
    stat(process).map_or(Duration::ZERO, |stat| stat.own + stat.of_gone) + children.sum::<Duration>()
}

fn own_time(process: u32) -> Duration {
    stat(process).map_or(Duration::ZERO, |stat| stat.own)
}

struct Stat {
    parent: u32,
    own: Duration,
    of_gone: Duration,
}

fn stat(process: u32) -> Option<Stat> {
    read_stat(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// The second field is a name in brackets and may have blanks. The parent is two fields after it; user and system time 12 and 13, and
/// those of children that were waited for the next two.
fn read_stat(line: &str) -> Option<Stat> {
    let fields: Vec<_> = line.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |place: usize| Some(TICK * fields.get(place)?.parse::<u32>().ok()?);
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        own: ticks(11)? + ticks(12)?,
        of_gone: ticks(13)? + ticks(14)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_a_strange_name_is_read_all_the_same() {
        let line = "77 (a ) b) S 12 77 77 0 -1 4194560 1 2 3 4 250 50 7 3 20 0 1 0 100";
        let stat = read_stat(line).unwrap();
        assert_eq!((stat.parent, stat.own), (12, Duration::from_secs(3)));
        assert_eq!(stat.of_gone, Duration::from_millis(100));
        assert!(read_stat("77 (cut").is_none());
    }

    #[test]
    fn time_is_told_by_who_spent_it() {
        let spent = Spent {
            ours: Duration::from_millis(125),
            database: Duration::from_millis(250),
            broker: Duration::from_secs(1),
        };
        assert_eq!(spent.told(10_000), "12.5 µs an event here, 25.0 in the database, 100.0 in the broker");
        assert!((spent.per_million(10_000) - 137.5).abs() < 0.001);
    }
}
