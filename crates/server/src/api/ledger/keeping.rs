//! Keeping the books over HTTP: accounts, rules, rates and periods, and the close of a year.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use jiff::civil::{Date, date};
use postrider::envelope::TenantId;
use postrider_ledger::account::{AccountChange, AccountCode};
use postrider_ledger::books::{Books, Receipt, RulesVersion};
use postrider_ledger::chart::{Book, DayRate};
use postrider_ledger::decimal::Decimal;
use postrider_ledger::money::Currency;
use postrider_ledger::period::{BackDated, Period, PeriodState, YEARS};
use postrider_ledger::rules::Rules;
use serde::{Deserialize, Serialize};

use super::{Desk, Whose, no_books};
use crate::api::front::{Path, Query};
use crate::api::problem::{Code, Problem};
use crate::api::subscriptions::read;
use crate::opening::{Opened, Opening};

fn invalid(told: impl Into<String>) -> Problem {
    Problem::new(Code::InvalidRequest, told)
}

/// The settings of a tenant's books.
pub(super) async fn book<B: Books>(
    State(ledger): Desk<B>,
    Path(tenant): Whose,
) -> Result<Json<Book>, Problem> {
    Ok(Json(ledger.books().book(&tenant).await?.ok_or_else(|| no_books(&tenant))?))
}

/// Opens the books of a tenant: 201, or 200 with those that it has already, which are left as they are.
pub(super) async fn open<B: Books>(
    State(ledger): Desk<B>,
    Path(tenant): Whose,
    body: Bytes,
) -> Result<(StatusCode, Json<Book>), Problem> {
    let opening: Opening = read(&body)?;
    let drawn = opening.draw_up(tenant).map_err(|error| invalid(error.to_string()))?;
    match drawn.open(&ledger).await? {
        Opened::Now => Ok((StatusCode::CREATED, Json(drawn.book))),
        Opened::Before(book) => Ok((StatusCode::OK, Json(book))),
        Opened::Otherwise(told) => Err(Problem::new(Code::Conflict, told)),
    }
}

/// Settings to change; what is absent stays, null takes away.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewBook {
    /// Those of the books, so that what was read can be sent back.
    tenant: Option<TenantId>,
    base_currency: Option<Currency>,
    #[serde(default)]
    rounding_account: Given<AccountCode>,
    #[serde(default)]
    retained_account: Given<AccountCode>,
    rate_source: Option<String>,
    back_dated: Option<BackDated>,
    #[serde(default)]
    max_entries: Given<u64>,
}

/// A setting that may be taken away: null is something that was given.
#[derive(Default)]
enum Given<T> {
    #[default]
    Nothing,
    This(Option<T>),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Given<T> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Option::deserialize(from).map(Self::This)
    }
}

impl<T> Given<T> {
    fn or(self, before: Option<T>) -> Option<T> {
        match self {
            Self::Nothing => before,
            Self::This(given) => given,
        }
    }
}

