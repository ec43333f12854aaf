//! RabbitMQ of one's own: a single node, or a cluster of three.
//!
//! Each group of nodes has its own epmd (the daemon through which Erlang nodes find each other), so that no daemon of the
//! machine is touched and none is left behind.

mod node;
mod version;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use self::node::{Group, Node};
pub use self::version::RabbitVersion;
use super::home::Home;
use super::management;
use super::wait::Patience;

const CLUSTERED: Duration = Duration::from_mins(2);

/// A single RabbitMQ node with the management plugin. Dropping it kills it and removes its data.
#[derive(Debug)]
pub struct RabbitMq(Nodes);

/// Three RabbitMQ nodes in one cluster, numbered from 0. Dropping it kills them and removes their data.
#[derive(Debug)]
pub struct RabbitCluster(Nodes);

impl RabbitMq {
    /// A private node of the machine's own version; ready when this returns.
    pub async fn start() -> Result<Self> {
        Self::start_version(RabbitVersion::Packaged).await
    }

    /// A private node of this version; ready when this returns.
    pub async fn start_version(version: RabbitVersion) -> Result<Self> {
        Self::start_in(Home::private()?, version, false).await
    }

    /// A private node that accepts AMQP over TLS only. The management API stays plain.
    pub async fn start_tls(version: RabbitVersion) -> Result<Self> {
        Self::start_in(Home::private()?, version, true).await
    }

    pub(crate) async fn start_in(home: Home, version: RabbitVersion, tls: bool) -> Result<Self> {
        Ok(Self(Nodes::start_in(home, version, 1, tls).await?))
    }

    /// The vhost `/`, as guest; `amqps://` with TLS.
    pub fn amqp_url(&self) -> String {
        self.0.nodes[0].amqp_url()
    }

    /// The management API, with guest's name and password.
    pub fn management_url(&self) -> String {
        self.0.nodes[0].management_url()
    }

    /// The management API with TLS, where the server has a certificate.
    pub fn secure_management_url(&self) -> Option<String> {
        self.0.nodes[0].secure_management_url()
    }

    /// The authority that signed the server's certificate; only with TLS.
    pub fn ca_file(&self) -> Option<&Path> {
        self.0.group.ca_file()
    }

    /// The folder that holds everything of this server.
    pub fn folder(&self) -> &Path {
        self.0.group.folder()
    }

    /// The process ids of epmd and the node.
    pub fn pids(&self) -> Vec<u32> {
        self.0.pids()
    }

    /// SIGKILL to the node's whole tree: a crash.
    pub fn kill(&self) -> Result<()> {
        self.0.nodes[0].kill()
    }

    /// SIGSTOP: connections stay open and nothing answers.
    pub fn pause(&self) -> Result<()> {
        self.0.nodes[0].pause()
    }

    /// SIGCONT.
    pub fn resume(&self) -> Result<()> {
        self.0.nodes[0].resume()
    }

    /// An orderly shutdown, about 6 s; the data stays for [`RabbitMq::restart`].
    pub async fn stop(&self) -> Result<()> {
        self.0.nodes[0].stop().await
    }

    /// Starts again on the same ports and data; kills first what still runs. Ready when this returns.
    pub async fn restart(&self) -> Result<()> {
        self.0.nodes[0].restart(&self.0.group).await
    }

    /// Waits until AMQP and the management API answer.
    pub async fn wait_running(&self) -> Result<()> {
        self.0.nodes[0].wait_running().await
    }

    /// Waits until a quorum queue would survive [`RabbitMq::kill`]. RabbitMQ 3.10 writes down which queues it has up to a
    /// second late: a queue younger than that comes back without a leader, and with it are lost the messages that it
    /// confirmed. No client can do anything about that, so a test that kills waits first.
    pub async fn wait_registered(&self, queue: &str) -> Result<()> {
        self.0.nodes[0].wait_registered(queue).await
    }

    /// Runs `rabbitmqctl` with these arguments and returns what it prints.
    pub async fn ctl(&self, args: &[&str]) -> Result<String> {
        self.0.nodes[0].ctl(&self.0.group, args).await
    }

    /// What the server knows of its queues and of the dead letters on their way, and the end of its log. For a test that
    /// failed: it blocks, and what cannot be asked is said in its place.
    pub fn testimony(&self) -> String {
        self.0.nodes[0].testimony(&self.0.group)
    }

    /// Creates a vhost in which guest may do everything.
    pub async fn create_vhost(&self, name: &str) -> Result<()> {
        management::create_vhost(&self.management_url(), name).await
    }

    /// Deletes a vhost with everything in it.
    pub async fn delete_vhost(&self, name: &str) -> Result<()> {
        management::delete_vhost(&self.management_url(), name).await
    }
}

impl RabbitCluster {
    /// How many nodes there are.
    pub const NODES: usize = 3;

    /// A private cluster of the machine's own version; all nodes are joined and ready when this returns.
    pub async fn start() -> Result<Self> {
        Self::start_version(RabbitVersion::Packaged).await
    }

    /// A private cluster of this version; all nodes are joined and ready when this returns.
    pub async fn start_version(version: RabbitVersion) -> Result<Self> {
        Self::start_in(Home::private()?, version).await
    }

    pub(crate) async fn start_in(home: Home, version: RabbitVersion) -> Result<Self> {
        Ok(Self(Nodes::start_in(home, version, Self::NODES, false).await?))
    }

    /// The vhost `/` on node `i`, as guest.
    pub fn amqp_url(&self, i: usize) -> String {
        self.0.nodes[i].amqp_url()
    }

