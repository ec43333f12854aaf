//! A connection that is given up when the other side takes nothing of an answer for too long.
//!
//! Who never reads would keep its connection for ever otherwise, and with enough of them nobody else would get one.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use postrider::Clock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream whose writes wait for so long at most.
pub(super) struct Patient<S> {
    stream: S,
    clock: Clock,
    limit: Duration,
    /// The end of its patience, while nothing is taken.
    ends: Option<BoxFuture<'static, ()>>,
}

impl<S> Patient<S> {
    pub(super) fn new(stream: S, clock: Clock, limit: Duration) -> Self {
        Self { stream, clock, limit, ends: None }
    }

    /// What came of a write. Each that goes through, even in part, begins the time anew.
    fn unless_too_long<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.ends = None;
            return written;
        }
        let (clock, limit) = (&self.clock, self.limit);
        let ends = self.ends.get_or_insert_with(|| {
            let clock = clock.clone();
            Box::pin(async move { clock.sleep(limit).await })
        });
        match ends.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.unless_too_long(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, parts);
        this.unless_too_long(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(cx);
        this.unless_too_long(cx, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let shut = Pin::new(&mut this.stream).poll_shutdown(cx);
        this.unless_too_long(cx, shut)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn who_takes_nothing_is_given_up_and_who_takes_little_is_not() {
        let limit = Duration::from_secs(1);
        let (ours, mut theirs) = tokio::io::duplex(8);
        let mut patient = Patient::new(ours, Clock::system(), limit);
        let reading = tokio::spawn(async move {
            let (mut byte, clock) = ([0; 4], Clock::system());
            for _ in 0..4 {
                clock.sleep(limit / 4).await;
                theirs.read_exact(&mut byte).await.unwrap();
            }
            theirs
        });
        patient.write_all(&[0; 16]).await.unwrap();
        let theirs = reading.await.unwrap();
        let late = patient.write_all(&[0; 16]).await.unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        drop(theirs);
    }
}
