//! Row-level security, tried as a role that cannot bypass it.

use futures_util::TryStreamExt as _;
use postrider::Clock;
use postrider::envelope::TenantId;
use postrider_ledger::Ledger;
use postrider_ledger::chart::Book;
use postrider_ledger::money::Currency;
use postrider_ledger::pipeline::Answer;
use postrider_ledger::rules::ready;
use postrider_ledger::verify::{Scope, verify};
use postrider_testkit::conformance::books::{chart, order};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

use super::{Database, connect};

/// A login without special rights, for the length of a test.
async fn plain_role(database: &Database) -> (String, String) {
    let role = format!("clerk_{}", Clock::system().new_id().simple());
    let mut admin = database.connection().await;
    for statement in [
        format!("CREATE ROLE {role} LOGIN NOSUPERUSER NOBYPASSRLS"),
        format!("GRANT USAGE ON SCHEMA postrider TO {role}"),
        format!("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA postrider TO {role}"),
        format!("GRANT USAGE ON ALL SEQUENCES IN SCHEMA postrider TO {role}"),
    ] {
        admin.execute(AssertSqlSafe(statement)).await.unwrap();
    }
    let url = database.database.url.replace("postgres@", &format!("{role}@"));
    (role, url)
}

async fn drop_role(database: &Database, role: &str) {
    let mut admin = database.connection().await;
    admin.execute(AssertSqlSafe(format!("DROP OWNED BY {role}"))).await.unwrap();
    admin.execute(AssertSqlSafe(format!("DROP ROLE {role}"))).await.unwrap();
}

#[tokio::test]
async fn a_transaction_sees_and_writes_one_tenant_alone() {
    let database = Database::new().await;
    let (role, url) = plain_role(&database).await;
    let store = connect(&url).await;
    let ledger = Ledger::new(store.clone(), Clock::system());
    for tenant in ["acme", "rival"] {
        let book = Book::new(TenantId::new(tenant).unwrap(), Currency::new("EUR").unwrap());
        assert!(ledger.open_books(&book, &chart(), ready::RULES).await.unwrap(), "the role can do its work");
        let orders: Vec<_> = (0..3).map(|n| order(&format!("o{n}"), "12.50", "EUR")).collect();
        let answers = ledger.post(&book.tenant, &orders).await.unwrap();
        assert!(answers.iter().all(|answer| matches!(answer, Answer::Posted(_))), "{answers:?}");
        let again = ledger.post(&book.tenant, &orders).await.unwrap();
        assert!(again.iter().all(|answer| matches!(answer, Answer::Duplicate(_))), "{again:?}");
        let verified = verify(&store, &book.tenant, &Scope::default()).await.unwrap().unwrap();
        assert!(verified.holds() && verified.entries == 3 && verified.balances_compared, "{verified:?}");
    }

    let mut clerk = PgConnection::connect(&url).await.unwrap();
    let count = "SELECT count(*) FROM postrider.ledger_account";
    let seen: i64 = sqlx::query_scalar(count).fetch_one(&mut clerk).await.unwrap();
    assert_eq!(seen, 0, "who names no tenant sees nothing");

    clerk.execute("BEGIN; SET LOCAL postrider.tenant = 'acme'").await.unwrap();
    let foreign = "SELECT count(*) FROM postrider.ledger_account WHERE tenant <> 'acme'";
    let seen: i64 = sqlx::query_scalar(foreign).fetch_one(&mut clerk).await.unwrap();
    assert_eq!(seen, 0, "who names one tenant sees no other");
    let seen: i64 = sqlx::query_scalar(count).fetch_one(&mut clerk).await.unwrap();
    assert!(seen > 0);
    let changed = clerk
        .execute("UPDATE postrider.ledger_book SET head_number = 9 WHERE tenant = 'rival'")
        .await
        .unwrap();
    assert_eq!(changed.rows_affected(), 0);
    let smuggled = "INSERT INTO postrider.ledger_balance VALUES ('rival', 'bank', 'EUR', 1, 0, 1, 0, 0, 0)";
    let error = clerk.execute(smuggled).await.unwrap_err().to_string();
    assert!(error.contains("row-level security"), "{error}");
    clerk.execute("ROLLBACK; BEGIN; SET LOCAL postrider.tenant = 'acme'").await.unwrap();
    let copied =
        clerk.copy_out_raw("COPY (SELECT tenant FROM postrider.ledger_entry) TO STDOUT").await.unwrap();
    let copied: Vec<_> = copied.try_collect().await.unwrap();
    assert_eq!(copied.concat(), b"acme\nacme\nacme\n", "COPY keeps to the tenant too");
    clerk.execute("ROLLBACK").await.unwrap();

    // The setting ends with its transaction: the next user of a pooled connection starts with nothing.
    let seen: i64 = sqlx::query_scalar(count).fetch_one(&mut clerk).await.unwrap();
    assert_eq!(seen, 0);
    for statement in [
        "ALTER TABLE postrider.ledger_entry DISABLE ROW LEVEL SECURITY",
        "ALTER TABLE postrider.ledger_entry DISABLE TRIGGER ALL",
        "SET session_replication_role = replica",
        "TRUNCATE postrider.ledger_entry",
    ] {
        assert!(clerk.execute(statement).await.is_err(), "{statement} was let through");
    }
    clerk.close().await.unwrap();
    store.close().await;
    drop_role(&database, &role).await;
}

/// The list of who keeps books lies open. Who may see all books finds those that are missing on it.
#[tokio::test]
async fn books_that_are_not_on_the_list_are_named() {
    let database = Database::new().await;
    let ledger = Ledger::new(database.store.clone(), Clock::system());
    let book = Book::new(TenantId::new("acme").unwrap(), Currency::new("EUR").unwrap());
    ledger.open_books(&book, &chart(), ready::RULES).await.unwrap();
    let mut admin = database.connection().await;
    for statement in [
        "SET session_replication_role = replica",
        "DELETE FROM postrider.ledger_tenant WHERE tenant = 'acme'",
    ] {
        admin.execute(statement).await.unwrap();
    }
    let found = ledger.verify_everybody(Scope::default()).await.unwrap();
    let [acme] = &found[..] else { panic!("{found:?}") };
    let codes: Vec<_> = acme.problems.iter().map(|problem| problem.code).collect();
    assert_eq!(codes, ["tenant_missing"], "{found:?}");
}

#[tokio::test]
async fn every_table_of_the_ledger_has_its_wall() {
    let database = Database::new().await;
    let open = "SELECT relname FROM pg_class WHERE relnamespace = 'postrider'::regnamespace AND relkind IN ('r', 'p') \
         AND relname LIKE 'ledger\\_%' AND NOT (relrowsecurity AND relforcerowsecurity)";
    let open: Vec<String> = sqlx::query_scalar(open).fetch_all(database.store.pool()).await.unwrap();
    assert_eq!(open, ["ledger_tenant"], "names alone");
}
