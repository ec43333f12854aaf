//! Process trees, as `/proc` shows them.
//!
//! Signals go to a whole tree because process groups are not enough: every PostgreSQL backend leads a session of its own.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use super::wait;

/// The names under which the kernel knows our servers, what they start, and the programs that become them.
const SERVER_NAMES: [&str; 13] = [
    "postgres",
    "initdb",
    "redis-server",
    "beam.smp",
    "epmd",
    "erl_child_setup",
    "inet_gethost",
    "rabbitmq-server",
    "erl",
    "erlexec",
    "setpriv",
    "setsid",
    "unshare",
];

/// Every live process that works in `folder` or names it on its command line. What a test looks at to be sure that
/// nothing was left running.
pub fn processes_in(folder: &Path) -> Vec<i32> {
    let name = folder.as_os_str().as_encoded_bytes();
    let named = |pid: i32| {
        fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.windows(name.len()).any(|window| window == name))
    };
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    all()
        .filter(|process| process.pid != own && (works_in(process.pid, folder) || named(process.pid)))
        .map(|process| process.pid)
        .collect()
}

/// The server processes that work in `folder`. Unlike [`processes_in`] it spares a shell that happens to stand there.
pub(crate) fn servers_in(folder: &Path) -> Vec<Pid> {
    let is_server = |pid: i32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| SERVER_NAMES.contains(&name.trim()))
    };
    all()
        .filter(|process| works_in(process.pid, folder) && is_server(process.pid))
        .filter_map(|process| Pid::from_raw(process.pid))
        .collect()
}

/// Stops `root` and everything below it, until a look finds nothing new, and returns them all. A stopped process cannot
/// start another, so this is the whole tree.
pub(crate) fn freeze(root: Pid) -> Vec<Pid> {
    let mut frozen = Vec::new();
    let mut fresh = vec![root];
    while !fresh.is_empty() {
        signal(&fresh, Signal::STOP);
        wait::until_stopped(&fresh);
        frozen.append(&mut fresh);
        fresh = family(root).into_iter().filter(|pid| !frozen.contains(pid)).collect();
    }
    frozen
}

/// Whether no thread of the process runs any more. The signal only asks: on a busy machine threads go on for a tenth of a
/// second and longer, and a server that was just paused would still answer. A process that is gone has stopped, too.
pub(crate) fn is_stopped(pid: Pid) -> bool {
    let threads =
        fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).into_iter().flatten().flatten();
    threads.filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok()).all(|line| {
        let state = line.rsplit_once(')').and_then(|(_, fields)| fields.split_whitespace().next());
        matches!(state, Some("T" | "t" | "Z" | "X") | None)
    })
}

/// `root` and everything below it.
pub(crate) fn family(root: Pid) -> Vec<Pid> {
    let everyone: Vec<Stat> = all().collect();
    let mut found = vec![root.as_raw_nonzero().get()];
    let mut next = 0;
    while next < found.len() {
        let parent = found[next];
        found.extend(everyone.iter().filter(|process| process.parent == parent).map(|process| process.pid));
        next += 1;
    }
    found.into_iter().filter_map(Pid::from_raw).collect()
}

/// Sends a signal to each. A process that is already gone is no failure: gone is what signals are sent for here.
pub(crate) fn signal(pids: &[Pid], signal: Signal) {
    for pid in pids {
        let _ = kill_process(*pid, signal);
    }
}

/// False once the process is gone, or dead and only waiting for its parent to notice.
pub(crate) fn is_alive(pid: Pid) -> bool {
    stat(pid.as_raw_nonzero().get()).is_some()
}

struct Stat {
    pid: i32,
    parent: i32,
}

fn all() -> impl Iterator<Item = Stat> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(stat)
}

/// Parses `pid (name) state parent …`; the name may hold spaces and brackets. Dead processes count as absent.
fn stat(pid: i32) -> Option<Stat> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = line.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    (state != "Z" && state != "X").then_some(Stat { pid, parent })
}

fn works_in(pid: i32, folder: &Path) -> bool {
    fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|at| at.starts_with(folder))
}