/// Changes settings from the next batch on. The base currency is fixed.
pub(super) async fn set_book<B: Books>(
    State(ledger): Desk<B>,
    Path(tenant): Whose,
    body: Bytes,
) -> Result<(StatusCode, Json<Book>), Problem> {
    let new: NewBook = read(&body)?;
    if new.tenant.as_ref().is_some_and(|named| *named != tenant) {
        return Err(invalid("the body names another tenant than the path"));
    }
    let book = ledger
        .change_book(&tenant, |book| Book {
            tenant: book.tenant,
            base_currency: new.base_currency.unwrap_or(book.base_currency),
            rounding_account: new.rounding_account.or(book.rounding_account),
            retained_account: new.retained_account.or(book.retained_account),
            rate_source: new.rate_source.unwrap_or(book.rate_source),
            back_dated: new.back_dated.unwrap_or(book.back_dated),
            max_entries: new.max_entries.or(book.max_entries),
        })
        .await?;
    Ok((StatusCode::CREATED, Json(book)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewAccounts {
    accounts: Vec<AccountChange>,
}

/// Adds accounts, or renames, opens and closes those that are there: what is absent stays.
pub(super) async fn set_accounts<B: Books>(
    State(ledger): Desk<B>,
    Path(tenant): Whose,
    body: Bytes,
) -> Result<(StatusCode, Json<super::Accounts>), Problem> {
    let NewAccounts { accounts } = read(&body)?;
    let accounts = ledger.change_accounts(&tenant, accounts).await?;
    Ok((StatusCode::CREATED, Json(super::Accounts { accounts })))
}

#[derive(Serialize)]
pub(super) struct RulesShown {
    version: u32,
    document: String,
}

/// Which version; the newest when absent.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Version {
    version: Option<u32>,
}

/// The rules that count now, or counted once.
pub(super) async fn rules<B: Books>(
    State(ledger): Desk<B>,
    Path(tenant): Whose,
    Query(Version { version }): Query<Version>,
) -> Result<Json<RulesShown>, Problem> {
    if let Some(version) = version {
        let found =
            ledger.books().rules_versions(&tenant).await?.into_iter().find(|one| one.version == version);
        let found = found.ok_or_else(|| {
            Problem::new(Code::NotFound, format!("there is no version {version} of the rules of {tenant}"))
        })?;
        return Ok(Json(RulesShown { version, document: found.document }));
    }
    let chart = ledger.books().read_chart(&tenant).await?.ok_or_else(|| no_books(&tenant))?;
    let (version, document) = (chart.rules.version(), chart.rules.document().to_owned());
    Ok(Json(RulesShown { version, document }))
}

#[derive(Serialize)]
pub(super) struct RulesVersions {
    versions: Vec<RulesVersion>,
}

/// Every version of the rules, oldest first.
pub(super) async fn rules_versions<B: Books>(
    State(ledger): Desk<B>,
    Path(tenant): Whose,
) -> Result<Json<RulesVersions>, Problem> {
    ledger.books().head(&tenant).await?.ok_or_else(|| no_books(&tenant))?;
    Ok(Json(RulesVersions { versions: ledger.books().rules_versions(&tenant).await? }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewRules {
    /// TOML, as `postrider ledger rules set` takes it.
    document: String,
    /// Check them, and change nothing. Under the other name for who wrote it before.
    #[serde(default, alias = "dryRun")]
    dry_run: bool,
}

/// Makes these the next version of the rules: 201. The same document again changes nothing: 200, as for a dry run.
pub(super) async fn set_rules<B: Books>(
    State(ledger): Desk<B>,
    Path(tenant): Whose,
    body: Bytes,
) -> Result<(StatusCode, Json<RulesShown>), Problem> {
    let NewRules { document, dry_run } = read(&body)?;
    let chart = ledger.books().read_chart(&tenant).await?.ok_or_else(|| no_books(&tenant))?;
    Rules::parse_new(0, &document).map_err(|error| invalid(error.to_string()))?;
    let version = chart.rules.version();
    if dry_run || document == chart.rules.document() {
        return Ok((StatusCode::OK, Json(RulesShown { version, document })));
    }
    let version = ledger.set_rules(&tenant, &document).await?;
    Ok((StatusCode::CREATED, Json(RulesShown { version, document })))
}

/// What one unit of a currency is worth in the base currency on a day.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RateShown {
    currency: Currency,
    rate: String,
    on: Date,
    /// Whose rate; that of the books when absent.
    #[serde(default)]
    source: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rates {
    rates: Vec<RateShown>,
}

/// The rates that count, by currency and day.
pub(super) async fn rates<B: Books>(
    State(ledger): Desk<B>,
    Path(tenant): Whose,
) -> Result<Json<Rates>, Problem> {
    let chart = ledger.books().read_chart(&tenant).await?.ok_or_else(|| no_books(&tenant))?;
    let shown = chart.rates().into_iter().map(|rate| RateShown {
        currency: rate.quote,
        rate: rate.rate.to_string(),
        on: rate.day,
        source: Some(rate.source),
    });
    Ok(Json(Rates { rates: shown.collect() }))
}

/// Adds rates, or mends those of the same day. Entries that used the old ones keep them.
pub(super) async fn set_rates<B: Books>(
    State(ledger): Desk<B>,
    Path(tenant): Whose,
    body: Bytes,
) -> Result<(StatusCode, Json<Rates>), Problem> {
    let new: Rates = read(&body)?;
    let chart = ledger.books().read_chart(&tenant).await?.ok_or_else(|| no_books(&tenant))?;
    let read = |new: &RateShown| {
        let rate: Decimal =
            new.rate.parse().map_err(|error| invalid(format!("the rate {:?} {error}", new.rate)))?;
        let source = new.source.clone().unwrap_or_else(|| chart.book.rate_source.clone());
        Ok(DayRate { source, base: chart.book.base_currency, quote: new.currency, day: new.on, rate })
    };
    let rates = new.rates.iter().map(read).collect::<Result<Vec<_>, Problem>>()?;
    ledger.set_rates(&tenant, &rates).await?;
    Ok((StatusCode::CREATED, Json(new)))
}

#[derive(Serialize)]
pub(super) struct Periods {
    periods: Vec<Period>,
}

/// The periods that somebody named; a day that none covers is open.
pub(super) async fn periods<B: Books>(
    State(ledger): Desk<B>,
    Path(tenant): Whose,
) -> Result<Json<Periods>, Problem> {
    let chart = ledger.books().read_chart(&tenant).await?.ok_or_else(|| no_books(&tenant))?;
    Ok(Json(Periods { periods: chart.periods }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewState {
    name: String,
    state: PeriodState,
}

#[derive(Serialize)]
pub(super) struct PeriodShown {
    #[serde(flatten)]
    period: Period,
    /// The entry that records it; absent where the period had that state already.
    sealed: Option<Receipt>,
}

/// Opens, closes or locks a period.
pub(super) async fn set_period<B: Books>(
    State(ledger): Desk<B>,
    Path(tenant): Whose,
    body: Bytes,
) -> Result<(StatusCode, Json<PeriodShown>), Problem> {
    let NewState { name, state } = read(&body)?;
    let period = Period::named(&name, state).ok_or_else(|| {
        invalid(format!(
            "{name:?} is no period; write a month (2026-03), a quarter (2026-Q1) or a year (2026), from {} to {}",
            YEARS.start(),
            YEARS.end()
        ))
    })?;
    let sealed = ledger.set_period(&tenant, &period).await?;
    Ok((StatusCode::CREATED, Json(PeriodShown { period, sealed })))
}

#[derive(Serialize)]
pub(super) struct Receipts {
    entries: Vec<Receipt>,
}

/// Carries income and expenses to retained earnings.
pub(super) async fn close_year<B: Books>(
    State(ledger): Desk<B>,
    Path((tenant, year)): Path<(TenantId, i16)>,
) -> Result<(StatusCode, Json<Receipts>), Problem> {
    if !(1900..=2999).contains(&year) {
        return Err(invalid(format!("{year} is not a year that books have")));
    }
    let entries = ledger.close_year(&tenant, date(year, 12, 31)).await?;
    Ok((StatusCode::CREATED, Json(Receipts { entries })))
}
