//! The tables of what has been declared.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::sqlite::{SqlitePool, SqliteRow};
use sqlx::{Row as _, SqliteConnection};

use super::catalog::{Lacking, QueueId};
use crate::sqlite::from_sqlite;
use crate::store::{StoreError, StoreErrorKind};
use crate::text::InvalidText;
use crate::topology::{
    Binding, BindingKey, DeadLetterTarget, Exchange, ExchangeKind, ExchangeName, Queue, QueueKind, QueueName,
    RoutingKey, Topology,
};

/// Everything declared so far, with the numbers of the queues and the places they handed out last.
pub(super) struct Declared {
    pub(super) topology: Topology,
    pub(super) queues: Vec<(QueueId, i64)>,
}

/// Reads all of it.
pub(super) async fn read(readers: &SqlitePool) -> Result<Declared, StoreError> {
    let mut declared = Declared { topology: Topology::default(), queues: Vec::new() };
    let sql = "SELECT name, kind, alternate, policy FROM broker_exchange ORDER BY name";
    for row in sqlx::query(sql).fetch_all(readers).await.map_err(from_sqlite)? {
        declared.topology.exchanges.push(understood(&row, exchange)?);
    }
    let sql = "SELECT name, kind, message_ttl, dead_letter_exchange, dead_letter_key, single_active_consumer, id, \
               coalesce((SELECT max(seq) FROM broker_entry WHERE queue = broker_queue.id), 0), policy, arguments \
               FROM broker_queue ORDER BY id";
    for row in sqlx::query(sql).fetch_all(readers).await.map_err(from_sqlite)? {
        declared.topology.queues.push(understood(&row, queue)?);
        let (id, last) = (row.try_get(6).map_err(from_sqlite)?, row.try_get(7).map_err(from_sqlite)?);
        declared.queues.push((QueueId(id), last));
    }
    let sql = "SELECT b.exchange, q.name, b.key FROM broker_binding b JOIN broker_queue q ON q.id = b.queue";
    for row in sqlx::query(sql).fetch_all(readers).await.map_err(from_sqlite)? {
        declared.topology.bindings.push(understood(&row, binding)?);
    }
    Ok(declared)
}

/// Writes what is new and what is different; new queues get the given numbers.
pub(super) async fn write(
    conn: &mut SqliteConnection,
    lacking: &Lacking,
    numbers: &[QueueId],
) -> Result<(), StoreError> {
    add(conn, &lacking.added, numbers).await?;
    for (exchange, policy) in &lacking.exchange_policies {
        let query = sqlx::query("UPDATE broker_exchange SET policy = ? WHERE name = ?")
            .bind(to_json(policy))
            .bind(exchange.as_str());
        query.execute(&mut *conn).await.map_err(from_sqlite)?;
    }
    for (queue, policy) in &lacking.queue_policies {
        let query = sqlx::query("UPDATE broker_queue SET policy = ? WHERE name = ?")
            .bind(to_json(policy))
            .bind(queue.as_str());
        query.execute(&mut *conn).await.map_err(from_sqlite)?;
    }
    Ok(())
}

async fn add(conn: &mut SqliteConnection, added: &Topology, numbers: &[QueueId]) -> Result<(), StoreError> {
    for exchange in &added.exchanges {
        let query =
            sqlx::query("INSERT INTO broker_exchange (name, kind, alternate, policy) VALUES (?, ?, ?, ?)")
                .bind(exchange.name.as_str())
                .bind(exchange.kind.as_str())
                .bind(exchange.alternate.as_ref().map(ExchangeName::as_str))
                .bind(to_json(&exchange.policy));
        query.execute(&mut *conn).await.map_err(from_sqlite)?;
    }
    for (queue, number) in added.queues.iter().zip(numbers) {
        let target = queue.dead_letter.as_ref();
        let ttl = queue.message_ttl.map(|ttl| i64::try_from(ttl.as_micros()).unwrap_or(i64::MAX));
        let sql = "INSERT INTO broker_queue (id, name, kind, message_ttl, dead_letter_exchange, dead_letter_key, \
                   single_active_consumer, policy, arguments) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";
        let query = sqlx::query(sql)
            .bind(number.0)
            .bind(queue.name.as_str())
            .bind(queue.kind.as_str())
            .bind(ttl)
            .bind(target.map(|target| target.exchange.as_str()))
            .bind(target.and_then(|target| target.routing_key.as_ref()).map(RoutingKey::as_str))
            .bind(queue.single_active_consumer)
            .bind(to_json(&queue.policy))
            .bind(to_json(&queue.arguments));
        query.execute(&mut *conn).await.map_err(from_sqlite)?;
    }
    for binding in &added.bindings {
        let sql = "INSERT INTO broker_binding (exchange, queue, key) SELECT ?, id, ? FROM broker_queue WHERE name = ?";
        let query = sqlx::query(sql)
            .bind(binding.exchange.as_str())
            .bind(binding.key.as_str())
            .bind(binding.queue.as_str());
        query.execute(&mut *conn).await.map_err(from_sqlite)?;
    }
    Ok(())
}

