//! The books on SQLite under the suite.

use std::path::PathBuf;

use postrider::Clock;
use postrider::sqlite::{Sqlite, SqliteConfig};
use postrider_testkit::conformance::books::BooksFixture;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, Row as _, SqliteConnection};
use tempfile::TempDir;

postrider_testkit::books_conformance!(File::new());

struct File {
    folder: TempDir,
    store: Sqlite,
}

impl File {
    async fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let config = SqliteConfig::new(folder.path().join("books.db"));
        Self { store: Sqlite::open(config, Clock::system()).await.unwrap(), folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("books.db")
    }

    async fn connection(&self) -> SqliteConnection {
        let url = format!("sqlite://{}", self.path().display());
        let mut connection = SqliteConnection::connect(&url).await.unwrap();
        connection.execute("PRAGMA busy_timeout = 5000").await.unwrap();
        connection
    }
}

impl BooksFixture for File {
    type Books = Sqlite;

    async fn books(&self) -> Sqlite {
        self.store.clone()
    }

    async fn tamper(&self, statement: &str) {
        let mut connection = self.connection().await;
        let names = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND name LIKE 'ledger_%'";
        for row in connection.fetch_all(names).await.unwrap() {
            let drop = format!("DROP TRIGGER {}", row.get::<&str, _>(0));
            connection.execute(AssertSqlSafe(drop)).await.unwrap();
        }
        connection.execute(AssertSqlSafe(statement.replace("{}", ""))).await.unwrap();
    }

    async fn try_statement(&self, statement: &str) -> bool {
        let mut connection = self.connection().await;
        connection.execute(AssertSqlSafe(statement.replace("{}", ""))).await.is_ok()
    }
}

/// A column takes a text in the place of a number, and whoever reads it back says so.
#[tokio::test]
async fn a_column_of_another_type_is_named() {
    use postrider_ledger::books::Books as _;
    use postrider_ledger::{Ledger, chart::Book, money::Currency};
    let file = File::new().await;
    let tenant = postrider::envelope::TenantId::new("acme").unwrap();
    let ledger = Ledger::new(file.books().await, Clock::system());
    let book = Book::new(tenant.clone(), Currency::new("EUR").unwrap());
    let accounts = postrider_testkit::conformance::books::chart();
    assert!(ledger.open_books(&book, &accounts, "").await.unwrap());
    file.tamper("UPDATE ledger_account SET active = 'x' WHERE code = 'bank'").await;
    let error = ledger.books().read_chart(&tenant).await.unwrap_err();
    assert!(error.to_string().contains("account bank of acme cannot be read back"), "{error}");
}

/// Of entries that cannot all be read, nothing is said that they do not add up to.
#[tokio::test]
async fn a_line_of_another_type_is_named_and_nothing_else_is() {
    use postrider_ledger::{Ledger, chart::Book, money::Currency, rules::ready, verify::Scope};
    use postrider_testkit::conformance::books::{chart, order};
    let file = File::new().await;
    let tenant = postrider::envelope::TenantId::new("acme").unwrap();
    let ledger = Ledger::new(file.books().await, Clock::system());
    let book = Book::new(tenant.clone(), Currency::new("EUR").unwrap());
    assert!(ledger.open_books(&book, &chart(), ready::RULES).await.unwrap());
    ledger.post(&tenant, &[order("o-1", "10.00", "EUR"), order("o-2", "10.00", "EUR")]).await.unwrap();
    file.tamper("UPDATE ledger_line SET amount = 'x' WHERE entry = 1 AND line = 1").await;
    let found = ledger.verify(&tenant, Scope::default()).await.unwrap().unwrap();
    let [problem] = found.problems.as_slice() else { panic!("{found:?}") };
    assert_eq!((problem.code, found.balances_compared), ("unreadable", false));
    assert!(problem.text.starts_with("a line of entry 1 of acme cannot be read back"), "{}", problem.text);

    // Whoever only looks is told so, too.
    let sales = postrider_ledger::account::AccountCode::new("sales").unwrap();
    file.tamper("UPDATE ledger_line SET amount = 'x', account = 'sales' WHERE entry = 1 AND line = 1").await;
    let error = ledger.statement(&tenant, &sales, None, 10).await.unwrap_err();
    assert!(error.to_string().contains("cannot be read back"), "{error}");
    file.tamper("UPDATE ledger_entry SET kind = 6 WHERE number = 1").await;
    let error = ledger.income_statement(&tenant, None, None).await.unwrap_err();
    assert!(error.to_string().contains("the balance of sales of acme cannot be read back"), "{error}");
}
