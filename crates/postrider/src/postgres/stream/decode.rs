//! pgoutput's messages as rows of the outbox. Pure.
//!
//! Columns are found by their names, so a table may have others beside ours, in any order, and gain some while we read:
//! PostgreSQL describes the table again before the next row of it. Bodies are not copied.
//!
//! A publication may have other tables than the outbox, if somebody added them: those are told of too, and are nothing to us. Above all
//! another outbox: its rows would be published twice, and ours at the same positions would be marked for them.

use std::borrow::Cow;
use std::collections::HashMap;

use bytes::{Buf as _, Bytes};
use jiff::Timestamp;

use super::super::replication::EPOCH;
use crate::envelope::{
    AggregateId, Attributes, Envelope, EventId, EventType, OrderingKey, Payload, Tenant, TenantId,
    TraceContext,
};
use crate::store::{LetterId, LogPosition, OutboxRow, RowId, read_head};
use crate::text::InvalidText;
use crate::topology::{ExchangeName, QueueName, RoutingKey};

/// The names of the columns that are read.
const NAMES: [&str; 27] = [
    "position",
    "created_at",
    "available_at",
    "status",
    "id",
    "group_id",
    "subsidiary_id",
    "aggregate_type",
    "aggregate_id",
    "event_type",
    "payload",
    "body",
    "content_type",
    "occurred_at",
    "ordering_key",
    "key",
    "causation_id",
    "correlation_id",
    "traceparent",
    "tracestate",
    "exchange",
    "routing_key",
    "target_queue",
    "attempts",
    "verbatim",
    "dead_letter_id",
    "headers",
];
const UUID: u32 = 2950;
const JSONB: u32 = 3802;

/// The columns that are read, in the order of [`NAMES`].
#[derive(Debug, Clone, Copy)]
enum Col {
    Position,
    CreatedAt,
    AvailableAt,
    Status,
    Id,
    GroupId,
    SubsidiaryId,
    AggregateType,
    AggregateId,
    EventType,
    Payload,
    Body,
    ContentType,
    OccurredAt,
    OrderingKey,
    Key,
    CausationId,
    CorrelationId,
    Traceparent,
    Tracestate,
    Exchange,
    RoutingKey,
    TargetQueue,
    Attempts,
    Verbatim,
    DeadLetterId,
    Headers,
}

/// What a message tells.
pub(super) enum Told {
    /// A new row that is due at once.
    Row(Box<OutboxRow>),
    /// A new row of this key that failed elsewhere, or is dead: it is found in the table, and the others of its key wait for it.
    Failing(OrderingKey),
    /// A new row, at this position, that cannot be read here.
    Unreadable(i64),
    /// A transaction is complete: everything before this was told.
    Committed(LogPosition),
    /// Nothing for a relay: no row, or one that has a time of its own, or was never to be published.
    Nothing,
}

/// Knows the outbox's columns.
pub(super) struct Decoder {
    schema: String,
    table: String,
    /// By the number that PostgreSQL gives a table. Those of the outbox alone: it has a new one when it is made anew.
    columns: HashMap<u32, Vec<Column>>,
}

/// Which of [`NAMES`] a column is, and its type.
struct Column {
    place: Option<usize>,
    kind: u32,
}

