//! Entries that people post over HTTP: by hand, or about another entry. The same id again is the same entry.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use jiff::civil::Date;
use postrider::EventId;
use postrider_ledger::LedgerError;
use postrider_ledger::books::{Books, Receipt};
use postrider_ledger::correcting::Remark;
use postrider_ledger::import::{self, Imported};
use postrider_ledger::pipeline::{Answer, Arrival};
use serde::{Deserialize, Serialize};

use super::{Desk, Which, Whose};
use crate::api::Names;
use crate::api::front::Path;
use crate::api::problem::{Code, Problem};
use crate::api::subscriptions::{read, read_or_default};
use crate::entry_input::EntryInput;

/// 201 for a new entry, 200 for the one that was there under this id. What is there under the id that an `Idempotency-Key` gave it
/// is the same request's, done before: 201 again.
pub(super) async fn add<B: Books>(
    State(ledger): Desk<B>,
    Path(tenant): Whose,
    names: Names,
    body: Bytes,
) -> Result<(StatusCode, Json<Receipt>), Problem> {
    let mut new: EntryInput = read(&body)?;
    let repeated = if new.id.is_some() { StatusCode::OK } else { StatusCode::CREATED };
    new.id = new.id.or_else(|| names.event(0));
    let draft = new.draft(&ledger)?;
    match ledger.post(&tenant, &[Arrival::Draft(Box::new(draft))]).await?.pop() {
        Some(Answer::Posted(receipt)) => Ok((StatusCode::CREATED, Json(receipt))),
        Some(Answer::Duplicate(receipt)) => Ok((repeated, Json(receipt))),
        Some(Answer::Refused(refusal)) => Err(LedgerError::from(refusal).into()),
        None => Err(Problem::new(Code::Internal, "nothing was posted")),
    }
}

/// History as it was exported: JSON lines or CSV. What cannot be posted is named in the answer, which is 207 then, and the rest is posted.
pub(super) async fn import<B: Books>(
    State(ledger): Desk<B>,
    Path(tenant): Whose,
    body: Bytes,
) -> Result<(StatusCode, Json<Imported>), Problem> {
    // All of them are read before the first is posted, so that nothing is held across the posting.
    let entries = import::entries(std::io::Cursor::new(body));
    let entries: Vec<_> =
        entries.map_err(|error| Problem::new(Code::InvalidRequest, error.to_string()))?.collect();
    let mut import = ledger.import(&tenant).await?;
    for (line, entry) in entries {
        import.take(line, entry).await?;
    }
    let imported = import.finish().await?;
    let status = if imported.refused.is_empty() { StatusCode::CREATED } else { StatusCode::MULTI_STATUS };
    Ok((status, Json(imported)))
}

/// An entry that was wrong, and what it should have been.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Correction {
    /// The same id again is the same correction.
    id: Option<EventId>,
    /// The day of the reversal; that of the entry when absent.
    on: Option<Date>,
    description: Option<String>,
    entry: EntryInput,
}

#[derive(Serialize)]
pub(super) struct Corrected {
    reversal: Receipt,
    entry: Receipt,
}

/// Reverses an entry and posts what it should have been, both or neither.
pub(super) async fn correct<B: Books>(
    State(ledger): Desk<B>,
    Path((tenant, wrong)): Which,
    names: Names,
    body: Bytes,
) -> Result<(StatusCode, Json<Corrected>), Problem> {
    let Correction { id, on, description, entry } = read(&body)?;
    let id = id.or_else(|| names.event(0));
    let right = entry.correction(id.as_ref(), &ledger)?;
    let remark = Remark { key: id, on, description, ..Remark::default() };
    let (reversal, entry) = ledger.correct(&tenant, wrong, &remark, right).await?;
    Ok((StatusCode::CREATED, Json(Corrected { reversal, entry })))
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
