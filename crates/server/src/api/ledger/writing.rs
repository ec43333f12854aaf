//! Entries that people post over HTTP: by hand, or about another entry. The same id again is the same entry.

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use jiff::civil::Date;
use postrider::EventId;
use postrider_ledger::LedgerError;
use postrider_ledger::account::{AccountCode, Side};
use postrider_ledger::books::{Books, Receipt};
use postrider_ledger::correcting::Remark;
use postrider_ledger::decimal::Decimal;
use postrider_ledger::entry::{Draft, DraftLine, EntryKind};
use postrider_ledger::money::Currency;
use postrider_ledger::pipeline::{Answer, Arrival};
use serde::{Deserialize, Serialize};

use super::{Desk, Which, Whose};
use crate::api::Names;
use crate::api::front::Path;
use crate::api::problem::{Code, Problem};
use crate::api::subscriptions::{read, read_or_default};

/// An entry that somebody writes by hand.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct NewEntry {
    /// The same id again is the same entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<EventId>,
    effective_on: Date,
    #[serde(default)]
    description: String,
    #[serde(default)]
    metadata: BTreeMap<String, String>,
    /// Amounts that are promised, to be settled or voided later.
    #[serde(default)]
    pending: bool,
    lines: Vec<NewLine>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewLine {
    account: AccountCode,
    side: Side,
    amount: String,
    currency: Currency,
}

impl NewLine {
    fn draft(self) -> Result<DraftLine, Problem> {
        let Self { account, side, amount, currency } = self;
        let exact: Decimal = amount
            .parse()
            .map_err(|error| Problem::new(Code::InvalidRequest, format!("the amount {amount:?} {error}")))?;
        let amount = currency.minor(exact).map_err(LedgerError::from)?;
        Ok(DraftLine { account, side, amount, currency, base: None })
    }
}

/// 201 for a new entry, 200 for the one that was there under this id. What is there under the id that an `Idempotency-Key` gave it
/// is the same request's, done before: 201 again.
pub(super) async fn add<B: Books>(
    State(ledger): Desk<B>,
    Path(tenant): Whose,
    names: Names,
    body: Bytes,
) -> Result<(StatusCode, Json<Receipt>), Problem> {
    let mut new: NewEntry = read(&body)?;
    let given = new.id.take();
    let repeated = if given.is_some() { StatusCode::OK } else { StatusCode::CREATED };
    let told =
        serde_json::to_string(&new).map_err(|error| Problem::new(Code::InvalidRequest, error.to_string()))?;
    let draft = Draft {
        source: ledger.by_hand(given.or_else(|| names.event(0)), &told),
        kind: if new.pending { EntryKind::Pending } else { EntryKind::Posted },
        effective_on: new.effective_on,
        description: new.description,
        metadata: new.metadata,
        refers_to: None,
        lines: new.lines.into_iter().map(NewLine::draft).collect::<Result<_, _>>()?,
    };
    match ledger.post(&tenant, &[Arrival::Draft(Box::new(draft))]).await?.pop() {
        Some(Answer::Posted(receipt)) => Ok((StatusCode::CREATED, Json(receipt))),
        Some(Answer::Duplicate(receipt)) => Ok((repeated, Json(receipt))),
        Some(Answer::Refused(refusal)) => Err(LedgerError::from(refusal).into()),
        None => Err(Problem::new(Code::Internal, "nothing was posted")),
    }
}

/// What somebody says about an entry.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct About {
    /// The same id again is the same entry.
    id: Option<EventId>,
    on: Option<Date>,
    description: Option<String>,
}

impl About {
    fn read(body: &[u8], names: &Names) -> Result<Remark, Problem> {
        let Self { id, on, description } = read_or_default(body)?;
        let key = id.or_else(|| names.event(0));
        Ok(Remark { key, on, description, ..Remark::default() })
    }
}

type Posted = Result<(StatusCode, Json<Receipt>), Problem>;

pub(super) async fn reverse<B: Books>(
    State(ledger): Desk<B>,
    Path((tenant, entry)): Which,
    names: Names,
    body: Bytes,
) -> Posted {
    let receipt = ledger.reverse(&tenant, entry, &About::read(&body, &names)?).await?;
    Ok((StatusCode::CREATED, Json(receipt)))
}

pub(super) async fn settle<B: Books>(
    State(ledger): Desk<B>,
    Path((tenant, entry)): Which,
    names: Names,
    body: Bytes,
) -> Posted {
    let receipt = ledger.settle(&tenant, entry, &About::read(&body, &names)?).await?;
    Ok((StatusCode::CREATED, Json(receipt)))
}

pub(super) async fn void<B: Books>(
    State(ledger): Desk<B>,
    Path((tenant, entry)): Which,
    names: Names,
    body: Bytes,
) -> Posted {
    let receipt = ledger.void(&tenant, entry, &About::read(&body, &names)?).await?;
    Ok((StatusCode::CREATED, Json(receipt)))
}
