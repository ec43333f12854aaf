//! Data on stdout, in the format that was asked for; messages on stderr.

use std::io::{self, IsTerminal as _, Write as _};

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use crate::exit::{Declined, usage};

/// What stdout is for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Table,
    /// One JSON document; its members are stable.
    Json,
    /// One JSON document a line.
    Jsonl,
}

/// How this run speaks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    /// What stdout is for.
    pub(crate) format: Format,
    /// Only data and errors.
    pub(crate) quiet: bool,
    /// Every question is answered with yes.
    pub(crate) yes: bool,
}

impl Output {
    /// A list: a table, an array, or a line each.
    pub(crate) fn rows<T: Serialize>(
        self,
        header: &[&str],
        rows: &[T],
        cells: impl Fn(&T) -> Vec<String>,
    ) -> anyhow::Result<()> {
        match self.format {
            Format::Table => write_out(&format!("{}\n", table(header, rows.iter().map(cells)))),
            Format::Json => self.document(&rows),
            Format::Jsonl => rows.iter().try_for_each(|row| self.document(row)),
        }
    }

    /// One thing: its JSON, or the text that people read.
    pub(crate) fn one<T: Serialize>(self, value: &T, text: &str) -> anyhow::Result<()> {
        match self.format {
            Format::Table => write_out(&format!("{text}\n")),
            Format::Json | Format::Jsonl => self.document(value),
        }
    }

    /// Whether people read it.
    pub(crate) fn is_for_people(self) -> bool {
        self.format == Format::Table
    }

    /// A message that can be left out.
    pub(crate) fn note(self, text: &str) {
        if !self.quiet {
            eprintln!("{text}");
        }
    }

    /// Asks before something is destroyed. Without a terminal nobody can answer, so the flag has to.
    pub(crate) fn confirm(self, question: &str) -> anyhow::Result<()> {
        if self.yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() {
            return Err(usage(format!("{question}: nobody is here to answer; add --yes")));
        }
        eprint!("{question} [y/N] ");
        let mut answer = String::new();
        io::stdin().read_line(&mut answer)?;
        if matches!(answer.trim(), "y" | "Y" | "yes") {
            return Ok(());
        }
        Err(Declined("nothing was changed".to_owned()).into())
    }

    fn document<T: Serialize + ?Sized>(self, value: &T) -> anyhow::Result<()> {
        let json = match self.format {
            Format::Jsonl => serde_json::to_string(value)?,
            Format::Table | Format::Json => serde_json::to_string_pretty(value)?,
        };
        write_out(&format!("{json}\n"))
    }
}

/// Plain columns, as wide as the terminal allows.
pub(crate) fn table(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(header.iter().copied()).add_rows(rows);
    let lines = table.to_string();
    lines.lines().map(|line| line.strip_prefix(' ').unwrap_or(line).trim_end()).collect::<Vec<_>>().join("\n")
}

/// Writes to stdout. A reader that has seen enough (`| head`) is no error.
fn write_out(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
