//! The publication that an outbox is streamed by: what it must be like, and making it so.
//!
//! By its name it is ours. Somebody may have changed it by hand all the same, and PostgreSQL says nothing of it: a stream then stays open and
//! tells of nothing, or of some rows only.

use super::{Postgres, door};
use crate::store::{StoreError, StoreErrorKind};

/// Whether the publication `$2` tells of every new row of the table `$3`, under the table's own name. Before 15 there are neither conditions on rows
/// nor lists of columns, nor the columns of the catalogue that say so.
pub(super) const TELLS: &str = "EXISTS (SELECT FROM pg_publication p \
     WHERE p.pubname = $2 AND p.pubinsert AND (p.puballtables AND p.pubviaroot OR EXISTS ( \
         SELECT FROM pg_publication_rel r JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE r.prpubid = p.oid AND n.nspname || '.' || c.relname = $3 AND (p.pubviaroot OR c.relkind <> 'p') \
           AND to_jsonb(r) ->> 'prqual' IS NULL AND to_jsonb(r) ->> 'prattrs' IS NULL)))";

impl Postgres {
    /// Makes it, anew where it is there and does not tell of everything; or says who has to.
    pub(super) async fn publish_table(&self) -> Result<Option<String>, StoreError> {
        let publication = door::publication(&self.table);
        let make = self.table.statement(&format!(
            "DROP PUBLICATION IF EXISTS {publication}; CREATE PUBLICATION {publication} FOR TABLE {{outbox}} \
             WITH (publish = 'insert', publish_via_partition_root = true)"
        ));
        // Both in one transaction: nobody finds it missing.
        let creating = self.limited("making a publication", sqlx::raw_sql(make.sql()).execute(self.pool()));
        match creating.await {
            Ok(_) => Ok(None),
            // Another relay was quicker: 42710, or 23505 at the same moment.
            Err(error) if error.kind == StoreErrorKind::Invalid => Ok(None),
            Err(error) if error.kind == StoreErrorKind::Denied => Ok(Some(format!(
                "the publication is missing or does not tell of every new event, and that cannot be mended here ({error}); as an owner of both \
                 run: {}",
                make.text()
            ))),
            Err(error) => Err(error),
        }
    }
}
