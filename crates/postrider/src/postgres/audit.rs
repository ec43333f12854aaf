//! Counting what a consumer should have, in one snapshot.

use sqlx::{Executor as _, PgConnection, Row as _};

use super::Postgres;
use crate::envelope::EventId;
use crate::store::{Audit, AuditScope, ConsumerCount, StoreError};
use crate::topology::{ExchangeName, RoutingKey};

/// The distinct ways rows are routed: few, so the topology is asked here, and the rows are counted there.
const ROUTES: &str = "SELECT DISTINCT COALESCE(exchange, $1), COALESCE(routing_key, aggregate_type || '.' || event_type) \
     FROM postrider.event_outbox WHERE target_queue IS NULL AND verbatim IS NULL";

/// Every event that reaches the queue, by the first of the places where it shows. A row that sends a message again is no event
/// of its own, but a place where one waits; unless the event is its own, edited and sent in the place of another. `$1` consumer, `$2` queue, `$3` the
/// exchange of rows that name none, `$4` and `$5` the routes that reach the queue.
macro_rules! placed {
    ($select:literal) => {
        concat!(
            "WITH placed AS ( \
                 SELECT o.id, o.position, CASE \
                     WHEN EXISTS (SELECT FROM postrider.event_inbox i \
                                  WHERE i.consumer_name = $1 AND i.event_id = o.id) THEN 'applied' \
                     WHEN o.status = 'dead' OR EXISTS (SELECT FROM postrider.dead_letter d \
                                  WHERE d.event_id = o.id AND d.queue = $2 AND d.status <> 'replayed') THEN 'dead' \
                     WHEN o.status <> 'published' OR EXISTS (SELECT FROM postrider.event_outbox again \
                                  WHERE again.event_id = o.id \
                                    AND (again.target_queue = $2 OR again.target_queue IS NULL) \
                                    AND again.status IN ('pending', 'failed')) THEN 'unpublished' \
                     WHEN EXISTS (SELECT FROM postrider.held_event h \
                                  WHERE h.consumer_name = $1 AND h.event_id = o.id) THEN 'held' \
                     ELSE 'elsewhere' END AS place \
                 FROM postrider.event_outbox o \
                 WHERE (o.verbatim IS NULL OR o.event_id = o.id) AND (o.target_queue = $2 OR (o.target_queue IS NULL AND \
                     (COALESCE(o.exchange, $3), COALESCE(o.routing_key, o.aggregate_type || '.' || o.event_type)) \
                     IN (SELECT * FROM UNNEST($4::text[], $5::text[])))) \
             ) ",
            $select
        )
    };
}

const COUNT: &str = placed!("SELECT place, count(*) FROM placed GROUP BY place");
const LIST: &str = placed!("SELECT id FROM placed WHERE place = 'elsewhere' ORDER BY position LIMIT $6");

impl Audit for Postgres {
    async fn count(&self, scope: &AuditScope) -> Result<ConsumerCount, StoreError> {
        self.limited("counting for the audit", async {
            let mut transaction = self.pool().begin().await?;
            transaction.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY").await?;
            let count = count(&mut transaction, scope).await?;
            transaction.commit().await?;
            Ok(count)
        })
        .await
    }
}

async fn count(connection: &mut PgConnection, scope: &AuditScope) -> Result<ConsumerCount, sqlx::Error> {
    let routes: Vec<(String, String)> =
        sqlx::query_as(ROUTES).bind(scope.exchange.as_str()).fetch_all(&mut *connection).await?;
    let (exchanges, keys): (Vec<_>, Vec<_>) =
        routes.into_iter().filter(|(exchange, key)| reaches(scope, exchange, key)).unzip();

    let rows = sqlx::query(COUNT)
        .bind(scope.consumer.as_str())
        .bind(scope.queue.as_str())
        .bind(scope.exchange.as_str())
        .bind(&exchanges)
        .bind(&keys)
        .fetch_all(&mut *connection)
        .await?;
    let mut count = ConsumerCount::default();
    for row in rows {
        let rows = u64::try_from(row.try_get::<i64, _>(1)?).unwrap_or(0);
        count.committed += rows;
        match row.try_get(0)? {
            "applied" => count.applied = rows,
            "dead" => count.dead = rows,
            "unpublished" => count.unpublished = rows,
            "held" => count.held = rows,
            _ => count.elsewhere = rows,
        }
    }
    if count.elsewhere > 0 && scope.list > 0 {
        let ids: Vec<String> = sqlx::query_scalar(LIST)
            .bind(scope.consumer.as_str())
            .bind(scope.queue.as_str())
            .bind(scope.exchange.as_str())
            .bind(&exchanges)
            .bind(&keys)
            .bind(i64::try_from(scope.list).unwrap_or(i64::MAX))
            .fetch_all(connection)
            .await?;
        count.elsewhere_ids = ids.into_iter().filter_map(|id| EventId::new(id).ok()).collect();
    }
    Ok(count)
}

fn reaches(scope: &AuditScope, exchange: &str, key: &str) -> bool {
    let (Ok(exchange), Ok(key)) = (ExchangeName::new(exchange), RoutingKey::new(key)) else { return false };
    scope.topology.route(&exchange, &key).contains(&&scope.queue)
}
