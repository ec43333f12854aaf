//! Data on stdout, in the format that was asked for; messages on stderr.

use std::io::{self, IsTerminal as _, Write as _};

use comfy_table::{ColumnConstraint, ContentArrangement, Table, presets};
use jiff::Timestamp;
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
            Format::Table => write_out(&format!("{}\n", tame(text))),
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
            eprintln!("{}", tame(text));
        }
    }

    /// A finding that the table has no room for: data for people, a message beside the document that has it too.
    pub(crate) fn finding(self, text: &str) -> anyhow::Result<()> {
        match self.format {
            Format::Table => write_out(&format!("{text}\n")),
            Format::Json | Format::Jsonl => {
                self.note(text);
                Ok(())
            }
        }
    }

    /// Asks before something is destroyed. Without a terminal nobody can answer, so the flag has to.
    pub(crate) fn confirm(self, question: &str) -> anyhow::Result<()> {
        if self.yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() {
            // Some questions go on with what the answer leads to.
            let end = if question.ends_with('?') { "" } else { "." };
            return Err(usage(format!(
                "{question}{end} There is no terminal to ask on; to answer yes, add --yes"
            )));
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
    arranged(header, rows, None)
}

fn arranged(header: &[&str], rows: impl Iterator<Item = Vec<String>>, width: Option<u16>) -> String {
    let mut header = header.to_vec();
    let mut rows: Vec<Vec<String>> =
        rows.map(|cells| cells.iter().map(|cell| tame(cell).replace('\n', "\u{fffd}")).collect()).collect();
    let mut table = plain(&header, &rows, width);
    for spare in SPARE {
        if keep_ids_whole(&mut table, &header) {
            break;
        }
        for column in
            (0..header.len()).rev().filter(|&column| spare(&header, &rows, column)).collect::<Vec<_>>()
        {
            header.remove(column);
            for row in rows.iter_mut().filter(|row| column < row.len()) {
                row.remove(column);
            }
        }
        table = plain(&header, &rows, width);
    }
    // What has an id is looked up by it: of the rest a beginning is enough.
    if keep_ids_whole(&mut table, &header) && table.width().is_some() && header.first() == Some(&"ID") {
        table.set_truncation_indicator("…");
        for row in table.row_iter_mut() {
            row.max_height(LINES);
        }
    }
    let lines = table.to_string();
    lines.lines().map(|line| line.strip_prefix(' ').unwrap_or(line).trim_end()).collect::<Vec<_>>().join("\n")
}

fn plain(header: &[&str], rows: &[Vec<String>], width: Option<u16>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    if let Some(width) = width {
        table.set_width(width);
    }
    table.set_header(header.iter().copied()).add_rows(rows.iter().cloned());
    table
}

/// Of a header and rows, a column.
type IsSpare = fn(&[&str], &[Vec<String>], usize) -> bool;

/// What a terminal too narrow for all columns can do without, the first of these first. `show` and the other formats have all of it.
const SPARE: [IsSpare; 2] = [
    |_, rows, column| {
        !rows.is_empty() && rows.iter().all(|row| row.get(column).is_some_and(String::is_empty))
    },
    |header, _, column| header.first() == Some(&"ID") && matches!(header[column], "EVENT" | "REPLAYS"),
];

/// What people copy into their next command.
const IDS: [&str; 3] = ["ID", "EVENT", "GROUP"];

/// The most lines of such a row.
const LINES: usize = 3;

/// As much as any other column needs to be read; the second where there is no room for the first.
const READABLE: [u16; 2] = [8, 6];

/// An id that is broken over lines cannot be copied. Where the other columns have room enough, it stays whole; says whether they have.
fn keep_ids_whole(table: &mut Table, header: &[&str]) -> bool {
    let Some(width) = table.width() else { return true };
    let widths = table.column_max_content_widths();
    let is_id = |index: usize| header.get(index).is_some_and(|name| IDS.contains(name));
    let fits = |readable: u16| {
        let wanted = widths.iter().enumerate().map(|(index, &content)| {
            let least = if is_id(index) { content } else { content.min(readable) };
            u32::from(least) + 2
        });
        wanted.sum::<u32>() <= u32::from(width)
    };
    if !READABLE.into_iter().any(fits) {
        return false;
    }
    for index in (0..widths.len()).filter(|&index| is_id(index)) {
        if let Some(column) = table.column_mut(index) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    true
}

/// How long ago, in one unit.
pub(crate) fn ago(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(then).as_secs().max(0);
    match seconds {
        0..60 => format!("{seconds}s ago"),
        60..3600 => format!("{}m ago", seconds / 60),
        3600..86_400 => format!("{}h ago", seconds / 3600),
        _ => format!("{}d ago", seconds / 86_400),
    }
}

/// Ids and errors of others may have anything in them: what would steer a terminal is shown as a mark. Colours may stay.
fn tame(text: &str) -> String {
    let mut tamed = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(letter) = rest.next() {
        let steers =
            letter.is_control() && !matches!(letter, '\n' | '\t') && !is_color(letter, rest.as_str());
        tamed.push(if steers { '\u{fffd}' } else { letter });
    }
    tamed
}

fn is_color(letter: char, after: &str) -> bool {
    let code =
        after.strip_prefix('[').map(|code| code.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';'));
    letter == '\u{1b}' && code.is_some_and(|code| code.starts_with('m'))
}

/// Writes to stdout. A reader that has seen enough (`| head`) is no error.
fn write_out(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_does_not_steer_the_terminal() {
        let (title, color) = ("evt\u{1b}]0;pwned\u{7}\u{1b}[2J", "\u{1b}[32m+\u{1b}[0m queue");
        assert_eq!(tame(title), "evt\u{fffd}]0;pwned\u{fffd}\u{fffd}[2J");
        assert_eq!(tame(color), color);
        assert_eq!(tame("one\n\ttwo"), "one\n\ttwo");
        let listed = table(&["ID"], [vec!["a\nfaked".to_owned()]].into_iter());
        assert_eq!(listed, "ID\na\u{fffd}faked");
    }

    #[test]
    fn an_id_stays_whole_where_there_is_room() {
        let id = "01a1eec5-3fd4-70fb-914d-d618aa07cc21";
        let shown = |width: u16| {
            let cells = ["open", id, "shop.order.placed", "the endpoint answered 503 after ten seconds"];
            let row = cells.map(str::to_owned).to_vec();
            arranged(&["STATUS", "EVENT", "TYPE", "ERROR"], [row].into_iter(), Some(width))
        };
        assert!(shown(72).contains(id), "{}", shown(72));
        assert!(shown(72).lines().all(|line| line.chars().count() <= 72), "{}", shown(72));
        // Too narrow for that: everything is broken rather than cut off.
        assert!(!shown(50).contains(id) && shown(50).contains("open"), "{}", shown(50));
        // Of the groups, where everybody begins, the id is whole on a terminal of 80 columns.
        let header = ["GROUP", "OPEN", "TOTAL", "CONSUMER", "TYPE", "REASON", "LAST", "OVER TIME", "ERROR"];
        let (group, time) = ("816db0984472743d", "·······················█");
        let cells =
            [group, "6", "6", "warehouse", "shop.order.placed", "rejected", "18s ago", time, "cannot ship"];
        let groups = arranged(&header, [cells.map(str::to_owned).to_vec()].into_iter(), Some(80));
        assert!(groups.contains(group) && groups.lines().all(|line| line.chars().count() <= 80), "{groups}");
    }

    #[test]
    fn a_narrow_terminal_does_without_what_it_can() {
        let id = "01a1eec5-3fd4-70fb-914d-d618aa07cc21";
        let header = ["ID", "TYPE", "KEY", "STATUS", "ATTEMPTS", "CREATED", "ERROR"];
        let events = |error: &str, width| {
            let key = "shop.invoice/order-01a1f5b0-d1f2-7628-b4d0-ed1e75616418";
            let cells = [id, "shop.invoice.issued", key, "published", "0", "4s ago", error];
            arranged(&header, [cells.map(str::to_owned).to_vec()].into_iter(), width)
        };
        assert!(events("", None).contains("ERROR"), "nobody looks at a terminal");
        assert!(events("", Some(80)).contains(id) && !events("", Some(80)).contains("ERROR"));
        assert_eq!((events("", Some(80)).lines().count(), events("", Some(80)).matches('…').count()), (5, 1));
        assert!(events("no route", Some(80)).contains("ERROR"), "it says something");

        let header =
            ["ID", "DEAD", "STATUS", "CONSUMER", "TYPE", "EVENT", "REASON", "ATTEMPTS", "REPLAYS", "ERROR"];
        let cells = [
            "2",
            "4s ago",
            "open",
            "warehouse",
            "shop.order.placed",
            id,
            "rejected",
            "1",
            "0",
            "cannot ship",
        ];
        let letters = |width| arranged(&header, [cells.map(str::to_owned).to_vec()].into_iter(), Some(width));
        assert!(letters(120).contains(id) && letters(120).contains("REPLAYS"), "{}", letters(120));
        assert!(!letters(80).contains("EVENT") && letters(80).contains("cannot ship"), "{}", letters(80));
    }
}
