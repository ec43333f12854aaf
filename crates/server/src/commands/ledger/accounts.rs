//! `postrider ledger accounts`: the chart of accounts.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use postrider_ledger::account::{Account, AccountCode, AccountType};
use postrider_ledger::books::Books;
use postrider_ledger::chart::Book;
use postrider_ledger::money::Currency;
use postrider_ledger::rules::ready;
use serde::Deserialize;

use super::Desk;
use crate::exit::{Exit, usage};

/// What to do with accounts.
#[derive(Debug, Args)]
pub(crate) struct AccountsArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Open the books of a tenant
    #[command(
        after_help = "Without --chart and --rules the books begin with the ready ones: orders, salaries, invoices."
    )]
    Init(Init),
    /// List the accounts
    Ls,
    /// Add an account
    Add(Add),
    /// Close an account for entries
    Close(Which),
    /// Open a closed account again
    Open(Which),
}

#[derive(Debug, Args)]
struct Init {
    /// The currency that everything is also kept in, for good
    #[arg(long)]
    base: Currency,
    /// A TOML file of [[account]]s, or what `accounts ls --json` wrote
    #[arg(long, value_name = "FILE")]
    chart: Option<PathBuf>,
    /// A TOML file of [[rule]]s
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Takes what rounding leaves over
    #[arg(long, default_value = "rounding")]
    rounding: AccountCode,
    /// Takes a year's result
    #[arg(long, default_value = "retained-earnings")]
    retained: AccountCode,
    /// Whose exchange rates count
    #[arg(long, default_value = "manual")]
    rate_source: String,
    /// Check everything, and open nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
struct Add {
    /// Its code, such as receivable:alice
    code: AccountCode,
    /// asset, liability, equity, income or expense
    #[arg(long = "type", value_parser = kind)]
    kind: AccountType,
    /// Its name, for people
    #[arg(long, default_value = "")]
    name: String,
    /// The one currency it takes [default: any]
    #[arg(long)]
    currency: Option<Currency>,
    /// Accounts below it are opened by their first entry
    #[arg(long)]
    opens_children: bool,
    /// Show it, and add nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
struct Which {
    /// Its code
    code: AccountCode,
    /// Say what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
}

fn kind(name: &str) -> Result<AccountType, String> {
    AccountType::from_name(name)
        .ok_or_else(|| "there are asset, liability, equity, income and expense".to_owned())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Chart {
    #[serde(default)]
    account: Vec<Account>,
}

impl Chart {
    /// TOML, or the JSON of a list.
    fn read(text: &str) -> anyhow::Result<Self> {
        if text.trim_start().starts_with('[') && !text.trim_start().starts_with("[[") {
            let account = serde_json::from_str(text).map_err(|error| usage(error.to_string()))?;
            return Ok(Self { account });
        }
        toml::from_str(text).map_err(|error| usage(error.to_string()))
    }
}

pub(super) async fn run<B: Books>(args: AccountsArgs, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    match args.what {
        What::Init(init) => open(init, desk).await,
        What::Ls => list(desk).await,
        What::Add(add) => {
            let account = Account {
                code: add.code,
                name: add.name,
                kind: add.kind,
                normal_side: None,
                currency: add.currency,
                active: true,
                opens_children: add.opens_children,
            };
            save(account, add.dry_run, desk).await
        }
        What::Close(which) => set_active(which, false, desk).await,
        What::Open(which) => set_active(which, true, desk).await,
    }
}

async fn open<B: Books>(init: Init, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let tenant = desk.tenant.clone().ok_or_else(|| usage("whose books? add --tenant"))?;
    let read = |file: &Option<PathBuf>, otherwise: &str| match file {
        None => Ok(otherwise.to_owned()),
        Some(path) => {
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
        }
    };
    let chart = Chart::read(&read(&init.chart, ready::CHART)?)?;
    let rules = read(&init.rules, ready::RULES)?;
    let mut book = Book::new(tenant.clone(), init.base);
    book.rate_source = init.rate_source;
    for (account, setting) in
        [(init.rounding, &mut book.rounding_account), (init.retained, &mut book.retained_account)]
    {
        if chart.account.iter().any(|there| there.code == account) {
            *setting = Some(account);
        } else {
            desk.context
                .output
                .note(&format!("the chart has no account {account}; entries that need it will be refused"));
        }
    }
    if init.dry_run {
        let text = format!(
            "would open the books of {tenant} with {} accounts; nothing was opened",
            chart.account.len()
        );
        desk.context.output.note(&text);
        return Ok(Exit::Ok);
    }
    desk.changes(&tenant, "accounts.init", "accounts").await?;
    if !desk.ledger.open_books(&book, &chart.account, &rules).await? {
        desk.context.output.note(&format!("{tenant} keeps books here already; they were left as they are"));
        return Ok(Exit::Ok);
    }
    desk.context.output.note(&format!("opened the books of {tenant} with {} accounts", chart.account.len()));
    Ok(Exit::Ok)
}

async fn list<B: Books>(desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let tenant = desk.tenant().await?;
    let chart = desk.ledger.books().read_chart(&tenant).await?;
    let chart = chart.with_context(|| format!("{tenant} keeps no books here"))?;
    let mut accounts: Vec<Account> = chart.accounts.into_values().collect();
    accounts.sort_by(|left, right| (left.kind, &left.code).cmp(&(right.kind, &right.code)));
    let header = ["CODE", "NAME", "TYPE", "SIDE", "CURRENCY", "STATE"];
    desk.context.output.rows(&header, &accounts, |account| {
        vec![
            account.code.to_string(),
            account.name.clone(),
            account.kind.as_str().to_owned(),
            account.normal_side().as_str().to_owned(),
            account.currency.map_or_else(|| "any".to_owned(), |currency| currency.to_string()),
            if account.active { "open" } else { "closed" }.to_owned(),
        ]
    })?;
    Ok(Exit::Ok)
}

async fn set_active<B: Books>(which: Which, active: bool, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let tenant = desk.tenant().await?;
    let chart = desk.ledger.books().read_chart(&tenant).await?;
    let there = chart.and_then(|chart| chart.accounts.get(&which.code).cloned());
    let there = there.with_context(|| {
        format!("{tenant} has no account {}; `postrider ledger accounts ls` lists them", which.code)
    })?;
    save(Account { active, ..there }, which.dry_run, desk).await
}

async fn save<B: Books>(account: Account, dry_run: bool, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let tenant = desk.tenant().await?;
    let state = if account.active { "open" } else { "closed" };
    if dry_run {
        desk.context.output.note(&format!("would make {} {state}; nothing was changed", account.code));
        return Ok(Exit::Ok);
    }
    desk.changes(&tenant, "accounts", &format!("accounts/{}", account.code)).await?;
    desk.ledger.set_accounts(&tenant, std::slice::from_ref(&account)).await?;
    desk.context.output.note(&format!("{} is {state}", account.code));
    Ok(Exit::Ok)
}
