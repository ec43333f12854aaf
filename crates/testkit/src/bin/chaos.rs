//! `postrider-chaos --minutes N [--seed S] [--rate R] [--events N] [--faults N] [--at-most MINUTES] [--rabbitmq4] [--json]
//! [--keep DIR]`: see `scripts/chaos --help`.
#![allow(clippy::print_stdout)] // a command line tool answers on its standard output

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use postrider::Clock;
use postrider_testkit::chaos::{Floor, Options, Report, run};
use postrider_testkit::servers::RabbitVersion;

const USAGE: &str = "usage: postrider-chaos --minutes N [--seed S] [--rate EVENTS_PER_SECOND] [--events N] [--faults N] \
                     [--at-most MINUTES] [--rabbitmq4] [--json] [--keep DIR] [--commit NAME]";

#[tokio::main]
async fn main() -> ExitCode {
    match main_or_error().await {
        Ok(report) if !report.is_clean() => ExitCode::from(3),
        Ok(report) if !report.enough => ExitCode::from(4),
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn main_or_error() -> Result<Report> {
    let mut words = std::env::args().skip(1);
    let scratch = tempfile::Builder::new().prefix("postrider-chaos-").tempdir()?;
    let (mut json, mut keep): (bool, Option<PathBuf>) = (false, None);
    let mut options = Options {
        lasts: Duration::from_mins(3),
        floor: Floor::default(),
        seed: u64::try_from(Clock::system().now().as_second()).unwrap_or(1),
        rate: 160.0,
        rabbitmq: RabbitVersion::Packaged,
        folder: scratch.path().to_owned(),
        commit: "unknown".to_owned(),
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value\n{USAGE}"));
        match word.as_str() {
            "--minutes" => options.lasts = minutes_of(&value()?)?,
            "--events" => options.floor.events = value()?.parse().context(USAGE)?,
            "--faults" => options.floor.faults = value()?.parse().context(USAGE)?,
            "--at-most" => options.floor.at_most = minutes_of(&value()?)?,
            "--seed" => options.seed = value()?.parse().context(USAGE)?,
            "--rate" => options.rate = value()?.parse().context(USAGE)?,
            "--commit" => options.commit = value()?,
            "--keep" => keep = Some(value()?.into()),
            "--rabbitmq4" => options.rabbitmq = RabbitVersion::Newer,
            "--json" => json = true,
            _ => bail!("{word} is not known\n{USAGE}"),
        }
    }
    if let Some(folder) = keep {
        std::fs::create_dir_all(&folder)?;
        options.folder = folder.canonicalize()?;
    }
    let report = run(&options).await?;
    if json {
        println!("{:#}", report.to_json());
    } else {
        print!("{report}");
    }
    Ok(report)
}

fn minutes_of(text: &str) -> Result<Duration> {
    Duration::try_from_secs_f64(60.0 * text.parse::<f64>().context(USAGE)?).context(USAGE)
}
