//! One node, and what the nodes of a group have in common: folder, cookie, epmd.

use std::ffi::OsString;
use std::fmt::Write;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;
use tokio::net::TcpStream;

use super::RabbitVersion;
use crate::servers::home::Home;
use crate::servers::management;
use crate::servers::ports::{self, Port};
use crate::servers::process::{self, Launch, Process};
use crate::servers::tls::Certificates;
use crate::servers::wait::Patience;

const READY: Duration = Duration::from_mins(2);
const REGISTERED: Duration = Duration::from_secs(10);

/// What `rabbitmq.conf` has no words for, in every version.
///
/// How nodes find each other: RabbitMQ 3 waits at random so that nodes starting together do not race, and a second of it is
/// enough for three. RabbitMQ 4 knows no such wait; it would refuse the setting in `rabbitmq.conf`, and ignores it here.
///
/// How long a dead letter waits that could not be moved at once: 180 s unless it is said. A starting server has its queues
/// before its exchanges, so what expired while it was down may find no exchange, even the default one, and wait that long.
const ADVANCED: &str = "[{rabbit, [
  {dead_letter_worker_publisher_confirm_timeout, 3000},
  {cluster_formation, [
    {peer_discovery_backend, rabbit_peer_discovery_classic_config},
    {randomized_startup_delay_range, {0, 1}},
    {discovery_retry_interval, 250}]}]}].
";

/// The state of the processes that carry dead letters from a quorum queue at least once.
const DEAD_LETTERS_ON_THEIR_WAY: &str =
    "[catch sys:get_status(P, 2000) || {_, P, _, _} <- supervisor:which_children(rabbit_fifo_dlx_sup)].";

/// What the nodes share.
#[derive(Debug)]
pub(super) struct Group {
    version: RabbitVersion,
    epmd: Process,
    epmd_port: Port,
    certificates: Option<Certificates>,
    names: Vec<String>,
    home: Home,
}

impl Group {
    pub(super) async fn start(home: Home, version: RabbitVersion, count: usize, tls: bool) -> Result<Self> {
        let epmd_port = Port::claim()?;
        let certificates = if tls { Some(Certificates::make(home.path()).await?) } else { None };
        let cookie = home.path().join(".erlang.cookie");
        fs::write(&cookie, format!("{:x}", ports::random()))?;
        fs::set_permissions(&cookie, Permissions::from_mode(0o400))?;
        fs::write(home.path().join("enabled_plugins"), "[rabbitmq_management].\n")?;
        fs::write(home.path().join("advanced.config"), ADVANCED)?;
        let number = epmd_port.number().to_string();
        let (program, mut args) = version.program("epmd")?;
        args.extend(["-address", "127.0.0.1", "-port", &number].map(OsString::from));
        let epmd = Process::start(Launch {
            name: "epmd".into(),
            program,
            args,
            env: Vec::new(),
            folder: home.folder("epmd")?,
            log: home.path().join("epmd.log"),
            user: None,
            private: home.is_private(),
        })?;
        let patience = Patience::new("epmd", READY);
        while TcpStream::connect(("127.0.0.1", epmd_port.number())).await.is_err() {
            epmd.pause_before_look(&patience).await?;
        }
        let names = (1..=count).map(|n| format!("n{n}@localhost")).collect();
        Ok(Self { version, epmd, epmd_port, certificates, names, home })
    }

    pub(super) fn folder(&self) -> &Path {
        self.home.path()
    }

    pub(super) fn ca_file(&self) -> Option<&Path> {
        self.certificates.as_ref().map(Certificates::ca_file)
    }

    pub(super) fn pid(&self) -> u32 {
        self.epmd.pid()
    }

    /// The nodes that epmd knows.
    async fn registered_names(&self) -> Result<String> {
        let mut command = self.command("epmd")?;
        command.args(["-port", &self.epmd_port.number().to_string(), "-names"]);
        process::run(command).await
    }

    fn command(&self, program: &str) -> Result<Command> {
        let (program, args) = self.version.program(program)?;
        let mut command = Command::new(program);
        command.args(args).envs(self.env()).current_dir(self.folder());
        Ok(command)
    }

