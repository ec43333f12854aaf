//! `postrider ledger rules`: what makes entries of events, checked and tried before it counts.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use postrider_ledger::account::AccountCode;
use postrider_ledger::books::{Books, RulesVersion};
use postrider_ledger::rules::Rules;
use serde_json::{Value, json};

use super::reading::Reading;
use super::{Desk, ingest};
use crate::exit::{Exit, absent, usage};
use crate::rules_trial;

/// What to do with rules.
#[derive(Debug, Args)]
pub(crate) struct RulesArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the versions, the newest last
    Ls,
    /// Show the rules as they were written
    Show {
        /// That version [default: the newest]
        #[arg(long, value_name = "N")]
        version: Option<u32>,
    },
    /// Check a file of rules; with --events show the entries that would result. Nothing is posted
    #[command(after_help = "Exit code 3 if an event would be refused.")]
    Check {
        /// A TOML file of [[rule]]s
        rules: PathBuf,
        /// Events to try them on, a JSON document a line, as `ledger ingest` takes them
        #[arg(long, value_name = "FILE")]
        events: Option<PathBuf>,
    },
    /// Make a file of rules the tenant's next version
    Set {
        /// A TOML file of [[rule]]s
        rules: PathBuf,
        /// Check them, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
}

pub(super) async fn run<B: Books>(args: RulesArgs, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let file = match &args.what {
        What::Ls => return list(desk).await,
        What::Show { version } => return show(*version, desk).await,
        What::Check { rules, .. } | What::Set { rules, .. } => rules,
    };
    let document =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let rules =
        Rules::parse_new(0, &document).map_err(|error| usage(format!("{}: {error}", file.display())))?;
    if matches!(args.what, What::Check { .. }) {
        warn_of_accounts(&rules, desk).await?;
    }
    match args.what {
        What::Check { events: None, .. } | What::Ls | What::Show { .. } => {
            desk.context.output.note(&format!("{} rules can be used", rules.len()));
            Ok(Exit::Ok)
        }
        What::Check { events: Some(events), .. } => try_on(rules, &events, desk).await,
        What::Set { dry_run: true, .. } => {
            let tenant = desk.tenant().await?;
            let version = desk.rehearsing_if(true).set_rules(&tenant, &document).await?;
            let text = format!("make {} rules version {version} of {tenant}'s rules", rules.len());
            desk.would(&text, "nothing was changed", json!({"rules": rules.len(), "version": version}))
        }
        What::Set { .. } => {
            let tenant = desk.tenant().await?;
            desk.changes(&tenant, "rules", "rules").await?;
            let version = desk.ledger.set_rules(&tenant, &document).await?;
            desk.context.output.note(&format!("these are version {version} of {tenant}'s rules from now on"));
            Ok(Exit::Ok)
        }
    }
}

/// Names accounts that rules ask for and the chart does not have, where somebody's chart is there to compare with: they may be added later.
async fn warn_of_accounts<B: Books>(rules: &Rules, desk: &Desk<'_, B>) -> anyhow::Result<()> {
    let Ok(tenant) = desk.tenant().await else { return Ok(()) };
    let Some(chart) = desk.ledger.books().read_chart(&tenant).await? else { return Ok(()) };
    for (rule, account) in rules.fixed_accounts() {
        let missing = match AccountCode::new(account) {
            Ok(code) => chart.account(&code).err().map(|refusal| refusal.to_string()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(why) = missing {
            desk.context.output.note(&format!("warning: the rule {rule:?}, account {account}: {why}"));
        }
    }
    Ok(())
}

async fn versions<B: Books>(desk: &Desk<'_, B>) -> anyhow::Result<Vec<RulesVersion>> {
    let tenant = desk.tenant().await?;
    let versions = desk.ledger.books().rules_versions(&tenant).await?;
    anyhow::ensure!(
        !versions.is_empty(),
        "{tenant} has no rules here; `postrider ledger rules set` makes some"
    );
    Ok(versions)
}

async fn list<B: Books>(desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let versions = versions(desk).await?;
    let read = |one: &RulesVersion| Rules::parse(one.version, &one.document);
    let rows: Vec<Value> = versions
        .iter()
        .map(|one| {
            let names = read(one).map(|rules| rules.names()).unwrap_or_default();
            json!({"version": one.version, "since": one.since, "rules": names})
        })
        .collect();
    desk.context.output.rows(&["VERSION", "SINCE", "RULES"], &rows, |row| {
        let names = row["rules"].as_array().into_iter().flatten().filter_map(Value::as_str);
        vec![
            row["version"].to_string(),
            row["since"].as_str().unwrap_or_default().to_owned(),
            names.collect::<Vec<_>>().join(", "),
        ]
    })?;
    Ok(Exit::Ok)
}

async fn show<B: Books>(version: Option<u32>, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let mut versions = versions(desk).await?;
    if let Some(version) = version {
        versions.retain(|one| one.version == version);
    }
    let Some(found) = versions.pop() else {
        return Err(absent("there is no such version; `postrider ledger rules ls` lists them"));
    };
    desk.context.output.one(&found, found.document.trim_end())?;
    Ok(Exit::Ok)
}

/// Takes events through the whole pipeline on the tenant's books as they are, and writes nothing.
async fn try_on<B: Books>(
    rules: Rules,
    events: &std::path::Path,
    desk: &Desk<'_, B>,
) -> anyhow::Result<Exit> {
    let tenant = desk.tenant().await?;
    let chart = desk.ledger.books().read_chart(&tenant).await?;
    let mut chart = chart.with_context(|| format!("{tenant} keeps no books here; open them first"))?;
    chart.rules = rules;
    let (mut rows, mut refused): (Vec<Value>, usize) = (Vec::new(), 0);
    let (_, input) = Reading::open(events, desk.context)?;
    for line in ingest::lines(input) {
        let (number, line) = line?;
        let row = match ingest::read(&line, desk.context) {
            Err(why) => Some(rules_trial::refused(number, "malformed", &why)),
            Ok(envelope) => rules_trial::tried(&tenant, &chart, envelope, number, desk.context.clock.now()),
        };
        let Some(row) = row else { continue };
        refused += usize::from(row["refused"].is_string());
        rows.push(row);
    }
    desk.context.output.rows(&["LINE", "RULE", "DAY", "ENTRY"], &rows, cells)?;
    desk.context.output.note(&format!(
        "{} of {} events would be posted; nothing was",
        rows.len() - refused,
        rows.len()
    ));
    Ok(if refused == 0 { Exit::Ok } else { Exit::Unhealthy })
}

fn cells(row: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if row["refused"].is_string() {
        return vec![row["line"].to_string(), "refused".to_owned(), text(&row["refused"]), text(&row["why"])];
    }
    let lines = row["lines"].as_array().into_iter().flatten().map(|line| {
        format!(
            "{} {} {} {}",
            text(&line["side"]),
            text(&line["account"]),
            text(&line["amount"]),
            text(&line["currency"])
        )
    });
    let lines = lines.collect::<Vec<_>>().join("; ");
    vec![row["line"].to_string(), text(&row["rule"]), text(&row["effectiveOn"]), lines]
}
