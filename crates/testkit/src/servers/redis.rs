//! A Redis of one's own. It keeps an append-only file, so what it acknowledged survives a kill.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;

use super::home::Home;
use super::ports::Port;
use super::process::{self, Launch, Process};
use super::tls::Certificates;
use super::wait::Patience;

const READY: Duration = Duration::from_secs(30);

/// What kind of server it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    /// With TLS alone.
    Tls,
    /// One of a cluster.
    Node,
}

/// A Redis server. Dropping it kills it and removes its data.
#[derive(Debug)]
pub struct Redis {
    process: Process,
    port: Port,
    certificates: Option<Certificates>,
    /// Where the nodes of a cluster talk to each other.
    _bus: Option<Port>,
    home: Home,
}

impl Redis {
    /// A private server; ready when this returns.
    pub async fn start() -> Result<Self> {
        Self::start_in(Home::private()?, Kind::Plain).await
    }

    /// A private server that accepts TLS connections only.
    pub async fn start_tls() -> Result<Self> {
        Self::start_in(Home::private()?, Kind::Tls).await
    }

    /// Three private servers that share the keys among them; ready when this returns.
    pub async fn start_cluster() -> Result<[Self; 3]> {
        let start = || async { Self::start_in(Home::private()?, Kind::Node).await };
        let nodes = [start().await?, start().await?, start().await?];
        let addresses = nodes.each_ref().map(|node| format!("127.0.0.1:{}", node.port.number()));
        let mut create = vec!["--cluster", "create"];
        create.extend(addresses.iter().map(String::as_str));
        create.push("--cluster-yes");
        nodes[0].cli(&create).await?;
        let patience = Patience::new("the Redis cluster", READY);
        for node in &nodes {
            while !node.cli(&["CLUSTER", "INFO"]).await?.contains("cluster_state:ok") {
                node.process.pause_before_look(&patience).await?;
            }
        }
        Ok(nodes)
    }

    pub(crate) async fn start_in(home: Home, kind: Kind) -> Result<Self> {
        let port = Port::claim()?;
        let certificates =
            if kind == Kind::Tls { Some(Certificates::make(home.path()).await?) } else { None };
        let bus = if kind == Kind::Node { Some(Port::claim()?) } else { None };
        let process = Process::start(launch(&home, &port, bus.as_ref(), certificates.as_ref())?)?;
        let server = Self { process, port, certificates, _bus: bus, home };
        server.wait_ready().await?;
        Ok(server)
    }

    /// `redis://` or, with TLS, `rediss://`. A client of the latter has to be given [`Redis::ca_file`].
    pub fn url(&self) -> String {
        let scheme = if self.certificates.is_some() { "rediss" } else { "redis" };
        format!("{scheme}://127.0.0.1:{}", self.port.number())
    }

    /// The authority that signed the server's certificate; only with TLS.
    pub fn ca_file(&self) -> Option<&Path> {
        self.certificates.as_ref().map(Certificates::ca_file)
    }

    /// The folder that holds everything of this server.
    pub fn folder(&self) -> &Path {
        self.home.path()
    }

    /// The server's process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// SIGKILL: a crash.
    pub fn kill(&self) -> Result<()> {
        self.process.kill()
    }

    /// SIGSTOP: connections stay open and nothing answers.
    pub fn pause(&self) -> Result<()> {
        self.process.pause()
    }

    /// SIGCONT.
    pub fn resume(&self) -> Result<()> {
        self.process.resume()
    }

    /// An orderly shutdown; the data stays for [`Redis::restart`].
    pub async fn stop(&self) -> Result<()> {
        self.process.stop(Signal::TERM, READY).await
    }

    /// Starts again on the same port and data; kills first what still runs. Ready when this returns.
    pub async fn restart(&self) -> Result<()> {
        self.process.start_again()?;
        self.wait_ready().await
    }

    /// What `redis-cli` prints for a command.
    pub async fn cli(&self, words: &[&str]) -> Result<String> {
        let mut command = self.client();
        command.args(words);
        Ok(process::run(command).await?.trim().to_owned())
    }

    async fn wait_ready(&self) -> Result<()> {
        let patience = Patience::new("Redis", READY);
        while !self.answers().await {
            self.process.pause_before_look(&patience).await?;
        }
        Ok(())
    }

    async fn answers(&self) -> bool {
        self.cli(&["PING"]).await.is_ok_and(|answer| answer == "PONG")
    }

    fn client(&self) -> Command {
        let mut command = Command::new("redis-cli");
        command.args(["-h", "127.0.0.1", "-p", &self.port.number().to_string()]);
        if let Some(authority) = self.ca_file() {
            command.arg("--tls").arg("--cacert").arg(authority);
        }
        command
    }
}

fn launch(
    home: &Home,
    port: &Port,
    bus: Option<&Port>,
    certificates: Option<&Certificates>,
) -> Result<Launch> {
    let data = home.folder("data")?;
    let mut args: Vec<OsString> = Vec::new();
    let mut set = |option: &str, value: OsString| args.extend([option.into(), value]);
    set("--bind", "127.0.0.1".into());
    set("--dir", data.clone().into());
    set("--save", "".into());
    // Written before the answer is: a killed server loses nothing, only a machine without power loses a second.
    set("--appendonly", "yes".into());
    set("--appendfsync", "everysec".into());
    set("--daemonize", "no".into());
    if let Some(bus) = bus {
        set("--cluster-enabled", "yes".into());
        set("--cluster-port", bus.number().to_string().into());
    }
    if let Some(certificates) = certificates {
        set("--port", "0".into());
        set("--tls-port", port.number().to_string().into());
        set("--tls-ca-cert-file", certificates.ca_file().into());
        set("--tls-cert-file", certificates.server_file().into());
        set("--tls-key-file", certificates.key_file().into());
        set("--tls-auth-clients", "no".into());
    } else {
        set("--port", port.number().to_string().into());
    }
    Ok(Launch {
        name: "Redis".into(),
        program: "redis-server".into(),
        args,
        env: Vec::new(),
        folder: data,
        log: home.path().join("log"),
        user: None,
        private: home.is_private(),
    })
}
