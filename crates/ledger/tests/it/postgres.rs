//! The books on PostgreSQL under the suite, and the walls between tenants.

mod walls;

use postrider::Clock;
use postrider::postgres::{Postgres, PostgresConfig};
use postrider_testkit::conformance::books::BooksFixture;
use postrider_testkit::servers::{TestDatabase, shared};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

postrider_testkit::books_conformance!(Database::new());

struct Database {
    store: Postgres,
    database: TestDatabase,
}

impl Database {
    async fn new() -> Self {
        let database = shared().unwrap().migrated_database().await.unwrap();
        let store = connect(&database.url).await;
        store.migrate().await.unwrap();
        Self { store, database }
    }

    async fn connection(&self) -> PgConnection {
        PgConnection::connect(&self.database.url).await.unwrap()
    }
}

async fn connect(url: &str) -> Postgres {
    Postgres::connect(PostgresConfig::new(url), Clock::system()).await.unwrap()
}

impl BooksFixture for Database {
    type Books = Postgres;

    async fn books(&self) -> Postgres {
        self.store.clone()
    }

    async fn tamper(&self, statement: &str) {
        let mut connection = self.connection().await;
        connection.execute("SET session_replication_role = replica").await.unwrap();
        connection.execute(AssertSqlSafe(statement.replace("{}", "postrider."))).await.unwrap();
    }

    async fn try_statement(&self, statement: &str) -> bool {
        let mut connection = self.connection().await;
        connection.execute(AssertSqlSafe(statement.replace("{}", "postrider."))).await.is_ok()
    }
}

/// PostgreSQL keeps times and days that are none. Who verifies names them, and the books of others are verified all the same.
#[tokio::test]
async fn a_time_that_is_none_is_named() {
    use postrider::envelope::TenantId;
    use postrider_ledger::{Ledger, chart::Book, checkpoint::Key, money::Currency};
    use postrider_ledger::{rules::ready, verify::Scope};
    use postrider_testkit::conformance::books::{chart, order};
    let database = Database::new().await;
    let ledger = Ledger::new(database.books().await, Clock::system());
    for tenant in ["acme", "globex"] {
        let book = Book::new(TenantId::new(tenant).unwrap(), Currency::new("EUR").unwrap());
        assert!(ledger.open_books(&book, &chart(), ready::RULES).await.unwrap());
        ledger.post(&book.tenant, &[order("o-1", "10.00", "EUR")]).await.unwrap();
        ledger.checkpoint(&book.tenant, &Key::from_seed([7; 32])).await.unwrap();
    }
    for (table, column) in
        [("ledger_checkpoint", "made_at"), ("ledger_day", "day"), ("ledger_entry", "posted_at")]
    {
        let keep =
            format!("CREATE TABLE kept_{table} AS SELECT * FROM {{}}{table} WHERE tenant = 'acme' LIMIT 1");
        database.tamper(&keep).await;
        let one = format!("ctid = (SELECT ctid FROM {{}}{table} WHERE tenant = 'acme' LIMIT 1)");
        database.tamper(&format!("UPDATE {{}}{table} SET {column} = 'infinity' WHERE {one}")).await;
        let found = ledger.verify_everybody(Scope::default()).await.unwrap();
        let [acme, globex] = found.as_slice() else { panic!("{found:?}") };
        let named = |code| acme.problems.iter().any(|problem| problem.code == code);
        assert!(named("unreadable") || named("hash_differs"), "{table}: {acme:?}");
        assert!(globex.holds(), "{table}: {globex:?}");
        database.tamper(&format!("DELETE FROM {{}}{table} WHERE {column} = 'infinity'")).await;
        database.tamper(&format!("INSERT INTO {{}}{table} SELECT * FROM kept_{table}")).await;
    }
    let found = ledger.verify_everybody(Scope::default()).await.unwrap();
    assert!(found.iter().all(postrider_ledger::verify::Verification::holds), "{found:?}");
}
