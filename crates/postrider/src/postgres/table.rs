//! An outbox table: its name, and every statement on it.

use std::sync::Arc;

use sqlx::AssertSqlSafe;

/// The name of an outbox table. The default is `postrider.event_outbox`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OutboxTable {
    schema: String,
    table: String,
}

/// Why a name cannot be one of an outbox.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no name for an outbox table: say table or schema.table, of letters, digits and _, 40 bytes at most each"
)]
pub struct InvalidTable(String);

impl Default for OutboxTable {
    fn default() -> Self {
        Self { schema: "postrider".to_owned(), table: "event_outbox".to_owned() }
    }
}

impl OutboxTable {
    /// A table by its name; in the schema `public` where it says no other.
    pub fn new(name: &str) -> Result<Self, InvalidTable> {
        let (schema, table) = name.split_once('.').unwrap_or(("public", name));
        let fits = |part: &str| {
            (1..=40).contains(&part.len())
                && !part.starts_with(|first: char| first.is_ascii_digit())
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        if !fits(schema) || !fits(table) {
            return Err(InvalidTable(name.to_owned()));
        }
        Ok(Self { schema: schema.to_owned(), table: table.to_owned() })
    }

    /// Its schema.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// Its name in that schema.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// Fills in a statement: `{outbox}` is the table, `{ids}` its ids, `{positions}` its sequence, `{name}` its name as text.
    pub(super) fn statement(&self, template: &str) -> Statement {
        let Self { schema, table } = self;
        let text = template
            .replace("{outbox}", &format!("\"{schema}\".\"{table}\""))
            .replace("{ids}", &format!("\"{schema}\".\"{table}_id\""))
            .replace("{positions}", &format!("\"{schema}\".\"{table}_position\""))
            .replace("{name}", &format!("'{schema}.{table}'"));
        Statement(text.into())
    }
}

impl std::fmt::Display for OutboxTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.schema, self.table)
    }
}

/// A statement on one outbox table. Made of our own text and a name that was checked.
#[derive(Debug, Clone)]
pub(super) struct Statement(Arc<str>);

impl Statement {
    /// The beginning of a statement that goes on.
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    pub(super) fn sql(&self) -> AssertSqlSafe<Arc<str>> {
        AssertSqlSafe(self.0.clone())
    }
}

/// Every statement on an outbox table that is used often.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) append: Statement,
    pub(super) claim_new: Statement,
    pub(super) claim_timed: Statement,
    pub(super) position: Statement,
    pub(super) writers: Statement,
    pub(super) published: Statement,
    pub(super) published_both: Statement,
    pub(super) failed: Statement,
    pub(super) backlog: Statement,
    pub(super) renew: Statement,
    pub(super) take: Statement,
    pub(super) held: Statement,
}

impl Statements {
    pub(super) fn of(table: &OutboxTable) -> Self {
        Self {
            append: table.statement(super::outbox::APPEND),
            claim_new: table.statement(&super::claim::new()),
            claim_timed: table.statement(&super::claim::timed()),
            position: table.statement(super::horizon::POSITION),
            writers: table.statement(super::horizon::WRITERS),
            published: table.statement(super::settle::PUBLISHED),
            published_both: table.statement(super::settle::PUBLISHED_BOTH),
            failed: table.statement(super::settle::FAILED),
            backlog: table.statement(super::backlog::BACKLOG),
            renew: table.statement(super::slots::RENEW),
            take: table.statement(super::slots::TAKE),
            held: table.statement(super::slots::HELD),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_table_with_or_without_its_schema() {
        assert_eq!(OutboxTable::default().to_string(), "postrider.event_outbox");
        assert_eq!(OutboxTable::new("fis_outbox").unwrap().to_string(), "public.fis_outbox");
        assert_eq!(
            OutboxTable::new("fis.Outbox").unwrap().statement("{outbox}").0.as_ref(),
            "\"fis\".\"Outbox\""
        );
        for wrong in ["", "a.b.c", "1a", "a b", "a\"b", "a;b", "x.", &"a".repeat(41)] {
            assert!(OutboxTable::new(wrong).is_err(), "{wrong}");
        }
    }
}
