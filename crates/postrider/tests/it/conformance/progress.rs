//! The stores under the progress suite: what is announced is what a relay would publish.

use postrider::Envelope;
use postrider::progress::Progress;
use postrider::store::{Ask, Backend, Jobs, RelayId};
use postrider_testkit::conformance::progress::ProgressFixture;
use postrider_testkit::conformance::store::StoreFixture;

/// A store, and what must not end before it.
struct Stored<S, F> {
    store: S,
    _fixture: F,
}

impl<S: Backend + Jobs, F: StoreFixture<Store = S>> Stored<S, F> {
    async fn new(fixture: F) -> Self {
        Self { store: fixture.store().await, _fixture: fixture }
    }
}

impl<S: Backend + Jobs, F: Send + Sync> ProgressFixture for Stored<S, F> {
    type Progress = Progress<S>;

    fn progress(&self) -> Progress<S> {
        Progress::new(self.store.clone())
    }

    async fn announced(&self) -> Vec<Envelope> {
        let relay = RelayId::new("ear").unwrap();
        self.store.lease(&relay, std::time::Duration::from_mins(5)).await.unwrap();
        let rows = self.store.claim(&relay, Ask::everything(100_000)).await.unwrap();
        rows.into_iter().map(|row| row.envelope).collect()
    }
}

mod on_postgres {
    use super::super::postgres::Database;
    use super::Stored;

    postrider_testkit::progress_conformance!(async { Stored::new(Database::new().await).await });
}

mod on_sqlite {
    use super::super::sqlite::File;
    use super::Stored;

    postrider_testkit::progress_conformance!(async { Stored::new(File::new()).await });
}
