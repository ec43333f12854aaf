//! Keeps headers that are nested too deeply from the driver, which reads them by recursion: some hundred levels of lists or tables would
//! overflow its stack and end the process, again with every redelivery. Whoever may publish could send them.
//!
//! The bytes are looked at as they arrive and changed where they stand: below the deepest level a list or a table is said to be an array
//! of bytes, which is written in the same way, as a length and what follows. So the message comes through, and the rest of its headers.

use std::io::{self, IoSlice, IoSliceMut};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_io::{AsyncRead, AsyncWrite};

/// Levels that are left as they are. RabbitMQ's own history of a message has three.
const DEEPEST: usize = 32;

/// What content headers begin with: class, weight, the body's size, and which properties there are.
const CONTENT: usize = 2 + 2 + 8 + 2;
/// The type of frames with content headers, and that of an array of bytes.
const CONTENT_FRAME: u8 = 2;
const BYTES: u8 = b'x';
const CONTENT_TYPE: u16 = 1 << 15;
const CONTENT_ENCODING: u16 = 1 << 14;
const HEADERS: u16 = 1 << 13;

/// Watches the frames of one connection.
#[derive(Debug)]
pub(super) struct Sieve {
    want: Want,
    /// The beginning of what is wanted.
    seen: [u8; CONTENT],
    filled: usize,
    /// Bytes that go by before that.
    skip: usize,
    /// Bytes left of this frame, with the one that ends it.
    left: usize,
    /// The lists and tables we are inside of.
    open: Vec<Open>,
}

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Want {
    Frame,
    Content,
    /// The lengths of so many short texts, and then the headers.
    Texts(u8),
    /// The length of a list or table, and whether it has names.
    Inside {
        named: bool,
    },
    /// Whatever follows in the list or table we are inside of.
    Item,
    /// The length of a name.
    Name,
    /// The type of a value.
    Type,
    /// The length of a text or of bytes.
    Bytes,
}

#[derive(Debug)]
struct Open {
    named: bool,
    /// It ends when so many bytes are left of the frame.
    end: usize,
}

impl Default for Sieve {
    fn default() -> Self {
        Self { want: Want::Frame, seen: [0; CONTENT], filled: 0, skip: 0, left: 0, open: Vec::new() }
    }
}

impl Want {
    const fn bytes(self) -> usize {
        match self {
            Self::Frame => 7,
            Self::Content => CONTENT,
            Self::Inside { .. } | Self::Bytes => 4,
            Self::Texts(_) | Self::Name | Self::Type => 1,
            Self::Item => 0,
        }
    }
}

impl Sieve {
    /// Looks at the next bytes, and changes those that have to be.
    pub(super) fn pass(&mut self, mut bytes: &mut [u8]) {
        loop {
            let skipped = self.skip.min(bytes.len());
            bytes = &mut bytes[skipped..];
            self.skip -= skipped;
            self.left -= skipped;
            let missing = self.want.bytes() - self.filled;
            if self.skip > 0 || (bytes.is_empty() && missing > 0) {
                return;
            }
            let (taken, rest) = bytes.split_at_mut(missing.min(bytes.len()));
            self.seen[self.filled..][..taken.len()].copy_from_slice(taken);
            self.filled += taken.len();
            if self.want != Want::Frame {
                self.left -= taken.len();
            }
            if self.filled == self.want.bytes() {
                self.filled = 0;
                let nested = self.want == Want::Type && matches!(self.seen[0], b'A' | b'F');
                if nested && self.open.len() >= DEEPEST {
                    self.seen[0] = BYTES;
                    taken[0] = BYTES;
                }
                self.understand();
            }
            bytes = rest;
        }
    }

    /// What was wanted is there.
    fn understand(&mut self) {
        match self.want {
            Want::Frame => {
                self.left = self.number(3) + 1;
                match self.seen[0] {
                    CONTENT_FRAME => self.go_on(Want::Content, 0),
                    _ => self.give_up(),
                }
            }
            Want::Content => {
                let there = u16::from_be_bytes([self.seen[CONTENT - 2], self.seen[CONTENT - 1]]);
                let texts = u8::from(there & CONTENT_TYPE != 0) + u8::from(there & CONTENT_ENCODING != 0);
                match (there & HEADERS != 0, texts) {
                    (false, _) => self.give_up(),
                    (true, 0) => self.go_on(Want::Inside { named: true }, 0),
                    (true, texts) => self.go_on(Want::Texts(texts), 0),
                }
            }
            Want::Texts(1) => self.go_on(Want::Inside { named: true }, self.seen[0].into()),
            Want::Texts(texts) => self.go_on(Want::Texts(texts.saturating_sub(1)), self.seen[0].into()),
            Want::Inside { named } => match self.left.checked_sub(self.number(0)) {
                Some(end) => {
                    self.open.push(Open { named, end });
                    self.go_on(Want::Item, 0);
                }
                None => self.give_up(),
            },
            Want::Item => {
                while self.open.pop_if(|open| open.end >= self.left).is_some() {}
                match self.open.last() {
                    Some(Open { named: true, .. }) => self.go_on(Want::Name, 0),
                    Some(Open { named: false, .. }) => self.go_on(Want::Type, 0),
                    None => self.give_up(),
                }
            }
            Want::Name => self.go_on(Want::Type, self.seen[0].into()),
            Want::Type => match self.seen[0] {
                b'V' => self.go_on(Want::Item, 0),
                b't' | b'b' | b'B' => self.go_on(Want::Item, 1),
                b's' | b'u' | b'U' => self.go_on(Want::Item, 2),
                b'I' | b'i' | b'f' => self.go_on(Want::Item, 4),
                b'D' => self.go_on(Want::Item, 5),
                b'L' | b'l' | b'd' | b'T' => self.go_on(Want::Item, 8),
                b'S' | BYTES => self.go_on(Want::Bytes, 0),
                b'A' => self.go_on(Want::Inside { named: false }, 0),
                b'F' => self.go_on(Want::Inside { named: true }, 0),
                _ => self.give_up(),
            },
            Want::Bytes => self.go_on(Want::Item, self.number(0)),
        }
    }

    fn number(&self, at: usize) -> usize {
        let bytes = [self.seen[at], self.seen[at + 1], self.seen[at + 2], self.seen[at + 3]];
        u32::from_be_bytes(bytes) as usize
    }

    /// Wants this after so many bytes.
    fn go_on(&mut self, want: Want, skip: usize) {
        if skip + want.bytes() < self.left {
            (self.want, self.skip) = (want, skip);
        } else {
            self.give_up();
        }
    }

    /// The rest of the frame goes by: it has nothing more of interest, or the driver will not understand it either, and says so.
    fn give_up(&mut self) {
        (self.want, self.skip) = (Want::Frame, self.left);
        self.open.clear();
    }
}

/// A stream whose incoming bytes pass a sieve.
pub(super) struct Sifted<S> {
    stream: S,
    sieve: Sieve,
}

impl<S> Sifted<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, sieve: Sieve::default() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Sifted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.sieve.pass(&mut buffer[..read]);
        Poll::Ready(Ok(read))
    }

    fn poll_read_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        let read = ready!(Pin::new(&mut self.stream).poll_read_vectored(context, buffers))?;
        let mut left = read;
        for buffer in buffers {
            let here = left.min(buffer.len());
            self.sieve.pass(&mut buffer[..here]);
            left -= here;
        }
        Poll::Ready(Ok(read))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Sifted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(context)
    }
}

#[cfg(test)]
mod tests;
