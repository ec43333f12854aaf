//! The schema: made when asked for, once, and checked.

use postrider::Store as _;
use postrider::postgres::MigrationState;
use postrider::store::{Outboxes as _, StoreErrorKind};
use postrider_testkit::servers::shared;

use super::{append, connect, event, execute, store};

#[tokio::test]
async fn check_says_what_to_do() {
    let database = shared().unwrap().database().await.unwrap();
    let postgres = connect(&database).await;
    let error = postgres.check().await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Schema);
    assert!(error.message.contains("run `postrider db migrate`"), "{error}");
    assert!(
        postgres.migration_status().await.unwrap().iter().all(|row| row.state == MigrationState::Pending)
    );

    let all = postgres.migration_status().await.unwrap().len();
    assert_eq!(postgres.migrate().await.unwrap().len(), all);
    postgres.check().await.unwrap();
    assert_eq!(postgres.migrate().await.unwrap(), []);

    execute(
        &postgres,
        "INSERT INTO postrider.schema_version (version, name, checksum) VALUES (99, 'later', 'x')",
    )
    .await
    .unwrap();
    let error = postgres.check().await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Schema);
    assert!(error.message.contains("the database has 99; upgrade the binary"), "{error}");
    assert!(postgres.migrate().await.unwrap_err().message.contains("upgrade the binary"));
    let newest = postgres.migration_status().await.unwrap().pop().unwrap();
    assert!(matches!(newest.state, MigrationState::Unknown { .. }), "{newest:?}");

    execute(&postgres, "DELETE FROM postrider.schema_version WHERE version = 99").await.unwrap();
    execute(&postgres, "UPDATE postrider.schema_version SET checksum = 'x'").await.unwrap();
    assert!(postgres.check().await.unwrap_err().message.contains("another text"));
}

/// It stays registered when somebody drops it by hand, and holds up no upgrade.
#[tokio::test]
async fn an_outbox_that_was_dropped_is_passed_over() {
    let (postgres, _database) = store().await;
    postgres.create_outbox("fis_outbox").await.unwrap();
    execute(&postgres, "DROP TABLE public.fis_outbox CASCADE").await.unwrap();
    execute(&postgres, "DELETE FROM postrider.schema_version WHERE version = 42").await.unwrap();
    let applied = postgres.migrate().await.unwrap();
    assert_eq!(applied.iter().map(|row| row.version).collect::<Vec<_>>(), [42]);
    append(&postgres, vec![event("1", None)]).await;
}

#[tokio::test]
async fn migrators_that_start_together_do_not_collide() {
    let database = shared().unwrap().database().await.unwrap();
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let postgres = connect(&database).await;
        tasks.push(tokio::spawn(async move { postgres.migrate().await.unwrap().len() }));
    }
    let all = connect(&database).await.migration_status().await.unwrap().len();
    let mut applied = 0;
    for task in tasks {
        applied += task.await.unwrap();
    }
    assert_eq!(applied, all);
}

#[tokio::test]
async fn nothing_outside_its_own_schema_is_touched() {
    let (postgres, _database) = store().await;
    let elsewhere: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname NOT IN ('postrider', 'pg_catalog', 'information_schema', 'pg_toast')",
    )
    .fetch_one(postgres.pool())
    .await
    .unwrap();
    assert_eq!(elsewhere, 0);
}

/// In the order of a language a comparison takes several times as long, and the order may change with an upgrade of the system.
#[tokio::test]
async fn keys_are_compared_by_their_bytes() {
    let (postgres, _database) = store().await;
    let others: Vec<String> = sqlx::query_scalar(
        "SELECT DISTINCT format('%s.%s', c.relname, a.attname) FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid \
         JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey) \
         WHERE c.relnamespace = 'postrider'::regnamespace AND a.atttypid = 'text'::regtype \
             AND a.attcollation <> '\"C\"'::regcollation AND c.relname !~ '^event_outbox(_default|_p[0-9]+)?$' \
         ORDER BY 1",
    )
    .fetch_all(postgres.pool())
    .await
    .unwrap();
    assert_eq!(others, Vec::<String>::new());
    // The tables of tenants are as closed as before.
    let policies: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM pg_policies WHERE schemaname = 'postrider' AND qual LIKE '%postrider.tenant%'",
    )
    .fetch_one(postgres.pool())
    .await
    .unwrap();
    assert_eq!(policies, 10);
}
