//! Reading CSV as RFC 4180 has it: cells in quotes may hold commas, quotes and line ends.

use std::io::BufRead;

/// The longest record. A quote that is never closed would swallow the rest of the file.
const MOST: usize = 1 << 20;

/// The records of a file, each with the line it begins on, from 1; or in words why it cannot be read. Empty lines are left out.
pub struct Records<R> {
    input: R,
    line: usize,
    ended: bool,
}

impl<R: BufRead> Records<R> {
    /// From the beginning of a file.
    pub fn new(input: R) -> Self {
        Self { input, line: 0, ended: false }
    }

    fn read(&mut self) -> Result<(usize, Vec<u8>), String> {
        let (mut record, first, mut is_open) = (Vec::new(), self.line + 1, false);
        loop {
            let before = record.len();
            let read = self.input.read_until(b'\n', &mut record).map_err(|error| error.to_string())?;
            self.line += usize::from(read > 0);
            is_open = record[before..].iter().fold(is_open, |is_open, byte| is_open ^ (*byte == b'"'));
            if !is_open || read == 0 || record.len() > MOST {
                self.ended = read == 0;
                return if is_open { Err("a quote is not closed".to_owned()) } else { Ok((first, record)) };
            }
        }
    }
}

impl<R: BufRead> Iterator for Records<R> {
    type Item = (usize, Result<Vec<String>, String>);

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            let at = self.line + 1;
            match self.read() {
                Err(why) => return Some((at, Err(why))),
                Ok((first, record)) => match String::from_utf8(record) {
                    Err(_) => return Some((first, Err("it is not UTF-8".to_owned()))),
                    Ok(record) if record.trim().is_empty() => {}
                    Ok(record) => return Some((first, Ok(cells(record.trim_end_matches(['\r', '\n']))))),
                },
            }
        }
        None
    }
}

fn cells(record: &str) -> Vec<String> {
    let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let mut letters = record.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                cell.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(std::mem::take(&mut cell)),
            _ => cell.push(letter),
        }
    }
    cells.push(cell);
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_in_quotes_hold_commas_quotes_and_line_ends() {
        let text = "a,b\r\n\n\"x,\"\"y\"\"\nz\",\"\"\n1,\"open\n";
        let read: Vec<_> = Records::new(text.as_bytes()).collect();
        assert_eq!(read[0], (1, Ok(vec!["a".to_owned(), "b".to_owned()])));
        assert_eq!(read[1], (3, Ok(vec!["x,\"y\"\nz".to_owned(), String::new()])));
        assert_eq!(read[2], (5, Err("a quote is not closed".to_owned())));
        assert_eq!(read.len(), 3);
    }
}
