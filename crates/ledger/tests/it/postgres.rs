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
