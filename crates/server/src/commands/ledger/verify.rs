//! `postrider ledger verify`: whether the books are what the ledger wrote.

use clap::Args;
use postrider_ledger::books::Books;
use postrider_ledger::checkpoint::PublicKey;
use postrider_ledger::verify::{NOT_COVERED, Scope, Verification};

use super::Desk;
use crate::exit::{Exit, usage};

/// What to verify.
#[derive(Debug, Args)]
#[command(
    after_help = "Without --tenant the books of all tenants are verified. Exit code 3 and the problems where they do not hold. \
    Checkpoints are signed with a key that stands in the same database: name the key that you know from elsewhere (--key, or \
    ledger.trusted_keys), so that nobody can sign other entries with another one. \
    The chain covers entries, lines, balances, totals by day, periods, and the types, sides and currencies of accounts that had entries \
    when a period was last changed, and the base currency. It does not cover exchange rates, rules, the other settings of the books, \
    the names of accounts and whether they take entries: the audit log has who changed those. \
    docs/ledger-verify.py checks the same chain without this program."
)]
pub(crate) struct VerifyArgs {
    /// Only entries after this number; balances, periods and accounts are not compared then
    #[arg(long, default_value_t = 0)]
    after: u64,
    /// Runs of entries checked side by side, of one tenant or of several
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// The public key that checkpoints must be signed with; may be given several times [default: ledger.trusted_keys]
    #[arg(long = "key", value_name = "HEX")]
    keys: Vec<PublicKey>,
}

pub(super) async fn run<B: Books>(args: &VerifyArgs, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let (after, side_by_side, keys) = (args.after, args.jobs, args.keys.clone());
    let scope = Scope { after, side_by_side, keys, ..Scope::default() };
    let found = match &desk.tenant {
        None => desk.ledger.verify_everybody(scope).await?,
        Some(tenant) => {
            let found = desk.ledger.verify(tenant, scope).await?;
            vec![found.ok_or_else(|| usage(format!("{tenant} keeps no books here")))?]
        }
    };
    desk.context.output.rows(
        &["TENANT", "ENTRIES", "CHECKPOINTS", "KEY", "HEAD", "BOOKS"],
        &found,
        |row| {
            let state = if row.holds() { "hold" } else { "DO NOT HOLD" };
            vec![
                row.tenant.to_string(),
                row.entries.to_string(),
                row.checkpoints.to_string(),
                match (row.checkpoints, row.key_pinned) {
                    (0, _) => "-",
                    (_, true) => "pinned",
                    (_, false) => "not pinned",
                }
                .to_owned(),
                row.head.to_string(),
                state.to_owned(),
            ]
        },
    )?;
    for verification in &found {
        if verification.checkpoints > 0 && !verification.key_pinned {
            let keys: Vec<_> = verification.signed_by.iter().map(ToString::to_string).collect();
            desk.context.output.note(&format!(
                "{}: key not pinned: the checkpoints are signed by {}, which only the database says; name the key you know with --key",
                verification.tenant,
                keys.join(" and ")
            ));
        }
        if let Some(from) =
            verification.unsigned_from.filter(|_| verification.checkpoints > 0 || verification.key_pinned)
        {
            desk.context.output.note(&format!(
                "{}: {} entries, from {from} on, are not signed yet: no checkpoint stands for them",
                verification.tenant, verification.unsigned_entries
            ));
        }
        for problem in &verification.problems {
            // What was found is data, also where messages are left out. In JSON it is in the document.
            let text = format!("{}: {}: {}", verification.tenant, problem.code, problem.text);
            desk.context.output.finding(&text)?;
        }
        let is_read = verification.problems.iter().all(|problem| problem.code != "unreadable");
        if args.after == 0 && !verification.balances_compared && is_read {
            desk.context.output.note(&format!(
                "{}: balances, periods and accounts were not compared, because entries were posted all the time",
                verification.tenant
            ));
        }
    }
    if !found.is_empty() {
        desk.context.output.note(&format!("the chain does not cover {}", NOT_COVERED.join(", ")));
    }
    Ok(if found.iter().all(Verification::holds) { Exit::Ok } else { Exit::Unhealthy })
}
