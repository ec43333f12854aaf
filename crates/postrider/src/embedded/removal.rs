//! Removing queues, exchanges and bindings.

use std::sync::Arc;

use sqlx::SqliteConnection;

use super::catalog::QueueId;
use super::state::{Shared, from_store};
use crate::broker::{BrokerError, BrokerErrorKind, Removal};
use crate::sqlite::from_sqlite;
use crate::store::StoreError;
use crate::topology::{Binding, QueueName};

/// Removes what is there, in one transaction. What was routed to a queue and not stored by then is not stored any more.
pub(super) async fn remove(shared: Arc<Shared>, removal: Removal) -> Result<(), BrokerError> {
    let _one_at_a_time = shared.declaring.lock().await;
    let found: Vec<(QueueName, QueueId)> = {
        let state = shared.open()?;
        for exchange in removal.exchanges.iter().filter(|_| removal.only_unused) {
            if let Some(other) = state.catalog.fed_beside(exchange, &removal.queues) {
                return Err(BrokerError::still_feeds(exchange.as_str(), Some(other.as_str())));
            }
        }
        removal.queues.iter().filter_map(|name| Some((name.clone(), state.catalog.id(name)?))).collect()
    };
    let place = shared.clone();
    let removed = shared.store.writer().run(move |conn| {
        Box::pin(async move {
            if removal.only_unused {
                for (name, id) in &found {
                    let messages = messages(conn, *id).await?;
                    let consumed = place.lock().queues.get(id).is_some_and(super::QueueState::is_consumed);
                    if messages > 0 || consumed {
                        return Ok(Err(in_use(name, messages, consumed)));
                    }
                }
            }
            for (_, id) in &found {
                delete_queue(conn, *id).await?;
            }
            for exchange in &removal.exchanges {
                for sql in [
                    "DELETE FROM broker_binding WHERE exchange = ?",
                    "DELETE FROM broker_exchange WHERE name = ?",
                ] {
                    sqlx::query(sql)
                        .bind(exchange.as_str())
                        .execute(&mut *conn)
                        .await
                        .map_err(from_sqlite)?;
                }
            }
            // Memory before the commit: nothing is placed in a queue whose rows are gone.
            let mut state = place.lock();
            state.catalog.forget(&removal.queues, &removal.exchanges);
            for (_, id) in &found {
                if let Some(queue) = state.queues.remove(id) {
                    queue.wake_all();
                }
            }
            Ok(Ok(()))
        })
    });
    removed.await.map_err(from_store)?
}

/// Takes bindings away, in one transaction.
pub(super) async fn unbind(shared: Arc<Shared>, bindings: Vec<Binding>) -> Result<(), BrokerError> {
    let _one_at_a_time = shared.declaring.lock().await;
    let found: Vec<(Binding, QueueId)> = {
        let state = shared.open()?;
        bindings
            .into_iter()
            .filter_map(|binding| Some((binding.clone(), state.catalog.id(&binding.queue)?)))
            .collect()
    };
    let place = shared.clone();
    let unbound = shared.store.writer().run(move |conn| {
        Box::pin(async move {
            for (binding, queue) in &found {
                let delete =
                    sqlx::query("DELETE FROM broker_binding WHERE exchange = ? AND queue = ? AND key = ?");
                let (exchange, key) = (binding.exchange.as_str(), binding.key.as_str());
                delete
                    .bind(exchange)
                    .bind(queue.0)
                    .bind(key)
                    .execute(&mut *conn)
                    .await
                    .map_err(from_sqlite)?;
            }
            place.lock().catalog.unbind(&found);
            Ok(())
        })
    });
    unbound.await.map_err(from_store)
}

async fn messages(conn: &mut SqliteConnection, queue: QueueId) -> Result<u64, StoreError> {
    let count = sqlx::query_scalar("SELECT count(*) FROM broker_entry WHERE queue = ?").bind(queue.0);
    let count: i64 = count.fetch_one(conn).await.map_err(from_sqlite)?;
    Ok(count.unsigned_abs())
}

async fn delete_queue(conn: &mut SqliteConnection, queue: QueueId) -> Result<(), StoreError> {
    for sql in [
        // Messages that are in no other queue.
        "DELETE FROM broker_message WHERE id IN (SELECT message FROM broker_entry WHERE queue = ?1) AND NOT EXISTS \
         (SELECT 1 FROM broker_entry e WHERE e.shared = 1 AND e.message = broker_message.id AND e.queue <> ?1)",
        "DELETE FROM broker_entry WHERE queue = ?1",
        "DELETE FROM broker_binding WHERE queue = ?1",
        "DELETE FROM broker_queue WHERE id = ?1",
    ] {
        sqlx::query(sql).bind(queue.0).execute(&mut *conn).await.map_err(from_sqlite)?;
    }
    Ok(())
}

fn in_use(queue: &QueueName, messages: u64, consumed: bool) -> BrokerError {
    let consumers = if consumed { "some" } else { "none" };
    let text = format!(
        "queue {queue:?} is in use (messages: {messages}, consumers: {consumers}); nothing was removed"
    );
    BrokerError::new(BrokerErrorKind::InUse, text)
}
