//! A connection to Redis that the driver keeps: lost, it is made again at the next command.

use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo, SingleNodeRoutingInfo};
use redis::{Cmd, Pipeline, RedisFuture, RedisResult, Value};

use super::config::RedisConfig;
use super::error::RedisError;
use super::facts::RedisFacts;

/// To one server or to a cluster, which is found out when it is made.
#[derive(Clone)]
pub(super) enum Connection {
    Server(ConnectionManager),
    /// Sends each command to the node that has its keys, and follows when they have moved (`MOVED`) or are moving (`ASK`).
    Cluster(ClusterConnection),
}

/// A part of Redis with keys of its own.
#[derive(Debug, Clone)]
pub(super) enum Node {
    /// The one server there is.
    Only,
    /// A node of a cluster that is no replica.
    Primary { host: String, port: u16 },
}

impl Connection {
    /// Asks the server what it is. A user who may not ask is told of one server, which refuses what is another node's if it is not.
    pub(super) async fn open(config: &RedisConfig) -> Result<Self, RedisError> {
        let limits = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(config.limit))
            .set_response_timeout(Some(config.limit))
            .set_number_of_retries(1);
        let mut server = ConnectionManager::new_with_config(config.client()?, limits).await?;
        let info: RedisResult<String> = redis::cmd("INFO").query_async(&mut server).await;
        if info.is_ok_and(|info| RedisFacts::read(&info).cluster) {
            return Ok(Self::Cluster(config.cluster()?.get_async_connection().await?));
        }
        Ok(Self::Server(server))
    }

    /// Whoever has keys.
    pub(super) async fn nodes(&mut self) -> RedisResult<Vec<Node>> {
        let Self::Cluster(cluster) = self else { return Ok(vec![Node::Only]) };
        let primaries = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        let Value::Map(answers) = cluster.route_command(redis::cmd("PING"), primaries).await? else {
            return Ok(Vec::new());
        };
        let address = |(address, _): (Value, Value)| {
            let address: String = redis::from_redis_value(address)?;
            let (host, port) = address.rsplit_once(':').unwrap_or((&address, ""));
            Ok(Node::Primary { host: host.to_owned(), port: port.parse().unwrap_or(6379) })
        };
        answers.into_iter().map(address).collect()
    }

    /// Asks one node, whatever the command's keys.
    pub(super) async fn ask_node(&mut self, node: &Node, command: &Cmd) -> RedisResult<Value> {
        match (self, node) {
            (Self::Cluster(cluster), Node::Primary { host, port }) => {
                let node = SingleNodeRoutingInfo::ByAddress { host: host.clone(), port: *port };
                cluster.route_command(command.clone(), RoutingInfo::SingleNode(node)).await
            }
            (connection, _) => connection.req_packed_command(command).await,
        }
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Server(server) => server.req_packed_command(command),
            Self::Cluster(cluster) => cluster.req_packed_command(command),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Server(server) => server.req_packed_commands(pipeline, offset, count),
            Self::Cluster(cluster) => cluster.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Server(server) => server.get_db(),
            Self::Cluster(cluster) => cluster.get_db(),
        }
    }
}
