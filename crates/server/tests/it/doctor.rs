//! What doctor finds: a PgBouncer in front of PostgreSQL, on a real one, and handlers that RabbitMQ does not wait for.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use postrider_testkit::servers::TestDatabase;

use super::networked::servers;
use super::process::Folder;

/// A PgBouncer on a socket in a folder. Ends with this value.
struct Pooler(Child);

impl Pooler {
    async fn start(folder: &Path, database: &TestDatabase, mode: &str) -> Self {
        let (_, place) = database.url.split_once('@').unwrap();
        let (server, _) = place.split_once('/').unwrap();
        let (host, port) = server.rsplit_once(':').unwrap();
        let config = format!(
            "[databases]\n* = host={host} port={port} user=postgres\n[pgbouncer]\nlisten_port = 6432\nunix_socket_dir = {0}\n\
             auth_type = any\npool_mode = {mode}\nignore_startup_parameters = extra_float_digits,options\nlogfile = {0}/log\n\
             pidfile =\n",
            folder.display()
        );
        std::fs::write(folder.join("pgbouncer.ini"), config).unwrap();
        let mut command = Command::new("/usr/sbin/pgbouncer");
        if rustix::process::geteuid().is_root() {
            // It refuses to work as root.
            use std::os::unix::fs::PermissionsExt as _;
            std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o777)).unwrap();
            command.args(["-u", "postgres"]);
        }
        let child =
            command.arg(folder.join("pgbouncer.ini")).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let pooler = Self(
            child.unwrap_or_else(|error| panic!("pgbouncer: {error}; scripts/install-servers installs it")),
        );
        let listens = async {
            while !folder.join(".s.PGSQL.6432").exists() {
                tokio::time::timeout(Duration::from_millis(20), std::future::pending::<()>())
                    .await
                    .unwrap_err();
            }
        };
        let started = tokio::time::timeout(Duration::from_mins(1), listens).await;
        assert!(started.is_ok(), "{}", std::fs::read_to_string(folder.join("log")).unwrap_or_default());
        pooler
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _code = self.0.wait();
    }
}

async fn doctor_behind(mode: &str) -> String {
    let (direct, database, vhost) = servers().await;
    direct.run(&["db", "migrate", "--quiet"]).assert(0, "");
    let socket = tempfile::tempdir().unwrap();
    let _pooler = Pooler::start(socket.path(), &database, mode).await;
    let name = database.url.rsplit_once('/').unwrap().1;
    let place = socket.path().display().to_string().replace('/', "%2F");
    let folder = Folder::new()
        .with("DATABASE_URL", &format!("postgres://postgres@{place}:6432/{name}"))
        .with("RABBITMQ_URL", &vhost.amqp_url);
    let ran = folder.run(&["doctor"]);
    format!("{}{}", ran.out, ran.err)
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_a_pooler_in_transaction_mode() {
    let said = doctor_behind("transaction").await;
    assert!(said.contains("PgBouncer") && said.contains("transaction mode"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_has_nothing_against_a_pooler_in_session_mode() {
    let said = doctor_behind("session").await;
    assert!(!said.contains("PgBouncer") && said.contains("PostgreSQL"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_says_when_handlers_may_take_longer_than_rabbitmq_waits() {
    let (folder, _database, vhost) = servers().await;
    let folder = folder.with("RABBITMQ_MANAGEMENT_URL", &vhost.management_url);
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    let consumer = |limit: &str| {
        format!(
            "[[queue]]\nname = 'billing'\nbind = ['shop.order.*']\n\
             [[consumer]]\nname = 'billing'\nhandler_timeout = '{limit}'\nprefetch = 10\n"
        )
    };
    folder.write("postrider.toml", &consumer("40m"));
    folder.run(&["doctor"]).assert(0, "RabbitMQ takes it back after 1800 s");
    folder.write("postrider.toml", &consumer("1m"));
    folder.run(&["doctor"]).assert(0, "RabbitMQ waits longer for each than it may take");
}
