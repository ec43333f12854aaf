//! `postrider-chaos --minutes N [--seed S] [--rate R] [--rabbitmq4] [--json] [--keep DIR]`: see `scripts/chaos --help`.
#![allow(clippy::print_stdout)] // a command line tool answers on its standard output

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use postrider::Clock;
use postrider_testkit::chaos::{Options, run};
use postrider_testkit::servers::RabbitVersion;

const USAGE: &str = "usage: postrider-chaos --minutes N [--seed S] [--rate EVENTS_PER_SECOND] [--rabbitmq4] [--json] \
                     [--keep DIR] [--commit NAME]";

#[tokio::main]
async fn main() -> ExitCode {
    match main_or_error().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn main_or_error() -> Result<bool> {
    let mut words = std::env::args().skip(1);
    let scratch = tempfile::Builder::new().prefix("postrider-chaos-").tempdir()?;
    let (mut minutes, mut json, mut keep): (f64, bool, Option<PathBuf>) = (3.0, false, None);
    let mut options = Options {
        lasts: Duration::ZERO,
        seed: u64::try_from(Clock::system().now().as_second()).unwrap_or(1),
        rate: 160.0,
        rabbitmq: RabbitVersion::Packaged,
        folder: scratch.path().to_owned(),
        commit: "unknown".to_owned(),
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value\n{USAGE}"));
        match word.as_str() {
            "--minutes" => minutes = value()?.parse().context(USAGE)?,
            "--seed" => options.seed = value()?.parse().context(USAGE)?,
            "--rate" => options.rate = value()?.parse().context(USAGE)?,
            "--commit" => options.commit = value()?,
            "--keep" => keep = Some(value()?.into()),
            "--rabbitmq4" => options.rabbitmq = RabbitVersion::Newer,
            "--json" => json = true,
            _ => bail!("{word} is not known\n{USAGE}"),
        }
    }
    options.lasts = Duration::try_from_secs_f64(minutes * 60.0).context(USAGE)?;
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
    Ok(report.is_clean())
}
