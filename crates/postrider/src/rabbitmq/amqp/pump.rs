//! The two tasks of a connection: one reads and tells, one writes what waits.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use super::Error;
use super::connection::Shared;
use super::frame::{self, Frame};
use super::method::{self, Method};
use super::state::State;
use super::wire::{Reader, text};

/// Room for what arrives at once.
const CHUNK: usize = 64 << 10;
/// A buffer that was needed for more than this is not kept.
const KEPT: usize = 1 << 20;
/// How long the last words may take.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Reads until the connection ends, and ends it.
pub(super) async fn read(shared: Arc<Shared>, mut stream: impl AsyncRead + Unpin, mut arrived: BytesMut) {
    let stop = shared.stop.clone();
    let reading = async {
        let mut told = Told::default();
        loop {
            while let Some(frame) = frame::take(&mut arrived, shared.agreed.frame_max)? {
                told.tell(&shared, frame)?;
            }
            told.wake();
            if arrived.capacity() - arrived.len() < CHUNK / 4 {
                arrived.reserve(CHUNK);
            }
            let read = stream.read_buf(&mut arrived);
            let read = match shared.patience() {
                Some(patience) => {
                    timeout(patience, read).await.map_err(|_late| Error::Silence(patience.as_secs()))?
                }
                None => read.await,
            };
            if read? == 0 {
                return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
            }
        }
    };
    let ended: Option<Result<std::convert::Infallible, Error>> = stop.run_until_cancelled(reading).await;
    if let Some(Err(why)) = ended {
        shared.end(&why);
    } else {
        shared.end(&Error::Closed);
    }
}

/// Who is told what arrived.
#[derive(Default)]
struct Told {
    /// The channel of the frame before, which most often is that of the next.
    last: Option<Arc<State>>,
    /// Channels on which something was heard in this read that somebody waits for.
    waited_for: Vec<Arc<State>>,
}

impl Told {
    fn tell(&mut self, shared: &Shared, frame: Frame) -> Result<(), Error> {
        if frame.kind == frame::HEARTBEAT {
            return Ok(());
        }
        if frame.channel == 0 {
            return of_connection(shared, &frame);
        }
        if self.last.as_ref().is_none_or(|state| state.id() != frame.channel || state.is_over()) {
            self.last = shared.find_channel(frame.channel);
        }
        // What comes for a channel that is no more was on its way before that was known.
        let Some(state) = &self.last else { return Ok(()) };
        if state.arrived(shared, frame)? && !self.waited_for.iter().any(|other| Arc::ptr_eq(other, state)) {
            self.waited_for.push(Arc::clone(state));
        }
        Ok(())
    }

    /// Once per read, however many confirms came with it.
    fn wake(&mut self) {
        for state in self.waited_for.drain(..) {
            state.wake();
        }
    }
}

fn of_connection(shared: &Shared, frame: &Frame) -> Result<(), Error> {
    let mut reader = Reader(&frame.payload);
    match (reader.u16()?, reader.u16()?) {
        method::CLOSE => {
            let (code, said) = (reader.u16()?, text(reader.short()?));
            shared.send_method(0, &Method::new(method::CLOSE_OK));
            Err(Error::Connection { code, text: said })
        }
        method::CLOSE_OK => Err(Error::Closed),
        method::BLOCKED => {
            shared.blocked.send_replace(Some(text(reader.short()?)));
            Ok(())
        }
        method::UNBLOCKED => {
            shared.blocked.send_replace(None);
            Ok(())
        }
        (class, number) => Err(Error::NotUnderstood(format!("method {class}.{number}"))),
    }
}

/// Writes what waits, and that we are alive if there was nothing to write for a while.
pub(super) async fn write(shared: Arc<Shared>, mut stream: impl AsyncWrite + Unpin) {
    let stop = shared.stop.clone();
    let mut bytes = Vec::new();
    let writing = async {
        loop {
            shared.take_out(&mut bytes);
            if bytes.is_empty() {
                let waiting = shared.wake_writer.notified();
                // Twice as often as has to be: the other side does not wait for one that is late.
                let silent = if let Some(patience) = shared.patience() {
                    timeout(patience / 4, waiting).await.is_err()
                } else {
                    waiting.await;
                    false
                };
                if silent {
                    stream.write_all(&frame::I_AM_HERE).await?;
                    stream.flush().await?;
                }
                continue;
            }
            stream.write_all(&bytes).await?;
            stream.flush().await?;
            shared.note_written(bytes.len());
            bytes.clear();
            bytes.shrink_to(KEPT);
        }
    };
    let ended: Option<Result<std::convert::Infallible, Error>> = stop.run_until_cancelled(writing).await;
    match ended {
        Some(Err(why)) => shared.end(&why),
        // Stopped between two writes: what waits is the last word, such as the answer to a goodbye.
        _ if bytes.is_empty() => {
            shared.take_out(&mut bytes);
            let _unheard = timeout(LAST_WORDS, async {
                stream.write_all(&bytes).await?;
                stream.shutdown().await
            })
            .await;
        }
        _ => {}
    }
}
