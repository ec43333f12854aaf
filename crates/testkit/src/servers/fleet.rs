//! The shared servers' life: [`up`] starts them detached and writes down where they are, [`down`] ends them.
//!
//! The folder that is asked for holds `env` (to be sourced), `pids`, `nodes` (how many of RabbitMQ) and a link `data` to where the servers live. They live
//! in the machine's temporary folder, because PostgreSQL runs as another user who may not enter the caller's.

use std::fmt::Write;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result, bail};
use tokio::net::TcpStream;
use url::Url;

use super::home::{self, Home};
use super::postgres::Postgres;
use super::rabbitmq::{RabbitCluster, RabbitMq, RabbitVersion};
use super::redis::{Kind, Redis};

/// What [`up`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fleet {
    /// The servers were started.
    Started,
    /// They were running already, and answer.
    AlreadyUp,
}

/// Starts PostgreSQL, Redis and RabbitMQ (one node, or three) on free ports, and a node of RabbitMQ 4.x where that is
/// installed; waits until they are ready and writes `folder/env`. Servers that run already are kept; ones that are half dead are refused.
pub async fn up(folder: &Path, cluster: bool) -> Result<Fleet> {
    if let Ok(env) = fs::read_to_string(folder.join("env")) {
        let nodes = fs::read_to_string(folder.join("nodes")).unwrap_or_default();
        if nodes.trim() != nodes_of(cluster).to_string() {
            bail!(
                "servers with {} RabbitMQ nodes run in {}: take them down first",
                nodes.trim(),
                folder.display()
            );
        }
        if answers(&env).await {
            return Ok(Fleet::AlreadyUp);
        }
        bail!("the servers of {} do not all answer: take them down first", folder.display());
    }
    // What an interrupted start left.
    down(folder)?;
    let started = start(folder, cluster).await;
    if started.is_err() {
        down(folder)?;
    }
    started
}

/// Kills the servers of `folder` and removes it with all their data. Fine where nothing runs.
pub fn down(folder: &Path) -> Result<()> {
    if let Ok(data) = fs::canonicalize(folder.join("data")) {
        home::demolish(&data).with_context(|| format!("cannot remove {}", data.display()))?;
    }
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

async fn start(folder: &Path, cluster: bool) -> Result<Fleet> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let data = tempfile::Builder::new().prefix("postrider-shared-").tempdir()?.keep().canonicalize()?;
    symlink(&data, folder.join("data"))?;
    // Only to open the folder to PostgreSQL's user.
    Home::kept(&data)?;
    let (postgres, redis, packaged, newer) = tokio::try_join!(
        Postgres::start_in(Home::kept(&data.join("postgres"))?, false),
        Redis::start_in(Home::kept(&data.join("redis"))?, Kind::Plain),
        rabbitmq(Home::kept(&data.join("rabbitmq"))?, cluster),
        newer_rabbitmq(Home::kept(&data.join("rabbitmq4"))?),
    )?;
    let mut pids = format!("postgres {}\nredis {}\n", postgres.pid(), redis.pid());
    let mut env = format!("export DATABASE_URL={}\nexport REDIS_URL={}\n", postgres.url(), redis.url());
    for (name, nodes) in [("RABBITMQ", Some(packaged)), ("RABBITMQ4", newer)] {
        let Some(Nodes { amqp, management, pids: ids }) = nodes else { continue };
        let ids: Vec<_> = ids.iter().map(u32::to_string).collect();
        writeln!(pids, "{} {}", name.to_lowercase(), ids.join(" "))?;
        writeln!(env, "export {name}_URL={amqp}\nexport {name}_MANAGEMENT_URL={management}")?;
    }
    fs::write(folder.join("pids"), pids)?;
    fs::write(folder.join("nodes"), nodes_of(cluster).to_string())?;
    // Last, and whole: who finds it finds running servers.
    let draft = folder.join("env.new");
    fs::write(&draft, env)?;
    fs::rename(draft, folder.join("env"))?;
    Ok(Fleet::Started)
}

fn nodes_of(cluster: bool) -> usize {
    if cluster { RabbitCluster::NODES } else { 1 }
}

/// The addresses of the first node, and the process ids of all.
struct Nodes {
    amqp: String,
    management: String,
    pids: Vec<u32>,
}

async fn rabbitmq(home: Home, cluster: bool) -> Result<Nodes> {
    let version = RabbitVersion::Packaged;
    if !cluster {
        return single(home, version).await;
    }
    let nodes = RabbitCluster::start_in(home, version).await?;
    Ok(Nodes { amqp: nodes.amqp_url(0), management: nodes.management_url(0), pids: nodes.pids() })
}

async fn newer_rabbitmq(home: Home) -> Result<Option<Nodes>> {
    if !RabbitVersion::Newer.is_installed() {
        return Ok(None);
    }
    single(home, RabbitVersion::Newer).await.map(Some)
}

async fn single(home: Home, version: RabbitVersion) -> Result<Nodes> {
    let node = RabbitMq::start_in(home, version, false).await?;
    Ok(Nodes { amqp: node.amqp_url(), management: node.management_url(), pids: node.pids() })
}

/// True when something listens at every address of an `env` file.
async fn answers(env: &str) -> bool {
    for line in env.lines() {
        let url = line.split_once('=').and_then(|(_, url)| Url::parse(url).ok());
        let Some((Some(host), Some(port))) = url.as_ref().map(|url| (url.host_str(), url.port())) else {
            return false;
        };
        if TcpStream::connect((host, port)).await.is_err() {
            return false;
        }
    }
    !env.is_empty()
}
