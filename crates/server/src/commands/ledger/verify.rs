//! `postrider ledger verify`: whether the books are what the ledger wrote.

use clap::Args;
use postrider_ledger::books::Books;
use postrider_ledger::verify::{Verification, verify};

use super::Desk;
use crate::exit::{Exit, usage};

/// What to verify.
#[derive(Debug, Args)]
#[command(
    after_help = "Without --tenant the books of all tenants are verified. Exit code 3 and the problems where they do not hold.\n\
    docs/ledger-verify.py checks the same chain without this program."
)]
pub(crate) struct VerifyArgs {
    /// Only entries after this number; balances are not compared then
    #[arg(long, default_value_t = 0)]
    after: u64,
    /// Runs of entries checked side by side
    #[arg(long, default_value_t = 2)]
    jobs: usize,
}

pub(super) async fn run<B: Books>(args: &VerifyArgs, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let tenants = match &desk.tenant {
        Some(tenant) => vec![tenant.clone()],
        None => desk.ledger.books().tenants().await?,
    };
    let mut found: Vec<Verification> = Vec::new();
    for tenant in &tenants {
        let verification = verify(desk.ledger.books(), tenant, args.after, args.jobs).await?;
        found.push(verification.ok_or_else(|| usage(format!("{tenant} keeps no books here")))?);
    }
    desk.context.output.rows(&["TENANT", "ENTRIES", "CHECKPOINTS", "HEAD", "BOOKS"], &found, |row| {
        let state = if row.holds() { "hold" } else { "DO NOT HOLD" };
        vec![
            row.tenant.to_string(),
            row.entries.to_string(),
            row.checkpoints.to_string(),
            row.head.to_string(),
            state.to_owned(),
        ]
    })?;
    for verification in &found {
        for problem in &verification.problems {
            desk.context.output.note(&format!("{}: {}: {}", verification.tenant, problem.code, problem.text));
        }
        if args.after == 0 && !verification.balances_compared {
            desk.context.output.note(&format!(
                "{}: balances were not compared, because entries were posted all the time",
                verification.tenant
            ));
        }
    }
    Ok(if found.iter().all(Verification::holds) { Exit::Ok } else { Exit::Unhealthy })
}
