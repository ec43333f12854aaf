//! How far a file has been read: a bar on a terminal, else a line every 10 seconds.

use std::io::{BufRead, BufReader, IsTerminal as _, Read};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};

use crate::commands::Context;

/// A line of progress as often as this, where no bar can be drawn.
const TELL_EVERY: Duration = Duration::from_secs(10);
const BAR: &str = "{bar:40} {bytes} of {total_bytes}, {msg}";
const NO_END: &str = "{spinner} {bytes}, {msg}";

/// A file on its way in.
pub(super) struct Reading<'a> {
    context: &'a Context,
    bar: ProgressBar,
    is_drawn: bool,
    told_at: Duration,
}

impl<'a> Reading<'a> {
    /// Opens a file, or stdin where it is named `-`.
    pub(super) fn open(file: &Path, context: &'a Context) -> anyhow::Result<(Self, impl BufRead + 'static)> {
        let (input, bytes): (Box<dyn Read>, Option<u64>) = if file.as_os_str() == "-" {
            (Box::new(std::io::stdin()), None)
        } else {
            let opened =
                std::fs::File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
            let bytes = opened.metadata().ok().map(|metadata| metadata.len());
            (Box::new(opened), bytes)
        };
        let is_drawn = std::io::stderr().is_terminal() && !context.output.quiet;
        let bar = if is_drawn { ProgressBar::new(bytes.unwrap_or(0)) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template(if bytes.is_some() { BAR } else { NO_END });
        let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let input = BufReader::new(bar.wrap_read(input));
        Ok((Self { context, bar, is_drawn, told_at: context.clock.monotonic() }, input))
    }

    /// Tells what has become of the file so far, if it is time to.
    pub(super) fn tell(&mut self, lines: usize, posted: usize) {
        if self.is_drawn {
            self.bar.set_message(format!("{posted} posted"));
        } else if self.context.clock.since(self.told_at) > TELL_EVERY {
            self.told_at = self.context.clock.monotonic();
            self.context.output.note(&format!("{lines} lines read, {posted} posted"));
        }
    }

    /// Takes the bar away.
    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