    /// What a node and `rabbitmqctl` both need to find each other and nobody else.
    fn env(&self) -> Vec<(&'static str, OsString)> {
        vec![
            ("HOME", self.folder().into()),
            ("ERL_EPMD_PORT", self.epmd_port.number().to_string().into()),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".into()),
            ("ERL_CRASH_DUMP", "/dev/null".into()),
            ("RABBITMQ_CONF_ENV_FILE", "/dev/null".into()),
            ("LC_ALL", "C.UTF-8".into()),
        ]
    }
}

#[derive(Debug)]
pub(super) struct Node {
    process: Process,
    name: String,
    folder: PathBuf,
    amqp: Port,
    management: Port,
    /// The same with TLS, where the node has a certificate.
    secure_management: Option<Port>,
    /// Erlang's own port between nodes: held so that nobody takes it while the node is down.
    _distribution: Port,
}

impl Node {
    pub(super) fn start(group: &Group, i: usize) -> Result<Self> {
        let name = group.names[i].clone();
        let (amqp, management, distribution) = (Port::claim()?, Port::claim()?, Port::claim()?);
        let folder = group.home.folder(&format!("n{}", i + 1))?;
        let secure_management = group.certificates.as_ref().map(|_| Port::claim()).transpose()?;
        let configuration = configuration(group, &amqp, &management, secure_management.as_ref())?;
        fs::write(folder.join("rabbitmq.conf"), configuration)?;
        let process = Process::start(launch(group, &name, &folder, &distribution)?)?;
        Ok(Self { process, name, folder, amqp, management, secure_management, _distribution: distribution })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(super) fn amqp_url(&self) -> String {
        let scheme = if self.secure_management.is_some() { "amqps" } else { "amqp" };
        format!("{scheme}://guest:guest@127.0.0.1:{}/%2f", self.amqp.number())
    }

    pub(super) fn management_url(&self) -> String {
        format!("http://guest:guest@127.0.0.1:{}", self.management.number())
    }

    pub(super) fn secure_management_url(&self) -> Option<String> {
        let port = self.secure_management.as_ref()?.number();
        Some(format!("https://guest:guest@127.0.0.1:{port}"))
    }

    pub(super) fn kill(&self) -> Result<()> {
        self.process.kill()
    }

    pub(super) fn pause(&self) -> Result<()> {
        self.process.pause()
    }

    pub(super) fn resume(&self) -> Result<()> {
        self.process.resume()
    }

    pub(super) async fn stop(&self) -> Result<()> {
        self.process.stop(Signal::TERM, READY).await
    }

    /// A node that finds its own name still taken refuses to start, so epmd has to have noticed the end of the old one.
    pub(super) async fn restart(&self, group: &Group) -> Result<()> {
        self.process.kill()?;
        let entry = format!("name {} ", self.name.split('@').next().unwrap_or_default());
        let patience = Patience::new(format!("the end of the old {}", self.name), READY);
        while group.registered_names().await?.contains(&entry) {
            patience.pause().await?;
        }
        self.process.start_again()?;
        self.wait_running().await
    }

    pub(super) async fn wait_running(&self) -> Result<()> {
        let patience = Patience::new(format!("RabbitMQ {}", self.name), READY);
        while !self.answers().await {
            self.process.pause_before_look(&patience).await?;
        }
        Ok(())
    }

    async fn answers(&self) -> bool {
        TcpStream::connect(("127.0.0.1", self.amqp.number())).await.is_ok()
            && management::running_nodes(&self.management_url()).await.is_ok_and(|running| running > 0)
    }

    /// The register of quorum queues is a file that is written about every half second. An entry begins with the vhost; a
    /// binary follows it, which tells `orders` from `orders.dlq`.
    pub(super) async fn wait_registered(&self, queue: &str) -> Result<()> {
        let quorum = self.folder.join("mnesia").join(&self.name).join("quorum");
        let register = quorum.join(&self.name).join("names.dets");
        let entry = format!("_{queue}m\0\0\0").into_bytes();
        let patience =
            Patience::new(format!("the quorum queue {queue} on the disk of {}", self.name), REGISTERED);
        while !fs::read(&register).unwrap_or_default().windows(entry.len()).any(|window| window == entry) {
            patience.pause().await?;
        }
        Ok(())
    }

    pub(super) async fn ctl(&self, group: &Group, args: &[&str]) -> Result<String> {
        process::run(self.ctl_command(group, args)?).await
    }

    fn ctl_command(&self, group: &Group, args: &[&str]) -> Result<Command> {
        let mut command = group.command("rabbitmqctl")?;
        command.args(["-q", "-n", &self.name]).args(args);
        Ok(command)
    }

    pub(super) fn testimony(&self, group: &Group) -> String {
        let ask = |args: &[&str]| match self.ctl_command(group, args).map(|mut ctl| ctl.output()) {
            Ok(Ok(said)) => String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned(),
            failed => format!("{failed:?}"),
        };
        let counts = ["messages_ready", "messages_unacknowledged", "messages", "consumers", "leader"];
        let queues = ask(&[&["list_queues", "name", "state"][..], &counts].concat());
        let dead_letters = ask(&["eval", DEAD_LETTERS_ON_THEIR_WAY]);
        let log = process::tail(&self.folder.join(format!("log/{}.log", self.name)));
        format!(
            "its queues:\n{queues}\ndead letters on their way:\n{dead_letters}\nits log ends with:\n{log}"
        )
    }
}

fn configuration(group: &Group, amqp: &Port, management: &Port, secure: Option<&Port>) -> Result<String> {
    let (amqp, management) = (amqp.number(), management.number());
    let mut text =
        format!("loopback_users = none\nmanagement.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {management}\n");
    if let (Some(certificates), Some(secure)) = (&group.certificates, secure) {
        writeln!(text, "listeners.tcp = none\nlisteners.ssl.1 = 127.0.0.1:{amqp}")?;
        writeln!(text, "management.ssl.ip = 127.0.0.1\nmanagement.ssl.port = {}", secure.number())?;
        for options in ["ssl_options", "management.ssl"] {
            writeln!(text, "{options}.cacertfile = {}", certificates.ca_file().display())?;
            writeln!(text, "{options}.certfile = {}", certificates.server_file().display())?;
            writeln!(text, "{options}.keyfile = {}", certificates.key_file().display())?;
        }
        writeln!(text, "ssl_options.verify = verify_none\nssl_options.fail_if_no_peer_cert = false")?;
    } else {
        writeln!(text, "listeners.tcp.1 = 127.0.0.1:{amqp}")?;
    }
    if group.names.len() > 1 {
        // Those who are fewer stop until they hear from the others, as clusters are run in production.
        writeln!(text, "cluster_partition_handling = pause_minority")?;
        for (i, name) in group.names.iter().enumerate() {
            writeln!(text, "cluster_formation.classic_config.nodes.{} = {name}", i + 1)?;
        }
    }
    Ok(text)
}

fn launch(group: &Group, name: &str, folder: &Path, distribution: &Port) -> Result<Launch> {
    let mut env = group.env();
    env.extend([
        ("RABBITMQ_NODENAME", name.into()),
        ("RABBITMQ_DIST_PORT", distribution.number().to_string().into()),
        ("RABBITMQ_MNESIA_BASE", folder.join("mnesia").into()),
        ("RABBITMQ_LOG_BASE", folder.join("log").into()),
        ("RABBITMQ_PID_FILE", folder.join("pid").into()),
        ("RABBITMQ_FEATURE_FLAGS_FILE", folder.join("feature_flags").into()),
        ("RABBITMQ_CONFIG_FILE", folder.join("rabbitmq.conf").into()),
        ("RABBITMQ_ENABLED_PLUGINS_FILE", group.folder().join("enabled_plugins").into()),
        ("RABBITMQ_ADVANCED_CONFIG_FILE", group.folder().join("advanced.config").into()),
        ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}".into()),
        // Makes the script become the server instead of its parent: signals, and our death, reach it directly.
        ("RABBITMQ_ALLOW_INPUT", "1".into()),
    ]);
    let (program, mut args) = group.version.program("rabbitmq-server")?;
    args.push("-noinput".into());
    Ok(Launch {
        name: format!("RabbitMQ {name}"),
        program,
        args,
        env,
        folder: folder.into(),
        log: folder.join("output.log"),
        user: None,
        private: group.home.is_private(),
    })
}