/// Why a row cannot be read.
#[derive(Debug, thiserror::Error)]
enum Unreadable {
    #[error("the column {} is missing or cannot be read", NAMES[*.0 as usize])]
    Column(Col),
    #[error(transparent)]
    Text(#[from] InvalidText),
    #[error("the headers of its message cannot be read: {0}")]
    Head(#[from] serde_json::Error),
    #[error("a message of the stream is cut short")]
    Short,
}

impl Decoder {
    /// Of the outbox of this name.
    pub(super) fn new(schema: &str, table: &str) -> Self {
        Self { schema: schema.to_owned(), table: table.to_owned(), columns: HashMap::new() }
    }

    /// Reads one message.
    pub(super) fn read(&mut self, mut message: Bytes) -> Told {
        match message.try_get_u8() {
            // Flags and the commit's own position, then where it ends.
            Ok(b'C') if message.len() >= 17 => Told::Committed(LogPosition(message.slice(9..).get_u64())),
            Ok(b'R') => {
                self.describe(message);
                Told::Nothing
            }
            Ok(b'I') => match self.row(message) {
                Ok(told) => told,
                Err((position, error)) => {
                    tracing::warn!(position, %error, "a row of the stream cannot be read; it is looked at in the table");
                    Told::Unreadable(position)
                }
            },
            _ => Told::Nothing,
        }
    }

    /// Takes in what a table is like, if it is the outbox.
    fn describe(&mut self, mut message: Bytes) {
        let Ok(number) = message.try_get_u32() else { return };
        self.columns.remove(&number);
        let (Some(schema), Some(table)) = (word(&mut message), word(&mut message)) else { return };
        if schema == self.schema.as_bytes() && table == self.table.as_bytes() {
            self.columns.insert(number, columns(message).unwrap_or_default());
        }
    }

    fn row(&self, mut message: Bytes) -> Result<Told, (i64, Unreadable)> {
        let number = message.try_get_u32().map_err(|_| (0, Unreadable::Short))?;
        let Some(columns) = self.columns.get(&number) else { return Ok(Told::Nothing) };
        let cells = cells(columns, message).map_err(|error| (0, error))?;
        let position = cells.number(Col::Position).map_err(|error| (0, error))?;
        Self::due_row(&cells, position).map_err(|error| (position, error))
    }

    fn due_row(cells: &Cells, position: i64) -> Result<Told, Unreadable> {
        let (created_at, available_at) = (cells.number(Col::CreatedAt)?, cells.number(Col::AvailableAt)?);
        // A time of its own, not one that the clock of its service made: see the claim of new rows.
        let scheduled = available_at > created_at;
        match cells.text(Col::Status)?.as_ref() {
            "pending" if !scheduled => {
                let row =
                    outbox_row(cells, RowId { position, created_at: time(created_at, Col::CreatedAt)? })?;
                Ok(Told::Row(Box::new(row)))
            }
            "failed" | "dead" => Ok(ordering_key(cells)?.map_or(Told::Nothing, Told::Failing)),
            _ => Ok(Told::Nothing),
        }
    }
}

/// The values of a new row of a table with these columns.
fn cells(columns: &[Column], mut message: Bytes) -> Result<Cells, Unreadable> {
    let short = |_| Unreadable::Short;
    let _new = message.try_get_u8().map_err(short)?;
    let count = usize::from(message.try_get_u16().map_err(short)?);
    let mut cells = Cells(std::array::from_fn(|_| None));
    for number in 0..count {
        let form = message.try_get_u8().map_err(short)?;
        if form != b't' && form != b'b' {
            continue;
        }
        let length = usize::try_from(message.try_get_u32().map_err(short)?).unwrap_or(usize::MAX);
        if message.len() < length {
            return Err(Unreadable::Short);
        }
        let bytes = message.split_to(length);
        if let Some(Column { place: Some(place), kind }) = columns.get(number) {
            cells.0[*place] = Some(Cell { bytes, kind: *kind, binary: form == b'b' });
        }
    }
    Ok(cells)
}

/// Reads the description of a table, after its name.
fn columns(mut message: Bytes) -> Option<Vec<Column>> {
    let _identity = message.try_get_u8().ok()?;
    let count = message.try_get_u16().ok()?;
    (0..count)
        .map(|_| {
            let _flags = message.try_get_u8().ok()?;
            let name = word(&mut message)?;
            let kind = message.try_get_u32().ok()?;
            let _modifier = message.try_get_u32().ok()?;
            let place = NAMES.iter().position(|known| known.as_bytes() == name.as_ref());
            Some(Column { place, kind })
        })
        .collect()
}

/// A text that ends with a zero.
fn word(message: &mut Bytes) -> Option<Bytes> {
    let end = message.iter().position(|byte| *byte == 0)?;
    let word = message.split_to(end);
    message.advance(1);
    Some(word)
}

/// A value; absent where it is NULL.
struct Cell {
    bytes: Bytes,
    kind: u32,
    binary: bool,
}

/// The values of a row, in the order of [`NAMES`].
struct Cells([Option<Cell>; NAMES.len()]);

impl Cells {
    fn get(&self, col: Col) -> Option<&Cell> {
        self.0[col as usize].as_ref()
    }

    /// A whole number of 4 or 8 bytes, or a time in microseconds.
    fn number(&self, col: Col) -> Result<i64, Unreadable> {
        self.maybe_number(col)?.ok_or(Unreadable::Column(col))
    }

    fn maybe_number(&self, col: Col) -> Result<Option<i64>, Unreadable> {
        let Some(Cell { bytes, binary: true, .. }) = self.get(col) else { return Ok(None) };
        let number = match bytes.len() {
            8 => bytes.as_ref().try_into().map(i64::from_be_bytes).ok(),
            4 => bytes.as_ref().try_into().map(i32::from_be_bytes).map(i64::from).ok(),
            _ => None,
        };
        number.map(Some).ok_or(Unreadable::Column(col))
    }

    fn text(&self, col: Col) -> Result<Cow<'_, str>, Unreadable> {
        self.maybe(col)?.ok_or(Unreadable::Column(col))
    }

    fn maybe(&self, col: Col) -> Result<Option<Cow<'_, str>>, Unreadable> {
        let Some(cell) = self.get(col) else { return Ok(None) };
        if cell.kind == UUID && cell.binary {
            let id = uuid::Uuid::from_slice(&cell.bytes).map_err(|_| Unreadable::Column(col))?;
            return Ok(Some(id.to_string().into()));
        }
        let text = std::str::from_utf8(&cell.bytes).map_err(|_| Unreadable::Column(col))?;
        Ok(Some(text.into()))
    }

