//! The ledger at work: batches in, entries out, one transaction each.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use postrider::envelope::TenantId;
use postrider::store::{StoreError, StoreErrorKind};
use postrider::topology::ExchangeName;
use postrider::{Clock, EventId};

use crate::account::AccountCode;
use crate::books::{Books, Head};
use crate::chart::Chart;
use crate::checkpoint::PublicKey;
use crate::journal_event;
use crate::pipeline::{self, Answer, Arrival, Outcome, Prepared, Standing};
use crate::refusal::Refusal;
use crate::verify::{Scope, Verification, verify, verify_all, verify_everybody};

/// Lines in one transaction, or those of one entry: a database takes as long as they are many, and has a limit for that.
pub(crate) const LINES: usize = 10_000;

/// A ledger on a database. Cheap to clone.
pub struct Ledger<B> {
    pub(crate) books: B,
    pub(crate) clock: Clock,
    /// Where journal events go; nowhere when absent.
    pub(crate) announce: Option<ExchangeName>,
    /// Whose checkpoints count; anybody's when empty.
    pub(crate) trusted: Arc<[PublicKey]>,
    charts: Arc<Mutex<HashMap<TenantId, Cached>>>,
    /// Everything is done, and nothing is kept of it.
    rehearsing: bool,
}

/// A chart as of a version of the books. Good as long as the locked books have the same version.
#[derive(Clone)]
struct Cached {
    version: u64,
    chart: Arc<Chart>,
    /// Children that we opened since; others may have opened more, which does no harm.
    opened: Arc<HashSet<AccountCode>>,
}

impl<B: Books> Ledger<B> {
    /// A ledger that tells nobody of its entries.
    pub fn new(books: B, clock: Clock) -> Self {
        Self {
            books,
            clock,
            announce: None,
            trusted: Arc::default(),
            charts: Arc::default(),
            rehearsing: false,
        }
    }

    /// Takes checkpoints for good that are signed with one of these keys, and no others.
    #[must_use]
    pub fn trusting(mut self, keys: impl IntoIterator<Item = PublicKey>) -> Self {
        self.trusted = keys.into_iter().collect();
        self
    }

    /// Tells of every entry with `fis.journal.posted` or `fis.journal.reverted` on this exchange, through the outbox, in the
    /// commit that posts it.
    #[must_use]
    pub fn announcing(mut self, exchange: ExchangeName) -> Self {
        self.announce = Some(exchange);
        self
    }

    /// The same ledger, which does everything and then takes it back: whatever would be refused is refused, with the same words, and what
    /// would be written is told. Checkpoints alone are made for good.
    #[must_use]
    pub fn rehearsing(&self) -> Self {
        // Charts of its own, because accounts that it opens are none.
        Self { charts: Arc::default(), rehearsing: true, ..self.clone() }
    }

    /// Commits a transaction, unless all is a rehearsal.
    pub(crate) async fn end(&self, tx: B::Tx) -> Result<(), StoreError> {
        if self.rehearsing { self.books.rollback(tx).await } else { self.books.commit(tx).await }
    }

    /// The books.
    pub fn books(&self) -> &B {
        &self.books
    }

    /// Verifies a tenant's books, by the keys that are trusted and those that the scope names. Nothing if it keeps none.
    pub async fn verify(
        &self,
        tenant: &TenantId,
        mut scope: Scope,
    ) -> Result<Option<Verification>, StoreError> {
        scope.keys.extend(self.trusted.iter());
        verify(&self.books, tenant, &scope).await
    }

    /// The same of many tenants, side by side and in their order.
    pub async fn verify_all(
        &self,
        tenants: &[TenantId],
        mut scope: Scope,
    ) -> Result<Vec<Option<Verification>>, StoreError> {
        scope.keys.extend(self.trusted.iter());
        verify_all(&self.books, tenants, &scope).await
    }

    /// The same of everybody who keeps books here, or has something left of them.
    pub async fn verify_everybody(&self, mut scope: Scope) -> Result<Vec<Verification>, StoreError> {
        scope.keys.extend(self.trusted.iter());
        verify_everybody(&self.books, &scope).await
    }

    /// Posts a tenant's batch, and says of each arrival what became of it, in their order.
    ///
    /// All of it is one transaction; where its entries have more than 10,000 lines it is several, one after the other. After an error nothing
    /// was posted, or everything, or of several transactions the first ones; posting the same batch again tells, because what was posted is a
    /// duplicate then.
    pub async fn post(&self, tenant: &TenantId, arrivals: &[Arrival]) -> Result<Vec<Answer>, StoreError> {
        self.post_prepared(tenant, arrivals, &mut []).await
    }

