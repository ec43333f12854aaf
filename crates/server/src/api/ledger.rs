//! `/v1/ledger/{tenant}/…`: the books, read by viewers and written by operators. A token for one tenant sees that tenant's books alone.
//!
//! Amounts and the numbers of entries are texts. What the ledger refuses is a problem with the refusal's own code.

mod dated;
mod keeping;
mod leaving;
mod trying;
mod writing;

use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::{Extension, RawPathParams, Request, State};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use jiff::civil::Date;
use postrider::Clock;
use postrider::envelope::TenantId;
use postrider_ledger::account::Account;
use postrider_ledger::books::Books;
use postrider_ledger::refusal::Refusal;
use postrider_ledger::report::{Row, Statement, TrialBalance};
use postrider_ledger::verify::{Scope, Verification};
use postrider_ledger::{Ledger, LedgerError, journal_event};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Api;
use super::access::Caller;
use super::front::{Path, Query};
use super::problem::{Code, Problem};
use crate::config::Limits;

/// The most rows of a list.
const MOST: usize = 200;

/// What some routes need beside the books.
pub(crate) struct Means {
    /// How large an event may be.
    pub(crate) limits: Limits,
    /// The key that signs checkpoints.
    pub(crate) signing_key_file: PathBuf,
    pub(crate) clock: Clock,
}

type Desk<B> = State<Arc<Ledger<B>>>;
type Whose = Path<TenantId>;
type Which = Path<(TenantId, u64)>;

/// The routes.
pub(crate) fn routes<B: Books>(ledger: Ledger<B>, means: Means) -> Router<Api> {
    Router::new()
        .route("/ledger", get(tenants::<B>))
        .route("/ledger/{tenant}", get(keeping::book::<B>).post(keeping::set_book::<B>))
        .route("/ledger/{tenant}/open", post(keeping::open::<B>))
        .route("/ledger/{tenant}/accounts", get(accounts::<B>).post(keeping::set_accounts::<B>))
        .route("/ledger/{tenant}/accounts/{account}/statement", get(dated::statement::<B>))
        .route("/ledger/{tenant}/entries", get(entries::<B>).post(writing::add::<B>))
        .route("/ledger/{tenant}/entries/{entry}", get(entry::<B>))
        .route("/ledger/{tenant}/entries/{entry}/reversals", post(writing::reverse::<B>))
        .route("/ledger/{tenant}/entries/{entry}/corrections", post(writing::correct::<B>))
        .route("/ledger/{tenant}/entries/{entry}/settlements", post(writing::settle::<B>))
        .route("/ledger/{tenant}/entries/{entry}/voids", post(writing::void::<B>))
        .route("/ledger/{tenant}/entries/{entry}/proof", get(leaving::proof::<B>))
        .route("/ledger/{tenant}/rules", get(keeping::rules::<B>).post(keeping::set_rules::<B>))
        .route("/ledger/{tenant}/rules/versions", get(keeping::rules_versions::<B>))
        .route("/ledger/{tenant}/rates", get(keeping::rates::<B>).post(keeping::set_rates::<B>))
        .route("/ledger/{tenant}/periods", get(keeping::periods::<B>).post(keeping::set_period::<B>))
        .route("/ledger/{tenant}/years/{year}/close", post(keeping::close_year::<B>))
        .route("/ledger/{tenant}/checkpoints", get(leaving::checkpoints::<B>).post(trying::checkpoint::<B>))
        .route("/ledger/{tenant}/export", get(leaving::export::<B>))
        .route("/ledger/{tenant}/import", post(writing::import::<B>))
        .route("/ledger/{tenant}/balances", get(balances::<B>))
        .route("/ledger/{tenant}/trial-balance", get(trial_balance::<B>))
        .route("/ledger/{tenant}/balance-sheet", get(balance_sheet::<B>))
        .route("/ledger/{tenant}/income-statement", get(income_statement::<B>))
        .route("/ledger/{tenant}/verify", get(verified::<B>))
        .route("/ledger/{tenant}/totals", get(dated::totals::<B>))
        .route("/ledger/{tenant}/rules/check", post(trying::check_rules::<B>))
        .layer(Extension(Arc::new(means)))
        .route_layer(from_fn(keep_to_own_books))
        .with_state(Arc::new(ledger))
}

/// Keeps a token that is for one tenant out of the books of others.
async fn keep_to_own_books(params: RawPathParams, request: Request, next: Next) -> Result<Response, Problem> {
    let bound = request.extensions().get::<Caller>().and_then(|caller| caller.tenant.as_ref());
    let asked = params.iter().find(|(name, _)| *name == "tenant").map(|(_, tenant)| tenant);
    match (bound, asked) {
        (Some(bound), Some(asked)) if bound.as_str() != asked => {
            Err(Problem::new(Code::Forbidden, format!("the token is for the books of {bound} alone")))
        }
        _ => Ok(next.run(request).await),
    }
}

#[derive(Serialize)]
struct Tenants {
    tenants: Vec<TenantId>,
}

