//! `postrider ledger`: charts of accounts, rules, entries, periods, reports, verification. One file a group of commands.

mod accounts;
mod book;
mod correct;
mod dated;
mod entries;
mod ingest;
mod keys;
mod periods;
mod rates;
mod reading;
mod reports;
mod rules;
mod transfer;
mod verify;

use clap::{Args, Subcommand};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use postrider::envelope::TenantId;
use postrider::store::{LogEntry, StoreError};
use postrider_ledger::Ledger;
use postrider_ledger::books::Books;
use serde_json::{Value, json};

use super::Context;
use crate::desk::write_down;
use crate::exit::{Exit, usage};
use crate::wiring::{self, OnStore, WholeStore, Wired};

/// Whose books, and what to do with them.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    postrider ledger --tenant acme accounts init --base EUR\n  \
    postrider ledger --tenant acme rules check rules.toml --events events.jsonl\n  \
    postrider ledger ingest events.jsonl\n  \
    postrider ledger --tenant acme trial-balance --at 2026-12-31\n  \
    postrider ledger --tenant acme export | postrider ledger --tenant copy import -\n  \
    postrider ledger verify\n\n\
    Amounts are exact decimals; in json, amounts and entry numbers are texts. Exit code 3: a verification does not hold.")]
pub(crate) struct LedgerArgs {
    /// Whose books [default: the only tenant there is]
    #[arg(long, global = true, help_heading = "Options of every ledger command")]
    tenant: Option<String>,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show and change the settings of a tenant's books
    Book(book::BookArgs),
    /// Open books, list accounts, add and close them
    Accounts(accounts::AccountsArgs),
    /// Show, check, dry-run and change the rules that make entries of events
    Rules(rules::RulesArgs),
    /// Add and list exchange rates
    Rates(rates::RatesArgs),
    /// Post events from a file
    Ingest(ingest::IngestArgs),
    /// List and show entries, post one by hand
    Entries(entries::EntriesArgs),
    /// Undo an entry with a new one
    Reverse(entries::AboutArgs),
    /// Undo an entry, and post what it should have been
    Correct(correct::CorrectArgs),
    /// Post what a pending entry promised
    Settle(entries::AboutArgs),
    /// End the promise of a pending entry
    Void(entries::AboutArgs),
    /// List periods, open, close and lock them
    Periods(periods::PeriodsArgs),
    /// Carry a year's result to retained earnings
    Close(periods::CloseArgs),
    /// The balances of all accounts, or of one
    Balance(reports::BalanceArgs),
    /// Debits and credits of every account
    TrialBalance(reports::AtArgs),
    /// Assets, liabilities and equity
    BalanceSheet(reports::AtArgs),
    /// Income and expenses, before a year is closed
    IncomeStatement(reports::FromToArgs),
    /// The movements of an account: the newest, or those of some days
    Statement(dated::StatementArgs),
    /// Debits and credits of every account, day by day
    Totals(dated::TotalsArgs),
    /// Sign the entries since the last checkpoint
    Checkpoint(keys::CheckpointArgs),
    /// Prove that an entry is in a signed checkpoint
    Proof(keys::ProofArgs),
    /// Check chain, checkpoints, sums and balances
    Verify(verify::VerifyArgs),
    /// Write the journal for other programs
    Export(transfer::ExportArgs),
    /// Post history as it was exported, or opening balances
    Import(transfer::ImportArgs),
}

/// The command, on a store.
pub(crate) struct Keep<'a> {
    pub(crate) args: LedgerArgs,
    pub(crate) context: &'a Context,
}

