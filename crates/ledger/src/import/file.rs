//! Entries of a file, one after the other: JSON lines or CSV, as they are exported.

use std::io::BufRead;

use super::csv::Records;
use super::past::{PastEntry, PastLine};
use crate::export;

/// An entry with the line it begins on, or why there is none.
type Read = (usize, Result<PastEntry, String>);

/// The entries of a file. A file that begins with a brace has JSON lines, any other is CSV with a header line.
pub fn entries(mut input: impl BufRead + 'static) -> std::io::Result<Box<dyn Iterator<Item = Read>>> {
    let begins = input.fill_buf()?.iter().find(|byte| !byte.is_ascii_whitespace()).copied();
    Ok(if begins == Some(b'{') { Box::new(documents(input)) } else { Box::new(Rows::new(input)) })
}

fn documents(input: impl BufRead) -> impl Iterator<Item = Read> {
    let lines = (1..).zip(input.split(b'\n'));
    let lines = lines.filter(|(_, line)| line.as_ref().map_or(true, |line| !line.trim_ascii().is_empty()));
    lines.map(|(number, line)| {
        let read = line.map_err(|error| error.to_string());
        (number, read.and_then(|line| serde_json::from_slice(&line).map_err(|error| error.to_string())))
    })
}

/// The columns that have to be there.
const NEEDED: [&str; 6] = ["source_event", "effective_on", "account", "side", "amount", "currency"];

/// The rows of a CSV file: those of one entry stand together, one for each line.
struct Rows<R: BufRead> {
    records: Records<R>,
    columns: Vec<String>,
    /// The row that was read after the end of the entry before.
    next: Option<(usize, Vec<String>)>,
    /// What is wrong with the file as a whole, to be told once.
    broken: Option<Read>,
}

impl<R: BufRead> Rows<R> {
    fn new(input: R) -> Self {
        let mut records = Records::new(input);
        let (line, header) = records.next().unwrap_or((1, Ok(Vec::new())));
        let mut columns: Vec<String> = header
            .unwrap_or_default()
            .iter()
            .map(|name| name.trim().trim_start_matches('\u{feff}').to_owned())
            .collect();
        let missing: Vec<_> =
            NEEDED.into_iter().filter(|name| !columns.iter().any(|column| column == name)).collect();
        let broken = (!missing.is_empty()).then(|| {
            let why = format!(
                "the header has no {}; history has the columns that `ledger export --format csv` writes, opening balances need --on DATE",
                missing.join(", ")
            );
            columns.clear();
            (line, Err(why))
        });
        Self { records, columns, next: None, broken }
    }

    fn cell<'a>(&self, row: &'a [String], name: &str) -> Option<&'a str> {
        let place = self.columns.iter().position(|column| column == name)?;
        row.get(place).map(String::as_str).filter(|cell| !cell.is_empty())
    }

    /// Whether two rows are lines of the same entry.
    fn is_one_entry(&self, one: &[String], other: &[String]) -> bool {
        ["entry", "source_event"].into_iter().all(|name| self.cell(one, name) == self.cell(other, name))
    }

    /// The entry of these rows.
    fn entry(&self, rows: &[Vec<String>]) -> Result<PastEntry, String> {
        let first = rows.first().map(Vec::as_slice).unwrap_or_default();
        let text = |name: &str| self.cell(first, name).map(export::unguarded);
        let needed = |name: &str| text(name).ok_or_else(|| format!("{name} is empty"));
        let read =
            |name: &str, value: &str, error: &dyn std::fmt::Display| format!("{name} {value:?}: {error}");
        let day = needed("effective_on")?;
        let metadata = text("metadata")
            .map(|json| serde_json::from_str(&json).map_err(|error| read("metadata", &json, &error)));
        let kind = text("kind").map(|kind| {
            serde_json::from_value(kind.clone().into()).map_err(|error| read("kind", &kind, &error))
        });
        let posted_at =
            text("posted_at").map(|at| at.parse().map_err(|error| read("posted_at", &at, &error)));
        let base = text("base_currency")
            .map(|base| base.parse().map_err(|error| read("base_currency", &base, &error)));
        let lines = rows.iter().filter(|row| self.cell(row, "account").is_some()).map(|row| self.line(row));
        Ok(PastEntry {
            source_event: needed("source_event")?,
            kind: kind.transpose()?.unwrap_or(crate::entry::EntryKind::Posted),
            effective_on: day.parse().map_err(|error| read("effective_on", &day, &error))?,
            entry: text("entry"),
            refers_to: text("refers_to"),
            tenant_id: text("tenant_id"),
            posted_at: posted_at.transpose()?,
            payload_hash: text("payload_hash"),
            rule: text("rule").unwrap_or_default(),
            description: text("description").unwrap_or_default(),
            metadata: metadata.transpose()?,
            base_currency: base.transpose()?,
            lines: lines.collect::<Result<_, _>>()?,
            hash: text("hash"),
        })
    }

    fn line(&self, row: &[String]) -> Result<PastLine, String> {
        let text = |name: &str| self.cell(row, name).map(export::unguarded);
        let needed = |name: &str| text(name).ok_or_else(|| format!("{name} is empty"));
        let side = needed("side")?;
        Ok(PastLine {
            account: needed("account")?,
            side: serde_json::from_value(side.clone().into())
                .map_err(|_| format!("the side {side:?} is neither debit nor credit"))?,
            amount: needed("amount")?,
            currency: needed("currency")?,
            base_amount: text("base_amount"),
            rate: text("rate"),
            rate_source: text("rate_source"),
        })
    }
}

