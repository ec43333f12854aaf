//! Lost connections, wrong credentials, TLS.

use std::time::Duration;

use postrider::postgres::{Postgres, PostgresConfig};
use postrider::store::{StoreError, StoreErrorKind};
use postrider::{Clock, Outbox as _, Store as _};
use postrider_testkit::servers::{Postgres as Server, shared};
use sqlx::{Connection as _, Executor as _, PgConnection};

use super::{LEASE, append, claim, event, execute, ids, kind, relay, store};

async fn refused(url: String) -> StoreError {
    let mut config = PostgresConfig::new(&url);
    config.acquire_limit = Duration::from_secs(5);
    let error = Postgres::connect(config, Clock::system()).await.unwrap_err();
    let everything = format!("{error} {error:?}");
    let password = url::Url::parse(&url).ok().and_then(|url| url.password().map(str::to_owned));
    assert!(!everything.contains(password.as_deref().unwrap_or("s3cret")), "{everything}");
    error
}

#[tokio::test]
async fn a_terminated_backend_costs_one_error_and_no_more() {
    let (postgres, _database) = store().await;
    for _ in 0..15 {
        let mut tx = postgres.begin().await.unwrap();
        postgres.append(&mut tx, vec![event("1", None)]).await.unwrap();
        let pid: i32 =
            sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(tx.connection()).await.unwrap();
        sqlx::query("SELECT pg_terminate_backend($1, 5000)")
            .bind(pid)
            .execute(postgres.pool())
            .await
            .unwrap();
        assert_eq!(kind(postgres.append(&mut tx, vec![event("2", None)]).await), StoreErrorKind::Unavailable);
        assert_eq!(kind(postgres.commit(tx).await), StoreErrorKind::Unavailable);
    }
    append(&postgres, vec![event("1", None)]).await;
}

#[tokio::test]
async fn a_commit_on_a_lost_connection_says_that_the_outcome_is_unknown() {
    let (postgres, _database) = store().await;
    let mut tx = postgres.begin().await.unwrap();
    postgres.append(&mut tx, vec![event("1", None)]).await.unwrap();
    execute(
        &postgres,
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity \
         WHERE datname = current_database() AND state = 'idle in transaction'",
    )
    .await
    .unwrap();
    let error = postgres.commit(tx).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable);
    assert!(error.message.contains("is unknown"), "{error}");
}

#[tokio::test]
async fn relays_survive_terminated_backends() {
    let (postgres, _database) = store().await;
    append(&postgres, vec![event("1", None)]).await;
    let a = relay("a");
    postgres.lease(&a, LEASE).await.unwrap();
    postgres.wait(Duration::from_secs(10)).await;
    execute(
        &postgres,
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity \
         WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    .await
    .unwrap();
    assert_eq!(ids(&claim(&postgres, &a).await), ["1"]);
    // The listener comes back by itself and rings, for what it may have missed.
    tokio::time::timeout(Duration::from_secs(10), postgres.wait(Duration::from_mins(1))).await.unwrap();
}

#[tokio::test]
async fn a_commit_after_a_swallowed_error_is_refused() {
    let (postgres, _database) = store().await;
    let mut tx = postgres.begin().await.unwrap();
    postgres.append(&mut tx, vec![event("1", None)]).await.unwrap();
    tx.connection().execute("SELECT 1/0").await.unwrap_err();
    let error = postgres.commit(tx).await.unwrap_err();
    assert!(error.message.contains("nothing was committed"), "{error}");

    // In a savepoint it is allowed.
    let mut tx = postgres.begin().await.unwrap();
    postgres.append(&mut tx, vec![event("1", None)]).await.unwrap();
    let mut savepoint = tx.connection().begin().await.unwrap();
    savepoint.execute("SELECT 1/0").await.unwrap_err();
    savepoint.rollback().await.unwrap();
    postgres.commit(tx).await.unwrap();
}

#[tokio::test]
async fn a_dropped_call_in_the_middle_poisons_nothing() {
    let (postgres, _database) = store().await;
    for _ in 0..15 {
        let mut tx = postgres.begin().await.unwrap();
        postgres.append(&mut tx, vec![event("1", None)]).await.unwrap();
        let sleep = tx.connection().execute("SELECT pg_sleep(0.05)");
        tokio::time::timeout(Duration::from_millis(5), sleep).await.unwrap_err();
        drop(tx);
    }
    append(&postgres, vec![event("1", None)]).await;
}

#[tokio::test]
async fn a_payload_never_stands_in_an_error() {
    let (postgres, _database) = store().await;
    let mut tx = postgres.begin().await.unwrap();
    let mut bad = event("1", None).json(&"confidential").unwrap();
    bad.trace.traceparent = Some("a\0b".to_owned());
    let error = postgres.append(&mut tx, vec![bad]).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Invalid);
    assert!(!format!("{error} {error:?}").contains("confidential"), "{error:?}");
}

