//! `postrider bench`: the figures of the README, as ratios measured in one run.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::Context;
use crate::bench::{Better, Embedded, Figure, Load, Part, Servers, Sizes, chart};
use crate::config::Backends;
use crate::exit::{Exit, usage};
use crate::output::table;

/// What is measured.
#[derive(Debug, Args)]
#[command(
    after_help = "Every figure is a ratio to a raw limit, measured in the same run: the broker's own client, bare transactions, a \
    plain posting function. Of several rounds the median counts. On the embedded default it works in a file of its \
    own. On servers it writes to the outbox and to queues of its own, and removes what it wrote: use a database \
    where nothing else waits.\n\n\
    Examples:\n  \
      scripts/bench                        with servers of its own for the occasion\n  \
      scripts/bench --quick                a coarse answer within three minutes\n  \
      postrider bench --only relay,delay   on the servers of the configuration\n  \
      postrider bench --json --svg bench.svg --markdown bench.md"
)]
pub(crate) struct BenchArgs {
    /// Measure these parts alone
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART,…")]
    only: Vec<Part>,
    /// A coarse answer soon: one short round of everything
    #[arg(long)]
    quick: bool,
    /// Events in each round
    #[arg(long, value_name = "N", default_value_if("quick", "true", "4000"), default_value = "20000")]
    events: usize,
    /// Bytes of payload in each event
    #[arg(long, default_value_t = 1024, value_name = "N")]
    bytes: usize,
    /// Rounds, of which the median counts
    #[arg(long, value_name = "N", default_value_if("quick", "true", "1"), default_value = "3")]
    rounds: usize,
    /// Relay with so many ordering keys alone; 0 for none, 1 for one hot key
    #[arg(long, value_name = "N")]
    keys: Option<usize>,
    /// Events a second while the time from commit to confirm is measured
    #[arg(long, default_value_t = 1000, value_name = "N")]
    rate: u32,
    /// Dead letters, and events, to find something among
    #[arg(long, value_name = "N", default_value_if("quick", "true", "20000"), default_value = "1000000")]
    letters: usize,
    /// Of these, send so many again
    #[arg(long, value_name = "N", default_value_if("quick", "true", "5000"), default_value = "100000")]
    replays: u64,
    /// Rows that outbox, inbox and dead letters grow to
    #[arg(long, value_name = "N", default_value_if("quick", "true", "100000"), default_value = "5000000")]
    rows: usize,
    /// What these servers are called in the table
    #[arg(long, value_name = "NAME", default_value = "PostgreSQL + RabbitMQ")]
    on: String,
    /// Tell the figures of another run (its --json) with these, before them
    #[arg(long, value_name = "FILE")]
    after: Option<PathBuf>,
    /// Write the figures as a picture too
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the figures as a Markdown table too
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

impl BenchArgs {
    fn sizes(&self) -> Sizes {
        let keys = match self.keys {
            Some(keys) => vec![keys],
            None => vec![0, 5000, 1],
        };
        let steps = [1_000, 100_000, 1_000_000, 5_000_000];
        let mut rows: Vec<_> = steps.into_iter().filter(|step| *step < self.rows).collect();
        rows.push(self.rows);
        Sizes {
            keys,
            history: self.letters,
            rate: self.rate,
            lasting: Duration::from_secs(if self.quick { 2 } else { 10 }),
            letters: self.letters,
            replays: self.replays,
            rows,
        }
    }

    fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }
}

/// Of the table.
const COLUMNS: [&str; 7] = ["FIGURE", "ON", "RATIO", "TARGET", "MEASURED", "RAW", "ROUNDS"];

/// What is printed.
#[derive(Serialize, Deserialize)]
struct Report {
    figures: Vec<Figure>,
}

/// Measures on whatever is configured.
pub(crate) async fn run(args: BenchArgs, context: &Context) -> anyhow::Result<Exit> {
    if args.events == 0 || args.rounds == 0 || args.rate == 0 {
        return Err(usage("--events, --rounds and --rate must be at least 1"));
    }
    let mut figures = args.after.as_deref().map_or(Ok(Vec::new()), read)?;
    let measured = measure(&args, context, &mut figures).await;
    // What was measured before something failed took long enough to be told.
    if measured.is_ok() || !figures.is_empty() {
        tell(&args, context, figures)?;
    }
    measured?;
    Ok(Exit::Ok)
}

