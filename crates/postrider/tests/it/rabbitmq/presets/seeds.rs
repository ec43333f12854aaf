//! The tables: what the five documents say, and what we add to each.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// What a broker has.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Name and type.
    pub(super) exchanges: BTreeMap<String, String>,
    /// Name, type and arguments.
    pub(super) queues: BTreeMap<String, (String, Value)>,
    /// Exchange, queue and key.
    pub(super) bindings: BTreeSet<(String, String, String)>,
    /// Name and definition.
    pub(super) policies: BTreeMap<String, Value>,
}

impl Table {
    fn exchange(mut self, name: &str, kind: &str) -> Self {
        self.exchanges.insert(name.to_owned(), kind.to_owned());
        self
    }

    fn queue(mut self, name: &str, kind: &str, arguments: Value) -> Self {
        self.queues.insert(name.to_owned(), (kind.to_owned(), arguments));
        self
    }

    fn bind(mut self, exchange: &str, queue: &str, key: &str) -> Self {
        self.bindings.insert((exchange.to_owned(), queue.to_owned(), key.to_owned()));
        self
    }

    fn policy(mut self, name: &str, definition: Value) -> Self {
        self.policies.insert(name.to_owned(), definition);
        self
    }

    pub(super) fn and(mut self, additions: Self) -> Self {
        self.exchanges.extend(additions.exchanges);
        self.queues.extend(additions.queues);
        self.bindings.extend(additions.bindings);
        self.policies.extend(additions.policies);
        self
    }
}

fn dies(exchange: &str, key: &str) -> Value {
    json!({"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": key})
}

fn waits(millis: u64, exchange: &str, key: &str) -> Value {
    json!({"x-message-ttl": millis, "x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": key})
}

