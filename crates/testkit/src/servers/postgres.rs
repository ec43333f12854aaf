//! A PostgreSQL of one's own, set up as production is: fsync on, logical decoding possible.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::{Signal, geteuid};

use super::disk::SmallDisk;
use super::home::{self, Home};
use super::ports::Port;
use super::process::{self, Launch, Process};
use super::tls::{CERTIFIED, Certificates};
use super::wait::Patience;

/// PostgreSQL refuses to run as root; its package brings this user.
const USER: &str = "postgres";
const READY: Duration = Duration::from_mins(1);
/// A server that does not answer at so many looks has ended, or will not recover by itself.
const GIVES_UP: u32 = 20;

/// A PostgreSQL server. Dropping it kills it and removes its data.
#[derive(Debug)]
pub struct Postgres {
    // Dropped in this order: the server dies before its folder goes.
    process: Process,
    data: PathBuf,
    port: Port,
    certificates: Option<Certificates>,
    disk: Option<SmallDisk>,
    home: Home,
}

impl Postgres {
    /// A private server whose data lie on a disk of this size, which can be [filled](Postgres::fill_disk). Root only.
    pub async fn start_on_disk(megabytes: u64) -> Result<Self> {
        let home = Home::private()?;
        let disk = SmallDisk::over(&home.folder("data")?, megabytes)?;
        let mut server = Self::start_in(home, false).await?;
        server.disk = Some(disk);
        Ok(server)
    }

    /// A private server; ready when this returns.
    pub async fn start() -> Result<Self> {
        Self::start_in(Home::private()?, false).await
    }

    /// A private server that accepts TLS connections only.
    pub async fn start_tls() -> Result<Self> {
        Self::start_in(Home::private()?, true).await
    }

    pub(crate) async fn start_in(home: Home, tls: bool) -> Result<Self> {
        let certificates = if tls { Some(Certificates::make(home.path()).await?) } else { None };
        let data = initialise(&home, certificates.as_ref()).await?;
        Self::start_on(home, data, certificates).await
    }

    /// A private server that follows this one, as a hot standby; ready when this returns. `pg_promote()` makes it a primary.
    pub async fn start_replica(&self) -> Result<Self> {
        let home = Home::private()?;
        let data = home.folder("data")?;
        fs::set_permissions(&data, Permissions::from_mode(0o700))?;
        let mut command = as_server("pg_basebackup", &data)?;
        command.args(["-h", "127.0.0.1", "-p", &self.port.number().to_string(), "-U", "postgres"]);
        command.args(["-R", "-X", "stream", "-c", "fast", "--no-sync", "-D"]).arg(&data);
        process::run(command).await?;
        Self::start_on(home, data, None).await
    }

    async fn start_on(home: Home, data: PathBuf, certificates: Option<Certificates>) -> Result<Self> {
        let port = Port::claim()?;
        let process = Process::start(launch(&home, &data, &port, certificates.as_ref()))?;
        let server = Self { process, data, port, certificates, disk: None, home };
        server.wait_ready().await?;
        Ok(server)
    }

    /// The database `postgres`, as the superuser.
    pub fn url(&self) -> String {
        let plain = format!("postgres://postgres@127.0.0.1:{}/postgres", self.port.number());
        match &self.certificates {
            Some(certificates) => {
                format!("{plain}?sslmode=verify-full&sslrootcert={}", certificates.ca_file().display())
            }
            None => plain,
        }
    }

    /// The same through its socket.
    pub fn socket_url(&self) -> String {
        format!("postgres://postgres@localhost:{}/postgres?host={}", self.port.number(), self.data.display())
    }

    /// The same as the role that the client's certificate names, by that certificate alone; only with TLS. The role must be made, and
    /// `pg_hba.conf` must say `cert`.
    pub fn certified_url(&self) -> Option<String> {
        let (certificate, key) = self.certificates.as_ref()?.client_files();
        let url = self.url().replace("postgres@", &format!("{CERTIFIED}@"));
        Some(format!("{url}&sslcert={}&sslkey={}", certificate.display(), key.display()))
    }

    /// The authority that signed the server's certificate; only with TLS.
    pub fn ca_file(&self) -> Option<&Path> {
        self.certificates.as_ref().map(Certificates::ca_file)
    }

    /// The folder that holds everything of this server.
    pub fn folder(&self) -> &Path {
        self.home.path()
    }

    /// The process id of the postmaster.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// SIGKILL to the postmaster and all backends at once: a crash.
    pub fn kill(&self) -> Result<()> {
        self.process.kill()
    }

    /// SIGSTOP to all its processes: connections stay open and nothing answers.
    pub fn pause(&self) -> Result<()> {
        self.process.pause()
    }