impl OnStore for Keep<'_> {
    async fn run<S: WholeStore>(self, wired: Wired<S>) -> anyhow::Result<Exit> {
        wired.store.check().await?;
        let context = self.context;
        let ledger = wiring::ledger(&wired.store, &context.config, &context.clock)?;
        let tenant = self.args.tenant.map(TenantId::new).transpose()?;
        let store = wired.store.clone();
        let trail: Trail = Box::new(move |entry| {
            let store = store.clone();
            async move { write_down(&store, entry).await }.boxed()
        });
        let desk = Desk { ledger, tenant, context, trail };
        match self.args.what {
            What::Book(args) => book::run(args, &desk).await,
            What::Accounts(args) => accounts::run(args, &desk).await,
            What::Rules(args) => rules::run(args, &desk).await,
            What::Rates(args) => rates::run(args, &desk).await,
            What::Ingest(args) => ingest::run(args, &desk).await,
            What::Entries(args) => entries::run(args, &desk).await,
            What::Correct(args) => correct::run(args, &desk).await,
            What::Reverse(args) => entries::about(args, entries::About::Reverse, &desk).await,
            What::Settle(args) => entries::about(args, entries::About::Settle, &desk).await,
            What::Void(args) => entries::about(args, entries::About::Void, &desk).await,
            What::Periods(args) => periods::run(args, &desk).await,
            What::Close(args) => periods::close(&args, &desk).await,
            What::Balance(args) => reports::balance(args, &desk).await,
            What::TrialBalance(args) => reports::trial_balance(args, &desk).await,
            What::BalanceSheet(args) => reports::balance_sheet(args, &desk).await,
            What::IncomeStatement(args) => reports::income_statement(args, &desk).await,
            What::Statement(args) => dated::statement(args, &desk).await,
            What::Totals(args) => dated::totals(args, &desk).await,
            What::Checkpoint(args) => keys::checkpoint(&args, &desk).await,
            What::Proof(args) => keys::proof(&args, &desk).await,
            What::Verify(args) => verify::run(&args, &desk).await,
            What::Export(args) => transfer::export(args, &desk).await,
            What::Import(args) => transfer::import(args, &desk).await,
        }
    }
}

/// What every one of these commands has at hand.
struct Desk<'a, B> {
    ledger: Ledger<B>,
    tenant: Option<TenantId>,
    context: &'a Context,
    trail: Trail,
}

/// Writes to the audit log.
type Trail = Box<dyn Fn(LogEntry) -> BoxFuture<'static, Result<(), StoreError>> + Send + Sync>;

impl<B: Books> Desk<'_, B> {
    /// Writes down what is about to be done to the books, as the API does: a crash leaves an entry about what was not done, and never a
    /// change that nobody wrote down.
    async fn changes(&self, tenant: &TenantId, what: &str, about: &str) -> anyhow::Result<()> {
        let (action, subject) = (format!("ledger.{what}"), format!("ledger/{tenant}/{about}"));
        (self.trail)(self.context.log_entry(&action, subject, "")).await?;
        Ok(())
    }

    /// The ledger that does it, or the one that only tries.
    fn rehearsing_if(&self, dry_run: bool) -> Ledger<B> {
        if dry_run { self.ledger.rehearsing() } else { self.ledger.clone() }
    }

    /// Says what would be done and that it was not: a note for people, a document for programs.
    fn would(&self, what: &str, not_done: &str, with: Value) -> anyhow::Result<Exit> {
        let output = self.context.output;
        output.note(&format!("would {what}; {not_done}"));
        if !output.is_for_people() {
            let mut told = json!({"dry_run": true, "would": what});
            if let (Value::Object(told), Value::Object(with)) = (&mut told, with) {
                told.extend(with);
            }
            output.one(&told, "")?;
        }
        Ok(Exit::Ok)
    }

    /// The tenant that was named, or the only one.
    async fn tenant(&self) -> anyhow::Result<TenantId> {
        if let Some(tenant) = &self.tenant {
            return Ok(tenant.clone());
        }
        match self.ledger.books().tenants().await?.as_slice() {
            [only] => Ok(only.clone()),
            [] => Err(usage(
                "nobody keeps books here yet; open some: postrider ledger --tenant acme accounts init --base EUR",
            )),
            several => {
                let names: Vec<_> = several.iter().take(5).map(ToString::to_string).collect();
                Err(usage(format!("several tenants keep books here ({}, …); add --tenant", names.join(", "))))
            }
        }
    }
}
