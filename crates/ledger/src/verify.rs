//! Verification: whether the books are what the ledger wrote.
//!
//! Every entry is hashed again and compared with what is stored and with the one before it; numbers have no gap; every entry
//! balances in each currency and in base; every balance and the total of every day are what the lines add up to; the head is the
//! last entry, and nothing is stored beyond it; lines are numbered from 1 on; every period is what its newest seal says, and no
//! entry lies behind the seal of a closed one; the base currency is the one by which entries were made; the accounts that had
//! entries by the newest seal are of the types, sides and currencies they had then; every checkpoint is signed, by one of the keys
//! that were named, and stands for the entries it names. Runs of entries are checked side by side, of one tenant and of several,
//! because each needs of the ones before only the stored hash. What is wrong is named. What the chain does not vouch for
//! ([`NOT_COVERED`]) is said, too.

mod anchors;
mod base_currency;
mod bounds;
mod run;
mod seals;
mod sums;
mod tally;

use std::ops::Range;
use std::sync::Arc;

use futures_util::{StreamExt as _, TryStreamExt as _};
use jiff::civil::Date;
use postrider::envelope::TenantId;
use postrider::store::{StoreError, StoreErrorKind};
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::books::{Balance, Books, Days, Head};
use crate::chain::Hash;
use crate::chart::Chart;
use crate::checkpoint::PublicKey;
use anchors::Anchors;
use run::RunResult;

/// Entries in a run.
const RUN: u64 = 20_000;
/// How often balances are read again when entries are posted meanwhile.
const TRIES: usize = 5;

/// Tables and columns that people change as they like, and of which no entry says what they were: a change past the ledger is not found.
/// Whatever an entry took from them is in the entry.
pub const NOT_COVERED: &[&str] = &[
    "ledger_account.name",
    "ledger_account.active",
    "ledger_account.opens_children",
    "ledger_rate",
    "ledger_rules",
    "ledger_book.settings",
];

/// How much of the books is verified, and by which keys.
#[derive(Debug, Clone)]
pub struct Scope {
    /// Only entries after this number; 0: all of them. Balances are compared only then.
    pub after: u64,
    /// Runs of entries that are checked side by side.
    pub side_by_side: usize,
    /// Entries in a run.
    pub run: u64,
    /// Whose checkpoints count. Empty: anybody's, and then who can write to the database can sign them anew.
    pub keys: Vec<PublicKey>,
}

impl Scope {
    /// One for each run that may be checked at a time.
    fn turns(&self) -> Arc<Semaphore> {
        Arc::new(Semaphore::new(self.side_by_side.clamp(1, Semaphore::MAX_PERMITS)))
    }
}

impl Default for Scope {
    fn default() -> Self {
        Self { after: 0, side_by_side: 2, run: RUN, keys: Vec::new() }
    }
}

/// What verification found.
#[derive(Debug, Clone, Serialize)]
pub struct Verification {
    /// Whose books.
    pub tenant: TenantId,
    /// Entries that were checked.
    #[serde(serialize_with = "crate::books::as_text")]
    pub entries: u64,
    /// The hash of the last of them.
    pub head: Hash,
    /// Checkpoints that were checked.
    pub checkpoints: usize,
    /// Who signed them.
    pub signed_by: Vec<PublicKey>,
    /// Whether those keys were compared with keys from outside of the database.
    pub key_pinned: bool,
    /// Entries at the end that no checkpoint stands for: those since the newest one, or more where somebody deleted it.
    #[serde(serialize_with = "crate::books::as_text")]
    pub unsigned_entries: u64,
    /// The first of them.
    #[serde(serialize_with = "crate::books::as_maybe_text")]
    pub unsigned_from: Option<u64>,
    /// Whether balances were compared: not when a run began after the first entry, nor when posting never paused, nor when an entry could not
    /// be read.
    pub balances_compared: bool,
    /// The seal that tells of the accounts that had entries by then; absent where none does, or where they were not compared.
    #[serde(serialize_with = "crate::books::as_maybe_text")]
    pub accounts_sealed_by: Option<u64>,
    /// What nothing in the chain tells of.
    pub not_covered: &'static [&'static str],
    /// Everything that is wrong.
    pub problems: Vec<Problem>,
}

/// Something that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// A stable word for what kind it is.
    pub code: &'static str,
    /// The entry it is about, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "crate::books::as_maybe_text")]
    pub entry: Option<u64>,
    /// In words.
    pub text: String,
}

