//! The command line: one variant a command, its arguments beside its code in `commands/`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::commands::{
    audit, bench, consumers, db, demo, dlq, doctor, event, generate, ledger, migration, ops, outbox,
    progress, publish, push, schema, serve, token, topology,
};
use crate::config::Flags;
use crate::output::{Format, Output};

/// Every event a service commits reaches every service that wants it, and takes effect once.
#[derive(Debug, Parser)]
#[command(name = "postrider", version, max_term_width = 110, arg_required_else_help = true)]
#[command(
    after_help = "With no configuration, everything runs on one SQLite file, .postrider/postrider.db. \
    DATABASE_URL and RABBITMQ_URL choose PostgreSQL and RabbitMQ; postrider.toml sets the rest.\n\n\
    Examples:\n  \
      postrider demo\n  \
      postrider publish shop.order.placed --data '{\"total\": \"12.50\"}'\n  \
      postrider serve\n  \
      postrider audit\n\n\
    Exit codes: 0 ok, 1 error, 2 usage, 3 drift, unhealthy or not verified, 4 not allowed, 5 declined, 6 partly done, 130 interrupted"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) shared: Shared,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes. Under a heading of its own, or it would stand between a command's own options.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Shared {
    /// The configuration file [default: postrider.toml, if there is one]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How data is printed on stdout
    #[arg(short, long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
    /// The same as --output json
    #[arg(long, global = true)]
    json: bool,
    /// Answer every question with yes
    #[arg(short, long, global = true)]
    yes: bool,
    /// Print data and errors only
    #[arg(short, long, global = true)]
    quiet: bool,
    /// What is logged on stderr: error, warn, info, debug, trace [default: log.level in serve, warn elsewhere]
    #[arg(long, global = true, value_name = "LEVEL")]
    log_level: Option<String>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// See it work: a small shop on the embedded default, no server needed
    Demo(demo::DemoArgs),
    /// Run it: relay, dead letters, push, ledger, HTTP API and dashboard, or the roles that are named
    Serve(serve::ServeArgs),
    /// Check every connection, schema, queue and clock, and say what to do
    Doctor(doctor::DoctorArgs),
    /// Create the database schema, see what it lacks, adopt an outbox, print roles
    Db(db::DbArgs),
    /// See what a topology is and bring a broker to it: presets, diagrams, routes, plan, apply, drift
    Topology(topology::TopologyArgs),
    /// Commit an event to the outbox
    Publish(publish::PublishArgs),
    /// Find dead letters; replay, discard or edit them
    Dlq(dlq::DlqArgs),
    /// List, watch and cancel operations: replays and other long work
    Ops(ops::OpsArgs),
    /// Trace one event, queue by queue, or erase what a person's events say
    Event(event::EventArgs),
    /// See what waits in the outbox and what stands still, and let it go on
    Outbox(outbox::OutboxArgs),
    /// Draw up the account of every consumer: committed = applied + waiting + dead
    Audit(audit::AuditArgs),
    /// List consumers, pause and resume them, and see what is held
    Consumers(consumers::ConsumersArgs),
    /// Keep financial books: events in, balanced entries out
    Ledger(ledger::LedgerArgs),
    /// See how far jobs have come
    Progress(progress::ProgressArgs),
    /// Move from an old bus to a new one: publish to both, compare, cut over, go back, finish
    Migration(migration::MigrationArgs),
    /// The event catalogue: list it, refuse changes that are not additive
    Schema(schema::SchemaArgs),
    /// Push events to endpoints: list, add, test, pause, rotate secrets, see attempts
    Push(push::PushArgs),
    /// Make, list and revoke tokens for the HTTP API
    Token(token::TokenArgs),
    /// Print what goes with the binary: completions, manual page, OpenAPI, AsyncAPI, dashboards, alerts, schemas
    Generate(generate::GenerateArgs),
    /// Measure the figures of the README, as ratios to a raw limit of the same run
    Bench(bench::BenchArgs),
}

impl Command {
    /// Whether it ends in order by itself on Ctrl-C; every other command is cut off.
    pub(crate) fn handles_signals(&self) -> bool {
        match self {
            Self::Serve(_) | Self::Demo(_) => true,
            Self::Dlq(args) => args.detaches(),
            Self::Ops(args) => args.detaches(),
            Self::Outbox(args) => args.detaches(),
            _ => false,
        }
    }
}

impl Shared {
    /// How this run speaks.
    pub(crate) fn speaking(&self) -> Output {
        let format = if self.json { Format::Json } else { self.output };
        Output { format, quiet: self.quiet, yes: self.yes }
    }

