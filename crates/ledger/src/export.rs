//! The journal in formats that other programs read: CSV, JSON lines, and the text of hledger and beancount.
//!
//! CSV and JSON lines have every entry and everything that its hash is made of. The texts for hledger and beancount have what
//! counts: pending entries, voids and seals are left out, so that those programs come to the same balances.

mod plain_text;

use std::fmt::Write as _;

use crate::chart::Chart;
use crate::entry::{Effect, Sealed};
use crate::journal_event;

pub use plain_text::{Beancount, Hledger};

/// The formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A row for each line.
    Csv,
    /// A document for each entry.
    Jsonl,
    /// hledger.
    Hledger,
    /// beancount.
    Beancount,
}

/// Writes entries one after the other.
pub enum Exporter {
    /// CSV.
    Csv,
    /// JSON lines.
    Jsonl(crate::money::Currency),
    /// hledger.
    Hledger(Hledger),
    /// beancount.
    Beancount(Beancount),
}

impl Exporter {
    /// For a tenant's chart.
    pub fn new(format: Format, chart: &Chart) -> Self {
        match format {
            Format::Csv => Self::Csv,
            Format::Jsonl => Self::Jsonl(chart.book.base_currency),
            Format::Hledger => Self::Hledger(Hledger::new(chart)),
            Format::Beancount => Self::Beancount(Beancount::new(chart)),
        }
    }

    /// What stands before the first entry.
    pub fn head(&self) -> String {
        match self {
            Self::Csv => "entry,kind,effective_on,posted_at,source_event,description,refers_to,line,account,side,amount,currency,\
                 base_amount,rate,rate_source,hash,tenant_id,payload_hash,rule,metadata,base_currency\n"
                .to_owned(),
            Self::Jsonl(_) => String::new(),
            Self::Hledger(hledger) => hledger.head(),
            Self::Beancount(beancount) => beancount.head(),
        }
    }

    /// One entry.
    pub fn entry(&mut self, entry: &Sealed, chart: &Chart) -> String {
        match self {
            Self::Csv => csv(entry, chart),
            Self::Jsonl(base) => format!("{}\n", journal_event::payload(entry, *base)),
            _ if entry.kind.effect() != Effect::Post => String::new(),
            Self::Hledger(hledger) => hledger.entry(entry),
            Self::Beancount(beancount) => beancount.entry(entry),
        }
    }
}

fn csv(entry: &Sealed, chart: &Chart) -> String {
    let base = chart.book.base_currency;
    let mut text = String::new();
    let refers_to = entry.refers_to.map(|number| number.to_string()).unwrap_or_default();
    let shared = [
        entry.number.to_string(),
        entry.kind.as_str().to_owned(),
        entry.effective_on.to_string(),
        entry.posted_at.to_string(),
        entry.source.event.to_string(),
        entry.description.to_string(),
        refers_to,
    ];
    let shared = shared.map(|cell| quoted(&cell)).join(",");
    let rest = [
        entry.hash.to_string(),
        entry.tenant.to_string(),
        entry.source.payload_hash.to_string(),
        entry.source.rule.clone(),
        entry.metadata.to_string(),
        base.to_string(),
    ];
    let rest = rest.map(|cell| quoted(&cell)).join(",");
    if entry.lines.is_empty() {
        let _ = writeln!(text, "{shared},,,,,,,,,{rest}");
    }
    for (number, line) in (1..).zip(&entry.lines) {
        let (rate, source) = line.rate.as_ref().map_or(("", ""), |rate| (&rate.rate, &rate.source));
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{shared},{number},{},{},{},{},{},{rate},{},{rest}",
            quoted(line.account.as_str()),
            line.side.as_str(),
            line.currency.show(line.amount.into()),
            line.currency,
            base.show(line.base_amount.into()),
            quoted(source),
        );
    }
    text
}

/// What a spreadsheet would take for the beginning of a formula.
const FORMULA: [char; 6] = ['=', '+', '-', '@', '\t', '\r'];

/// A cell of CSV. A first character that a spreadsheet would take for a formula is kept from it by an apostrophe.
fn quoted(cell: &str) -> String {
    let cell =
        if cell.trim_start_matches('\'').starts_with(FORMULA) { format!("'{cell}") } else { cell.to_owned() };
    if cell.contains([',', '"', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell }
}

/// The text of a cell, without the apostrophe that [`quoted`] gave it.
pub(crate) fn unguarded(cell: &str) -> String {
    let guarded = cell.starts_with('\'') && cell.trim_start_matches('\'').starts_with(FORMULA);
    if guarded { cell[1..].to_owned() } else { cell.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cell_is_a_formula_and_every_text_comes_back() {
        for text in ["=1+1", "'=1", "''-x", "-5", "it's", "'tis", "a,\"b\"\nc", ""] {
            let cell = quoted(text);
            assert!(!cell.trim_start_matches('"').starts_with(FORMULA), "{cell}");
            let read = crate::import::Records::new(cell.as_bytes()).next();
            let read = read.map_or_else(String::new, |(_, cells)| unguarded(&cells.unwrap()[0]));
            assert_eq!(read, text);
        }
    }
}