impl Problem {
    fn new(code: &'static str, entry: Option<u64>, text: impl Into<String>) -> Self {
        Self { code, entry, text: text.into() }
    }
}

impl Verification {
    /// Of somebody who has something left of books, and not the row that all else hangs on.
    fn without_books(tenant: TenantId, scope: &Scope) -> Self {
        let text = format!("{tenant} has accounts, or is listed as who keeps books, and has none");
        Self::of_nothing(tenant, scope, vec![Problem::new("book_missing", None, text)])
    }

    /// Of books of which nothing could be checked.
    fn of_nothing(tenant: TenantId, scope: &Scope, problems: Vec<Problem>) -> Self {
        Self {
            tenant,
            entries: 0,
            head: Hash::ZERO,
            checkpoints: 0,
            signed_by: Vec::new(),
            key_pinned: !scope.keys.is_empty(),
            unsigned_entries: 0,
            unsigned_from: None,
            balances_compared: false,
            accounts_sealed_by: None,
            not_covered: NOT_COVERED,
            problems,
        }
    }

    /// Whether nothing is wrong.
    pub fn holds(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Verifies a tenant's books. Nothing if it keeps none.
pub async fn verify<B: Books>(
    books: &B,
    tenant: &TenantId,
    scope: &Scope,
) -> Result<Option<Verification>, StoreError> {
    in_turn(books, tenant, scope, &scope.turns()).await
}

/// Verifies the books of many tenants, in their order, with no more runs side by side than of one: small books have one run each, and
/// would leave all cores but one with nothing to do. Of as many tenants at a time there are sums in memory.
pub async fn verify_all<B: Books>(
    books: &B,
    tenants: &[TenantId],
    scope: &Scope,
) -> Result<Vec<Option<Verification>>, StoreError> {
    let turns = scope.turns();
    // A list of futures, because a stream would have to hold for any lifetime of what they borrow.
    let all: Vec<_> = tenants.iter().map(|tenant| in_turn(books, tenant, scope, &turns)).collect();
    futures_util::stream::iter(all).buffered(scope.side_by_side.max(1)).try_collect().await
}

/// Verifies the books of everybody who keeps some here, or has something left of them: who is not listed any more is named.
pub async fn verify_everybody<B: Books>(books: &B, scope: &Scope) -> Result<Vec<Verification>, StoreError> {
    let traces = books.traces().await?;
    let listed = books.tenants().await?;
    let mut found = Vec::with_capacity(traces.len());
    for (verified, tenant) in verify_all(books, &traces, scope).await?.into_iter().zip(traces) {
        let is_listed = listed.contains(&tenant);
        let mut verified = verified.unwrap_or_else(|| Verification::without_books(tenant, scope));
        // Books that were opened since the list was read are on the next one.
        if !is_listed && verified.holds() && !books.tenants().await?.contains(&verified.tenant) {
            let text = format!("{} keeps books and is not among those who do", verified.tenant);
            verified.problems.push(Problem::new("tenant_missing", None, text));
        }
        found.push(verified);
    }
    Ok(found)
}

async fn in_turn<B: Books>(
    books: &B,
    tenant: &TenantId,
    scope: &Scope,
    turns: &Arc<Semaphore>,
) -> Result<Option<Verification>, StoreError> {
    let mut total = RunResult::default();
    let mut head = match readable(books.head(tenant).await, &mut total.problems)? {
        None => return Ok(Some(Verification::of_nothing(tenant.clone(), scope, total.problems))),
        Some(None) => return Ok(None),
        Some(Some(head)) => head,
    };
    check_runs(books, tenant, scope.after..head.number, (scope, turns), &mut total).await;
    let mut beside = None;
    if scope.after == 0 && !total.is_unread {
        for _ in 0..TRIES {
            let read = readable(read_beside(books, tenant).await, &mut total.problems)?;
            let Some((now, read)) = read.flatten() else { break };
            if now.number == head.number {
                beside = Some(read);
                break;
            }
            check_runs(books, tenant, head.number..now.number, (scope, turns), &mut total).await;
            head = now;
        }
    }
    let beside = beside.filter(|_| !total.is_unread);
    let balances_compared = beside.is_some();
    let mut accounts_sealed_by = None;
    if let Some((balances, days, chart)) = beside {
        total.end_promises();
        let differing = sums::compare(&total.tally, &balances, &days);
        total.problems.extend(differing);
        total.seals.check(&chart.periods, &mut total.problems);
        base_currency::check(
            chart.book.base_currency.code(),
            total.seals.base(),
            &total.tally,
            &mut total.problems,
        );
        accounts_sealed_by = total.seals.check_accounts(&chart.accounts, &total.tally, &mut total.problems);
    }
    if !total.is_unread {
        check_head(&head, scope.after, total.last, &mut total.problems);
    }
    if let Some(stored) = readable(books.bounds(tenant).await, &mut total.problems)?.flatten() {
        bounds::check(&stored, &mut total.problems);
    }
    let anchors =
        anchors::check(books, tenant, scope, (&head, total.seals.signed()), &mut total.problems).await;
    let anchors = readable(anchors, &mut total.problems)?;
    let anchors = anchors.unwrap_or_else(|| Anchors { unsigned_from: 1, ..Anchors::default() });
    let unsigned_entries = (head.number + 1).saturating_sub(anchors.unsigned_from);
    total.problems.sort_by_key(|problem| problem.entry.unwrap_or(u64::MAX));
    Ok(Some(Verification {
        tenant: tenant.clone(),
        entries: total.entries,
        head: head.hash,
        checkpoints: anchors.checked,
        signed_by: anchors.signed_by.into_iter().collect(),
        key_pinned: !scope.keys.is_empty(),
        unsigned_entries,
        unsigned_from: (unsigned_entries > 0).then_some(anchors.unsigned_from),
        balances_compared,
        accounts_sealed_by,
        not_covered: NOT_COVERED,
        problems: total.problems,
    }))
}

/// What is kept beside the entries.
type Beside = (Vec<Balance>, Vec<(Date, Balance)>, Chart);

/// What is kept beside the entries, and where the chain stood after all of it was read. Nothing if there are no books any more.
async fn read_beside<B: Books>(books: &B, tenant: &TenantId) -> Result<Option<(Head, Beside)>, StoreError> {
    let balances = books.balances(tenant).await?;
    let days = books.days(tenant, &Days::default()).await?;
    let Some(chart) = books.read_chart(tenant).await? else { return Ok(None) };
    Ok(books.head(tenant).await?.map(|head| (head, (balances, days, chart))))
}

/// What somebody made unreadable is a problem of these books, and no reason to leave those of others unverified.
fn readable<T>(read: Result<T, StoreError>, problems: &mut Vec<Problem>) -> Result<Option<T>, StoreError> {
    match read {
        // The database refuses to calculate with what is there, such as a day that is infinite: nobody asked for anything else.
        Err(error)
            if matches!(
                error.kind,
                StoreErrorKind::Other | StoreErrorKind::Invalid | StoreErrorKind::OutOfRange
            ) =>
        {
            problems.push(Problem::new(
                "unreadable",
                None,
                format!("what is stored cannot be read: {error}"),
            ));
            Ok(None)
        }
        read => read.map(Some),
    }
}

/// Checks the entries after one number up to another.
async fn check_runs<B: Books>(
    books: &B,
    tenant: &TenantId,
    numbers: Range<u64>,
    (scope, turns): (&Scope, &Arc<Semaphore>),
    total: &mut RunResult,
) {
    let (run, last) = (scope.run.max(1), numbers.end);
    let mut starts = numbers.step_by(usize::try_from(run).unwrap_or(usize::MAX));
    let mut running = JoinSet::new();
    loop {
        while running.len() < scope.side_by_side.max(1)
            && let Some(start) = starts.next()
        {
            let (books, tenant, turns) = (books.clone(), tenant.clone(), turns.clone());
            running.spawn(async move {
                // Nobody closes it.
                let _turn = turns.acquire().await;
                run::check(&books, &tenant, start, last.min(start + run)).await
            });
        }
        match running.join_next().await {
            None => return,
            Some(Ok(result)) => total.add(result),
            Some(Err(error)) => {
                total.problems.push(Problem::new(
                    "not_checked",
                    None,
                    format!("a run could not be checked: {error}"),
                ));
            }
        }
    }
}

fn check_head(head: &Head, after: u64, last: Option<(u64, Hash)>, problems: &mut Vec<Problem>) {
    if after > head.number {
        let text = format!(
            "the chain ends with entry {}: there is no entry {after} to go on from, or it is gone",
            head.number
        );
        problems.push(Problem::new("head_differs", Some(head.number), text));
        return;
    }
    let found = last.unwrap_or((after, if after == 0 { Hash::ZERO } else { head.hash }));
    if found != (head.number, head.hash) {
        let text = format!(
            "the head of the chain says entry {} with hash {}, the last entry is {} with hash {}",
            head.number, head.hash, found.0, found.1
        );
        problems.push(Problem::new("head_differs", Some(head.number), text));
    }
}