/// The figures of another run.
fn read(file: &Path) -> anyhow::Result<Vec<Figure>> {
    let bad = |why: String| usage(format!("{} has no figures of `bench --json`: {why}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|why| bad(why.to_string()))?;
    let report: Report = serde_json::from_str(&text).map_err(|why| bad(why.to_string()))?;
    Ok(report.figures)
}

fn tell(args: &BenchArgs, context: &Context, figures: Vec<Figure>) -> anyhow::Result<()> {
    for (file, text) in [(&args.svg, chart(&figures)), (&args.markdown, markdown(&figures))] {
        if let Some(file) = file {
            std::fs::write(file, text)
                .map_err(|why| usage(format!("{} cannot be written: {why}", file.display())))?;
        }
    }
    let text = table(&COLUMNS, figures.iter().map(row));
    context.output.one(&Report { figures }, &text)
}

async fn measure(args: &BenchArgs, context: &Context, figures: &mut Vec<Figure>) -> anyhow::Result<()> {
    if let Backends::Networked { database, broker } = &context.config.backends {
        let mut servers = Servers::open(context, database, broker, &args.on).await?;
        let measured = on_servers(&mut servers, args, figures).await;
        servers.remove().await?;
        measured?;
        // Of the embedded default, what compares with nothing on servers.
        on_embedded(&[Part::Embedded], args, context, figures).await
    } else {
        if let Some(part) = args.only.iter().find(|part| !Embedded::PARTS.contains(part)) {
            return Err(usage(format!(
                "{part:?} is measured on servers; set DATABASE_URL and RABBITMQ_URL, or use scripts/bench"
            )));
        }
        on_embedded(&Embedded::PARTS, args, context, figures).await
    }
}

async fn on_servers(
    servers: &mut Servers<'_>,
    args: &BenchArgs,
    figures: &mut Vec<Figure>,
) -> anyhow::Result<()> {
    const ALL: [Part; 11] = [
        Part::Relay,
        Part::Delay,
        Part::Consumer,
        Part::EndToEnd,
        Part::Duplicates,
        Part::Http,
        Part::Letters,
        Part::Ledger,
        Part::Dashboard,
        Part::Memory,
        // The last, because it leaves the tables large.
        Part::Growth,
    ];
    for part in ALL.into_iter().filter(|part| args.wants(*part)) {
        figures.extend(servers.measure(part, load(args), &args.sizes()).await?);
    }
    Ok(())
}

async fn on_embedded(
    parts: &[Part],
    args: &BenchArgs,
    context: &Context,
    figures: &mut Vec<Figure>,
) -> anyhow::Result<()> {
    for part in parts.iter().copied().filter(|part| args.wants(*part)) {
        let mut embedded = Embedded::open(&context.clock).await?;
        let measured = embedded.measure(part, load(args), &args.sizes()).await;
        embedded.remove().await;
        figures.extend(measured?);
    }
    Ok(())
}

fn load(args: &BenchArgs) -> Load {
    Load { events: args.events, bytes: args.bytes, keys: 0, rounds: args.rounds }
}

fn row(figure: &Figure) -> Vec<String> {
    let value = |value: f64| format!("{value:.*} {}", usize::from(value < 100.0), figure.unit);
    let target = figure.target.map_or(String::new(), |target| {
        let sign = if figure.better == Better::Higher { "≥" } else { "≤" };
        let missed = if figure.is_reached() { "" } else { " missed" };
        format!("{sign} {target}{missed}")
    });
    let rounds = match figure.rounds.as_slice() {
        [least, .., most] => format!("{least:.2} to {most:.2}"),
        _ => String::new(),
    };
    vec![
        figure.name.clone(),
        figure.backend.clone(),
        format!("{:.2}", figure.ratio),
        target,
        value(figure.value),
        value(figure.raw),
        rounds,
    ]
}

/// The same table as it stands in `docs/figures.md`.
fn markdown(figures: &[Figure]) -> String {
    let line = |cells: &[String]| {
        format!("| {} |\n", cells.iter().map(|cell| cell.replace('|', "\\|")).collect::<Vec<_>>().join(" | "))
    };
    let head = line(&COLUMNS.map(str::to_lowercase));
    let rows = figures.iter().map(|figure| line(&row(figure)));
    format!("{head}{}|\n{}", "|---".repeat(COLUMNS.len()), rows.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_markdown_table_has_a_line_for_each_figure_and_a_bar_in_a_name_breaks_none() {
        let figure = |name: &str| Figure::median(name, "embedded", "/s", vec![(30.0, 40.0)]).unwrap();
        let text = markdown(&[figure("relay").aims_at(0.8), figure("a | b")]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "| figure | on | ratio | target | measured | raw | rounds |");
        assert_eq!(lines[1], "|---|---|---|---|---|---|---|");
        assert_eq!(lines[2], "| relay | embedded | 0.75 | ≥ 0.8 missed | 30.0 /s | 40.0 /s |  |");
        assert!(lines[3].starts_with("| a \\| b | embedded |"), "{text}");
        assert_eq!(lines.len(), 4);
    }
}