async fn tenants<B: Books>(
    State(ledger): Desk<B>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Tenants>, Problem> {
    let mut tenants = ledger.books().tenants().await?;
    tenants.retain(|tenant| caller.tenant.as_ref().is_none_or(|own| own == tenant));
    Ok(Json(Tenants { tenants }))
}

#[derive(Serialize)]
struct Accounts {
    accounts: Vec<Account>,
}

async fn accounts<B: Books>(State(ledger): Desk<B>, Path(tenant): Whose) -> Result<Json<Accounts>, Problem> {
    let chart = ledger.books().read_chart(&tenant).await?.ok_or_else(|| no_books(&tenant))?;
    let mut accounts: Vec<Account> = chart.accounts.into_values().collect();
    accounts.sort_by(|left, right| (left.kind, &left.code).cmp(&(right.kind, &right.code)));
    Ok(Json(Accounts { accounts }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PageOf {
    #[serde(default)]
    after: u64,
    limit: Option<usize>,
}

#[derive(Serialize)]
struct Entries {
    entries: Vec<Value>,
    /// Where the next page begins: the `after` to ask with; nothing on the last one.
    next: Option<String>,
}

async fn entries<B: Books>(
    State(ledger): Desk<B>,
    Path(tenant): Whose,
    Query(page): Query<PageOf>,
) -> Result<Json<Entries>, Problem> {
    let limit = page.limit.unwrap_or(MOST).clamp(1, MOST);
    let base = ledger.books().book(&tenant).await?.ok_or_else(|| no_books(&tenant))?.base_currency;
    let found = ledger.books().entries(&tenant, page.after, limit).await?;
    let next = found.last().filter(|_| found.len() == limit).map(|last| last.number.to_string());
    Ok(Json(Entries {
        entries: found.iter().map(|entry| journal_event::payload(entry, base)).collect(),
        next,
    }))
}

async fn entry<B: Books>(
    State(ledger): Desk<B>,
    Path((tenant, number)): Which,
) -> Result<Json<Value>, Problem> {
    let base = ledger.books().book(&tenant).await?.ok_or_else(|| no_books(&tenant))?.base_currency;
    let found = ledger.books().entries(&tenant, number.saturating_sub(1), 1).await?;
    let found = found.first().filter(|entry| entry.number == number);
    let shown = found.map(|entry| journal_event::payload(entry, base));
    shown.map(Json).ok_or_else(|| LedgerError::from(Refusal::UnknownEntry(number)).into())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct At {
    at: Option<Date>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FromTo {
    from: Option<Date>,
    to: Option<Date>,
}

#[derive(Serialize)]
struct Balances {
    balances: Vec<Row>,
}

async fn balances<B: Books>(
    State(ledger): Desk<B>,
    Path(tenant): Whose,
    Query(At { at }): Query<At>,
) -> Result<Json<Balances>, Problem> {
    Ok(Json(Balances { balances: ledger.trial_balance(&tenant, at).await?.rows }))
}

async fn trial_balance<B: Books>(
    State(ledger): Desk<B>,
    Path(tenant): Whose,
    Query(At { at }): Query<At>,
) -> Result<Json<TrialBalance>, Problem> {
    Ok(Json(ledger.trial_balance(&tenant, at).await?))
}

async fn balance_sheet<B: Books>(
    State(ledger): Desk<B>,
    Path(tenant): Whose,
    Query(At { at }): Query<At>,
) -> Result<Json<Statement>, Problem> {
    Ok(Json(ledger.balance_sheet(&tenant, at).await?))
}

async fn income_statement<B: Books>(
    State(ledger): Desk<B>,
    Path(tenant): Whose,
    Query(FromTo { from, to }): Query<FromTo>,
) -> Result<Json<Statement>, Problem> {
    dated::in_order(from, to)?;
    Ok(Json(ledger.income_statement(&tenant, from, to).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct After {
    #[serde(default)]
    after: u64,
}

#[derive(Serialize)]
struct Verified {
    holds: bool,
    #[serde(flatten)]
    found: Verification,
}

/// Books that take longer than a request may are for `postrider ledger verify`, or for pieces of them: `after`.
async fn verified<B: Books>(
    State(ledger): Desk<B>,
    Path(tenant): Whose,
    Query(After { after }): Query<After>,
) -> Result<Json<Verified>, Problem> {
    let scope = Scope { after, side_by_side: 1, ..Scope::default() };
    let found = ledger.verify(&tenant, scope).await?.ok_or_else(|| no_books(&tenant))?;
    Ok(Json(Verified { holds: found.holds(), found }))
}

fn no_books(tenant: &TenantId) -> Problem {
    LedgerError::from(Refusal::UnknownTenant(tenant.to_string())).into()
}

impl From<LedgerError> for Problem {
    fn from(error: LedgerError) -> Self {
        let (told, word) = (error.to_string(), error.code());
        match error {
            LedgerError::Store(error) => error.into(),
            LedgerError::Invalid(_) => Self::new(Code::InvalidRequest, told),
            LedgerError::Refused(refusal) => {
                let kind = match refusal {
                    Refusal::UnknownTenant(_) | Refusal::UnknownEntry(_) => Code::NotFound,
                    Refusal::Conflict { .. }
                    | Refusal::AlreadyReversed { .. }
                    | Refusal::AlreadyResolved { .. } => Code::Conflict,
                    // Ours, and not the caller's: an answer that is not kept under his Idempotency-Key.
                    Refusal::Panicked(_) => Code::Internal,
                    _ => Code::InvalidRequest,
                };
                Self::new(kind, told).named(word)
            }
        }
    }
}
