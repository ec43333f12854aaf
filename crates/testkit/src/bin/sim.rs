//! `postrider-sim [--from SEED] [--schedules N] [--seed S]`: plays schedules of the simulation, or one with its history.
#![allow(clippy::print_stdout)] // a command line tool answers on its standard output

use std::process::ExitCode;
use std::thread;

use anyhow::{Context as _, Result, bail};
use postrider::Clock;
use postrider_testkit::sim::{minimise, play, replay};

const USAGE: &str = "usage: postrider-sim [--from SEED] [--schedules N] | --seed S";

fn main() -> Result<ExitCode> {
    let mut words = std::env::args().skip(1);
    let (mut from, mut schedules, mut one) = (0, 100_000, None);
    while let Some(word) = words.next() {
        let value: u64 = words.next().and_then(|text| text.parse().ok()).context(USAGE)?;
        match word.as_str() {
            "--from" => from = value,
            "--schedules" => schedules = value,
            "--seed" => one = Some(value),
            _ => bail!("{word} is not known\n{USAGE}"),
        }
    }
    if let Some(seed) = one {
        let played = replay(seed, None);
        println!("{}\nseed {seed}, {} steps: {}", played.history.join("\n"), played.steps, played.verdict);
        return Ok(if played.verdict.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(3) });
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let clock = runtime.block_on(async { Clock::system() });
    let begun = clock.monotonic();
    let workers = thread::available_parallelism().map_or(2, usize::from) as u64;
    let failed = thread::scope(|scope| {
        let part = |worker: u64| {
            move || {
                let mut seeds = (from..from + schedules).skip(usize::try_from(worker).unwrap_or(0));
                seeds
                    .by_ref()
                    .step_by(usize::try_from(workers).unwrap_or(1))
                    .find(|seed| !play(*seed, None).verdict.is_clean())
            }
        };
        let parts: Vec<_> = (0..workers).map(|worker| scope.spawn(part(worker))).collect();
        parts.into_iter().filter_map(|part| part.join().ok().flatten()).min()
    });
    let took = clock.since(begun);
    let Some(seed) = failed else {
        println!(
            "{schedules} schedules from seed {from}: nothing lost, doubled or out of order, in {took:.1?}"
        );
        return Ok(ExitCode::SUCCESS);
    };
    let (plan, played) = minimise(seed, None);
    println!("{}\nseed {seed} with {plan:?}: {}", played.history.join("\n"), played.verdict);
    Ok(ExitCode::from(3))
}
