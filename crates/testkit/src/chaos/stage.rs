//! What a chaos run stands on: servers behind proxies, and the processes under test.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use postrider::Clock;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

use super::worker;
use crate::proxy::Proxy;
use crate::receiver::{Receiver, Reply};
use crate::servers::{Postgres, RabbitCluster, RabbitVersion, Redis};

/// Far more than a long run writes; only what is written takes memory.
const DISK_MEGABYTES: u64 = 6_000;

/// The books' tenant.
pub(super) const TENANT: &str = "acme";

/// Servers, proxies and processes.
pub(super) struct Stage {
    pub(super) processes: Vec<Process>,
    pub(super) proxies: Vec<(&'static str, Proxy)>,
    pub(super) postgres: Postgres,
    pub(super) redis: Redis,
    pub(super) rabbitmq: RabbitCluster,
    pub(super) receiver: Receiver,
    pub(super) folder: PathBuf,
    /// Kinds of faults that cannot strike on this machine, and why.
    pub(super) left_out: BTreeMap<&'static str, String>,
    program: PathBuf,
    environment: Vec<(&'static str, String)>,
}

impl Stage {
    /// Starts everything and waits until events can flow.
    pub(super) async fn set(folder: &Path, version: RabbitVersion) -> Result<Self> {
        let bins = std::env::current_exe()?.parent().context("the binary lies nowhere")?.to_owned();
        let program = bins.join("postrider");
        ensure!(program.exists(), "{} is missing: build the workspace first", program.display());
        let ((postgres, no_disk), redis, rabbitmq) =
            tokio::try_join!(small_postgres(), Redis::start(), RabbitCluster::start_version(version))?;
        let no_clock = false_clock().err().map(|error| format!("{error:#}"));
        let left_out = [("disk full", no_disk), ("clock off", no_clock)];
        let left_out: BTreeMap<_, _> =
            left_out.into_iter().filter_map(|(kind, why)| Some((kind, why?))).collect();
        for (kind, why) in &left_out {
            eprintln!("left out here: {kind}: {why}");
        }
        let receiver = Receiver::start(|_, _| Reply::status(200)).await;

        let mut proxies = Vec::new();
        let (proxy, database) = Proxy::in_front_of(&postgres.url()).await?;
        proxies.push(("postgres", proxy));
        let (proxy, cache) = Proxy::in_front_of(&redis.url()).await?;
        proxies.push(("redis", proxy));
        let mut nodes = Vec::new();
        for (node, name) in ["rabbitmq-0", "rabbitmq-1", "rabbitmq-2"].into_iter().enumerate() {
            let (proxy, url) = Proxy::in_front_of(&rabbitmq.amqp_url(node)).await?;
            proxies.push((name, proxy));
            nodes.push(url);
        }
        let management: Vec<_> =
            (0..RabbitCluster::NODES).map(|node| rabbitmq.management_url(node)).collect();
        let environment = vec![
            ("DATABASE_URL", database.clone()),
            ("RABBITMQ_URL", nodes.join(",")),
            ("REDIS_URL", cache.clone()),
            ("RABBITMQ_MANAGEMENT_URL", management.join(",")),
        ];
        fs::write(folder.join("postrider.toml"), config(&receiver.url()))?;
        let mut stage = Self {
            processes: Vec::new(),
            proxies,
            postgres,
            redis,
            rabbitmq,
            receiver,
            folder: folder.to_owned(),
            left_out,
            program: program.clone(),
            environment,
        };
        stage.command(&["db", "migrate"]).await?;
        stage.command(&["ledger", "--tenant", TENANT, "accounts", "init", "--base", "EUR"]).await?;
        let serve =
            |name: &'static str, roles: &str| Process::new(name, &program, &["serve", "--roles", roles]);
        let work = |name: &'static str, node: usize| {
            // Each begins at another node of the cluster.
            let nodes = [&nodes[node..], &nodes[..node]].concat().join(",");
            Process::new(name, &bins.join("postrider-worker"), &["chaos", &database, &nodes, &cache])
        };
        stage.processes = vec![
            serve("relay 1", "relay,progress"),
            serve("relay 2", "relay,collector"),
            serve("push", "push"),
            serve("ledger", "ledger"),
            work("consumers 1", 0),
            work("consumers 2", 1),
        ];
        for process in &stage.processes {
            process.start(&stage).await?;
        }
        stage.wait_for_queues().await?;
        Ok(stage)
    }

    /// Waits until every queue has members on all nodes, or a kill right after the start would prove nothing but that.
    async fn wait_for_queues(&self) -> Result<()> {
        let own = worker::CONSUMERS.map(|(name, _)| format!("chaos.{name}"));
        for queue in own.iter().map(String::as_str).chain(["chaos.hook", "chaos.books"]) {
            self.rabbitmq.wait_registered(queue).await?;
        }
        Ok(())
    }

    /// This proxy; if it is one of RabbitMQ's, the one among them with the most connections.
    pub(super) fn busiest(&self, wanted: usize) -> &(&'static str, Proxy) {
        let asked = &self.proxies[wanted];
        let nodes = self.proxies.iter().filter(|(name, _)| name.starts_with("rabbitmq"));
        let busiest = nodes.max_by_key(|(_, proxy)| proxy.counters().open()).unwrap_or(asked);
        if asked.0.starts_with("rabbitmq") && asked.1.counters().open() == 0 { busiest } else { asked }
    }

    /// Asks the management API of whichever node answers.
    pub(super) async fn manage(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let mut answer = self.rabbitmq.manage(0, method, path, body).await;
        for node in 1..RabbitCluster::NODES {
            if answer.is_err() {
                answer = self.rabbitmq.manage(node, method, path, body).await;
            }
        }
        answer
    }

    /// Runs the binary to its end, past no proxy that is in the way: only while everything is healed.
    pub(super) async fn command(&self, words: &[&str]) -> Result<String> {
        let ran = self.try_command(words).await?;
        ensure!(ran.0.success(), "postrider {} ended with {}: {}", words.join(" "), ran.0, ran.1);
        Ok(ran.1)
    }

    /// The same, with how it ended and what it said.
    pub(super) async fn try_command(&self, words: &[&str]) -> Result<(ExitStatus, String)> {
        let mut command = Command::new(&self.program);
        command.args(words).current_dir(&self.folder).envs(self.environment.iter().map(|(k, v)| (*k, v)));
        let ran = command.stdin(Stdio::null()).output().await?;
        let said = [ran.stdout, ran.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok((ran.status, said.concat()))
    }

    /// Duplicates that the consumers knew, as far as they told before they died.
    pub(super) fn duplicates(&self) -> u64 {
        self.processes.iter().map(|process| process.duplicates.0.load(Ordering::Relaxed)).sum()
    }
}

/// On a disk that can be full, where that is allowed; otherwise with the reason why not.
async fn small_postgres() -> Result<(Postgres, Option<String>)> {
    match Postgres::start_on_disk(DISK_MEGABYTES).await {
        Ok(postgres) => Ok((postgres, None)),
        Err(error) => Ok((Postgres::start().await?, Some(format!("{error:#}")))),
    }
}

/// A library that tells a program another time of day, and leaves alone the clock it measures with.
fn false_clock() -> Result<PathBuf> {
    let folders = fs::read_dir("/usr/lib")?.flatten().map(|folder| folder.path());
    let libraries = folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1"));
    let mut found = libraries.filter(|library| library.exists());
    found.next().context("libfaketime is not installed")
}

fn config(hook: &str) -> String {
    format!(
        r#"
[outbox]
exchange = "{exchange}"
[relay]
lease_ms = 4000
poll_interval_ms = 500
backoff_base_ms = 250
backoff_max_ms = 2000
max_attempts = 100
[broker]
connect_timeout_ms = 5000
confirm_timeout_ms = 10000
[egress]
allow = ["127.0.0.1", "http"]
[[exchange]]
name = "{exchange}"
[[queue]]
name = "chaos.books"
bind = ["payroll.salary.*"]
[ledger]
queue = "chaos.books"
[[queue]]
name = "chaos.hook"
bind = ["chaos.hook.*"]
[queue.retry]
max_retries = 20
delays = ["500ms"]
[[push]]
name = "chaos.hook"
queue = "chaos.hook"
url = "{hook}"
"#,
        exchange = worker::EXCHANGE
    )
}

/// Duplicates told by the incarnations that ended and by the one that runs.
#[derive(Default)]
struct Told(AtomicU64);

/// A process under test. It is started again whenever it was killed.
pub(super) struct Process {
    pub(super) name: &'static str,
    program: PathBuf,
    words: Vec<String>,
    child: Mutex<Option<Child>>,
    duplicates: Arc<Told>,
    log: Mutex<Option<File>>,
}

impl Process {
    fn new(name: &'static str, program: &Path, words: &[&str]) -> Self {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        let (child, log) = (Mutex::default(), Mutex::default());
        Self { name, program: program.to_owned(), words, child, duplicates: Arc::default(), log }
    }

    /// Starts it with a clock that is this many seconds off. Returns its id.
    pub(super) async fn start_off(&self, stage: &Stage, seconds: i64) -> Result<u32> {
        let library = false_clock()?.display().to_string();
        let off = format!("{seconds:+}s");
        let off = [("LD_PRELOAD", &*library), ("FAKETIME", &*off), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")];
        self.start_with(stage, &off).await?;
        let id = self.child.lock().await.as_ref().and_then(Child::id);
        let id = id.context("it has ended by itself")?;
        let loaded = fs::read_to_string(format!("/proc/{id}/maps"))?;
        ensure!(loaded.contains("libfaketime"), "it did not take the false clock");
        Ok(id)
    }

    /// Starts it; what it says goes to a file of its name.
    pub(super) async fn start(&self, stage: &Stage) -> Result<()> {
        self.start_with(stage, &[]).await
    }

    async fn start_with(&self, stage: &Stage, extra: &[(&str, &str)]) -> Result<()> {
        let mut log = self.log.lock().await;
        let file = match log.take() {
            Some(file) => file,
            None => File::create(stage.folder.join(format!("{}.log", self.name.replace(' ', "-"))))?,
        };
        // It ends with us, however we end: whoever interrupts a run finds nothing left of it. `setpriv` becomes what it starts.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(&self.program).args(&self.words);
        command.current_dir(&stage.folder).kill_on_drop(true);
        command.envs(stage.environment.iter().map(|(name, value)| (*name, value)));
        command.envs(extra.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file.try_clone()?);
        *log = Some(file);
        let mut started = command.spawn().with_context(|| format!("{} did not start", self.name))?;
        if let Some(lines) = started.stdout.take() {
            let told = self.duplicates.clone();
            let before = told.0.load(Ordering::Relaxed);
            tokio::spawn(async move {
                let mut lines = BufReader::new(lines).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    if let Some(count) =
                        line.strip_prefix("duplicates ").and_then(|text| text.parse::<u64>().ok())
                    {
                        told.0.store(before + count, Ordering::Relaxed);
                    }
                }
            });
        }
        *self.child.lock().await = Some(started);
        Ok(())
    }

    /// kill -9. Returns the id of the process that is gone.
    pub(super) async fn kill(&self) -> Result<u32> {
        let mut child = self.child.lock().await;
        let Some(mut running) = child.take() else { bail!("{} does not run", self.name) };
        let pid = running.id().context("it has ended by itself")?;
        running.kill().await?;
        ensure!(!Path::new(&format!("/proc/{pid}")).exists(), "process {pid} is still there");
        Ok(pid)
    }

    /// SIGSTOP; true when the kernel says that it has stopped.
    pub(super) async fn pause(&self, clock: &Clock) -> Result<u32> {
        let pid = self.signal(Signal::STOP).await?;
        for _ in 0..200 {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T')) {
                return Ok(pid);
            }
            clock.sleep(Duration::from_millis(10)).await;
        }
        bail!("process {pid} did not stop")
    }

    /// SIGCONT.
    pub(super) async fn resume(&self) -> Result<u32> {
        self.signal(Signal::CONT).await
    }

    /// Whether it has ended though nobody killed it.
    pub(super) async fn has_ended(&self) -> Option<ExitStatus> {
        self.child.lock().await.as_mut()?.try_wait().ok().flatten()
    }

    async fn signal(&self, signal: Signal) -> Result<u32> {
        let child = self.child.lock().await;
        let id = child.as_ref().and_then(Child::id).with_context(|| format!("{} does not run", self.name))?;
        let pid = i32::try_from(id).ok().and_then(Pid::from_raw).context("no such process")?;
        kill_process(pid, signal)?;
        Ok(id)
    }
}