    /// The management API of node `i`, with guest's name and password.
    pub fn management_url(&self, i: usize) -> String {
        self.0.nodes[i].management_url()
    }

    /// The Erlang name of node `i`, as the management API shows it.
    pub fn node_name(&self, i: usize) -> &str {
        self.0.nodes[i].name()
    }

    /// The folder that holds everything of this cluster.
    pub fn folder(&self) -> &Path {
        self.0.group.folder()
    }

    /// The process ids of epmd and the nodes.
    pub fn pids(&self) -> Vec<u32> {
        self.0.pids()
    }

    /// SIGKILL to the whole tree of node `i`: a crash.
    pub fn kill(&self, i: usize) -> Result<()> {
        self.0.nodes[i].kill()
    }

    /// SIGSTOP to node `i`: connections stay open and nothing answers.
    pub fn pause(&self, i: usize) -> Result<()> {
        self.0.nodes[i].pause()
    }

    /// SIGCONT to node `i`.
    pub fn resume(&self, i: usize) -> Result<()> {
        self.0.nodes[i].resume()
    }

    /// Parts node `i` from the others: from now on they refuse to talk to each other.
    pub async fn part(&self, i: usize) -> Result<()> {
        let others = self.others(i);
        let part = format!(
            "[begin erlang:set_cookie(N, parted), erlang:disconnect_node(N) end || N <- [{others}]], length(nodes())."
        );
        self.ctl(i, &["eval", &part]).await.map(drop)
    }

    /// Lets node `i` and the others talk again, and waits until it runs as one of them.
    pub async fn rejoin(&self, i: usize) -> Result<()> {
        let others = self.others(i);
        let rejoin = format!(
            "[begin erlang:set_cookie(N, erlang:get_cookie()), net_adm:ping(N) end || N <- [{others}]]."
        );
        self.ctl(i, &["eval", &rejoin]).await?;
        self.wait_running(i).await?;
        self.wait_members(i, Self::NODES).await
    }

    /// Whether node `i` hears of `other`.
    pub async fn hears(&self, i: usize, other: usize) -> Result<bool> {
        let ask = format!("lists:member('{}', nodes()).", self.node_name(other));
        Ok(self.ctl(i, &["eval", &ask]).await?.trim() == "true")
    }

    fn others(&self, i: usize) -> String {
        let others = (0..Self::NODES).filter(|other| *other != i);
        others.map(|other| format!("'{}'", self.node_name(other))).collect::<Vec<_>>().join(", ")
    }

    /// An orderly shutdown of node `i`, about 6 s.
    pub async fn stop(&self, i: usize) -> Result<()> {
        self.0.nodes[i].stop().await
    }

    /// Starts node `i` again on the same ports and data; kills first what still runs. Ready when this returns.
    pub async fn restart(&self, i: usize) -> Result<()> {
        self.0.nodes[i].restart(&self.0.group).await
    }

    /// Waits until AMQP and the management API of node `i` answer.
    pub async fn wait_running(&self, i: usize) -> Result<()> {
        self.0.nodes[i].wait_running().await
    }

    /// Waits until node `i` sees `count` running nodes, itself included.
    pub async fn wait_members(&self, i: usize, count: usize) -> Result<()> {
        self.0.wait_members(i, count).await
    }

    /// Waits until a quorum queue would survive the loss of any node; see [`RabbitMq::wait_registered`].
    pub async fn wait_registered(&self, queue: &str) -> Result<()> {
        for node in &self.0.nodes {
            node.wait_registered(queue).await?;
        }
        Ok(())
    }

    /// Runs `rabbitmqctl` on node `i` with these arguments and returns what it prints.
    pub async fn ctl(&self, i: usize, args: &[&str]) -> Result<String> {
        self.0.nodes[i].ctl(&self.0.group, args).await
    }

    /// Asks the management API of node `i`, or tells it something. Nothing is `null`.
    pub async fn manage(&self, i: usize, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        management::ask(&self.management_url(i), method, path, body).await
    }

    /// Creates, through node `i`, a vhost in which guest may do everything.
    pub async fn create_vhost(&self, i: usize, name: &str) -> Result<()> {
        management::create_vhost(&self.management_url(i), name).await
    }

    /// Deletes, through node `i`, a vhost with everything in it.
    pub async fn delete_vhost(&self, i: usize, name: &str) -> Result<()> {
        management::delete_vhost(&self.management_url(i), name).await
    }
}

#[derive(Debug)]
struct Nodes {
    // Dropped in this order: the nodes die before their folder goes.
    nodes: Vec<Node>,
    group: Group,
}

impl Nodes {
    async fn start_in(home: Home, version: RabbitVersion, count: usize, tls: bool) -> Result<Self> {
        let group = Group::start(home, version, count, tls).await?;
        let nodes = (0..count).map(|i| Node::start(&group, i)).collect::<Result<Vec<_>>>()?;
        let started = Self { nodes, group };
        for (i, node) in started.nodes.iter().enumerate() {
            node.wait_running().await?;
            started.wait_members(i, count).await?;
        }
        Ok(started)
    }

    async fn wait_members(&self, i: usize, count: usize) -> Result<()> {
        let base = self.nodes[i].management_url();
        let patience = Patience::new(format!("a RabbitMQ cluster of {count}"), CLUSTERED);
        while !management::running_nodes(&base).await.is_ok_and(|running| running == count) {
            patience.pause().await?;
        }
        Ok(())
    }

    fn pids(&self) -> Vec<u32> {
        std::iter::once(self.group.pid()).chain(self.nodes.iter().map(Node::pid)).collect()
    }
}