    /// Takes an arrival through the steps that need no lock. Nothing where the chart was not read yet: it can be posted all the same.
    pub fn prepare(&self, tenant: &TenantId, arrival: &Arrival) -> Option<Prepared> {
        let (version, chart) =
            self.charts().get(tenant).map(|cached| (cached.version, cached.chart.clone()))?;
        Some(Prepared::new(arrival, &chart, version))
    }

    /// Posts a batch like [`Self::post`], with what was prepared for its arrivals.
    pub async fn post_prepared(
        &self,
        tenant: &TenantId,
        arrivals: &[Arrival],
        prepared: &mut [Option<Prepared>],
    ) -> Result<Vec<Answer>, StoreError> {
        let mut answers = Vec::with_capacity(arrivals.len());
        while answers.len() < arrivals.len() {
            let left = &arrivals[answers.len()..];
            let prepared = prepared.get_mut(answers.len()..).unwrap_or_default();
            match self.post_together(tenant, left, prepared).await {
                Ok(posted) => answers.extend(posted),
                Err(error) if error.kind == StoreErrorKind::OutOfRange => {
                    tracing::warn!(%tenant, %error, "a batch was refused by the database; posting its events one by one");
                    for arrival in left {
                        answers.extend(self.post_alone(tenant, arrival).await?);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(answers)
    }

    async fn post_alone(&self, tenant: &TenantId, arrival: &Arrival) -> Result<Vec<Answer>, StoreError> {
        match self.post_together(tenant, std::slice::from_ref(arrival), &mut []).await {
            Err(error) if error.kind == StoreErrorKind::OutOfRange => Ok(vec![overflowed(&error)]),
            answers => answers,
        }
    }

    /// The first of these at least, and as many more as one transaction takes.
    async fn post_together(
        &self,
        tenant: &TenantId,
        arrivals: &[Arrival],
        prepared: &mut [Option<Prepared>],
    ) -> Result<Vec<Answer>, StoreError> {
        if arrivals.is_empty() {
            return Ok(Vec::new());
        }
        let mut tx = self.books.begin().await?;
        let Some(head) = self.books.lock(&mut tx, tenant).await? else {
            let refusal = Refusal::UnknownTenant(tenant.to_string());
            return Ok(vec![Answer::Refused(refusal); arrivals.len()]);
        };
        let outcome = self.post_ready(&mut tx, tenant, head, arrivals, (prepared, LINES)).await?;
        let opened: Vec<AccountCode> =
            outcome.page.opened.iter().map(|account| account.code.clone()).collect();
        if outcome.page.entries.is_empty() {
            self.books.rollback(tx).await?;
        } else {
            self.end(tx).await?;
        }
        self.remember(tenant, head.version, opened);
        Ok(outcome.answers)
    }

    /// What a batch would come to if it were posted now. Nothing is. Where the database refuses all of it for a sum that leaves its range, each
    /// arrival is asked for behind those before it that were taken.
    pub async fn rehearse(&self, tenant: &TenantId, arrivals: &[Arrival]) -> Result<Vec<Answer>, StoreError> {
        match self.rehearse_together(tenant, arrivals).await {
            Err(error) if error.kind == StoreErrorKind::OutOfRange => {}
            answers => return answers,
        }
        let (mut taken, mut answers) =
            (Vec::with_capacity(arrivals.len()), Vec::with_capacity(arrivals.len()));
        for arrival in arrivals {
            taken.push(arrival.clone());
            match self.rehearse_together(tenant, &taken).await {
                Err(error) if error.kind == StoreErrorKind::OutOfRange => {
                    taken.pop();
                    answers.push(overflowed(&error));
                }
                all => answers.extend(all?.pop()),
            }
        }
        Ok(answers)
    }

    async fn rehearse_together(
        &self,
        tenant: &TenantId,
        arrivals: &[Arrival],
    ) -> Result<Vec<Answer>, StoreError> {
        let mut tx = self.books.begin().await?;
        let Some(head) = self.books.lock(&mut tx, tenant).await? else {
            return Ok(vec![Answer::Refused(Refusal::UnknownTenant(tenant.to_string())); arrivals.len()]);
        };
        let outcome = self.post_locked(&mut tx, tenant, head, arrivals).await?;
        self.books.rollback(tx).await?;
        Ok(outcome.answers)
    }

    /// Takes a batch through the pipeline and writes it, in a transaction that has the books locked.
    pub(crate) async fn post_locked(
        &self,
        tx: &mut B::Tx,
        tenant: &TenantId,
        head: Head,
        arrivals: &[Arrival],
    ) -> Result<Outcome, StoreError> {
        self.post_ready(tx, tenant, head, arrivals, (&mut [], usize::MAX)).await
    }

    async fn post_ready(
        &self,
        tx: &mut B::Tx,
        tenant: &TenantId,
        head: Head,
        arrivals: &[Arrival],
        prepared: (&mut [Option<Prepared>], usize),
    ) -> Result<Outcome, StoreError> {
        let cached = self.chart(tx, tenant, head.version).await?;
        let ids: Vec<EventId> = arrivals.iter().map(|arrival| arrival.id().0.clone()).collect();
        let known = self.books.known(tx, tenant, &ids).await?;
        let numbers = references(arrivals);
        let referred =
            if numbers.is_empty() { Vec::new() } else { self.books.referred(tx, tenant, &numbers).await? };
        let standing = Standing {
            chart: &cached.chart,
            head,
            opened: &cached.opened,
            known: &known,
            referred: &referred,
        };
        let outcome = pipeline::run_prepared(tenant, arrivals, prepared, &standing, self.clock.now());
        if !outcome.page.entries.is_empty() {
            let events = self.announce.clone().map(|exchange| {
                let (page, base) = (outcome.page.clone(), cached.chart.book.base_currency);
                // Elsewhere, because meanwhile the database has the entries to write.
                tokio::spawn(async move { journal_event::of_page(&page, base, &exchange) })
            });
            self.books
                .write(tx, tenant, &outcome.page)
                .await
                .map_err(|error| not_the_input(tenant, error))?;
            if let Some(events) = events {
                let events = events.await.map_err(|error| {
                    StoreError::new(StoreErrorKind::Other, format!("the entries cannot be told of: {error}"))
                })?;
                self.books.append(tx, events).await?;
            }
        }
        Ok(outcome)
    }

    async fn chart(&self, tx: &mut B::Tx, tenant: &TenantId, version: u64) -> Result<Cached, StoreError> {
        let cached = self.charts().get(tenant).filter(|cached| cached.version == version).cloned();
        if let Some(cached) = cached {
            return Ok(cached);
        }
        let chart = Arc::new(self.books.chart(tx, tenant).await?);
        let cached = Cached { version, chart, opened: Arc::default() };
        self.charts().insert(tenant.clone(), cached.clone());
        Ok(cached)
    }

    /// After the commit: these accounts need not be opened again.
    fn remember(&self, tenant: &TenantId, version: u64, opened: Vec<AccountCode>) {
        if opened.is_empty() {
            return;
        }
        if let Some(cached) = self.charts().get_mut(tenant).filter(|cached| cached.version == version) {
            Arc::make_mut(&mut cached.opened).extend(opened);
        }
    }

    fn charts(&self) -> std::sync::MutexGuard<'_, HashMap<TenantId, Cached>> {
        self.charts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: Clone> Clone for Ledger<B> {
    fn clone(&self) -> Self {
        Self {
            books: self.books.clone(),
            clock: self.clock.clone(),
            announce: self.announce.clone(),
            trusted: self.trusted.clone(),
            charts: self.charts.clone(),
            rehearsing: self.rehearsing,
        }
    }
}

fn references(arrivals: &[Arrival]) -> Vec<u64> {
    let mut numbers: Vec<u64> = arrivals
        .iter()
        .filter_map(|arrival| match arrival {
            Arrival::Draft(draft) => draft.refers_to,
            Arrival::Event { .. } => None,
        })
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// An entry with which a sum would leave its range: the one thing that only the database can tell.
fn overflowed(error: &StoreError) -> Answer {
    tracing::warn!(%error, "the database refused an entry");
    Answer::Refused(Refusal::BalanceOverflow)
}

/// Entries were checked before they are written: a rule that they break is broken by what somebody else wrote, such as an entry beyond the
/// head of the chain. No event is to blame, so none is refused for it.
fn not_the_input(tenant: &TenantId, error: StoreError) -> StoreError {
    if error.kind != StoreErrorKind::Invalid {
        return error;
    }
    let text = format!(
        "the tables of {tenant}'s books refuse an entry that is right ({error}): something else than the ledger wrote to them. Nothing \
         was posted; see `postrider ledger verify`"
    );
    StoreError { kind: StoreErrorKind::Other, message: text, source: error.source }
}
