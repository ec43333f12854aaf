//! How a stream's own connection comes about: over TLS, by every kind of password, by a certificate, through a socket, or not at
//! all and with the reason.

use std::time::Duration;

use postrider::postgres::{Postgres, PostgresConfig};
use postrider::store::{Opening, RelayId, RowStream, StreamLimit};
use postrider::{Clock, Outbox as _, Store as _};
use postrider_testkit::servers::Postgres as Server;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

use super::event;

const LEASE: Duration = Duration::from_secs(30);

async fn connect(url: &str) -> Postgres {
    Postgres::connect(PostgresConfig::new(url), Clock::system()).await.unwrap()
}

async fn open(store: &Postgres) -> Result<Box<dyn RowStream>, String> {
    match store.open_stream(&RelayId::new("relay").unwrap(), LEASE).await.unwrap() {
        Opening::Open(stream) => Ok(stream),
        Opening::Impossible(why) => Err(why),
        _ => Err("neither open nor impossible".to_owned()),
    }
}

/// Why no stream can be opened. The pools' own new connections are refused as well, so this asks until one that they have
/// already is free.
async fn refused(store: &Postgres) -> String {
    let relay = RelayId::new("relay").unwrap();
    let asking = async {
        loop {
            match store.open_stream(&relay, LEASE).await {
                Ok(Opening::Impossible(why)) => return why,
                Ok(_) => panic!("it is open"),
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    tokio::time::timeout(super::LIMIT, asking).await.unwrap()
}

/// Commits an event, and expects it from the stream.
async fn expect_to_stream(store: &Postgres, number: usize) {
    let mut stream = open(store).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    store.append(&mut tx, vec![event("a", number)]).await.unwrap();
    store.commit(tx).await.unwrap();
    let limit = StreamLimit { rows: 1, bytes: 1 << 20 };
    loop {
        let streamed = tokio::time::timeout(super::LIMIT, stream.next(limit)).await.unwrap().unwrap();
        if let [row] = streamed.rows.as_slice() {
            assert_eq!(row.envelope.id.as_str(), format!("a-{number}"));
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_speaks_tls_and_logs_in_as_the_pools_do() {
    let server = Server::start_tls().await.unwrap();
    let mut admin = PgConnection::connect(&server.url()).await.unwrap();
    for (role, method, encryption) in
        [("scram", "scram-sha-256", "scram-sha-256"), ("hashed", "md5", "md5"), ("clear", "password", "md5")]
    {
        let create = format!(
            "SET password_encryption = '{encryption}'; CREATE ROLE {role} SUPERUSER LOGIN PASSWORD 'p@ss+w/rd'"
        );
        admin.execute(AssertSqlSafe(create)).await.unwrap();
        let file: String = sqlx::query_scalar("SHOW hba_file").fetch_one(&mut admin).await.unwrap();
        let rules = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, format!("hostssl all {role} 127.0.0.1/32 {method}\n{rules}")).unwrap();
    }
    server.restart().await.unwrap();

    let own_authority = server.url();
    let store = connect(&own_authority).await;
    store.migrate().await.unwrap();
    expect_to_stream(&store, 0).await;
    let unverified = own_authority.split('?').next().unwrap().to_owned() + "?sslmode=require";
    expect_to_stream(&connect(&unverified).await, 1).await;
    for (role, number) in [("scram", 2), ("hashed", 3), ("clear", 4)] {
        let url = own_authority.replace("postgres@", &format!("{role}:p%40ss+w%2Frd@"));
        expect_to_stream(&connect(&url).await, number).await;
    }

    // The pool has a connection already; the stream's own is refused.
    let url = own_authority.replace("postgres@", "scram:p%40ss+w%2Frd@");
    let store = connect(&url).await;
    drop(open(&store).await.unwrap());
    store.pool().execute("ALTER ROLE scram PASSWORD 'another'").await.unwrap();
    let why = refused(&store).await;
    assert!(why.contains("28P01") && why.contains("check user and password"), "{why}");
    assert!(!why.contains("p@ss+w/rd") && !why.contains("p%40ss"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_authority_is_gone_says_so() {
    let server = Server::start_tls().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.pem");
    std::fs::copy(server.ca_file().unwrap(), &ca).unwrap();
    let url =
        server.url().replace(&server.ca_file().unwrap().display().to_string(), &ca.display().to_string());
    let store = connect(&url).await;
    store.migrate().await.unwrap();
    drop(open(&store).await.unwrap());
    std::fs::remove_file(&ca).unwrap();
    let why = refused(&store).await;
    assert!(why.contains("sslrootcert") && why.contains("ca.pem"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_goes_through_a_socket() {
    let server = Server::start().await.unwrap();
    let store = connect(&server.socket_url()).await;
    store.migrate().await.unwrap();
    expect_to_stream(&store, 0).await;
    let through = "SELECT count(*) FROM pg_stat_replication WHERE client_addr IS NULL AND client_port = -1";
    let _open = open(&store).await.unwrap();
    let streams: i64 = sqlx::query_scalar(through).fetch_one(store.pool()).await.unwrap();
    assert!(streams > 0, "no stream goes through the socket");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_logs_in_by_a_certificate() {
    let server = Server::start_tls().await.unwrap();
    let mut admin = PgConnection::connect(&server.url()).await.unwrap();
    admin.execute("CREATE ROLE certified SUPERUSER LOGIN").await.unwrap();
    let file: String = sqlx::query_scalar("SHOW hba_file").fetch_one(&mut admin).await.unwrap();
    let rules = std::fs::read_to_string(&file).unwrap();
    let cert = "hostssl all certified 127.0.0.1/32 cert\nhostssl replication certified 127.0.0.1/32 cert\n";
    std::fs::write(&file, format!("{cert}{rules}")).unwrap();
    server.restart().await.unwrap();
    let url = server.certified_url().unwrap();
    let store = connect(&url).await;
    store.migrate().await.unwrap();
    expect_to_stream(&store, 0).await;
    let without = url.split("&sslcert").next().unwrap();
    let refused = Postgres::connect(PostgresConfig::new(without), Clock::system()).await;
    assert!(refused.is_err(), "the certificate is what lets it in");
}
