//! `postrider ledger accounts`: the chart of accounts.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use postrider_ledger::account::{Account, AccountChange, AccountCode, AccountType};
use postrider_ledger::books::Books;
use postrider_ledger::money::Currency;
use serde_json::json;

use super::Desk;
use crate::exit::{Exit, usage};
use crate::opening::{Opened, Opening, RATE_SOURCE, read_chart};

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
    /// Add an account; of one that is there, what is not named stays
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
    #[arg(long, default_value = RATE_SOURCE)]
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
    /// Its name, for people [default: none, or the one it has]
    #[arg(long)]
    name: Option<String>,
    /// The one currency it takes [default: any, or the one it has]
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

pub(super) async fn run<B: Books>(args: AccountsArgs, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    match args.what {
        What::Init(init) => open(init, desk).await,
        What::Ls => list(desk).await,
        What::Add(add) => {
            let account = AccountChange {
                name: add.name,
                kind: Some(add.kind),
                currency: add.currency,
                opens_children: add.opens_children.then_some(true),
                ..AccountChange::new(add.code)
            };
            save(account, add.dry_run, desk).await
        }
        What::Close(which) => set_active(which, false, desk).await,
        What::Open(which) => set_active(which, true, desk).await,
    }
}

async fn open<B: Books>(init: Init, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let tenant = desk.tenant.clone().ok_or_else(|| usage("whose books? add --tenant"))?;
    let read = |path: PathBuf| {
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let opening = Opening {
        base_currency: init.base,
        accounts: init.chart.map(read).transpose()?.as_deref().map(read_chart).transpose()?,
        rules: init.rules.map(read).transpose()?,
        rounding_account: Some(init.rounding),
        retained_account: Some(init.retained),
        rate_source: Some(init.rate_source),
    };
    let drawn = opening.draw_up(tenant.clone())?;
    for account in &drawn.absent {
        let text = format!("the chart has no account {account}; entries that need it will be refused");
        desk.context.output.note(&text);
    }
    let accounts = drawn.accounts.len();
    if init.dry_run {
        let text = format!("would open the books of {tenant} with {accounts} accounts; nothing was opened");
        desk.context.output.note(&text);
        return Ok(Exit::Ok);
    }
    desk.changes(&tenant, "accounts.init", "accounts").await?;
    let told = match drawn.open(&desk.ledger).await? {
        Opened::Now => format!("opened the books of {tenant} with {accounts} accounts"),
        Opened::Before(_) => format!("{tenant} keeps books here already; they were left as they are"),
        Opened::Otherwise(told) => bail!("{told}; they were left as they are"),
    };
    desk.context.output.note(&told);
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
    if !chart.is_some_and(|chart| chart.accounts.contains_key(&which.code)) {
        bail!("{tenant} has no account {}; `postrider ledger accounts ls` lists them", which.code);
    }
    let change = AccountChange { active: Some(active), ..AccountChange::new(which.code) };
    save(change, which.dry_run, desk).await
}

async fn save<B: Books>(account: AccountChange, dry_run: bool, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let (tenant, code) = (desk.tenant().await?, account.code.clone());
    let state = |made: &[Account]| if made.iter().all(|made| made.active) { "open" } else { "closed" };
    if dry_run {
        let made = desk.rehearsing_if(true).change_accounts(&tenant, vec![account]).await?;
        let with = json!({"account": code, "state": state(&made)});
        return desk.would(&format!("make {code} {}", state(&made)), "nothing was changed", with);
    }
    desk.changes(&tenant, "accounts", &format!("accounts/{code}")).await?;
    let made = desk.ledger.change_accounts(&tenant, vec![account]).await?;
    desk.context.output.note(&format!("{code} is {}", state(&made)));
    Ok(Exit::Ok)
}
