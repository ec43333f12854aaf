//! One server process: started, paused, killed and started again with the same arguments.
//!
//! A private server dies with this process, even by SIGKILL: `setpriv --pdeathsig` asks the kernel for it. The kernel
//! takes "parent" to mean the thread that started the child, so one thread that lives as long as the process starts all.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal};

use super::tree;
use super::wait::{self, Patience};

/// What to start, and how long it lives.
#[derive(Debug)]
pub(crate) struct Launch {
    /// For messages: "PostgreSQL".
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<OsString>,
    pub(crate) env: Vec<(&'static str, OsString)>,
    /// Where it works. Nothing else does, so that its processes can be told by it.
    pub(crate) folder: PathBuf,
    pub(crate) log: PathBuf,
    /// Run as this user.
    pub(crate) user: Option<&'static str>,
    /// Dies with this process; otherwise it lives until it is killed.
    pub(crate) private: bool,
}

#[derive(Debug)]
pub(crate) struct Process {
    launch: Launch,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    child: Child,
    running: bool,
}

impl Process {
    pub(crate) fn start(launch: Launch) -> Result<Self> {
        let child = launch.spawn()?;
        Ok(Self { launch, state: Mutex::new(State { child, running: true }) })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.state().child.id()
    }

    /// SIGKILL to the whole tree at once. Returns when all of it is gone.
    pub(crate) fn kill(&self) -> Result<()> {
        let mut state = self.state();
        if !state.running {
            return Ok(());
        }
        let family = tree::freeze(root(&state.child)?);
        tree::signal(&family, Signal::KILL);
        state.child.wait()?;
        state.running = false;
        wait::until_gone(&family);
        Ok(())
    }

    /// SIGSTOP to the whole tree: the server keeps its connections and answers nothing.
    pub(crate) fn pause(&self) -> Result<()> {
        tree::freeze(root(&self.running()?.child)?);
        Ok(())
    }

    /// SIGCONT to the whole tree.
    pub(crate) fn resume(&self) -> Result<()> {
        tree::signal(&tree::family(root(&self.running()?.child)?), Signal::CONT);
        Ok(())
    }

    /// Asks for an orderly end with `signal` and waits for it.
    pub(crate) async fn stop(&self, signal: Signal, limit: Duration) -> Result<()> {
        if !self.state().running {
            return Ok(());
        }
        let pid = root(&self.running()?.child)?;
        let family = tree::family(pid);
        tree::signal(&[pid], signal);
        let patience = Patience::new(format!("the end of {}", self.launch.name), limit);
        while self.state().child.try_wait()?.is_none() {
            patience.pause().await?;
        }
        self.state().running = false;
        wait::until_gone(&family);
        Ok(())
    }

    /// Starts again what was killed or stopped; kills first what still runs.
    pub(crate) fn start_again(&self) -> Result<()> {
        self.kill()?;
        let child = self.launch.spawn()?;
        *self.state() = State { child, running: true };
        Ok(())
    }

    /// Waits a moment for the next look at whether the server is ready. Fails when it ended by itself or the patience
    /// did, and shows what it wrote.
    pub(crate) async fn pause_before_look(&self, patience: &Patience) -> Result<()> {
        let ended = self.state().child.try_wait()?;
        let waited = match ended {
            Some(status) => Err(anyhow!("{} ended with {status}", self.launch.name)),
            None => patience.pause().await,
        };
        waited.with_context(|| format!("its log ends with:\n{}", tail(&self.launch.log)))
    }

    fn running(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state();
        if !state.running {
            bail!("{} is not running", self.launch.name);
        }
        Ok(state)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.launch.private {
            let _ = self.kill();
        }
    }
}

impl Launch {
    fn spawn(&self) -> Result<Child> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        let mut command = self.command();
        command
            .args(&self.args)
            .envs(self.env.iter().map(|(key, value)| (key, value)))
            .env_remove("NOTIFY_SOCKET")
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        spawn_for_life(command).with_context(|| format!("cannot start {}", self.name))
    }

    /// Both wrappers replace themselves with what they start, so the child's process id is the server's.
    fn command(&self) -> Command {
        let mut words: Vec<OsString> = Vec::new();
        if self.private {
            words.extend(["setpriv", "--pdeathsig", "KILL"].map(Into::into));
        } else {
            words.push("setsid".into());
            if self.user.is_some() {
                words.push("setpriv".into());
            }
        }
        if let Some(user) = self.user {
            words.extend(as_user(user));
        }
        words.push(self.program.clone().into());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
    }
}

/// Runs a command to its end and returns what it printed; its complaint is the error.
pub(crate) async fn run(command: Command) -> Result<String> {
    let words = format!("{command:?}");
    let output = tokio::process::Command::from(command)
        .kill_on_drop(true)
        .stdin(Stdio::null())
        .output()
        .await
        .with_context(|| format!("cannot run {words}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{words} ended with {}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(text)
}

/// The words that make `setpriv` change the user.
pub(crate) fn as_user(user: &str) -> [OsString; 3] {
    [format!("--reuid={user}").into(), format!("--regid={user}").into(), "--clear-groups".into()]
}

/// The first of `folders` that holds `program`; otherwise the bare name, for PATH to resolve.
pub(crate) fn find_program(program: &str, folders: &[PathBuf]) -> PathBuf {
    folders
        .iter()
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
        .unwrap_or_else(|| program.into())
}

fn root(child: &Child) -> Result<Pid> {
    Pid::from_raw(child.id().try_into()?).context("a process without an id")
}

/// The last lines of a log.
pub(crate) fn tail(log: &Path) -> String {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

type Order = (Command, mpsc::Sender<io::Result<Child>>);

/// Starts a command from the one thread that never ends.
fn spawn_for_life(command: Command) -> Result<Child> {
    static SPAWNER: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, reply) in inbox {
                let _ = reply.send(command.spawn());
            }
        });
        orders
    });
    let (reply, answer) = mpsc::channel();
    spawner.send((command, reply)).map_err(|_| anyhow!("the spawner thread is gone"))?;
    Ok(answer.recv().context("the spawner thread is gone")??)
}
