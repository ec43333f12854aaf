//! Reads a stream in a task of its own, so that the server hears of us even while nobody takes what was read.
//!
//! What is read and not taken is bounded: then reading stops, TCP makes the server wait, and the log waits there.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend::CopyData;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::EPOCH;
use super::trouble::Trouble;
use super::wire::{Answer, Wire};
use super::within;
use crate::clock::Clock;
use crate::store::LogPosition;

/// How often the server is told how far we are.
const STATUS: Duration = Duration::from_secs(1);
/// After so many of these without a word, the server is asked whether it is there.
const ASK_AFTER: u32 = 10;
/// After so many it is given up.
const GIVE_UP_AFTER: u32 = 30;
/// Reading stops when so many bytes wait to be taken; one message may be larger.
const MOST_BYTES: usize = 256 << 10;

/// What a stream tells.
pub(in crate::postgres) enum Heard {
    /// A message of the output plugin.
    Log(Bytes),
    /// Everything before this was sent.
    Alive(LogPosition),
}

/// The end of a stream at which it is taken. Dropping it closes the connection.
pub(in crate::postgres) struct Reader {
    batches: mpsc::Receiver<Result<Vec<Heard>, Trouble>>,
    taken: VecDeque<Heard>,
    confirmed: Arc<AtomicU64>,
    _task: AbortOnDropHandle<()>,
}

impl Reader {
    pub(super) fn start(wire: Wire, limit: Duration, clock: Clock) -> Self {
        let (sender, batches) = mpsc::channel(1);
        let confirmed = Arc::new(AtomicU64::new(0));
        let line =
            Line { wire, limit, clock, confirmed: Arc::clone(&confirmed), waiting: Vec::new(), bytes: 0 };
        let task = AbortOnDropHandle::new(tokio::spawn(line.run(sender)));
        Self { batches, taken: VecDeque::new(), confirmed, _task: task }
    }

    /// Waits for the next.
    pub(in crate::postgres) async fn next(&mut self) -> Result<Heard, Trouble> {
        loop {
            if let Some(heard) = self.taken.pop_front() {
                return Ok(heard);
            }
            self.taken = self.batches.recv().await.unwrap_or(Err(Trouble::Ended))?.into();
        }
    }

    /// The next, if it is here.
    pub(in crate::postgres) fn ready(&mut self) -> Result<Option<Heard>, Trouble> {
        if self.taken.is_empty()
            && let Ok(batch) = self.batches.try_recv()
        {
            self.taken = batch?.into();
        }
        Ok(self.taken.pop_front())
    }

    /// Lets the server forget its log up to here. It is told within a second.
    pub(in crate::postgres) fn confirm(&self, position: LogPosition) {
        self.confirmed.store(position.0, Ordering::Release);
    }
}

/// The end of a stream at which it is read.
struct Line {
    wire: Wire,
    limit: Duration,
    clock: Clock,
    confirmed: Arc<AtomicU64>,
    /// Read and not yet handed over.
    waiting: Vec<Heard>,
    bytes: usize,
}

impl Line {
    async fn run(mut self, sender: mpsc::Sender<Result<Vec<Heard>, Trouble>>) {
        let Err(trouble) = self.read(&sender).await;
        // Who is gone need not be told.
        let _gone = sender.send(Err(trouble)).await;
    }

    async fn read(
        &mut self,
        sender: &mpsc::Sender<Result<Vec<Heard>, Trouble>>,
    ) -> Result<Infallible, Trouble> {
        let clock = self.clock.clone();
        let mut tick = pin!(clock.sleep(STATUS));
        let mut silent = 0;
        loop {
            let may_read = self.bytes < MOST_BYTES;
            tokio::select! {
                permit = sender.reserve(), if !self.waiting.is_empty() => {
                    permit.map_err(|_| Trouble::Ended)?.send(Ok(std::mem::take(&mut self.waiting)));
                    self.bytes = 0;
                }
                filled = self.wire.fill(), if may_read => {
                    filled?;
                    silent = 0;
                    self.take_in().await?;
                }
                () = &mut tick => {
                    // Who does not listen cannot say that nobody speaks.
                    silent = if may_read { silent + 1 } else { 0 };
                    if silent >= GIVE_UP_AFTER {
                        return Err(Trouble::Silent(STATUS * GIVE_UP_AFTER));
                    }
                    self.tell(silent >= ASK_AFTER).await?;
                    tick.set(clock.sleep(STATUS));
                }
            }
        }
    }

    /// Takes all messages that are here.
    async fn take_in(&mut self) -> Result<(), Trouble> {
        while let Some(answer) = self.wire.read()? {
            let data = match answer {
                Answer::Message(Message::CopyData(body)) => body.into_bytes(),
                Answer::Message(Message::CopyDone | Message::CommandComplete(_)) => {
                    return Err(Trouble::Ended);
                }
                _ => return Err(Trouble::unexpected("in the stream")),
            };
            self.bytes += data.len();
            let (heard, asked) = read_copy_data(data).ok_or_else(|| Trouble::unexpected("in the stream"))?;
            self.waiting.push(heard);
            if asked {
                self.tell(false).await?;
            }
        }
        Ok(())
    }

    /// Tells the server how far we are, and asks for an answer or not.
    async fn tell(&mut self, ask: bool) -> Result<(), Trouble> {
        let confirmed = self.confirmed.load(Ordering::Acquire);
        let now = self.clock.now().as_microsecond() - EPOCH;
        let mut status = Vec::with_capacity(34);
        status.put_u8(b'r');
        // Written, flushed and applied are one to us.
        for _ in 0..3 {
            status.put_u64(confirmed);
        }
        status.put_i64(now);
        status.put_u8(ask.into());
        let send = self.wire.send(|out| {
            CopyData::new(status.as_slice())?.write(out);
            Ok(())
        });
        within(self.limit, send).await
    }
}

/// What the server tells, and whether it wants an answer at once.
fn read_copy_data(mut data: Bytes) -> Option<(Heard, bool)> {
    match data.try_get_u8().ok()? {
        b'w' => {
            let (_start, _end, _time) =
                (data.try_get_u64().ok()?, data.try_get_u64().ok()?, data.try_get_i64().ok()?);
            Some((Heard::Log(data), false))
        }
        b'k' => {
            let (end, _time) = (data.try_get_u64().ok()?, data.try_get_i64().ok()?);
            Some((Heard::Alive(LogPosition(end)), data.try_get_u8().ok()? == 1))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_words_are_read_and_nonsense_is_not() {
        let mut alive = vec![b'k'];
        alive.put_u64(77);
        alive.put_i64(1);
        alive.put_u8(1);
        let (heard, asked) = read_copy_data(alive.clone().into()).unwrap();
        assert!(matches!(heard, Heard::Alive(LogPosition(77))) && asked);

        let mut log = vec![b'w'];
        log.put_bytes(0, 24);
        log.put_slice(b"row");
        let (heard, asked) = read_copy_data(log.into()).unwrap();
        assert!(matches!(heard, Heard::Log(row) if row == "row"[..]) && !asked);

        assert!(read_copy_data(alive[..9].to_vec().into()).is_none(), "cut short");
        assert!(read_copy_data(Bytes::new()).is_none());
        assert!(read_copy_data(Bytes::from_static(b"?")).is_none());
    }
}
