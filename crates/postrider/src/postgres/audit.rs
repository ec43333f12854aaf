//! Counting what a consumer should have, in one snapshot of a database.

use sqlx::{Executor as _, PgConnection, Row as _};

use super::Postgres;
use super::letters::sent_elsewhere;
use super::table::{OutboxTable, Statement};
use crate::envelope::EventId;
use crate::store::{Audit, AuditScope, CommittedEvent, CommittedRow, ConsumerCount, Place, StoreError};

/// The distinct ways rows are routed: few, so the topology is asked here, and the rows are counted there.
const ROUTES: &str = "SELECT DISTINCT COALESCE(exchange, $1), COALESCE(routing_key, {key}) \
     FROM {outbox} WHERE target_queue IS NULL AND verbatim IS NULL";

/// The events that reach the queue. A row that sends a message again is no event of its own, unless the event is its own, edited and
/// sent in the place of another. `$1` queue, `$2` the exchange of rows that name none, `$3` and `$4` the routes that reach the
/// queue.
const REACHING: &str = "FROM {outbox} o \
     WHERE o.position <= {until} AND (o.verbatim IS NULL OR o.event_id = o.id::text) AND (o.target_queue = $1 OR (o.target_queue IS NULL AND \
         (COALESCE(o.exchange, $2), COALESCE(o.routing_key, {key})) IN (SELECT * FROM UNNEST($3::text[], $4::text[]))))";

/// Each by the first of the places where it shows. A row that sends a message again is a place where its event waits, in whatever
/// outbox of the database; dead letters go through the default one. `$5` consumer, `$6` its inbox, `$7` since when its queue is bound.
const PLACED: &str = "WITH placed AS ( \
         SELECT o.id::text AS id, o.position, CASE \
             WHEN EXISTS (SELECT FROM postrider.event_inbox i \
                          WHERE i.consumer_name = $6 AND i.event_id = o.id::text) THEN 'applied' \
             WHEN o.status = 'dead' OR EXISTS (SELECT FROM postrider.dead_letter d \
                          WHERE d.event_id = o.id::text AND d.queue = $1 AND (d.status <> 'replayed' OR {elsewhere})) THEN 'dead' \
             WHEN o.status <> 'published' {again} THEN 'unpublished' \
             WHEN EXISTS (SELECT FROM postrider.held_event h \
                          WHERE h.consumer_name = $5 AND h.event_id = o.id::text) THEN 'held' \
             WHEN o.published_at < $7::timestamptz THEN 'early' ELSE 'elsewhere' END AS place \
         {reaching} \
     ) ";

const AGAIN: &str = "OR EXISTS (SELECT FROM {again_in} again WHERE again.event_id = {id} \
         AND (again.target_queue = $1 OR again.target_queue IS NULL) AND again.status IN ('pending', 'failed'))";

const COUNT: &str = "{placed} SELECT place, count(*) FROM placed GROUP BY place";
const LIST: &str = "{placed} SELECT id FROM placed WHERE place = 'elsewhere' ORDER BY position LIMIT $8";

/// What the outbox alone says, a page at a time.
const COMMITTED: &str = "SELECT o.id::text, o.group_id::text, o.position, CASE \
         WHEN o.status = 'dead' THEN 'dead' WHEN o.status <> 'published' {again} THEN 'unpublished' \
         WHEN o.published_at < $7::timestamptz THEN 'early' ELSE 'elsewhere' END \
     {reaching} AND o.position > $5 ORDER BY o.position LIMIT $6";

/// What all but their outbox say of events. `$1` queue, `$2` consumer, `$3` the events, `$4` its inbox. OFFSET 0 makes each a probe of its own: all that
/// a consumer has would be read for a few events, while the statistics do not know the consumer.
const PLACES: &str = "SELECT CASE \
         WHEN EXISTS (SELECT FROM postrider.event_inbox i WHERE i.consumer_name = $4 AND i.event_id = e.id OFFSET 0) \
             THEN 'applied' \
         WHEN EXISTS (SELECT FROM postrider.dead_letter d \
                      WHERE d.event_id = e.id AND d.queue = $1 AND (d.status <> 'replayed' OR {elsewhere})) THEN 'dead' \
         WHEN false {again} THEN 'unpublished' \
         WHEN EXISTS (SELECT FROM postrider.held_event h \
                      WHERE h.event_id = e.id AND h.consumer_name || '' = $2 OFFSET 0) THEN 'held' \
         ELSE 'elsewhere' END \
     FROM UNNEST($3::text[]) WITH ORDINALITY AS e (id, nr) ORDER BY nr";

/// Compiling these statements would take a hundred times as long as running them.
const ONE_MOMENT: &str = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET LOCAL jit = off";

impl Audit for Postgres {
    async fn count(&self, scope: &AuditScope) -> Result<ConsumerCount, StoreError> {
        self.limited("counting for the audit", async {
            let mut transaction = self.transaction("BEGIN").await?;
            transaction.execute(ONE_MOMENT).await?;
            let count = self.count_in(&mut transaction, scope).await?;
            transaction.commit().await?;
            Ok(count)
        })
        .await
    }