#[tokio::test]
async fn what_is_wrong_with_a_url_is_said_without_the_password() {
    let good = shared().unwrap().database_url;
    let url = |change: &dyn Fn(&mut url::Url)| {
        let mut url = url::Url::parse(&good).unwrap();
        change(&mut url);
        // A server that trusts everybody takes any password; on another the right one is needed to get further.
        if url.password().is_none() {
            url.set_password(Some("s3cret")).unwrap();
        }
        url.to_string()
    };
    let no_database = refused(url(&|url| url.set_path("no_such_database"))).await;
    assert_eq!(no_database.kind, StoreErrorKind::Schema);
    assert!(no_database.message.contains("no_such_database"), "{no_database}");
    let no_server = refused(url(&|url| url.set_port(Some(1)).unwrap())).await;
    assert_eq!(no_server.kind, StoreErrorKind::Unavailable);
    assert!(no_server.message.contains(":1/"), "{no_server}");
    assert_eq!(refused("postgres://u:s3cret@ho st/x".to_owned()).await.kind, StoreErrorKind::Invalid);
    assert_eq!(refused("mysql://u:s3cret@host/x".to_owned()).await.kind, StoreErrorKind::Invalid);
    assert_eq!(
        refused("postgres://u:s3cret@127.0.0.1/x?sslmode=maybe".to_owned()).await.kind,
        StoreErrorKind::Invalid
    );
    let no_name = refused("postgres://u:s3cret@nowhere.invalid/x".to_owned()).await;
    assert_eq!(no_name.kind, StoreErrorKind::Unavailable);
}

#[tokio::test]
async fn connections_that_are_all_in_use_are_no_outage() {
    let database = shared().unwrap().migrated_database().await.unwrap();
    let mut config = PostgresConfig::new(&database.url);
    (config.max_connections, config.acquire_limit) = (1, Duration::from_millis(200));
    let postgres = Postgres::connect(config, Clock::system()).await.unwrap();
    let in_hand = postgres.begin().await.unwrap();
    let error = kind(postgres.begin().await.map(drop));
    assert_eq!(error, StoreErrorKind::Busy);
    postgres.rollback(in_hand).await.unwrap();
    let tx = postgres.begin().await.unwrap();
    postgres.rollback(tx).await.unwrap();
}

#[tokio::test]
async fn a_wrong_password_is_denied_and_a_restart_is_survived() {
    let server = Server::start().await.unwrap();
    let mut admin = PgConnection::connect(&server.url()).await.unwrap();
    admin.execute("CREATE ROLE app LOGIN PASSWORD 'right'").await.unwrap();
    let file: String = sqlx::query_scalar("SHOW hba_file").fetch_one(&mut admin).await.unwrap();
    let rules = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("host all app 127.0.0.1/32 scram-sha-256\n{rules}")).unwrap();
    admin.execute("SELECT pg_reload_conf()").await.unwrap();
    admin.execute("SELECT pg_sleep(0.3)").await.unwrap();
    let wrong = server.url().replace("postgres@", "app:s3cret@");
    let error = refused(wrong).await;
    assert_eq!(error.kind, StoreErrorKind::Denied, "{error}");

    let postgres = Postgres::connect(PostgresConfig::new(server.url()), Clock::system()).await.unwrap();
    postgres.migrate().await.unwrap();
    append(&postgres, vec![event("1", None)]).await;
    server.kill().unwrap();
    assert_eq!(kind(postgres.lease(&relay("a"), LEASE).await), StoreErrorKind::Unavailable);
    server.restart().await.unwrap();
    postgres.lease(&relay("a"), LEASE).await.unwrap();
    assert_eq!(ids(&claim(&postgres, &relay("a")).await), ["1"]);

    // A user without rights is told so.
    let right = server.url().replace("postgres@", "app:right@");
    let app = Postgres::connect(PostgresConfig::new(right), Clock::system()).await.unwrap();
    assert_eq!(kind(app.check().await), StoreErrorKind::Denied);
    assert_eq!(kind(app.migrate().await), StoreErrorKind::Denied);
}

#[tokio::test]
async fn tls_is_verified_to_the_name() {
    let server = Server::start_tls().await.unwrap();
    let postgres = Postgres::connect(PostgresConfig::new(server.url()), Clock::system()).await.unwrap();
    postgres.migrate().await.unwrap();
    postgres.check().await.unwrap();

    let base = server.url().split('?').next().unwrap().replace("postgres@", "postgres:s3cret@");
    let stranger = refused(format!("{base}?sslmode=verify-full")).await;
    assert!(stranger.message.contains("sslrootcert"), "{stranger}");
    let plain = refused(format!("{base}?sslmode=disable")).await;
    assert_eq!(plain.kind, StoreErrorKind::Denied, "{plain}");
}

/// The driver would put the connection back with the transaction open, and what others write on it would never be committed.
#[tokio::test]
async fn a_transaction_that_nobody_waits_for_any_more_is_rolled_back() {
    let (postgres, database) = store().await;
    let mut observer = PgConnection::connect(&database.url).await.unwrap();
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'";
    for micros in 0..400 {
        // Sooner or later between BEGIN and its answer.
        let begun = tokio::time::timeout(Duration::from_micros(5 * micros), postgres.begin()).await;
        drop(begun);
        tokio::time::timeout(Duration::from_secs(20), async {
            while sqlx::query_scalar::<_, i64>(open).fetch_one(&mut observer).await.unwrap() > 0 {}
        })
        .await
        .expect("no transaction stays open");
    }
}
