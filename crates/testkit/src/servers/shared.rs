//! The servers of a test run: started once, outside, and told by the environment. Each test takes its own corner of them.
#![allow(clippy::disallowed_methods)] // the environment is how nextest's many processes learn of the shared servers

mod template;

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use postrider::topology::Topology;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use url::Url;

use super::{RabbitVersion, management, ports};

const ABSENT: &str = "run scripts/test, or: scripts/servers up && source .servers/env";
const NO_RABBITMQ4: &str =
    "RABBITMQ4_URL is not set: run scripts/install-rabbitmq4, and then have the servers started anew";
const FAREWELL: Duration = Duration::from_secs(10);

/// Where the shared servers are.
#[derive(Clone, Debug)]
pub struct Shared {
    /// `DATABASE_URL`, the superuser's database.
    pub database_url: String,
    /// `RABBITMQ_URL`, the vhost `/`.
    pub rabbitmq_url: String,
    /// `RABBITMQ_MANAGEMENT_URL`, with name and password.
    pub rabbitmq_management_url: String,
    /// `REDIS_URL`.
    pub redis_url: String,
    /// `RABBITMQ4_URL`, the vhost `/` of RabbitMQ 4.x, where that is installed.
    pub rabbitmq4_url: Option<String>,
    /// `RABBITMQ4_MANAGEMENT_URL`, with name and password.
    pub rabbitmq4_management_url: Option<String>,
}

/// The shared servers, from the environment. Fails where they are not set: a test without its server did not pass.
pub fn shared() -> Result<Shared> {
    Shared::found_by(|name| std::env::var(name).ok())
}

impl Shared {
    fn found_by(look: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let find = |name: &str| look(name).with_context(|| format!("{name} is not set: {ABSENT}"));
        Ok(Self {
            database_url: find("DATABASE_URL")?,
            rabbitmq_url: find("RABBITMQ_URL")?,
            rabbitmq_management_url: find("RABBITMQ_MANAGEMENT_URL")?,
            redis_url: find("REDIS_URL")?,
            rabbitmq4_url: look("RABBITMQ4_URL"),
            rabbitmq4_management_url: look("RABBITMQ4_MANAGEMENT_URL"),
        })
    }

    /// A new, empty database of the test's own.
    pub async fn database(&self) -> Result<TestDatabase> {
        // A copy of template0 is made from files that nobody is connected to: two tests never wait for each other.
        self.copy_of("template0").await
    }

    /// A new database of the test's own that has the schema: a copy of the one that the first test to ask makes. Applying every migration
    /// takes longer than many a test.
    pub async fn migrated_database(&self) -> Result<TestDatabase> {
        template::make(&self.database_url).await?;
        self.copy_of(template::NAME).await
    }

    async fn copy_of(&self, template: &str) -> Result<TestDatabase> {
        let name = unique_name();
        let mut url = Url::parse(&self.database_url).context("DATABASE_URL is not an address")?;
        url.set_path(&name);
        let mut server = connect(&self.database_url).await?;
        let copy = format!("CREATE DATABASE {name} TEMPLATE {template} {}", by_files(&mut server).await?);
        server.execute(AssertSqlSafe(copy)).await?;
        server.close().await?;
        Ok(TestDatabase { url: url.into(), name, server: self.database_url.clone(), open: true })
    }

    /// A new, empty vhost of the test's own, in which guest may do everything. On the machine's own version.
    pub async fn vhost(&self) -> Result<TestVhost> {
        self.vhost_on(RabbitVersion::Packaged).await
    }

    /// The vhost `/` of this version.
    pub fn amqp_url(&self, version: RabbitVersion) -> Result<&str> {
        match version {
            RabbitVersion::Packaged => Ok(&self.rabbitmq_url),
            RabbitVersion::Newer => self.rabbitmq4_url.as_deref().context(NO_RABBITMQ4),
        }
    }

    /// A new, empty vhost of the test's own on this version.
    pub async fn vhost_on(&self, version: RabbitVersion) -> Result<TestVhost> {
        let name = unique_name();
        let mut amqp_url = Url::parse(self.amqp_url(version)?).context("RABBITMQ_URL is not an address")?;
        amqp_url.set_path(&name);
        let management_url = match version {
            RabbitVersion::Packaged => self.rabbitmq_management_url.clone(),
            RabbitVersion::Newer => self.rabbitmq4_management_url.clone().context(NO_RABBITMQ4)?,
        };
        management::create_vhost(&management_url, &name)
            .await
            .with_context(|| format!("no vhost from the shared RabbitMQ: {ABSENT}"))?;
        Ok(TestVhost { amqp_url: amqp_url.into(), management_url, name, open: true })
    }

