//! `postrider ledger book`: the settings of a tenant's books.

use anyhow::Context as _;
use clap::{Args, Subcommand};
use postrider_ledger::account::AccountCode;
use postrider_ledger::books::Books;
use postrider_ledger::chart::Book;
use postrider_ledger::period::BackDated;

use super::Desk;
use crate::exit::{Exit, usage};
use crate::output::table;

/// What to do with the settings.
#[derive(Debug, Args)]
pub(crate) struct BookArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show the settings
    Show,
    /// Change some of them, from the next batch on
    #[command(
        after_help = "What is not named stays as it is. The base currency is fixed when the books are opened.\n\n\
        Example: postrider ledger --tenant acme book set --back-dated next_open --max-entries 1000000"
    )]
    Set(Set),
}

#[derive(Debug, Args)]
struct Set {
    /// Takes what rounding leaves over
    #[arg(long, value_name = "ACCOUNT", conflicts_with = "no_rounding")]
    rounding: Option<AccountCode>,
    /// Nobody takes it: such entries are refused
    #[arg(long)]
    no_rounding: bool,
    /// Takes a year's result
    #[arg(long, value_name = "ACCOUNT")]
    retained: Option<AccountCode>,
    /// Whose exchange rates count
    #[arg(long, value_name = "NAME")]
    rate_source: Option<String>,
    /// What becomes of events for closed days: refuse, or next_open to post them on the next open day
    #[arg(long, value_name = "POLICY", value_parser = policy)]
    back_dated: Option<BackDated>,
    /// The most entries the tenant may have
    #[arg(long, value_name = "N", conflicts_with = "no_quota")]
    max_entries: Option<u64>,
    /// As many entries as there are
    #[arg(long)]
    no_quota: bool,
    /// Show what it would be, and change nothing
    #[arg(long)]
    dry_run: bool,
}

fn policy(name: &str) -> Result<BackDated, String> {
    BackDated::from_name(name).ok_or_else(|| "there are refuse and next_open".to_owned())
}

impl Set {
    fn is_empty(&self) -> bool {
        self.rounding.is_none()
            && !self.no_rounding
            && self.retained.is_none()
            && self.rate_source.is_none()
            && self.back_dated.is_none()
            && self.max_entries.is_none()
            && !self.no_quota
    }

    fn on(&self, book: Book) -> Book {
        let rounding = self.rounding.clone().or(book.rounding_account);
        let quota = self.max_entries.or(book.max_entries);
        Book {
            rounding_account: rounding.filter(|_| !self.no_rounding),
            retained_account: self.retained.clone().or(book.retained_account),
            rate_source: self.rate_source.clone().unwrap_or(book.rate_source),
            back_dated: self.back_dated.unwrap_or(book.back_dated),
            max_entries: quota.filter(|_| !self.no_quota),
            ..book
        }
    }
}

pub(super) async fn run<B: Books>(args: BookArgs, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let tenant = desk.tenant().await?;
    let chart = desk.ledger.books().read_chart(&tenant).await?;
    let book = chart.with_context(|| format!("{tenant} keeps no books here"))?.book;
    let book = match args.what {
        What::Show => book,
        What::Set(set) if set.is_empty() => {
            return Err(usage("what should change? `postrider ledger book set --help` lists the settings"));
        }
        What::Set(set) if set.dry_run => {
            let book = desk.rehearsing_if(true).change_book(&tenant, |book| set.on(book)).await?;
            desk.context.output.note("it would be this; nothing was changed");
            book
        }
        What::Set(set) => {
            desk.changes(&tenant, "book", "book").await?;
            desk.ledger.change_book(&tenant, |book| set.on(book)).await?
        }
    };
    desk.context.output.one(&book, &for_people(&book))?;
    Ok(Exit::Ok)
}

fn for_people(book: &Book) -> String {
    let named = |account: &Option<AccountCode>| {
        account.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string)
    };
    let rows = [
        ("tenant", book.tenant.to_string()),
        ("base currency", book.base_currency.to_string()),
        ("rounding account", named(&book.rounding_account)),
        ("retained earnings", named(&book.retained_account)),
        ("rate source", book.rate_source.clone()),
        ("back-dated events", book.back_dated.as_str().to_owned()),
        ("most entries", book.max_entries.map_or_else(|| "any".to_owned(), |most| most.to_string())),
    ];
    table(&["SETTING", "VALUE"], rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]))
}