/// Why a row could not be understood.
#[derive(Debug, thiserror::Error)]
enum Misread {
    #[error(transparent)]
    Row(#[from] sqlx::Error),
    #[error(transparent)]
    Name(#[from] InvalidText),
    #[error("it is of no known kind")]
    Kind,
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Nothing where there is nothing to keep.
fn to_json<T: Serialize + Default + PartialEq>(value: &T) -> Option<String> {
    if *value == T::default() { None } else { serde_json::to_string(value).ok() }
}

fn from_json<T: DeserializeOwned + Default>(row: &SqliteRow, column: usize) -> Result<T, Misread> {
    match row.try_get::<Option<&str>, _>(column)? {
        Some(text) => Ok(serde_json::from_str(text)?),
        None => Ok(T::default()),
    }
}

fn understood<T>(row: &SqliteRow, read: impl Fn(&SqliteRow) -> Result<T, Misread>) -> Result<T, StoreError> {
    read(row).map_err(|error| {
        let text = format!(
            "a declaration of the embedded broker cannot be read ({error}); nothing was changed: the file was damaged, or a \
             newer version wrote it"
        );
        StoreError::new(StoreErrorKind::Schema, text).because(error)
    })
}

fn exchange(row: &SqliteRow) -> Result<Exchange, Misread> {
    let kind = match row.try_get(1)? {
        "topic" => ExchangeKind::Topic,
        "fanout" => ExchangeKind::Fanout,
        "direct" => ExchangeKind::Direct,
        _ => return Err(Misread::Kind),
    };
    let alternate: Option<&str> = row.try_get(2)?;
    let name = ExchangeName::new(row.try_get::<&str, _>(0)?)?;
    Ok(Exchange {
        name,
        kind,
        alternate: alternate.map(ExchangeName::new).transpose()?,
        policy: from_json(row, 3)?,
    })
}

fn queue(row: &SqliteRow) -> Result<Queue, Misread> {
    let kind = match row.try_get(1)? {
        "quorum" => QueueKind::Quorum,
        "classic" => QueueKind::Classic,
        _ => return Err(Misread::Kind),
    };
    let ttl: Option<i64> = row.try_get(2)?;
    let (exchange, key): (Option<&str>, Option<&str>) = (row.try_get(3)?, row.try_get(4)?);
    let routing_key = key.map(RoutingKey::new).transpose()?;
    let exchange = exchange.map(ExchangeName::new).transpose()?;
    Ok(Queue {
        kind,
        message_ttl: ttl.map(|micros| Duration::from_micros(micros.unsigned_abs())),
        dead_letter: exchange.map(|exchange| DeadLetterTarget { exchange, routing_key }),
        single_active_consumer: row.try_get(5)?,
        policy: from_json(row, 8)?,
        arguments: from_json(row, 9)?,
        ..Queue::quorum(QueueName::new(row.try_get::<&str, _>(0)?)?)
    })
}

fn binding(row: &SqliteRow) -> Result<Binding, Misread> {
    Ok(Binding {
        exchange: ExchangeName::new(row.try_get::<&str, _>(0)?)?,
        queue: QueueName::new(row.try_get::<&str, _>(1)?)?,
        key: BindingKey::new(row.try_get::<&str, _>(2)?)?,
    })
}
