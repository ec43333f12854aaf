//! `postrider-servers up [--cluster] [--dir DIR]` and `postrider-servers down [--dir DIR]`: the servers that the tests of
//! one run share.
#![allow(clippy::print_stdout)] // a command line tool answers on its standard output

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use postrider_testkit::servers::{self, Fleet};

const USAGE: &str = "usage: postrider-servers up [--cluster] [--dir DIR] | down [--dir DIR]";

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let command = words.next().context(USAGE)?;
    let mut folder = PathBuf::from(".servers");
    let mut cluster = false;
    while let Some(word) = words.next() {
        match word.as_str() {
            "--cluster" if command == "up" => cluster = true,
            "--dir" => folder = words.next().context(USAGE)?.into(),
            _ => bail!("{word} is not known\n{USAGE}"),
        }
    }
    let env = folder.join("env");
    match command.as_str() {
        "up" => match servers::up(&folder, cluster).await? {
            Fleet::Started => println!("servers are up: source {}", env.display()),
            Fleet::AlreadyUp => {
                println!("servers were up already, nothing changed: source {}", env.display());
            }
        },
        "down" => {
            servers::down(&folder)?;
            println!("servers of {} are down", folder.display());
        }
        _ => bail!("{command} is not known\n{USAGE}"),
    }
    Ok(())
}