    /// A key prefix that no other test has. Ends with a colon.
    pub fn redis_prefix(&self) -> String {
        format!("{}:", unique_name())
    }
}

/// A database that ends with this value.
#[derive(Debug)]
pub struct TestDatabase {
    /// The address of the database, as the superuser.
    pub url: String,
    name: String,
    server: String,
    open: bool,
}

impl TestDatabase {
    /// Drops the database, whoever is still connected, and says whether that worked.
    pub async fn close(mut self) -> Result<()> {
        self.open = false;
        drop_database(&self.server, &self.name).await
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        if self.open {
            let (server, name) = (self.server.clone(), self.name.clone());
            finish(async move { drop_database(&server, &name).await });
        }
    }
}

/// A database that is streamed from cannot be dropped, not even by force: the streams are ended first.
async fn drop_database(server: &str, name: &str) -> Result<()> {
    let end_streams = "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots \
                       WHERE active_pid IS NOT NULL AND database = '{name}'";
    run_sql(server, end_streams.replace("{name}", name)).await?;
    run_sql(server, format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await
}

/// A vhost that ends with this value.
#[derive(Debug)]
pub struct TestVhost {
    /// The AMQP address of the vhost, as guest.
    pub amqp_url: String,
    /// The management API, with guest's name and password.
    pub management_url: String,
    /// The vhost's name.
    pub name: String,
    open: bool,
}

impl TestVhost {
    /// Puts the policies of a topology in force, as an operator would.
    pub async fn set_policies(&self, topology: &Topology) -> Result<()> {
        let limits_by_itself = management::major_version(&self.management_url).await? >= 4;
        let policies = topology.policies(limits_by_itself);
        management::set_policies(&self.management_url, &self.name, &policies).await
    }

    /// What there is: `exchanges`, `queues`, `bindings` or `policies`, as the management API lists them.
    pub async fn objects(&self, what: &str) -> Result<Vec<serde_json::Value>> {
        management::objects(&self.management_url, &self.name, what).await
    }

    /// Deletes the vhost with everything in it, and says whether that worked.
    pub async fn close(mut self) -> Result<()> {
        self.open = false;
        management::delete_vhost(&self.management_url, &self.name).await
    }
}

impl Drop for TestVhost {
    fn drop(&mut self) {
        if self.open {
            let (base, name) = (self.management_url.clone(), self.name.clone());
            finish(async move { management::delete_vhost(&base, &name).await });
        }
    }
}

/// Fit for a database, a vhost and a key: letters, digits and underscores.
fn unique_name() -> String {
    format!("test_{:016x}", ports::random())
}

async fn run_sql(server: &str, sql: String) -> Result<()> {
    let mut connection = connect(server).await?;
    connection.execute(AssertSqlSafe(sql)).await?;
    Ok(connection.close().await?)
}

async fn connect(server: &str) -> Result<PgConnection> {
    let connecting = PgConnection::connect(server).await;
    connecting.with_context(|| format!("no connection to the shared PostgreSQL: {ABSENT}"))
}

/// Copying files costs a server half of what copying through its log does, which is the way of PostgreSQL 15 and later unless it is told.
async fn by_files(server: &mut PgConnection) -> Result<&'static str> {
    let select = "SELECT current_setting('server_version_num')::int >= 150000";
    let newer = sqlx::query_scalar::<_, bool>(select).fetch_one(server).await?;
    Ok(if newer { "STRATEGY file_copy" } else { "" })
}

/// Runs a farewell to its end on a thread of its own: `drop` cannot wait for a future, and may run inside a runtime. Best
/// effort: what it cannot remove goes with the servers.
fn finish(farewell: impl Future<Output = Result<()>> + Send + 'static) {
    let thread = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async { tokio::time::timeout(FAREWELL, farewell).await })?
    });
    let _ = thread.join();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_server_fails_and_says_what_to_run() {
        let some = |name: &str| (name != "REDIS_URL").then(|| "somewhere".to_owned());
        let error = Shared::found_by(some).unwrap_err().to_string();
        assert_eq!(
            error,
            "REDIS_URL is not set: run scripts/test, or: scripts/servers up && source .servers/env"
        );
    }
}
