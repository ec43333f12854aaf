//! `postrider generate`: what goes with the binary, made from its own definitions: completions, the manual page, a dashboard, alerts.

mod alerts;
mod config_schema;
mod grafana;

use std::io::{self, Write as _};

use clap::{Args, CommandFactory as _, Subcommand};
use clap_complete::Shell;

use crate::api::metrics::catalogue;
use crate::cli::Cli;
use crate::exit::Exit;

/// What to print.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    postrider generate completions bash > ~/.local/share/bash-completion/completions/postrider\n  \
    postrider generate man > postrider.1\n  \
    postrider generate alerts > /etc/prometheus/rules/postrider.yaml\n  \
    postrider generate grafana > postrider-dashboard.json\n  \
    postrider generate config-schema > postrider.schema.json")]
pub(crate) struct GenerateArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Completions for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// The manual page, in roff
    Man,
    /// A dashboard for Grafana, as JSON to import
    Grafana,
    /// Alerting rules for Prometheus, each with a runbook
    Alerts {
        /// Where the runbooks are, for the annotation `runbook_url`
        #[arg(long, value_name = "URL", default_value = "docs/runbooks")]
        runbooks: String,
    },
    /// The table of metrics, in Markdown
    Metrics,
    /// A JSON Schema of postrider.toml, for editors
    ConfigSchema,
}

/// Prints it on stdout. Needs no configuration and no server.
pub(crate) fn run(args: &GenerateArgs) -> anyhow::Result<Exit> {
    let mut command = Cli::command();
    let mut text = Vec::new();
    match &args.what {
        What::Completions { shell } => clap_complete::generate(*shell, &mut command, "postrider", &mut text),
        What::Man => clap_mangen::Man::new(command).render(&mut text)?,
        What::Grafana => write_json(&mut text, &grafana::dashboard())?,
        What::Alerts { runbooks } => text.extend(alerts::rules(runbooks).into_bytes()),
        What::Metrics => text.extend(catalogue::markdown().into_bytes()),
        What::ConfigSchema => write_json(&mut text, &config_schema::schema()?)?,
    }
    io::stdout().write_all(&text)?;
    Ok(Exit::Ok)
}

fn write_json(text: &mut Vec<u8>, value: &serde_json::Value) -> anyhow::Result<()> {
    serde_json::to_writer_pretty(&mut *text, value)?;
    text.push(b'\n');
    Ok(())
}

/// The metrics that a query names, by the names that they have in the catalogue.
#[cfg(test)]
fn metrics_of(query: &str) -> Vec<String> {
    let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let named = words.filter(|word| word.starts_with("postrider_") || word.starts_with("event_publish_"));
    let plain = |word: &str| {
        let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end));
        histogram.unwrap_or(word).to_owned()
    };
    named.map(plain).collect()
}
