//! `postrider generate`: what goes with the binary, made from its own definitions: completions, the manual page,
//! the API's document, a dashboard, alerts.

mod alerts;
mod config_schema;
mod grafana;

use std::io::{self, Write as _};

use clap::{Args, Command, CommandFactory as _, Subcommand};
use clap_complete::Shell;

use super::Context;
use crate::api::metrics::catalogue;
use crate::catalog::{Catalog, asyncapi, docs};
use crate::cli::Cli;
use crate::exit::{Exit, usage};

/// What to print.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    postrider generate completions bash > ~/.local/share/bash-completion/completions/postrider\n  \
    postrider generate man > postrider.1\n  \
    postrider generate man dlq replay > postrider-dlq-replay.1\n  \
    postrider generate openapi > openapi.json\n  \
    postrider generate alerts --runbooks https://wiki.example.com/runbooks > /etc/prometheus/rules/postrider.yaml\n  \
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
    /// The manual page, in roff; of one command, if it is named
    Man {
        /// The command, such as `dlq replay`
        #[arg(value_name = "COMMAND")]
        of: Vec<String>,
    },
    /// The HTTP API as OpenAPI 3.1
    Openapi,
    /// A dashboard for Grafana, as JSON to import
    Grafana,
    /// Alerting rules for Prometheus, each with a runbook
    Alerts {
        /// Where your copy of docs/runbooks can be read, for the annotation `runbook_url`; a link in Alertmanager has to be a whole URL
        #[arg(long, value_name = "URL", default_value = "docs/runbooks")]
        runbooks: String,
    },
    /// The table of metrics, in Markdown
    Metrics,
    /// A JSON Schema of postrider.toml, for editors
    ConfigSchema,
    /// The event catalogue as an AsyncAPI 3 document
    Asyncapi,
    /// The page of routing keys, in markdown: which events there are and where they go
    EventRoutingKeys,
    /// The page of schemas, in markdown: what each event says
    EventSchemas,
    /// The runbook of Redis, in markdown, with the settings in use
    RedisRunbook,
}

impl GenerateArgs {
    /// Whether the configuration is read for it.
    pub(crate) fn needs_config(&self) -> bool {
        use What::{Asyncapi, EventRoutingKeys, EventSchemas, RedisRunbook};
        matches!(self.what, Asyncapi | EventRoutingKeys | EventSchemas | RedisRunbook)
    }
}

/// Prints it on stdout. Needs no configuration and no server.
pub(crate) fn run(args: &GenerateArgs) -> anyhow::Result<Exit> {
    let mut command = Cli::command();
    let mut text = Vec::new();
    match &args.what {
        What::Completions { shell } => clap_complete::generate(*shell, &mut command, "postrider", &mut text),
        What::Man { of } => clap_mangen::Man::new(named(command, of)?).render(&mut text)?,
        What::Openapi => write_json(&mut text, &crate::api::openapi::document())?,
        What::Grafana => write_json(&mut text, &grafana::dashboard())?,
        What::Alerts { runbooks } => text.extend(alerts::rules(runbooks).into_bytes()),
        What::Metrics => text.extend(catalogue::markdown().into_bytes()),
        What::ConfigSchema => write_json(&mut text, &config_schema::schema()?)?,
        What::Asyncapi | What::EventRoutingKeys | What::EventSchemas | What::RedisRunbook => {}
    }
    io::stdout().write_all(&text)?;
    Ok(Exit::Ok)
}

/// The command that these words name, with the name that its page has: `postrider-dlq-replay`.
fn named(mut command: Command, words: &[String]) -> anyhow::Result<Command> {
    if !words.is_empty() {
        command.build();
    }
    for word in words {
        let found = command.find_subcommand(word).cloned();
        command = found.ok_or_else(|| usage(format!("{} has no command {word}", command.get_name())))?;
    }
    Ok(command)
}

/// The same for what is made of the configuration and the catalogue.
pub(crate) fn of_config(args: &GenerateArgs, context: &Context) -> anyhow::Result<Exit> {
    let (settings, layout) = (&context.config.settings, &context.config.own.layout);
    let catalog = || Catalog::read(&settings.catalog.path);
    let text = match args.what {
        What::Asyncapi => {
            let mut text = serde_json::to_string_pretty(&asyncapi::document(&catalog()?, layout))?;
            text.push('\n');
            text
        }
        What::EventRoutingKeys => docs::routing_keys(&catalog()?, layout),
        What::EventSchemas => docs::schemas(&catalog()?),
        What::RedisRunbook => docs::redis_runbook(settings),
        _ => return run(args),
    };
    io::stdout().write_all(text.as_bytes())?;
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