    /// SIGCONT to all its processes.
    pub fn resume(&self) -> Result<()> {
        self.process.resume()
    }

    /// An orderly shutdown that ends all sessions; the data stays for [`Postgres::restart`].
    pub async fn stop(&self) -> Result<()> {
        self.process.stop(Signal::INT, READY).await
    }

    /// Starts again on the same port and data; kills first what still runs. Ready when this returns.
    pub async fn restart(&self) -> Result<()> {
        self.process.start_again()?;
        self.wait_ready().await
    }

    /// Makes its disk full: nothing more can be written. Returns how many kilobytes are.
    pub fn fill_disk(&self) -> Result<u64> {
        self.disk.as_ref().context("it does not run on a disk of its own")?.fill()
    }

    /// Gives it room again. A server that gave up meanwhile is started again.
    pub async fn free_disk(&self) -> Result<()> {
        self.disk.as_ref().context("it does not run on a disk of its own")?.free()?;
        for _ in 0..GIVES_UP {
            if self.answers().await {
                return Ok(());
            }
            postrider::Clock::system().sleep(Duration::from_millis(250)).await;
        }
        self.restart().await
    }

    /// What it has written to its log.
    pub fn log(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(self.home.path().join("log"))?).into_owned())
    }

    async fn wait_ready(&self) -> Result<()> {
        let patience = Patience::new("PostgreSQL", READY);
        while !self.answers().await {
            self.process.pause_before_look(&patience).await?;
        }
        Ok(())
    }

    async fn answers(&self) -> bool {
        let mut command = Command::new(program("pg_isready"));
        command.args(["-q", "-h", "127.0.0.1", "-p", &self.port.number().to_string()]);
        process::run(command).await.is_ok()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.home.is_private() {
            let _ = self.process.kill();
            home::free_shared_memory(&self.data);
        }
    }
}

async fn initialise(home: &Home, certificates: Option<&Certificates>) -> Result<PathBuf> {
    let data = home.folder("data")?;
    let mut command = as_server("initdb", &data)?;
    command.args(["-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale", "--no-sync", "-D"]);
    command.arg(&data);
    process::run(command).await?;
    if let Some(certificates) = certificates {
        // The server takes its key only from a file of its own; and a plain connection is refused.
        let rules = "hostssl all all 127.0.0.1/32 trust\nhostssl replication all 127.0.0.1/32 trust\n";
        fs::write(data.join("pg_hba.conf"), rules)?;
        fs::copy(certificates.server_file(), data.join("server.pem"))?;
        fs::copy(certificates.key_file(), data.join("server.key"))?;
        fs::copy(certificates.ca_file(), data.join("ca.pem"))?;
        if let Some(user) = user() {
            home::give_to(user, &data)?;
        }
    }
    Ok(data)
}

/// A program of PostgreSQL that works in this folder, as the user whose it is then.
fn as_server(name: &str, data: &Path) -> Result<Command> {
    let mut command = if let Some(user) = user() {
        home::give_to(user, data)?;
        let mut command = Command::new("setpriv");
        command.args(process::as_user(user)).arg(program(name));
        command
    } else {
        Command::new(program(name))
    };
    command.current_dir(data);
    Ok(command)
}

fn launch(home: &Home, data: &Path, port: &Port, certificates: Option<&Certificates>) -> Launch {
    let mut args: Vec<OsString> =
        vec!["-D".into(), data.into(), "-p".into(), port.number().to_string().into()];
    let mut set = |setting: &str| args.extend(["-c".into(), setting.into()]);
    set("listen_addresses=127.0.0.1");
    // Its data folder: nobody else's.
    set("unix_socket_directories=.");
    set("wal_level=logical");
    set("max_connections=200");
    set("max_replication_slots=10");
    // In the data folder, where a crash leaves nothing for others to clean up.
    set("dynamic_shared_memory_type=mmap");
    if certificates.is_some() {
        set("ssl=on");
        set("ssl_cert_file=server.pem");
        set("ssl_key_file=server.key");
        set("ssl_ca_file=ca.pem");
    }
    Launch {
        name: "PostgreSQL".into(),
        program: program("postgres"),
        args,
        env: Vec::new(),
        folder: data.into(),
        log: home.path().join("log"),
        user: user(),
        private: home.is_private(),
    }
}

fn user() -> Option<&'static str> {
    geteuid().is_root().then_some(USER)
}

/// Debian keeps the programs of each version in a folder that is not on the PATH; the newest is taken.
fn program(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    folders.sort();
    folders.reverse();
    process::find_program(name, &folders)
}
