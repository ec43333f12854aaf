//! Messages on a socket: PostgreSQL's frames, in and out.

use std::io;

use bytes::{Buf as _, BytesMut};
use postgres_protocol::message::backend::{Header, Message};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::trouble::Trouble;

/// How much is read at once.
const CHUNK: usize = 64 << 10;
/// The answer after which both sides send: the message crate does not know it.
const COPY_BOTH: u8 = b'W';

/// Any kind of connection.
trait Socket: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin> Socket for S {}

/// A connection, and what was read from it and not yet asked for.
pub(super) struct Wire {
    socket: Box<dyn Socket>,
    input: BytesMut,
    largest: usize,
}

/// What the server says.
pub(super) enum Answer {
    /// From now on both sides send.
    CopyBoth,
    Message(Message),
}

impl Wire {
    /// Refuses messages that are larger than this.
    pub(super) fn new(
        socket: impl AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static,
        largest: usize,
    ) -> Self {
        Self { socket: Box::new(socket), input: BytesMut::new(), largest }
    }

    /// Allows messages up to this size from now on.
    pub(super) fn allow(&mut self, largest: usize) {
        self.largest = largest;
    }

    /// Sends a message.
    pub(super) async fn send(
        &mut self,
        write: impl FnOnce(&mut BytesMut) -> io::Result<()>,
    ) -> Result<(), Trouble> {
        let mut out = BytesMut::new();
        write(&mut out)?;
        self.socket.write_all(&out).await?;
        Ok(self.socket.flush().await?)
    }

    /// Waits for the next message. Errors of the server come as errors, notices not at all.
    pub(super) async fn receive(&mut self) -> Result<Answer, Trouble> {
        loop {
            if let Some(answer) = self.read()? {
                return Ok(answer);
            }
            self.fill().await?;
        }
    }

    /// Waits for more to read. Can be given up at any time without losing anything.
    pub(super) async fn fill(&mut self) -> Result<(), Trouble> {
        self.input.reserve(CHUNK);
        match self.socket.read_buf(&mut self.input).await? {
            0 => Err(Trouble::Lost(io::ErrorKind::UnexpectedEof.into())),
            _ => Ok(()),
        }
    }

    /// The next message, if all of it is here.
    pub(super) fn read(&mut self) -> Result<Option<Answer>, Trouble> {
        loop {
            let unreadable = |error| Trouble::unreadable(&error);
            let Some(header) = Header::parse(&self.input).map_err(unreadable)? else { return Ok(None) };
            let length = usize::try_from(header.len()).unwrap_or(usize::MAX).saturating_add(1);
            if length > self.largest {
                let Self { largest, .. } = self;
                return Err(Trouble::Unreadable(format!(
                    "a message of {length} bytes, of {largest} at most"
                )));
            }
            if header.tag() == COPY_BOTH {
                if self.input.len() < length {
                    return Ok(None);
                }
                self.input.advance(length);
                return Ok(Some(Answer::CopyBoth));
            }
            match Message::parse(&mut self.input).map_err(unreadable)? {
                None => return Ok(None),
                Some(Message::ErrorResponse(body)) => return Err(Trouble::refused(&body)),
                Some(Message::NoticeResponse(_) | Message::ParameterStatus(_)) => {}
                Some(message) => return Ok(Some(Answer::Message(message))),
            }
        }
    }
}