    async fn last_position(&self) -> Result<i64, StoreError> {
        let last = self.table.statement("SELECT COALESCE(max(position), 0) FROM {outbox}");
        let last = sqlx::query_scalar(last.sql()).fetch_one(self.pool());
        self.limited("reading the last position of the outbox", last).await
    }

    async fn committed_to(
        &self,
        scope: &AuditScope,
        after: i64,
        limit: usize,
    ) -> Result<Vec<CommittedEvent>, StoreError> {
        let rows = self.limited("reading what was committed, for the audit", async {
            let mut connection = self.pool().acquire().await?;
            let (exchanges, keys) = self.routes(&mut connection, scope).await?;
            sqlx::query_as::<_, CommittedRow>(self.audited(COMMITTED, scope).sql())
                .bind(scope.queue.as_str())
                .bind(scope.exchange.as_str())
                .bind(exchanges)
                .bind(keys)
                .bind(after)
                .bind(i64::try_from(limit).unwrap_or(i64::MAX))
                .bind(scope.since.map(jiff_sqlx::ToSqlx::to_sqlx))
                .fetch_all(&mut *connection)
                .await
        });
        rows.await?.into_iter().map(CommittedEvent::read).collect()
    }

    async fn places_of(&self, scope: &AuditScope, events: &[EventId]) -> Result<Vec<Place>, StoreError> {
        let ids: Vec<&str> = events.iter().map(EventId::as_str).collect();
        let statement =
            self.audited(&PLACES.replace("{again}", &again("e.id", &OutboxTable::default())), scope);
        let places = sqlx::query_scalar::<_, String>(statement.sql())
            .bind(scope.queue.as_str())
            .bind(scope.consumer.as_str())
            .bind(ids)
            .bind(scope.inbox.as_str())
            .fetch_all(self.pool());
        let places = self.limited("looking for events, for the audit", places).await?;
        Ok(places.iter().map(|place| Place::from_word(place)).collect())
    }
}

impl Postgres {
    /// A statement over this outbox, whose rows are routed as the scope says.
    fn audited(&self, template: &str, scope: &AuditScope) -> Statement {
        let mut places = again("o.id::text", &self.table);
        if *self.table != OutboxTable::default() {
            places = format!("{places} {}", again("o.id::text", &OutboxTable::default()));
        }
        let usual = "aggregate_type || '.' || event_type".to_owned();
        let key = scope.routing_key.as_ref().map_or(usual, crate::topology::KeyTemplate::sql);
        let filled = template
            .replace("{placed}", PLACED)
            .replace("{reaching}", REACHING)
            .replace("{again}", &places)
            .replace("{elsewhere}", sent_elsewhere!())
            .replace("{until}", &scope.until.to_string())
            .replace("{key}", &format!("({key})"));
        self.table.statement(&filled)
    }

    /// The routes of rows that reach the queue: their exchanges and keys.
    async fn routes(
        &self,
        connection: &mut PgConnection,
        scope: &AuditScope,
    ) -> Result<(Vec<String>, Vec<String>), sqlx::Error> {
        let routes: Vec<(String, String)> = sqlx::query_as(self.audited(ROUTES, scope).sql())
            .bind(scope.exchange.as_str())
            .fetch_all(connection)
            .await?;
        Ok(routes.into_iter().filter(|(exchange, key)| scope.is_reached_by(exchange, key)).unzip())
    }

    async fn count_in(
        &self,
        connection: &mut PgConnection,
        scope: &AuditScope,
    ) -> Result<ConsumerCount, sqlx::Error> {
        let (exchanges, keys) = self.routes(connection, scope).await?;
        let rows = sqlx::query(self.audited(COUNT, scope).sql())
            .bind(scope.queue.as_str())
            .bind(scope.exchange.as_str())
            .bind(&exchanges)
            .bind(&keys)
            .bind(scope.consumer.as_str())
            .bind(scope.inbox.as_str())
            .bind(scope.since.map(jiff_sqlx::ToSqlx::to_sqlx))
            .fetch_all(&mut *connection)
            .await?;
        let mut count = ConsumerCount::default();
        for row in rows {
            count.add(Place::from_word(row.try_get(0)?), row.try_get::<i64, _>(1)?.unsigned_abs());
        }
        if count.elsewhere > 0 && scope.list > 0 {
            let ids: Vec<String> = sqlx::query_scalar(self.audited(LIST, scope).sql())
                .bind(scope.queue.as_str())
                .bind(scope.exchange.as_str())
                .bind(&exchanges)
                .bind(&keys)
                .bind(scope.consumer.as_str())
                .bind(scope.inbox.as_str())
                .bind(scope.since.map(jiff_sqlx::ToSqlx::to_sqlx))
                .bind(i64::try_from(scope.list).unwrap_or(i64::MAX))
                .fetch_all(connection)
                .await?;
            count.elsewhere_ids = ids.into_iter().filter_map(|id| EventId::new(id).ok()).collect();
        }
        Ok(count)
    }
}

/// Whether a message with this event waits to be sent again in an outbox.
fn again(id: &str, table: &OutboxTable) -> String {
    let place = format!("\"{}\".\"{}\"", table.schema(), table.table());
    AGAIN.replace("{id}", id).replace("{again_in}", &place)
}