    fn bytes(&self, col: Col) -> Result<Option<Bytes>, Unreadable> {
        match self.get(col) {
            None => Ok(None),
            // jsonb is its text after a byte for the version.
            Some(cell) if cell.kind == JSONB && cell.binary && !cell.bytes.is_empty() => {
                Ok(Some(cell.bytes.slice(1..)))
            }
            Some(cell) if cell.binary || cell.kind == JSONB => Ok(Some(cell.bytes.clone())),
            Some(_) => Err(Unreadable::Column(col)),
        }
    }
}

fn time(micros: i64, col: Col) -> Result<Timestamp, Unreadable> {
    let since_1970 = micros.checked_add(EPOCH).ok_or(Unreadable::Column(col))?;
    Timestamp::from_microsecond(since_1970).map_err(|_| Unreadable::Column(col))
}

/// A generated column is not told; an adopted table has the key in a plain one.
fn ordering_key(cells: &Cells) -> Result<Option<OrderingKey>, Unreadable> {
    match (cells.maybe(Col::Key)?, cells.maybe(Col::OrderingKey)?) {
        (Some(key), _) | (None, Some(key)) => {
            Ok(Some(key).filter(|key| !key.is_empty()).map(OrderingKey::new).transpose()?)
        }
        (None, None) => {
            let Some(id) = cells.maybe(Col::AggregateId)?.map(AggregateId::new).transpose()? else {
                return Ok(None);
            };
            let group = cells.maybe(Col::GroupId)?.map(TenantId::new).transpose()?;
            Ok(Some(OrderingKey::of_aggregate(group.as_ref(), &cells.text(Col::AggregateType)?, &id)))
        }
    }
}

fn outbox_row(cells: &Cells, row: RowId) -> Result<OutboxRow, Unreadable> {
    let body = match cells.bytes(Col::Body)? {
        Some(body) => body,
        None => cells.bytes(Col::Payload)?.ok_or(Unreadable::Column(Col::Payload))?,
    };
    let head = cells.bytes(Col::Verbatim)?;
    let tenant = Tenant {
        group: cells.maybe(Col::GroupId)?.map(TenantId::new).transpose()?,
        subsidiary: cells.maybe(Col::SubsidiaryId)?.map(TenantId::new).transpose()?,
    };
    let aggregate_type = cells.text(Col::AggregateType)?;
    let aggregate_id = cells.maybe(Col::AggregateId)?.map(AggregateId::new).transpose()?;
    let attempts = cells.maybe_number(Col::Attempts)?.unwrap_or(0);
    Ok(OutboxRow {
        row,
        slot: None,
        verbatim: head.map(|head| read_head(&head, body.clone())).transpose()?,
        dead_letter: cells.maybe_number(Col::DeadLetterId)?.map(LetterId),
        envelope: Envelope {
            id: EventId::new(cells.text(Col::Id)?)?,
            tenant,
            event_type: EventType::from_parts(&aggregate_type, &cells.text(Col::EventType)?)?,
            aggregate_id,
            payload: Payload::new(cells.text(Col::ContentType)?, body),
            occurred_at: time(cells.number(Col::OccurredAt)?, Col::OccurredAt)?,
            ordering_key: ordering_key(cells)?,
            causation_id: cells.maybe(Col::CausationId)?.map(EventId::new).transpose()?,
            correlation_id: cells.maybe(Col::CorrelationId)?.map(EventId::new).transpose()?,
            trace: TraceContext {
                traceparent: cells.maybe(Col::Traceparent)?.map(Cow::into_owned),
                tracestate: cells.maybe(Col::Tracestate)?.map(Cow::into_owned),
            },
            attributes: Attributes::from_json(cells.bytes(Col::Headers)?.as_deref()),
        },
        exchange: cells.maybe(Col::Exchange)?.map(ExchangeName::new).transpose()?,
        routing_key: cells.maybe(Col::RoutingKey)?.map(RoutingKey::new).transpose()?,
        target_queue: cells.maybe(Col::TargetQueue)?.map(QueueName::new).transpose()?,
        attempts: u32::try_from(attempts).unwrap_or(0),
    })
}

/// Reads messages, each after its length in two bytes, as one stream, and shows the events in them.
#[cfg(any(test, fuzzing))]
pub(crate) fn told_by_the_log(mut data: &[u8], show: impl Fn(&Envelope)) {
    let mut decoder = Decoder::new("postrider", "event_outbox");
    while let Some((length, rest)) = data.split_at_checked(2) {
        let length = usize::from(u16::from_be_bytes([length[0], length[1]])).min(rest.len());
        let (message, rest) = rest.split_at(length);
        if let Told::Row(row) = decoder.read(Bytes::copy_from_slice(message)) {
            show(&row.envelope);
        }
        data = rest;
    }
}
