//! Verification of the books that the ledger's part has filled: what two cores do with PostgreSQL on them, and what is ours of it.

use postrider::postgres::Postgres;
use postrider_ledger::books::Books as _;
use postrider_ledger::verify::{Scope, Verification, verify_all};

use super::ledger::LedgerBench;
use super::{Figure, per_second};

/// Entries a second that a core should verify.
const A_CORE: f64 = 500_000.0;
/// So many entries are verified at least: processor time is counted in hundredths of a second.
const ENTRIES: usize = 200_000;

impl LedgerBench<'_> {
    /// Verifies the books of the tenants that have many entries, as often as it takes to tell how fast that is.
    pub(super) async fn verified(&self, store: &Postgres) -> anyhow::Result<Vec<Figure>> {
        let mut tenants = store.tenants().await?;
        tenants.retain(|tenant| !tenant.as_str().starts_with("many-"));
        let (start, before, mut entries) = (self.clock.monotonic(), self.processes.spent(), 0);
        while entries < ENTRIES {
            for found in verify_all(store, &tenants, &Scope::default()).await? {
                let holds = found.as_ref().is_some_and(Verification::holds);
                anyhow::ensure!(holds, "the books do not hold: {found:?}");
                entries += usize::try_from(found.map_or(0, |found| found.entries))?;
            }
        }
        let (rate, spent) = (per_second(entries, self.clock.since(start)), self.processes.spent() - before);
        eprintln!(
            "verified {entries} entries, {rate:.0}/s with two runs side by side, {}",
            spent.told(entries)
        );
        let together = "entries verified by two cores with PostgreSQL on them, over 500,000 a core";
        let ours = "entries verified in a second of our own processor time, over 500,000";
        let figures = [
            Figure::median(together, "PostgreSQL", "/s", vec![(rate, 2.0 * A_CORE)]),
            Figure::median(
                ours,
                "PostgreSQL",
                "/s",
                spent.ours_per_second(entries).map(|rate| (rate, A_CORE)).into_iter().collect(),
            ),
        ];
        Ok(figures.into_iter().flatten().map(|figure| figure.aims_at(1.0)).collect())
    }
}
