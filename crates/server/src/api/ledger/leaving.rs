//! What leaves the books over HTTP: the whole journal as a file, checkpoints, and proofs that an entry is in one.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use postrider::envelope::TenantId;
use postrider::store::StoreError;
use postrider_ledger::books::Books;
use postrider_ledger::chart::Chart;
use postrider_ledger::checkpoint::Checkpoint;
use postrider_ledger::export::{Exporter, Format};
use postrider_ledger::refusal::Refusal;
use postrider_ledger::{Ledger, LedgerError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Desk, Which, Whose, no_books};
use crate::api::front::{Path, Query};
use crate::api::problem::{Code, Problem};

/// Entries read at a time.
const PAGE: usize = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct As {
    #[serde(default)]
    format: Program,
}

/// Who reads it.
#[derive(Default, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Program {
    Csv,
    #[default]
    Jsonl,
    Hledger,
    Beancount,
}

impl Program {
    fn format(self) -> (Format, &'static str) {
        match self {
            Self::Csv => (Format::Csv, "text/csv; charset=utf-8"),
            Self::Jsonl => (Format::Jsonl, "application/jsonl"),
            Self::Hledger => (Format::Hledger, "text/plain; charset=utf-8"),
            Self::Beancount => (Format::Beancount, "text/plain; charset=utf-8"),
        }
    }
}

/// On the way through the journal.
struct Way<B> {
    ledger: Arc<Ledger<B>>,
    tenant: TenantId,
    chart: Chart,
    exporter: Exporter,
    /// The last entry of the file. Later ones may be on accounts that the chart does not have.
    newest: u64,
    /// The last entry that was sent; nothing before the head of the file.
    after: Option<u64>,
}

impl<B: Books> Way<B> {
    /// The next piece of the file; nothing at its end.
    async fn next(&mut self) -> Result<Option<String>, StoreError> {
        let Some(after) = self.after else {
            self.after = Some(0);
            return Ok(Some(self.exporter.head()));
        };
        let most = usize::try_from(self.newest.saturating_sub(after)).unwrap_or(PAGE).min(PAGE);
        if most == 0 {
            return Ok(None);
        }
        let entries = self.ledger.books().entries(&self.tenant, after, most).await?;
        let Some(last) = entries.last() else { return Ok(None) };
        self.after = Some(last.number);
        Ok(Some(entries.iter().map(|entry| self.exporter.entry(entry, &self.chart)).collect()))
    }
}

/// The journal, page by page as it is read. When the database fails on the way the answer ends without its last chunk, so nobody takes
/// half of it for the whole.
pub(super) async fn export<B: Books>(
    State(ledger): Desk<B>,
    Path(tenant): Whose,
    Query(As { format }): Query<As>,
) -> Result<Response, Problem> {
    // Before the chart, so that it has every account of these entries.
    let newest = ledger.books().head(&tenant).await?.ok_or_else(|| no_books(&tenant))?.number;
    let chart = ledger.books().read_chart(&tenant).await?.ok_or_else(|| no_books(&tenant))?;
    let (format, kind) = format.format();
    let exporter = Exporter::new(format, &chart);
    let way = Way { ledger, tenant, chart, exporter, newest, after: None };
    let pieces = stream::try_unfold(way, |mut way| async move {
        Ok::<_, StoreError>(way.next().await?.map(|piece| (Bytes::from(piece), way)))
    });
    Ok(([(header::CONTENT_TYPE, kind)], Body::from_stream(pieces)).into_response())
}

#[derive(Serialize)]
pub(super) struct Checkpoints {
    checkpoints: Vec<Checkpoint>,
}

/// The signed roots, oldest first.
pub(super) async fn checkpoints<B: Books>(
    State(ledger): Desk<B>,
    Path(tenant): Whose,
) -> Result<Json<Checkpoints>, Problem> {
    ledger.books().head(&tenant).await?.ok_or_else(|| no_books(&tenant))?;
    Ok(Json(Checkpoints { checkpoints: ledger.books().checkpoints(&tenant).await? }))
}

/// That an entry is in a checkpoint.
pub(super) async fn proof<B: Books>(
    State(ledger): Desk<B>,
    Path((tenant, entry)): Which,
) -> Result<Json<Value>, Problem> {
    let head = ledger.books().head(&tenant).await?.ok_or_else(|| no_books(&tenant))?;
    if !(1..=head.number).contains(&entry) {
        return Err(LedgerError::from(Refusal::UnknownEntry(entry)).into());
    }
    let proven = ledger.prove(&tenant, entry).await?.ok_or_else(|| {
        let told = format!("no checkpoint has entry {entry} yet; `postrider ledger checkpoint` makes one");
        Problem::new(Code::NotFound, told).named("not_in_a_checkpoint")
    })?;
    Ok(Json(proven.document(&tenant, entry)))
}
