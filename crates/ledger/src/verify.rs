//! Verification: whether the books are what the ledger wrote.
//!
//! Every entry is hashed again and compared with what is stored and with the one before it; numbers have no gap; every entry
//! balances in each currency and in base; balances and totals by day are what the lines add up to; the head is the last entry;
//! every checkpoint is signed and stands for the entries it names. Runs of entries are checked side by side, because each needs of
//! the ones before only the stored hash. What is wrong is named.

mod run;
mod tally;

use std::collections::{BTreeMap, BTreeSet};

use postrider::envelope::TenantId;
use postrider::store::StoreError;
use serde::Serialize;
use tokio::task::JoinSet;

use crate::books::{Balance, Books, Head, Sums};
use crate::chain::Hash;
use crate::checkpoint::root;
use run::RunResult;
use tally::Key;

/// Entries in a run.
const RUN: u64 = 20_000;
/// How often balances are read again when entries are posted meanwhile.
const TRIES: usize = 5;

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
    /// Whether balances were compared: not when a run began after the first entry, nor when posting never paused.
    pub balances_compared: bool,
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
    /// Whether nothing is wrong.
    pub fn holds(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Verifies a tenant's books from an entry on (0: all of them), with so many runs side by side. Nothing if it keeps none.
pub async fn verify<B: Books>(
    books: &B,
    tenant: &TenantId,
    after: u64,
    side_by_side: usize,
) -> Result<Option<Verification>, StoreError> {
    let Some(mut head) = books.head(tenant).await? else { return Ok(None) };
    let mut total = RunResult::default();
    check_runs(books, tenant, after, head.number, side_by_side, &mut total).await;
    let mut balances = None;
    if after == 0 {
        for _ in 0..TRIES {
            let kept = books.balances(tenant).await?;
            let days = books.movements(tenant, None, None).await?;
            let Some(now) = books.head(tenant).await? else { break };
            if now.number == head.number {
                balances = Some((kept, days));
                break;
            }
            check_runs(books, tenant, head.number, now.number, side_by_side, &mut total).await;
            head = now;
        }
    }
    let balances_compared = balances.is_some();
    if let Some((kept, days)) = balances {
        total.end_promises();
        let differing = compare(&total, &kept, &days);
        total.problems.extend(differing);
    }
    check_head(&head, after, total.last, &mut total.problems);
    let checkpoints = check_checkpoints(books, tenant, after, &head, &mut total.problems).await?;
    total.problems.sort_by_key(|problem| problem.entry.unwrap_or(u64::MAX));
    Ok(Some(Verification {
        tenant: tenant.clone(),
        entries: total.entries,
        head: head.hash,
        checkpoints,
        balances_compared,
        problems: total.problems,
    }))
}

/// Checks the entries after one number up to another.
async fn check_runs<B: Books>(
    books: &B,
    tenant: &TenantId,
    after: u64,
    last: u64,
    side_by_side: usize,
    total: &mut RunResult,
) {
    let mut starts = (after..last).step_by(usize::try_from(RUN).unwrap_or(usize::MAX));
    let mut running = JoinSet::new();
    loop {
        while running.len() < side_by_side.max(1)
            && let Some(start) = starts.next()
        {
            let (books, tenant) = (books.clone(), tenant.clone());
            running.spawn(async move { run::check(&books, &tenant, start, last.min(start + RUN)).await });
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
    let found = last.unwrap_or((after, if after == 0 { Hash::ZERO } else { head.hash }));
    if found != (head.number, head.hash) {
        let text = format!(
            "the head of the chain says entry {} with hash {}, the last entry is {} with hash {}",
            head.number, head.hash, found.0, found.1
        );
        problems.push(Problem::new("head_differs", Some(head.number), text));
    }
}

/// Balances and totals by day against what the lines add up to.
fn compare(total: &RunResult, kept: &[Balance], days: &[Balance]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut differ = |what: &str, key: &Key, is: Option<&Sums>, should: Option<&Sums>| {
        let (is, should) = (is.copied().unwrap_or_default(), should.copied().unwrap_or_default());
        if is != should {
            let (account, currency) = key;
            let text =
                format!("the {what} of {account} in {currency} is {is:?}, its lines add up to {should:?}");
            problems.push(Problem::new("balance_differs", None, text));
        }
    };
    let by_key = |balances: &[Balance]| {
        let key = |balance: &Balance| (balance.account.to_string(), balance.currency.to_string());
        balances.iter().map(|balance| (key(balance), balance.sums)).collect::<BTreeMap<Key, Sums>>()
    };
    let (kept, days) = (by_key(kept), by_key(days));
    let keys: BTreeSet<Key> = kept.keys().chain(days.keys()).cloned().chain(total.tally.keys()).collect();
    for key in &keys {
        let should = total.tally.get(key);
        differ("balance", key, kept.get(key), should);
        let posted = should.map(|sums| Sums { pending_debits: 0, pending_credits: 0, ..*sums });
        differ("total of all days", key, days.get(key), posted.as_ref());
    }
    problems
}

async fn check_checkpoints<B: Books>(
    books: &B,
    tenant: &TenantId,
    after: u64,
    head: &Head,
    problems: &mut Vec<Problem>,
) -> Result<usize, StoreError> {
    let mut checked = 0;
    let mut next = 1;
    for checkpoint in books.checkpoints(tenant).await? {
        let name = format!("the checkpoint of entries {} to {}", checkpoint.first, checkpoint.last);
        if checkpoint.first != next {
            problems.push(Problem::new(
                "checkpoint_gap",
                Some(next),
                format!("{name} does not follow the one before"),
            ));
        }
        next = checkpoint.last + 1;
        if checkpoint.last <= after {
            continue;
        }
        checked += 1;
        if !checkpoint.is_signed(tenant) {
            problems.push(Problem::new(
                "checkpoint_unsigned",
                Some(checkpoint.last),
                format!("{name} has a wrong signature"),
            ));
        }
        if checkpoint.last > head.number {
            let text = format!("{name} names entries that are gone");
            problems.push(Problem::new("entries_missing", Some(checkpoint.last), text));
            continue;
        }
        let hashes = books.hashes(tenant, checkpoint.first, checkpoint.last).await?;
        if hashes.last() != Some(&checkpoint.head) || root(&hashes) != checkpoint.root {
            let text = format!("{name} stands for other entries than these");
            problems.push(Problem::new("checkpoint_differs", Some(checkpoint.last), text));
        }
    }
    Ok(checked)
}