    /// What the flags set, for the configuration.
    pub(crate) fn flags(&self, command: &Command) -> Flags {
        let mut values = Vec::new();
        if let Some(level) = &self.log_level {
            values.push(("--log-level", "log.level", level.clone()));
        } else if !matches!(command, Command::Serve(_)) {
            values.push(("--log-level", "log.level", "warn".to_owned()));
        }
        if let Command::Serve(serve) = command {
            values.extend(serve.listen.iter().map(|at| ("--listen", "http.listen", at.clone())));
        }
        let broker_alone = matches!(command, Command::Topology(_));
        Flags { file: self.config.clone(), values, broker_alone }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    /// Commands without `--dry-run`, each because it changes nothing that stays: it reads, or runs until it is stopped, or, `push test`
    /// and `migration compare`, does for once what it is asked to try.
    const CHANGE_NOTHING: [&str; 67] = [
        "audit",
        "bench",
        "consumers held",
        "consumers ls",
        "db grants",
        "db status",
        "demo",
        "dlq export",
        "dlq groups",
        "dlq ls",
        "dlq show",
        "doctor",
        "event trace",
        "generate alerts",
        "generate asyncapi",
        "generate completions",
        "generate config-schema",
        "generate event-routing-keys",
        "generate event-schemas",
        "generate grafana",
        "generate man",
        "generate metrics",
        "generate openapi",
        "generate redis-runbook",
        "ledger accounts ls",
        "ledger balance",
        "ledger balance-sheet",
        "ledger book show",
        "ledger entries ls",
        "ledger entries show",
        "ledger export",
        "ledger income-statement",
        "ledger periods ls",
        "ledger proof",
        "ledger rates ls",
        "ledger rules check",
        "ledger rules ls",
        "ledger rules show",
        "ledger statement",
        "ledger totals",
        "ledger trial-balance",
        "ledger verify",
        "migration compare",
        "migration status",
        "ops get",
        "ops ls",
        "ops watch",
        "outbox ls",
        "outbox show",
        "outbox status",
        "progress get",
        "progress ls",
        "progress watch",
        "push attempts",
        "push ls",
        "push test",
        "schema check",
        "schema ls",
        "serve",
        "token ls",
        "topology diagram",
        "topology drift",
        "topology export",
        "topology plan",
        "topology presets",
        "topology render",
        "topology route",
    ];

    #[test]
    fn everything_that_changes_something_takes_dry_run() {
        let mut without = Vec::new();
        collect_without_dry_run(&<Cli as clap::CommandFactory>::command(), "", &mut without);
        without.retain(|name| !CHANGE_NOTHING.contains(&name.as_str()));
        assert_eq!(without, Vec::<String>::new(), "these need --dry-run, or a place in the list");
    }

    fn collect_without_dry_run(command: &clap::Command, path: &str, without: &mut Vec<String>) {
        let has = command.get_arguments().any(|argument| argument.get_long() == Some("dry-run"));
        if !command.has_subcommands() && !has {
            without.push(path.trim_start().to_owned());
        }
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            collect_without_dry_run(below, &format!("{path} {}", below.get_name()), without);
        }
    }

    /// What a help shows can be typed.
    #[test]
    fn every_command_has_examples_and_they_are_understood() {
        let whole = <Cli as clap::CommandFactory>::command();
        for command in whole.get_subcommands().filter(|command| command.get_name() != "help") {
            let mut examples = Vec::new();
            collect_examples(command, &mut examples);
            assert!(!examples.is_empty(), "the help of {} has no example", command.get_name());
            for example in examples {
                if let Err(error) = Cli::try_parse_from(words(&example)) {
                    panic!("{example}: {error}");
                }
            }
        }
    }

    fn collect_examples(command: &clap::Command, examples: &mut Vec<String>) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for line in help.lines().filter(|line| line.starts_with("  postrider ")) {
            let typed = line.split(" && ").flat_map(|part| part.split(" | ")).map(str::trim);
            examples.extend(typed.filter(|part| part.starts_with("postrider ")).map(str::to_owned));
        }
        command.get_subcommands().for_each(|below| collect_examples(below, examples));
    }

    /// As a shell reads them, up to where the output goes, or to a remark behind several blanks.
    fn words(example: &str) -> Vec<String> {
        let (mut words, mut word, mut is_quoted) = (Vec::new(), String::new(), false);
        for letter in example.chars() {
            match letter {
                '\'' => is_quoted = !is_quoted,
                ' ' if is_quoted => word.push(letter),
                ' ' if word.is_empty() || word == ">" => break,
                ' ' => words.push(std::mem::take(&mut word)),
                _ => word.push(letter),
            }
        }
        words.extend(Some(word).filter(|word| !word.is_empty() && word != ">"));
        words
    }

    #[test]
    fn no_help_shows_an_empty_default() {
        look_for_empty_defaults(<Cli as clap::CommandFactory>::command());
    }

    fn look_for_empty_defaults(mut command: clap::Command) {
        let help = command.render_long_help().to_string();
        assert!(!help.contains("[default: \"\"]"), "{help}");
        command.get_subcommands().for_each(|below| look_for_empty_defaults(below.clone()));
    }

    #[test]
    fn json_is_short_for_output_json() {
        let cli = Cli::parse_from(["postrider", "audit", "--json"]);
        assert_eq!(cli.shared.speaking().format, Format::Json);
    }
}