/// A wait queue of our own: what keeps it safe is in its arguments.
fn own_wait(millis: u64, queue: &str) -> Value {
    json!({
        "x-message-ttl": millis,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": queue,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    })
}

fn safe() -> Value {
    json!({"dead-letter-strategy": "at-least-once", "overflow": "reject-publish"})
}

fn safe_with_limit(limit: i64) -> Value {
    json!({"dead-letter-strategy": "at-least-once", "overflow": "reject-publish", "delivery-limit": limit})
}

fn unlimited() -> Value {
    json!({"delivery-limit": -1})
}

pub(super) fn fis() -> Table {
    Table::default()
        .exchange("fis.events.exchange", "topic")
        .exchange("fis.dlx.exchange", "direct")
        .exchange("fis.domain.exchange", "topic")
        .queue("fis.ingestion.queue", "quorum", dies("fis.dlx.exchange", "fis.ingestion.dlq"))
        .queue("fis.ingestion.dlq.queue", "quorum", json!({}))
        .bind("fis.events.exchange", "fis.ingestion.queue", "*.*.*")
        .bind("fis.dlx.exchange", "fis.ingestion.dlq.queue", "fis.ingestion.dlq")
}

pub(super) fn fis_additions() -> Table {
    Table::default()
        .exchange("fis.unroutable.exchange", "fanout")
        .bind("fis.unroutable.exchange", "fis.ingestion.dlq.queue", "")
        .queue("fis.ingestion.queue.wait.5s", "quorum", own_wait(5000, "fis.ingestion.queue"))
        .policy(
            "postrider.exchange.fis.events.exchange",
            json!({"alternate-exchange": "fis.unroutable.exchange"}),
        )
        .policy("postrider.queue.fis.ingestion.queue", safe_with_limit(20))
        .policy("postrider.queue.fis.ingestion.dlq.queue", unlimited())
}

/// Services `wms-cincout`, `wms-stock` and `noprefix`.
pub(super) fn event_bus(kind: &str) -> Table {
    Table::default()
        .exchange("wms.main-exchange", "fanout")
        .exchange("wms.retry-exchange.wms-cincout", "direct")
        .exchange("wms.retry-exchange.wms-stock", "direct")
        .exchange("default.main-exchange", "fanout")
        .exchange("default.retry-exchange.noprefix", "direct")
        .queue("wms.queue.wms-cincout", kind, dies("wms.retry-exchange.wms-cincout", "retry"))
        .queue("wms.retry-queue.wms-cincout", kind, waits(5000, "", "wms.queue.wms-cincout"))
        .queue("wms.dlq.wms-cincout", kind, json!({}))
        .queue("wms.queue.wms-stock", kind, dies("wms.retry-exchange.wms-stock", "retry"))
        .queue("wms.retry-queue.wms-stock", kind, waits(5000, "", "wms.queue.wms-stock"))
        .queue("wms.dlq.wms-stock", kind, json!({}))
        .queue("default.queue.noprefix", kind, dies("default.retry-exchange.noprefix", "retry"))
        .queue("default.retry-queue.noprefix", kind, waits(5000, "", "default.queue.noprefix"))
        .queue("default.dlq.noprefix", kind, json!({}))
        .bind("wms.main-exchange", "wms.queue.wms-cincout", "")
        .bind("wms.main-exchange", "wms.queue.wms-stock", "")
        .bind("default.main-exchange", "default.queue.noprefix", "")
        .bind("wms.retry-exchange.wms-cincout", "wms.retry-queue.wms-cincout", "retry")
        .bind("wms.retry-exchange.wms-stock", "wms.retry-queue.wms-stock", "retry")
        .bind("default.retry-exchange.noprefix", "default.retry-queue.noprefix", "retry")
}

/// Its main queues are in a retry loop, so they have no limit.
pub(super) fn event_bus_additions() -> Table {
    Table::default()
        .policy("postrider.queue.wms.queue.wms-cincout", safe_with_limit(-1))
        .policy("postrider.queue.wms.retry-queue.wms-cincout", safe())
        .policy("postrider.queue.wms.dlq.wms-cincout", unlimited())
        .policy("postrider.queue.wms.queue.wms-stock", safe_with_limit(-1))
        .policy("postrider.queue.wms.retry-queue.wms-stock", safe())
        .policy("postrider.queue.wms.dlq.wms-stock", unlimited())
        .policy("postrider.queue.default.queue.noprefix", safe_with_limit(-1))
        .policy("postrider.queue.default.retry-queue.noprefix", safe())
        .policy("postrider.queue.default.dlq.noprefix", unlimited())
}

/// Queue `my-service.events` of exchange `shop`, for `order.*` and `payment.#`, with a delay of 2500 ms.
pub(super) fn ratatoskr() -> Table {
    Table::default()
        .exchange("shop", "topic")
        .exchange("my-service.events.dlq", "fanout")
        .queue("my-service.events", "quorum", dies("", "my-service.events.retry"))
        .queue("my-service.events.retry", "quorum", waits(2500, "", "my-service.events"))
        .queue("my-service.events.dlq", "quorum", json!({}))
        .bind("shop", "my-service.events", "order.*")
        .bind("shop", "my-service.events", "payment.#")
        .bind("my-service.events.dlq", "my-service.events.dlq", "")
}

pub(super) fn ratatoskr_additions() -> Table {
    Table::default()
        .exchange("shop.unroutable", "fanout")
        .queue("shop.unroutable", "quorum", json!({}))
        .bind("shop.unroutable", "shop.unroutable", "")
        .policy("postrider.exchange.shop", json!({"alternate-exchange": "shop.unroutable"}))
        .policy("postrider.queue.my-service.events", safe_with_limit(-1))
        .policy("postrider.queue.my-service.events.retry", safe())
        .policy("postrider.queue.my-service.events.dlq", unlimited())
        .policy("postrider.queue.shop.unroutable", unlimited())
}

pub(super) fn smap() -> Table {
    Table::default()
        .exchange("smap.events", "topic")
        .exchange("smtp_send_email_exc", "fanout")
        .queue("smtp_send_email", "classic", json!({}))
        .queue("smtp_send_email_v2", "classic", json!({}))
        .bind("smtp_send_email_exc", "smtp_send_email", "")
        .bind("smap.events", "smtp_send_email_v2", "email.#")
}

pub(super) fn smap_additions() -> Table {
    Table::default()
        .exchange("smap.events.unroutable", "fanout")
        .queue("smap.events.unroutable", "quorum", json!({}))
        .bind("smap.events.unroutable", "smap.events.unroutable", "")
        .queue("smtp_send_email_v2.dlq", "quorum", json!({}))
        .queue("smtp_send_email_v2.wait.5s", "quorum", own_wait(5000, "smtp_send_email_v2"))
        .policy("postrider.exchange.smap.events", json!({"alternate-exchange": "smap.events.unroutable"}))
        .policy(
            "postrider.queue.smtp_send_email_v2",
            json!({"dead-letter-exchange": "", "dead-letter-routing-key": "smtp_send_email_v2.dlq"}),
        )
        .policy("postrider.queue.smtp_send_email_v2.dlq", unlimited())
        .policy("postrider.queue.smap.events.unroutable", unlimited())
}

const HOLDCO: [&str; 5] =
    ["analytics.ingest", "erp.sync", "inventory.reconcile", "pricing.refresh", "notifications"];

fn holdco_queues() -> Table {
    let table = Table::default().exchange("holdco.events", "topic").exchange("holdco.events.dlx", "direct");
    HOLDCO.iter().fold(table, |table, queue| {
        let dead = format!("{queue}.dlq");
        table
            .queue(queue, "classic", dies("holdco.events.dlx", &dead))
            .queue(&dead, "classic", json!({}))
            .bind("holdco.events.dlx", &dead, &dead)
    })
}

/// The document as it stands, with two bindings that match nothing.
pub(super) fn holdco() -> Table {
    holdco_queues()
        .bind("holdco.events", "analytics.ingest", "#")
        .bind("holdco.events", "erp.sync", "invoice.*")
        .bind("holdco.events", "erp.sync", "payment_intent.*")
        .bind("holdco.events", "inventory.reconcile", "stock_*.*")
        .bind("holdco.events", "pricing.refresh", "price_*.*")
        .bind("holdco.events", "notifications", "order.*")
        .bind("holdco.events", "notifications", "payment_intent.failed")
}

/// The same with these two written out over `stock_adjustment`, `stock_level` and `price_list`.
pub(super) fn holdco_written_out() -> Table {
    holdco_queues()
        .bind("holdco.events", "analytics.ingest", "#")
        .bind("holdco.events", "erp.sync", "invoice.*")
        .bind("holdco.events", "erp.sync", "payment_intent.*")
        .bind("holdco.events", "inventory.reconcile", "stock_adjustment.*")
        .bind("holdco.events", "inventory.reconcile", "stock_level.*")
        .bind("holdco.events", "pricing.refresh", "price_list.*")
        .bind("holdco.events", "notifications", "order.*")
        .bind("holdco.events", "notifications", "payment_intent.failed")
}

pub(super) fn holdco_additions() -> Table {
    let table = Table::default()
        .exchange("holdco.events.unroutable", "fanout")
        .queue("holdco.events.unroutable", "quorum", json!({}))
        .bind("holdco.events.unroutable", "holdco.events.unroutable", "")
        .policy("postrider.exchange.holdco.events", json!({"alternate-exchange": "holdco.events.unroutable"}))
        .policy("postrider.queue.holdco.events.unroutable", unlimited());
    HOLDCO
        .iter()
        .fold(table, |table, queue| table.queue(&format!("{queue}.wait.5s"), "quorum", own_wait(5000, queue)))
}