impl<R: BufRead> Iterator for Rows<R> {
    type Item = Read;

    fn next(&mut self) -> Option<Read> {
        if self.columns.is_empty() {
            return self.broken.take();
        }
        let (line, first) = match self.next.take() {
            Some(next) => next,
            None => match self.records.next()? {
                (line, Ok(row)) => (line, row),
                (line, Err(why)) => return Some((line, Err(why))),
            },
        };
        let (mut rows, mut unread) = (vec![first], None);
        while let Some((at, record)) = self.records.next() {
            match record {
                // It may be a line of this entry, and half of an entry must not be posted.
                Err(why) => unread = Some(format!("line {at}: {why}")),
                Ok(row) if self.is_one_entry(&rows[0], &row) => rows.push(row),
                Ok(row) => {
                    self.next = Some((at, row));
                    break;
                }
            }
        }
        Some((line, unread.map_or_else(|| self.entry(&rows), Err)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The source event of an entry and how many lines it has, or why there is none.
    type Short = Result<(String, usize), String>;

    fn read(text: &'static str) -> Vec<(usize, Short)> {
        let read = entries(text.as_bytes()).unwrap();
        read.map(|(line, entry)| (line, entry.map(|entry| (entry.source_event, entry.lines.len())))).collect()
    }

    #[test]
    fn rows_of_one_entry_stand_together() {
        let file = "source_event,effective_on,account,side,amount,currency\n\
            a,2025-12-31,bank,debit,1,EUR\na,2025-12-31,sales,credit,1,EUR\n\n\
            b,2025-12-31,bank,debit,1,EUR\nb,2025-12-31,sales,credit,1,EUR\n\
            c,2025-13-31,bank,debit,1,EUR\nd,2025-12-31,bank,up,1,EUR\n";
        let found = read(file);
        assert_eq!(found[0], (2, Ok(("a".to_owned(), 2))));
        assert_eq!(found[1], (5, Ok(("b".to_owned(), 2))));
        assert!(matches!(&found[2], (7, Err(why)) if why.contains("effective_on")), "{found:?}");
        assert!(matches!(&found[3], (8, Err(why)) if why.contains("neither debit nor credit")), "{found:?}");
        assert_eq!(found.len(), 4);
    }

    #[test]
    fn half_of_an_entry_is_never_taken_for_the_whole() {
        let file = "source_event,effective_on,account,side,amount,currency\n\
            a,2025-12-31,bank,debit,1,EUR\na,2025-12-31,sales,credit,1,EUR\na,2025-12-31,\"bank,debit,1,EUR\n";
        assert!(matches!(&read(file)[..], [(2, Err(why))] if why == "line 4: a quote is not closed"));
    }

    #[test]
    fn a_file_of_something_else_is_named_once() {
        let found = read("name,amount\nx,1\ny,2\n");
        assert!(matches!(&found[..], [(1, Err(why))] if why.contains("no source_event")), "{found:?}");
        assert!(matches!(&read("{\"a\": 1}\n\n{")[..], [(1, Err(_)), (3, Err(_))]));
        assert!(matches!(&read("")[..], [(1, Err(_))]));
    }
}
