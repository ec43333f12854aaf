//! `postrider bench`: the figures of the README, as ratios measured in one run.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::Context;
use crate::bench::{Better, Embedded, Figure, Load, Part, Servers, Sizes, chart};
use crate::config::Backends;
use crate::exit::{Exit, usage};
use crate::output::table;

/// What is measured.
#[derive(Debug, Args)]
#[command(
    after_help = "Every figure is a ratio to a raw limit, measured in the same run: the broker's own client, bare transactions, a\n\
    plain posting function. Of several rounds the median counts. On the embedded default it works in a file of its\n\
    own. On servers it writes to the outbox and to queues of its own, and removes what it wrote: use a database\n\
    where nothing else waits.\n\n\
    Examples:\n  \
      scripts/bench                        with servers of its own for the occasion\n  \
      scripts/bench --quick                a coarse answer within three minutes\n  \
      postrider bench --only relay,delay   on the servers of the configuration\n  \
      postrider bench --json --svg bench.svg"
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
    /// Rows that outbox and inbox grow to
    #[arg(long, value_name = "N", default_value_if("quick", "true", "100000"), default_value = "5000000")]
    rows: usize,
    /// Write the figures as a picture too
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
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

/// What is printed.
#[derive(Serialize)]
struct Report {
    figures: Vec<Figure>,
}

/// Measures on whatever is configured.
pub(crate) async fn run(args: BenchArgs, context: &Context) -> anyhow::Result<Exit> {
    if args.events == 0 || args.rounds == 0 || args.rate == 0 {
        return Err(usage("--events, --rounds and --rate must be at least 1"));
    }
    let mut figures = Vec::new();
    if let Backends::Networked { database, broker } = &context.config.backends {
        let mut servers = Servers::open(context, database, broker).await?;
        let measured = on_servers(&mut servers, &args, &mut figures).await;
        servers.remove().await?;
        measured?;
        // Of the embedded default, what compares with nothing on servers.
        on_embedded(&[Part::Embedded], &args, context, &mut figures).await?;
    } else {
        if let Some(part) = args.only.iter().find(|part| !Embedded::PARTS.contains(part)) {
            return Err(usage(format!(
                "{part:?} is measured on servers; set DATABASE_URL and RABBITMQ_URL, or use scripts/bench"
            )));
        }
        on_embedded(&Embedded::PARTS, &args, context, &mut figures).await?;
    }
    if let Some(file) = &args.svg {
        std::fs::write(file, chart(&figures))
            .map_err(|why| usage(format!("{} cannot be written: {why}", file.display())))?;
    }
    let text =
        table(&["FIGURE", "ON", "RATIO", "TARGET", "MEASURED", "RAW", "ROUNDS"], figures.iter().map(row));
    context.output.one(&Report { figures }, &text)?;
    Ok(Exit::Ok)
}

async fn on_servers(
    servers: &mut Servers<'_>,
    args: &BenchArgs,
    figures: &mut Vec<Figure>,
) -> anyhow::Result<()> {
    const ALL: [Part; 10] = [
        Part::Relay,
        Part::Delay,
        Part::Consumer,
        Part::EndToEnd,
        Part::Duplicates,
        Part::Http,
        Part::Letters,
        Part::Ledger,
        Part::Dashboard,
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
