//! What doctor finds on real servers: a PgBouncer in front of PostgreSQL, handlers that RabbitMQ does not wait for, clocks that differ,
//! policies that are missing or overruled, standbys that no commit waits for, slots that nobody reads, and users without rights.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use postrider::Clock;
use postrider::rabbitmq::RabbitMqTls;
use postrider::rabbitmq::management::{Management, ManagementConfig};
use postrider::topology::observed::Policy;
use postrider_testkit::servers::TestDatabase;
use serde_json::{Value, json};

use super::grants::psql;
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

/// The line of a report about one thing.
fn line(ran: &super::process::Ran, check: &str, about: &str) -> Value {
    let lines = ran.json();
    let fits = |line: &&Value| line["check"] == check && line["detail"].to_string().contains(about);
    let found = lines.as_array().unwrap().iter().find(fits);
    found.unwrap_or_else(|| panic!("nothing of {about:?} under {check}: {lines:#}")).clone()
}

fn library(name: &str) -> String {
    let folders = std::fs::read_dir("/usr/lib").unwrap().filter_map(Result::ok);
    let found = folders.map(|folder| folder.path().join("faketime").join(name)).find(|path| path.exists());
    let found =
        found.unwrap_or_else(|| panic!("libfaketime is not installed; scripts/install-servers installs it"));
    found.display().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_tells_how_far_this_machines_clock_is_from_the_databases() {
    let faketime = library("libfaketimeMT.so.1");
    for (offset, status, code) in
        [("+0", "ok", 0), ("+20", "warn", 0), ("-20", "warn", 0), ("+300", "fail", 3)]
    {
        let (folder, _database, _vhost) = servers().await;
        folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
        // A machine whose clock is wrong, and goes on as others do.
        let folder = folder
            .with("LD_PRELOAD", &faketime)
            .with("FAKETIME", offset)
            .with("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        let ran = folder.run(&["doctor", "--json"]).assert(code, "");
        let told = line(&ran, "clock", "ms apart");
        assert_eq!(told["status"], status, "{offset}: {told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_a_policy_that_overrules_ours() {
    let (folder, _database, vhost) = servers().await;
    let folder = folder.with("RABBITMQ_MANAGEMENT_URL", &vhost.management_url);
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    folder.run(&["topology", "apply", "--yes"]).assert(0, "applied");
    let before = folder.run(&["doctor", "--json"]).assert(0, "");
    assert_eq!(line(&before, "drift", "as it is configured")["status"], "ok");
    let management = ManagementConfig {
        url: vhost.management_url.clone().into(),
        tls: RabbitMqTls::default(),
        limit: Duration::from_secs(30),
    };
    // Of all policies that fit RabbitMQ applies the one with the highest priority, and no other.
    let stronger = Policy {
        name: "everything".to_owned(),
        pattern: ".*".to_owned(),
        apply_to: "queues".to_owned(),
        definition: json!({ "delivery-limit": 3 }).as_object().unwrap().clone().into_iter().collect(),
        priority: 1000,
    };
    Management::new(&management).unwrap().set_policy(&vhost.name, &stronger).await.unwrap();
    let after = folder.run(&["doctor", "--json"]).assert(0, "");
    assert_eq!(line(&after, "drift", "to change")["status"], "warn");
    folder.run(&["topology", "plan"]).assert(3, "everything");
    folder.run(&["topology", "apply", "--yes"]).assert(0, "applied");
    assert_eq!(line(&folder.run(&["doctor", "--json"]), "drift", "as it is configured")["status"], "ok");
}

/// Whose exchange left the configuration: nobody collects from its queue any more.
#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_dead_letters_that_nobody_collects_any_more() {
    let (folder, _database, vhost) = servers().await;
    let folder = folder.with("RABBITMQ_MANAGEMENT_URL", &vhost.management_url);
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    folder.write("postrider.toml", "");
    folder.run(&["publish", "shop.order.placed", "--data", "{}"]).assert(0, "");
    // It publishes, and collects nothing.
    let mut relay = folder.serve(&["--roles", "relay"]);
    relay.wait_for("serving");
    folder.write("postrider.toml", "[outbox]\nexchange = 'shop.events'\n");
    // RabbitMQ's counts are some seconds late.
    let clock = Clock::system();
    let until = clock.monotonic() + Duration::from_mins(1);
    loop {
        let ran = folder.run(&["doctor"]);
        if ran.out.contains("dead letters lie in postrider.events.unroutable (1)") {
            break;
        }
        assert!(clock.monotonic() < until, "{}{}", ran.out, ran.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_a_policy_that_is_missing() {
    let (folder, _database, vhost) = servers().await;
    let folder = folder.with("RABBITMQ_MANAGEMENT_URL", &vhost.management_url);
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    folder.run(&["topology", "apply", "--yes"]).assert(0, "applied");
    let management = ManagementConfig {
        url: vhost.management_url.clone().into(),
        tls: RabbitMqTls::default(),
        limit: Duration::from_secs(30),
    };
    let management = Management::new(&management).unwrap();
    let ours = management.policies(&vhost.name).await.unwrap();
    let gone = &ours.first().expect("a topology of quorum queues has policies").name;
    management.delete_policy(&vhost.name, gone).await.unwrap();
    let told = folder.run(&["doctor", "--json"]).assert(0, "");
    assert_eq!(line(&told, "drift", "`postrider topology plan` shows it")["status"], "warn");
    folder.run(&["topology", "plan"]).assert(3, "policy");

    // Whoever may not set it is told as well.
    let user = format!("reader_{}", vhost.name);
    management.create_user(&user, "secret", "management").await.unwrap();
    management.grant(&vhost.name, &user).await.unwrap();
    let theirs = vhost.management_url.replace("guest:guest@", &format!("{user}:secret@"));
    let folder = folder.with("RABBITMQ_MANAGEMENT_URL", &theirs);
    let told = folder.run(&["doctor", "--json"]).assert(0, "");
    assert_eq!(line(&told, "drift", "policies that are missing: 1")["status"], "warn");
    folder.run(&["topology", "plan"]).assert(0, "nothing to do");
    folder.run(&["topology", "drift"]).assert(3, "policies that are missing: 1");
}

/// Servers of its own: what is found here would be told of everybody's.
#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_a_standby_that_no_commit_waits_for_and_commits_that_wait_for_no_disk() {
    let (_, _database, vhost) = servers().await;
    let primary = postrider_testkit::servers::Postgres::start().await.unwrap();
    let url = primary.url();
    let folder = Folder::new().with("DATABASE_URL", &url).with("RABBITMQ_URL", &vhost.amqp_url);
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    let before = folder.run(&["doctor"]).assert(0, "");
    assert!(!before.out.contains("synchronous_"), "{before:?}");

    let _standby = primary.start_replica().await.unwrap();
    let following = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
    super::push::until(|| psql(&url, &["-c", following]).1.trim() == "1").await;
    let ran = folder.run(&["doctor", "--json"]).assert(0, "");
    let told = line(&ran, "store setup", "no commit waits for one");
    let detail = told["detail"].as_str().unwrap();
    assert!(told["status"] == "warn" && detail.contains("set synchronous_standby_names"), "{told}");

    let (done, said) = psql(&url, &["-c", "ALTER ROLE postgres SET synchronous_commit = off"]);
    assert!(done, "{said}");
    let ran = folder.run(&["doctor", "--json"]).assert(0, "");
    assert_eq!(line(&ran, "store settings", "synchronous_commit is off")["status"], "warn");
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_a_replication_slot_that_nobody_reads() {
    let (folder, database, _vhost) = servers().await;
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    let slot = format!("forgotten_{}", &Clock::system().new_id().simple().to_string()[16..]);
    let make = format!("SELECT pg_create_physical_replication_slot('{slot}', true)");
    let (done, said) = psql(&database.url, &["-c", &make]);
    assert!(done, "{said}");
    let ran = folder.run(&["doctor", "--json"]);
    let (done, said) = psql(&database.url, &["-c", &format!("SELECT pg_drop_replication_slot('{slot}')")]);
    assert!(done, "{said}");
    let told = line(&ran, "store setup", &slot);
    let detail = told["detail"].as_str().unwrap();
    assert!(told["status"] == "warn" && detail.contains("until the disk is full"), "{told}");
    let after = folder.run(&["doctor"]);
    assert!(!after.out.contains(&slot), "{after:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_says_what_a_user_without_rights_lacks() {
    let (folder, database, vhost) = servers().await;
    folder.run(&["db", "migrate", "--quiet"]).assert(0, "");
    let user = format!("stranger_{}", &Clock::system().new_id().simple().to_string()[16..]);
    let (done, said) = psql(&database.url, &["-c", &format!("CREATE ROLE {user} LOGIN")]);
    assert!(done, "{said}");
    let url = database.url.replace("postgres@", &format!("{user}@"));
    let stranger = Folder::new().with("DATABASE_URL", &url).with("RABBITMQ_URL", &vhost.amqp_url);
    let ran = stranger.run(&["doctor", "--json"]).assert(3, "");
    let told = line(&ran, "schema", "db grants");
    assert_eq!(told["status"], "fail", "{told}");
    let (done, said) = psql(&database.url, &["-c", &format!("DROP OWNED BY {user}; DROP ROLE {user}")]);
    assert!(done, "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_redis_that_is_not_there_is_found() {
    let redis = postrider_testkit::servers::Redis::start().await.unwrap();
    let folder = Folder::new().with("REDIS_URL", &redis.url());
    folder.run(&["doctor"]).assert(0, "jobs are shown in database 1");
    let folder = folder.with("REDIS_STATE_DB", "99");
    folder
        .run(&["doctor"])
        .assert(0, "jobs are not shown in database 99: Redis has no database of this number");
}
