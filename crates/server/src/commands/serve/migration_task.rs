//! What `serve` has to do with a migration before it publishes anything.

use postrider::migration::{self, Databases, Phase, Taken};
use postrider::store::{DualPublishing, StoreErrorKind};

use crate::commands::Context;

/// Starts the migration of the configuration where `migration.dual_publish` (`ENABLE_DUAL_PUBLISH`) asks for it and it never was
/// started. Later the stored phase decides.
pub(super) async fn begin<S: DualPublishing>(store: &S, context: &Context) -> anyhow::Result<()> {
    if !context.config.settings.migration.dual_publish {
        return Ok(());
    }
    let Some(definition) = &context.config.migration else {
        tracing::warn!(
            "migration.dual_publish (ENABLE_DUAL_PUBLISH) is true, and no old exchange is named: nothing is published twice. \
             Set migration.legacy_exchange"
        );
        return Ok(());
    };
    let known = store.migrations_of_buses().await?;
    if known.iter().any(|one| one.phase != Phase::Finished || one.definition.name == definition.name) {
        return Ok(());
    }
    let step = Taken {
        by: "serve".to_owned(),
        reason: "migration.dual_publish (ENABLE_DUAL_PUBLISH) is true".to_owned(),
        forced: false,
    };
    // Other databases follow as soon as something relays.
    let databases = Databases::new(store.clone(), context.clock.clone());
    match migration::start(&databases, definition, &step).await {
        // Another process was faster.
        Err(migration::MigrationError::Store(error)) if error.kind == StoreErrorKind::Duplicate => Ok(()),
        started => Ok(started?),
    }
}
